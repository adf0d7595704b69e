#include "worker/dense/tune_group.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "worker/dense/allreduce_gradients.h"

namespace tandem::worker {
namespace {

using nlohmann::json;

constexpr double kMeasureSeconds = 0.2, kTrySeconds = 0.15;
// 64 ranks take 3 s; the time grows with the cube of the ranks.
constexpr int kMaxRanksPlayed = 64;
constexpr int64_t kMaxMeasured = 4 << 20;

absl::StatusOr<collectives::Calibration> ReadCalibration(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (!text.ok()) return absl::InvalidArgumentError("cannot be read");
  return collectives::Calibration::Parse(*text);
}

absl::Status InField(absl::string_view field, absl::string_view value, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("dense.", field, ": \"", value, "\": ", status.message()));
}

// Gradients on a GPU are summed without an algorithm of the group.
bool OnDevice(const job::ResolvedJob& plan) { return plan.job.dense().device() == Dense::CUDA; }

// The bits of such a job must not depend on a measurement.
bool MeasuresNothing(const job::ResolvedJob& plan) {
  return plan.job.reproducible() || plan.job.staleness().record_order();
}

bool ChoosesBuckets(const job::ResolvedJob& plan) {
  const Dense& dense = plan.job.dense();
  return dense.synchroniser() == Dense::ALLREDUCE && dense.bucket_bytes() == 0 &&
         !MeasuresNothing(plan) && dense.codec().kind() <= Codec::NONE &&
         !dense.sharded_optimizer() && !OnDevice(plan) && !job::SumsByQuorum(plan.job);
}

bool ChoosesAlgorithm(const job::ResolvedJob& plan) {
  return plan.job.dense().algorithm() == Dense::AUTO && !OnDevice(plan);
}

// The decision of rank 0, in the form in which it is sent: a line with the bucket size, then the
// rules; or an error text.
struct Decision {
  int64_t bucket_bytes = 0;
  collectives::ChooserRules rules;

  std::string ToString() const { return absl::StrCat(bucket_bytes, "\n", rules.ToString()); }
  static absl::StatusOr<Decision> Parse(const std::string& text) {
    const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', 1));
    Decision out;
    if (lines.size() != 2 || !absl::SimpleAtoi(lines[0], &out.bucket_bytes)) {
      return absl::InternalError(absl::StrCat("rank 0: ", text));
    }
    TANDEM_ASSIGN_OR_RETURN(out.rules, collectives::ChooserRules::Parse(lines[1]));
    return out;
  }
};

class Tuner {
 public:
  Tuner(const job::ResolvedJob& plan, int64_t gradient_bytes, absl::Span<const int> host_of_rank,
        collectives::Group& group, const DeviceSum* device_sum)
      : plan_(plan),
        dense_(plan.job.dense()),
        gradient_bytes_(gradient_bytes),
        hosts_(host_of_rank),
        group_(group),
        device_sum_(device_sum) {
    decided_.bucket_bytes = std::max<int64_t>(0, dense_.bucket_bytes());
  }

  absl::StatusOr<DenseTuning> Run(collectives::ChooserRules* rules) {
    // Every rank calls Decide, because a measurement needs all of them. Only the decision of rank 0
    // counts. If rank 0 has an error, its text travels instead, and Parse returns it on all ranks.
    if (group_.ranks() > 1) {
      const absl::Status own = Decide();
      TANDEM_ASSIGN_OR_RETURN(
          const std::string text,
          collectives::TextOfRank0(group_,
                                   own.ok() ? decided_.ToString() : std::string(own.message())));
      TANDEM_ASSIGN_OR_RETURN(decided_, Decision::Parse(text));
    }
    *rules = decided_.rules;
    DenseTuning out;
    out.bucket_bytes = decided_.bucket_bytes;
    if (group_.rank() > 0 || group_.ranks() == 1) return out;
    const json described = Describe();
    out.json = described.dump(-1, ' ', false, json::error_handler_t::replace);
    out.line = Line(described);
    return out;
  }

 private:
  // Runs on rank 0; the other ranks only take part in the measurement.
  absl::Status Decide() {
    TANDEM_RETURN_IF_ERROR(FindCosts());
    if (group_.rank() > 0) return absl::OkStatus();
    if (costs_.has_value()) TANDEM_RETURN_IF_ERROR(DecideByCosts());
    TANDEM_ASSIGN_OR_RETURN(const collectives::ChooserRules given,
                            collectives::ChooserRules::Parse(dense_.algorithm_rules()));
    decided_.rules.Override(given);
    return absl::OkStatus();
  }

