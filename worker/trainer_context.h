// The state that the parts of one trainer share: the plan, its policies, the client, the barriers,
// and the worker's position in its steps.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_TRAINER_CONTEXT_H_
#define TANDEM_WORKER_TRAINER_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/client_core.h"
#include "job/job.h"
#include "policies/policy.h"
#include "proto/outgoing.h"
#include "proto/range_map.h"
#include "worker/step_order.h"
#include "worker/trainer_report.h"
#include "worker/trainer_task.h"
#include "worker/worker_barriers.h"

namespace tandem::worker {

// Pushes that are sent and not yet acknowledged, in the order in which they were sent.
class PushesUnderWay {
 public:
  void Add(uint64_t request, int64_t step, absl::Time now) {
    pushes_.push_back({request, step, now});
  }
  // False if `request` is not one of these pushes.
  bool OnDone(absl::Time now, uint64_t request, TrainerEffects* effects);
  bool empty() const { return pushes_.empty(); }
  int64_t Steps() const;  // number of steps that have a push in flight

 private:
  struct Push {
    uint64_t request = 0;
    int64_t step = 0;
    absl::Time since;
  };
  std::vector<Push> pushes_;
};

struct TrainerContext {
  TrainerContext(const job::ResolvedJob& plan, int rank, uint64_t incarnation,
                 BufferSource& buffers, const client::ClientCore::Options& client,
                 absl::Duration control_resend);

  const job::ResolvedJob& plan;
  const int rank;
  const uint64_t incarnation;
  BufferSource& buffers;
  const absl::Duration control_resend;
  std::vector<std::unique_ptr<policies::UpdatePolicy>> policies;  // by group
  client::ClientCore client;
  WorkerBarriers barriers;
  PushesUnderWay pushes;
  TrainerReport report;
  std::vector<Outgoing> control_out;
  absl::Status failure;   // why the job must end; the first one
  uint64_t progress = 0;  // grows with each event or step that moves the trainer on

  bool resumed = false;  // servers have their rows already: nothing is assigned to them
  // This process has taken the place of a dead one, and the other workers train.
  bool replaces = false;
  std::shared_ptr<const RangeMap> map;  // of the newest view
  StepOrder order;                      // the position of this worker, and its next step
  int64_t epoch = 0;
  int64_t epoch_rows = 0;  // rows that this worker has trained on in this epoch
  // The last known place in the files that is not beyond these rows. Batches that were read ahead
  // do not count.
  absl::optional<ReadPlace> place;
  // All workers have reached this step, as of the last end of an epoch: one step more than any
  // worker had samples for.
  int64_t common_step = 0;
  // The number of empty steps that closed earlier epochs: steps with numbers, but without samples
  // of any worker.
  int64_t closing_steps = 0;
  // The number of steps that closed the epoch that just ended: those that no worker had samples for
  // (epoch_end.h).
  int64_t empty_steps = 1;
  // Not in lockstep jobs: this worker ran out of samples in this epoch at the step before this one.
  // 0: it has samples.
  int64_t ended_at = 0;

  int64_t step() const { return order.step(); }  // the current step
  // The progress of the job at the current step, in nominal samples (Schedule in proto/job.proto).
  // Steps that only closed an epoch do not count.
  int64_t SampleClock() const {
    return (step() - closing_steps) * plan.job.train().batch_size() * plan.workers();
  }
  void Fail(absl::Status status);
  void SendControl(EndpointId to, const Control& control, Buffer values = Buffer());
  void SendDone(EndpointId to, uint64_t command, const absl::Status& status = absl::OkStatus());

  // The worker trains no step from this number on in this epoch, even if it has data.
  int64_t StepLimit() const;
  // At the end of an epoch: whether the epoch was the last one.
  bool LastEpoch() const;
  // Whether some policy holds back updates that the end of the job must apply: folded steps, or a
  // batch.
  bool HasDelay() const;

  // Sends an empty push of steps [first, step] to every shard: only the clocks move.
  void PushEmptyToAll(absl::Time now, int64_t first, int64_t step, uint8_t flags);
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_CONTEXT_H_
