#include "collectives/group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/reduce.h"

namespace tandem {
namespace {

// How long to look again and again before sleeping. Longer than a healthy peer lets one wait.
constexpr absl::Duration kAwake = absl::Milliseconds(1);
constexpr absl::Duration kSleep = absl::Milliseconds(100);
constexpr int kPauses = 32;
constexpr size_t kKeptSchedules = 256;
// Up to this, latency is what an all-reduce costs.
constexpr int64_t kSmallBytes = 32 << 10;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

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

// Not by this rank's links: all ranks must choose alike, and one pair may have fallen back.
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
      spin_(CanSpin(options_, rank, engine_.ranks())) {}

Group::~Group() = default;

// ---- The calls --------------------------------------------------------------

CollectiveShape Group::Shape() const {
  CollectiveShape shape;
  shape.rank = rank();
  shape.ranks = ranks();
  return shape;
}

absl::StatusOr<Work> Group::AllReduce(const void* in, void* out, int64_t count, DataType type,
                                      ReduceOp op, const CallOptions& call) {
  Request request{Primitive::kAllReduce, in, out, type, op, Shape(), call};
  request.shape.count = count;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Reduce(const void* in, void* out, int64_t count, DataType type,
                                   ReduceOp op, int root, const CallOptions& call) {
  Request request{Primitive::kReduce, in, out, type, op, Shape(), call};
  request.shape.count = count;
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Broadcast(const void* in, void* out, int64_t count, DataType type,
                                      int root, const CallOptions& call) {
  Request request{Primitive::kBroadcast, in, out, type, ReduceOp::kSum, Shape(), call};
  request.shape.count = count;
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::ReduceScatter(const void* in, void* out, int64_t count, DataType type,
                                          ReduceOp op, const CallOptions& call) {
  Request request{Primitive::kReduceScatter, in, out, type, op, Shape(), call};
  request.shape.count = count;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::AllGather(const void* in, void* out, int64_t count, DataType type,
                                      const CallOptions& call) {
  Request request{Primitive::kAllGather, in, out, type, ReduceOp::kSum, Shape(), call};
  request.shape.count = count;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Gather(const void* in, void* out, int64_t count, DataType type,
                                   int root, const CallOptions& call) {
  Request request{Primitive::kGather, in, out, type, ReduceOp::kSum, Shape(), call};
  request.shape.count = count;
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Scatter(const void* in, void* out, int64_t count, DataType type,
                                    int root, const CallOptions& call) {
  Request request{Primitive::kScatter, in, out, type, ReduceOp::kSum, Shape(), call};
  request.shape.count = count;
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::AllToAll(const void* in, void* out, int64_t count, DataType type,
                                     const CallOptions& call) {
  Request request{Primitive::kAllToAll, in, out, type, ReduceOp::kSum, Shape(), call};
  request.shape.count = count;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::AllGatherV(const void* in, void* out, absl::Span<const int64_t> counts,
                                       DataType type, const CallOptions& call) {
  Request request{Primitive::kAllGather, in, out, type, ReduceOp::kSum, Shape(), call};
  request.shape.counts.assign(counts.begin(), counts.end());
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::ReduceScatterV(const void* in, void* out,
                                           absl::Span<const int64_t> counts, DataType type,
                                           ReduceOp op, const CallOptions& call) {
  Request request{Primitive::kReduceScatter, in, out, type, op, Shape(), call};
  request.shape.counts.assign(counts.begin(), counts.end());
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::GatherV(const void* in, void* out, absl::Span<const int64_t> counts,
                                    DataType type, int root, const CallOptions& call) {
  Request request{Primitive::kGather, in, out, type, ReduceOp::kSum, Shape(), call};
  request.shape.counts.assign(counts.begin(), counts.end());
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::ScatterV(const void* in, void* out, absl::Span<const int64_t> counts,
                                     DataType type, int root, const CallOptions& call) {
  Request request{Primitive::kScatter, in, out, type, ReduceOp::kSum, Shape(), call};
  request.shape.counts.assign(counts.begin(), counts.end());
  request.shape.root = root;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::AllToAllV(const void* in, absl::Span<const int64_t> send_counts,
                                      void* out, absl::Span<const int64_t> receive_counts,
                                      DataType type, const CallOptions& call) {
  Request request{Primitive::kAllToAll, in, out, type, ReduceOp::kSum, Shape(), call};
  request.shape.send_counts.assign(send_counts.begin(), send_counts.end());
  request.shape.receive_counts.assign(receive_counts.begin(), receive_counts.end());
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Barrier(const CallOptions& call) {
  return Call(
      {Primitive::kBarrier, nullptr, nullptr, DataType::kU8, ReduceOp::kSum, Shape(), call});
}

absl::StatusOr<Work> Group::Send(const void* data, int64_t count, DataType type, int to) {
  Request request{Primitive::kPointToPoint, data, nullptr, type, ReduceOp::kSum, Shape(), {}};
  request.shape.count = count;
  request.to = to;
  return Call(std::move(request));
}

absl::StatusOr<Work> Group::Receive(void* data, int64_t count, DataType type, int from) {
  Request request{Primitive::kPointToPoint, nullptr, data, type, ReduceOp::kSum, Shape(), {}};
  request.shape.count = count;
  request.from = from;
  return Call(std::move(request));
}

// ---- Starting ---------------------------------------------------------------

absl::Status Group::CheckRequest(const Request& r) const {
  const absl::string_view name = PrimitiveName(r.primitive);
  if (r.shape.count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", r.shape.count, " elements"));
  }
  if (HasRoot(r.primitive) && (r.shape.root < 0 || r.shape.root >= ranks())) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": root ", r.shape.root, " in a group of ", ranks()));
  }
  if (r.primitive == Primitive::kPointToPoint) {
    const int peer = std::max(r.to, r.from);
    if (peer < 0 || peer >= ranks() || peer == rank()) {
      return absl::InvalidArgumentError(absl::StrCat(r.to >= 0 ? "send to" : "receive from",
                                                     " rank ", peer, " on rank ", rank(), " of ",
                                                     ranks()));
    }
    if (r.shape.count > 0 && r.in == nullptr && r.out == nullptr) {
      return absl::InvalidArgumentError("send or receive without memory");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Work> Group::Call(Request request) {
  TANDEM_RETURN_IF_ERROR(engine_.status());
  TANDEM_RETURN_IF_ERROR(CheckRequest(request));
  if (grouping_ > 0) {
    queued_.push_back(std::move(request));
    return Work{0};  // GroupEnd gives the one to wait for
  }
  if (request.primitive == Primitive::kPointToPoint) return BeginPointToPoint({&request, 1});
  return Begin(std::move(request));
}

int64_t Group::VectorBytes(const Request& r) const {
  const auto element = static_cast<int64_t>(SizeOf(r.type));
  switch (r.primitive) {
    case Primitive::kReduceScatter:
    case Primitive::kAllGather:
    case Primitive::kGather:
    case Primitive::kScatter:
      return r.shape.Total() * element;
    case Primitive::kAllToAll:
      // Counts differ between ranks, and all must choose alike.
      return r.shape.send_counts.empty() ? r.shape.count * ranks() * element : 0;
    default:
      return r.shape.count * element;
  }
}

AlgorithmChoice Group::Choose(Primitive primitive, int64_t bytes) const {
  AlgorithmChoice choice = options_.chooser(primitive, bytes);
  if (options_.reproducible && Reduces(primitive) && !AddsInRankOrder(choice.algorithm)) {
    const bool small = primitive == Primitive::kAllReduce && bytes <= kSmallBytes;
    choice.algorithm = small ? Algorithm::kOneShot : Algorithm::kDirect;
  }
  return choice;
}

absl::StatusOr<const Schedule*> Group::ScheduleFor(const Request& request,
                                                   const AlgorithmChoice& choice) {
  const CollectiveShape& shape = request.shape;
  ScheduleKey key{request.primitive, choice.algorithm,  shape.in_place,
                  shape.root,        shape.count,       shape.segment,
                  shape.counts,      shape.send_counts, shape.receive_counts};
  const auto found = schedules_.find(key);
  if (found != schedules_.end()) return found->second.get();
  CollectiveShape whole = shape;
  whole.host_of_rank = options_.host_of_rank;
  TANDEM_ASSIGN_OR_RETURN(Schedule made, MakeSchedule(request.primitive, choice.algorithm, whole));
  TANDEM_RETURN_IF_ERROR(ValidateSchedule(made));
  if (schedules_.size() >= kKeptSchedules && engine_.running() == 0) schedules_.clear();
  auto& kept = schedules_[std::move(key)];
  kept = std::make_unique<Schedule>(std::move(made));
  return kept.get();
}

absl::StatusOr<Work> Group::Begin(Request request) {
  const size_t element = SizeOf(request.type);
  std::unique_ptr<Pending> pending;  // if there is anything to keep
  const int64_t offset = InPlaceOffset(request.primitive, request.shape);
  request.shape.in_place =
      request.in != nullptr &&
      request.in == static_cast<uint8_t*>(request.out) + offset * static_cast<int64_t>(element);
  const AlgorithmChoice choice = request.call.choice.has_value()
                                     ? *request.call.choice
                                     : Choose(request.primitive, VectorBytes(request));
  request.shape.segment = choice.segment_bytes / static_cast<int64_t>(element);
  TANDEM_ASSIGN_OR_RETURN(const Schedule* schedule, ScheduleFor(request, choice));
  if (Reduces(request.primitive) && request.op == ReduceOp::kPreMulSum && schedule->input > 0) {
    if (!Defined(request.op, request.type)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Name(request.op), " is not defined for ", Name(request.type)));
    }
    const auto count = static_cast<size_t>(schedule->input);
    if (request.shape.in_place) {
      Scale(request.type, const_cast<void*>(request.in), count, request.call.factor);
    } else {
      pending = std::make_unique<Pending>();
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
  call.root = request.shape.root;
  // v-variants differ in counts from rank to rank; what they share is the sum, if anything.
  call.count = request.primitive == Primitive::kAllToAll && !request.shape.send_counts.empty()
                   ? 0
                   : (request.shape.counts.empty() ? request.shape.count : request.shape.Total());
  call.schedule = schedule;
  call.input = request.in;
  call.output = request.out;
  return Start(call, std::move(pending));
}

absl::StatusOr<Work> Group::Start(const CollectiveCall& call, std::unique_ptr<Pending> pending) {
  TANDEM_ASSIGN_OR_RETURN(const Work work, engine_.Start(call, MonotonicNow(), options_.deadline));
  if (pending != nullptr) {
    pending->work = work;
    pending_.push_back(std::move(pending));
  }
  return work;
}

// All sends, then all receives: each waits for nothing but its peer.
absl::StatusOr<Work> Group::BeginPointToPoint(absl::Span<const Request> requests) {
  auto pending = std::make_unique<Pending>();
  Schedule& schedule = pending->schedule;
  schedule.rank = rank();
  schedule.ranks = ranks();
  Step& step = schedule.AddStep();
  // Pieces are relative to the lowest address of each side.
  const uint8_t* low_in = nullptr;
  uint8_t* low_out = nullptr;
  for (const Request& r : requests) {
    const auto* in = static_cast<const uint8_t*>(r.in);
    auto* out = static_cast<uint8_t*>(r.out);
    if (in != nullptr && (low_in == nullptr || in < low_in)) low_in = in;
    if (out != nullptr && (low_out == nullptr || out < low_out)) low_out = out;
  }
  const auto piece = [](const void* low, const void* at, const Request& r, Region region) {
    const auto bytes = static_cast<int64_t>(SizeOf(r.type));
    const int64_t begin =
        at == nullptr ? 0 : static_cast<const uint8_t*>(at) - static_cast<const uint8_t*>(low);
    return Piece{begin, r.shape.count * bytes, region};
  };
  for (const Request& r : requests) {
    if (r.to >= 0) step.Send(piece(low_in, r.in, r, Region::kInput), r.to);
  }
  for (const Request& r : requests) {
    if (r.from >= 0) step.Receive(piece(low_out, r.out, r, Region::kOutput), r.from);
  }
  for (const Op& op : step.ops) {
    int64_t& size = op.kind == OpKind::kSend ? schedule.input : schedule.output;
    size = std::max(size, op.piece.end());
  }
  TANDEM_RETURN_IF_ERROR(ValidateSchedule(schedule));
  CollectiveCall call;
  call.primitive = Primitive::kPointToPoint;
  call.type = DataType::kU8;
  call.schedule = &schedule;
  call.input = low_in;
  call.output = low_out;
  return Start(call, std::move(pending));
}

// Lays small vectors end to end, and reduces them as one.
absl::StatusOr<Work> Group::BeginFused(absl::Span<const Request> requests) {
  auto pending = std::make_unique<Pending>();
  const size_t element = SizeOf(requests[0].type);
  size_t bytes = 0;
  for (const Request& r : requests) bytes += static_cast<size_t>(r.shape.count) * element;
  pending->memory.resize(bytes);
  size_t at = 0;
  for (const Request& r : requests) {
    const size_t size = static_cast<size_t>(r.shape.count) * element;
    if (size == 0) continue;
    std::memcpy(pending->memory.data() + at, r.in, size);
    pending->copies.push_back({r.out, at, size});
    at += size;
  }
  Request fused = requests[0];
  fused.shape.count = static_cast<int64_t>(bytes / element);
  fused.shape.in_place = true;
  const AlgorithmChoice choice = Choose(Primitive::kAllReduce, static_cast<int64_t>(bytes));
  fused.shape.segment = choice.segment_bytes / static_cast<int64_t>(element);
  TANDEM_ASSIGN_OR_RETURN(const Schedule* schedule, ScheduleFor(fused, choice));
  CollectiveCall call;
  call.primitive = Primitive::kAllReduce;
  call.algorithm = choice.algorithm;
  call.type = fused.type;
  call.op = fused.op;
  call.count = fused.shape.count;
  call.schedule = schedule;
  call.input = call.output = pending->memory.data();
  return Start(call, std::move(pending));
}

void Group::GroupStart() { ++grouping_; }

absl::StatusOr<Work> Group::GroupEnd() {
  if (grouping_ == 0) return absl::FailedPreconditionError("GroupEnd without GroupStart");
  if (--grouping_ > 0) return Work{0};
  TANDEM_RETURN_IF_ERROR(engine_.status());
  std::vector<Request> requests;
  requests.swap(queued_);
  const auto point_to_point = [](const Request& r) {
    return r.primitive == Primitive::kPointToPoint;
  };
  // Collectives in the order they were called, then all sends and receives at once.
  const auto middle =
      std::stable_partition(requests.begin(), requests.end(), std::not_fn(point_to_point));
  const size_t collectives = static_cast<size_t>(middle - requests.begin());
  const auto fusable = [&](const Request& r, const Request& first, int64_t bytes) {
    return r.primitive == Primitive::kAllReduce && !r.call.choice.has_value() &&
           r.op != ReduceOp::kPreMulSum && r.type == first.type && r.op == first.op &&
           bytes + VectorBytes(r) <= options_.fuse_bytes;
  };
  absl::StatusOr<Work> last = engine_.next_number() - 1;  // with nothing to do, all before
  for (size_t i = 0; i < collectives;) {
    size_t end = i;
    int64_t bytes = 0;
    while (end < collectives && fusable(requests[end], requests[i], bytes)) {
      bytes += VectorBytes(requests[end++]);
    }
    if (end - i > 1) {
      last = BeginFused(absl::MakeConstSpan(requests).subspan(i, end - i));
      i = end;
    } else {
      last = Begin(std::move(requests[i++]));
    }
    if (!last.ok()) return last;
  }
  if (collectives < requests.size()) {
    last = BeginPointToPoint(absl::MakeConstSpan(requests).subspan(collectives));
  }
  return last;
}

// ---- Waiting ----------------------------------------------------------------

// True if anything has moved, or the group has failed.
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
  TakeEnded();
  return moved;
}

void Group::TakeEnded() {
  if (pending_.empty()) return;
  const auto take = [&](std::unique_ptr<Pending>& pending) {
    if (!engine_.Ended(pending->work)) return false;
    if (engine_.Result(pending->work).ok()) {
      for (const Pending::CopyOut& copy : pending->copies) {
        std::memcpy(copy.to, pending->memory.data() + copy.offset, copy.bytes);
      }
    }
    return true;
  };
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(), take), pending_.end());
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
  absl::Time idle_since = absl::InfiniteFuture();
  for (;;) {
    const absl::Time now = MonotonicNow();
    const bool moved = Poll(now);
    if (engine_.Ended(work)) return true;
    if (now >= at_most) return false;
    idle_since = moved ? absl::InfiniteFuture() : std::min(idle_since, now);
    if (!moved) Idle(idle_since, now);
  }
}

void Group::Idle(absl::Time idle_since, absl::Time now) {
  if (now - idle_since > kAwake) return Sleep(now);
  if (!spin_) {
    sched_yield();
    return;
  }
  for (int i = 0; i < kPauses; ++i) Pause();
}

void Group::Sleep(absl::Time now) {
  poll_fds_.clear();
  bool all_wake = true, ready = false;
  // Others may hold what nobody wants yet, or have ended: they would not let anybody sleep.
  for (int r = 0; r < ranks(); ++r) {
    Link* const link = links_[static_cast<size_t>(r)].get();
    if (link == nullptr || !engine_.WaitsForLink(r)) continue;
    ready = ready || !link->PrepareToSleep();
    if (link->fd() < 0) {
      all_wake = false;
      continue;
    }
    const bool writable = link->WantsWritable();
    poll_fds_.push_back({link->fd(), static_cast<short>(POLLIN | (writable ? POLLOUT : 0)), 0});
  }
  if (options_.watch != nullptr && options_.watch->fd() >= 0) {
    poll_fds_.push_back({options_.watch->fd(), POLLIN, 0});
  }
  if (!ready) {
    const absl::Duration left =
        std::min(engine_.NextDeadline() - now, all_wake ? kSleep : absl::Milliseconds(1));
    const int64_t ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(left));
    (void)poll(poll_fds_.data(), poll_fds_.size(), static_cast<int>(ms));
  }
  for (const auto& link : links_) {
    if (link != nullptr) link->WakeUp();
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
          const bool doubling = tcp && ranks > 2;  // a message costs more there
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

}  // namespace tandem
