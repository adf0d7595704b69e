#include "worker/dense/quorum_caller.h"

#include <algorithm>
#include <utility>

namespace tandem::worker {

QuorumCaller::QuorumCaller(const QuorumLeader::Options& options)
    : workers_(options.workers),
      leader_(options),
      told_(static_cast<size_t>(options.workers), -1) {}

void QuorumCaller::Hear(int worker, const QuorumNews& news, std::vector<Addressed>* calls,
                        absl::Time now) {
  switch (news.says) {
    case QuorumNews::Says::kGradient:
      leader_.OnGradient(worker, news.step);
      break;
    case QuorumNews::Says::kOutOfData:
      leader_.OnOutOfData(worker);
      break;
    case QuorumNews::Says::kSettle:
    case QuorumNews::Says::kSettleForNewEpoch:
      leader_.OnSettle(worker, news.says == QuorumNews::Says::kSettleForNewEpoch, news.step);
      break;
  }
  CallAll(now, calls);
}

void QuorumCaller::CallAll(absl::Time now, std::vector<Addressed>* calls) {
  // Each sum is called at all workers, because all take part in it. A call without a sum goes only
  // to workers that may continue. At the end, waiting workers learn which worker they wait for, if
  // that has changed.
  for (bool more = true; more;) {
    QuorumCall call;
    call.begins = leader_.Next(now);
    more = call.begins != QuorumLeader::Begins::kNothing;
    const std::vector<int>& released = leader_.released();
    for (int w = 0; w < workers_; ++w) {
      call.go_on = std::find(released.begin(), released.end(), w) != released.end();
      if (!more && !call.go_on) continue;
      // Each call makes the worker forget the worker that it waited for.
      told_[static_cast<size_t>(w)] = -1;
      calls->push_back({w, call});
    }
    leader_.ForgetReleased();
  }
  const int slowest = leader_.WaitingFor();
  for (int w = 0; w < workers_; ++w) {
    if (!leader_.waits(w) || std::exchange(told_[static_cast<size_t>(w)], slowest) == slowest) {
      continue;
    }
    QuorumCall call;
    call.waits_for = slowest;
    calls->push_back({w, call});
  }
}

}  // namespace tandem::worker
