// TryOut: runs the algorithms that the cost model cannot tell apart, and keeps their times.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/tuning/chooser.h"

namespace tandem::collectives {
namespace {

// An algorithm is a candidate if its predicted time is at most this many times that of the fastest.
// The factor is larger for ranks that share cores, because predictions are less exact there.
constexpr double kPerhaps = 1.3, kPerhapsOnSharedCores = 1.75;
constexpr size_t kMaxCandidates = 4;
constexpr int kMaxRounds = 9;
constexpr double kTurnSeconds = 3e-4;

// One call of TryOut. Rank 0 makes the list of candidates, because predictions may differ in their
// last bits between processors and all ranks must run the same list. Then every round runs each
// candidate once. The median of a candidate's times is its result.
class Contest {
 public:
  Contest(Group& group, const TryOptions& options, Calibration* calibration)
      : group_(group), options_(options), calibration_(*calibration) {}

  absl::Status Run() {
    Calibration list;  // candidates, in the form in which results travel
    if (group_.rank() == 0) {
      list = calibration_;
      list.trials.clear();
      TANDEM_RETURN_IF_ERROR(AddCandidates(&list.trials));
    }
    // Predictions may differ in their last bits between processors, so rank 0 decides.
    TANDEM_ASSIGN_OR_RETURN(const std::string text, TextOfRank0(group_, list.ToString()));
    TANDEM_ASSIGN_OR_RETURN(list, Calibration::Parse(text));
    candidates_ = std::move(list.trials);
    seconds_.resize(candidates_.size());
    for (const Trial& c : candidates_) max_bytes_ = std::max(max_bytes_, c.bytes);
    in_.assign(static_cast<size_t>(max_bytes_ / 4), 1.0f);
    out_ = in_;
    for (int round = 0; round < kMaxRounds && (round == 0 || spent_ < options_.seconds); ++round) {
      TANDEM_RETURN_IF_ERROR(Round(round));
    }
    for (size_t i = 0; i < candidates_.size(); ++i) {
      std::vector<double>& all = seconds_[i];
      std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2),
                       all.end());
      candidates_[i].seconds = all[all.size() / 2];
    }
    calibration_.trials = std::move(candidates_);
    return absl::OkStatus();
  }

 private:
  absl::Status AddCandidates(std::vector<Trial>* trials) const {
    const double perhaps = SharesCores(group_.ranks(), options_.host_of_rank, calibration_.cores)
                               ? kPerhapsOnSharedCores
                               : kPerhaps;
    for (const Primitive primitive : options_.primitives) {
      for (int64_t bytes = kMinSize; bytes < 2 * options_.max_bytes; bytes *= 2) {
        TANDEM_ASSIGN_OR_RETURN(
            const std::vector<Prediction> all,
            Predict(primitive, bytes, group_.ranks(), options_.host_of_rank, calibration_));
        size_t likely = 0;
        while (likely < std::min(all.size(), kMaxCandidates) &&
               all[likely].seconds <= perhaps * all.front().seconds) {
          ++likely;
        }
        // The model has a clear winner.
        if (likely < 2) continue;
        for (size_t i = 0; i < likely; ++i) {
          trials->push_back({primitive, bytes, all[i].choice, 0});
        }
      }
    }
    return absl::OkStatus();
  }

  // Runs every candidate once. Rounds are interleaved, so that a drift of the machine affects all
  // candidates alike. The first round only warms up.
  absl::Status Round(int round) {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      int times = 1;
      if (round > 0) {
        const double once = seconds_[i].back();
        if (round == 1) seconds_[i].clear();
        times = static_cast<int>(std::clamp(kTurnSeconds / once, 1.0, 50.0));
      }
      TANDEM_RETURN_IF_ERROR(Turn(candidates_[i], times, &seconds_[i]));
      if (round == 0 && spent_ >= options_.seconds) LeaveOutAfter(i);
    }
    return absl::OkStatus();
  }

  // Drops the sizes for which not every candidate has run yet. On a slow link, or if many ranks
  // share a core, there is no time for long vectors; the model decides there.
  void LeaveOutAfter(size_t i) {
    if (i + 1 == candidates_.size()) return;
    size_t keep = i + 1;
    const Trial& next = candidates_[keep];
    while (keep > 0 && candidates_[keep - 1].primitive == next.primitive &&
           candidates_[keep - 1].bytes == next.bytes) {
      --keep;
    }
    candidates_.resize(keep);
    seconds_.resize(keep);
  }

  absl::Status Turn(const Trial& candidate, int times, std::vector<double>* seconds) {
    TANDEM_RETURN_IF_ERROR(group_.Wait(group_.Barrier()));
    const absl::Time begin = MonotonicNow();
    for (int i = 0; i < times; ++i) TANDEM_RETURN_IF_ERROR(group_.Wait(Begin(candidate)));
    const absl::Time end = MonotonicNow();
    double found[] = {std::max(absl::ToDoubleSeconds(end - begin) / times, 1e-9),
                      absl::ToDoubleSeconds(end - begun_)};
    TANDEM_RETURN_IF_ERROR(
        group_.Wait(group_.AllReduce(found, found, 2, DataType::kF64, ReduceOp::kMax)));
    seconds->push_back(found[0]);
    // The same on all ranks, so all ranks stop after the same round.
    spent_ = found[1];
    return absl::OkStatus();
  }

  absl::StatusOr<Work> Begin(const Trial& candidate) {
    CallOptions call;
    call.choice = candidate.choice;
    const int64_t count = candidate.bytes / 4, block = count / group_.ranks();
    switch (candidate.primitive) {
      case Primitive::kAllReduce:
        return group_.AllReduce(in_.data(), out_.data(), count, DataType::kF32, ReduceOp::kSum,
                                call);
      case Primitive::kReduceScatter:
        return group_.ReduceScatter(in_.data(), out_.data(), block, DataType::kF32, ReduceOp::kSum,
                                    call);
      case Primitive::kAllGather:
        return group_.AllGather(in_.data(), out_.data(), block, DataType::kF32, call);
      default:
        return absl::InternalError("not tried out");  // TryOut refuses other primitives
    }
  }

  Group& group_;
  const TryOptions& options_;
  Calibration& calibration_;
  const absl::Time begun_ = MonotonicNow();
  double spent_ = 0;  // the most of all ranks
  std::vector<Trial> candidates_;
  std::vector<std::vector<double>> seconds_;  // by candidate
  int64_t max_bytes_ = 0;
  std::vector<float> in_, out_;
};

}  // namespace

absl::Status TryOut(Group& group, const TryOptions& options, Calibration* calibration) {
  for (const Primitive primitive : options.primitives) {
    if (primitive != Primitive::kAllReduce && primitive != Primitive::kReduceScatter &&
        primitive != Primitive::kAllGather) {
      return absl::UnimplementedError(
          absl::StrCat(PrimitiveName(primitive),
                       " cannot be tried out; only allreduce, reduce_scatter and allgather can"));
    }
  }
  return Contest(group, options, calibration).Run();
}

}  // namespace tandem::collectives
