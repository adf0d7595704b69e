#include "tests/bench/algorithm_bench.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/tuning/chooser.h"
#include "tests/unit/collectives/proof/draw.h"
#include "tools/bench/chooser_bench.h"
#include "tools/bench/collective_case.h"
#include "tools/bench/machine.h"

namespace tandem {
namespace {

struct Contender {
  collectives::AlgorithmChoice choice;
  std::vector<double> seconds;  // one for each repetition
  double Median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

// The chosen algorithm comes first. The others get the same segment size, or as close to it as they
// can.
std::vector<Contender> ContendersFor(collectives::Primitive primitive,
                                     const collectives::AlgorithmChoice& chosen, int ranks) {
  std::vector<Contender> all = {{chosen, {}}};
  collectives::CollectiveShape shape;
  shape.ranks = ranks;
  for (const collectives::Algorithm algorithm : collectives::AlgorithmsFor(primitive)) {
    if (algorithm == chosen.algorithm || algorithm == collectives::Algorithm::kHierarchical)
      continue;
    if (!collectives::MakeSchedule(primitive, algorithm, shape).ok()) continue;
    all.push_back({{algorithm, chosen.segment_bytes}, {}});
  }
  return all;
}

absl::Status Turn(collectives::Group& group, bench::BenchCase& c, int operations,
                  Contender* contender) {
  c.set_choice(contender->choice);
  TANDEM_RETURN_IF_ERROR(group.Wait(group.Barrier()));
  const absl::Time begin = MonotonicNow();
  for (int i = 0; i < operations; ++i) TANDEM_RETURN_IF_ERROR(c.Run());
  std::vector<double> slowest = {absl::ToDoubleSeconds(MonotonicNow() - begin) / operations};
  TANDEM_RETURN_IF_ERROR(bench::ReduceNumbers(group, collectives::ReduceOp::kMax, &slowest));
  contender->seconds.push_back(slowest[0]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Contender>> Contest(const bench::CollectiveBenchOptions& options,
                                               collectives::Group& group, int64_t bytes) {
  const collectives::AlgorithmChoice chosen = group.Choose(options.primitive, bytes);
  bench::BenchCase c(options, group, bench::CountOf(options, bytes, group.ranks()), chosen, false);
  std::vector<Contender> all = ContendersFor(options.primitive, chosen, group.ranks());
  c.Fill();
  double slowest = 0;
  for (Contender& contender : all) {
    for (int i = 0; i < options.warmup + 1; ++i) {
      TANDEM_RETURN_IF_ERROR(Turn(group, c, 1, &contender));
    }
    slowest = std::max(slowest, contender.seconds.back());
    contender.seconds.clear();
  }
  const double share =
      options.seconds / (options.repetitions * static_cast<double>(all.size()) * slowest);
  const int operations =
      static_cast<int>(std::clamp(share, 1.0, static_cast<double>(options.max_operations)));
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (Contender& contender : all) TANDEM_RETURN_IF_ERROR(Turn(group, c, operations, &contender));
  }
  return all;
}

struct Outcome {
  double regret = 0;
  bool matters = false;  // the best two differ by more than 10 %
};

// How much longer `chosen` takes than `best`; 0 if noise can explain the difference. In each
// repetition the two ran one after the other. If the median of their ratios were 1, it would be
// above the order statistic taken here in fewer than one of forty cases (the sign test).
double RegretOf(const Contender& chosen, const Contender& best) {
  std::vector<double> ratios;
  for (size_t i = 0; i < chosen.seconds.size(); ++i) {
    ratios.push_back(chosen.seconds[i] / best.seconds[i]);
  }
  std::sort(ratios.begin(), ratios.end());
  const double n = static_cast<double>(ratios.size());
  const auto low = static_cast<size_t>(std::max(0.0, std::floor((n - 1.96 * std::sqrt(n)) / 2)));
  if (ratios[low] <= 1) return 0;
  return std::max(0.0, chosen.Median() / best.Median() - 1);
}

Outcome Judge(int64_t bytes, std::vector<Contender> all, std::ostream& out) {
  const Contender chosen = all[0];
  std::stable_sort(all.begin(), all.end(),
                   [](const Contender& a, const Contender& b) { return a.Median() < b.Median(); });
  const double best = all[0].Median();
  Outcome outcome;
  outcome.regret = RegretOf(chosen, all[0]);
  outcome.matters = all.size() > 1 && all[1].Median() > 1.1 * best;
  out << absl::StrFormat("%10d %-22s %-22s %6.1f%%%s ", bytes, bench::ChoiceName(chosen.choice),
                         bench::ChoiceName(all[0].choice), outcome.regret * 100,
                         outcome.matters ? " *" : "  ");
  for (const Contender& c : all) {
    out << absl::StrFormat(" %s %.2f", std::string(collectives::AlgorithmName(c.choice.algorithm)),
                           c.Median() * 1e6);
  }
  out << "\n" << std::flush;
  return outcome;
}

absl::Status RegretInGroup(const bench::CollectiveBenchOptions& options, collectives::Group& group,
                           std::ostream& out) {
  std::ostringstream nowhere;
  std::ostream& to = group.rank() == 0 ? out : nowhere;
  to << "machine: " << bench::MachineLine() << "\n"
     << bench::BenchName(options.primitive) << ", " << group.ranks() << " ranks over "
     << options.link << ", " << options.repetitions
     << " repetitions in turns; median microseconds, fastest first\n"
     << absl::StrFormat("%10s %-22s %-22s %7s   * = the best two differ by more than 10 %%\n",
                        "size", "chosen", "best", "regret");
  std::vector<double> regrets;
  double worst = 0;
  for (const int64_t bytes : bench::BenchSizes(options)) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<Contender> all, Contest(options, group, bytes));
    const Outcome outcome = Judge(bytes, std::move(all), to);
    regrets.push_back(outcome.regret);
    if (outcome.matters) worst = std::max(worst, outcome.regret);
  }
  std::sort(regrets.begin(), regrets.end());
  to << absl::StrFormat(
      "regret: median %.1f%% (want 10%%), worst where it matters %.1f%% (want 25%%)\n",
      regrets[regrets.size() / 2] * 100, worst * 100);
  return absl::OkStatus();
}

}  // namespace

absl::Status DrawAlgorithms(const bench::CollectiveBenchOptions& options, std::ostream& out) {
  TANDEM_RETURN_IF_ERROR(bench::CheckCollectiveBench(options));
  const int64_t bytes = bench::BenchSizes(options).front();
  collectives::CollectiveShape shape;
  shape.ranks = options.ranks;
  shape.root = options.root;
  shape.count = bench::CountOf(options, bytes, options.ranks);
  if (options.segment_bytes > 0) {
    shape.segment =
        options.segment_bytes /
        static_cast<int64_t>(collectives::SizeOf(*collectives::ParseDataType(options.type)));
  }
  for (const std::string& name : bench::AlgorithmNames(options)) {
    collectives::Algorithm algorithm =
        collectives::DefaultChooser(options.ranks, bench::OverKernel(options))(options.primitive,
                                                                               bytes)
            .algorithm;
    if (name != "auto") {
      TANDEM_ASSIGN_OR_RETURN(algorithm, collectives::ParseAlgorithm(name));
    }
    TANDEM_ASSIGN_OR_RETURN(const auto schedules,
                            collectives::MakeSchedules(options.primitive, algorithm, shape));
    TANDEM_ASSIGN_OR_RETURN(const std::string drawing, DrawSchedules(schedules));
    out << bench::BenchName(options.primitive) << " by " << collectives::AlgorithmName(algorithm)
        << ", " << shape.count << " elements:\n"
        << drawing << "\n";
  }
  return absl::OkStatus();
}

absl::Status MeasureRegret(const bench::CollectiveBenchOptions& given, std::ostream& out) {
  bench::CollectiveBenchOptions options = given;
  options.calibrate |= options.calibration.empty();
  TANDEM_RETURN_IF_ERROR(bench::CheckCollectiveBench(options));
  return bench::RunRanks(
      {options.link, options.ranks},
      bench::WithChooser(
          options, [&](collectives::Group& group, const auto& /*costs*/, const auto& /*rules*/) {
            return RegretInGroup(options, group, out);
          }));
}

}  // namespace tandem
