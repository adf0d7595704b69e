#include "capi/tandem.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/diverged.h"
#include "base/status_macros.h"
#include "capi/check_checkpoint.h"
#include "capi/ids_batch.h"
#include "capi/returns.h"
#include "data/cells.h"
#include "job/job.h"
#include "node/job_token.h"
#include "node/role_flags.h"
#include "node/role_options.h"
#include "node/transport_choice.h"
#include "optim/schedule.h"
#include "proto/wire.pb.h"
#include "worker/attached_worker.h"

struct tandem_worker {
  explicit tandem_worker(std::unique_ptr<tandem::worker::AttachedWorker> worker)
      : attached(std::move(worker)), ids(attached->plan()) {}

  const std::unique_ptr<tandem::worker::AttachedWorker> attached;
  tandem::capi::IdsBatch ids;
  tandem::data::Batch batch;       // its memory is reused
  float clip_norm = 0;             // 0: no limit
  int64_t sample_clock = 0;        // of the last COMPUTE
  std::string evaluation, record;  // of the last calls
  std::map<std::string, double> reduced;
};

namespace tandem::capi {
namespace {

constexpr int64_t kMaxFloats = int64_t{1} << 40;  // floats of all dense parameters

// The number of the job's own tables. Tables after them hold dense parameters.
int TablesOf(const tandem_worker* worker) {
  return static_cast<int>(worker->attached->plan().model_tables());
}

const job::TablePlan* TableOf(const tandem_worker* worker, int32_t table) {
  if (table < 0 || table >= TablesOf(worker)) return nullptr;
  return &worker->attached->plan().tables[static_cast<size_t>(table)];
}

absl::Status CheckAddresses(const node::RoleFlags& flags) {
  const std::string scheduler = node::CheckAddress(flags.scheduler),
                    bind = node::CheckAddress(flags.bind);
  if (!scheduler.empty())
    return absl::InvalidArgumentError("the scheduler's address: " + scheduler);
  if (!bind.empty()) return absl::InvalidArgumentError("the address to listen at: " + bind);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<worker::AttachedWorker>> Join(const tandem_join_options& options) {
  node::RoleFlags flags;
  flags.job = OrEmpty(options.job);
  for (const char* const* set = options.set; set != nullptr && *set != nullptr; ++set) {
    flags.set.push_back(*set);
  }
  flags.scheduler = OrEmpty(options.scheduler);
  if (options.bind != nullptr) flags.bind = options.bind;
  flags.advertise = OrEmpty(options.advertise);
  TANDEM_RETURN_IF_ERROR(CheckAddresses(flags));
  worker::WorkerOptions worker;
  TANDEM_ASSIGN_OR_RETURN(worker.plan, node::PlanOf(flags));
  TANDEM_RETURN_IF_ERROR(node::LoadKeys(worker.plan.job, &flags));
  const Cluster cluster = worker.plan.serving();
  TANDEM_RETURN_IF_ERROR(node::CheckTransport(worker.plan.job));
  // These variables come from `tandem run`, which starts programs as it starts workers.
  worker.trace_path = OrEmpty(std::getenv("TANDEM_TRACE"));
  if (!absl::SimpleAtoi(OrEmpty(std::getenv("TANDEM_TRACE_STEPS")), &worker.trace_steps)) {
    worker.trace_path.clear();
  }
  worker.dump_folder = OrEmpty(std::getenv("TANDEM_DUMP_COLLECTIVES"));
  worker.paths = std::make_shared<transport::PathLog>();
  worker.security = {flags.keys, flags.encrypt_all};
  worker.member.index = options.index;
  worker.member.incarnation = node::NewIncarnation();
  worker.member.scheduler = flags.scheduler;
  // The factory opens descriptors, which belong to the worker's thread, since it has a descriptor
  // table of its own. That thread makes its first transport before it has other threads, so the
  // factory is made there.
  worker.member.make_transport =
      [flags, cluster, incarnation = worker.member.incarnation, paths = worker.paths,
       factory = std::make_shared<node::MakeTransport>()](EndpointId self) {
        if (*factory == nullptr) {
          *factory = node::EndpointFactory(flags, cluster, incarnation, paths);
        }
        return (*factory)(self);
      };
  return worker::AttachedWorker::Join(std::move(worker), worker::AttachedWorker::Files::kOwn,
                                      options.keeps_state != 0);
}

// Translates each value, because the header is C and cannot name the worker's enumeration.
int32_t KindOf(const worker::Request& request) {
  switch (request.kind) {
    case worker::Request::Kind::kDigest:  // AttachedWorker::Next handles it
    case worker::Request::Kind::kNothing:
      return TANDEM_NOTHING;
    case worker::Request::Kind::kBatch:
      return TANDEM_BATCH;
    case worker::Request::Kind::kTestBatch:
      return request.validation ? TANDEM_VALIDATION_BATCH : TANDEM_TEST_BATCH;
    case worker::Request::Kind::kCompute:
      return TANDEM_COMPUTE;
    case worker::Request::Kind::kScore:
      return TANDEM_SCORE;
    case worker::Request::Kind::kUpdate:
      return TANDEM_UPDATE;
    case worker::Request::Kind::kState:
      return TANDEM_STATE;
    case worker::Request::Kind::kStepDone:
      return TANDEM_STEP_DONE;
    case worker::Request::Kind::kEnd:
      return TANDEM_END;
  }
  return TANDEM_NOTHING;
}

// Adds the number of floats of parameter `name` to `*floats`.
absl::Status AddFloats(absl::string_view name, absl::Span<const int64_t> shape, int64_t* floats) {
  int64_t size = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("dense parameter ", name, ": a negative extent, ", extent));
    }
    if (__builtin_mul_overflow(size, extent, &size)) size = kMaxFloats + 1;
    if (size > kMaxFloats) break;
  }
  if (size > kMaxFloats - *floats) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dense parameter ", name, ": more floats than allowed; expected at most 2^40 in all"));
  }
  *floats += size;
  return absl::OkStatus();
}

