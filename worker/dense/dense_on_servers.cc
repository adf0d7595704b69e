#include "worker/dense/dense_on_servers.h"

#include <algorithm>

namespace tandem::worker {
namespace {

// Copies the rows of all blocks into one piece.
void JoinBlocks(absl::Span<const float* const> blocks, std::vector<float>* joined) {
  joined->resize(blocks.size() * job::kDenseBlockFloats);
  float* to = joined->data();
  for (const float* const block : blocks) to = std::copy_n(block, job::kDenseBlockFloats, to);
}

// Cuts a gradient into blocks; the gradient may be longer than the blocks.
void CutIntoBlocks(absl::Span<const float> joined, absl::Span<float* const> blocks) {
  const float* from = joined.data();
  for (float* const block : blocks) {
    std::copy_n(from, job::kDenseBlockFloats, block);
    from += job::kDenseBlockFloats;
  }
}

}  // namespace

DenseOnServers::DenseOnServers(TrainerContext& context, DenseParameters& dense)
    : context_(context),
      dense_(dense),
      table_(static_cast<uint32_t>(context.plan.dense_table)),
      group_(context.plan.tables[table_].group) {}

bool DenseOnServers::Prepare(absl::Time now) {
  if (context_.replaces) return true;
  // The barrier keeps the other workers from pulling before the values of rank 0 have arrived: rank
  // 0 enters it only when its push is acknowledged.
  if (!assigning_) {
    assigning_ = true;
    if (context_.rank == 0 && !context_.resumed) Assign(now);
  }
  if (!context_.pushes.empty() || !context_.barriers.Pass(now, "assigned", 0)) return false;
  assigned_rows_ = {};
  return true;
}

void DenseOnServers::Assign(absl::Time now) {
  assigned_rows_ = dense_.RowsWithSlots();
  client::ClientCore::PushInfo info;
  info.group = group_;
  info.flags = kFlagAssign | kFlagWithSlots;
  const client::TableKeys keys{table_, dense_.block_keys()};
  const absl::Span<const float> values = assigned_rows_;
  context_.pushes.Add(context_.client.Push(now, info, {&keys, 1}, {&values, 1}), 0, now);
}

absl::Span<const uint64_t> DenseOnServers::BlocksIn(uint32_t group) const {
  return group == group_ ? dense_.block_keys() : absl::Span<const uint64_t>();
}

void DenseOnServers::OnRows(StepSlot* slot) {
  JoinBlocks(slot->dense_rows.at(), &slot->dense);
  slot->dense_rows.Clear();
}

void DenseOnServers::WriteGradient(uint32_t group, StepSlot* slot) {
  if (group != group_ || dense_.blocks() == 0) return;  // a module without parameters
  const client::ClientCore::PreparedPush& push = slot->pushes[group];
  CutIntoBlocks(slot->dense_gradient, push.at(push.tables() - 1));
}

uint64_t DenseOnServers::ReadLatest(absl::Time now) {
  const client::TableKeys keys{table_, dense_.block_keys()};
  const absl::Span<float> rows = dense_.padded();
  return context_.client.Pull(now, group_, context_.step(), {&keys, 1}, {&rows, 1}, kFlagEvaluate);
}

}  // namespace tandem::worker
