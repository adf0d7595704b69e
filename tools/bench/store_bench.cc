#include "tools/bench/store_bench.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "optim/optimizer.h"
#include "optim/row_format.h"
#include "server/rows/page_arena.h"
#include "server/rows/row_table.h"
#include "tools/bench/machine.h"
#include "tools/bench/stream_run.h"
#include "xxhash.h"

namespace tandem::bench {
namespace {

constexpr int64_t kFillKeys = 32'768;  // rows created at a time
constexpr size_t kGatherAhead = 16;

// The key of row number r: scattered like real ids, and known without a look-up.
uint64_t KeyOfRow(uint64_t seed, int64_t row) {
  return HashCombine(seed, static_cast<uint64_t>(row));
}

absl::Status CheckOptions(const StoreBenchOptions& o) {
  const int64_t least = std::min<int64_t>({o.dim, o.batch_keys, o.repetitions, o.batches});
  if (least < 1) {
    return absl::InvalidArgumentError(
        "bench store: dim, batch-keys, repetitions and batches must be 1 or more");
  }
  if (o.rows < 1 || o.rows >= server::RowIndex::kLastRow) {
    return absl::InvalidArgumentError(absl::StrCat("bench store: rows is ", o.rows));
  }
  if (o.batch_keys > o.rows) {
    return absl::InvalidArgumentError(absl::StrCat("bench store: batch_keys ", o.batch_keys,
                                                   " is more than rows ", o.rows,
                                                   ", and the keys of a push are distinct"));
  }
  return absl::OkStatus();
}

void PrintMachine(std::ostream& out) {
  out << "machine: " << MachineLine() << ", transparent huge pages "
      << FirstLine("/sys/kernel/mm/transparent_hugepage/enabled", "") << "\n";
}

absl::StatusOr<std::unique_ptr<optim::RowOptimizer>> MakeOptimizer(
    const StoreBenchOptions& options) {
  Optimizer config;
  config.set_kind(options.optimizer);
  config.set_learning_rate(0.01);
  return optim::NewRowOptimizer(config);
}

server::RowTable::Options StoreOptions(const StoreBenchOptions& options,
                                       const optim::RowOptimizer* optimizer) {
  server::RowTable::Options store;
  store.dim = options.dim;
  store.salt = HashCombine(options.seed, 1);
  store.seed = HashCombine(options.seed, 2);
  store.optimizer = optimizer;
  store.types = options.types;
  return store;
}

absl::Status Fill(server::RowTable& store, uint64_t seed, int64_t rows) {
  std::vector<uint64_t> keys;
  std::vector<uint32_t> numbers(static_cast<size_t>(kFillKeys));
  for (int64_t row = store.size(); row < rows; row += static_cast<int64_t>(keys.size())) {
    keys.clear();
    const int64_t end = std::min(rows, row + kFillKeys);
    for (int64_t r = row; r < end; ++r) keys.push_back(KeyOfRow(seed, r));
    TANDEM_RETURN_IF_ERROR(store.FindOrCreate(keys, absl::MakeSpan(numbers).first(keys.size())));
  }
  return absl::OkStatus();
}

// Distinct random rows and their keys.
class Batch {
 public:
  Batch(const StoreBenchOptions& options, uint64_t seed)
      : options_(options), random_(seed), used_(static_cast<size_t>(options.rows)) {}

  void Next() {
    for (const uint32_t row : rows) used_[row] = false;
    rows.clear();
    keys.clear();
    while (static_cast<int64_t>(rows.size()) < options_.batch_keys) {
      const auto row = static_cast<uint32_t>(random_.Uniform(static_cast<uint64_t>(options_.rows)));
      if (used_[row]) continue;
      used_[row] = true;
      rows.push_back(row);
      keys.push_back(KeyOfRow(options_.seed, row));
    }
  }

  std::vector<uint32_t> rows;
  std::vector<uint64_t> keys;

 private:
  const StoreBenchOptions& options_;
  Random random_;
  std::vector<bool> used_;
};

// The table of the gather: rows by known index, on huge pages.
class PlainTable {
 public:
  PlainTable() = default;
  PlainTable(const PlainTable&) = delete;
  PlainTable& operator=(const PlainTable&) = delete;
  ~PlainTable() {
    if (rows_ != nullptr) arena_.Give(server::PageArena::Pages::kHuge, rows_, bytes_);
  }

