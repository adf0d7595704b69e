#include "worker/dense/dense_reducer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
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

// ---- DenseReducer -------------------------------------------------------------

DenseReducer::DenseReducer(std::unique_ptr<collectives::Group> group, AbortableWatch* watch,
                           std::unique_ptr<DenseReduction> reduction, const Options& options)
    : watch_(watch), group_(std::move(group)), reduction_(std::move(reduction)), options_(options) {
  counted_bytes_ = group_->bytes_sent();  // bytes sent earlier, by the tuning
  sent_bytes_ = counted_bytes_;
  MakeCodec();
  if (overlaps()) loop_ = std::thread([this] { Loop(); });
}

DenseReducer::~DenseReducer() {
  Abort("the worker ends");
  quorum_.reset();
  if (loop_.joinable()) {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
    }
    loop_.join();
  }
  (void)DumpIfNeeded(absl::OkStatus());
}

void DenseReducer::Abort(absl::string_view why) {
  if (watch_ != nullptr) watch_->Abort(absl::CancelledError(why));
}

Activity DenseReducer::WaitingFor() const {
  {
    absl::MutexLock lock(&mutex_);
    if (quorum_ == nullptr || !waiting_.text.empty()) return waiting_;
  }
  return quorum_->WaitingFor();
}

void DenseReducer::SumByQuorum(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
                               std::unique_ptr<collectives::AsyncGroup> mail,
                               const QuorumSums::Options& options) {
  TANDEM_CHECK(!overlaps() && quorum_ == nullptr);
  quorum_ = std::make_unique<QuorumSums>(dense, std::move(model), std::move(mail), watch_,
                                         RunForQuorum(), IdleOfQuorum(), options);
}

void DenseReducer::MeetByQuorum(DenseParameters& dense,
                                std::unique_ptr<collectives::AsyncGroup> mail,
                                const QuorumRounds::Options& options) {
  TANDEM_CHECK(!overlaps() && quorum_ == nullptr);
  quorum_ = std::make_unique<QuorumRounds>(dense, std::move(mail), watch_, RunForQuorum(),
                                           IdleOfQuorum(), options);
}

QuorumSums::Run DenseReducer::RunForQuorum() {
  // bytes sent earlier, by the rendezvous of the mail
  sent_bytes_ = counted_bytes_ = group_->bytes_sent();
  return [this](const Request& request) {
    absl::Status status = Run(request);
    sent_bytes_ = group_->bytes_sent();
    return status;
  };
}

QuorumSums::Idle DenseReducer::IdleOfQuorum() {
  return [this] { (void)DumpIfNeeded(absl::OkStatus()); };
}

// ---- Dumps ---------------------------------------------------------------------

void DenseReducer::Dump() {
  const absl::Status written =
      collectives::WriteDump(options_.dump_folder, collectives::DumpOf(*group_, kWorkersGroup));
  if (written.ok()) return;
  node::Log("worker", group_->rank())
      .Error(absl::StrCat("cannot write the dump of the collectives: ", written.ToString()));
}

absl::Status DenseReducer::DumpIfNeeded(absl::Status status) {
  const bool asked = dump_requested_.exchange(false);
  if ((asked || !status.ok()) && !options_.dump_folder.empty()) Dump();
  return status;
}

// ---- Requests ------------------------------------------------------------------

absl::Status DenseReducer::WaitFor(const absl::StatusOr<collectives::Work>& work) {
  TANDEM_RETURN_IF_ERROR(work.status());
  bool told = false;
  while (!group_->WaitUntil(*work, MonotonicNow() + kNews)) {
    (void)DumpIfNeeded(absl::OkStatus());
    absl::MutexLock lock(&mutex_);
    const int rank = group_->waiting_for();
    waiting_ = {absl::StrReplaceAll(group_->WaitingFor(), {{"rank ", "worker "}}),
                rank < 0 ? EndpointId() : EndpointId::Worker(rank)};
    told = true;
  }
  if (told) {
    absl::MutexLock lock(&mutex_);
    waiting_ = {};
  }
  return group_->Wait(work);
}

absl::Status DenseReducer::RunAll() {
  while (const Request* const request = reduction_->Next()) {
    TANDEM_RETURN_IF_ERROR(Run(*request));
    reduction_->OnDone();
    TANDEM_RETURN_IF_ERROR(reduction_->failure());
  }
  return absl::OkStatus();
}

absl::Status DenseReducer::Run(const Request& request) {
  if (trace_ == nullptr || !request.bucket.has_value()) return DumpIfNeeded(Execute(request));
  const absl::Time begun = MonotonicNow();
  absl::Status status = DumpIfNeeded(Execute(request));
  trace_->Add({absl::StrCat("bucket ", request.bucket->DebugString()), "allreduce", begun,
               MonotonicNow() - begun, "allreduce"});
  return status;
}

