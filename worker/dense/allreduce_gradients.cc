#include "worker/dense/allreduce_gradients.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/check.h"
#include "collectives/reduce.h"
#include "optim/fold.h"
#include "worker/dense/replica_digests.h"

namespace tandem::worker {
namespace {

constexpr int64_t kFirstBucketShare = 4;
// n of a skipped step. Rounding removes it from a sum with samples of other workers, so it changes
// no mean. If all workers with data have skipped the step, the sum is above 0, and the epoch goes
// on.
constexpr float kSkipped = 0x1p-40f;

bool SamplesApart(const AllReduceGradients::Options& options) {
  return options.wire != collectives::DataType::kF32 || options.codec ||
         options.sharded_optimizer || options.on_device;
}

// The offset of the block of `rank` when the blocks of all ranks follow one another.
int64_t BeginOf(absl::Span<const int64_t> counts, int rank) {
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += counts[static_cast<size_t>(r)];
  return begin;
}

}  // namespace

std::vector<collectives::Piece> GradientBuckets(int64_t count, int64_t bucket_bytes) {
  if (bucket_bytes <= 0 || count == 0) return {{0, count}};
  const int64_t size = std::max<int64_t>(1, bucket_bytes / static_cast<int64_t>(sizeof(float)));
  std::vector<collectives::Piece> out;
  int64_t end = count;
  for (int64_t next = std::max<int64_t>(1, size / kFirstBucketShare); end > 0; next = size) {
    const int64_t begin = std::max<int64_t>(0, end - next);
    out.push_back({begin, end - begin});
    end = begin;
  }
  return out;
}

absl::optional<collectives::Algorithm> DenseAlgorithm(const job::ResolvedJob& plan) {
  const std::string& name = Dense::Algorithm_Name(plan.job.dense().algorithm());
  const absl::StatusOr<collectives::Algorithm> algorithm =
      collectives::ParseAlgorithm(absl::AsciiStrToLower(name));
  return algorithm.ok() ? absl::optional<collectives::Algorithm>(*algorithm) : absl::nullopt;
}

std::unique_ptr<DenseReduction> AllReduceGradients::New(const job::ResolvedJob& plan, int rank,
                                                        int64_t bucket_bytes,
                                                        DenseParameters& dense) {
  const Dense& config = plan.job.dense();
  Options options;
  options.rank = rank;
  options.ranks = plan.workers();
  if (config.wire_dtype() == Dense::BF16) options.wire = collectives::DataType::kBF16;
  if (config.wire_dtype() == Dense::F16) options.wire = collectives::DataType::kF16;
  options.bucket_bytes = bucket_bytes;
  options.algorithm = DenseAlgorithm(plan);
  options.batch = plan.job.train().batch_size();
  options.codec = config.codec().kind() > Codec::NONE;
  options.sharded_optimizer = config.sharded_optimizer();
  options.on_device = config.device() == Dense::CUDA;
  options.compares = plan.workers() > 1;
  return std::make_unique<AllReduceGradients>(dense, options);
}

AllReduceGradients::AllReduceGradients(DenseParameters& dense, const Options& options)
    : dense_(dense),
      options_(options),
      samples_apart_(SamplesApart(options)),
      buckets_(GradientBuckets(dense.count() + (samples_apart_ ? 0 : 1), options.bucket_bytes)) {
  if (options_.wire != collectives::DataType::kF32) {
    const double samples = static_cast<double>(options_.batch) * options_.ranks;
    to_wire_ = std::exp2(-std::round(static_cast<float>(std::log2(samples))));
    narrow_.resize(static_cast<size_t>(dense.count()) * collectives::SizeOf(options_.wire));
  }
  if (!options_.sharded_optimizer) return;
  // Near-equal runs of blocks, by rank.
  const collectives::Blocks share(dense_.blocks(), options_.ranks);
  for (int r = 0; r < options_.ranks; ++r) {
    shares_.push_back(share(r).count * job::kDenseBlockFloats);
    slot_shares_.push_back(share(r).count * dense_.slots_per_block());
  }
  dense_.KeepSlotsOf(share(options_.rank));
}

// ---- a step -----------------------------------------------------------------------------------

void AllReduceGradients::Begin(absl::Span<float> gradient, const Step& step) {
  const auto count = static_cast<size_t>(dense_.count());
  TANDEM_CHECK(stage_ == Stage::kIdle && gradient.size() > count);
  gradient_ = gradient;
  samples_ = step.skipped ? kSkipped : static_cast<float>(step.samples);
  gradient_[count] = samples_apart_ ? 0 : samples_;
  step_ = step.number;
  sample_clock_ = step.sample_clock;
  ready_from_ = dense_.count();
  reduced_ = 0;
  closed_ = false;
  stage_ = options_.codec ? Stage::kSamples : Stage::kReduce;
}

void AllReduceGradients::Ready(int64_t first) { ready_from_ = std::min(ready_from_, first); }

void AllReduceGradients::Close() {
  TANDEM_CHECK(stage_ != Stage::kIdle && !closed_);
  closed_ = true;
  Ready(0);
  if (stage_ == Stage::kClose) Apply();
}

int64_t AllReduceGradients::needs_from() const {
  return stage_ == Stage::kReduce && !at_once() ? buckets_[reduced_].begin : 0;
}

const DenseReduction::Request* AllReduceGradients::Next() {
  if (under_way_ || stage_ == Stage::kIdle || stage_ == Stage::kClose) return nullptr;
  if (stage_ == Stage::kReduce && ready_from_ > needs_from()) return nullptr;
  MakeRequest();
  under_way_ = true;
  return &request_;
}

void AllReduceGradients::MakeRequest() {
  request_ = Request();
  switch (stage_) {
    case Stage::kReduce:
      return at_once() ? RequestGradient() : RequestBucket(buckets_[reduced_]);
    case Stage::kSamples:
      request_.count = 1;
      request_.input = request_.output = &samples_;
      return;
    case Stage::kValues:
      return RequestShares(collectives::Primitive::kAllGather, dense_.padded().data());
    case Stage::kDigests:
      request_.primitive = collectives::Primitive::kAllGather;
      request_.type = collectives::DataType::kI64;
      request_.counts = digest_shares_;
      request_.input = &digests_[static_cast<size_t>(options_.rank)];
      request_.output = digests_.data();
      return;
    case Stage::kGather:
      request_.primitive = collectives::Primitive::kGather;
      request_.counts = slot_shares_;
      request_.input = dense_.kept_slots().data();
      request_.output = gathered_slots_.data();
      return;
    case Stage::kIdle:
    case Stage::kClose:
      return;
  }
}

// Works in place: this rank's share lies at its final offset among all shares.
void AllReduceGradients::RequestShares(collectives::Primitive primitive, float* all) {
  request_.primitive = primitive;
  request_.counts = shares_;
  float* const own = all + BeginOf(shares_, options_.rank);
  const bool scatter = primitive == collectives::Primitive::kReduceScatter;
  request_.input = scatter ? all : own;
  request_.output = scatter ? own : all;
}

void AllReduceGradients::RequestGradient() {
  if (options_.sharded_optimizer) {
    return RequestShares(collectives::Primitive::kReduceScatter, gradient_.data());
  }
  request_.by = options_.on_device ? Request::By::kDevice : Request::By::kCodec;
  request_.count = dense_.count();
  request_.samples = samples_;
  request_.input = request_.output = gradient_.data();
}

void AllReduceGradients::RequestBucket(collectives::Piece bucket) {
  request_.type = options_.wire;
  request_.count = bucket.count;
  request_.algorithm = options_.algorithm;
  request_.bucket = bucket;
  const absl::Span<float> values =
      gradient_.subspan(static_cast<size_t>(bucket.begin), static_cast<size_t>(bucket.count));
  request_.input = request_.output = values.data();
  if (options_.wire == collectives::DataType::kF32) return;
  uint8_t* const narrow =
      narrow_.data() + static_cast<size_t>(bucket.begin) * collectives::SizeOf(options_.wire);
  collectives::Narrow(options_.wire, values, to_wire_, narrow);
  request_.input = request_.output = narrow;
}

void AllReduceGradients::OnDone() {
  TANDEM_CHECK(under_way_);
  under_way_ = false;
  switch (stage_) {
    case Stage::kReduce:
      if (request_.type != collectives::DataType::kF32) {
        collectives::Widen(request_.type, static_cast<const uint8_t*>(request_.output),
                           1 / to_wire_,
                           gradient_.subspan(static_cast<size_t>(request_.bucket->begin),
                                             static_cast<size_t>(request_.count)));
      }
      if (!at_once() && ++reduced_ < buckets_.size()) return;
      stage_ = samples_apart_ && !options_.codec ? Stage::kSamples : Stage::kClose;
      break;
    // Without samples there is nothing for a codec to divide by, so the gradient is not sent.
    case Stage::kSamples:
      stage_ = options_.codec && samples_ >= 1 ? Stage::kReduce : Stage::kClose;
      break;
    case Stage::kGather:
      if (options_.rank == 0) dense_.SetAllSlots(std::move(gathered_slots_));
      stage_ = Stage::kIdle;
      break;
    case Stage::kDigests:
      failure_ = CompareReplicas(digests_, options_.rank, step_);
      stage_ = Stage::kIdle;
      break;
    case Stage::kValues:
    case Stage::kIdle:
    case Stage::kClose:
      stage_ = Stage::kIdle;
      break;
  }
  if (stage_ == Stage::kClose && closed_) Apply();
}

void AllReduceGradients::Apply() {
  float& last = gradient_[static_cast<size_t>(dense_.count())];
  samples_of_all_ = samples_apart_ ? samples_ : last;
  last = 0;  // the element is padding again
  stage_ = Stage::kIdle;
  if (samples_of_all_ == 0) return BeginCompare();
  if (samples_of_all_ < 1) return;  // skipped by all
  dense_.Apply(gradient_, optim::FoldFactor(samples_of_all_), sample_clock_);
  if (options_.sharded_optimizer) stage_ = Stage::kValues;
}

void AllReduceGradients::BeginCompare() {
  if (!options_.compares || dense_.count() == 0) return;
  const auto ranks = static_cast<size_t>(options_.ranks);
  digests_.assign(ranks, 0);
  digest_shares_.assign(ranks, 1);
  digests_[static_cast<size_t>(options_.rank)] = dense_.Digest();
  stage_ = Stage::kDigests;
}

// ---- a checkpoint -----------------------------------------------------------------------------

void AllReduceGradients::BeginGather() {
  TANDEM_CHECK(stage_ == Stage::kIdle);
  if (!options_.sharded_optimizer) return;
  const int64_t all = BeginOf(slot_shares_, options_.ranks);
  gathered_slots_.resize(static_cast<size_t>(options_.rank == 0 ? all : 0));
  stage_ = Stage::kGather;
}

}  // namespace tandem::worker
