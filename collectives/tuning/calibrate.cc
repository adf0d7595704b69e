// Calibration: measures the costs of chooser.h on a group, with the group's own collectives. So the
// figures include everything that the engine does.
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/tuning/chooser.h"

namespace tandem::collectives {
namespace {

constexpr int kRepetitions = 5;
constexpr double kRepetitionSeconds = 2e-3;
constexpr int64_t kSmallVector = 16 << 10, kMiddleVector = 256 << 10;
constexpr int64_t kSegments[] = {64 << 10, 128 << 10, 256 << 10, 512 << 10};

class Calibrator {
 public:
  Calibrator(Group& group, const CalibrateOptions& options)
      : group_(group),
        ranks_(group.ranks()),
        crowd_(std::max(1.0, static_cast<double>(ranks_) / options.cores)),
        budget_(options.seconds),
        max_bytes_(std::max(kMiddleVector, options.max_bytes / 256 * 256)),
        big_(static_cast<size_t>(max_bytes_ / 4), 1.0f),
        other_(big_.size(), 1.0f) {
    out_.ranks = ranks_;
    out_.cores = options.cores;
  }

  // The order matters. Later measurements subtract what earlier ones have found: bytes need the
  // costs of an operation and of a message, and the best segment. FitBudget comes before anything
  // that sends long vectors. Waiting is last, because it compares a barrier with the prediction
  // from all other costs.
  absl::StatusOr<Calibration> Run() {
    out_.link = std::string(group_.link(group_.rank() == 0 ? 1 : 0)->kind());
    TANDEM_RETURN_IF_ERROR(Operation());
    TANDEM_RETURN_IF_ERROR(FitBudget());
    TANDEM_RETURN_IF_ERROR(Message());
    TANDEM_RETURN_IF_ERROR(Segment());
    TANDEM_RETURN_IF_ERROR(Bytes(kSmallVector));
    TANDEM_RETURN_IF_ERROR(Bytes(kMiddleVector));
    if (max_bytes_ > kMiddleVector) TANDEM_RETURN_IF_ERROR(Bytes(max_bytes_));
    TANDEM_RETURN_IF_ERROR(Waiting());
    // Each rank has its own figures for operations and copies. Rank 0's figures count for all
    // ranks.
    TANDEM_ASSIGN_OR_RETURN(const std::string of_rank_0, TextOfRank0(group_, out_.ToString()));
    return Calibration::Parse(of_rank_0);
  }

 private:
  using Call = std::function<absl::StatusOr<Work>()>;

  // The least of several means, which is the time without disturbance. A mean is the time of the
  // slowest rank, so all ranks get the same number.
  absl::StatusOr<double> Seconds(const Call& call) {
    TANDEM_ASSIGN_OR_RETURN(double once, Mean(call, 1));
    if (spent_ >= budget_) return once;
    TANDEM_ASSIGN_OR_RETURN(once, Mean(call, 1));
    const int times = static_cast<int>(std::clamp(kRepetitionSeconds / once, 1.0, 200.0));
    double least = once;
    for (int i = 0; i < kRepetitions && spent_ < budget_; ++i) {
      TANDEM_ASSIGN_OR_RETURN(const double mean, Mean(call, times));
      least = std::min(least, mean);
    }
    return least;
  }

  absl::StatusOr<double> Mean(const Call& call, int times) {
    TANDEM_RETURN_IF_ERROR(group_.Wait(group_.Barrier()));
    const absl::Time begin = MonotonicNow();
    for (int i = 0; i < times; ++i) TANDEM_RETURN_IF_ERROR(group_.Wait(call()));
    const absl::Time end = MonotonicNow();
    double found[] = {std::max(absl::ToDoubleSeconds(end - begin) / times, 1e-9),
                      absl::ToDoubleSeconds(end - begun_)};
    TANDEM_RETURN_IF_ERROR(
        group_.Wait(group_.AllReduce(found, found, 2, DataType::kF64, ReduceOp::kMax)));
    // The same on all ranks, so all ranks stop at the same call.
    spent_ = found[1];
    return found[0];
  }

  // Shortens the longest vector if the link is slow: otherwise long vectors alone would use more
  // than the whole budget.
  absl::Status FitBudget() {
    constexpr double kLongOnes = 30;  // about this many long vectors are measured
    const auto middle = [&] { return AllReduce(Algorithm::kDirect, kMiddleVector, 64 << 10); };
    TANDEM_ASSIGN_OR_RETURN(double once, Mean(middle, 1));
    TANDEM_ASSIGN_OR_RETURN(once, Mean(middle, 1));
    while (max_bytes_ > kMiddleVector &&
           kLongOnes * once * static_cast<double>(max_bytes_ / kMiddleVector) > budget_) {
      max_bytes_ = std::max(kMiddleVector, max_bytes_ / 2);
    }
    return absl::OkStatus();
  }

  static CallOptions By(Algorithm algorithm, int64_t segment) {
    CallOptions call;
    call.choice = AlgorithmChoice{algorithm, segment};
    return call;
  }
  absl::StatusOr<Work> AllReduce(Algorithm algorithm, int64_t bytes, int64_t segment) {
    return group_.AllReduce(big_.data(), other_.data(), bytes / 4, DataType::kF32, ReduceOp::kSum,
                            By(algorithm, segment));
  }

