#include "worker/dense_synchroniser.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/convert.h"
#include "collectives/dump.h"
#include "node/log.h"
#include "optim/fold.h"

namespace tandem {
namespace {

// How often another thread may learn what is waited for.
constexpr absl::Duration kNews = absl::Seconds(1);
constexpr int64_t kFirstBucketShare = 4;

bool SamplesApart(const DenseSynchroniser::Options& options) {
  return options.wire != DataType::kF32 || options.codec.kind() > Codec::NONE ||
         options.sharded_optimizer || options.on_device;
}

}  // namespace

std::vector<Piece> GradientBuckets(int64_t count, int64_t bucket_bytes) {
  if (bucket_bytes <= 0 || count == 0) return {{0, count}};
  const int64_t size = std::max<int64_t>(1, bucket_bytes / static_cast<int64_t>(sizeof(float)));
  std::vector<Piece> out;
  int64_t end = count;
  for (int64_t next = std::max<int64_t>(1, size / kFirstBucketShare); end > 0; next = size) {
    const int64_t begin = std::max<int64_t>(0, end - next);
    out.push_back({begin, end - begin});
    end = begin;
  }
  return out;
}

absl::optional<Algorithm> DenseAlgorithm(const JobPlan& plan) {
  const std::string& name = Dense::Algorithm_Name(plan.job.dense().algorithm());
  const absl::StatusOr<Algorithm> algorithm = ParseAlgorithm(absl::AsciiStrToLower(name));
  return algorithm.ok() ? absl::optional<Algorithm>(*algorithm) : absl::nullopt;
}

// ---- AbortableWatch -----------------------------------------------------------

void AbortableWatch::Abort(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  if (why_.ok()) why_ = std::move(why);
  aborted_ = true;
  wake_.Set();
}

absl::Status AbortableWatch::Verdict() {
  if (!aborted_) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return why_;
}

// ---- DenseSynchroniser --------------------------------------------------------

DenseSynchroniser::Options DenseSynchroniser::OptionsOf(const JobPlan& plan) {
  Options options;
  const Dense& dense = plan.job.dense();
  if (dense.wire() == Dense::BF16) options.wire = DataType::kBF16;
  if (dense.wire() == Dense::F16) options.wire = DataType::kF16;
  options.bucket_bytes = std::max<int64_t>(0, dense.bucket_bytes());
  options.algorithm = DenseAlgorithm(plan);
  options.batch = plan.job.train().batch();
  options.codec = dense.codec();
  options.sharded_optimizer = dense.sharded_optimizer();
  options.seed = plan.job.seed();
  options.on_device = dense.device() == Dense::CUDA;
  return options;
}

DenseSynchroniser::DenseSynchroniser(std::unique_ptr<Group> group, AbortableWatch* watch,
                                     DenseParameters& dense, const Options& options)
    : watch_(watch),
      group_(std::move(group)),
      dense_(dense),
      options_(options),
      samples_apart_(SamplesApart(options)),
      buckets_(GradientBuckets(dense.count() + (samples_apart_ ? 0 : 1), options.bucket_bytes)) {
  if (options_.wire != DataType::kF32) {
    const double samples = static_cast<double>(options_.batch) * group_->ranks();
    to_wire_ = std::exp2(-std::round(static_cast<float>(std::log2(samples))));
    narrow_.resize(static_cast<size_t>(dense.count()) * SizeOf(options_.wire));
  }
  sent_ = told_ = group_->bytes_sent();  // before, to find out what links cost
  MakeCodec();
  if (options_.sharded_optimizer) ShardOptimizer();
  if (overlaps()) loop_ = std::thread([this] { Loop(); });
}

DenseSynchroniser::~DenseSynchroniser() {
  Abort("the worker ends");
  if (loop_.joinable()) {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
    }
    loop_.join();
  }
  (void)DumpIfNeeded(absl::OkStatus());
}

void DenseSynchroniser::Abort(absl::string_view why) {
  if (watch_ != nullptr) watch_->Abort(absl::CancelledError(why));
}

Activity DenseSynchroniser::WaitingFor() const {
  absl::MutexLock lock(&mutex_);
  return waiting_;
}

// ---- Dumps ---------------------------------------------------------------------

void DenseSynchroniser::Dump() {
  const absl::Status written = WriteDump(options_.dump_folder, DumpOf(*group_, kWorkersGroup));
  if (!written.ok())
    Log("worker", group_->rank()).Error(absl::StrCat("no dump: ", written.ToString()));
}

