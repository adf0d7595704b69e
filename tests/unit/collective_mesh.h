// Engines of all ranks in one thread, joined by a network that a seeded generator makes late,
// disorderly, forgetful and repetitive; time is virtual.
#ifndef TANDEM_TESTS_UNIT_COLLECTIVE_MESH_H_
#define TANDEM_TESTS_UNIT_COLLECTIVE_MESH_H_

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/random.h"
#include "collectives/legacy/engine.h"
#include "collectives/legacy/schedule.h"
#include "gtest/gtest.h"
#include "proto/frame.h"

namespace tandem {

struct MeshFaults {
  double drop = 0;
  double duplicate = 0;
  bool reorder = false;
};

class Mesh {
 public:
  struct InFlight {
    int from = 0, to = 0;
    Frame frame;
  };

  Mesh(int ranks, uint64_t seed, const MeshFaults& faults = {},
       const CollectiveOptions& options = {}, BufferSource* source = nullptr)
      : random_(seed), faults_(faults), completed_(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      engines_.push_back(std::make_unique<CollectiveEngine>(
          rank, ranks, source != nullptr ? *source : buffers_, options));
    }
  }

  int ranks() const { return static_cast<int>(engines_.size()); }
  CollectiveEngine& engine(int rank) { return *engines_[rank]; }
  absl::Time now() const { return now_; }
  void Pass(absl::Duration time) { now_ += time; }
  std::vector<InFlight>& in_flight() { return in_flight_; }
  // Completions so far at a rank.
  const std::vector<CollectiveCompletion>& completed(int rank) const { return completed_[rank]; }
  void Forget() {
    for (auto& list : completed_) list.clear();
  }

  absl::Status Start(int rank, uint64_t number, const Schedule* schedule, absl::Span<float> data,
                     absl::Duration deadline = absl::Hours(1)) {
    const absl::Status status =
        engines_[rank]->Start(number, schedule, data, now_, deadline, &effects_);
    Collect(rank);
    return status;
  }
  absl::Status Give(int to, int from, const ParsedFrame& segment) {
    const absl::Status status = engines_[to]->OnSegment(from, segment, now_, &effects_);
    Collect(to);
    return status;
  }
  void Lose(int at, int lost, absl::string_view why) {
    engines_[at]->OnPeerLost(lost, why, &effects_);
    Collect(at);
  }
  void TickAll() {
    for (int rank = 0; rank < ranks(); ++rank) Tick(rank);
  }
  void Tick(int rank) {
    engines_[rank]->OnTick(now_, &effects_);
    Collect(rank);
  }
  // Frames to and from this rank vanish from now on.
  void Kill(int rank) { dead_.insert(rank); }

  // Delivers one frame, or lets time pass if there is none. False if nothing will ever happen.
  bool Step() {
    now_ += absl::Microseconds(static_cast<int64_t>(1 + random_.Uniform(100)));
    if (in_flight_.empty()) {
      absl::Time next = absl::InfiniteFuture();
      for (int rank = 0; rank < ranks(); ++rank) {
        if (dead_.count(rank) == 0) next = std::min(next, engines_[rank]->NextTick());
      }
      if (next == absl::InfiniteFuture()) return false;
      now_ = std::max(now_, next);
      for (int rank = 0; rank < ranks(); ++rank) {
        if (dead_.count(rank) == 0) Tick(rank);
      }
      return true;
    }
    Deliver(faults_.reorder ? random_.Uniform(in_flight_.size()) : 0);
    return true;
  }
  // Until all ranks are idle and no frame is under way; fails the test if that takes too long.
  void Run(int64_t most_steps = 10'000'000) {
    while (Step()) {
      ASSERT_GT(--most_steps, 0) << "still running";
    }
  }

 private:
  InFlight TakeFrame(size_t i) {
    InFlight taken = std::move(in_flight_[i]);
    in_flight_.erase(in_flight_.begin() + static_cast<int64_t>(i));
    return taken;
  }

  void Deliver(size_t i) {
    InFlight next = TakeFrame(i);
    if (faults_.duplicate > 0 && random_.Bernoulli(faults_.duplicate)) in_flight_.push_back(next);
    if (faults_.drop > 0 && random_.Bernoulli(faults_.drop)) return;
    if (dead_.count(next.from) + dead_.count(next.to) > 0) return;
    absl::StatusOr<ParsedFrame> parsed = DecodeFrame(std::move(next.frame));
    ASSERT_EQ(parsed.status(), absl::OkStatus());
    ASSERT_EQ(Give(next.to, next.from, *parsed), absl::OkStatus());
  }

  void Collect(int rank) {
    for (OutgoingSegment& out : effects_.sends) {
      in_flight_.push_back({rank, out.to_rank, std::move(out.frame)});
    }
    for (CollectiveCompletion& done : effects_.completions) {
      completed_[rank].push_back(std::move(done));
    }
    effects_.Clear();
  }

  HeapBufferSource buffers_;
  Random random_;
  const MeshFaults faults_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::unique_ptr<CollectiveEngine>> engines_;
  std::vector<InFlight> in_flight_;
  std::vector<std::vector<CollectiveCompletion>> completed_;
  std::set<int> dead_;
  CollectiveEffects effects_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_COLLECTIVE_MESH_H_