absl::Status Start(tandem_worker* worker, int32_t count, const char* const* names,
                   const int32_t* dims, const int64_t* shapes, const float* values) {
  if (count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(count, " dense parameters; expected 0 or more"));
  }
  if (count > 0 && (names == nullptr || dims == nullptr)) return Missing("names and dims");
  std::vector<server::CheckpointParameter> parameters;
  int64_t floats = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (names[i] == nullptr) return Missing(absl::StrCat("the name of dense parameter ", i));
    if (dims[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("dense parameter ", names[i], " with ",
                                                     dims[i], " extents; expected 0 or more"));
    }
    if (dims[i] > 0 && shapes == nullptr) return Missing("shapes");
    const absl::Span<const int64_t> shape(shapes, static_cast<size_t>(dims[i]));
    TANDEM_RETURN_IF_ERROR(AddFloats(names[i], shape, &floats));
    parameters.push_back({names[i], {shape.begin(), shape.end()}});
    if (shapes != nullptr) shapes += dims[i];
  }
  if (floats > 0 && values == nullptr) return Missing("values");
  return worker->attached->Start(std::move(parameters), {values, static_cast<size_t>(floats)});
}

absl::Status Rows(tandem_worker* worker, int32_t table, float* cells, int64_t floats) {
  if (TableOf(worker, table) == nullptr || floats < 0) {
    return absl::InvalidArgumentError(absl::StrCat(floats, " floats of rows of table ", table,
                                                   ": expected 0 or more, and a table of the job"));
  }
  if (cells == nullptr && floats > 0) return Missing("cells");
  return worker->attached->Rows(static_cast<size_t>(table), {cells, static_cast<size_t>(floats)});
}

