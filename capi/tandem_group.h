// The C interface of groups: collectives and messages between processes that a program starts
// itself. A group needs no job, scheduler or servers. capi/tandem.h includes this header;
// python/tandem/distributed.py is a back end of torch.distributed on top of it.
//
// Use: every member opens the group, and sends its address to all others through something that
// they share already: a file, a store, a launcher. Then it connects with the addresses of all
// members. Ranks on one host are joined by shared memory. Ranks on different hosts are joined by
// RDMA if both have a device, otherwise by TCP. The options can choose another link. Operations
// return at once, with a number to wait for; two threads of the group carry them out.
//
// Collectives: all ranks must make the same calls in the same order: the same function with the
// same count, type, reduction and root. Otherwise all ranks get an error for that call. An
// operation with a root ends when all ranks have called it. Counts are in elements. `in` may be
// `out`. For allgather and gather `in` may be the rank's own block of `out`, and for reduce_scatter
// and scatter `out` may be the rank's own block of `in`. Other overlap is not allowed. The results
// of an allreduce have the same bits on all ranks and in every run. Messages and collectives are
// independent; neither waits for the other.
//
// Return values: as in capi/tandem.h: 0, or 1 and 0 for functions that wait. -1 is an error, with
// its text in tandem_error(). The text names the failed rank: a rank that has gone, a rank that did
// not answer in time, or the two ranks whose calls differ.
//
// After an error of a collective, or the loss of a rank, the group cannot be used any more: running
// operations and every later call have the same error, on all ranks (but an operation for which
// everything has arrived may still succeed). Some errors concern only one call: invalid arguments,
// a receive for which no message came in time or one of another size, and a send whose message was
// not taken in time.
//
// Threads: any thread may call any function at any time, except tandem_group_close and
// tandem_group_free. The descriptors of the group's threads are in a table of their own: a process
// that the program forks has none of them and is not a member; its calls say so.
//
// Memory: the memory that an operation is given belongs to the group until the operation has ended.
// The program must neither write nor free it, nor read memory that receives a result.
#ifndef TANDEM_CAPI_TANDEM_GROUP_H_
#define TANDEM_CAPI_TANDEM_GROUP_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_group tandem_group;

// Types of elements.
enum {
  TANDEM_F32 = 0,
  TANDEM_F64 = 1,
  TANDEM_F16 = 2,
  TANDEM_BF16 = 3,
  TANDEM_I32 = 4,
  TANDEM_I64 = 5,
  TANDEM_U8 = 6,  // also bytes of any data that is not reduced
  // Add one of these to the type if the elements of the program have another type than the one that
  // they are sent as. Booleans, for example, are TANDEM_U8 + TANDEM_CALLED_BOOL. Ranks must agree
  // on it as on the type, and errors name it.
  TANDEM_CALLED_BOOL = 0x100,
  TANDEM_CALLED_I8 = 0x200,
  TANDEM_CALLED_I16 = 0x300,
  TANDEM_CALLED_C64 = 0x400,  // pairs of f32
  TANDEM_CALLED_C128 = 0x500
};

// Reductions. For f16 and bf16 each addition is done in float and rounded. Integers wrap. A minimum
// or maximum with a NaN is NaN.
enum {
  TANDEM_SUM = 0,
  TANDEM_PRODUCT = 1,
  TANDEM_MIN = 2,
  TANDEM_MAX = 3,
  // Only for floating point types. Does not overflow if the average fits.
  // 16-bit types are added as f32.
  TANDEM_AVERAGE = 4,
  TANDEM_BIT_AND = 5,  // bitwise, integers only
  TANDEM_BIT_OR = 6,
  TANDEM_BIT_XOR = 7
};

typedef struct {
  uint64_t size;  // size of this struct; a later version may have more fields
  int32_t rank;   // 0 to ranks - 1
  int32_t ranks;
  const char* host;      // name of this machine, as the others reach it; NULL: 127.0.0.1
  const char* link;      // "shm", "rdma", "tcp", "zmq" or "auto", the same on all ranks; NULL: auto
  int64_t deadline_ms;   // for each operation, from its begin; 0: half an hour
  int32_t reproducible;  // 1: sums are added in rank order, whatever their size
} tandem_group_options;

// ---- opening ----

// The place of this process in a launch.
typedef struct {
  uint64_t size;  // size of this struct; a later version may have more fields
  int32_t rank;   // 0 to ranks - 1
  int32_t ranks;
  int32_t one_host;  // 1: all ranks are known to be on this host
  int32_t port;      // 10000 to 29999, the same for all ranks; 0: the launch has no name
} tandem_launch;

// Fills `launch` from the variables that launchers set for each rank (mpirun, srun, torchrun,
// Kubernetes). Set launch->size first. 1: found. 0: no launcher started this process. -1: the
// variables contradict each other, or the size is invalid.
int tandem_find_launch(tandem_launch* launch);