absl::Status DenseReducer::Execute(const Request& request) {
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

absl::StatusOr<collectives::Work> DenseReducer::Start(const Request& request) {
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

void DenseReducer::MakeCodec() {
  const Codec& config = options_.codec;
  std::unique_ptr<collectives::GradientCodec> codec;
  // Settings were checked with the job.
  if (config.kind() == Codec::TOP_K)
    codec = std::move(*collectives::NewTopKCodec(config.fraction()));
  if (config.kind() == Codec::SIGN) codec = collectives::NewSignCodec();
  if (config.kind() == Codec::POWER_SGD) {
    codec = std::move(*collectives::NewPowerSgdCodec(config.rank(), options_.seed));
  }
  if (codec == nullptr) return;
  if (config.has_error_feedback() && !config.error_feedback()) {
    codec_ = std::move(codec);
  } else {
    feedback_ = std::make_unique<collectives::ErrorFeedback>(std::move(codec));
  }
}

absl::Status DenseReducer::SumByCodec(const Request& request) {
  const absl::Span<float> gradient(static_cast<float*>(request.output),
                                   static_cast<size_t>(request.count));
  if (feedback_ != nullptr) return feedback_->Sum(*group_, gradient, request.samples);
  sent_by_codec_.resize(gradient.size());
  return codec_->Sum(*group_, gradient, gradient, absl::MakeSpan(sent_by_codec_));
}

void DenseReducer::SumOnDevice(std::unique_ptr<DeviceSum> sum, DeviceGradient gradient) {
  device_sum_ = std::move(sum);
  device_gradient_ = std::move(gradient);
  (void)TakeBytes();  // bytes sent earlier, by the first try of the sum
}

absl::Status DenseReducer::SumOnDevice(const Request& request) {
  TANDEM_ASSIGN_OR_RETURN(float* const gradient, device_gradient_(/*zero=*/samples_ == 0));
  const absl::Time begun = MonotonicNow();
  bool told = false;
  const auto waiting = [&](int worker) {
    if (MonotonicNow() - begun >= kNews) {
      (void)DumpIfNeeded(absl::OkStatus());
      absl::MutexLock lock(&mutex_);
      waiting_ = {absl::StrCat("sum on GPUs: waits for worker ", worker),
                  worker < 0 ? EndpointId() : EndpointId::Worker(worker)};
      told = true;
    }
    return watch_ == nullptr ? absl::OkStatus() : watch_->Verdict();
  };
  absl::Status status =
      device_sum_->Sum(gradient, request.count, static_cast<float*>(request.output), waiting);
  if (told) {
    absl::MutexLock lock(&mutex_);
    waiting_ = {};
  }
  return status;
}

// ---- Steps ---------------------------------------------------------------------

void DenseReducer::Begin(absl::Span<float> gradient, const Step& step) {
  absl::MutexLock lock(&mutex_);
  TANDEM_CHECK(!begun_);
  reduction_->Begin(gradient, step);
  samples_ = step.samples;
  begun_ = true;
  reduced_ = false;
  ready_from_ = static_cast<int64_t>(gradient.size());
  needs_from_ = reduction_->needs_from();
}

void DenseReducer::Ready(int64_t first) {
  absl::MutexLock lock(&mutex_);
  ready_from_ = std::min(ready_from_, first);
}

bool DenseReducer::HasWork() const {
  return stop_ || (begun_ && failure_.ok() && !reduced_ && needs_from_ >= ready_from_);
}

bool DenseReducer::Reduced() const { return !failure_.ok() || reduced_; }

// Runs requests while the gradient becomes ready. While HasWork() is true, only this thread uses
// the reduction; the caller's thread only says what is ready.
void DenseReducer::Loop() {
  for (;;) {
    int64_t ready_from = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &DenseReducer::HasWork));
      if (stop_) return;
      ready_from = ready_from_;
    }
    reduction_->Ready(ready_from);
    const absl::Status status = RunAll();
    absl::MutexLock lock(&mutex_);
    failure_.Update(status);
    needs_from_ = reduction_->needs_from();
    reduced_ = reduction_->waits_for_close();
  }
}

absl::Status DenseReducer::Finish(absl::Span<float> gradient, const Step& step,
                                  StepResult* result) {
  if (quorum_ != nullptr) {
    result->samples_of_all = DenseReduction::kUnknown;
    result->missed.clear();
    TANDEM_RETURN_IF_ERROR(quorum_->Finish(gradient, step, &result->missed));
    result->bytes = TakeBytes();
    return absl::OkStatus();
  }
  // Begin may be missing: a worker without data has no backward pass. Ready(0) lets the loop run
  // every request that can run before Close. Only when the loop has none left (Reduced) does this
  // thread use the reduction: Close changes the parameters, and the remaining requests run here.
  // Without overlap there is no loop, and all requests run here.
  bool begun = false;
  {
    absl::MutexLock lock(&mutex_);
    begun = begun_;
  }
  if (!begun) Begin(gradient, step);
  Ready(0);
  if (overlaps()) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &DenseReducer::Reduced));
    TANDEM_RETURN_IF_ERROR(failure_);
  }
  reduction_->Close();
  TANDEM_RETURN_IF_ERROR(RunAll());
  TANDEM_CHECK(reduction_->over());
  {
    absl::MutexLock lock(&mutex_);
    begun_ = false;
  }
  result->samples_of_all = reduction_->samples_of_all();
  result->empty_steps = reduction_->empty_steps();
  result->bytes = TakeBytes();
  return absl::OkStatus();
}

uint64_t DenseReducer::TakeBytes() {
  uint64_t sent = quorum_ == nullptr ? group_->bytes_sent() : sent_bytes_.load();
  if (device_sum_ != nullptr) sent += device_sum_->bytes_sent();
  return sent - std::exchange(counted_bytes_, sent);
}

absl::Status DenseReducer::GatherForCheckpoint(std::vector<int64_t>* missed) {
  if (quorum_ != nullptr) return quorum_->Settle(/*new_epoch=*/false, /*step=*/0, missed);
  reduction_->BeginGather();
  return RunAll();
}

std::string DenseReducer::State() const {
  if (quorum_ != nullptr) return quorum_->State();
  if (feedback_ != nullptr) return feedback_->State();
  return codec_ == nullptr ? reduction_->State() : codec_->State();
}

absl::Status DenseReducer::SetState(absl::string_view state) {
  if (quorum_ != nullptr) return quorum_->SetState(state);
  if (feedback_ != nullptr) return feedback_->SetState(state);
  return codec_ == nullptr ? reduction_->SetState(state) : codec_->SetState(state);
}

}  // namespace tandem::worker
