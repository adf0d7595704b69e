// Frames that wait at ranges: a list that looks only at frames that were woken settles the same
// ones, in the same order, as one that looks at all of them.
#include "server/waiting_frames.h"

#include <map>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

constexpr int kWorkers = 4;
constexpr uint32_t kRanges = 5;

// A frame waits until ranges have these levels and its worker has pushed so often. When it is
// settled it may raise the level of a range and count as a push, as an admitted push does.
struct Need {
  int rank = 0;
  std::map<uint32_t, int> levels;  // by range
  int pushes = 0;
  int raises = -1;  // the range; -1: none
  bool is_push = false;
};

// Frames by their request, and what they wait for.
class Waits {
 public:
  virtual ~Waits() = default;

  bool MustWait(const Need& need) const {
    return Of(pushes_, need.rank) < need.pushes || !BlockedAt(need).empty();
  }
  // Requires: the frame must wait.
  void Add(absl::Time now, uint64_t request, const Need& need) {
    needs_[request] = need;
    Keep(now, request);
  }
  virtual void Keep(absl::Time now, uint64_t request) = 0;  // a frame that was added, or is resent
  virtual void Raise(uint32_t range) { ++levels_[range]; }
  virtual void Push(int rank) { ++pushes_[rank]; }
  virtual void Forget(int rank) = 0;
  // The requests that are settled, that are told of their wait, and that wait, in order.
  virtual std::vector<uint64_t> Retry(bool from_start) = 0;
  virtual std::vector<uint64_t> Notices(absl::Time now) = 0;
  virtual std::vector<uint64_t> Requests() = 0;

  int level(uint32_t range) const { return Of(levels_, range); }
  int pushes(int rank) const { return Of(pushes_, rank); }
  int64_t asked() const { return asked_; }

 protected:
  template <typename Map, typename Key>
  static int Of(const Map& map, Key key) {
    const auto it = map.find(key);
    return it == map.end() ? 0 : it->second;
  }
  std::vector<uint32_t> BlockedAt(const Need& need) const {
    std::vector<uint32_t> ranges;
    for (const auto& [range, level] : need.levels) {
      if (Of(levels_, range) < level) ranges.push_back(range);
    }
    return ranges;
  }
  bool Settles(uint64_t request) {
    ++asked_;
    const Need& need = needs_[request];
    if (MustWait(need)) return false;
    if (need.raises >= 0) Raise(static_cast<uint32_t>(need.raises));
    if (need.is_push) Push(need.rank);
    return true;
  }

  std::map<uint64_t, Need> needs_;
  std::map<uint32_t, int> levels_;
  std::map<int, int> pushes_;
  int64_t asked_ = 0;
};

class PlainWaits final : public Waits {
 public:
  void Keep(absl::Time now, uint64_t request) override {
    for (Frame& frame : frames_) {
      if (frame.request != request) continue;
      frame.next_notice = now;
      return;
    }
    frames_.push_back({request, now + absl::Seconds(1)});
  }
  void Forget(int rank) override {
    std::erase_if(frames_, [&](const Frame& f) { return needs_[f.request].rank == rank; });
  }
  std::vector<uint64_t> Retry(bool from_start) override {
    std::vector<uint64_t> settled;
    for (size_t i = 0; i < frames_.size();) {
      if (!Settles(frames_[i].request)) {
        ++i;
        continue;
      }
      settled.push_back(frames_[i].request);
      frames_.erase(frames_.begin() + static_cast<std::ptrdiff_t>(i));
      if (from_start) i = 0;
    }
    return settled;
  }
  std::vector<uint64_t> Notices(absl::Time now) override {
    std::vector<uint64_t> told;
    for (Frame& frame : frames_) {
      if (frame.next_notice > now) continue;
      frame.next_notice = now + absl::Seconds(1);
      told.push_back(frame.request);
    }
    return told;
  }
  std::vector<uint64_t> Requests() override {
    std::vector<uint64_t> requests;
    for (const Frame& frame : frames_) requests.push_back(frame.request);
    return requests;
  }

 private:
  struct Frame {
    uint64_t request;
    absl::Time next_notice;
  };
  std::vector<Frame> frames_;
};

