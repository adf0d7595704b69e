// Group: the collectives of one group of ranks, as a program calls them.
//
// The folder collectives/ is a library of its own for such operations (sums, broadcasts, exchanges
// between ranks). Jobs use it for their dense gradients, other programs by itself.
//
//   TANDEM_RETURN_IF_ERROR(group.Wait(group.AllReduce(in, out, count, DataType::kF32,
//                                                     ReduceOp::kSum)));
//
// Every call starts an operation and returns a Work, a ticket for Wait or Test. The caller must not
// touch the buffers until the operation has ended. All ranks make the same calls in the same order.
// Counts are in elements. `in == out` works in place; for allgather, gather, reduce-scatter and
// scatter "in place" means that the small buffer is the rank's block of the big one. Buffers may
// not overlap in any other way. These conventions are those of NCCL and MPI.
//
// Between GroupStart and GroupEnd the group only collects calls. At GroupEnd the sends and receives
// start together, so their order cannot cause a deadlock, and small all-reduces of the same type
// and op are fused into one. GroupEnd returns one Work for all calls.
//
// Errors. A call that is invalid by itself returns INVALID_ARGUMENT at once. If ranks disagree in
// op, type, count or order, Wait returns INVALID_ARGUMENT on every rank concerned and names both
// ranks. UNAVAILABLE: a rank is lost (errors.h says which). DEADLINE_EXCEEDED: the operation took
// too long. After an error from Wait the group cannot be used, and all later calls return that
// error.
//
// An all-reduce gives the same bits on all ranks, and the same bits every time with the same
// algorithm. The option `reproducible` also makes the bits independent of how buffers are cut or
// fused: contributions are then added in rank order.
//
// Thread safety: none; one thread at a time. Groups over different links are independent, so
// several groups may run at the same time.
#ifndef TANDEM_COLLECTIVES_GROUP_H_
#define TANDEM_COLLECTIVES_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/engine.h"
#include "collectives/group_request.h"
#include "collectives/link_waiter.h"
#include "collectives/links/link.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule_cache.h"
#include "collectives/types.h"

namespace tandem::collectives {

// Chooses the algorithm for an operation. `bytes` is the size of one rank's vector. The answer must
// be the same on all ranks.
using Chooser = std::function<AlgorithmChoice(Primitive primitive, int64_t bytes)>;

// Tells the group about failures from outside its links, so that a failure has one name on all
// ranks (see rendezvous/coordinator.h).
class GroupWatch {
 public:
  virtual ~GroupWatch() = default;
  // OK, or the reason why the group has failed. Cheap.
  virtual absl::Status Verdict() = 0;
  // A descriptor that is readable when there is a verdict; -1: none.
  virtual int fd() const { return -1; }
  // Reports the failure `seen` by this rank. Returns the verdict that all ranks agree on, or `seen`
  // if there is no verdict in time.
  virtual absl::Status Agree(const absl::Status& seen) = 0;
};

struct GroupOptions {
  absl::Duration deadline = absl::Minutes(1);  // for each operation
  bool reproducible = false;
  Chooser chooser;  // default: DefaultChooser
  // The host of each rank, for `hierarchical` and to decide whether to spin. Empty: one host.
  std::vector<int> host_of_rank;
  GroupWatch* watch = nullptr;
  // With `agree` an operation with a root ends on a rank only when it has heard that all ranks made
  // the same call: same root, type and count. Without it a rank that only sends never learns of a
  // disagreement.
  bool agree = false;
  // Cores of this host, to decide whether to spin. 0: ask the system.
  int cores = 0;
  int64_t fuse_bytes = 256 << 10;  // limit for fusing all-reduces of a group call
  int records = 1024;
};

using Work = uint64_t;

class Group {
 public:
  // links[r] leads to rank r. links[rank] is null.
  Group(int rank, std::vector<std::unique_ptr<Link>> links, GroupOptions options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return engine_.rank(); }
  int ranks() const { return engine_.ranks(); }