  absl::Status Init(const server::RowTable& store) {
    dim_ = static_cast<size_t>(store.dim());
    bytes_ = static_cast<size_t>(store.size()) * dim_ * sizeof(float);
    TANDEM_ASSIGN_OR_RETURN(rows_, arena_.Take(server::PageArena::Pages::kHuge, bytes_));
    for (int64_t r = 0; r < store.size(); ++r) Update(store, static_cast<uint32_t>(r));
    return absl::OkStatus();
  }

  void Update(const server::RowTable& store, uint32_t row) {
    copy_.resize(dim_ + static_cast<size_t>(store.slots_per_row()));
    store.CopyRow(row, copy_.data());
    std::memcpy(Row(row), copy_.data(), dim_ * sizeof(float));
  }

  void Gather(absl::Span<const uint32_t> rows, float* out) const {
    dim_ == 16 ? GatherRows<16>(rows, out) : GatherRows<0>(rows, out);
  }

 private:
  template <size_t kDim>
  void GatherRows(absl::Span<const uint32_t> rows, float* out) const {
    const size_t dim = kDim == 0 ? dim_ : kDim;
    const size_t n = rows.size();
    for (size_t i = 0; i < n; ++i) {
      const float* const ahead = Row(rows[std::min(i + kGatherAhead, n - 1)]);
      for (size_t j = 0; j < dim; j += 16) __builtin_prefetch(ahead + j);
      std::memcpy(out + i * dim, Row(rows[i]), dim * sizeof(float));
    }
  }

  float* Row(uint32_t row) const { return reinterpret_cast<float*>(rows_) + row * dim_; }

  size_t dim_ = 0;
  server::PageArena arena_;
  char* rows_ = nullptr;
  size_t bytes_ = 0;
  std::vector<float> copy_;  // scratch
};

// Million rows per second of each timed batch.
class Measure {
 public:
  explicit Measure(std::string name) : name_(std::move(name)) {}

  template <typename Work>
  void Time(size_t rows, Work work) {
    const double begin = ThreadSeconds();
    work();
    rates_.push_back(static_cast<double>(rows) / (ThreadSeconds() - begin) * 1e-6);
  }

  double Quantile(double q, size_t first = 0) const {
    std::vector<double> sorted(rates_.begin() + static_cast<std::ptrdiff_t>(first), rates_.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
  }

  size_t samples() const { return rates_.size(); }

  void Print(std::ostream& out) const {
    out << absl::StrFormat("%-8s %8.2f %8.2f %8.2f %8.2f %8d\n", name_, Quantile(0), Quantile(0.5),
                           Quantile(0.99), Quantile(1), rates_.size());
  }

 private:
  std::string name_;
  std::vector<double> rates_;
};

// One speed run. The gather reads exactly the rows of each pull and each push.
class SpeedRun {
 public:
  SpeedRun(const StoreBenchOptions& options, const optim::RowOptimizer* optimizer)
      : options_(options), store_(StoreOptions(options, optimizer)), batch_(options, options.seed) {
    const size_t floats =
        static_cast<size_t>(options.batch_keys) * static_cast<size_t>(options.dim);
    gathered_.resize(floats);
    pulled_.resize(floats);
    gradients_.resize(floats);
    Random random(HashCombine(options.seed, 3));
    for (float& g : gradients_) g = static_cast<float>(random.Normal());
  }

  // Creates the rows.
  absl::Status Init() {
    TANDEM_RETURN_IF_ERROR(Fill(store_, options_.seed, options_.rows));
    return plain_.Init(store_);
  }

  absl::Status Repetition() {
    const size_t samples = gather_.samples();
    for (int b = 0; b < options_.batches; ++b) {
      TANDEM_RETURN_IF_ERROR(PullBatch(b % 2 == 0));
      TANDEM_RETURN_IF_ERROR(PushBatch(b % 2 == 0));
    }
    const double gather = gather_.Quantile(0.5, samples);
    pull_ratios_.push_back(pull_.Quantile(0.5, pull_ratios_.size() * Batches()) / gather);
    push_ratios_.push_back(push_.Quantile(0.5, push_ratios_.size() * Batches()) / gather);
    return absl::OkStatus();
  }