class WokenWaits final : public Waits {
 public:
  void Keep(absl::Time now, uint64_t request) override {
    ParsedFrame frame;
    frame.header.sender = EndpointId::Worker(needs_[request].rank);
    frame.header.request = request;
    frames_.Add(now, frame, {}, BlockedAt(needs_[request]));
  }
  void Raise(uint32_t range) override {
    Waits::Raise(range);
    frames_.WakeRange(range);
  }
  void Push(int rank) override {
    Waits::Push(rank);
    frames_.WakeWorker(rank);
  }
  void Forget(int rank) override { frames_.Forget(rank); }
  std::vector<uint64_t> Retry(bool from_start) override {
    std::vector<uint64_t> settled;
    const auto settle = [&](server::WaitingFrame* waits, std::vector<uint32_t>* ranges) {
      const uint64_t request = waits->frame.header.request;
      if (Settles(request)) {
        settled.push_back(request);
        return true;
      }
      *ranges = BlockedAt(needs_[request]);
      return false;
    };
    frames_.Retry(from_start, settle);
    return settled;
  }
  std::vector<uint64_t> Notices(absl::Time now) override {
    std::vector<uint64_t> told;
    frames_.ForEachDue(now, [&](const server::WaitingFrame& waits) {
      told.push_back(waits.frame.header.request);
    });
    return told;
  }
  std::vector<uint64_t> Requests() override {
    std::vector<uint64_t> requests;
    frames_.ForEach(
        [&](server::WaitingFrame* waits) { requests.push_back(waits->frame.header.request); });
    EXPECT_EQ(frames_.First() == nullptr, requests.empty());
    return requests;
  }

 private:
  server::WaitingFrames frames_{kWorkers};
};

Need AnyNeed(int rank, const Waits& waits, Random* random) {
  Need need;
  need.rank = rank;
  for (uint32_t range = 0; range < kRanges; ++range) {
    if (random->Bernoulli(0.6)) continue;
    need.levels[range] = waits.level(range) + static_cast<int>(random->Uniform(4));
  }
  need.pushes = waits.pushes(rank) + static_cast<int>(random->Uniform(3));
  if (random->Bernoulli(0.3)) need.raises = static_cast<int>(random->Uniform(kRanges));
  need.is_push = random->Bernoulli(0.3);
  return need;
}

TEST(WaitingFramesTest, SettlesInTheOrderOfALookAtAll) {
  Random random(TestSeed());
  WokenWaits woken;
  PlainWaits plain;
  absl::Time now = absl::UnixEpoch();
  uint64_t last = 0;
  size_t settled = 0, told = 0;
  for (int i = 0; i < 20'000; ++i) {
    now += absl::Milliseconds(static_cast<int64_t>(random.Uniform(60)));
    const int rank = static_cast<int>(random.Uniform(kWorkers));
    const auto range = static_cast<uint32_t>(random.Uniform(kRanges));
    const uint64_t what = random.Uniform(100);
    const std::vector<uint64_t> waiting = plain.Requests();
    for (Waits* const waits : {static_cast<Waits*>(&woken), static_cast<Waits*>(&plain)}) {
      if (what >= 50 && what < 60 && !waiting.empty()) {
        waits->Keep(now, waiting[what % waiting.size()]);
      } else if (what >= 60 && what < 75) {
        waits->Raise(range);
      } else if (what >= 75 && what < 98) {
        waits->Push(rank);
      } else if (what == 98) {
        waits->Forget(rank);
      }
    }
    if (const Need need = AnyNeed(rank, plain, &random); what < 50 && plain.MustWait(need)) {
      ++last;
      woken.Add(now, last, need);
      plain.Add(now, last, need);
    }
    const bool from_start = random.Bernoulli(0.5);
    const std::vector<uint64_t> want = plain.Retry(from_start);
    ASSERT_EQ(woken.Retry(from_start), want) << i;
    const std::vector<uint64_t> due = plain.Notices(now);
    ASSERT_EQ(woken.Notices(now), due) << i;
    ASSERT_EQ(woken.Requests(), plain.Requests()) << i;
    settled += want.size();
    told += due.size();
  }
  EXPECT_GT(settled, 1000u);
  EXPECT_GT(told, 1000u);
  EXPECT_LT(2 * woken.asked(), plain.asked());
}

// A worker that asks for ever more does not make the list grow.
TEST(WaitingFramesTest, KeepsABoundedNumberOfFramesOfAWorker) {
  server::WaitingFrames frames(kWorkers);
  for (uint64_t request = 1; request <= 5000; ++request) {
    ParsedFrame frame;
    frame.header.sender = EndpointId::Worker(1);
    frame.header.request = request;
    frames.Add(absl::UnixEpoch(), frame, {}, {});
  }
  size_t count = 0;
  frames.ForEach([&](server::WaitingFrame*) { ++count; });
  EXPECT_EQ(count, 4096u);
  frames.Forget(1);
  EXPECT_EQ(frames.First(), nullptr);
}

}  // namespace
}  // namespace tandem
