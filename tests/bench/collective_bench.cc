#include "tests/bench/collective_bench.h"

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
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "tests/bench/exact_pattern.h"
#include "tests/bench/machine.h"
#include "tests/bench/rank_processes.h"

namespace tandem {
namespace {

constexpr double kFactor = 0.5;  // of premulsum: exact

absl::string_view BenchName(Primitive primitive) {
  return primitive == Primitive::kPointToPoint ? "sendrecv" : PrimitiveName(primitive);
}

// Size is that of all blocks together.
bool InBlocks(Primitive primitive) {
  switch (primitive) {
    case Primitive::kReduceScatter:
    case Primitive::kAllGather:
    case Primitive::kGather:
    case Primitive::kScatter:
    case Primitive::kAllToAll:
      return true;
    default:
      return false;
  }
}

// Bytes on the busiest link, per byte of size.
double BusFactor(Primitive primitive, int ranks) {
  const double part = static_cast<double>(ranks - 1) / ranks;
  if (primitive == Primitive::kAllReduce) return 2 * part;
  return InBlocks(primitive) ? part : 1;
}

bool HasInPlace(Primitive primitive) {
  return primitive != Primitive::kPointToPoint && primitive != Primitive::kBarrier;
}

// Memory on its own pages.
class Memory {
 public:
  explicit Memory(int64_t bytes)
      : data_(static_cast<uint8_t*>(std::aligned_alloc(kPage, RoundUp(bytes)))) {}
  uint8_t* data() const { return data_.get(); }

 private:
  static constexpr size_t kPage = 4096;
  static size_t RoundUp(int64_t bytes) { return (static_cast<size_t>(bytes) / kPage + 1) * kPage; }
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> data_;
};

// One collective with its buffers on one rank: fills them, runs it, checks what came out.
class BenchCase {
 public:
  BenchCase(const CollectiveBenchOptions& options, Group& group, int64_t count,
            const AlgorithmChoice& choice, bool in_place)
      : options_(options),
        group_(group),
        rank_(group.rank()),
        ranks_(group.ranks()),
        type_(*ParseDataType(options.type)),
        op_(*ParseReduceOp(options.op)),
        count_(count),
        in_place_(in_place),
        memory_(Bytes(count * ranks_)),
        second_(in_place ? 0 : Bytes(count * ranks_)),
        own_(ExactPattern::OfRank(op_, type_, rank_)) {
    call_.factor = kFactor;
    if (options.primitive != Primitive::kPointToPoint) call_.choice = choice;
    PlaceBuffers();
  }

  void Fill() {
    const Primitive p = options_.primitive;
    const bool whole =
        p == Primitive::kReduceScatter || p == Primitive::kScatter || p == Primitive::kAllToAll;
    own_.Fill(0, whole ? count_ * ranks_ : count_, in_);
  }

  absl::Status Run() { return group_.Wait(Start()); }

  int64_t CountWrong() const {
    const int root = options_.root, before = (rank_ + ranks_ - 1) % ranks_;
    switch (options_.primitive) {
      case Primitive::kAllReduce:
        return WrongReduced(0);
      case Primitive::kReduce:
        return rank_ == root ? WrongReduced(0) : 0;
      case Primitive::kReduceScatter:
        return WrongReduced(rank_ * count_);
      case Primitive::kBroadcast:
        return WrongBlock(root, 0, 0);
      case Primitive::kScatter:
        return WrongBlock(root, rank_ * count_, 0);
      case Primitive::kAllGather:
        return WrongBlocks(0);
      case Primitive::kGather:
        return rank_ == root ? WrongBlocks(0) : 0;
      case Primitive::kAllToAll:
        return WrongBlocks(rank_ * count_);
      case Primitive::kPointToPoint:
        return WrongBlock(before, 0, 0);
      case Primitive::kBarrier:
        return 0;
    }
    return 0;
  }

 private:
  int64_t Bytes(int64_t elements) const { return elements * static_cast<int64_t>(SizeOf(type_)); }

  void PlaceBuffers() {
    in_ = memory_.data();
    out_ = in_place_ ? in_ : second_.data();
    if (!in_place_) return;
    const Primitive p = options_.primitive;
    const int64_t own = Bytes(rank_ * count_);
    if (p == Primitive::kAllGather || p == Primitive::kGather) in_ += own;
    if (p == Primitive::kReduceScatter || p == Primitive::kScatter) out_ += own;
  }

