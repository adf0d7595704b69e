#include "tools/bench/collective_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/rendezvous/link_ports.h"
#include "tools/bench/chooser_bench.h"
#include "tools/bench/collective_case.h"
#include "tools/bench/machine.h"

namespace tandem::bench {
namespace {

bool HasInPlace(collectives::Primitive primitive) {
  return primitive != collectives::Primitive::kPointToPoint &&
         primitive != collectives::Primitive::kBarrier;
}

// The number of operations in a repetition, estimated from the last of a few operations.
absl::StatusOr<int> OperationsFor(const CollectiveBenchOptions& options, collectives::Group& group,
                                  BenchCase& c) {
  double last = 0;
  for (int i = 0; i < options.warmup; ++i) {
    const absl::Time begin = MonotonicNow();
    TANDEM_RETURN_IF_ERROR(c.Run());
    last = absl::ToDoubleSeconds(MonotonicNow() - begin);
  }
  std::vector<double> slowest = {last};
  TANDEM_RETURN_IF_ERROR(ReduceNumbers(group, collectives::ReduceOp::kMax, &slowest));
  const double share = options.seconds / options.repetitions;
  const double fit = share / std::max(slowest[0], 1e-9);
  return static_cast<int>(std::clamp(fit, 1.0, static_cast<double>(options.max_operations)));
}

double Quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
}

void Summarise(std::vector<double> single, std::vector<double> means, CollectiveBenchLine* line) {
  std::sort(single.begin(), single.end());
  std::sort(means.begin(), means.end());
  line->operations = static_cast<int64_t>(single.size());
  line->mean = Quantile(means, 0.5);
  line->least = single.front();
  line->p50 = Quantile(single, 0.5);
  line->p99 = Quantile(single, 0.99);
  line->most = single.back();
}

absl::StatusOr<collectives::AlgorithmChoice> ChoiceFor(const CollectiveBenchOptions& options,
                                                       const collectives::Group& group,
                                                       absl::string_view name, int64_t bytes) {
  if (options.primitive == collectives::Primitive::kPointToPoint)
    return collectives::AlgorithmChoice();
  collectives::AlgorithmChoice choice = group.Choose(options.primitive, bytes);
  if (name != "auto") {
    TANDEM_ASSIGN_OR_RETURN(choice.algorithm, collectives::ParseAlgorithm(name));
  }
  if (options.segment_bytes >= 0) choice.segment_bytes = options.segment_bytes;
  return choice;
}

std::string AlgorithmOf(const CollectiveBenchOptions& options, const CollectiveBenchLine& line) {
  if (options.primitive == collectives::Primitive::kPointToPoint) return "-";
  return std::string(collectives::AlgorithmName(line.choice.algorithm));
}

std::string Row(const CollectiveBenchOptions& options, int ranks, const CollectiveBenchLine& line) {
  return absl::StrFormat(
      "%10d %10d %-19s %8d %-5s %11.2f %11.2f %11.2f %8.3f %8.3f %6d\n", line.bytes, line.count,
      AlgorithmOf(options, line), line.choice.segment_bytes, line.in_place ? "in" : "out",
      line.mean * 1e6, line.p50 * 1e6, line.p99 * 1e6, line.algbw() / 1e9,
      line.algbw() / 1e9 * collectives::BusFactor(options.primitive, ranks), line.wrong);
}

std::string JsonOf(const CollectiveBenchOptions& options, int ranks,
                   const CollectiveBenchLine& line) {
  return absl::StrFormat(
      R"({"collective": "%s", "link": "%s", "ranks": %d, "type": "%s", "op": "%s", "bytes": %d, )"
      R"("count": %d, "algorithm": "%s", "segment_bytes": %d, "in_place": %s, "operations": %d, )"
      R"("mean_us": %.4f, "min_us": %.4f, "p50_us": %.4f, "p99_us": %.4f, "max_us": %.4f, )"
      R"("algbw_GBps": %.4f, "busbw_GBps": %.4f, "wrong": %d})"
      "\n",
      std::string(BenchName(options.primitive)), options.link, ranks, options.type, options.op,
      line.bytes, line.count, AlgorithmOf(options, line), line.choice.segment_bytes,
      line.in_place ? "true" : "false", line.operations, line.mean * 1e6, line.least * 1e6,
      line.p50 * 1e6, line.p99 * 1e6, line.most * 1e6, line.algbw() / 1e9,
      line.algbw() / 1e9 * collectives::BusFactor(options.primitive, ranks), line.wrong);
}

void PrintHead(const CollectiveBenchOptions& o, const collectives::Group& group,
               std::ostream& out) {
  out << "machine: " << MachineLine() << "\n"
      << BenchName(o.primitive) << ": " << group.ranks() << " ranks over " << o.link << ", "
      << o.type << " " << o.op << ", " << o.repetitions << " repetitions, about " << o.seconds
      << " s a line\n"
      << absl::StrFormat("%10s %10s %-19s %8s %-5s %11s %11s %11s %8s %8s %6s\n", "size", "count",
                         "algorithm", "segment", "place", "mean_us", "p50_us", "p99_us", "algbw",
                         "busbw", "wrong");
}

// Writes lines to the table and to the file, on rank 0.
class Report {
 public:
  Report(const CollectiveBenchOptions& options, const collectives::Group& group, std::ostream& out)
      : options_(options), ranks_(group.ranks()), out_(out), silent_(group.rank() != 0) {
    if (silent_) return;
    PrintHead(options, group, out);
    if (!options.json.empty()) json_.open(options.json);
  }

