#include "tests/sim/proof/quorum_judge.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/dense/replica_digests.h"

namespace tandem {
namespace {

// kTolerance: largest rounding error of counts, from which a gradient subtracts 1 / (samples of its
// sum). kRounding: relative rounding error of counts and tickets, which grow beyond the number of
// steps with an outer momentum.
constexpr double kTolerance = 1e-3, kRounding = 1e-5;

}  // namespace

QuorumJudge::Options QuorumJudge::OptionsOf(const job::ResolvedJob& plan) {
  const Dense& dense = plan.job.dense();
  Options options;
  options.bound = dense.quorum_bound();
  options.sync_rounds = dense.synchroniser() == Dense::LOCAL_SGD;
  if (!options.sync_rounds) return options;
  options.every = dense.local_steps().sync_every();
  options.outer_rate = dense.local_steps().outer_learning_rate();
  options.outer_momentum = dense.local_steps().outer_momentum();
  if (dense.local_steps().outer_optimizer() == LocalSteps::DELAYED_NESTEROV) {
    options.momentum_rounds = dense.local_steps().momentum_rounds();
  }
  options.values = dense.local_steps().outer_optimizer() != LocalSteps::HELOCO;
  return options;
}

QuorumJudge::QuorumJudge(const ToyModel& model, const Options& options, Fail fail)
    : model_(model),
      options_(options),
      fail_(std::move(fail)),
      workers_(static_cast<size_t>(model.workers())),
      velocity_(workers_.size() + 1),
      buffer_(velocity_.size()) {}

// ---- inputs -----------------------------------------------------------------------------------

void QuorumJudge::OnRead(int rank) { of(rank).read = of(rank).ended; }

void QuorumJudge::OnTaken(int rank, absl::Span<const float> values) {
  Worker& worker = of(rank);
  if (worker.own.samples > 0) {
    fail_(absl::StrCat("worker ", rank, " takes a common model before it has brought its steps to ",
                       worker.own.step));
  }
  worker.own = Gradient();
  OnRead(rank);
  if (worker.read == 0) return;
  if (worker::DigestOf(values) == sums_[static_cast<size_t>(worker.read) - 1].digest) return;
  fail_(absl::StrCat("worker ", rank, " goes on with another model than that of sync round ",
                     worker.read - 1));
}

void QuorumJudge::OnCompute(int rank, int64_t step, int64_t samples) {
  if (of(rank).computed.emplace(step, samples).second) return;
  fail_(absl::StrCat("worker ", rank, " computes step ", step, " twice"));
}

void QuorumJudge::OnStepped(int rank, int64_t step) {
  Worker& worker = of(rank);
  const auto it = worker.computed.find(step);
  if (it == worker.computed.end()) {
    return fail_(absl::StrCat("worker ", rank, " hands over the gradient of step ", step,
                              ", which it did before, or never computed"));
  }
  worker.own.step = step;
  ++worker.own.steps;
  if (it->second > 0) {
    worker.own.samples += it->second;
    worker.own.count += 1;
    worker.own.tickets += static_cast<double>(model_.Ticket(rank, step, ToyModel::kDenseKey));
  }
  worker.computed.erase(it);
}

void QuorumJudge::OnBrought(int rank) {
  const int64_t steps = of(rank).own.steps;
  if (steps != options_.every) {
    fail_(absl::StrCat("worker ", rank, " comes to a sync round after ", steps, " steps, expected ",
                       options_.every));
  }
  OnBroughtRest(rank);
}

void QuorumJudge::OnBroughtRest(int rank) {
  Worker& worker = of(rank);
  Gradient brought = std::exchange(worker.own, Gradient());
  brought.read = worker.read;
  worker.waiting.push_back(brought);
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
    max_missed_ = std::max(max_missed_, missed);
    if (missed <= options_.bound) continue;
    fail_(absl::StrCat("the gradient of worker ", rank, " step ", gradient.step, " has missed ",
                       missed, " sums, bound ", options_.bound));
  }
  sum.taken[static_cast<size_t>(rank)] = std::exchange(worker.waiting, {});
  if (++sum.begun == model_.workers()) Close(number);
}