  absl::StatusOr<Work> Start() {
    const int root = options_.root;
    switch (options_.primitive) {
      case Primitive::kAllReduce:
        return group_.AllReduce(in_, out_, count_, type_, op_, call_);
      case Primitive::kReduce:
        return group_.Reduce(in_, out_, count_, type_, op_, root, call_);
      case Primitive::kBroadcast:
        return group_.Broadcast(in_, out_, count_, type_, root, call_);
      case Primitive::kReduceScatter:
        return group_.ReduceScatter(in_, out_, count_, type_, op_, call_);
      case Primitive::kAllGather:
        return group_.AllGather(in_, out_, count_, type_, call_);
      case Primitive::kGather:
        return group_.Gather(in_, out_, count_, type_, root, call_);
      case Primitive::kScatter:
        return group_.Scatter(in_, out_, count_, type_, root, call_);
      case Primitive::kAllToAll:
        return group_.AllToAll(in_, out_, count_, type_, call_);
      case Primitive::kBarrier:
        return group_.Barrier(call_);
      case Primitive::kPointToPoint:
        return StartSendReceive();
    }
    return absl::InternalError("no such primitive");
  }

  absl::StatusOr<Work> StartSendReceive() {
    group_.GroupStart();
    const auto sent = group_.Send(in_, count_, type_, (rank_ + 1) % ranks_);
    const auto received = group_.Receive(out_, count_, type_, (rank_ + ranks_ - 1) % ranks_);
    absl::StatusOr<Work> work = group_.GroupEnd();
    TANDEM_RETURN_IF_ERROR(sent.status());
    TANDEM_RETURN_IF_ERROR(received.status());
    return work;
  }

  int64_t WrongReduced(int64_t from) const {
    return ExactPattern::Reduced(op_, type_, ranks_, kFactor).CountWrong(from, count_, out_);
  }
  // Block `at` of the output against what rank r has from `from` on.
  int64_t WrongBlock(int r, int64_t from, int at) const {
    const uint8_t* const have = out_ + Bytes(at * count_);
    return ExactPattern::OfRank(op_, type_, r).CountWrong(from, count_, have);
  }
  int64_t WrongBlocks(int64_t from) const {
    int64_t wrong = 0;
    for (int r = 0; r < ranks_; ++r) wrong += WrongBlock(r, from, r);
    return wrong;
  }

