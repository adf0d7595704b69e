#include "job/resume_check.h"

#include <google/protobuf/util/message_differencer.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "optim/own_settings.h"

namespace tandem::job {
namespace {

// Clears the fields that say how the same rows are read.
void ClearReading(Data* data) {
  data->clear_cache();
  data->clear_readers();
}

// The job without the fields that may change when a run resumes.
Job WhatMustStay(Job job) {
  job.clear_name();
  ClearReading(job.mutable_data());
  Cluster* const cluster = job.mutable_cluster();
  cluster->clear_servers();
  cluster->clear_shards_per_server();
  cluster->clear_ranges_per_shard();
  cluster->clear_transport();
  cluster->clear_pin_servers();
  cluster->clear_max_restarts();
  cluster->clear_memory_per_server();
  job.mutable_train()->clear_epochs();
  job.mutable_train()->clear_max_steps();
  job.mutable_train()->mutable_keep_best()->clear_patience();
  job.mutable_dense()->clear_link();
  job.mutable_dense()->clear_algorithm_rules();
  job.mutable_dense()->clear_calibration();
  job.mutable_dense()->mutable_optimizer()->clear_learning_rate();
  job.mutable_dense()->mutable_optimizer()->clear_schedule();
  // The path of the file may change. The worker compares the contents with those that the run began
  // with.
  if (job.model().has_script()) job.mutable_model()->mutable_script()->clear_file();
  for (Table& table : *job.mutable_table()) {
    table.mutable_optimizer()->clear_learning_rate();
    table.mutable_optimizer()->clear_schedule();
    table.clear_expected_rows();
    table.clear_placement();
    table.clear_admission();
    table.clear_eviction();
  }
  job.clear_evaluation();
  job.clear_staleness();
  job.clear_limits();
  job.clear_fault_injection();
  job.clear_checkpoint();
  job.clear_security();
  return job;
}

// Clears the fields of a policy that only weigh gradients. Decisions about versions and held
// updates depend on the kind and its other fields only.
void ClearWeights(Policy* policy) {
  policy->clear_async_scale();
  policy->clear_compensation();
  policy->clear_mean_square_decay();
  policy->clear_token_gap();
}

Job WhatAReplayKeeps(Job job) {
  job.clear_name();
  ClearReading(job.mutable_data());
  job.mutable_cluster()->clear_transport();
  job.mutable_cluster()->clear_pin_servers();
  job.mutable_cluster()->clear_max_restarts();
  job.mutable_cluster()->clear_memory_per_server();
  Dense* const dense = job.mutable_dense();
  dense->clear_link();
  dense->clear_calibration();
  dense->clear_optimizer();
  ClearWeights(job.mutable_policy());
  if (dense->has_policy()) ClearWeights(dense->mutable_policy());
  for (Table& table : *job.mutable_table()) {
    table.clear_optimizer();
    table.clear_initializer();
    table.clear_row_dtype();
    table.clear_state_dtype();
    table.clear_hot_rows();
    table.clear_expected_rows();
    table.clear_admission();
    table.clear_eviction();
    ClearWeights(table.mutable_policy());
  }
  job.clear_fault_injection();
  job.clear_evaluation();
  job.mutable_staleness()->clear_record_updates();
  job.mutable_staleness()->clear_gradients();
  job.mutable_staleness()->clear_row_share();
  job.clear_limits();
  job.clear_checkpoint();
  job.clear_security();
  return job;
}

// The job without the fields that do not influence the numbers of a model that is computed in a
// recorded order.
Job WhatMakesTheModel(Job job) {
  job.clear_name();
  ClearReading(job.mutable_data());
  job.mutable_cluster()->clear_transport();
  job.mutable_cluster()->clear_pin_servers();
  job.mutable_cluster()->clear_max_restarts();
  job.mutable_cluster()->clear_memory_per_server();
  job.mutable_dense()->clear_link();
  job.mutable_dense()->clear_calibration();
  for (Table& table : *job.mutable_table()) table.clear_expected_rows();
  if (!job.train().has_keep_best()) job.clear_evaluation();
  job.clear_fault_injection();
  job.clear_staleness();
  job.clear_limits();
  job.clear_checkpoint();
  job.clear_security();
  return job;
}

std::vector<std::string> Differences(Job was, Job is) {
  for (Job* const job : {&was, &is}) {
    job->mutable_data()->clear_statistics();
    job->mutable_data()->clear_border();
    job->mutable_data()->clear_train_bytes();
  }
  // The data decide the deal of a job that does not name it.
  if (was.data().deal() == Data::DEAL_UNSPECIFIED || is.data().deal() == Data::DEAL_UNSPECIFIED) {
    was.mutable_data()->clear_deal();
    is.mutable_data()->clear_deal();
  }
  // The label that counts as 0 may have been found in the data, so compare it only if the new job
  // names it.
  if (was.data().has_columns() && is.data().columns().negative().empty()) {
    was.mutable_data()->mutable_columns()->clear_negative();
  }
  std::string report;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(was, is)) return {};
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(report, '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "modified: ")) {
      lines.emplace_back(line);
    } else if (absl::ConsumePrefix(&line, "added: ")) {
      lines.push_back(absl::StrCat(line, ", which was not set"));
    } else if (absl::ConsumePrefix(&line, "deleted: ")) {
      lines.push_back(absl::StrCat(line, " is not set any more"));
    } else {
      lines.emplace_back(line);
    }
  }
  return lines;
}

}  // namespace

std::vector<std::string> ResumeDifferences(const Job& was, const Job& is) {
  return Differences(WhatMustStay(was), WhatMustStay(is));
}

std::vector<std::string> ReplayDifferences(const Job& was, const Job& is) {
  return Differences(WhatAReplayKeeps(was), WhatAReplayKeeps(is));
}

std::vector<std::string> ModelDifferences(const Job& was, const Job& is) {
  return Differences(WhatMakesTheModel(was), WhatMakesTheModel(is));
}

std::vector<std::string> AllDifferences(const Job& was, const Job& is) {
  return Differences(was, is);
}

Overrides EarlierSettings(const Job& written) {
  Overrides settings;
  for (int t = 0; t < written.table_size(); ++t) {
    const Optimizer& optimizer = written.table(t).optimizer();
    if (optimizer.kind() != Optimizer::ADAM || optimizer.step_count() != 0) continue;
    settings.emplace_back(absl::StrCat("table[", t, "].optimizer.step_count"), "ROW");
  }
  return settings;
}

void KeepStepCounts(const Job& was, Job* job) {
  for (Table& table : *job->mutable_table()) {
    const Optimizer::Kind own = table.optimizer().kind();
    const Optimizer::Kind kind = own == 0 ? job->dense().optimizer().kind() : own;
    if (!optim::IsKindOfAdam(kind) || table.optimizer().step_count() != 0) continue;
    for (const Table& before : was.table()) {
      if (before.name() != table.name() || before.optimizer().step_count() == 0) continue;
      table.mutable_optimizer()->set_step_count(before.optimizer().step_count());
    }
  }
}

}  // namespace tandem::job
