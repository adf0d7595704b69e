// The C interface of groups: collectives and messages between processes that a program brings
// together by itself. No job, no scheduler and no servers are needed. capi/tandem.h includes this;
// python/tandem/distributed.py is a back end of torch.distributed over it.
//
// The shape: every member opens the group, gives its address to all others (through a file, a
// store, a launcher: whatever they have in common already), and connects with the addresses of all.
// Ranks of one host are then joined by shared memory, those of different hosts by RDMA where both
// have a device, else by TCP, unless the options say otherwise. Operations return at once, with a
// number to wait for; two threads of the group do them.
//
// Collectives: all ranks make the same calls in the same order: the same function with the same
// count, type, reduction and root. Else all of them have an error of that call. An operation with a
// root ends once all ranks have called it. Counts are elements. `in` may be
// `out` (for allgather and gather the rank's own block of `out`, for reduce_scatter and scatter of
// `in`); other overlap is not allowed. The results of an allreduce are the same bits on all ranks,
// and the same every time. Messages go beside collectives, and neither waits for the other.
//
// Returns: as in capi/tandem.h: 0, or where something is waited for 1 or 0; -1 is an error, with
// its text in tandem_error(), which names the rank at fault: one that is gone, one that was waited
// for in vain, or the two whose calls differ.
//
// After an error of a collective, or the loss of a rank, the group is finished: what runs and every
// later call has the same error, on all ranks (but an operation for which everything has come may
// end well). What fails alone: a call that cannot be right, a receive for which nothing came in
// time or something of another size, a send of which nothing was taken in time.
//
// Threads: any, for all functions but tandem_group_close and tandem_group_free. The group's threads
// have descriptors in a table of their own: a process that the program forks has none of them and
// is no member; its calls say so.
//
// Memory: what an operation is given is the group's until the operation has ended.
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
  TANDEM_U8 = 6,  // and bytes of anything that is not reduced
  // Add one of these to the type if the program's elements have another type than the one they are
  // sent as: truth values are TANDEM_U8 + TANDEM_CALLED_BOOL. Ranks must agree in it as in the type,
  // and errors name it.
  TANDEM_CALLED_BOOL = 0x100,
  TANDEM_CALLED_I8 = 0x200,
  TANDEM_CALLED_I16 = 0x300,
  TANDEM_CALLED_C64 = 0x400,  // pairs of f32
  TANDEM_CALLED_C128 = 0x500
};

// Reductions. Of f16 and bf16 each addition is rounded from a float; integers wrap; a minimum
// or maximum with a NaN is one.
enum {
  TANDEM_SUM = 0,
  TANDEM_PRODUCT = 1,
  TANDEM_MIN = 2,
  TANDEM_MAX = 3,
  // Floating point only. Does not overflow where the average fits. 16-bit types are added as f32.
  TANDEM_AVERAGE = 4,
  TANDEM_BIT_AND = 5,  // the bits: integers only
  TANDEM_BIT_OR = 6,
  TANDEM_BIT_XOR = 7
};

typedef struct {
  uint64_t size;  // of this struct; a later version may have more fields
  int32_t rank;   // 0 to ranks - 1
  int32_t ranks;
  const char* host;      // of this machine, as the others reach it; NULL: 127.0.0.1
  const char* link;      // "shm", "rdma", "tcp", "zmq" or "auto", the same on all ranks; NULL: auto
  int64_t deadline_ms;   // of each operation, from when it begins; 0: half an hour
  int32_t reproducible;  // 1: sums are added in the order of ranks, whatever the size
} tandem_group_options;

// ---- opening ----

// Listens for the others. Errors: no such rank, a host that is none of this machine, a link that it
// does not have.
int tandem_group_open(const tandem_group_options* options, tandem_group** group);
// For the others: `*count` bytes (some hundred), valid until tandem_group_free.
int tandem_group_address(const tandem_group* group, const void** bytes, int64_t* count);
// Once: the addresses of all ranks in their order, the own one among them, counts[r] bytes each.
// Returns at once; the group is joined in the background, within timeout_ms.
int tandem_group_connect(tandem_group* group, const void* const* addresses, const int64_t* counts,
                         int64_t timeout_ms);
