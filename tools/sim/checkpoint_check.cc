#include "tools/sim/checkpoint_check.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/shard_checkpoint.h"
#include "worker/dense/dense_parameters.h"

namespace tandem::sim {
namespace {

absl::StatusOr<server::RangeImage> Decode(const std::string& bytes) {
  return server::DecodeRange({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

}  // namespace

absl::Status CheckpointCheck::Add(const std::string& folder, const std::string& file,
                                  const std::string& bytes) {
  TANDEM_ASSIGN_OR_RETURN(server::RangeImage image, Decode(bytes));
  if (context_.options.files != nullptr) {
    TANDEM_RETURN_IF_ERROR(context_.options.files->WriteRange(folder, file, bytes));
  }
  if (checkpoints_under_way_[folder].emplace(file, std::move(image)).second)
    return absl::OkStatus();
  return absl::InternalError(absl::StrCat(file, " is saved twice"));
}

absl::Status CheckpointCheck::AddDense(const std::string& folder, int64_t count,
                                       const std::string& bytes) {
  TANDEM_ASSIGN_OR_RETURN(
      const auto dense, worker::DenseParameters::New(context_.plan.job.dense().optimizer(), count));
  TANDEM_ASSIGN_OR_RETURN(const server::RangeImage image, Decode(bytes));
  TANDEM_RETURN_IF_ERROR(dense->Load(image));
  if (context_.judge != nullptr) context_.judge->CheckDenseEvaluated(0, dense->values());
  if (context_.options.files == nullptr) return absl::OkStatus();
  return context_.options.files->WriteDense(folder, bytes);
}

void CheckpointCheck::Commit(const std::string& folder, const RangeMap& ranges) {
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
    const absl::Status read = server::CheckpointQueueFixture(image, context_.buffers, &queue);
    if (!read.ok()) context_.Fail(absl::StrCat(file, ": ", read.ToString()));
    if (PolicyOf(image.table).batch > 0) continue;
    const size_t first = steps.emplace(image.table, queue.size()).first->second;
    if (first == queue.size()) continue;
    context_.Fail(
        absl::StrCat(file, " holds back ", queue.size(), " steps, another of its table ", first));
  }
}

// Checks that all ranges are at the same steps, and the ranges of a table at the same version.
// Versions may differ if batches or dropped late updates change them.
void CheckpointCheck::CheckSteps(const Files& files) {
  if (files.empty()) return;
  const auto& [first_file, first] = *files.begin();
  std::map<std::string, int64_t> versions;  // by table
  for (const auto& [file, image] : files) {
    const policies::Properties& policy = PolicyOf(image.table);
    const int64_t version = versions.emplace(image.table, image.progress.version).first->second;
    if (version != image.progress.version && policy.batch == 0 && !policy.skips) {
      context_.Fail(absl::StrCat(file, " is at version ", image.progress.version,
                                 ", another of its table at ", version));
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

}  // namespace tandem::sim
