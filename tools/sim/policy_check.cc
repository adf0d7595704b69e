#include "tools/sim/policy_check.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "policies/order/update_order.h"

namespace tandem::sim {
namespace {

using policies::Properties;

struct CheckedUpdate : policies::Update {
  static constexpr bool kHasGradients = true;  // so that the updates of a step are sorted
  bool has_rows() const { return samples > 0; }
};

// The result of one update: how often it was applied, and with which factors.
struct Outcome {
  int64_t group = 0;  // the number of the step of the optimizer
  int rank = 0;
  int64_t step = 0;
  float factor = 0, rate = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

constexpr int kMaxWorkers = 6;

// The lengths and samples of the workers. Two schedules of one plan differ in their order alone.
struct Plan {
  Plan(size_t workers, Random* random, const Properties& properties) {
    const int64_t max_depth = std::min<int64_t>(2, properties.read_bound);
    depth = static_cast<int>(random->Uniform(static_cast<uint64_t>(max_depth) + 1));
    for (size_t rank = 0; rank < workers; ++rank) {
      samples.emplace_back(1 + random->Uniform(24));
      for (uint64_t& n : samples.back()) n = 1 + random->Uniform(8);
    }
  }
  int64_t longest() const {
    size_t most = 0;
    for (const auto& of_worker : samples) most = std::max(most, of_worker.size());
    return static_cast<int64_t>(most);
  }
  int depth = 0;
  std::vector<std::vector<uint64_t>> samples;  // by rank and step
};

class Schedule {
 public:
  using Order = policies::UpdateOrder<CheckedUpdate>;

  Schedule(const Plan& plan, const policies::UpdatePolicy& policy, Random* random)
      : plan_(plan),
        policy_(policy),
        properties_(policy.properties()),
        random_(*random),
        order_(policy, {.workers = static_cast<int>(plan.samples.size()),
                        .reads = plan.depth + 2,
                        .lockstep = properties_.lockstep}),
        workers_(plan.samples.size()) {}

  absl::Status Run() {
    while (failure_.ok() && !AllEnded()) {
      std::vector<int> able;
      for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
        if (Next(rank) != Act::kNothing) able.push_back(rank);
      }
      if (!failure_.ok()) break;
      if (able.empty()) return Stalled();
      Do(able[random_.Uniform(able.size())]);
    }
    TANDEM_RETURN_IF_ERROR(failure_);
    order_.FinishDelayed(this);
    for (size_t i = 0; i < order_.open().size(); ++i) {
      if (order_.open()[i].contributions > 0) {
        return Broken("tick", absl::StrCat("updates of group ", order_.open()[i].step,
                                           " stay held after the last push of all workers"));
      }
    }
    if (outcomes_.size() + static_cast<size_t>(dropped_) != static_cast<size_t>(sent_)) {
      return Broken("arrive", absl::StrCat(sent_, " updates were pushed, and ", outcomes_.size(),
                                           " applied and ", dropped_, " dropped"));
    }
    return failure_;
  }

  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  int64_t sent() const { return sent_; }
  int64_t dropped() const { return dropped_; }

 private:
  friend Order;
  enum class Act { kNothing, kRead, kStart, kPush, kEnd };
  struct Worker {
    int64_t pushed = 0, next_read = 0;
    bool started = false, ended = false;
    std::vector<int64_t> versions;  // read, by step
  };

  // ---- the sink of the order ----

  void OnAdmit(const CheckedUpdate&, int64_t, bool) {}
  void OnCounted(CheckedUpdate*) {}
  void OnVersion() {}
  bool Keeps(const CheckedUpdate& update) {
    if (!properties_.holds) Fail("arrive", "holds an update, and `holds` is not promised", update);
    return update.has_rows();
  }
  void Drop(const CheckedUpdate& update) {
    if (!properties_.drops) {
      Fail("arrive", "drops an update, and `skips` is not promised", update);
    }
    if (update.samples > 0) ++dropped_;
  }
  void Apply(const CheckedUpdate& update, const policies::Transform& transform) {
    if (update.samples == 0) return;
    Note(update, transform);
    ++group_;
  }
  void Fold(const policies::HeldGroup<CheckedUpdate>& group) {
    if (properties_.batch > 0 && !properties_.fold_by_worker &&
        group.contributions > properties_.batch) {
      Fail("tick", absl::StrCat("closes a group of ", group.contributions,
                                " updates, and `batch` promises at most ", properties_.batch));
    }
    if (properties_.lockstep && group.step != folded_++) {
      Fail("tick", absl::StrCat("closes step ", group.step, " out of order"));
    }
    for (const CheckedUpdate& update : group.updates) {
      Note(update, order_.TransformOf(update, group.View()));
    }
    ++group_;
  }