absl::Status Finish(tandem_worker* worker, double loss_sum, const float* const* cells,
                    const int64_t* floats, const float* dense, float scale) {
  worker::StepGradients gradients;
  gradients.has_loss = loss_sum != TANDEM_NO_LOSS;
  if (gradients.has_loss) gradients.loss_sum = loss_sum;
  gradients.scale = scale;
  gradients.clip_norm = worker->clip_norm;
  for (int t = 0; cells != nullptr && t < TablesOf(worker); ++t) {
    if (cells[t] != nullptr && (floats == nullptr || floats[t] < 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the gradient of table ", t, " without its number of floats"));
    }
    gradients.cells.emplace_back(cells[t],
                                 cells[t] == nullptr ? 0 : static_cast<size_t>(floats[t]));
  }
  if (dense != nullptr) gradients.dense = {dense, worker->attached->dense().size()};
  return worker->attached->Finish(gradients);
}

absl::Status MeanGradient(tandem_worker* worker, float* gradient) {
  const size_t floats = worker->attached->dense().size();
  if (gradient == nullptr && floats > 0) return Missing("gradient");
  return worker->attached->MeanGradient({gradient, floats});
}

absl::Status Score(tandem_worker* worker, const float* logits, const float* labels,
                   int64_t samples) {
  if (logits == nullptr && labels == nullptr) return worker->attached->Score({}, {});
  if (logits == nullptr || labels == nullptr) return Missing("one of logits and labels");
  if (samples < 0) {
    return absl::InvalidArgumentError(absl::StrCat(samples, " scores; expected 0 or more"));
  }
  const auto count = static_cast<size_t>(samples);
  return worker->attached->Score({logits, count}, {labels, count});
}

absl::Status CheckpointState(tandem_worker* worker, const void* bytes, int64_t count) {
  if (bytes == nullptr) return Missing("bytes");
  if (count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(count, " bytes of state; expected 1 or more"));
  }
  return worker->attached->CheckpointState(
      {static_cast<const char*>(bytes), static_cast<size_t>(count)});
}

absl::StatusOr<bool> CheckpointState(tandem_worker* worker, int32_t rank, const void** bytes,
                                     int64_t* count, int64_t* epoch) {
  if (bytes == nullptr || count == nullptr || epoch == nullptr) {
    return Missing("bytes, count and epoch");
  }
  const worker::AttachedRunner::Resumed& resumed = worker->attached->resumed();
  if (resumed.epoch < 0) return false;
  const auto workers = static_cast<int32_t>(resumed.states.size());
  if (rank < 0 || rank >= workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("no state of worker ", rank, ": the checkpoint has ", workers, " workers"));
  }
  const std::string& state = resumed.states[static_cast<size_t>(rank)];
  *bytes = state.data();
  *count = static_cast<int64_t>(state.size());
  *epoch = resumed.epoch;
  return true;
}

absl::StatusOr<bool> InitialState(tandem_worker* worker, const void** bytes, int64_t* count) {
  if (bytes == nullptr || count == nullptr) return Missing("bytes and count");
  const worker::AttachedRunner::Resumed& begun = worker->attached->resumed();
  if (begun.epoch >= 0 || begun.states.empty()) return false;
  *bytes = begun.states[0].data();
  *count = static_cast<int64_t>(begun.states[0].size());
  return true;
}

absl::StatusOr<bool> Report(tandem_worker* worker, int32_t count, const char* const* names,
                            const double* values, int64_t step, int64_t timeout_ms) {
  if (count > 0 && (names == nullptr || values == nullptr)) return Missing("names and values");
  std::map<std::string, double> reported;
  for (int32_t i = 0; i < count; ++i) {
    if (names[i] == nullptr) return Missing(absl::StrCat("the name of reported value ", i));
    reported[names[i]] = values[i];
  }
  return worker->attached->Report(reported, step, After(timeout_ms));
}

absl::Status EnterReduction(tandem_worker* worker, int32_t count, const char* const* names,
                            const double* values, int32_t reduction, double weight, int64_t step,
                            int32_t of_evaluation) {
  if (count < 1 || names == nullptr || values == nullptr) return Missing("names and values");
  if (reduction < TANDEM_REDUCE_MEAN || reduction > TANDEM_REDUCE_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduction ", reduction, "; expected TANDEM_REDUCE_MEAN, _SUM, _MIN or _MAX"));
  }
  if (!(weight >= 0) || std::isinf(weight)) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight ", weight, " of reported values; expected 0 or more"));
  }
  ProgramValues reported;
  reported.set_reduction(static_cast<ProgramValues::Reduction>(reduction));
  reported.set_weight(weight);
  for (int32_t i = 0; i < count; ++i) {
    if (names[i] == nullptr) return Missing(absl::StrCat("the name of reported value ", i));
    (*reported.mutable_value())[names[i]] = values[i];
  }
  return worker->attached->EnterBarrier(reported, step, of_evaluation != 0);
}