  void Add(const CollectiveBenchLine& line) {
    wrong_ += line.wrong;
    if (silent_) return;
    out_ << Row(options_, ranks_, line) << std::flush;
    if (json_.is_open()) json_ << JsonOf(options_, ranks_, line);
  }

  absl::Status Finish() {
    if (!silent_ && !options_.json.empty() && !json_.flush()) {
      return absl::PermissionDeniedError(absl::StrCat(options_.json, ": cannot be written"));
    }
    if (wrong_ == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(wrong_, " wrong elements"));
  }

 private:
  const CollectiveBenchOptions& options_;
  const int ranks_;
  std::ostream& out_;
  const bool silent_;
  std::ofstream json_;
  int64_t wrong_ = 0;
};

}  // namespace

absl::StatusOr<CollectiveBenchLine> MeasureCollective(const CollectiveBenchOptions& options,
                                                      collectives::Group& group, int64_t bytes,
                                                      const collectives::AlgorithmChoice& choice,
                                                      bool in_place) {
  CollectiveBenchLine line;
  line.choice = choice;
  line.in_place = in_place;
  line.count = CountOf(options, bytes, group.ranks());
  line.bytes = SizeOfCount(options, line.count, group.ranks());
  BenchCase c(options, group, line.count, choice, in_place);
  TANDEM_RETURN_IF_ERROR(c.CheckedRun(&line.wrong));
  TANDEM_ASSIGN_OR_RETURN(const int operations, OperationsFor(options, group, c));
  std::vector<double> single, means;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    TANDEM_RETURN_IF_ERROR(group.Wait(group.Barrier()));
    const absl::Time begin = MonotonicNow();
    absl::Time before = begin;
    for (int i = 0; i < operations; ++i) {
      TANDEM_RETURN_IF_ERROR(c.Run());
      const absl::Time after = MonotonicNow();
      single.push_back(absl::ToDoubleSeconds(after - before));
      before = after;
    }
    means.push_back(absl::ToDoubleSeconds(before - begin) / operations);
  }
  TANDEM_RETURN_IF_ERROR(ReduceNumbers(group, collectives::ReduceOp::kMax, &single));
  TANDEM_RETURN_IF_ERROR(ReduceNumbers(group, collectives::ReduceOp::kMax, &means));
  TANDEM_RETURN_IF_ERROR(c.CheckedRun(&line.wrong));
  Summarise(std::move(single), std::move(means), &line);
  return line;
}

namespace {

// Far above the memory of any host, and far below values for which numbers of bytes overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 44;

absl::Status CheckSizes(const CollectiveBenchOptions& o) {
  if (o.min_bytes < 1 || o.max_bytes < o.min_bytes || o.max_bytes > kMaxBytes || o.factor < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min ", o.min_bytes, ", --max ", o.max_bytes, ", --factor ", o.factor,
                     ": expected sizes of 1 to 2^44 bytes, the largest not below the smallest, and "
                     "a factor of 2 or "
                     "more"));
  }
  for (const int64_t bytes : o.sizes) {
    if (bytes >= 1 && bytes <= kMaxBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--sizes ", bytes, ", expected 1 to 2^44 bytes"));
  }
  return absl::OkStatus();
}

