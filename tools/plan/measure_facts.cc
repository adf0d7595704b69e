#include "tools/plan/measure_facts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "data/batch_source.h"
#include "data/service_trace.h"
#include "job/job_budget.h"
#include "optim/optimizer.h"

namespace tandem::plan {
namespace {

constexpr int kBatches = 8;      // read to count the rows that a step touches
constexpr int64_t kSteps = 400;  // drawn from fault_injection.slow_workers, for each worker

bool BringsRows(const job::ResolvedJob& plan) { return plan.job.data().format() == Data::PROGRAM; }
// Whether only the process that has the model knows its size.
bool BringsModel(const job::ResolvedJob& plan) {
  return plan.job.model().has_script() || plan.job.model().has_program();
}

absl::Status CheckKnown(const job::ResolvedJob& plan, const Assumed& assumed) {
  if (BringsRows(plan) && assumed.push_bytes <= 0) {
    return absl::InvalidArgumentError(
        "data.format: only the program knows how many rows a step touches; hint: name the folder "
        "of a live run of this job with --calibrate");
  }
  if (BringsModel(plan) && assumed.dense_parameters <= 0) {
    return absl::InvalidArgumentError(
        "model: only the worker that opens the model knows its dense parameters; hint: name the "
        "folder of a live run of this job with at least 2 workers with --calibrate");
  }
  return absl::OkStatus();
}

absl::StatusOr<double> SlotsOf(const Optimizer& config, int dim) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<optim::RowOptimizer> optimizer,
                          optim::NewRowOptimizer(config));
  return optimizer->slots_per_row(dim);
}

// Sets the bytes of a dense gradient that travel between replicas.
void AddWire(const Dense& dense, Facts* facts) {
  facts->dense_slots_dealt = dense.sharded_optimizer();
  if (dense.wire_dtype() == Dense::BF16 || dense.wire_dtype() == Dense::F16)
    facts->dense_wire_bytes = 2;
  const double elements = facts->dense_parameters;
  constexpr double kPair = 8;    // an element and its place
  constexpr double kRun = 1024;  // signs that share a scale
  if (dense.codec().kind() == Codec::TOP_K) {
    facts->dense_codec_bytes =
        kPair * std::max(1.0, std::ceil(dense.codec().fraction() * elements));
  } else if (dense.codec().kind() == Codec::SIGN) {
    facts->dense_codec_bytes = elements / 8 + std::ceil(elements / kRun) * sizeof(float);
  }
}

absl::Status CountRows(const job::ResolvedJob& plan, Facts* facts) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<data::BatchSource> source,
                          data::NewTrainSource(plan, /*rank=*/0));
  TANDEM_RETURN_IF_ERROR(source->StartEpoch(0));
  data::Batch batch;
  int batches = 0;
  for (; batches < kBatches; ++batches) {
    TANDEM_RETURN_IF_ERROR(source->Next(&batch));
    // Leave out a shorter last batch: it touches fewer rows than a full step.
    if (batch.samples == 0 || (batches > 0 && batch.samples < plan.job.train().batch_size())) break;
    for (const data::SparseInput& input : batch.sparse) {
      TableFacts& table = facts->tables[input.table];
      table.rows_a_step += static_cast<double>(input.keys.size());
      table.ids_a_step += static_cast<double>(input.index.size());
    }
  }
  for (TableFacts& table : facts->tables) {
    table.rows_a_step /= std::max(1, batches);
    table.ids_a_step /= std::max(1, batches);
  }
  return absl::OkStatus();
}

// Frozen tables have their share: workers push their gradients as well, and servers drop them.
void ShareRows(double push_bytes, Facts* facts) {
  double bytes = 0;  // of one row of each table
  for (const TableFacts& table : facts->tables)
    bytes += sizeof(uint64_t) + table.dim * sizeof(float);
  for (TableFacts& table : facts->tables) table.rows_a_step = table.ids_a_step = push_bytes / bytes;
}

absl::Status DrawSteps(const job::ResolvedJob& plan, const Assumed& assumed, Facts* facts) {
  for (int rank = 0; rank < plan.workers(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(const job::StepTimes times,
                            data::OpenStepTimes(plan, plan.job.seed(), rank));
    std::vector<double>& steps = facts->step_seconds.emplace_back();
    for (int64_t k = 0; k < kSteps; ++k) {
      steps.push_back(std::max(assumed.compute_seconds[static_cast<size_t>(rank)],
                               absl::ToDoubleSeconds(times.Of(k))));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Facts> MeasureFacts(const job::ResolvedJob& plan, const Assumed& assumed) {
  TANDEM_RETURN_IF_ERROR(CheckKnown(plan, assumed));
  Facts facts;
  facts.workers = plan.workers();
  facts.servers = plan.server_processes();
  facts.batch = plan.job.train().batch_size();
  facts.depth = plan.job.train().prefetch_steps();
  facts.latency_seconds = assumed.latency_seconds;
  facts.bytes_per_second = assumed.bytes_per_second;
  facts.dense_parameters = BringsModel(plan) ? assumed.dense_parameters
                                             : static_cast<double>(job::MaxDenseParameters(plan));
  constexpr int kBlock = 1024;
  Optimizer optimizer = plan.job.dense().optimizer();
  optimizer.clear_error_feedback();  // its models are in Strategy::kept_models
  TANDEM_ASSIGN_OR_RETURN(const double dense_slots, SlotsOf(optimizer, kBlock));
  facts.dense_bytes_a_parameter = sizeof(float) * (1 + dense_slots / kBlock);
  AddWire(plan.job.dense(), &facts);
  for (const job::TablePlan& table : plan.tables) {
    if (table.dense) continue;  // counted above
    if (table.store) continue;  // comes after the tables of the model
    TableFacts& out = facts.tables.emplace_back();
    out.name = table.name;
    out.dim = table.dim;
    const auto dim = static_cast<size_t>(table.dim);
    out.pulled_share = static_cast<double>(optim::WireWords(table.wire_dtype(), dim)) / table.dim;
    out.place = table.placement;
    out.rows = table.frozen ? 0 : static_cast<double>(job::RowsExpected(table));
    out.bytes_a_row = job::BytesOfRow(plan, table);
    const auto measured = assumed.rows.find(table.name);
    if (measured == assumed.rows.end() || measured->second.rows <= 0) continue;
    out.rows = measured->second.rows;
    out.bytes_a_row = measured->second.bytes / out.rows;
  }
  if (BringsRows(plan)) {
    ShareRows(assumed.push_bytes, &facts);
  } else {
    TANDEM_RETURN_IF_ERROR(CountRows(plan, &facts));
  }
  TANDEM_RETURN_IF_ERROR(DrawSteps(plan, assumed, &facts));
  return facts;
}

}  // namespace tandem::plan