  absl::StatusOr<Work> AllReduce(const void* in, void* out, int64_t count, DataType type,
                                 ReduceOp op, const CallOptions& call = {});
  absl::StatusOr<Work> Reduce(const void* in, void* out, int64_t count, DataType type, ReduceOp op,
                              int root, const CallOptions& call = {});
  absl::StatusOr<Work> Broadcast(const void* in, void* out, int64_t count, DataType type, int root,
                                 const CallOptions& call = {});
  // in: ranks * count elements, out: count.
  absl::StatusOr<Work> ReduceScatter(const void* in, void* out, int64_t count, DataType type,
                                     ReduceOp op, const CallOptions& call = {});
  // in: count elements, out: ranks * count.
  absl::StatusOr<Work> AllGather(const void* in, void* out, int64_t count, DataType type,
                                 const CallOptions& call = {});
  absl::StatusOr<Work> Gather(const void* in, void* out, int64_t count, DataType type, int root,
                              const CallOptions& call = {});
  absl::StatusOr<Work> Scatter(const void* in, void* out, int64_t count, DataType type, int root,
                               const CallOptions& call = {});
  // in and out: ranks * count elements.
  absl::StatusOr<Work> AllToAll(const void* in, void* out, int64_t count, DataType type,
                                const CallOptions& call = {});
  // As above, with counts[r] elements of (or for) rank r, laid end to end.
  absl::StatusOr<Work> ReduceScatterV(const void* in, void* out, absl::Span<const int64_t> counts,
                                      DataType type, ReduceOp op, const CallOptions& call = {});
  absl::StatusOr<Work> AllGatherV(const void* in, void* out, absl::Span<const int64_t> counts,
                                  DataType type, const CallOptions& call = {});
  absl::StatusOr<Work> GatherV(const void* in, void* out, absl::Span<const int64_t> counts,
                               DataType type, int root, const CallOptions& call = {});
  absl::StatusOr<Work> ScatterV(const void* in, void* out, absl::Span<const int64_t> counts,
                                DataType type, int root, const CallOptions& call = {});
  absl::StatusOr<Work> AllToAllV(const void* in, absl::Span<const int64_t> send_counts, void* out,
                                 absl::Span<const int64_t> receive_counts, DataType type,
                                 const CallOptions& call = {});
  absl::StatusOr<Work> Barrier(const CallOptions& call = {});
  absl::StatusOr<Work> Send(const void* data, int64_t count, DataType type, int to);
  absl::StatusOr<Work> Receive(void* data, int64_t count, DataType type, int from);

  void GroupStart();
  absl::StatusOr<Work> GroupEnd();

  // Waits until the operation has ended. An error from starting it is passed on.
  absl::Status Wait(const absl::StatusOr<Work>& work);
  // Waits until the operation has ended, at most until `at_most`. True if it has ended.
  bool WaitUntil(Work work, absl::Time at_most);
  // Whether the operation has ended. Makes progress on all operations. Blocks only to agree on a
  // failure.
  bool Test(Work work);
  // Ends all operations on this rank, and, through the watch, on the other ranks.
  absl::Status Abort(absl::string_view why);

  // OK until the group fails.
  absl::Status status() const { return engine_.status(); }
  AlgorithmChoice Choose(Primitive primitive, int64_t bytes) const;
  std::string WaitingFor() const;
  // The rank that the oldest operation waits for; -1 if none.
  int waiting_for() const { return engine_.waiting_for(); }
  std::vector<OperationRecord> Records() const { return engine_.Records(); }
  uint64_t bytes_sent() const { return engine_.bytes_sent(); }
  const Link* link(int r) const { return links_[static_cast<size_t>(r)].get(); }

 private:
  absl::StatusOr<Work> Call(GroupRequest request);
  absl::StatusOr<Work> Begin(GroupRequest request, std::unique_ptr<PendingWork> pending);
  absl::StatusOr<Work> BeginSendsAndReceives(absl::Span<const GroupRequest> requests);
  absl::StatusOr<Work> Start(const CollectiveCall& call, std::unique_ptr<PendingWork> pending,
                             absl::Duration deadline);
  bool Poll(absl::Time now);

  std::vector<std::unique_ptr<Link>> links_;
  const GroupOptions options_;
  CollectiveEngine engine_;
  LinkWaiter waiter_;
  ScheduleCache schedules_;
  bool agreed_ = false;  // the failure has been reported
  int grouping_ = 0;
  std::vector<GroupRequest> queued_;
  std::vector<std::unique_ptr<PendingWork>> pending_;
};

// The chooser of a group that has no calibrated one (tuning/chooser.h). Small vectors: one_shot, or
// recursive_doubling between more than two ranks over TCP. Larger vectors: direct, then ring, cut
// into segments that stay in the cache. `tcp`: whether TCP connects the ranks (by default, if hosts
// differ). All ranks must pass the same value.
Chooser DefaultChooser(int ranks, bool tcp);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_H_