absl::Status DenseSynchroniser::DumpIfNeeded(absl::Status status) {
  const bool asked = dump_requested_.exchange(false);
  if ((asked || !status.ok()) && !options_.dump_folder.empty()) Dump();
  return status;
}

// ---- The steps of one synchronisation -----------------------------------------

absl::Status DenseSynchroniser::WaitFor(const absl::StatusOr<Work>& work) {
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
  return DumpIfNeeded(group_->Wait(work));
}

absl::Status DenseSynchroniser::Reduce(Piece bucket) {
  const absl::Time begun = trace_ == nullptr ? absl::Time() : MonotonicNow();
  const absl::Status status = ReduceBucket(bucket);
  if (trace_ != nullptr) {
    trace_->Add({absl::StrCat("bucket ", bucket.DebugString()), "allreduce", begun,
                 MonotonicNow() - begun, "allreduce"});
  }
  return status;
}

absl::Status DenseSynchroniser::ReduceBucket(Piece bucket) {
  CallOptions call;
  const int64_t bytes = bucket.count * static_cast<int64_t>(SizeOf(options_.wire));
  if (options_.algorithm.has_value()) {
    call.choice = group_->Choose(Primitive::kAllReduce, bytes);
    call.choice->algorithm = *options_.algorithm;
  }
  const absl::Span<float> values =
      gradient_.subspan(static_cast<size_t>(bucket.begin), static_cast<size_t>(bucket.count));
  if (options_.wire == DataType::kF32) {
    return WaitFor(group_->AllReduce(values.data(), values.data(), bucket.count, DataType::kF32,
                                     ReduceOp::kSum, call));
  }
  uint8_t* const narrow =
      narrow_.data() + static_cast<size_t>(bucket.begin) * SizeOf(options_.wire);
  Narrow(options_.wire, values, to_wire_, narrow);
  TANDEM_RETURN_IF_ERROR(WaitFor(
      group_->AllReduce(narrow, narrow, bucket.count, options_.wire, ReduceOp::kSum, call)));
  Widen(options_.wire, narrow, 1 / to_wire_, values);
  return absl::OkStatus();
}

absl::Status DenseSynchroniser::ReduceSamples() {
  if (!samples_apart_) return absl::OkStatus();
  return WaitFor(group_->AllReduce(&samples_, &samples_, 1, DataType::kF32, ReduceOp::kSum));
}

// ---- Codecs and the sharded optimizer -----------------------------------------

void DenseSynchroniser::MakeCodec() {
  const Codec& config = options_.codec;
  std::unique_ptr<GradientCodec> codec;
  // Settings were checked with the job.
  if (config.kind() == Codec::TOP_K) codec = std::move(*NewTopKCodec(config.fraction()));
  if (config.kind() == Codec::SIGN) codec = NewSignCodec();
  if (config.kind() == Codec::POWER_SGD) {
    codec = std::move(*NewPowerSgdCodec(config.rank(), options_.seed));
  }
  if (codec == nullptr) return;
  if (config.without_feedback()) {
    codec_ = std::move(codec);
  } else {
    feedback_ = std::make_unique<ErrorFeedback>(std::move(codec));
  }
}

absl::Status DenseSynchroniser::SumByCodec() {
  const absl::Span<float> gradient = gradient_.first(static_cast<size_t>(dense_.count()));
  if (samples_ == 0) return absl::OkStatus();  // of all workers: nothing to divide by
  if (feedback_ != nullptr) return DumpIfNeeded(feedback_->Sum(*group_, gradient, samples_));
  sent_by_codec_.resize(gradient.size());
  return DumpIfNeeded(codec_->Sum(*group_, gradient, gradient, absl::MakeSpan(sent_by_codec_)));
}

// Near-equal runs of blocks, by rank.
void DenseSynchroniser::ShardOptimizer() {
  const Blocks share(dense_.blocks(), group_->ranks());
  for (int r = 0; r < group_->ranks(); ++r) {
    shares_.push_back(share(r).count * kDenseBlockFloats);
  }
  dense_.KeepSlotsOf(share(group_->rank()));
}

absl::Status DenseSynchroniser::ReduceToOwners() {
  CollectiveShape shape;
  shape.counts = shares_;
  float* const own = gradient_.data() + shape.BlockOf(group_->rank()).begin;
  return WaitFor(
      group_->ReduceScatterV(gradient_.data(), own, shares_, DataType::kF32, ReduceOp::kSum));
}

absl::Status DenseSynchroniser::SendValuesRound() {
  CollectiveShape shape;
  shape.counts = shares_;
  float* const values = dense_.padded().data();
  return WaitFor(group_->AllGatherV(values + shape.BlockOf(group_->rank()).begin, values, shares_,
                                    DataType::kF32));
}

