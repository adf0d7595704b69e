// The way of frames between shards and workers, and among workers: across the network, where they may
// be lost, doubled, overtaken or cut off (network.h), and by reference. Those of collectives, and what
// workers tell each other of them, go over connections, which bring them all in order, late at times.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_DATA_FRAMES_H_
#define TANDEM_SIM_DATA_FRAMES_H_

#include <functional>

#include "proto/frame.h"
#include "proto/outgoing.h"
#include "sim/network.h"
#include "sim/sim_context.h"

namespace tandem::sim {

class DataFrames {
 public:
  using Arrive = std::function<void(EndpointId to, const ParsedFrame& frame)>;
  // `context` outlives this. `arrive` is called for each frame as it arrives.
  DataFrames(SimContext& context, Arrive arrive)
      : context_(context),
        arrive_(std::move(arrive)),
        network_(context.options.network, context.options.seed + 1,
                 context.plan.server_processes()) {}

  void Send(const Outgoing& out);
  // A message of another kind, on a connection of its own between two workers: it calls `arrives` there.
  void SendLetter(int from, int to, size_t bytes, std::function<void()> arrives);
  // From time to time two endpoints are cut off from each other, if the options say so.
  void StartCuts();

 private:
  void Deliver(EndpointId to, const Frame& bytes);
  EndpointId Anybody();
  void CutSomebodyOff();

  SimContext& context_;
  const Arrive arrive_;
  SimNetwork network_;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_DATA_FRAMES_H_
