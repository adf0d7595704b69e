// Delivers frames between shards and workers, and between workers, by reference. The network
// (network.h) may lose, double, reorder or cut off frames. Frames of collectives, and messages of
// workers about them, use connections: these deliver all frames in order, but sometimes late.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_DATA_FRAMES_H_
#define TANDEM_TOOLS_SIM_DATA_FRAMES_H_

#include <deque>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "proto/frame.h"
#include "proto/outgoing.h"
#include "tools/sim/network.h"
#include "tools/sim/sim_context.h"

namespace tandem::sim {

class DataFrames {
 public:
  using Arrive = std::function<void(EndpointId to, const ParsedFrame& frame)>;
  // `context` must outlive this. Calls `arrive` when a frame arrives.
  DataFrames(SimContext& context, Arrive arrive)
      : context_(context),
        arrive_(std::move(arrive)),
        network_(context.options.network, context.options.seed + 1,
                 context.plan.server_processes()),
        last_(static_cast<size_t>(context.plan.workers())) {}

  void Send(const Outgoing& out);
  // Sends a message on a second connection between two workers. Calls `arrives` when it arrives.
  void SendLetter(int from, int to, size_t bytes, std::function<void()> arrives);
  // A new process takes the place of this worker. The last frames of the dead process to servers
  // arrive once more, up to kLatest later.
  void ArriveAgain(int rank);
  // Starts to cut random pairs of endpoints off from each other, if the options say so.
  void StartCuts();

 private:
  static constexpr size_t kLast = 32;
  static constexpr absl::Duration kLatest = absl::Seconds(5);

  void Deliver(EndpointId to, const Frame& bytes);
  EndpointId Anybody();
  void CutSomebodyOff();

  SimContext& context_;
  const Arrive arrive_;
  SimNetwork network_;
  std::vector<std::deque<Outgoing>> last_;  // by rank: ArriveAgain
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_DATA_FRAMES_H_
