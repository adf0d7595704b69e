#include "tools/sim/timed_sums.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tandem::sim {
namespace {

using Kind = TimedEvent::Kind;

int64_t Every(const Dense& dense) {
  return dense.synchroniser() == Dense::ALLREDUCE ? 1 : dense.local_steps().sync_every();
}

}  // namespace

TimedSums::TimedSums(const job::ResolvedJob& plan, Ticks takes, Ticks latency, TimedAgenda* agenda)
    : takes_(takes),
      latency_(latency),
      every_(Every(plan.job.dense())),
      warmup_steps_(plan.job.dense().local_steps().warmup_steps()),
      agenda_(*agenda),
      entered_(static_cast<size_t>(plan.workers())) {
  if (job::SumsByQuorum(plan.job)) leader_.emplace(worker::QuorumLeader::OptionsOf(plan));
}

bool TimedSums::Meets(const worker::StepOrder& order) const {
  const int64_t step = order.step();
  return order.last() || step < warmup_steps_ || (step - warmup_steps_ + 1) % every_ == 0;
}

void TimedSums::Enter(int rank, int64_t step) {
  const int64_t round = entered_[static_cast<size_t>(rank)]++;
  if (by_quorum()) return Send(rank, every_ == 1 ? step : round, /*finished=*/false);
  if (++summing_ < static_cast<int>(entered_.size())) return;
  summing_ = 0;
  ++begun_;
  TimedEvent summed;
  summed.kind = Kind::kSummed;
  summed.rank = -1;
  agenda_.Put(agenda_.now() + takes_, summed);
}

bool TimedSums::Skip(int rank, int64_t step) {
  if (!by_quorum() || every_ > 1) return false;
  Send(rank, step, /*finished=*/false);
  return true;
}

void TimedSums::Leave(int rank) {
  if (by_quorum()) Send(rank, 0, /*finished=*/true);
}

void TimedSums::Send(int rank, int64_t step, bool finished) {
  TimedEvent news;
  news.kind = Kind::kNewsArrives;
  news.rank = rank;
  news.step = step;
  news.finished = finished;
  agenda_.Put(agenda_.now() + To(rank), news);
}

void TimedSums::OnNews(const TimedEvent& news) {
  if (news.finished) {
    leader_->OnOutOfData(news.rank);
  } else {
    leader_->OnGradient(news.rank, news.step);
  }
  Begin();
}

void TimedSums::Begin() {
  const absl::Time now = absl::UnixEpoch() + DurationOf(agenda_.now());
  for (bool more = true; more;) {
    more = leader_->Next(now) != worker::QuorumLeader::Begins::kNothing;
    if (more) {
      end_ = std::max(end_, agenda_.now()) + takes_;
      ++begun_;
    }
    TimedEvent summed;
    summed.kind = Kind::kSummed;
    for (const int rank : leader_->released()) {
      summed.rank = rank;
      agenda_.Put(std::max(end_, agenda_.now() + To(rank)), summed);
    }
    leader_->ForgetReleased();
  }
  if (std::exchange(grace_ends_, leader_->wake()) == leader_->wake()) return;
  const Ticks at = TicksOf(grace_ends_ - absl::UnixEpoch());
  TimedEvent grace;
  grace.kind = Kind::kGraceEnds;
  if (at < std::numeric_limits<Ticks>::max() / 4) agenda_.Put(at, grace);
}

}  // namespace tandem::sim
