#include "tools/bench/chooser_bench.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/schedules/algorithms.h"
#include "tools/bench/collective_case.h"
#include "tools/bench/machine.h"

namespace tandem::bench {
namespace {

absl::StatusOr<absl::optional<collectives::Calibration>> CalibrationFor(
    const CollectiveBenchOptions& options, collectives::Group& group) {
  const bool needed = options.explain || options.regret || options.calibrate;
  if (group.ranks() == 1 || (!needed && options.calibration.empty())) {
    return absl::optional<collectives::Calibration>();
  }
  if (!options.calibrate && !options.calibration.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(options.calibration));
    TANDEM_ASSIGN_OR_RETURN(collectives::Calibration read, collectives::Calibration::Parse(text));
    return absl::make_optional(std::move(read));
  }
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  TANDEM_ASSIGN_OR_RETURN(collectives::Calibration measured,
                          collectives::Calibrate(group, {.cores = cores}));
  // Primitives that cannot be tried out are chosen by predictions.
  collectives::TryOptions trial;
  trial.primitives = {options.primitive};
  const absl::Status tried = collectives::TryOut(group, trial, &measured);
  if (!absl::IsUnimplemented(tried)) TANDEM_RETURN_IF_ERROR(tried);
  if (group.rank() == 0 && !options.calibration.empty()) {
    TANDEM_RETURN_IF_ERROR(WriteOutput(options.calibration, measured.ToString()));
  }
  return absl::make_optional(std::move(measured));
}

struct Contender {
  collectives::AlgorithmChoice choice;
  std::vector<double> seconds;  // one for each repetition
  double Median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

std::string NameOf(const collectives::AlgorithmChoice& choice) {
  const std::string name(collectives::AlgorithmName(choice.algorithm));
  if (choice.segment_bytes == 0) return name;
  return absl::StrCat(name, "/", choice.segment_bytes >> 10, "K");
}

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

absl::Status Turn(collectives::Group& group, BenchCase& c, int operations, Contender* contender) {
  c.set_choice(contender->choice);
  TANDEM_RETURN_IF_ERROR(group.Wait(group.Barrier()));
  const absl::Time begin = MonotonicNow();
  for (int i = 0; i < operations; ++i) TANDEM_RETURN_IF_ERROR(c.Run());
  std::vector<double> slowest = {absl::ToDoubleSeconds(MonotonicNow() - begin) / operations};
  TANDEM_RETURN_IF_ERROR(ReduceNumbers(group, collectives::ReduceOp::kMax, &slowest));
  contender->seconds.push_back(slowest[0]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Contender>> Contest(const CollectiveBenchOptions& options,
                                               collectives::Group& group, int64_t bytes) {
  const collectives::AlgorithmChoice chosen = group.Choose(options.primitive, bytes);
  BenchCase c(options, group, CountOf(options, bytes, group.ranks()), chosen, false);
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
      static_cast<int>(std::clamp(share, 1.0, static_cast<double>(options.most_operations)));
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
  out << absl::StrFormat("%10d %-22s %-22s %6.1f%%%s ", bytes, NameOf(chosen.choice),
                         NameOf(all[0].choice), outcome.regret * 100,
                         outcome.matters ? " *" : "  ");
  for (const Contender& c : all) {
    out << absl::StrFormat(" %s %.2f", std::string(collectives::AlgorithmName(c.choice.algorithm)),
                           c.Median() * 1e6);
  }
  out << "\n" << std::flush;
  return outcome;
}

// The costs of one operation other than time: bytes that a rank sends and receives, and memory that
// its schedule needs in addition to input, output and the links' memory. Each is the largest over
// all ranks.
struct Load {
  int64_t sent = 0, received = 0, memory = 0;
};

void AddOp(const collectives::Schedule& schedule, const collectives::Op& op, Load* load) {
  if (op.kind == collectives::OpKind::kSend) load->sent += op.piece.count;
  if (op.ReceivesOne()) load->received += op.piece.count;
  if (op.kind == collectives::OpKind::kFold) {
    const size_t others = schedule.folds[static_cast<size_t>(op.peer)].size() - 1;
    load->received += op.piece.count * static_cast<int64_t>(others);
  }
}

absl::StatusOr<Load> LoadOf(const CollectiveBenchOptions& options,
                            const collectives::AlgorithmChoice& choice, int64_t bytes, int ranks) {
  const auto element =
      static_cast<int64_t>(collectives::SizeOf(*collectives::ParseDataType(options.type)));
  collectives::CollectiveShape shape;
  shape.ranks = ranks;
  shape.root = options.root;
  shape.count = CountOf(options, bytes, ranks);
  shape.segment = choice.segment_bytes / element;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<collectives::Schedule> schedules,
                          collectives::MakeSchedules(options.primitive, choice.algorithm, shape));
  Load most;
  for (const collectives::Schedule& schedule : schedules) {
    Load load = {0, 0, schedule.scratch};
    for (const collectives::Step& step : schedule.steps) {
      for (const collectives::Op& op : step.ops) AddOp(schedule, op, &load);
    }
    most.sent = std::max(most.sent, load.sent * element);
    most.received = std::max(most.received, load.received * element);
    most.memory = std::max(most.memory, load.memory * element);
  }
  return most;
}

// Formats bytes: "768", "1.5K", "16M".
std::string ShortBytes(int64_t bytes) {
  const char* const units[] = {"", "K", "M", "G"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  return absl::StrFormat("%.4g%s", value, units[unit]);
}

}  // namespace

absl::StatusOr<absl::optional<collectives::Calibration>> PrepareChooser(
    const CollectiveBenchOptions& options, collectives::Group& group,
    collectives::ChooserRules* rules) {
  TANDEM_ASSIGN_OR_RETURN(absl::optional<collectives::Calibration> calibration,
                          CalibrationFor(options, group));
  collectives::ChooserRules made;
  if (calibration.has_value() && group.rank() == 0) {
    TANDEM_ASSIGN_OR_RETURN(made, collectives::MakeRules(group.ranks(), {}, *calibration));
  }
  TANDEM_ASSIGN_OR_RETURN(const collectives::ChooserRules given,
                          collectives::ChooserRules::Parse(options.rules));
  made.Override(given);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, collectives::TextOfRank0(group, made.ToString()));
  TANDEM_ASSIGN_OR_RETURN(*rules, collectives::ChooserRules::Parse(text));
  return calibration;
}

absl::Status ExplainChoices(const CollectiveBenchOptions& options, collectives::Group& group,
                            const collectives::Calibration& calibration,
                            const collectives::ChooserRules& rules, std::ostream& out) {
  if (group.rank() != 0) return absl::OkStatus();
  out << "machine: " << MachineLine() << "\ncosts (seconds; a message, a byte):\n"
      << calibration.ToString() << "rules: " << rules.ToString() << "\n\n"
      << BenchName(options.primitive) << ", " << group.ranks()
      << " ranks: predicted microseconds, fastest first; those that were tried out (*) before the "
         "others\n"
      << absl::StrFormat("%10s %-22s\n", "size", "chosen");
  std::ostringstream loads;
  for (const int64_t bytes : BenchSizes(options)) {
    loads << absl::StrFormat("%10d", bytes);
    TANDEM_ASSIGN_OR_RETURN(
        const std::vector<collectives::Prediction> all,
        collectives::Rank(options.primitive, bytes, group.ranks(), {}, calibration));
    out << absl::StrFormat("%10d %-22s", bytes, NameOf(group.Choose(options.primitive, bytes)));
    for (const collectives::Prediction& p : all) {
      out << absl::StrFormat(" %s %.2f%s", NameOf(p.choice), p.seconds * 1e6, p.tried ? "*" : "");
      loads << absl::StrFormat(" %s ", NameOf(p.choice));
      TANDEM_ASSIGN_OR_RETURN(const Load load, LoadOf(options, p.choice, bytes, group.ranks()));
      loads << ShortBytes(load.sent) << "/" << ShortBytes(load.received) << "/"
            << ShortBytes(load.memory);
    }
    out << "\n";
    loads << "\n";
  }
  out << "\nsent/received/memory: bytes of the rank with most; memory beside input, output and "
         "links\n"
      << absl::StrFormat("%10s\n", "size") << loads.str();
  return absl::OkStatus();
}

absl::Status MeasureRegret(const CollectiveBenchOptions& options, collectives::Group& group,
                           std::ostream& out) {
  std::ostringstream nowhere;
  std::ostream& to = group.rank() == 0 ? out : nowhere;
  to << "machine: " << MachineLine() << "\n"
     << BenchName(options.primitive) << ", " << group.ranks() << " ranks over " << options.link
     << ", " << options.repetitions << " repetitions in turns; median microseconds, fastest first\n"
     << absl::StrFormat("%10s %-22s %-22s %7s   * = the best two differ by more than 10 %%\n",
                        "size", "chosen", "best", "regret");
  std::vector<double> regrets;
  double worst = 0;
  for (const int64_t bytes : BenchSizes(options)) {
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

}  // namespace tandem::bench
