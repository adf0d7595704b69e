#include "tests/sim/proof/checkpoint_check.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/shard_checkpoint.h"
#include "worker/dense/dense_parameters.h"

namespace tandem {
void CheckpointCheck::Abandon(const std::string& folder) {
  checkpoints_under_way_.erase(folder);
  dense_values_.erase(folder);
}

absl::Status CheckpointCheck::Add(const std::string& folder, const std::string& file,
                                  server::RangeImage image) {
  if (checkpoints_under_way_[folder].emplace(file, std::move(image)).second)
    return absl::OkStatus();
  return absl::InternalError(absl::StrCat(file, " is saved twice"));
}

absl::Status CheckpointCheck::AddDense(const std::string& folder, int64_t count,
                                       const std::string& bytes) {
  TANDEM_ASSIGN_OR_RETURN(
      const auto dense, worker::DenseParameters::New(context_.plan.job.dense().optimizer(), count));
  TANDEM_ASSIGN_OR_RETURN(
      const server::RangeImage image,
      server::DecodeRange({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  TANDEM_RETURN_IF_ERROR(dense->Load(image));
  if (judge_ != nullptr && judge_->quorum() != nullptr) {
    judge_->quorum()->CheckWhole(0, dense->values());  // no worker computes
  }
  dense_values_[folder].assign(dense->values().begin(), dense->values().end());
  return absl::OkStatus();
}

void CheckpointCheck::Commit(const std::string& folder, const RangeMap& ranges, int64_t step,
                             const std::string& record) {
  ++checkpoints_;
  const Files files = std::move(checkpoints_under_way_[folder]);
  checkpoints_under_way_.erase(folder);
  const auto want = static_cast<size_t>(
      std::count_if(ranges.ranges().begin(), ranges.ranges().end(),
                    [](const RangeMap::Range& range) { return range.copy == 0; }));
  if (files.size() != want) {
    context_.Fail(absl::StrCat(folder, " has ", files.size(), " of ", want, " ranges"));
  }
  CheckHeldBack(files);
  CheckSteps(files);
  RunRecord run;
  if (!run.ParseFromString(record)) context_.Fail(absl::StrCat(folder, ": bad run record"));
  CheckCut(files, run);
  CheckCounts(folder, run);
  if (judge_ == nullptr) return;
  CheckRows(files);
  const auto dense = dense_values_.find(folder);
  if (dense == dense_values_.end()) return;
  judge_->CheckDenseSaved(step, dense->second);
  dense_values_.erase(dense);
}

// Checks that every range has all steps of each worker below the worker's position, and no later
// one.
void CheckpointCheck::CheckCut(const Files& files, const RunRecord& record) {
  for (const auto& [file, image] : files) {
    if (image.progress.workers.empty() || PolicyOf(image.table).store) continue;
    for (int rank = 0; rank < context_.plan.workers(); ++rank) {
      const int64_t admitted = image.progress.workers[static_cast<size_t>(rank)].admitted;
      const int64_t want = rank < record.worker_size() ? record.worker(rank).position().step() : -1;
      if (admitted == want) continue;
      context_.Fail(absl::StrCat(file, " has worker ", rank, " at step ", admitted,
                                 ", its position is ", want));
    }
  }
}

// Checks that the reports of the shards are those of the mark. Such reports count all updates that
// the workers have sent before the mark, and no later ones.
void CheckpointCheck::CheckCounts(const std::string& folder, const RunRecord& record) {
  for (const job::TablePlan& table : context_.plan.tables) {
    if (PolicyOf(table.name).store) continue;
    uint64_t sent = 0, arrived = 0;
    for (const Progress& worker : record.worker()) {
      if (static_cast<int>(table.id) < worker.updates_size()) {
        sent += worker.updates(static_cast<int>(table.id));
      }
    }
    for (const TableReport& report : record.table()) {
      if (report.table() == table.name) arrived += report.sent();
    }
    if (sent == arrived) continue;
    context_.Fail(absl::StrCat(folder, ": of table ", table.name, " the workers have sent ", sent,
                               " updates, ", arrived, " have arrived"));
  }
}

void CheckpointCheck::CheckRows(const Files& files) {
  std::set<std::pair<uint32_t, uint64_t>> there;
  for (const auto& [file, image] : files) {
    const auto table =
        std::find_if(context_.plan.tables.begin(), context_.plan.tables.end(),
                     [&name = image.table](const auto& t) { return t.name == name; });
    for (size_t i = 0; i < image.keys.size(); ++i) {
      there.insert({table->id, image.keys[i]});
      judge_->CheckSaved(
          image.progress, table->id, image.keys[i],
          absl::MakeConstSpan(image.weights)
              .subspan(i * static_cast<size_t>(image.dim), static_cast<size_t>(image.dim)));
    }
  }
  // A row that is in no file has its initial value.
  for (const auto& [table, key] : judge_->ledger().Rows()) {
    if (key == ToyModel::kDenseKey || there.count({table, key}) > 0) continue;
    const job::TablePlan& plan = context_.plan.tables[table];
    const uint64_t position = Position(plan.salt, key);
    const auto file = std::find_if(files.begin(), files.end(), [&](const auto& one) {
      const server::RangeImage& image = one.second;
      return image.table == plan.name && image.begin <= position &&
             (image.end == 0 || position < image.end);
    });
    if (file != files.end()) judge_->CheckSaved(file->second.progress, table, key, {});
  }
}

const policies::Properties& CheckpointCheck::PolicyOf(const std::string& name) const {
  const auto table = std::find_if(context_.plan.tables.begin(), context_.plan.tables.end(),
                                  [&name](const auto& t) { return t.name == name; });
  TANDEM_CHECK(table != context_.plan.tables.end());
  return context_.plan.groups[table->group].properties;
}

// Checks that all ranges of a table hold back the same number of steps. The number of open batches
// may differ. A worker may begin an epoch and use up its data before a range hears of the other
// workers. This range then closes a batch that other ranges keep open.
void CheckpointCheck::CheckHeldBack(const Files& files) {
  std::map<std::string, size_t> steps;  // by table
  for (const auto& [file, image] : files) {
    server::HeldQueue queue;
    const absl::Status read = server::DecodeQueue(image, context_.buffers, &queue);
    if (!read.ok()) context_.Fail(absl::StrCat(file, ": ", read.ToString()));
    if (PolicyOf(image.table).batch > 0) continue;
    const size_t first = steps.emplace(image.table, queue.size()).first->second;
    if (first == queue.size()) continue;
    context_.Fail(
        absl::StrCat(file, " holds back ", queue.size(), " steps, another of its table ", first));
  }
}

// Checks that all ranges are at the same steps, and the ranges of a table at the same version.
// Versions may differ if batches or dropped late updates change them. The ranges of a table that
// close the same steps also have the same stamp.
void CheckpointCheck::CheckSteps(const Files& files) {
  if (files.empty()) return;
  const auto& [first_file, first] = *files.begin();
  std::map<std::string, int64_t> versions, stamps;  // by table
  for (const auto& [file, image] : files) {
    const policies::Properties& policy = PolicyOf(image.table);
    const int64_t version = versions.emplace(image.table, image.progress.version).first->second;
    if (version != image.progress.version && policy.batch == 0 && !policy.skips &&
        !(policy.counts_applied && policy.drops)) {
      context_.Fail(absl::StrCat(file, " is at version ", image.progress.version,
                                 ", another of its table at ", version));
    }
    const int64_t stamp = stamps.emplace(image.table, image.stamp).first->second;
    if (stamp != image.stamp && policy.holds && policy.batch == 0 && !policy.skips) {
      context_.Fail(
          absl::StrCat(file, " has stamp ", image.stamp, ", another of its table ", stamp));
    }
    for (size_t rank = 0; rank < image.progress.workers.size(); ++rank) {
      const int64_t step = image.progress.workers[rank].admitted;
      const int64_t want = first.progress.workers[rank].admitted;
      if (step == want) continue;
      context_.Fail(absl::StrCat(file, " has worker ", rank, " at step ", step, ", ", first_file,
                                 " at ", want));
    }
  }
}

}  // namespace tandem