  void Note(const CheckedUpdate& update, const policies::Transform& transform) {
    outcomes_.push_back({group_, update.rank, update.step, transform.factor, transform.rate});
  }

  // ---- the workers ----

  bool HasData(int rank, int64_t step) const {
    return step < static_cast<int64_t>(plan_.samples[static_cast<size_t>(rank)].size());
  }
  // In lockstep workers without data continue with empty steps, up to one that all have empty.
  bool Continues(int rank, int64_t step) const {
    return properties_.lockstep ? step <= plan_.longest() : HasData(rank, step);
  }
  bool AllEnded() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.ended; });
  }

  Act Next(int rank) {
    Worker& worker = workers_[static_cast<size_t>(rank)];
    if (worker.ended) return Act::kNothing;
    if (worker.started) return Act::kPush;
    if (!Continues(rank, worker.pushed)) return Act::kEnd;
    if (worker.next_read <= worker.pushed + plan_.depth && Continues(rank, worker.next_read) &&
        Serves(rank, worker.next_read)) {
      return Act::kRead;
    }
    if (worker.next_read > worker.pushed && Starts(rank, worker.pushed)) return Act::kStart;
    return Act::kNothing;
  }

  bool Serves(int rank, int64_t step) {
    const bool serves = policy_.MayServe(order_.progress(), rank, step, plan_.depth);
    if (serves != policy_.MayServe(order_.progress(), rank, step, plan_.depth)) {
      Fail("serve", absl::StrCat("gives two answers about step ", step, " of worker ", rank,
                                 " from the same arguments"));
    }
    return serves;
  }
  bool Starts(int rank, int64_t step) {
    const int64_t told = order_.progress().MinClock();
    const bool starts = policy_.MayStart(step, told);
    if (starts != policy_.MayStart(step, told)) {
      Fail("start", absl::StrCat("gives two answers about step ", step, " of worker ", rank,
                                 " from the same arguments"));
    }
    return starts;
  }

  void Do(int rank) {
    Worker& worker = workers_[static_cast<size_t>(rank)];
    switch (Next(rank)) {
      case Act::kNothing:
        return;
      case Act::kRead:
        CheckRead(rank, worker.next_read);
        order_.OnRead(rank, worker.next_read);
        worker.versions.resize(static_cast<size_t>(++worker.next_read));
        worker.versions.back() = order_.progress().version;
        return;
      case Act::kStart:
        CheckStart(rank, worker.pushed);
        worker.started = true;
        return;
      case Act::kPush:
        worker.started = false;
        return Push(rank, worker.pushed, /*finished=*/false);
      case Act::kEnd:
        worker.ended = true;
        // In lockstep the last empty step was the end.
        if (!properties_.lockstep) Push(rank, worker.pushed, /*finished=*/true);
        return;
    }
  }

  void Push(int rank, int64_t step, bool finished) {
    Worker& worker = workers_[static_cast<size_t>(rank)];
    CheckedUpdate update;
    update.rank = rank;
    update.step = step;
    if (!finished && HasData(rank, step)) {
      update.samples = plan_.samples[static_cast<size_t>(rank)][static_cast<size_t>(step)];
      ++sent_;
    }
    if (!finished) update.version_read = worker.versions[static_cast<size_t>(step)];
    const policies::Admission admission =
        order_.Admit(++now_us_, /*incarnation=*/1 + static_cast<uint64_t>(rank), step,
                     std::move(update), finished, this);
    worker.pushed = step + 1;
    if (admission == policies::Admission::kLate) {
      // The worker continues at the open step, and leaves out its data of the steps before.
      const int64_t open = order_.progress().version;
      for (; worker.pushed < open; ++worker.pushed) {
        CheckedUpdate empty;
        empty.rank = rank;
        empty.step = worker.pushed;
        empty.version_read = order_.progress().version;
        order_.Admit(++now_us_, 1 + static_cast<uint64_t>(rank), worker.pushed, std::move(empty),
                     false, this);
      }
      worker.next_read = worker.pushed;
    } else if (admission != policies::Admission::kAdmitted) {
      Fail("serve", absl::StrCat("let worker ", rank, " push step ", step,
                                 ", which the range cannot admit now"));
    }
  }

  // ---- the promises ----

  void CheckRead(int rank, int64_t step) {
    const policies::RangeProgress& progress = order_.progress();
    const auto own = progress.workers[static_cast<size_t>(rank)].admitted;
    const std::string what = absl::StrCat("serves step ", step, " of worker ", rank);
    if (own < step - plan_.depth) {
      Fail("serve", absl::StrCat(what, ", whose own step ", own, " has not arrived"));
    }
    if (properties_.lockstep && progress.version != step) {
      Fail("serve", absl::StrCat(what, " at version ", progress.version,
                                 ", and `lockstep` promises version ", step));
    }
    if (properties_.read_bound == policies::kUnbounded || properties_.lockstep) return;
    // An update of a step that closed without it will be dropped, so a read need not see it.
    const int64_t clock = properties_.skips ? progress.version : progress.MinClock();
    if (clock < step - properties_.read_bound) {
      Fail("serve",
           absl::StrCat(what, " while a worker has ", clock, " applied steps; read_bound ",
                        properties_.read_bound, " promises ", step - properties_.read_bound));
    }
  }
  void CheckStart(int rank, int64_t step) {
    if (properties_.clock_bound == policies::kUnbounded) return;
    for (size_t other = 0; other < workers_.size(); ++other) {
      const Worker& worker = workers_[other];
      if (worker.ended || static_cast<int>(other) == rank) continue;
      if (worker.pushed >= step - properties_.clock_bound) continue;
      Fail("start",
           absl::StrCat("lets worker ", rank, " begin step ", step, " while worker ", other,
                        " has pushed ", worker.pushed, " steps; clock_bound ",
                        properties_.clock_bound, " promises ", step - properties_.clock_bound));
    }
  }

  absl::Status Stalled() {
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      const Worker& worker = workers_[rank];
      if (worker.ended) continue;
      const bool reads = worker.next_read <= worker.pushed;
      return Broken(reads ? "serve" : "start",
                    absl::StrCat("is never true again: worker ", rank, " waits ",
                                 reads ? "for the rows of" : "to begin", " step ", worker.pushed,
                                 ", and nobody can push"));
    }
    return absl::OkStatus();
  }
  absl::Status Broken(absl::string_view function, absl::string_view what) const {
    return absl::FailedPreconditionError(absl::StrCat(function, ": ", what));
  }
  void Fail(absl::string_view function, absl::string_view what) {
    if (failure_.ok()) failure_ = Broken(function, what);
  }
  void Fail(absl::string_view function, absl::string_view what, const CheckedUpdate& update) {
    Fail(function, absl::StrCat(what, " (worker ", update.rank, ", step ", update.step, ")"));
  }

  const Plan& plan_;
  const policies::UpdatePolicy& policy_;
  const Properties properties_;
  Random& random_;
  Order order_;
  std::vector<Worker> workers_;
  std::vector<Outcome> outcomes_;
  absl::Status failure_;
  int64_t group_ = 0, folded_ = 0, now_us_ = 0;
  int64_t sent_ = 0, dropped_ = 0;
};