absl::Status DenseSynchroniser::GatherSlots() {
  if (!options_.sharded_optimizer) return absl::OkStatus();
  std::vector<int64_t> counts;
  int64_t all = 0;
  for (const int64_t floats : shares_) {
    counts.push_back(floats / kDenseBlockFloats * dense_.slots_per_block());
    all += counts.back();
  }
  std::vector<float> slots(static_cast<size_t>(group_->rank() == 0 ? all : 0));
  TANDEM_RETURN_IF_ERROR(WaitFor(group_->GatherV(dense_.kept_slots().data(), slots.data(), counts,
                                                 DataType::kF32, /*root=*/0)));
  if (group_->rank() == 0) dense_.SetAllSlots(std::move(slots));
  return absl::OkStatus();
}

absl::Status DenseSynchroniser::SumAtOnce() {
  if (device_sum_ != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(float* const gradient, device_gradient_(/*zero=*/samples_ == 0));
    return DumpIfNeeded(device_sum_->Sum(gradient, dense_.count(), gradient_.data()));
  }
  if (options_.sharded_optimizer) return ReduceToOwners();
  return options_.codec.kind() > Codec::NONE ? SumByCodec() : Reduce(buckets_[0]);
}

// ---- The steps of one synchronisation, as others see them ----------------------

void DenseSynchroniser::Begin(absl::Span<float> gradient, int64_t samples) {
  const auto count = static_cast<size_t>(dense_.count());
  TANDEM_CHECK(gradient.size() > count);
  gradient_ = gradient;
  gradient_[count] = samples_apart_ ? 0 : static_cast<float>(samples);
  samples_ = static_cast<float>(samples);
  absl::MutexLock lock(&mutex_);
  TANDEM_CHECK(!begun_);
  begun_ = true;
  ready_from_ = dense_.count();
  reduced_ = 0;
}

void DenseSynchroniser::Ready(int64_t first) {
  absl::MutexLock lock(&mutex_);
  ready_from_ = std::min(ready_from_, first);
}

bool DenseSynchroniser::BucketIsReady() const {
  if (stop_) return true;
  return begun_ && failure_.ok() && reduced_ < buckets_.size() &&
         buckets_[reduced_].begin >= ready_from_;
}

bool DenseSynchroniser::AllReduced() const { return !failure_.ok() || reduced_ == buckets_.size(); }

void DenseSynchroniser::Loop() {
  for (;;) {
    size_t next = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &DenseSynchroniser::BucketIsReady));
      if (stop_) return;
      next = reduced_;
    }
    absl::Status status = Reduce(buckets_[next]);
    if (status.ok() && next + 1 == buckets_.size()) status = ReduceSamples();
    absl::MutexLock lock(&mutex_);
    failure_.Update(status);
    sent_ = group_->bytes_sent();
    ++reduced_;
  }
}

absl::Status DenseSynchroniser::Finish(absl::Span<float> gradient, int64_t samples,
                                       double* samples_of_all, uint64_t* bytes) {
  bool begun = false;
  {
    absl::MutexLock lock(&mutex_);
    begun = begun_;
  }
  if (!begun) Begin(gradient, samples);
  Ready(0);
  if (overlaps()) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &DenseSynchroniser::AllReduced));
    TANDEM_RETURN_IF_ERROR(failure_);
    begun_ = false;
  } else {
    // What a codec has not sent weighs by the samples of all, so they come first.
    const bool samples_first = options_.codec.kind() > Codec::NONE;
    if (samples_first) TANDEM_RETURN_IF_ERROR(ReduceSamples());
    TANDEM_RETURN_IF_ERROR(SumAtOnce());
    if (!samples_first) TANDEM_RETURN_IF_ERROR(ReduceSamples());
    absl::MutexLock lock(&mutex_);
    begun_ = false;
    sent_ = group_->bytes_sent();
  }
  float& last = gradient_[static_cast<size_t>(dense_.count())];
  *samples_of_all = samples_apart_ ? samples_ : last;
  last = 0;  // padding again
  if (*samples_of_all > 0) {
    dense_.Apply(gradient_, FoldFactor(*samples_of_all));
    if (options_.sharded_optimizer) TANDEM_RETURN_IF_ERROR(SendValuesRound());
  }
  absl::MutexLock lock(&mutex_);
  *bytes = sent_ - told_;
  told_ = sent_;
  return absl::OkStatus();
}

}  // namespace tandem
