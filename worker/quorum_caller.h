// What rank 0 tells workers whose sums do not wait for all: quorum_leader.h decides, and this makes
// calls to each of them of it. A pure core; whoever has links brings the calls.
//
// Thread safety: none.
#ifndef TANDEM_WORKER_QUORUM_CALLER_H_
#define TANDEM_WORKER_QUORUM_CALLER_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "worker/quorum_leader.h"

namespace tandem::worker {

// From a worker to rank 0.
struct QuorumNews {
  enum class Says : int64_t { kGradient, kOutOfData, kSettle, kSettleForNewEpoch };
  Says says = Says::kGradient;
  int64_t step = 0;
};

// From rank 0 to a worker, which takes its calls in the order in which they were made.
struct QuorumCall {
  QuorumLeader::Begins begins = QuorumLeader::Begins::kNothing;
  bool go_on = false;      // with all sums called so far, this one included
  int64_t waits_for = -1;  // while it does not go on, until the next call; -1: nobody in particular
};

class QuorumCaller {
 public:
  struct Addressed {
    int worker = 0;
    QuorumCall call;
  };

  explicit QuorumCaller(const QuorumLeader::Options& options);

  // Appends what is to be said now; the news of one worker come in order. `now` as QuorumLeader::Next.
  void Hear(int worker, const QuorumNews& news, std::vector<Addressed>* calls,
            absl::Time now = absl::InfinitePast());
  // The same without news, when `wake` has come.
  void Wake(absl::Time now, std::vector<Addressed>* calls) { CallAll(now, calls); }
  absl::Time wake() const { return leader_.wake(); }

 private:
  void CallAll(absl::Time now, std::vector<Addressed>* calls);

  const int workers_;
  QuorumLeader leader_;
  std::vector<int> told_;  // by worker: whom it waits for
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_QUORUM_CALLER_H_
