#include "tools/bench/chooser_bench.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/schedules/algorithms.h"
#include "tools/bench/collective_case.h"
#include "tools/bench/machine.h"

namespace tandem::bench {
namespace {

absl::StatusOr<absl::optional<collectives::Calibration>> CalibrationFor(
    const CollectiveBenchOptions& options, collectives::Group& group) {
  const bool needed = options.explain || options.calibrate;
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

// Fills `rules`, from which the group's chooser takes its choices, as the options say. Returns the
// costs from which they were made, if any. All ranks call it.
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

RankBody WithChooser(const CollectiveBenchOptions& options, ChooserBody body) {
  return [&options, body = std::move(body)](
             int rank, std::vector<std::unique_ptr<collectives::Link>> links,
             const collectives::GroupOptions& given) -> absl::Status {
    const auto rules = std::make_shared<collectives::ChooserRules>();
    collectives::GroupOptions of_group = given;
    of_group.deadline = options.deadline;
    of_group.chooser =
        collectives::ChooserFrom(rules, static_cast<int>(links.size()), OverKernel(options));
    collectives::Group group(rank, std::move(links), of_group);
    TANDEM_ASSIGN_OR_RETURN(const absl::optional<collectives::Calibration> costs,
                            PrepareChooser(options, group, rules.get()));
    return body(group, costs, *rules);
  };
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
    out << absl::StrFormat("%10d %-22s", bytes, ChoiceName(group.Choose(options.primitive, bytes)));
    for (const collectives::Prediction& p : all) {
      out << absl::StrFormat(" %s %.2f%s", ChoiceName(p.choice), p.seconds * 1e6,
                             p.tried ? "*" : "");
      loads << absl::StrFormat(" %s ", ChoiceName(p.choice));
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

}  // namespace tandem::bench
