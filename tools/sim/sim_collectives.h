// The collectives of one simulated worker. An engine (collectives/engine.h) runs the reduction of
// dense parameters (worker/dense/dense_reduction.h) over links of frames
// (collectives/links/frame_link.h). The links use connections of the simulated network, which lose
// nothing but are sometimes slow.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_SIM_COLLECTIVES_H_
#define TANDEM_TOOLS_SIM_SIM_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "collectives/engine.h"
#include "collectives/links/frame_link.h"
#include "collectives/schedules/schedule_cache.h"
#include "job/job.h"
#include "proto/activity.h"
#include "proto/outgoing.h"
#include "worker/dense/dense_reduction.h"

namespace tandem::sim {

class SimCollectives {
 public:
  // Creates the collectives of worker `rank` for `reduction`. UNIMPLEMENTED if they need threads or
  // a GPU. References must outlive this.
  static absl::StatusOr<std::unique_ptr<SimCollectives>> New(
      const job::ResolvedJob& plan, int rank, std::unique_ptr<worker::DenseReduction> reduction,
      BufferSource& buffers);

  // Call before the model computes.
  void BeforeStep() { reduction_->BeforeStep(); }
  // A step is computed. `gradient` must stay valid until over().
  void Begin(absl::Span<float> gradient, const worker::DenseReduction::Step& step);
  // For a checkpoint, between steps.
  void BeginGather() { reduction_->BeginGather(); }
  absl::Status OnFrame(const ParsedFrame& frame);
  // Makes all possible progress, and appends the frames to send.
  absl::Status Progress(absl::Time now, std::vector<Outgoing>* out);
  // Whether the operation that was begun has ended.
  bool over() const { return reduction_->over(); }
  worker::DenseReduction& reduction() { return *reduction_; }
  // Payload bytes sent to other workers since the last call.
  uint64_t TakeBytes();

  Activity WaitingFor(absl::Time now) const;

 private:
  SimCollectives(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  absl::Status Start(absl::Time now, const worker::DenseReduction::Request& request);
  int64_t CountOf(const worker::DenseReduction::Request& request) const;
  absl::StatusOr<bool> RunRequests(absl::Time now);

  const int rank_, ranks_;
  std::unique_ptr<worker::DenseReduction> reduction_;
  std::vector<std::unique_ptr<collectives::FrameLink>> links_;  // by rank; null at this one
  std::unique_ptr<collectives::CollectiveEngine> engine_;
  collectives::ScheduleCache schedules_;
  bool running_ = false;  // operation `number_` runs
  uint64_t number_ = 0;
  uint64_t counted_bytes_ = 0;
  std::vector<Frame> frames_;  // scratch
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_SIM_COLLECTIVES_H_
