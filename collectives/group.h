// The collectives of one group of ranks, as a program calls them.
//
//   TANDEM_RETURN_IF_ERROR(group.Wait(group.AllReduce(in, out, count, DataType::kF32,
//                                                     ReduceOp::kSum)));
//
// Every call starts an operation and returns a Work, a ticket for Wait or Test; memory belongs to
// the group until then. All ranks make the same calls in the same order. Counts are elements;
// `in == out` (for allgather, gather, reduce-scatter and scatter: the rank's block of the big
// buffer) works in place, other overlap is not allowed. The conventions are those of NCCL and MPI.
//
// Between GroupStart and GroupEnd nothing is sent: sends and receives then start together, in any
// order without deadlock, and small all-reduces of the same type and op become one; GroupEnd
// returns the Work for all of it.
//
// Errors. INVALID_ARGUMENT at once, for calls that cannot be right; INVALID_ARGUMENT from Wait on
// every rank concerned if ranks disagree in op, type, count or order, naming both; UNAVAILABLE if a
// rank is lost (errors.h says which); DEADLINE_EXCEEDED. After an error from Wait the group is
// finished, and all later calls return that error.
//
// Results of an all-reduce are the same bits on all ranks, and the same bits every time for the
// same algorithm. Option `reproducible` makes them independent of how buffers are cut or fused,
// too: contributions are then folded in rank order.
//
// Thread safety: none; one thread at a time. Groups over links of their own do not disturb each
// other: several may run at once.
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

// Decides how an operation of `bytes` (those of one rank's vector) is done. Must give the same
// answer on all ranks.
using Chooser = std::function<AlgorithmChoice(Primitive primitive, int64_t bytes)>;

// News of the group from outside its links: how a failure gets one name on all ranks (see
// meeting/coordinator.h).
class GroupWatch {
 public:
  virtual ~GroupWatch() = default;
  // OK, or why the group has failed. Cheap.
  virtual absl::Status Verdict() = 0;
  // Readable when there is a verdict; -1: none.
  virtual int fd() const { return -1; }
  // What this rank has seen. Returns the verdict agreed by all, or `seen` if there is none in time.
  virtual absl::Status Agree(const absl::Status& seen) = 0;
};

struct GroupOptions {
  absl::Duration deadline = absl::Minutes(1);  // of each operation
  bool reproducible = false;
  Chooser chooser;                // none: DefaultChooser
  std::vector<int> host_of_rank;  // for the hierarchical algorithm, and whether to spin; empty: one
  GroupWatch* watch = nullptr;
  // Operations with a root end on a rank once it has heard that all have called the same: with the
  // same root, type and count. Without it a rank whose part is to send alone does not know.
  bool agree = false;
  int cores = 0;                   // of this host, to decide whether to spin; 0 = ask the system
  int64_t fuse_bytes = 256 << 10;  // all-reduces of a group call are fused up to this
  int records = 1024;
};

using Work = uint64_t;

class Group {
 public:
  // links[r] leads to rank r; null at `rank`.
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
  // The same with counts[r] elements of (or for) rank r, laid end to end.
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

  // Until the operation has ended; passes on an error from starting it.
  absl::Status Wait(const absl::StatusOr<Work>& work);
  // The same for at most so long: whether it has ended.
  bool WaitUntil(Work work, absl::Time at_most);
  // Whether it has ended. Lets operations progress; never blocks but to agree on a failure.
  bool Test(Work work);
  // Ends all operations on this rank, and, through the watch, on the others.
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
  bool agreed_ = false;  // the failure has been made known
  int grouping_ = 0;
  std::vector<GroupRequest> queued_;
  std::vector<std::unique_ptr<PendingWork>> pending_;
};

// Small: one shot (recursive doubling between more than two ranks over TCP); larger: direct, then
// ring, cut so that pieces stay in the cache. What a group uses that was not given a calibrated
// chooser (chooser.h). `tcp`: whether ranks are joined by TCP (by default, if hosts differ); all
// ranks must say the same.
Chooser DefaultChooser(int ranks, bool tcp);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_H_
