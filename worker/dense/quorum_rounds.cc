#include "worker/dense/quorum_rounds.h"

#include <utility>

#include "base/status_macros.h"

namespace tandem::worker {

QuorumRounds::QuorumRounds(DenseParameters& dense, std::unique_ptr<collectives::AsyncGroup> mail,
                           GroupRunner& runner, const Options& options)
    : replica_(dense, options.replica),
      sums_(replica_.common(), replica_.NewModel(), std::move(mail), runner, options.sums) {}

absl::Status QuorumRounds::Finish(absl::Span<float> gradient, const Step& step,
                                  StepResult* result) {
  if (!replica_.Step(gradient, step)) return absl::OkStatus();
  const SyncReplica::Movement movement = replica_.Bring();
  TANDEM_RETURN_IF_ERROR(sums_.Finish(movement.values, movement.sync_round, result));
  sums_.BeforeStep();
  replica_.TakeCommon();
  return absl::OkStatus();
}

// The rest is added before rank 0 lets the others continue without this worker, so it is no later
// than in a sync round.
absl::Status QuorumRounds::OutOfData() {
  AddRest();
  return sums_.OutOfData();
}

void QuorumRounds::AddRest() {
  if (!replica_.has_rest()) return;
  const SyncReplica::Movement rest = replica_.BringRest();
  sums_.Add(rest.values, rest.sync_round);
}

absl::Status QuorumRounds::Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) {
  AddRest();
  TANDEM_RETURN_IF_ERROR(sums_.Settle(new_epoch, step, missed));
  if (new_epoch) replica_.BeginEpoch(step);
  replica_.TakeCommon();
  return absl::OkStatus();
}

absl::Status QuorumRounds::SetState(absl::string_view state) {
  TANDEM_RETURN_IF_ERROR(replica_.SetState(state));
  return state.empty() ? absl::OkStatus() : sums_.SetModel();
}

}  // namespace tandem::worker