  absl::Status FindCosts() {
    const bool buckets = ChoosesBuckets(plan_) && gradient_bytes_ >= collectives::kMinBucketedBytes;
    const bool needed = (ChoosesAlgorithm(plan_) || buckets) && group_.ranks() <= kMaxRanksPlayed;
    if (!needed) return absl::OkStatus();
    if (dense_.calibration().empty()) return Measure();
    source_ = absl::StrCat("file ", dense_.calibration());
    if (group_.rank() > 0) return absl::OkStatus();
    const absl::StatusOr<collectives::Calibration> read = ReadCalibration(dense_.calibration());
    TANDEM_RETURN_IF_ERROR(InField("calibration", dense_.calibration(), read.status()));
    costs_ = *read;
    return absl::OkStatus();
  }

  absl::Status Measure() {
    collectives::CalibrateOptions options;
    options.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    options.max_bytes = std::min(gradient_bytes_, kMaxMeasured);
    options.seconds = kMeasureSeconds;
    const absl::Time begun = MonotonicNow();
    TANDEM_ASSIGN_OR_RETURN(costs_, collectives::Calibrate(group_, options));
    if (ChoosesAlgorithm(plan_)) {
      collectives::TryOptions trial;
      trial.primitives = Primitives();
      trial.host_of_rank.assign(hosts_.begin(), hosts_.end());
      trial.max_bytes = options.max_bytes;
      trial.seconds = kTrySeconds;
      TANDEM_RETURN_IF_ERROR(collectives::TryOut(group_, trial, &*costs_));
    }
    source_ = absl::StrFormat("measured in %.2f s", absl::ToDoubleSeconds(MonotonicNow() - begun));
    return absl::OkStatus();
  }

  // The collectives that a step uses.
  std::vector<collectives::Primitive> Primitives() const {
    std::vector<collectives::Primitive> used = {collectives::Primitive::kAllReduce};
    if (dense_.sharded_optimizer() || dense_.codec().kind() > Codec::NONE) {
      used.push_back(collectives::Primitive::kReduceScatter);
      used.push_back(collectives::Primitive::kAllGather);
    }
    return used;
  }

  absl::Status DecideByCosts() {
    if (ChoosesAlgorithm(plan_)) {
      collectives::RuleScope scope;
      scope.primitives = Primitives();
      scope.max_bytes = gradient_bytes_;
      TANDEM_ASSIGN_OR_RETURN(decided_.rules,
                              collectives::MakeRules(group_.ranks(), hosts_, *costs_, scope));
    }
    if (!ChoosesBuckets(plan_)) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const collectives::BucketChoice bucket,
                            collectives::ChooseBucket(gradient_bytes_, group_.ranks(), hosts_,
                                                      DenseAlgorithm(plan_), *costs_));
    decided_.bucket_bytes = bucket.bytes;
    why_bucket_ = bucket.why;
    return absl::OkStatus();
  }

  // ---- For the summary and the log ----

  std::string WhyBucket() const {
    if (dense_.synchroniser() != Dense::ALLREDUCE) return "sync rounds send whole models";
    if (dense_.bucket_bytes() != 0) return "the job says so";
    if (MeasuresNothing(plan_)) return "a reproducible job must not depend on measurements";
    if (job::SumsByQuorum(plan_.job)) return "quorum sums need the whole gradient";
    if (!ChoosesBuckets(plan_))
      return "a codec, a sharded optimizer or a GPU needs the whole gradient";
    if (gradient_bytes_ < collectives::kMinBucketedBytes) return "the gradient is small";
    if (group_.ranks() > kMaxRanksPlayed) return "nothing is measured with so many workers";
    return why_bucket_;
  }

  std::string WhyAlgorithm(int64_t bytes) const {
    if (!ChoosesAlgorithm(plan_)) return "the job says so";
    const auto given = collectives::ChooserRules::Parse(dense_.algorithm_rules());
    if (given.ok() && given->Find(collectives::Primitive::kAllReduce, bytes) != nullptr) {
      return "by the job's rules";
    }
    if (!costs_.has_value()) {
      return absl::StrCat("by default: more than ", kMaxRanksPlayed, " workers");
    }
    const auto all = collectives::Rank(collectives::Primitive::kAllReduce, bytes, group_.ranks(),
                                       hosts_, *costs_);
    if (!all.ok() || all->empty()) return "by default";
    const auto part = [](std::string* out, const collectives::Prediction& p) {
      absl::StrAppendFormat(out, "%s %.4g us", collectives::AlgorithmName(p.choice.algorithm),
                            p.seconds * 1e6);
    };
    const bool tried = all->front().tried;
    size_t shown = 1;
    while (shown < std::min<size_t>(all->size(), 3) && (*all)[shown].tried == tried) ++shown;
    return absl::StrCat(tried ? "tried out: " : "predicted: ",
                        absl::StrJoin(absl::MakeConstSpan(*all).first(shown), ", ", part));
  }