// Closes sums in order, because each worker begins them in order. A sum without samples is no step.
void QuorumJudge::Close(size_t number) {
  Sum& sum = sums_[number];
  closed_ = number + 1;
  sum.counts = number == 0 ? std::vector<double>(workers_.size() + 1) : sums_[number - 1].counts;
  double samples = 0;
  for (const std::vector<Gradient>& taken : sum.taken) {
    for (const Gradient& gradient : taken) samples += static_cast<double>(gradient.samples);
  }
  if (samples == 0) return;
  std::vector<double> mean(workers_.size() + 1);
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    for (const Gradient& gradient : sum.taken[rank]) {
      const double weight = static_cast<double>(gradient.samples) / samples;
      mean[rank] += weight * gradient.count;
      mean.back() += weight * gradient.tickets;
    }
  }
  const auto rounds = static_cast<double>(options_.momentum_rounds);
  const bool enters = ++outer_steps_ % options_.momentum_rounds == 0;
  for (size_t i = 0; i < mean.size(); ++i) {
    buffer_[i] += mean[i] / rounds;
    sum.counts[i] += options_.outer_rate * mean[i] / rounds;
    if (!enters) continue;
    velocity_[i] = options_.outer_momentum * velocity_[i] + std::exchange(buffer_[i], 0);
    sum.counts[i] += options_.outer_rate * options_.outer_momentum * velocity_[i];
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
  CheckValues(absl::StrCat("the model of worker ", rank), number + 1, /*rank=*/-1, model);
}

void QuorumJudge::OnMissed(int rank, absl::Span<const int64_t> missed) {
  const std::vector<int64_t> want = std::exchange(of(rank).missed, {});
  if (absl::MakeConstSpan(want) == missed) return;
  fail_(absl::StrCat("worker ", rank, " reports that gradients missed ",
                     absl::StrJoin(missed, ", "), " sums, expected ", absl::StrJoin(want, ", ")));
}

// ---- checks -----------------------------------------------------------------------------------

void QuorumJudge::CheckValues(absl::string_view who, size_t sums, int rank,
                              absl::Span<const float> values) {
  if (!options_.values) return;
  const Gradient own = rank < 0 ? Gradient() : of(rank).own;
  for (size_t i = 0; i <= workers_.size(); ++i) {
    const bool tickets = i == workers_.size();
    double want = sums == 0 ? 0 : sums_[sums - 1].counts[i];
    if (tickets) want += own.tickets;
    if (static_cast<int>(i) == rank) want += own.count;
    const double taken = ToyModel::kFirstCount - static_cast<double>(values[i]);
    const double tolerance =
        (tickets ? ToyModel::kTicketTolerance : kTolerance) + kRounding * std::abs(want);
    if (std::abs(taken - want) <= tolerance) continue;
    return fail_(absl::StrCat(who, " after ", sums, " sums holds ", taken,
                              tickets ? " of tickets" : absl::StrCat(" of worker ", i),
                              ", expected ", want, ": a gradient is lost, or in two sums"));
  }
}

void QuorumJudge::CheckRead(int rank, absl::Span<const float> values) {
  CheckValues(absl::StrCat("what worker ", rank, " computes with"),
              static_cast<size_t>(of(rank).read), rank, values);
}

// An empty sum may still be running.
void QuorumJudge::CheckWhole(int rank, absl::Span<const float> values) {
  for (size_t other = 0; other < workers_.size(); ++other) {
    const Worker& worker = workers_[other];
    size_t left = worker.waiting.size() + worker.computed.size();
    left += worker.own.samples > 0 ? 1 : 0;
    for (size_t sum = closed_; sum < sums_.size(); ++sum) left += sums_[sum].taken[other].size();
    if (left == 0) continue;
    return fail_(absl::StrCat("worker ", rank, " evaluates or checkpoints a model that lacks ",
                              left, " gradients of worker ", other));
  }
  CheckValues(absl::StrCat("the model that worker ", rank, " evaluates or checkpoints"), closed_,
              /*rank=*/-1, values);
}

}  // namespace tandem