  const CollectiveBenchOptions& options_;
  Group& group_;
  const int rank_, ranks_;
  const DataType type_;
  const ReduceOp op_;
  const int64_t count_;
  const bool in_place_;
  const Memory memory_, second_;
  const ExactPattern own_;
  CallOptions call_;
  uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
};

int64_t CountOf(const CollectiveBenchOptions& options, int64_t bytes, int ranks) {
  if (options.primitive == Primitive::kBarrier) return 0;
  const auto element = static_cast<int64_t>(SizeOf(*ParseDataType(options.type)));
  const int64_t block = InBlocks(options.primitive) ? element * ranks : element;
  return std::max<int64_t>(1, bytes / block);
}

int64_t SizeOfCount(const CollectiveBenchOptions& options, int64_t count, int ranks) {
  const auto element = static_cast<int64_t>(SizeOf(*ParseDataType(options.type)));
  return count * element * (InBlocks(options.primitive) ? ranks : 1);
}

// The reduction of every number over all ranks, on all ranks.
absl::Status Agree(Group& group, ReduceOp op, std::vector<double>* numbers) {
  return group.Wait(group.AllReduce(numbers->data(), numbers->data(),
                                    static_cast<int64_t>(numbers->size()), DataType::kF64, op));
}

absl::Status CheckedRun(Group& group, BenchCase& c, int64_t* wrong) {
  c.Fill();
  TANDEM_RETURN_IF_ERROR(c.Run());
  std::vector<double> all = {static_cast<double>(c.CountWrong())};
  TANDEM_RETURN_IF_ERROR(Agree(group, ReduceOp::kSum, &all));
  *wrong += static_cast<int64_t>(all[0]);
  return absl::OkStatus();
}

// How many operations a repetition has, from how long the last of a few takes.
absl::StatusOr<int> OperationsFor(const CollectiveBenchOptions& options, Group& group,
                                  BenchCase& c) {
  double last = 0;
  for (int i = 0; i < options.warmup; ++i) {
    const absl::Time begin = absl::Now();
    TANDEM_RETURN_IF_ERROR(c.Run());
    last = absl::ToDoubleSeconds(absl::Now() - begin);
  }
  std::vector<double> slowest = {last};
  TANDEM_RETURN_IF_ERROR(Agree(group, ReduceOp::kMax, &slowest));
  const double share = options.seconds / options.repetitions;
  const double fit = share / std::max(slowest[0], 1e-9);
  return static_cast<int>(std::clamp(fit, 1.0, static_cast<double>(options.most_operations)));
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

absl::StatusOr<AlgorithmChoice> ChoiceFor(const CollectiveBenchOptions& options, const Group& group,
                                          absl::string_view name, int64_t bytes) {
  if (options.primitive == Primitive::kPointToPoint) return AlgorithmChoice();
  AlgorithmChoice choice = group.Choose(options.primitive, bytes);
  if (name != "auto") {
    TANDEM_ASSIGN_OR_RETURN(choice.algorithm, ParseAlgorithm(name));
  }
  if (options.segment_bytes >= 0) choice.segment_bytes = options.segment_bytes;
  return choice;
}

// What `--algorithm` means for this primitive.
std::vector<std::string> AlgorithmNames(const CollectiveBenchOptions& options) {
  if (options.primitive == Primitive::kPointToPoint) return {"auto"};
  std::vector<std::string> names;
  for (const std::string& name : options.algorithms) {
    if (name != "all") {
      names.push_back(name);
      continue;
    }
    for (const Algorithm a : AlgorithmsFor(options.primitive)) names.emplace_back(AlgorithmName(a));
  }
  return names;
}

std::vector<int64_t> Sizes(const CollectiveBenchOptions& options) {
  if (options.primitive == Primitive::kBarrier) return {0};
  if (!options.sizes.empty()) return options.sizes;
  std::vector<int64_t> sizes;
  for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    sizes.push_back(bytes);
  }
  return sizes;
}

std::string AlgorithmOf(const CollectiveBenchOptions& options, const CollectiveBenchLine& line) {
  if (options.primitive == Primitive::kPointToPoint) return "-";
  return std::string(AlgorithmName(line.choice.algorithm));
}

std::string Row(const CollectiveBenchOptions& options, int ranks, const CollectiveBenchLine& line) {
  return absl::StrFormat("%10d %10d %-19s %8d %-5s %11.2f %11.2f %11.2f %8.3f %8.3f %6d\n",
                         line.bytes, line.count, AlgorithmOf(options, line),
                         line.choice.segment_bytes, line.in_place ? "in" : "out", line.mean * 1e6,
                         line.p50 * 1e6, line.p99 * 1e6, line.algbw() / 1e9,
                         line.algbw() / 1e9 * BusFactor(options.primitive, ranks), line.wrong);
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
      line.algbw() / 1e9 * BusFactor(options.primitive, ranks), line.wrong);
}

void PrintHead(const CollectiveBenchOptions& o, const Group& group, std::ostream& out) {
  out << "machine: " << MachineLine() << "\n"
      << BenchName(o.primitive) << ": " << group.ranks() << " ranks over " << o.link << ", "
      << o.type << " " << o.op << ", " << o.repetitions << " repetitions, about " << o.seconds
      << " s a line\n"
      << absl::StrFormat("%10s %10s %-19s %8s %-5s %11s %11s %11s %8s %8s %6s\n", "size", "count",
                         "algorithm", "segment", "place", "mean_us", "p50_us", "p99_us", "algbw",
                         "busbw", "wrong");
}

// Lines to the table and to the file, on rank 0.
class Report {
 public:
  Report(const CollectiveBenchOptions& options, const Group& group, std::ostream& out)
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
                                                      Group& group, int64_t bytes,
                                                      const AlgorithmChoice& choice,
                                                      bool in_place) {
  CollectiveBenchLine line;
  line.choice = choice;
  line.in_place = in_place;
  line.count = CountOf(options, bytes, group.ranks());
  line.bytes = SizeOfCount(options, line.count, group.ranks());
  BenchCase c(options, group, line.count, choice, in_place);
  TANDEM_RETURN_IF_ERROR(CheckedRun(group, c, &line.wrong));
  TANDEM_ASSIGN_OR_RETURN(const int operations, OperationsFor(options, group, c));
  std::vector<double> single, means;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    TANDEM_RETURN_IF_ERROR(group.Wait(group.Barrier()));
    const absl::Time begin = absl::Now();
    absl::Time before = begin;
    for (int i = 0; i < operations; ++i) {
      TANDEM_RETURN_IF_ERROR(c.Run());
      const absl::Time after = absl::Now();
      single.push_back(absl::ToDoubleSeconds(after - before));
      before = after;
    }
    means.push_back(absl::ToDoubleSeconds(before - begin) / operations);
  }
  TANDEM_RETURN_IF_ERROR(Agree(group, ReduceOp::kMax, &single));
  TANDEM_RETURN_IF_ERROR(Agree(group, ReduceOp::kMax, &means));
  TANDEM_RETURN_IF_ERROR(CheckedRun(group, c, &line.wrong));
  Summarise(std::move(single), std::move(means), &line);
  return line;
}