// Listens for the other members. Errors: an invalid rank, a host that is not this machine, a link
// that the machine does not have.
int tandem_group_open(const tandem_group_options* options, tandem_group** group);
// The address to send to the other members: `*count` bytes (some hundred), valid until
// tandem_group_free.
int tandem_group_address(const tandem_group* group, const void** bytes, int64_t* count);
// Call it once, with the addresses of all ranks in their order, its own included; counts[r] is the
// number of bytes of address r. Returns at once; the group connects in the background, within
// timeout_ms.
int tandem_group_connect(tandem_group* group, const void* const* addresses, const int64_t* counts,
                         int64_t timeout_ms);
// 1: all ranks are connected. -1: not within the timeout of tandem_group_connect; the text names
// the missing ranks.
int tandem_group_wait_connected(tandem_group* group, int64_t timeout_ms);

// ---- collectives ----

// Each function writes to `*work` the number to wait for.
// type and op: values of the enumerations above.

// Reduces `count` elements of all ranks; every rank gets the result. in and out: `count` elements.
int tandem_group_allreduce(tandem_group* group, const void* in, void* out, int64_t count,
                           int32_t type, int32_t op, int64_t* work);
// Like allreduce, but only rank `root` gets the result; on other ranks `out` is not touched and may
// be NULL.
int tandem_group_reduce(tandem_group* group, const void* in, void* out, int64_t count, int32_t type,
                        int32_t op, int32_t root, int64_t* work);
// Copies `count` elements at `data` of rank `root` to all ranks.
int tandem_group_broadcast(tandem_group* group, void* data, int64_t count, int32_t type,
                           int32_t root, int64_t* work);
// Collects counts[r] elements of each rank r, laid end to end in `out` of every rank. The counts
// must be the same on all ranks.
int tandem_group_allgather(tandem_group* group, const void* in, void* out, const int64_t* counts,
                           int32_t type, int64_t* work);
// Like allgather, but only rank `root` gets the result; on other ranks `out` may be NULL.
int tandem_group_gather(tandem_group* group, const void* in, void* out, const int64_t* counts,
                        int32_t type, int32_t root, int64_t* work);
// Distributes `in` of rank `root`: counts[r] elements for rank r, laid end to end. On other ranks
// `in` may be NULL.
int tandem_group_scatter(tandem_group* group, const void* in, void* out, const int64_t* counts,
                         int32_t type, int32_t root, int64_t* work);
// Reduces over all ranks and distributes the result. in: counts[r] elements for rank r, laid end to
// end; out: counts[rank] elements.
int tandem_group_reduce_scatter(tandem_group* group, const void* in, void* out,
                                const int64_t* counts, int32_t type, int32_t op, int64_t* work);
// Sends a block to every rank. in: send_counts[r] elements for rank r; out: receive_counts[r]
// elements from rank r; both laid end to end.
int tandem_group_alltoall(tandem_group* group, const void* in, const int64_t* send_counts,
                          void* out, const int64_t* receive_counts, int32_t type, int64_t* work);
// Ends when all ranks have called it. deadline_ms 0: the deadline of the group.
int tandem_group_barrier(tandem_group* group, int64_t deadline_ms, int64_t* work);

// ---- messages ----

// Sends `bytes` bytes of data to rank `to`. When the operation has ended, the program may use the
// memory again, and the message is in flight. Messages between two ranks with the same tag keep
// their order. deadline_ms 0: the deadline of the group.
int tandem_group_send(tandem_group* group, const void* data, int64_t bytes, int32_t to, int64_t tag,
                      int64_t deadline_ms, int64_t* work);
// Receives the next message with this tag from rank `from`, or from any rank if `from` is -1. The
// message must have exactly `bytes` bytes.
int tandem_group_receive(tandem_group* group, void* data, int64_t bytes, int32_t from, int64_t tag,
                         int64_t deadline_ms, int64_t* work);

// The same for `count` elements of a type. A receive whose type differs from the message's type is
// an error.
int tandem_group_send_elements(tandem_group* group, const void* data, int64_t count, int32_t type,
                               int32_t to, int64_t tag, int64_t deadline_ms, int64_t* work);
int tandem_group_receive_elements(tandem_group* group, void* data, int64_t count, int32_t type,
                                  int32_t from, int64_t tag, int64_t deadline_ms, int64_t* work);

// ---- waiting ----

// 1: the operation has ended; 0: not within timeout_ms. Wait for each operation until 1 or -1; then
// the group forgets it. *from (or NULL) becomes the sender of a received message. Threads that wait
// for an operation at the same time all get its result; a wait that begins later is an error.
int tandem_group_wait(tandem_group* group, int64_t work, int64_t timeout_ms, int32_t* from);
// Says that nobody will begin to wait for the operation. A thread that waits for it already gets
// its result.
int tandem_group_forget(tandem_group* group, int64_t work);

// ---- leaving ----

// Tells the other members that this one leaves. Unfinished operations are given up, and waiting for
// them returns an error. Ranks that wait for this one learn that it has left.
int tandem_group_close(tandem_group* group);
// Closes the group if it is open, and frees it.
void tandem_group_free(tandem_group* group);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_CAPI_TANDEM_GROUP_H_