  // The cost of an operation. A group of one rank only starts and ends operations.
  absl::Status Operation() {
    std::vector<std::unique_ptr<Link>> none(1);
    Group alone(0, std::move(none), {});
    constexpr int kTimes = 1000;
    const absl::Time begin = MonotonicNow();
    for (int i = 0; i < kTimes; ++i) {
      TANDEM_RETURN_IF_ERROR(
          alone.Wait(alone.AllReduce(big_.data(), big_.data(), 1, DataType::kF32, ReduceOp::kSum)));
    }
    out_.costs.operation = absl::ToDoubleSeconds(MonotonicNow() - begin) / kTimes;
    return absl::OkStatus();
  }

  // The cost of a message, on each side: the extra time of many small messages over few.
  absl::Status Message() {
    constexpr int64_t kSmall = 64, kFew = 4, kMany = 256;
    const auto seconds = [&](int64_t segments) {
      return Seconds(
          [&, segments] { return AllReduce(Algorithm::kOneShot, segments * kSmall, kSmall); });
    };
    TANDEM_ASSIGN_OR_RETURN(const double few, seconds(kFew));
    TANDEM_ASSIGN_OR_RETURN(const double many, seconds(kMany));
    const double a_segment = std::max(many - few, 1e-9) / (kMany - kFew);
    out_.costs.message = a_segment / (2.0 * (ranks_ - 1) * crowd_);
    return absl::OkStatus();
  }

  absl::Status Segment() {
    std::vector<double> least(std::size(kSegments), 1e9);
    for (int round = 0; round < kRepetitions && (round == 0 || spent_ < budget_ / 2); ++round) {
      for (size_t i = 0; i < least.size(); ++i) {
        TANDEM_ASSIGN_OR_RETURN(
            const double once,
            Mean([&] { return AllReduce(Algorithm::kDirect, max_bytes_, kSegments[i]); },
                 spent_ < budget_ ? 2 : 1));
        least[i] = std::min(least[i], once);
      }
    }
    out_.segment_bytes = kSegments[std::min_element(least.begin(), least.end()) - least.begin()];
    return absl::OkStatus();
  }

  // The costs of a byte. An allgather writes and reads, a reduce-scatter writes and folds. The
  // model assumes that writing and reading cost the same.
  absl::Status Bytes(int64_t bytes) {
    const int64_t count = bytes / 4 / ranks_;
    float* const block = big_.data() + group_.rank() * count;
    const CallOptions direct = By(Algorithm::kDirect, out_.segment_bytes);
    TANDEM_ASSIGN_OR_RETURN(const double gathered, Seconds([&] {
                              return group_.AllGather(block, big_.data(), count, DataType::kF32,
                                                      direct);
                            }));
    TANDEM_ASSIGN_OR_RETURN(const double scattered, Seconds([&] {
                              return group_.ReduceScatter(big_.data(), other_.data(), count,
                                                          DataType::kF32, ReduceOp::kMax, direct);
                            }));
    const double moved = static_cast<double>(count * 4) * (ranks_ - 1) * crowd_;
    const double fixed = out_.costs.operation + 2 * out_.costs.message * (ranks_ - 1) * crowd_;
    const auto a_byte = [&](double seconds) {
      return std::max(seconds - fixed, 0.2 * seconds) / moved;
    };
    ByteCosts costs;
    costs.bytes = bytes;
    costs.write = costs.read = a_byte(gathered) / 2;
    costs.fold = std::max(a_byte(scattered) - costs.write, costs.read / 2);
    costs.copy = CopySeconds(bytes) / static_cast<double>(bytes);
    out_.costs.bytes.push_back(costs);
    return absl::OkStatus();
  }

  double CopySeconds(int64_t bytes) {
    double least = 1e9;
    for (int i = 0; i < kRepetitions; ++i) {
      const absl::Time begin = MonotonicNow();
      std::memcpy(other_.data(), big_.data(), static_cast<size_t>(bytes));
      least = std::min(least, absl::ToDoubleSeconds(MonotonicNow() - begin));
    }
    return least;
  }

  // The time of a barrier beyond its messages is waiting time: until written bytes become visible
  // (latency), or, if ranks share cores, until it is the rank's turn (turn).
  absl::Status Waiting() {
    TANDEM_ASSIGN_OR_RETURN(const double measured, Seconds([&] { return group_.Barrier(); }));
    double& waiting = crowd_ > 1 ? out_.costs.turn : out_.costs.latency;
    CollectiveShape shape;
    shape.ranks = ranks_;
    TANDEM_ASSIGN_OR_RETURN(const auto barrier,
                            MakeSchedules(Primitive::kBarrier, Algorithm::kDissemination, shape));
    const auto played = [&](double seconds) {
      waiting = seconds;
      return EngineSeconds(barrier, 1, 0, out_.costs, out_.cores, {});
    };
    TANDEM_ASSIGN_OR_RETURN(const double without, played(0));
    TANDEM_ASSIGN_OR_RETURN(const double with, played(1e-6));
    const double each = std::max((with - without) / 1e-6, 0.5);
    waiting = std::max(0.0, (measured - without) / each);
    return absl::OkStatus();
  }

  Group& group_;
  const int ranks_;
  const double crowd_;  // ranks for each core
  const double budget_;
  int64_t max_bytes_;
  const absl::Time begun_ = MonotonicNow();
  double spent_ = 0;  // the most of all ranks
  Calibration out_;
  std::vector<float> big_, other_;
};

}  // namespace

absl::StatusOr<Calibration> Calibrate(Group& group, const CalibrateOptions& options) {
  if (group.ranks() < 2) return absl::InvalidArgumentError("cannot calibrate a group of one rank");
  if (options.cores < 1) return absl::InvalidArgumentError("cores must be at least 1");
  return Calibrator(group, options).Run();
}

}  // namespace tandem::collectives