// 1: all are joined. -1: not within the time of tandem_group_connect; the text names those missing.
int tandem_group_wait_connected(tandem_group* group, int64_t timeout_ms);

// ---- collectives ----

// Each gives `*work` the number to wait for. type, op: as above.

// in and out: `count` elements.
int tandem_group_allreduce(tandem_group* group, const void* in, void* out, int64_t count,
                           int32_t type, int32_t op, int64_t* work);
// The same for rank `root`; `out` of the others is not touched and may be NULL.
int tandem_group_reduce(tandem_group* group, const void* in, void* out, int64_t count, int32_t type,
                        int32_t op, int32_t root, int64_t* work);
// data: `count` elements, those of rank `root`.
int tandem_group_broadcast(tandem_group* group, void* data, int64_t count, int32_t type,
                           int32_t root, int64_t* work);
// counts[r] elements of rank r (the same counts on all ranks), laid end to end in `out`.
int tandem_group_allgather(tandem_group* group, const void* in, void* out, const int64_t* counts,
                           int32_t type, int64_t* work);
// The same for rank `root`; `out` of the others may be NULL.
int tandem_group_gather(tandem_group* group, const void* in, void* out, const int64_t* counts,
                        int32_t type, int32_t root, int64_t* work);
// in, on rank `root`: counts[r] elements for rank r, laid end to end; NULL on the others.
int tandem_group_scatter(tandem_group* group, const void* in, void* out, const int64_t* counts,
                         int32_t type, int32_t root, int64_t* work);
// in: counts[r] elements for rank r, laid end to end; out: counts[rank], reduced over all ranks.
int tandem_group_reduce_scatter(tandem_group* group, const void* in, void* out,
                                const int64_t* counts, int32_t type, int32_t op, int64_t* work);
// in: send_counts[r] elements for rank r; out: receive_counts[r] of rank r, each laid end to end.
int tandem_group_alltoall(tandem_group* group, const void* in, const int64_t* send_counts,
                          void* out, const int64_t* receive_counts, int32_t type, int64_t* work);
// Ends when all ranks have called it; deadline_ms 0: the group's.
int tandem_group_barrier(tandem_group* group, int64_t deadline_ms, int64_t* work);

// ---- messages ----

// `bytes` of data for rank `to`. Ended: the memory is the program's again, and the message on its
// way. Messages between two ranks with the same tag keep their order. deadline_ms 0: the group's.
int tandem_group_send(tandem_group* group, const void* data, int64_t bytes, int32_t to, int64_t tag,
                      int64_t deadline_ms, int64_t* work);
// The next message with this tag of rank `from`, or of any if that is -1: exactly `bytes`.
int tandem_group_receive(tandem_group* group, void* data, int64_t bytes, int32_t from, int64_t tag,
                         int64_t deadline_ms, int64_t* work);

// The same of `count` elements of a type: a receive of another type than the message's is an error.
int tandem_group_send_elements(tandem_group* group, const void* data, int64_t count, int32_t type,
                               int32_t to, int64_t tag, int64_t deadline_ms, int64_t* work);
int tandem_group_receive_elements(tandem_group* group, void* data, int64_t count, int32_t type,
                                  int32_t from, int64_t tag, int64_t deadline_ms, int64_t* work);

// ---- waiting ----

// 1: the operation has ended; 0: not within the time. Each is waited for until 1 or -1, and then
// forgotten. from: who sent what was received, or NULL.
int tandem_group_wait(tandem_group* group, int64_t work, int64_t timeout_ms, int32_t* from);
// Nobody will wait for it.
int tandem_group_forget(tandem_group* group, int64_t work);

// ---- leaving ----

// Says goodbye to the others. What has not ended is given up, and who waits for it has an error;
// ranks that wait for this one learn that it has left.
int tandem_group_close(tandem_group* group);
// Closes the group if it is open, and forgets it.
void tandem_group_free(tandem_group* group);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_CAPI_TANDEM_GROUP_H_