absl::StatusOr<bool> Reduced(tandem_worker* worker, const char* name, double* value) {
  if (name == nullptr || value == nullptr) return Missing("name and value");
  const auto it = worker->reduced.find(name);
  if (it == worker->reduced.end()) return false;
  *value = it->second;
  return true;
}

absl::StatusOr<bool> Evaluation(tandem_worker* worker, int64_t timeout_ms, const char** json) {
  if (json == nullptr) return Missing("json");
  TANDEM_ASSIGN_OR_RETURN(
      const bool over, worker->attached->news().Evaluation(After(timeout_ms), &worker->evaluation));
  if (over) *json = worker->evaluation.c_str();
  return over;
}

absl::StatusOr<bool> TakeRecord(tandem_worker* worker, const char** json) {
  if (json == nullptr) return Missing("json");
  std::optional<std::string> record = worker->attached->news().TakeRecord();
  if (!record.has_value()) return false;
  worker->record = *std::move(record);
  *json = worker->record.c_str();
  return true;
}

absl::Status HashTexts(const char* field, const char* texts, const int64_t* offsets, int64_t count,
                       int64_t* out) {
  if (count < 0)
    return absl::InvalidArgumentError(absl::StrCat(count, " texts; expected 0 or more"));
  if (count == 0) return absl::OkStatus();
  if (offsets == nullptr || out == nullptr) return Missing("offsets and out");
  if (texts == nullptr && offsets[count] != offsets[0]) return Missing("texts");
  const data::FieldHash hash{OrEmpty(field)};
  for (int64_t i = 0; i < count; ++i) {
    if (offsets[i] < 0 || offsets[i + 1] < offsets[i]) {
      return absl::InvalidArgumentError(absl::StrCat("offsets of texts must rise, at ", i));
    }
    const absl::string_view text =
        texts == nullptr ? absl::string_view()
                         : absl::string_view(texts + offsets[i],
                                             static_cast<size_t>(offsets[i + 1] - offsets[i]));
    out[i] = static_cast<int64_t>(text.empty() ? hash.missing() : hash.Key(text));
  }
  return absl::OkStatus();
}

