// Observer sees the events of a simulated world while it runs. An observer changes nothing, but may
// end the world with an error (SimContext::Fail). The functions here do nothing, so a world without
// an observer uses this class.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_OBSERVER_H_
#define TANDEM_TOOLS_SIM_OBSERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/endpoint.h"
#include "proto/frame.h"
#include "proto/range_map.h"
#include "proto/wire.pb.h"
#include "server/checkpoint/range_file.h"
#include "server/shard_core.h"

namespace tandem::sim {

// Sees dense sums that do not wait for all workers (dense.quorum), and sync rounds that do not
// (local_steps.quorum). Each function is about worker `rank`.
class SumObserver {
 public:
  virtual ~SumObserver() = default;
  virtual void OnRead(int /*rank*/) {}  // takes the model after the ended sums
  // ... at a sync round, with these values
  virtual void OnTaken(int /*rank*/, absl::Span<const float> /*values*/) {}
  virtual void OnStepped(int /*rank*/, int64_t /*step*/) {}  // collects the gradient of this step
  virtual void OnBrought(int /*rank*/) {}      // gives the collected gradients to the next sum
  virtual void OnBroughtRest(int /*rank*/) {}  // the same before all workers settle
  virtual void OnSumBegins(int /*rank*/) {}
  virtual void OnSumEnds(int /*rank*/, absl::Span<const float> /*model*/) {}
  // How many sums each gradient missed, for gradients whose own sums began since the last call.
  virtual void OnMissed(int /*rank*/, absl::Span<const int64_t> /*missed*/) {}
};

class Observer {
 public:
  virtual ~Observer() = default;

  // The worker resumes from a checkpoint, or takes the place of a dead process after so many
  // evaluations of this attempt. Comes before its other events.
  virtual void OnResume(int /*rank*/, const TrainPosition& /*start*/) {}
  virtual void OnReplace(int /*rank*/, int64_t /*evaluations*/) {}
  virtual void OnStep(int /*rank*/, int64_t /*step*/) {}  // begins to compute it
  virtual void OnPush(int /*rank*/, int64_t /*step*/) {}  // sends a frame of it
  virtual SumObserver& sums() { return no_sums_; }

  // The ranges of the first view.
  virtual void OnRanges(const std::shared_ptr<const RangeMap>& /*ranges*/) {}
  // The shard took a PUSH.
  virtual void OnPushTaken(EndpointId /*shard*/, const ParsedFrame& /*push*/) {}
  virtual void OnDelayedFinished() {}
  // After each event of a shard, before its frames are sent.
  virtual void AfterShard(EndpointId /*shard*/, const server::ShardEffects& /*effects*/) {}
  // The memory of a server changed in another way: the server loads or copies rows.
  virtual void OnMemory(int /*server*/) {}

  // Checkpoints (checkpoint_files.h). An error ends the checkpoint.
  virtual absl::Status OnRangeFile(const std::string& /*folder*/, const std::string& /*file*/,
                                   server::RangeImage /*image*/) {
    return absl::OkStatus();
  }
  virtual absl::Status OnDenseFile(const std::string& /*folder*/, const std::string& /*bytes*/) {
    return absl::OkStatus();
  }
  // The files of a checkpoint are complete. `step` and `record` are as in CommitCheckpointTask.
  virtual void OnCommit(const std::string& /*folder*/, const RangeMap& /*ranges*/, int64_t /*step*/,
                        const std::string& /*record*/) {}
  virtual void OnAbandon(const std::string& /*folder*/) {}

  // The job ended, and no range is on its way.
  virtual void OnEnd() {}

 private:
  SumObserver no_sums_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_OBSERVER_H_
