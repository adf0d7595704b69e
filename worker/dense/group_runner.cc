#include "worker/dense/group_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/dump.h"
#include "node/log.h"

namespace tandem::worker {
namespace {

// How often the text of WaitingFor is refreshed.
constexpr absl::Duration kNews = absl::Seconds(1);

}  // namespace

// ---- AbortableWatch -----------------------------------------------------------

void AbortableWatch::Abort(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  if (why_.ok()) why_ = std::move(why);
  aborted_ = true;
  wake_.Wake();
}

absl::Status AbortableWatch::Verdict() {
  if (!aborted_) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return why_;
}

// ---- GroupRunner --------------------------------------------------------------

GroupRunner::GroupRunner(std::unique_ptr<collectives::Group> group, AbortableWatch& watch,
                         const Options& options)
    : group_(std::move(group)), watch_(watch), dump_folder_(options.dump_folder) {
  const Codec& config = options.codec;
  // Settings were checked with the job.
  if (config.kind() == Codec::TOP_K)
    codec_ = std::move(*collectives::NewTopKCodec(config.fraction()));
  if (config.kind() == Codec::SIGN) codec_ = collectives::NewSignCodec();
  if (config.kind() == Codec::POWER_SGD) {
    codec_ = std::move(*collectives::NewPowerSgdCodec(config.rank(), options.seed));
  }
  if (codec_ == nullptr || (config.has_error_feedback() && !config.error_feedback())) return;
  feedback_ = std::make_unique<collectives::ErrorFeedback>(std::move(codec_));
}

void GroupRunner::SumOnDevice(std::unique_ptr<DeviceSum> sum, DeviceGradient gradient) {
  device_sum_ = std::move(sum);
  device_gradient_ = std::move(gradient);
}

std::string GroupRunner::CodecState() const {
  if (feedback_ != nullptr) return feedback_->State();
  return codec_ == nullptr ? "" : codec_->State();
}

absl::Status GroupRunner::SetCodecState(absl::string_view state) {
  if (feedback_ != nullptr) return feedback_->SetState(state);
  return codec_ == nullptr ? absl::OkStatus() : codec_->SetState(state);
}

Activity GroupRunner::WaitingFor() const {
  absl::MutexLock lock(&mutex_);
  return waiting_;
}

void GroupRunner::SetWaiting(absl::string_view text, int worker) {
  absl::MutexLock lock(&mutex_);
  waiting_ = {std::string(text), worker < 0 ? EndpointId() : EndpointId::Worker(worker)};
}

void GroupRunner::Idle() {
  if (!dump_requested_.exchange(false) || dump_folder_.empty()) return;
  const absl::Status written =
      collectives::WriteDump(dump_folder_, collectives::DumpOf(*group_, kWorkersGroup));
  if (written.ok()) return;
  node::Log("worker", group_->rank())
      .Error(absl::StrCat("cannot write the dump of the collectives: ", written.ToString()));
}

uint64_t GroupRunner::BytesSent() const {
  return group_->bytes_sent() + (device_sum_ == nullptr ? 0 : device_sum_->bytes_sent());
}

// ---- Requests ------------------------------------------------------------------

absl::Status GroupRunner::Run(const Request& request) {
  const uint64_t sent = BytesSent();
  const absl::Time begun = MonotonicNow();
  absl::Status status = Execute(request);
  SetWaiting("", -1);
  bytes_ += BytesSent() - sent;
  if (!status.ok()) RequestDump();
  Idle();
  if (trace_ != nullptr && request.bucket.has_value()) {
    trace_->Add({absl::StrCat("bucket ", request.bucket->DebugString()), "allreduce", begun,
                 MonotonicNow() - begun, "allreduce"});
  }
  return status;
}

absl::Status GroupRunner::Execute(const Request& request) {
  switch (request.by) {
    case Request::By::kGroup:
      return WaitFor(Start(request));
    case Request::By::kCodec:
      return SumByCodec(request);
    case Request::By::kDevice:
      return SumOnDevice(request);
  }
  return absl::InternalError("unknown request");
}

absl::StatusOr<collectives::Work> GroupRunner::Start(const Request& request) {
  switch (request.primitive) {
    case collectives::Primitive::kAllReduce: {
      collectives::CallOptions call;
      if (request.algorithm.has_value()) {
        const int64_t bytes =
            request.count * static_cast<int64_t>(collectives::SizeOf(request.type));
        call.choice = group_->Choose(collectives::Primitive::kAllReduce, bytes);
        call.choice->algorithm = *request.algorithm;
      }
      return group_->AllReduce(request.input, request.output, request.count, request.type,
                               collectives::ReduceOp::kSum, call);
    }
    case collectives::Primitive::kReduceScatter:
      return group_->ReduceScatterV(request.input, request.output, request.counts, request.type,
                                    collectives::ReduceOp::kSum);
    case collectives::Primitive::kAllGather:
      return group_->AllGatherV(request.input, request.output, request.counts, request.type);
    case collectives::Primitive::kGather:
      return group_->GatherV(request.input, request.output, request.counts, request.type,
                             /*root=*/0);
    default:
      return absl::UnimplementedError(absl::StrCat("replicas do not use this collective: ",
                                                   collectives::PrimitiveName(request.primitive)));
  }
}

absl::Status GroupRunner::WaitFor(const absl::StatusOr<collectives::Work>& work) {
  TANDEM_RETURN_IF_ERROR(work.status());
  while (!group_->WaitUntil(*work, MonotonicNow() + kNews)) {
    Idle();
    SetWaiting(absl::StrReplaceAll(group_->WaitingFor(), {{"rank ", "worker "}}),
               group_->waiting_for());
  }
  return group_->Wait(work);
}

absl::Status GroupRunner::SumByCodec(const Request& request) {
  const absl::Span<float> gradient(static_cast<float*>(request.output),
                                   static_cast<size_t>(request.count));
  if (feedback_ != nullptr) return feedback_->Sum(*group_, gradient, request.samples);
  sent_by_codec_.resize(gradient.size());
  return codec_->Sum(*group_, gradient, gradient, absl::MakeSpan(sent_by_codec_));
}

absl::Status GroupRunner::SumOnDevice(const Request& request) {
  TANDEM_ASSIGN_OR_RETURN(float* const gradient, device_gradient_(/*zero=*/request.samples == 0));
  const absl::Time begun = MonotonicNow();
  const auto waiting = [&](int worker) {
    if (MonotonicNow() - begun >= kNews) {
      Idle();
      SetWaiting(worker < 0 ? "sum on GPUs: waits until its parts have left"
                            : absl::StrCat("sum on GPUs: waits for worker ", worker),
                 worker);
    }
    return Verdict();
  };
  return device_sum_->Sum(gradient, request.count, static_cast<float*>(request.output), waiting);
}

}  // namespace tandem::worker
