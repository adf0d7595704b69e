#include "sim/quorum_judge.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/replica_digests.h"

namespace tandem::sim {
namespace {

// What rounding makes of counts, of which a gradient takes 1 / (samples of its sum), and of tickets,
// which are up to 64 times as large.
constexpr double kTolerance = 1e-3, kTicketTolerance = 0.05;

}  // namespace

QuorumJudge::QuorumJudge(const ToyModel& model, int64_t bound, bool values, Fail fail)
    : model_(model),
      bound_(bound),
      values_(values),
      fail_(std::move(fail)),
      workers_(static_cast<size_t>(model.workers())) {}

// ---- what it is told --------------------------------------------------------------------------

void QuorumJudge::OnRead(int rank) { of(rank).read = of(rank).ended; }

void QuorumJudge::OnCompute(int rank, int64_t step, int64_t samples) {
  Worker& worker = of(rank);
  if (worker.computed.emplace(step, Gradient{step, samples, worker.read}).second) return;
  fail_(absl::StrCat("worker ", rank, " computes step ", step, " twice"));
}

void QuorumJudge::OnAdded(int rank, int64_t step) {
  Worker& worker = of(rank);
  const auto it = worker.computed.find(step);
  if (it == worker.computed.end()) {
    return fail_(absl::StrCat("worker ", rank, " hands over the gradient of step ", step,
                              ", which it did before, or never computed"));
  }
  worker.waiting.push_back(it->second);
  worker.computed.erase(it);
}

void QuorumJudge::OnSumBegins(int rank) {
  Worker& worker = of(rank);
  const auto number = static_cast<size_t>(worker.begun++);
  sums_.resize(std::max(sums_.size(), number + 1));
  Sum& sum = sums_[number];
  sum.taken.resize(workers_.size());
  for (const Gradient& gradient : worker.waiting) {
    const int64_t missed = static_cast<int64_t>(number) - gradient.read;
    worker.missed.push_back(missed);
    ++gradients_;
    missed_ += missed;
    most_missed_ = std::max(most_missed_, missed);
    if (missed <= bound_) continue;
    fail_(absl::StrCat("the gradient of worker ", rank, " step ", gradient.step, " has missed ",
                       missed, " sums, bound ", bound_));
  }
  sum.taken[static_cast<size_t>(rank)] = std::exchange(worker.waiting, {});
  if (++sum.begun == model_.workers()) Close(number);
}

// Sums are closed in their order: each worker begins them so.
void QuorumJudge::Close(size_t number) {
  Sum& sum = sums_[number];
  closed_ = number + 1;
  sum.counts = number == 0 ? std::vector<double>(workers_.size() + 1) : sums_[number - 1].counts;
  double samples = 0;
  for (const std::vector<Gradient>& taken : sum.taken) {
    for (const Gradient& gradient : taken) samples += static_cast<double>(gradient.samples);
  }
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    for (const Gradient& gradient : sum.taken[rank]) {
      const double weight = static_cast<double>(gradient.samples) / samples;
      sum.counts[rank] += weight;
      sum.counts.back() +=
          weight * static_cast<double>(
                       model_.Ticket(static_cast<int>(rank), gradient.step, ToyModel::kDenseKey));
    }
  }
}

void QuorumJudge::OnSumEnds(int rank, absl::Span<const float> model) {
  const auto number = static_cast<size_t>(of(rank).ended++);
  if (number >= sums_.size() || sums_[number].begun < model_.workers()) {
    return fail_(absl::StrCat("sum ", number, " ends at worker ", rank,
                              " before all workers have begun it"));
  }
  const uint64_t digest = worker::DigestOf(model);
  Sum& sum = sums_[number];
  if (!std::exchange(sum.ended, true)) sum.digest = digest;
  if (digest != sum.digest) {
    fail_(absl::StrCat("the model of worker ", rank, " after sum ", number,
                       " is not that of those who had it before"));
  }
  CheckValues(absl::StrCat("the model of worker ", rank), number + 1, model);
}

void QuorumJudge::OnMissed(int rank, absl::Span<const int64_t> missed) {
  const std::vector<int64_t> want = std::exchange(of(rank).missed, {});
  if (absl::MakeConstSpan(want) == missed) return;
  fail_(absl::StrCat("worker ", rank, " reports that gradients missed ",
                     absl::StrJoin(missed, ", "), " sums, want ", absl::StrJoin(want, ", ")));
}

// ---- what it looks at -------------------------------------------------------------------------

void QuorumJudge::CheckValues(absl::string_view who, size_t sums, absl::Span<const float> values) {
  if (!values_) return;
  for (size_t i = 0; i <= workers_.size(); ++i) {
    const double want = sums == 0 ? 0 : sums_[sums - 1].counts[i];
    const double taken = ToyModel::kFirstCount - static_cast<double>(values[i]);
    const bool tickets = i == workers_.size();
    if (std::abs(taken - want) <= (tickets ? kTicketTolerance : kTolerance)) continue;
    return fail_(absl::StrCat(who, " after ", sums, " sums holds ", taken,
                              tickets ? " of tickets" : absl::StrCat(" of worker ", i), ", want ",
                              want, ": a gradient is lost, or in two sums"));
  }
}

void QuorumJudge::CheckRead(int rank, absl::Span<const float> values) {
  CheckValues(absl::StrCat("what worker ", rank, " computes with"),
              static_cast<size_t>(of(rank).read), values);
}

// A sum that nobody has anything for may be under way.
void QuorumJudge::CheckWhole(int rank, absl::Span<const float> values) {
  for (size_t other = 0; other < workers_.size(); ++other) {
    size_t left = workers_[other].waiting.size() + workers_[other].computed.size();
    for (size_t sum = closed_; sum < sums_.size(); ++sum) left += sums_[sum].taken[other].size();
    if (left == 0) continue;
    return fail_(absl::StrCat("worker ", rank, " evaluates or saves a model that lacks ", left,
                              " gradients of worker ", other));
  }
  CheckValues(absl::StrCat("the model that worker ", rank, " evaluates or saves"), closed_, values);
}

}  // namespace tandem::sim
