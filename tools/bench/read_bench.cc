#include "tools/bench/read_bench.h"

#include <sys/resource.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "data/batch_source.h"
#include "data/statistics.h"
#include "job/job.h"
#include "job/row_shape.h"
#include "node/role_flags.h"

namespace tandem::bench {
namespace {

// Processor time of all threads of this process.
double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <typename T>
uint64_t HashOf(const std::vector<T>& numbers, uint64_t before) {
  return XXH3_64bits_withSeed(numbers.data(), numbers.size() * sizeof(T), before);
}

struct Epoch {
  int64_t rows = 0;
  uint64_t hash = 0;
  double seconds = 0, cpu_seconds = 0;
};

absl::StatusOr<Epoch> ReadEpoch(data::BatchSource* source) {
  Epoch epoch;
  const absl::Time begin = MonotonicNow();
  const double cpu = CpuSeconds();
  TANDEM_RETURN_IF_ERROR(source->StartEpoch(0));
  for (data::Batch batch;;) {
    TANDEM_RETURN_IF_ERROR(source->Next(&batch));
    if (batch.samples == 0) break;
    epoch.rows += batch.samples;
    epoch.hash = HashOf(batch.numbers, HashOf(batch.labels, epoch.hash));
    for (const data::SparseInput& input : batch.sparse) {
      epoch.hash = HashOf(input.index, HashOf(input.keys, epoch.hash));
      epoch.hash = HashOf(input.offsets, HashOf(input.weights, epoch.hash));
    }
  }
  epoch.seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
  epoch.cpu_seconds = CpuSeconds() - cpu;
  return epoch;
}

}  // namespace

absl::Status RunReadBench(const ReadBenchOptions& options, std::ostream& out) {
  node::RoleFlags role;
  role.job = options.job;
  role.set = options.set;
  TANDEM_ASSIGN_OR_RETURN(job::ResolvedJob plan, node::PlanOf(role));
  if (!job::HasRowsInLines(plan.job.data())) {
    return absl::InvalidArgumentError(
        "data.format: expected CRITEO, LIBSVM, DELIMITED or PARQUET; hint: other data are not read "
        "from files row by row");
  }
  if (options.repetitions < 1)
    return absl::InvalidArgumentError("--repetitions: expected 1 or more");
  TANDEM_RETURN_IF_ERROR(data::FillFromData("", &plan));
  TANDEM_ASSIGN_OR_RETURN(const auto source, data::NewTrainSource(plan, /*rank=*/0));
  std::vector<double> speeds;
  for (int i = 0; i < options.repetitions; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const Epoch epoch, ReadEpoch(source.get()));
    speeds.push_back(static_cast<double>(epoch.rows) / epoch.seconds);
    out << absl::StreamFormat("%d rows, hash %016x: %.3f s, %.0f rows/s, %.3f s of processors\n",
                              epoch.rows, epoch.hash, epoch.seconds, speeds.back(),
                              epoch.cpu_seconds);
  }
  std::sort(speeds.begin(), speeds.end());
  out << absl::StreamFormat("median: %.0f rows/s\n", speeds[speeds.size() / 2]);
  return absl::OkStatus();
}

}  // namespace tandem::bench