absl::Status AtSeed(const absl::Status& status, uint64_t seed, const Plan& plan) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " (workers ", plan.samples.size(),
                                   ", prefetch ", plan.depth, ", seed ", seed, ")"));
}

}  // namespace

absl::StatusOr<PolicyCheckReport> CheckPolicyPromises(
    const std::function<absl::StatusOr<std::unique_ptr<policies::UpdatePolicy>>(int workers)>& make,
    int64_t schedules, uint64_t seed) {
  PolicyCheckReport report;
  // A policy may need some number of workers.
  std::vector<int> sizes;
  absl::Status refused;
  for (int workers = 1; workers <= kMaxWorkers; ++workers) {
    if (const absl::Status made = make(workers).status(); made.ok()) {
      sizes.push_back(workers);
    } else {
      refused = made;
    }
  }
  if (sizes.empty()) return refused;
  for (int64_t i = 0; i < schedules; ++i) {
    const uint64_t its_seed = seed + static_cast<uint64_t>(i);
    Random random(its_seed);
    const int workers = sizes[random.Uniform(sizes.size())];
    TANDEM_ASSIGN_OR_RETURN(const auto policy, make(workers));
    const Plan plan(static_cast<size_t>(workers), &random, policy->properties());
    Schedule one(plan, *policy, &random);
    TANDEM_RETURN_IF_ERROR(AtSeed(one.Run(), its_seed, plan));
    if (policy->properties().order_free) {
      Schedule other(plan, *policy, &random);
      TANDEM_RETURN_IF_ERROR(AtSeed(other.Run(), its_seed, plan));
      if (one.outcomes() != other.outcomes()) {
        return AtSeed(absl::FailedPreconditionError(
                          "arrive, apply or tick: another order of arrival gives other steps of "
                          "the optimizer, and `order_free` is promised"),
                      its_seed, plan);
      }
    }
    ++report.schedules;
    report.updates += one.sent();
    report.dropped += one.dropped();
  }
  return report;
}

}  // namespace tandem::sim
