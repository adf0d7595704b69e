// Turns the decisions of quorum_leader.h into the calls that rank 0 sends to workers whose sums do
// not wait for all. A pure core: its owner sends the calls over its links.
//
// Thread safety: none.
#ifndef TANDEM_WORKER_DENSE_QUORUM_CALLER_H_
#define TANDEM_WORKER_DENSE_QUORUM_CALLER_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "worker/dense/quorum_leader.h"

namespace tandem::worker {

// From a worker to rank 0.
struct QuorumNews {
  enum class Says : int64_t { kGradient, kOutOfData, kSettle, kSettleForNewEpoch };
  Says says = Says::kGradient;
  int64_t step = 0;
};

// From rank 0 to a worker. A worker handles its calls in the order in which they were made.
struct QuorumCall {
  QuorumLeader::Begins begins = QuorumLeader::Begins::kNothing;
  bool go_on = false;  // with all sums called so far, including this one
  // The worker that this one waits for until the next call, if it may not go on; -1: no particular
  // worker.
  int64_t waits_for = -1;
};

class QuorumCaller {
 public:
  struct Addressed {
    int worker = 0;
    QuorumCall call;
  };

  explicit QuorumCaller(const QuorumLeader::Options& options);

  // Appends the calls to send now. The news of one worker come in order. `now`: as in
  // QuorumLeader::Next.
  void Hear(int worker, const QuorumNews& news, std::vector<Addressed>* calls,
            absl::Time now = absl::InfinitePast());
  // Like Hear, without news, at the time `wake`.
  void Wake(absl::Time now, std::vector<Addressed>* calls) { CallAll(now, calls); }
  absl::Time wake() const { return leader_.wake(); }

 private:
  void CallAll(absl::Time now, std::vector<Addressed>* calls);

  const int workers_;
  QuorumLeader leader_;
  std::vector<int> told_;  // by worker: the worker that it was told it waits for
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_QUORUM_CALLER_H_
