#include "tools/bench/stream_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/proc_files.h"
#include "base/status_macros.h"

namespace tandem::bench {
namespace {

// (e^x - 1) / x and log(1 + x) / x, also near 0.
double ExpRatio(double x) { return std::abs(x) > 1e-8 ? std::expm1(x) / x : 1 + x / 2; }
double LogRatio(double x) { return std::abs(x) > 1e-8 ? std::log1p(x) / x : 1 - x / 2; }

server::RowTable::Options WithLimits(const StoreBenchOptions& options,
                                     server::RowTable::Options store, server::PageArena* arena,
                                     server::RowCounts* counts) {
  store.arena = arena;
  store.counts = counts;
  if (options.eviction == Eviction::LRU) store.limits.max_rows = options.max_rows;
  if (options.eviction == Eviction::AGE) store.limits.max_age = options.versions;
  return store;
}

double Megabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

// ---- Zipf's law -------------------------------------------------------------------------------

ZipfNumbers::ZipfNumbers(int64_t count, double skew) : count_(count), skew_(skew) {
  first_ = Integral(1.5) - 1;
  last_ = Integral(static_cast<double>(count) + 0.5);
  sure_ = 2 - InverseIntegral(Integral(2.5) - Weight(2));
}

double ZipfNumbers::Weight(double x) const { return std::exp(-skew_ * std::log(x)); }

double ZipfNumbers::Integral(double x) const {
  const double log = std::log(x);
  return ExpRatio((1 - skew_) * log) * log;
}

double ZipfNumbers::InverseIntegral(double y) const {
  const double t = std::max(-1.0, y * (1 - skew_));
  return std::exp(LogRatio(t) * y);
}

int64_t ZipfNumbers::Draw(Random* random) const {
  for (;;) {
    const double u = last_ + random->NextDouble() * (first_ - last_);
    const double x = InverseIntegral(u);
    const double k = std::clamp(std::floor(x + 0.5), 1.0, static_cast<double>(count_));
    if (k - x <= sure_ || u >= Integral(k + 0.5) - Weight(k)) return static_cast<int64_t>(k);
  }
}

// ---- the run ----------------------------------------------------------------------------------

absl::Status CheckStream(const StoreBenchOptions& o) {
  const auto refuse = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("bench store: ", what...));
  };
  if (o.dim < 1 || o.batch_keys < 1) return refuse("dim and batch-keys must be 1 or more");
  if (o.stream < 1) return refuse("stream is ", o.stream, ", expected 1 or more ids");
  if (!(o.skew > 0 && o.skew <= 10)) return refuse("skew is ", o.skew, ", expected in (0, 10]");
  if (o.eviction == Eviction::AT_BUDGET) {
    return refuse("eviction is AT_BUDGET, expected NONE, AGE or LRU");
  }
  if (o.eviction == Eviction::LRU && o.max_rows < 1) {
    return refuse("max-rows is ", o.max_rows, ", expected 1 or more");
  }
  if (o.eviction == Eviction::AGE && (o.versions < 1 || o.versions > int64_t{1} << 30)) {
    return refuse("versions is ", o.versions, ", expected 1 to 2^30");
  }
  if (!(o.seconds > 0 && o.report_seconds > 0) || o.stream_batches < 0) {
    return refuse("seconds and report-seconds must be above 0, stream-batches 0 or more");
  }
  return absl::OkStatus();
}

StreamRun::StreamRun(const StoreBenchOptions& options, server::RowTable::Options store)
    : options_(options),
      store_(WithLimits(options, std::move(store), &arena_, &counts_)),
      ids_(options.stream, options.skew),
      random_(HashCombine(options.seed, 4)) {
  const auto batch = static_cast<size_t>(options.batch_keys);
  keys_.reserve(batch);
  seen_.reserve(batch);
  gradients_.resize(batch * static_cast<size_t>(options.dim));
  Random random(HashCombine(options.seed, 3));
  for (float& g : gradients_) g = static_cast<float>(random.Normal());
}

// The distinct keys of batch_keys draws.
void StreamRun::NextBatch() {
  keys_.clear();
  seen_.clear();
  for (int64_t i = 0; i < options_.batch_keys; ++i) {
    // Scattered like real ids.
    const uint64_t key = HashCombine(options_.seed, static_cast<uint64_t>(ids_.Draw(&random_)));
    if (seen_.insert(key).second) keys_.push_back(key);
  }
}

absl::Status StreamRun::PushBatch() {
  const auto floats = keys_.size() * static_cast<size_t>(options_.dim);
  const double before = ThreadSeconds();
  TANDEM_RETURN_IF_ERROR(
      store_.Push(keys_, absl::MakeSpan(gradients_).first(floats), 0.5f, {1, 1, ++version_}));
  store_.Advance(version_);
  store_seconds_ += ThreadSeconds() - before;
  updates_ += keys_.size();
  return absl::OkStatus();
}

absl::Status StreamRun::Run(std::ostream& out) {
  out << "seconds    updates/s  of the store  evictions/s        rows  store MB  process MB\n";
  const absl::Time start = began_ = MonotonicNow();
  absl::Time now = start;
  for (int64_t batch = 0; options_.stream_batches == 0 || batch < options_.stream_batches;
       ++batch) {
    NextBatch();
    TANDEM_RETURN_IF_ERROR(PushBatch());
    now = MonotonicNow();
    if (now - start >= absl::Seconds(options_.seconds)) break;
    if (now - began_ >= absl::Seconds(options_.report_seconds)) Print(now - start, out);
  }
  if (updates_ > 0) Print(now - start, out);
  if (options_.eviction != Eviction::LRU || store_.size() <= options_.max_rows) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("bench store: ", store_.size(), " rows, expected at most ", options_.max_rows));
}

void StreamRun::Print(absl::Duration passed, std::ostream& out) {
  const absl::Time now = MonotonicNow();
  const double since = absl::ToDoubleSeconds(now - began_);
  const double updates = static_cast<double>(updates_);
  const double evicted = static_cast<double>(counts_.evicted - evicted_before_);
  out << absl::StrFormat("%7.1f %12.0f %13.0f %12.0f %11d %9.1f %11.1f\n",
                         absl::ToDoubleSeconds(passed), updates / since, updates / store_seconds_,
                         evicted / since, store_.size(), Megabytes(arena_.resident()),
                         Megabytes(ResidentBytes()))
      << std::flush;
  updates_ = 0;
  store_seconds_ = 0;
  evicted_before_ = counts_.evicted;
  began_ = now;
}

}  // namespace tandem::bench