// Hashes each id. `key` computes the key of one id from the hash of the field.
template <class Key>
absl::Status HashEach(const char* field, const int64_t* ids, int64_t count, int64_t* out,
                      const Key& key) {
  if (count < 0) return absl::InvalidArgumentError(absl::StrCat(count, " ids; expected 0 or more"));
  if (count > 0 && (ids == nullptr || out == nullptr)) return Missing("ids and out");
  const data::FieldHash hash{OrEmpty(field)};
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(key(hash, ids[i]));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tandem::capi

using namespace tandem::capi;  // NOLINT: C functions follow

const char* tandem_error(void) { return LastError(); }

int tandem_join(const tandem_join_options* options, tandem_worker** worker) {
  // The first version of the struct ended before keeps_state. Older programs pass a smaller one.
  constexpr uint64_t kFirstVersion = offsetof(tandem_join_options, keeps_state);
  if (options == nullptr || worker == nullptr || options->size < kFirstVersion) {
    return Return(
        absl::InvalidArgumentError("tandem_join: options of another version; set options->size to "
                                   "sizeof(tandem_join_options)"));
  }
  tandem_join_options all = {};
  memcpy(&all, options, std::min<uint64_t>(options->size, sizeof all));
  return Call([&]() -> absl::Status {
    SetUpHost();
    TANDEM_ASSIGN_OR_RETURN(auto joined, Join(all));
    *worker = new tandem_worker(std::move(joined));
    return absl::OkStatus();
  });
}

int tandem_wait_joined(tandem_worker* worker, int64_t timeout_ms) {
  return CallOn(worker, "worker", [&] { return worker->attached->WaitJoined(After(timeout_ms)); });
}

int32_t tandem_rank(const tandem_worker* worker) { return worker->attached->rank(); }

int32_t tandem_world_size(const tandem_worker* worker) {
  return worker->attached->plan().workers();
}
int32_t tandem_servers(const tandem_worker* worker) {
  return worker->attached->plan().server_processes();
}
int32_t tandem_epochs(const tandem_worker* worker) {
  return worker->attached->plan().job.train().epochs();
}
int32_t tandem_batch(const tandem_worker* worker) {
  return worker->attached->plan().job.train().batch_size();
}
int32_t tandem_test_batch(const tandem_worker* worker) {
  return worker->attached->plan().job.evaluation().batch_size();
}
int32_t tandem_prefetch_steps(const tandem_worker* worker) {
  return worker->attached->plan().job.train().prefetch_steps();
}
uint64_t tandem_seed(const tandem_worker* worker) { return worker->attached->plan().job.seed(); }
int32_t tandem_dense_on_servers(const tandem_worker* worker) {
  return worker->attached->plan().dense_table >= 0 ? 1 : 0;
}
int32_t tandem_program_optimizer(const tandem_worker* worker) {
  const auto kind = worker->attached->plan().job.dense().optimizer().kind();
  return kind == tandem::Optimizer::PROGRAM ? 1 : 0;
}

int32_t tandem_tables(const tandem_worker* worker) { return TablesOf(worker); }
const char* tandem_table_name(const tandem_worker* worker, int32_t table) {
  const tandem::job::TablePlan* const plan = TableOf(worker, table);
  return plan == nullptr ? "" : plan->name.c_str();
}
double tandem_table_rate(const tandem_worker* worker, int32_t table) {
  const tandem::job::TablePlan* const plan = TableOf(worker, table);
  if (plan == nullptr) return 0;
  const auto schedule = tandem::optim::Schedule::New(plan->optimizer.schedule());
  const bool constant = !schedule.ok() || *schedule == nullptr;
  const float factor = constant ? 1.0f : (*schedule)->FactorAt(worker->sample_clock);
  return plan->optimizer.learning_rate() * static_cast<double>(factor);
}
int32_t tandem_table_dim(const tandem_worker* worker, int32_t table) {
  const tandem::job::TablePlan* const plan = TableOf(worker, table);
  return plan == nullptr ? 0 : plan->dim;
}
int32_t tandem_table_fields(const tandem_worker* worker, int32_t table) {
  const tandem::job::TablePlan* const plan = TableOf(worker, table);
  return plan == nullptr ? 0 : static_cast<int32_t>(plan->fields.size());
}
const char* tandem_field_name(const tandem_worker* worker, int32_t table, int32_t field) {
  if (field < 0 || field >= tandem_table_fields(worker, table)) return "";
  return TableOf(worker, table)->fields[static_cast<size_t>(field)].c_str();
}

int tandem_start(tandem_worker* worker, int32_t count, const char* const* names,
                 const int32_t* dims, const int64_t* shapes, const float* values) {
  return CallOn(worker, "worker",
                [&] { return Start(worker, count, names, dims, shapes, values); });
}

int tandem_wait_started(tandem_worker* worker, int64_t timeout_ms) {
  return CallOn(worker, "worker", [&] { return worker->attached->WaitStarted(After(timeout_ms)); });
}

float* tandem_dense(tandem_worker* worker, int64_t* count) {
  const absl::Span<float> dense = worker->attached->dense();
  if (count != nullptr) *count = static_cast<int64_t>(dense.size());
  return dense.data();
}

int tandem_next(tandem_worker* worker, int64_t timeout_ms, tandem_request* request) {
  return CallOn(worker, "worker", [&]() -> absl::StatusOr<bool> {
    if (request == nullptr) return Missing("request");
    *request = tandem_request();
    TANDEM_ASSIGN_OR_RETURN(const tandem::worker::Request next,
                            worker->attached->Next(After(timeout_ms)));
    request->kind = KindOf(next);
    request->first = next.first ? 1 : 0;
    request->last = next.last ? 1 : 0;
    request->step = next.step;
    request->epoch = next.epoch;
    request->samples = next.samples;
    if (request->kind == TANDEM_COMPUTE) worker->sample_clock = next.sample_clock;
    return request->kind != TANDEM_NOTHING;
  });
}

int tandem_give(tandem_worker* worker, int64_t samples, const tandem_field* fields,
                const uint8_t* unpooled) {
  return CallOn(worker, "worker", [&] {
    const absl::Status filled = worker->ids.Fill(samples, fields, unpooled, &worker->batch);
    return filled.ok() ? worker->attached->GiveBatch(&worker->batch) : filled;
  });
}

int tandem_rows(tandem_worker* worker, int32_t table, float* cells, int64_t floats) {
  return CallOn(worker, "worker", [&] { return Rows(worker, table, cells, floats); });
}

int tandem_finish(tandem_worker* worker, double loss_sum, const float* const* cells,
                  const int64_t* floats, const float* dense, float scale) {
  return CallOn(worker, "worker",
                [&] { return Finish(worker, loss_sum, cells, floats, dense, scale); });
}

int tandem_skip(tandem_worker* worker) {
  return CallOn(worker, "worker", [&] { return worker->attached->Finish({.skip = true}); });
}

int tandem_clip_norm(tandem_worker* worker, float norm) {
  return CallOn(worker, "worker", [&]() -> absl::Status {
    if (!(norm >= 0) || std::isinf(norm)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tandem_clip_norm: ", norm, ", expected 0 or a finite number above 0"));
    }
    worker->clip_norm = norm;
    return absl::OkStatus();
  });
}

int tandem_mean_gradient(tandem_worker* worker, float* gradient) {
  return CallOn(worker, "worker", [&] { return MeanGradient(worker, gradient); });
}

int tandem_updated(tandem_worker* worker) {
  return CallOn(worker, "worker", [&] { return worker->attached->Updated(); });
}

int tandem_score(tandem_worker* worker, const float* logits, const float* labels, int64_t samples) {
  return CallOn(worker, "worker", [&] { return Score(worker, logits, labels, samples); });
}

int tandem_checkpoint_state(tandem_worker* worker, const void* bytes, int64_t count) {
  return CallOn(worker, "worker", [&] { return CheckpointState(worker, bytes, count); });
}

int tandem_resumed_state(tandem_worker* worker, int32_t rank, const void** bytes, int64_t* count,
                         int64_t* epoch) {
  return CallOn(worker, "worker",
                [&] { return CheckpointState(worker, rank, bytes, count, epoch); });
}

int tandem_initial_state(tandem_worker* worker, const void** bytes, int64_t* count) {
  return CallOn(worker, "worker", [&] { return InitialState(worker, bytes, count); });
}

int tandem_enter_barrier(tandem_worker* worker) {
  return CallOn(worker, "worker", [&] { return worker->attached->EnterBarrier(); });
}

int tandem_wait_barrier(tandem_worker* worker, int64_t timeout_ms) {
  return CallOn(worker, "worker",
                [&] { return worker->attached->WaitBarrier(After(timeout_ms), &worker->reduced); });
}

int tandem_enter_reduction(tandem_worker* worker, int32_t count, const char* const* names,
                           const double* values, int32_t reduction, double weight, int64_t step,
                           int32_t of_evaluation) {
  return CallOn(worker, "worker", [&] {
    return EnterReduction(worker, count, names, values, reduction, weight, step, of_evaluation);
  });
}

int tandem_reduced(tandem_worker* worker, const char* name, double* value) {
  return CallOn(worker, "worker", [&] { return Reduced(worker, name, value); });
}

int tandem_evaluation(tandem_worker* worker, int64_t timeout_ms, const char** json) {
  return CallOn(worker, "worker", [&] { return Evaluation(worker, timeout_ms, json); });
}

const char* tandem_deciding_number(const tandem_worker* worker) {
  return worker->attached->plan().job.train().keep_best().name().c_str();
}

int tandem_record(tandem_worker* worker, const char** json) {
  return CallOn(worker, "worker", [&] { return TakeRecord(worker, json); });
}

int tandem_report(tandem_worker* worker, int32_t count, const char* const* names,
                  const double* values, int64_t step, int64_t timeout_ms) {
  return CallOn(worker, "worker",
                [&] { return Report(worker, count, names, values, step, timeout_ms); });
}

int tandem_request_checkpoint(tandem_worker* worker, int64_t step) {
  return CallOn(worker, "worker", [&] { return worker->attached->RequestCheckpoint(step); });
}

int tandem_request_end(tandem_worker* worker) {
  return CallOn(worker, "worker", [&] {
    worker->attached->RequestEnd();
    return absl::OkStatus();
  });
}

int tandem_rest(tandem_worker* worker) {
  return CallOn(worker, "worker", [&]() -> absl::Status {
    // With several workers, another one may have given its part of the step that is left out.
    if (const int workers = worker->attached->plan().workers(); workers > 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("tandem_rest: the job has ", workers,
                       " workers; only the worker of a job of one may rest"));
    }
    worker->attached->Rest();
    return absl::OkStatus();
  });
}