  void Print(std::ostream& out) {
    const optim::RowFormat format(options_.types, options_.dim, *store_.options().optimizer);
    const double payload = static_cast<double>(format.row_bytes() + sizeof(uint64_t));
    const double bytes =
        static_cast<double>(store_.Memory().bytes()) / static_cast<double>(store_.size());
    out << absl::StrFormat(
        "memory: %.1f bytes a row, of which key, weights and optimizer state take %.0f; %.1f M "
        "rows a GB\n",
        bytes, payload, 1e3 / bytes);
    out << "speed, M rows/s min      p50      p99      max  samples\n";
    for (const Measure* m : {&gather_, &pull_, &push_}) m->Print(out);
    PrintRatio(out, "pull / gather", pull_ratios_);
    PrintRatio(out, "push / gather", push_ratios_);
    out << absl::StrFormat("checksum %016x\n", checksum_);
  }

 private:
  size_t Batches() const { return static_cast<size_t>(options_.batches); }

  void TimeGather() {
    gather_.Time(batch_.rows.size(), [&] { plain_.Gather(batch_.rows, gathered_.data()); });
  }

  absl::Status PullBatch(bool gather_first) {
    batch_.Next();
    if (gather_first) TimeGather();
    pull_.Time(batch_.keys.size(), [&] { store_.Pull(batch_.keys, absl::MakeSpan(pulled_)); });
    if (!gather_first) TimeGather();
    checksum_ = XXH3_64bits_withSeed(pulled_.data(), pulled_.size() * sizeof(float), checksum_);
    if (gathered_ == pulled_) return absl::OkStatus();
    return absl::InternalError("bench store: a pull and the gather of the same rows disagree");
  }

  absl::Status PushBatch(bool gather_first) {
    batch_.Next();
    if (gather_first) TimeGather();
    absl::Status pushed;
    push_.Time(batch_.keys.size(), [&] {
      pushed = store_.Push(batch_.keys, gradients_, 0.5f, {1, 1, ++stamp_});
    });
    if (!gather_first) TimeGather();
    for (const uint32_t row : batch_.rows) plain_.Update(store_, row);
    return pushed;
  }

  static void PrintRatio(std::ostream& out, absl::string_view name, std::vector<double> ratios) {
    std::sort(ratios.begin(), ratios.end());
    out << absl::StrFormat("%s: %.3f (medians of repetitions: min %.3f, p50 %.3f, max %.3f)\n",
                           name, ratios[ratios.size() / 2], ratios.front(),
                           ratios[ratios.size() / 2], ratios.back());
  }

  const StoreBenchOptions options_;
  server::RowTable store_;
  PlainTable plain_;
  Batch batch_;
  std::vector<float> gathered_, pulled_, gradients_;
  Measure gather_{"gather"}, pull_{"pull"}, push_{"push"};
  std::vector<double> pull_ratios_, push_ratios_;
  uint64_t checksum_ = 0;
  int64_t stamp_ = 0;  // of the last push
};

}  // namespace

double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

absl::Status RunStoreBench(const StoreBenchOptions& options, std::ostream& out) {
  const bool streams = options.stream != 0;
  TANDEM_RETURN_IF_ERROR(streams ? CheckStream(options) : CheckOptions(options));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<optim::RowOptimizer> optimizer,
                          MakeOptimizer(options));
  PrintMachine(out);
  if (streams) {
    const std::string rows =
        options.eviction == Eviction::LRU   ? absl::StrCat(options.max_rows, " rows stay")
        : options.eviction == Eviction::AGE ? absl::StrCat(options.versions, " versions")
                                            : "all rows stay";
    out << absl::StrFormat(
        "stream: Zipf of %d ids, skew %g, dim %d, %s, batches of %d draws, %s: %s, seed %d\n",
        options.stream, options.skew, options.dim, optimizer->name(), options.batch_keys,
        Eviction::Kind_Name(options.eviction), rows, options.seed);
    return StreamRun(options, StoreOptions(options, optimizer.get())).Run(out);
  }
  out << absl::StrFormat(
      "store: rows %d, dim %d of %s, %s, state of %s, batch %d keys, %d batches x %d, seed %d\n",
      options.rows, options.dim, Table::Dtype_Name(options.types.row), optimizer->name(),
      Table::Dtype_Name(options.types.state), options.batch_keys, options.batches,
      options.repetitions, options.seed);
  SpeedRun run(options, optimizer.get());
  TANDEM_RETURN_IF_ERROR(run.Init());
  for (int r = 0; r < options.repetitions; ++r) TANDEM_RETURN_IF_ERROR(run.Repetition());
  run.Print(out);
  return absl::OkStatus();
}

}  // namespace tandem::bench
