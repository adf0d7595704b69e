#include <cmath>
#include <cstdint>

#include "job/job.h"
#include "job/job_check.h"
#include "job/row_shape.h"
#include "job/schedule_check.h"
#include "job/silence_times.h"
#include "optim/own_settings.h"
#include "policies/plugin.h"

namespace tandem::job {
namespace {

// Sets a number that is 0. In proto3, 0 is the same as not set.
#define TANDEM_DEFAULT(message, field, value) \
  if ((message)->field() == 0) (message)->set_##field(value)

void FillCluster(Cluster* cluster) {
  TANDEM_DEFAULT(cluster, shards_per_server, 1);
  TANDEM_DEFAULT(cluster, ranges_per_shard, 10);
  TANDEM_DEFAULT(cluster, threads_per_worker, 1);
  if (cluster->transport() == Cluster::TRANSPORT_UNSPECIFIED) {
    cluster->set_transport(Cluster::AUTO);
  }
  if (!cluster->has_max_restarts()) cluster->set_max_restarts(3);
}

void FillData(bool reproducible, Data* data) {
  // In other jobs the files decide the deal (data/row_data.h).
  if (reproducible && HasRowsInLines(*data) && data->deal() == Data::DEAL_UNSPECIFIED) {
    data->set_deal(Data::ROWS);
  }
  if (HasColumns(*data) && data->has_columns()) {
    Columns* columns = data->mutable_columns();
    if (data->format() == Data::PARQUET) {
      columns->set_header(true);  // columns have names
    } else if (columns->delimiter().empty()) {
      columns->set_delimiter("\t");
    }
    FillLabels(columns);
    for (Column& column : *columns->mutable_column()) {
      if (HasManyIds(column)) TANDEM_DEFAULT(&column, max_ids, 64);
    }
    if (columns->scale() == Column::SCALE_UNSPECIFIED) {
      columns->set_scale(columns->log_transform() ? Column::NONE : Column::STANDARDISE);
    }
  }
  if (data->format() == Data::LIBSVM) TANDEM_DEFAULT(data, max_ids, 4096);
  if (data->format() == Data::NCF) TANDEM_DEFAULT(data->mutable_negatives(), per_positive, 4);
}

// Clears the parts of a job that only scores rows. Training, validation and splits have no meaning
// then, and their files need not exist.
void FillScoring(Job* job) {
  if (!job->data().score_only()) return;
  Data* const data = job->mutable_data();
  data->clear_train();
  data->clear_validation();
  data->clear_negatives();
  data->clear_test_fraction();
  data->clear_max_bad_rows();
  data->clear_max_rows();
  data->clear_deal();
  data->clear_border();
  data->clear_train_bytes();
  job->mutable_train()->set_evaluate_only(true);
  job->clear_fault_injection();
}

void FillPolicy(const Policy& parent, Policy* policy) {
  if (policy->kind() == Policy::POLICY_UNSPECIFIED) {
    Policy merged = parent;
    if (!policy->library().empty()) merged.clear_library_hash();
    merged.MergeFrom(*policy);
    *policy = merged;
  }
  if (policy->kind() == Policy::POLICY_UNSPECIFIED) policy->set_kind(Policy::BSP);
  if (policy->async_scale() == Policy::ASYNC_SCALE_UNSPECIFIED)
    policy->set_async_scale(Policy::ONE);
  policies::FillLibraryHash(policy);
}

// By default a batch of GBA and RENNALA has as many updates as a synchronous step, and delays count
// from one update of each worker on.
void FillByWorkers(int workers, Policy* policy) {
  switch (policy->kind()) {
    case Policy::GBA:
      if (!policy->has_batches()) policy->set_batches(workers);
      if (!policy->has_token_gap()) policy->set_token_gap(4);
      break;
    case Policy::RENNALA:
      if (!policy->has_batches()) policy->set_batches(workers);
      break;
    case Policy::RINGMASTER:
      if (!policy->has_max_delay()) policy->set_max_delay(workers);
      break;
    case Policy::DELAY_ADAPTIVE:
      if (!policy->has_full_rate_delay()) policy->set_full_rate_delay(workers);
      break;
    default:
      break;
  }
}

void FillOptimizer(const Optimizer& parent, Optimizer* optimizer) {
  if (optimizer->kind() == Optimizer::OPTIMIZER_UNSPECIFIED) {
    Optimizer merged = parent;
    merged.clear_error_feedback();  // only for dense parameters
    if (optimizer->has_schedule()) merged.clear_schedule();
    merged.MergeFrom(*optimizer);
    *optimizer = merged;
  }
  if (optimizer->kind() == Optimizer::OPTIMIZER_UNSPECIFIED) optimizer->set_kind(Optimizer::SGD);
  optim::FillOwnSettings(optimizer);
}

void FillInitializer(int dim, Initializer* initializer) {
  if (initializer->kind() == Initializer::INITIALIZER_UNSPECIFIED) {
    initializer->set_kind(Initializer::UNIFORM);
  }
  if (initializer->kind() == Initializer::UNIFORM && dim > 0) {
    TANDEM_DEFAULT(initializer, scale, 1 / std::sqrt(static_cast<double>(dim)));
  }
}

void FillHeLoCo(HeLoCo* heloco) {
  if (!heloco->has_keep_cosine()) heloco->set_keep_cosine(0.5);
  if (!heloco->has_shrink()) heloco->set_shrink(1);
  if (!heloco->has_largest_shrink()) heloco->set_largest_shrink(1);
  if (!heloco->has_turn()) heloco->set_turn(1);
  if (!heloco->has_momentum_weight()) heloco->set_momentum_weight(1);
}

void FillLocalSteps(int workers, Dense* dense) {
  LocalSteps* const local = dense->mutable_local_steps();
  if (dense->synchroniser() == Dense::LOCAL_SGD) {
    TANDEM_DEFAULT(local, outer_learning_rate, 1);
    if (local->outer_momentum() > 0) {
      TANDEM_DEFAULT(local, outer_optimizer, LocalSteps::NESTEROV);
    }
    if (local->outer_optimizer() == LocalSteps::DELAYED_NESTEROV && workers > 0) {
      TANDEM_DEFAULT(local, momentum_rounds, workers);
    }
    if (local->outer_optimizer() == LocalSteps::HELOCO) FillHeLoCo(local->mutable_heloco());
  }
  if (dense->synchroniser() == Dense::EASGD && workers > 0) {
    TANDEM_DEFAULT(local, elasticity, 0.9 / workers);
  }
}

void FillDense(const Policy& policy, bool repeatable, bool rdma, int workers, Dense* dense) {
  if (dense->synchroniser() == Dense::SYNCHRONISER_UNSPECIFIED) {
    dense->set_synchroniser(Dense::ALLREDUCE);
  }
  FillOptimizer(Optimizer(), dense->mutable_optimizer());
  if (dense->device() == Dense::DEVICE_UNSPECIFIED) dense->set_device(Dense::CPU);
  if (dense->synchroniser() == Dense::SERVERS) {
    FillPolicy(policy, dense->mutable_policy());
    return;
  }
  if (dense->synchroniser() != Dense::ALLREDUCE) FillLocalSteps(workers, dense);
  if (dense->algorithm() == Dense::ALGORITHM_UNSPECIFIED) {
    dense->set_algorithm(repeatable ? Dense::DIRECT : Dense::AUTO);
  }
  if (dense->quorum() > Dense::ALL || dense->local_steps().quorum() > 0) {
    TANDEM_DEFAULT(dense, quorum_bound, 4);
  }
  if (dense->wire_dtype() == Dense::WIRE_DTYPE_UNSPECIFIED) dense->set_wire_dtype(Dense::F32);
  if (dense->link() == Dense::LINK_UNSPECIFIED) dense->set_link(rdma ? Dense::RDMA : Dense::ANY);
}

// Tables without a rule have no message, so that jobs of earlier versions keep their hash.
void FillRowRules(Table* table) {
  if (table->has_eviction() && table->eviction().kind() == Eviction::KIND_UNSPECIFIED) {
    table->mutable_eviction()->set_kind(Eviction::NONE);
  }
  if (!table->has_admission()) return;
  Admission* const admission = table->mutable_admission();
  if (admission->kind() == Admission::KIND_UNSPECIFIED) admission->set_kind(Admission::NONE);
  if (admission->unadmitted() == Admission::UNADMITTED_UNSPECIFIED) {
    admission->set_unadmitted(Admission::INITIAL);
  }
  if (admission->kind() == Admission::COUNT && table->eviction().kind() == Eviction::AGE &&
      !admission->has_within_versions()) {
    admission->set_within_versions(table->eviction().versions());
  }
}

void FillTable(const Job& job, Table* table) {
  if (table->placement() == Table::PLACEMENT_UNSPECIFIED) {
    table->set_placement(Table::SERVERS);
  }
  if (table->kind() == Table::KIND_UNSPECIFIED) table->set_kind(Table::EMBEDDING);
  if (table->kind() == Table::KEY_VALUE && table->policy().kind() == Policy::POLICY_UNSPECIFIED) {
    table->mutable_policy()->set_kind(Policy::KEY_VALUE);
  }
  if (table->row_dtype() == Table::DTYPE_UNSPECIFIED) table->set_row_dtype(Table::F32);
  if (table->state_dtype() == Table::DTYPE_UNSPECIFIED) table->set_state_dtype(Table::F32);
  if (table->has_hot_rows() && table->hot_rows().dtype() == Table::DTYPE_UNSPECIFIED) {
    table->mutable_hot_rows()->set_dtype(Table::F32);
  }
  FillPolicy(job.policy(), table->mutable_policy());
  TANDEM_DEFAULT(table, expected_rows, 1000000);
  // The model does not read it, and no worker trains it.
  if (table->policy().kind() == Policy::KEY_VALUE) return;
  if (job.data().format() == Data::PROGRAM) {
    if (table->field().empty()) table->add_field(table->name());
    TANDEM_DEFAULT(table, ids_per_field, 1);
  }
  FillOptimizer(job.dense().optimizer(), table->mutable_optimizer());
  if (optim::IsKindOfAdam(table->optimizer().kind()) &&
      table->optimizer().step_count() == Optimizer::STEP_COUNT_UNSPECIFIED) {
    table->mutable_optimizer()->set_step_count(Optimizer::TABLE);
  }
  FillInitializer(table->dim(), table->mutable_initializer());
  FillRowRules(table);
}

void FillLimits(Limits* limits) {
  TANDEM_DEFAULT(limits, report_interval_seconds, 1);
  TANDEM_DEFAULT(limits, stall_timeout_seconds, 600);
  TANDEM_DEFAULT(limits, held_bytes_per_shard, int64_t{1} << 30);
  TANDEM_DEFAULT(limits, startup_timeout_seconds, 60);
  TANDEM_DEFAULT(limits, silence_timeout_seconds, SilenceTimes::kDefaultSeconds);
}

void FillStepTime(SlowWorkers* entry) {
  if (entry->distribution() == SlowWorkers::DISTRIBUTION_UNSPECIFIED) {
    entry->set_distribution(entry->trace().empty() ? SlowWorkers::CONSTANT : SlowWorkers::TRACE);
  }
  if (entry->distribution() == SlowWorkers::LOGNORMAL) TANDEM_DEFAULT(entry, sigma, 0.5);
  if (entry->slow_share() > 0) TANDEM_DEFAULT(entry, slow_factor, 5);
}

void FillCheckpoint(Checkpoint* checkpoint) {
  if (checkpoint->every_steps() == 0) TANDEM_DEFAULT(checkpoint, every_seconds, 600);
  TANDEM_DEFAULT(checkpoint, keep, 2);
  if (!checkpoint->has_wait_for_room_seconds()) checkpoint->set_wait_for_room_seconds(600);
}

}  // namespace

void FillJobDefaults(Job* job) {
  if (job->name().empty()) job->set_name("job");
  FillCluster(job->mutable_cluster());
  FillScoring(job);
  FillData(job->reproducible(), job->mutable_data());
  FillPolicy(Policy(), job->mutable_policy());
  FillDense(job->policy(), job->reproducible() || job->staleness().record_order(),
            job->cluster().transport() == Cluster::RDMA, job->cluster().workers(),
            job->mutable_dense());
  for (Table& table : *job->mutable_table()) FillTable(*job, &table);
  const int workers = job->cluster().workers();
  FillByWorkers(workers, job->mutable_policy());
  if (job->dense().has_policy()) FillByWorkers(workers, job->mutable_dense()->mutable_policy());
  for (Table& table : *job->mutable_table()) FillByWorkers(workers, table.mutable_policy());
  if (!job->train().has_epochs()) job->mutable_train()->set_epochs(1);
  TANDEM_DEFAULT(job->mutable_train(), max_inflight_pushes, 4);
  FillSchedules(job);
  if (job->staleness().gradients()) TANDEM_DEFAULT(job->mutable_staleness(), row_share, 1.0 / 64);
  if (job->train().evaluate_only()) job->mutable_train()->clear_keep_best();  // no model is kept
  if (job->train().has_keep_best()) {
    KeepBest* const keep = job->mutable_train()->mutable_keep_best();
    if (keep->metric() == KeepBest::METRIC_UNSPECIFIED) keep->set_metric(KeepBest::AUC);
    TANDEM_DEFAULT(job->mutable_evaluation(), every_epochs, 1);
  }
  TANDEM_DEFAULT(job->mutable_evaluation(), batch_size, 4096);
  if (RanksItems(*job)) TANDEM_DEFAULT(job->mutable_evaluation(), top_k, 10);
  FillLimits(job->mutable_limits());
  FillCheckpoint(job->mutable_checkpoint());
  if (job->security().encrypt() == Security::ENCRYPT_UNSPECIFIED) {
    job->mutable_security()->set_encrypt(Security::CONTROL);
  }
  if (!job->has_fault_injection()) return;
  for (SlowWorkers& entry : *job->mutable_fault_injection()->mutable_slow_workers()) {
    FillStepTime(&entry);
  }
}

#undef TANDEM_DEFAULT

}  // namespace tandem::job