int32_t tandem_writes_checkpoints(const tandem_worker* worker) {
  return worker->attached->checkpoints() ? 1 : 0;
}

int32_t tandem_stopped(const tandem_worker* worker) { return worker->attached->stopped() ? 1 : 0; }

// The codes of these three functions mean that this worker itself has failed. The scheduler takes
// some other codes for consequences of another node's failure, and waits for that failure. Only
// after INTERNAL may another attempt follow.
void tandem_fail(tandem_worker* worker, const char* why) {
  (void)CallOn(worker, "worker", [&] {
    worker->attached->Fail(absl::InternalError(OrEmpty(why)));
    return absl::OkStatus();
  });
}

void tandem_fail_diverged(tandem_worker* worker, const char* why) {
  (void)CallOn(worker, "worker", [&] {
    worker->attached->Fail(tandem::DivergedError(OrEmpty(why)));
    return absl::OkStatus();
  });
}

void tandem_fail_again(tandem_worker* worker, const char* why) {
  (void)CallOn(worker, "worker", [&] {
    worker->attached->Fail(absl::InvalidArgumentError(OrEmpty(why)));
    return absl::OkStatus();
  });
}

int tandem_close(tandem_worker* worker) {
  return CallOn(worker, "worker", [&] { return worker->attached->Close(); });
}