// Checks the memory of all ranks, which are all on this host: buffers to send, to receive and to
// check (collective_case.h).
absl::Status CheckMemory(const CollectiveBenchOptions& o) {
  const std::vector<int64_t> sizes = BenchSizes(o);
  const double largest = static_cast<double>(*std::max_element(sizes.begin(), sizes.end()));
  const double need = 2.0 * o.ranks * largest * (InBlocks(o.primitive) ? 1 : o.ranks);
  const double have =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (need <= have) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%.0f bytes: %d ranks hold %.3g bytes for that, and this host has %.3g; "
                      "hint: a smaller --max",
                      largest, o.ranks, need, have));
}

}  // namespace

absl::Status CheckCollectiveBench(const CollectiveBenchOptions& o) {
  TANDEM_RETURN_IF_ERROR(collectives::LinkChoiceOf(o.link).status());
  if (!collectives::ParseDataType(o.type).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("type '", o.type,
                                                   "': expected f32, f64, f16, bf16, "
                                                   "i32, i64 or u8"));
  }
  if (!collectives::ParseReduceOp(o.op).has_value() ||
      !collectives::Defined(*collectives::ParseReduceOp(o.op),
                            *collectives::ParseDataType(o.type))) {
    return absl::InvalidArgumentError(absl::StrCat("op '", o.op, "' does not exist for ", o.type));
  }
  const int least = o.primitive == collectives::Primitive::kPointToPoint ? 2 : 1;
  if (o.ranks < least || o.root < 0 || o.root >= o.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat(BenchName(o.primitive), " of --ranks ", o.ranks, " with --root ", o.root,
                     ": expected ", least, " ranks or more, and a root below their number"));
  }
  if (o.explain && o.ranks == 1) {
    return absl::InvalidArgumentError(
        "--explain: one rank has no links and chooses nothing; expected --ranks 2 or more");
  }
  TANDEM_RETURN_IF_ERROR(CheckSizes(o));
  if (o.warmup < 1 || o.repetitions < 1 || o.max_operations < 1 || !(o.seconds >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--warmup ", o.warmup, ", --repetitions ", o.repetitions, ", --seconds ",
                     o.seconds, ": expected 1 or more of each, and no negative time"));
  }
  for (const std::string& name : AlgorithmNames(o)) {
    if (name == "auto") continue;
    TANDEM_ASSIGN_OR_RETURN(const collectives::Algorithm algorithm,
                            collectives::ParseAlgorithm(name));
    if (!collectives::Supports(o.primitive, algorithm)) {
      return absl::InvalidArgumentError(
          absl::StrCat("algorithm ", name, " does not implement ", BenchName(o.primitive)));
    }
  }
  return absl::OkStatus();
}

namespace {

absl::Status RunLines(const CollectiveBenchOptions& options, collectives::Group& group,
                      std::ostream& out) {
  Report report(options, group, out);
  for (const int64_t bytes : BenchSizes(options)) {
    for (const std::string& name : AlgorithmNames(options)) {
      TANDEM_ASSIGN_OR_RETURN(const collectives::AlgorithmChoice choice,
                              ChoiceFor(options, group, name, bytes));
      for (const bool in_place : {false, true}) {
        if (in_place && (!options.in_place || !HasInPlace(options.primitive))) continue;
        TANDEM_ASSIGN_OR_RETURN(const CollectiveBenchLine line,
                                MeasureCollective(options, group, bytes, choice, in_place));
        report.Add(line);
      }
    }
  }
  return report.Finish();
}

}  // namespace

RankBody CollectiveBenchBody(const CollectiveBenchOptions& options, std::ostream& out) {
  return WithChooser(
      options, [&](collectives::Group& group, const absl::optional<collectives::Calibration>& costs,
                   const collectives::ChooserRules& rules) {
        if (options.explain) return ExplainChoices(options, group, *costs, rules, out);
        return RunLines(options, group, out);
      });
}

absl::Status RunCollectiveBench(const CollectiveBenchOptions& options, std::ostream& out) {
  TANDEM_RETURN_IF_ERROR(CheckCollectiveBench(options));
  if (!options.explain) TANDEM_RETURN_IF_ERROR(CheckMemory(options));
  return RunRanks({options.link, options.ranks}, CollectiveBenchBody(options, out));
}

}  // namespace tandem::bench
