#include "collectives/group.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/reduce.h"

namespace tandem::collectives {
namespace {

// Up to this size the cost of an all-reduce is mostly latency.
constexpr int64_t kSmallBytes = 32 << 10;

int CoresHere() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

bool CanSpin(const GroupOptions& options, int rank, int ranks) {
  int here = ranks;
  if (!options.host_of_rank.empty()) {
    const std::vector<int>& host = options.host_of_rank;
    here = static_cast<int>(std::count(host.begin(), host.end(), host[static_cast<size_t>(rank)]));
  }
  return here <= (options.cores > 0 ? options.cores : CoresHere());
}

std::vector<Link*> Pointers(const std::vector<std::unique_ptr<Link>>& links) {
  std::vector<Link*> out;
  for (const auto& link : links) out.push_back(link.get());
  return out;
}

CollectiveEngine::Options EngineOptions(const GroupOptions& options) {
  CollectiveEngine::Options out;
  out.records = options.records;
  return out;
}

CollectiveShape ShapeOf(const CollectiveEngine& engine) {
  CollectiveShape shape;
  shape.rank = engine.rank();
  shape.ranks = engine.ranks();
  return shape;
}

// For each operation that has ended: copies its results to the caller's buffers and removes it.
void TakeEnded(const CollectiveEngine& engine, std::vector<std::unique_ptr<PendingWork>>* pending) {
  const auto take = [&](const std::unique_ptr<PendingWork>& one) {
    if (!engine.Ended(one->work)) return false;
    if (engine.Result(one->work).ok()) one->CopyResults();
    return true;
  };
  pending->erase(std::remove_if(pending->begin(), pending->end(), take), pending->end());
}

// Fills in the default chooser. The choice depends on the hosts, and not on the kind of this rank's
// links: all ranks must choose alike, and a single pair of ranks may have fallen back to TCP.
GroupOptions WithChooser(GroupOptions options, size_t ranks) {
  if (options.chooser) return options;
  const std::vector<int>& host = options.host_of_rank;
  const bool across = std::any_of(host.begin(), host.end(), [&](int h) { return h != host[0]; });
  options.chooser = DefaultChooser(static_cast<int>(ranks), across);
  return options;
}

}  // namespace

Group::Group(int rank, std::vector<std::unique_ptr<Link>> links, GroupOptions options)
    : links_(std::move(links)),
      options_(WithChooser(std::move(options), links_.size())),
      engine_(rank, Pointers(links_), EngineOptions(options_)),
      waiter_(Pointers(links_), CanSpin(options_, rank, engine_.ranks())),
      schedules_(options_.host_of_rank) {}

Group::~Group() = default;

// ---- Calls ------------------------------------------------------------------

absl::StatusOr<Work> Group::AllReduce(const void* in, void* out, int64_t count, DataType type,
                                      ReduceOp op, const CallOptions& call) {
  GroupRequest request{Primitive::kAllReduce, in, out, type, op, ShapeOf(engine_), call};
  request.shape.count = count;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Reduce(const void* in, void* out, int64_t count, DataType type,
                                   ReduceOp op, int root, const CallOptions& call) {
  GroupRequest request{Primitive::kReduce, in, out, type, op, ShapeOf(engine_), call};
  request.shape.count = count;
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Broadcast(const void* in, void* out, int64_t count, DataType type,
                                      int root, const CallOptions& call) {
  GroupRequest request{Primitive::kBroadcast, in,  out, type, ReduceOp::kSum,
                       ShapeOf(engine_),      call};
  request.shape.count = count;
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::ReduceScatter(const void* in, void* out, int64_t count, DataType type,
                                          ReduceOp op, const CallOptions& call) {
  GroupRequest request{Primitive::kReduceScatter, in, out, type, op, ShapeOf(engine_), call};
  request.shape.count = count;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::AllGather(const void* in, void* out, int64_t count, DataType type,
                                      const CallOptions& call) {
  GroupRequest request{Primitive::kAllGather, in,  out, type, ReduceOp::kSum,
                       ShapeOf(engine_),      call};
  request.shape.count = count;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Gather(const void* in, void* out, int64_t count, DataType type,
                                   int root, const CallOptions& call) {
  GroupRequest request{Primitive::kGather, in, out, type, ReduceOp::kSum, ShapeOf(engine_), call};
  request.shape.count = count;
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Scatter(const void* in, void* out, int64_t count, DataType type,
                                    int root, const CallOptions& call) {
  GroupRequest request{Primitive::kScatter, in, out, type, ReduceOp::kSum, ShapeOf(engine_), call};
  request.shape.count = count;
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::AllToAll(const void* in, void* out, int64_t count, DataType type,
                                     const CallOptions& call) {
  GroupRequest request{Primitive::kAllToAll, in, out, type, ReduceOp::kSum, ShapeOf(engine_), call};
  request.shape.count = count;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::AllGatherV(const void* in, void* out, absl::Span<const int64_t> counts,
                                       DataType type, const CallOptions& call) {
  GroupRequest request{Primitive::kAllGather, in,  out, type, ReduceOp::kSum,
                       ShapeOf(engine_),      call};
  request.shape.counts.assign(counts.begin(), counts.end());
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::ReduceScatterV(const void* in, void* out,
                                           absl::Span<const int64_t> counts, DataType type,
                                           ReduceOp op, const CallOptions& call) {
  GroupRequest request{Primitive::kReduceScatter, in, out, type, op, ShapeOf(engine_), call};
  request.shape.counts.assign(counts.begin(), counts.end());
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::GatherV(const void* in, void* out, absl::Span<const int64_t> counts,
                                    DataType type, int root, const CallOptions& call) {
  GroupRequest request{Primitive::kGather, in, out, type, ReduceOp::kSum, ShapeOf(engine_), call};
  request.shape.counts.assign(counts.begin(), counts.end());
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::ScatterV(const void* in, void* out, absl::Span<const int64_t> counts,
                                     DataType type, int root, const CallOptions& call) {
  GroupRequest request{Primitive::kScatter, in, out, type, ReduceOp::kSum, ShapeOf(engine_), call};
  request.shape.counts.assign(counts.begin(), counts.end());
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::AllToAllV(const void* in, absl::Span<const int64_t> send_counts,
                                      void* out, absl::Span<const int64_t> receive_counts,
                                      DataType type, const CallOptions& call) {
  GroupRequest request{Primitive::kAllToAll, in, out, type, ReduceOp::kSum, ShapeOf(engine_), call};
  request.shape.send_counts.assign(send_counts.begin(), send_counts.end());
  request.shape.receive_counts.assign(receive_counts.begin(), receive_counts.end());
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Barrier(const CallOptions& call) {
  return Call({Primitive::kBarrier, nullptr, nullptr, DataType::kU8, ReduceOp::kSum,
               ShapeOf(engine_), call});
}

absl::StatusOr<Work> Group::Send(const void* data, int64_t count, DataType type, int to) {
  GroupRequest request{Primitive::kPointToPoint, data, nullptr, type, ReduceOp::kSum,
                       ShapeOf(engine_),         {}};
  request.shape.count = count;
  request.to = to;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Receive(void* data, int64_t count, DataType type, int from) {
  GroupRequest request{Primitive::kPointToPoint, nullptr,          data, type,
                       ReduceOp::kSum,           ShapeOf(engine_), {}};
  request.shape.count = count;
  request.from = from;
  return Call(std::move(request));
}

// ---- Starting ---------------------------------------------------------------

absl::StatusOr<Work> Group::Call(GroupRequest request) {
  TANDEM_RETURN_IF_ERROR(engine_.status());
  TANDEM_RETURN_IF_ERROR(CheckRequest(request));
  if (grouping_ > 0) {
    queued_.push_back(std::move(request));
    // GroupEnd returns the Work to wait for.
    return Work{0};
  }
  if (request.primitive == Primitive::kPointToPoint) return BeginSendsAndReceives({&request, 1});
  return Begin(std::move(request), nullptr);
}

AlgorithmChoice Group::Choose(Primitive primitive, int64_t bytes) const {
  AlgorithmChoice choice = options_.chooser(primitive, bytes);
  if (options_.reproducible && Reduces(primitive) && !AddsInRankOrder(choice.algorithm)) {
    const bool small = primitive == Primitive::kAllReduce && bytes <= kSmallBytes;
    choice.algorithm = small ? Algorithm::kOneShot : Algorithm::kDirect;
  }
  return choice;
}

// Starts one collective. `pending`: memory that the operation needs already (fused requests); may
// be null.
//
// The order matters. An average changes the type and the buffers of the request, so it comes before
// everything that looks at them: in-place, the algorithm's choice (by bytes) and the schedule.
// Scaling for PreMulSum comes last, because only the schedule knows the number of elements of the
// input.
absl::StatusOr<Work> Group::Begin(GroupRequest request, std::unique_ptr<PendingWork> pending) {
  const bool average =
      Reduces(request.primitive) && request.op == ReduceOp::kAverage && ranks() > 1;
  if (average) BeginAverage(&request, &pending);
  const size_t element = SizeOf(request.type);
  request.shape.in_place = InPlace(request);
  const AlgorithmChoice choice = request.call.choice.has_value()
                                     ? *request.call.choice
                                     : Choose(request.primitive, VectorBytes(request));
  request.shape.segment = choice.segment_bytes / static_cast<int64_t>(element);
  request.shape.agree = options_.agree && HasRoot(request.primitive);
  TANDEM_ASSIGN_OR_RETURN(const Schedule* schedule,
                          schedules_.Get(request.primitive, choice.algorithm, request.shape,
                                         /*may_forget=*/engine_.running() == 0));
  if (Reduces(request.primitive) && request.op == ReduceOp::kPreMulSum && schedule->input > 0) {
    const auto count = static_cast<size_t>(schedule->input);
    if (request.shape.in_place) {
      Scale(request.type, const_cast<void*>(request.in), count, request.call.factor);
    } else {
      pending = std::make_unique<PendingWork>();
      pending->memory.resize(count * element);
      ScaleCopy(request.type, pending->memory.data(), request.in, count, request.call.factor);
      request.in = pending->memory.data();
    }
  }
  CollectiveCall call;
  call.primitive = request.primitive;
  call.algorithm = choice.algorithm;
  call.type = request.type;
  call.op = request.op;
  call.called = request.call.called;
  call.root = request.shape.root;
  // In v-variants the counts differ from rank to rank, so ranks can compare only their sum. In an
  // all-to-all with counts even the sums differ, and nothing is compared.
  call.count = request.primitive == Primitive::kAllToAll && !request.shape.send_counts.empty()
                   ? 0
                   : (request.shape.counts.empty() ? request.shape.count : request.shape.Total());
  call.schedule = schedule;
  call.input = request.in;
  call.output = request.out;
  return Start(call, std::move(pending), request.call.deadline.value_or(options_.deadline));
}

absl::StatusOr<Work> Group::Start(const CollectiveCall& call, std::unique_ptr<PendingWork> pending,
                                  absl::Duration deadline) {
  TANDEM_ASSIGN_OR_RETURN(const Work work, engine_.Start(call, MonotonicNow(), deadline));
  if (pending != nullptr) {
    pending->work = work;
    pending_.push_back(std::move(pending));
  }
  return work;
}

absl::StatusOr<Work> Group::BeginSendsAndReceives(absl::Span<const GroupRequest> requests) {
  auto pending = std::make_unique<PendingWork>();
  const CollectiveCall call = SendsAndReceives(requests, pending.get());
  TANDEM_RETURN_IF_ERROR(ValidateSchedule(pending->schedule));
  return Start(call, std::move(pending), options_.deadline);
}

void Group::GroupStart() { ++grouping_; }

absl::StatusOr<Work> Group::GroupEnd() {
  if (grouping_ == 0) return absl::FailedPreconditionError("GroupEnd without GroupStart");
  if (--grouping_ > 0) return Work{0};
  TANDEM_RETURN_IF_ERROR(engine_.status());
  std::vector<GroupRequest> requests;
  requests.swap(queued_);
  const auto point_to_point = [](const GroupRequest& r) {
    return r.primitive == Primitive::kPointToPoint;
  };
  // Collectives start in the order of the calls, and before all sends and receives. Point-to-point
  // messages come last because they become one schedule, which needs all of them.
  const auto middle =
      std::stable_partition(requests.begin(), requests.end(), std::not_fn(point_to_point));
  const size_t collectives = static_cast<size_t>(middle - requests.begin());
  const auto fusable = [&](const GroupRequest& r, const GroupRequest& first, int64_t bytes) {
    return r.primitive == Primitive::kAllReduce && !r.call.choice.has_value() &&
           r.op != ReduceOp::kPreMulSum && r.type == first.type && r.op == first.op &&
           r.call.called == first.call.called && bytes + VectorBytes(r) <= options_.fuse_bytes;
  };
  absl::StatusOr<Work> last = engine_.next_number() - 1;  // nothing to do: the Work before it
  for (size_t i = 0; i < collectives;) {
    size_t end = i;
    int64_t bytes = 0;
    while (end < collectives && fusable(requests[end], requests[i], bytes)) {
      bytes += VectorBytes(requests[end++]);
    }
    if (end - i > 1) {
      auto pending = std::make_unique<PendingWork>();
      GroupRequest fused = Fuse(absl::MakeConstSpan(requests).subspan(i, end - i), pending.get());
      last = Begin(std::move(fused), std::move(pending));
      i = end;
    } else {
      last = Begin(std::move(requests[i++]), nullptr);
    }
    if (!last.ok()) return last;
  }
  if (collectives < requests.size()) {
    last = BeginSendsAndReceives(absl::MakeConstSpan(requests).subspan(collectives));
  }
  return last;
}

// ---- Waiting ----------------------------------------------------------------

// True if anything has moved or the group has failed.
//
// The watch is asked only when nothing moves, so a healthy group does not pay for it. The engine
// fails before the ranks agree on a verdict; a second Fail replaces this rank's own view with the
// agreed failure.
bool Group::Poll(absl::Time now) {
  bool moved = engine_.Progress(now);
  if (engine_.status().ok() && options_.watch != nullptr && !moved) {
    absl::Status verdict = options_.watch->Verdict();
    if (!verdict.ok()) engine_.Fail(std::move(verdict), now);
  }
  if (!engine_.status().ok() && !agreed_) {
    agreed_ = true;
    if (options_.watch != nullptr) engine_.Fail(options_.watch->Agree(engine_.status()), now);
    moved = true;
  }
  TakeEnded(engine_, &pending_);
  return moved;
}

bool Group::Test(Work work) {
  if (!engine_.Ended(work) || !agreed_) (void)Poll(MonotonicNow());
  return engine_.Ended(work);
}

absl::Status Group::Wait(const absl::StatusOr<Work>& work) {
  TANDEM_RETURN_IF_ERROR(work.status());
  (void)WaitUntil(*work, absl::InfiniteFuture());
  return engine_.Result(*work);
}

bool Group::WaitUntil(Work work, absl::Time at_most) {
  const int news = options_.watch == nullptr ? -1 : options_.watch->fd();
  absl::Time idle_since = absl::InfiniteFuture();
  for (;;) {
    const absl::Time now = MonotonicNow();
    const bool moved = Poll(now);
    if (engine_.Ended(work)) return true;
    if (now >= at_most) return false;
    idle_since = moved ? absl::InfiniteFuture() : std::min(idle_since, now);
    if (!moved) waiter_.Wait(engine_, news, idle_since, now);
  }
}

absl::Status Group::Abort(absl::string_view why) {
  if (engine_.status().ok()) {
    engine_.Fail(absl::AbortedError(absl::StrCat("rank ", rank(), " gave up: ", why)),
                 MonotonicNow());
  }
  (void)Poll(MonotonicNow());
  return engine_.status();
}

std::string Group::WaitingFor() const { return engine_.WaitingFor(MonotonicNow()); }

Chooser DefaultChooser(int ranks, bool tcp) {
  return [ranks, tcp](Primitive primitive, int64_t bytes) -> AlgorithmChoice {
    const int64_t segment = tcp ? 512 << 10 : 128 << 10;
    switch (primitive) {
      case Primitive::kAllReduce:
        if (bytes <= kSmallBytes) {
          // Over TCP every message costs more, so fewer messages are better.
          const bool doubling = tcp && ranks > 2;
          return {doubling ? Algorithm::kRecursiveDoubling : Algorithm::kOneShot, 0};
        }
        return {bytes <= 1 << 20 || ranks <= 4 ? Algorithm::kDirect : Algorithm::kRing, segment};
      case Primitive::kReduce:
      case Primitive::kBroadcast:
        return {bytes <= 64 << 10 || ranks == 2 ? Algorithm::kTree : Algorithm::kChain, segment};
      case Primitive::kReduceScatter:
      case Primitive::kAllGather:
        return {Algorithm::kDirect, segment};
      case Primitive::kAllToAll:
        return {Algorithm::kPairwise, 0};
      case Primitive::kPointToPoint:
        return {};
      default:
        return {AlgorithmsFor(primitive)[0], 0};
    }
  };
}

}  // namespace tandem::collectives