void tandem_free(tandem_worker* worker) { delete worker; }

int tandem_fail_at_exit() {
  return Call([] {
    const auto end = [](int status, void*) {
      (void)std::fflush(nullptr);
      _exit(status == 0 ? 1 : status);
    };
    if (on_exit(end, nullptr) == 0) return absl::OkStatus();
    return absl::ResourceExhaustedError("no memory for a function that is called at exit");
  });
}

int tandem_hash_ids(const char* field, const int64_t* ids, int64_t count, int64_t* out) {
  return Call([&] {
    return HashEach(field, ids, count, out, [](const tandem::data::FieldHash& hash, int64_t id) {
      return hash.Key(absl::AlphaNum(id).Piece());
    });
  });
}

int tandem_hash_numbers(const char* field, const int64_t* numbers, int64_t count, int64_t* out) {
  return Call([&] {
    return HashEach(field, numbers, count, out,
                    [](const tandem::data::FieldHash& hash, int64_t number) {
                      return hash.Key(static_cast<uint64_t>(number));
                    });
  });
}

int tandem_hash_texts(const char* field, const char* texts, const int64_t* offsets, int64_t count,
                      int64_t* out) {
  return Call([&] { return HashTexts(field, texts, offsets, count, out); });
}

int tandem_check_checkpoint(const char* folder) {
  return Call([&] { return CheckCheckpoint(OrEmpty(folder)); });
}