absl::Status CheckCollectiveBench(const CollectiveBenchOptions& o) {
  if (!ParseDataType(o.type).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("type '", o.type,
                                                   "': want f32, f64, f16, bf16, "
                                                   "i32, i64 or u8"));
  }
  if (!ParseReduceOp(o.op).has_value() || !Defined(*ParseReduceOp(o.op), *ParseDataType(o.type))) {
    return absl::InvalidArgumentError(absl::StrCat("op '", o.op, "' does not exist for ", o.type));
  }
  if (o.ranks < (o.primitive == Primitive::kPointToPoint ? 2 : 1) || o.root < 0 ||
      o.root >= o.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat(BenchName(o.primitive), " of ", o.ranks, " ranks with root ", o.root));
  }
  if (o.min_bytes < 1 || o.max_bytes < o.min_bytes || o.factor < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("sizes ", o.min_bytes, " to ", o.max_bytes, " by ", o.factor));
  }
  if (o.warmup < 1 || o.repetitions < 1 || o.most_operations < 1 || !(o.seconds >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("warm-up ", o.warmup, ", repetitions ",
                                                   o.repetitions, ", seconds ", o.seconds));
  }
  for (const std::string& name : AlgorithmNames(o)) {
    if (name == "auto") continue;
    TANDEM_ASSIGN_OR_RETURN(const Algorithm algorithm, ParseAlgorithm(name));
    if (!Supports(o.primitive, algorithm)) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no ", BenchName(o.primitive), " by ", name));
    }
  }
  return absl::OkStatus();
}

absl::Status RunCollectiveBenchRank(const CollectiveBenchOptions& options, Group& group,
                                    std::ostream& out) {
  Report report(options, group, out);
  for (const int64_t bytes : Sizes(options)) {
    for (const std::string& name : AlgorithmNames(options)) {
      TANDEM_ASSIGN_OR_RETURN(const AlgorithmChoice choice, ChoiceFor(options, group, name, bytes));
      for (const bool in_place : {false, true}) {
        if (in_place ? !options.in_place || !HasInPlace(options.primitive)
                     : !options.out_of_place) {
          continue;
        }
        TANDEM_ASSIGN_OR_RETURN(const CollectiveBenchLine line,
                                MeasureCollective(options, group, bytes, choice, in_place));
        report.Add(line);
      }
    }
  }
  return report.Finish();
}

absl::Status RunCollectiveBench(const CollectiveBenchOptions& options, std::ostream& out) {
  TANDEM_RETURN_IF_ERROR(CheckCollectiveBench(options));
  RankOptions ranks;
  ranks.link = options.link;
  ranks.ranks = options.ranks;
  ranks.ring_bytes = static_cast<size_t>(options.ring_bytes);
  return RunRanks(ranks, [&](int rank, std::vector<std::unique_ptr<Link>> links) {
    GroupOptions group_options;
    group_options.deadline = options.deadline;
    Group group(rank, std::move(links), group_options);
    return RunCollectiveBenchRank(options, group, out);
  });
}

}  // namespace tandem