  json Choice(int64_t bytes) const {
    if (device_sum_ != nullptr) {
      return {{"bytes", bytes},
              {"algorithm", device_sum_->name()},
              {"segment_bytes", 0},
              {"why", device_sum_->why()}};
    }
    collectives::AlgorithmChoice choice = group_.Choose(collectives::Primitive::kAllReduce, bytes);
    choice.algorithm = DenseAlgorithm(plan_).value_or(choice.algorithm);
    return {{"bytes", bytes},
            {"algorithm", std::string(collectives::AlgorithmName(choice.algorithm))},
            {"segment_bytes", choice.segment_bytes},
            {"why", WhyAlgorithm(bytes)}};
  }

  // The sizes of a step's all-reduces.
  std::set<int64_t> Sizes() const {
    std::set<int64_t> sizes;
    const int64_t element = dense_.wire_dtype() == Dense::F32 ? 4 : 2;
    for (const collectives::Piece& p :
         GradientBuckets(gradient_bytes_ / 4, decided_.bucket_bytes)) {
      sizes.insert(p.count * element);
    }
    return sizes;
  }

  json Describe() const {
    json out = {{"ranks", group_.ranks()},
                {"algorithm", OnDevice(plan_) ? "CUDA" : Dense::Algorithm_Name(dense_.algorithm())},
                {"gradient_bytes", gradient_bytes_},
                {"bucket_bytes", decided_.bucket_bytes},
                {"bucket_why", WhyBucket()},
                {"choices", json::array()}};
    for (const int64_t bytes : Sizes()) out["choices"].push_back(Choice(bytes));
    if (!decided_.rules.empty()) out["rules"] = decided_.rules.ToString();
    if (!costs_.has_value()) return out;
    json costs = {{"from", source_},
                  {"link", costs_->link},
                  {"ranks", costs_->ranks},
                  {"cores", costs_->cores},
                  {"latency", costs_->costs.latency},
                  {"message", costs_->costs.message},
                  {"operation", costs_->costs.operation},
                  {"turn", costs_->costs.turn},
                  {"bytes", json::array()}};
    for (const collectives::ByteCosts& b : costs_->costs.bytes) {
      costs["bytes"].push_back({{"bytes", b.bytes},
                                {"write", b.write},
                                {"read", b.read},
                                {"fold", b.fold},
                                {"copy", b.copy}});
    }
    out["costs"] = std::move(costs);
    return out;
  }

  static std::string Line(const json& described) {
    std::string out;
    for (const json& choice : described["choices"]) {
      const int64_t segment = choice["segment_bytes"];
      absl::StrAppend(&out, out.empty() ? "" : "; ", choice["bytes"].get<int64_t>(), " bytes by ",
                      choice["algorithm"].get<std::string>(),
                      segment > 0 ? absl::StrCat("/", segment) : "", " (",
                      choice["why"].get<std::string>(), ")");
    }
    const int64_t bucket = described["bucket_bytes"];
    return absl::StrCat(
        "dense gradients between ", described["ranks"].get<int>(), " workers: ", out, "; ",
        bucket > 0 ? absl::StrCat("buckets of ", bucket) : "in one piece", " (",
        described["bucket_why"].get<std::string>(), ")",
        described.contains("costs")
            ? absl::StrCat("; costs ", described["costs"]["from"].get<std::string>())
            : "");
  }

  const job::ResolvedJob& plan_;
  const Dense& dense_;
  const int64_t gradient_bytes_;
  const absl::Span<const int> hosts_;
  collectives::Group& group_;
  const DeviceSum* const device_sum_;
  Decision decided_;
  absl::optional<collectives::Calibration> costs_;
  std::string source_, why_bucket_;
};

}  // namespace

absl::Status CheckDenseChoices(const job::ResolvedJob& plan) {
  const Dense& dense = plan.job.dense();
  TANDEM_RETURN_IF_ERROR(
      InField("algorithm_rules", dense.algorithm_rules(),
              collectives::ChooserRules::Parse(dense.algorithm_rules()).status()));
  if (dense.calibration().empty()) return absl::OkStatus();
  return InField("calibration", dense.calibration(), ReadCalibration(dense.calibration()).status());
}

absl::StatusOr<DenseTuning> TuneGroup(const job::ResolvedJob& plan, int64_t gradient_bytes,
                                      absl::Span<const int> host_of_rank, collectives::Group& group,
                                      collectives::ChooserRules* rules,
                                      const DeviceSum* device_sum) {
  return Tuner(plan, gradient_bytes, host_of_rank, group, device_sum).Run(rules);
}

}  // namespace tandem::worker
