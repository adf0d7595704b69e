// LoneShard is a shard on a thread of its own, without a scheduler and a server process, together
// with a job for it. Tests and benchmarks of push and pull use it.
#ifndef TANDEM_TOOLS_BENCH_LONE_SHARD_H_
#define TANDEM_TOOLS_BENCH_LONE_SHARD_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "job/job.h"
#include "server/shard_core.h"
#include "transport/peer_map.h"
#include "transport/transport.h"

namespace tandem::bench {

// The plan of a job with one server of one shard. `tables`: entries Job.table as text. `policy`:
// the contents of Job.policy.
inline job::ResolvedJob LoneShardPlan(const std::string& tables, const std::string& policy,
                                      int workers) {
  const absl::StatusOr<Job> job = job::ParseJob(
      absl::StrCat("name: \"lone\" seed: 1 cluster { workers: ", workers, " servers: 1 }\n",
                   "data { format: CRITEO train: \"none\" }\n", tables,
                   "dense { optimizer { learning_rate: 1 } } policy { ", policy, " }\n",
                   "model { mlp { hidden: [4] } } train { batch_size: 1 }\n"),
      "lone.textproto", {});
  TANDEM_CHECK_OK(job.status());
  absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
  TANDEM_CHECK_OK(plan.status());
  return *std::move(plan);
}

// A view in which shard 0 of server 0 at `address` owns all ranges.
inline View LoneShardView(const job::ResolvedJob& plan, const std::string& address) {
  View view;
  view.set_number(1);
  view.add_server()->add_endpoint(address);
  for (const job::TablePlan& table : plan.tables) {
    const int count = plan.job.cluster().ranges_per_shard();
    const std::vector<uint64_t> begins = job::EqualRanges(count);
    for (int r = 0; r < count; ++r) {
      RangeInfo* const info = view.add_range();
      info->set_table(table.id);
      info->set_begin(begins[static_cast<size_t>(r)]);
      info->set_end(r + 1 < count ? begins[static_cast<size_t>(r) + 1] : 0);
    }
  }
  return view;
}

class LoneShard {
 public:
  // `plan` must outlive the shard.
  LoneShard(const job::ResolvedJob& plan, std::unique_ptr<transport::Transport> transport)
      : transport_(std::move(transport)), view_(LoneShardView(plan, transport_->address())) {
    absl::StatusOr<std::unique_ptr<server::ShardCore>> core =
        server::ShardCore::New(plan, EndpointId::Shard(0, 0), 1, *transport_);
    TANDEM_CHECK_OK(core.status());
    core_ = *std::move(core);
    absl::StatusOr<std::shared_ptr<const RangeMap>> map = RangeMap::FromView(view_, plan.sizes());
    TANDEM_CHECK_OK(map.status());
    core_->OnView(MonotonicNow(), *std::move(map), &effects_);
    thread_ = std::thread([this] { Loop(); });
  }
  ~LoneShard() { Stop(); }

  const View& view() const { return view_; }
  // Ends the thread. Afterwards the caller may examine the core.
  server::ShardCore& Stop() {
    stop_ = true;
    transport_->Wake();
    if (thread_.joinable()) thread_.join();
    return *core_;
  }

 private:
  void Loop() {
    transport::PeerMap peers(*transport_);
    std::vector<transport::TransportEvent> events;
    for (absl::Time next_tick = MonotonicNow(); !stop_;) {
      const bool acks_wait = !effects_.out.empty();
      transport_->Poll(absl::Milliseconds(acks_wait ? 0 : 50), &events);
      const absl::Time now = MonotonicNow();
      for (const transport::TransportEvent& event : events) {
        peers.OnEvent(event);
        if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
        core_->OnFrame(now, event.frame, &effects_);
        if (effects_.MustSend()) Flush(&peers);
      }
      if (events.empty()) Flush(&peers);
      events.clear();
      if (now < next_tick) continue;
      next_tick = now + absl::Milliseconds(50);
      core_->OnTick(now, &effects_);
      if (effects_.MustSend()) Flush(&peers);
    }
  }

  void Flush(transport::PeerMap* peers) {
    TANDEM_CHECK_OK(effects_.failure);
    for (Outgoing& out : effects_.out) (void)peers->Send(std::move(out));
    effects_.Clear();
  }

  const std::unique_ptr<transport::Transport> transport_;
  const View view_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<server::ShardCore> core_;
  server::ShardEffects effects_;
  std::thread thread_;
};

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_LONE_SHARD_H_
