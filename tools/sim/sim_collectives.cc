#include "tools/sim/sim_collectives.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::sim {
namespace {

// Longer than the virtual time of any world.
constexpr absl::Duration kNoDeadline = absl::Hours(10000);

}  // namespace

absl::StatusOr<std::unique_ptr<SimCollectives>> SimCollectives::New(
    const job::ResolvedJob& plan, int rank, std::unique_ptr<worker::DenseReduction> reduction,
    BufferSource& buffers) {
  const Dense& config = plan.job.dense();
  if (config.codec().kind() > Codec::NONE || config.device() == Dense::CUDA) {
    return absl::UnimplementedError("the simulated world has neither codecs nor GPUs");
  }
  const int ranks = plan.workers();
  std::unique_ptr<SimCollectives> made(new SimCollectives(rank, ranks));
  made->reduction_ = std::move(reduction);
  std::vector<collectives::Link*> links;
  for (int peer = 0; peer < ranks; ++peer) {
    collectives::FrameLinkOptions options;
    options.self = EndpointId::Worker(rank);
    options.group = static_cast<uint32_t>(std::min(rank, peer) * ranks + std::max(rank, peer));
    options.incarnation = 1;
    made->links_.push_back(
        peer == rank ? nullptr : std::make_unique<collectives::FrameLink>(buffers, options));
    links.push_back(made->links_.back().get());
  }
  made->engine_ = std::make_unique<collectives::CollectiveEngine>(rank, std::move(links));
  return made;
}

// Sends nothing before the step is computed. Overlap with computing needs threads.
void SimCollectives::Begin(absl::Span<float> gradient, const worker::DenseReduction::Step& step) {
  reduction_->Begin(gradient, step);
  reduction_->Close();
}

int64_t SimCollectives::CountOf(const worker::DenseReduction::Request& request) const {
  if (request.counts.empty()) return request.count;
  return std::accumulate(request.counts.begin(), request.counts.end(), int64_t{0});
}

absl::Status SimCollectives::Start(absl::Time now, const worker::DenseReduction::Request& request) {
  TANDEM_CHECK(request.by == worker::DenseReduction::Request::By::kGroup);
  collectives::CollectiveCall call;
  call.primitive = request.primitive;
  call.algorithm = request.algorithm.value_or(collectives::Algorithm::kDirect);
  call.type = request.type;
  call.count = CountOf(request);
  collectives::CollectiveShape shape;
  shape.rank = rank_;
  shape.ranks = ranks_;
  shape.count = request.count;
  shape.counts.assign(request.counts.begin(), request.counts.end());
  const int64_t offset = collectives::InPlaceOffset(request.primitive, shape) *
                         static_cast<int64_t>(collectives::SizeOf(request.type));
  shape.in_place = request.input != nullptr &&
                   request.input == static_cast<const uint8_t*>(request.output) + offset;
  TANDEM_ASSIGN_OR_RETURN(call.schedule, schedules_.Get(call.primitive, call.algorithm, shape,
                                                        /*may_forget=*/true));
  call.input = request.input;
  call.output = request.output;
  TANDEM_ASSIGN_OR_RETURN(number_, engine_->Start(call, now, kNoDeadline));
  running_ = true;
  return absl::OkStatus();
}

absl::Status SimCollectives::OnFrame(const ParsedFrame& frame) {
  const int from = frame.header.sender.index;
  return links_[static_cast<size_t>(from)]->OnFrame(frame);
}

// True if an operation has begun or ended.
absl::StatusOr<bool> SimCollectives::RunRequests(absl::Time now) {
  if (running_) {
    if (!engine_->Ended(number_)) return false;
    TANDEM_RETURN_IF_ERROR(engine_->Result(number_));
    running_ = false;
    reduction_->OnDone();
    TANDEM_RETURN_IF_ERROR(reduction_->failure());
    return true;
  }
  const worker::DenseReduction::Request* const request = reduction_->Next();
  if (request == nullptr) return false;
  TANDEM_RETURN_IF_ERROR(Start(now, *request));
  return true;
}

absl::Status SimCollectives::Progress(absl::Time now, std::vector<Outgoing>* out) {
  for (bool more = true; more;) {
    while (engine_->Progress(now)) {
    }
    TANDEM_ASSIGN_OR_RETURN(more, RunRequests(now));
  }
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    if (links_[peer] == nullptr) continue;
    frames_.clear();
    links_[peer]->Flush(&frames_);
    for (Frame& frame : frames_) {
      out->push_back({EndpointId::Worker(static_cast<int>(peer)), std::move(frame)});
    }
  }
  return absl::OkStatus();
}

uint64_t SimCollectives::TakeBytes() {
  const uint64_t sent = engine_->bytes_sent();
  return sent - std::exchange(counted_bytes_, sent);
}

Activity SimCollectives::WaitingFor(absl::Time now) const {
  const int other = engine_->waiting_for();
  return {engine_->WaitingFor(now), other < 0 ? EndpointId() : EndpointId::Worker(other)};
}

}  // namespace tandem::sim
