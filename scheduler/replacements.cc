#include "scheduler/replacements.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "scheduler/failure/failure_judge.h"
#include "scheduler/failure/may_replace.h"
#include "scheduler/failure/restarts.h"

namespace tandem::scheduler {
namespace {

Failure GiveUp(Failure cause, const std::string& why) {
  absl::StrAppend(cause.mutable_reason(), "; ", why);
  return cause;
}

}  // namespace

// The worker that the failure names, if its process is dead or ends by itself. Null: another node,
// or a worker that only makes no progress.
Node* Replacements::DeadWorker(const Failure& cause) {
  for (Node& node : parts_.members->nodes()) {
    if (node.role != Role::kWorker || node.vacant || node.Name() != cause.node()) continue;
    return node.gone || node.reported_failure ? &node : nullptr;
  }
  return nullptr;
}

absl::Status Replacements::MayBegin(absl::Time now, bool running, const Failure& cause,
                                    const Node& dead) {
  while (!begun_.empty() && now - begun_.front() >= kRestartsCountFor) begun_.pop_front();
  WorkerDeath death;
  death.left = most_ - static_cast<int>(begun_.size());
  death.running = running;
  // An error that a worker reports a second time would come again.
  const std::string error = WithoutNumbers(cause.reason());
  const bool same = dead.reported_failure && std::exchange(errors_[dead.index], error) == error;
  death.comes_again = same || ComesAgain(cause);
  death.other_vacant = vacant();
  for (const Node& node : parts_.members->nodes()) {
    death.other_failed |= node.reported_failure && &node != &dead;
  }
  for (const auto& [name, barrier] : parts_.barriers->open()) {
    // Nobody waits for the files of a requested checkpoint.
    const bool background = barrier.action == BarrierEnter::CHECKPOINT && barrier.may_fail;
    const bool waits_for_it = barrier.absent_may_be_replaced && !barrier.entered[dead.index];
    if (!background && !waits_for_it) death.barrier = name;
  }
  death.commits = dead.index == 0 && parts_.checkpoints->marked();
  death.place_known = parts_.reports->book().KnowsPlace(dead.index);
  return MayReplaceWorker(plan_, death);
}

int Replacements::Begin(absl::Time now, bool running, const Failure& cause,
                        SchedulerEffects* effects) {
  Node* const dead = most_ > 0 ? DeadWorker(cause) : nullptr;
  if (dead == nullptr) return -1;
  if (const absl::Status may = MayBegin(now, running, cause, *dead); !may.ok()) {
    effects->Log(
        absl::StrCat("no other process takes the place of ", dead->Name(), ": ", may.message()));
    return -1;
  }
  begun_.push_back(now);
  started_.erase(dead->index);
  vacancy_.emplace();
  vacancy_->rank = dead->index;
  vacancy_->cause = cause;
  vacancy_->since = now;
  vacancy_->least = std::numeric_limits<int64_t>::max();
  // The process may be alive and only silent.
  if (dead->connected) effects->SendFailure(dead->main, cause);
  parts_.members->Vacate(dead);
  parts_.checkpoints->OnVacant();
  if (parts_.checkpoints->marked()) parts_.checkpoints->Excuse(*dead);
  effects->Log(absl::StrCat(dead->Name(), ": ", cause.reason(),
                            "; waiting for another process to take its place"));
  effects->Notify(SchedulerNotice::Kind::kVacant, dead->Name(), cause.reason())->step =
      cause.has_step() ? cause.step() : -1;
  AskServers(now, effects);
  return dead->index;
}

void Replacements::AskServers(absl::Time now, SchedulerEffects* effects) {
  Command forget = parts_.commands->New(Command::FORGET_WORKER);
  forget.set_worker(vacancy_->rank);
  parts_.commands->Await(now, forget, parts_.members->servers(), /*shards=*/0, /*workers=*/0);
  Control control;
  *control.mutable_command() = forget;
  for (int server = 0; server < parts_.members->servers(); ++server) {
    effects->SendTo(*parts_.members->server(server), control);
  }
}

absl::optional<Failure> Replacements::OnFailure(const Failure& cause) const {
  const std::string why = absl::StrCat("its new process failed: ", cause.reason());
  for (const auto& [rank, started] : started_) {
    if (cause.node() != parts_.members->worker(rank)->Name()) continue;
    if (ComesAgain(cause)) return GiveUp(started.cause, why);
  }
  if (!vacant()) return absl::nullopt;
  const Node& node = *parts_.members->worker(vacancy_->rank);
  if (node.vacant || cause.node() != node.Name()) return absl::nullopt;
  return GiveUp(vacancy_->cause, why);
}

absl::optional<Failure> Replacements::OnExited(int rank, int64_t pid,
                                               const std::string& how) const {
  if (!vacant() || rank != vacancy_->rank) return absl::nullopt;
  const Node& node = *parts_.members->worker(rank);
  if (!node.vacant || node.pid == pid) return absl::nullopt;  // the end of the dead process
  return GiveUp(vacancy_->cause, absl::StrCat("its new process ", how));
}

void Replacements::OnForgotten(const ShardReport& report) {
  if (!vacant() || vacancy_->start.has_value()) return;
  if (report.forgotten().worker() != vacancy_->rank) return;
  vacancy_->forgotten.insert({report.server(), report.shard()});
  vacancy_->least = std::min(vacancy_->least, report.forgotten().min_step());
  vacancy_->most = std::max(vacancy_->most, report.forgotten().max_step());
}

absl::optional<Failure> Replacements::OnServersAnswered() {
  if (!vacant()) return absl::nullopt;
  if (vacancy_->forgotten.size() != static_cast<size_t>(plan_.shards()) ||
      vacancy_->least > vacancy_->most) {
    return GiveUp(vacancy_->cause, "the servers do not know its steps");
  }
  vacancy_->start = parts_.reports->book().StartOf(vacancy_->rank, vacancy_->least);
  if (!vacancy_->start.has_value()) {
    return GiveUp(vacancy_->cause,
                  absl::StrCat("no place at or before step ", vacancy_->least, " is known"));
  }
  vacancy_->start->set_first_new_step(vacancy_->most);
  if (vacancy_->rank != 0) {  // only rank 0 judges evaluations
    vacancy_->start->clear_best();
    vacancy_->start->clear_epochs_to_first_judged();
  }
  return absl::nullopt;
}

bool Replacements::AddToView(View* view) {
  if (!vacant() || !vacancy_->start.has_value() || vacancy_->view != 0) return false;
  const Node& node = *parts_.members->worker(vacancy_->rank);
  if (node.vacant) return false;
  Member* const member = view->mutable_worker(vacancy_->rank);
  *member = node.AsMember();
  *member->mutable_start() = *vacancy_->start;
  vacancy_->view = view->number() + 1;
  parts_.reports->book().OnReplaced(vacancy_->rank, *vacancy_->start);
  return true;
}

// The new process and the servers that have not acknowledged the view with this process.
std::vector<std::string> Replacements::NotReady() const {
  std::vector<std::string> names;
  for (const Node& node : parts_.members->nodes()) {
    const bool awaited = node.role == Role::kServer || node.index == vacancy_->rank;
    if (awaited && node.acknowledged_view < vacancy_->view) names.push_back(node.Name());
  }
  return names;
}

// The waits of the others begin anew, because they have waited for a process that was not there.
Node* Replacements::TakeStarted(absl::Time now) {
  if (!vacant() || vacancy_->view == 0 || !NotReady().empty()) return nullptr;
  Node* const node = parts_.members->worker(vacancy_->rank);
  for (Node& other : parts_.members->nodes()) {
    other.moved_at = other.step_at = other.wait_started = now;
  }
  const WorkerStart& start = *vacancy_->start;
  started_[vacancy_->rank] = {vacancy_->cause, vacancy_->since, start.first_step(),
                              start.first_new_step()};
  vacancy_.reset();
  return node;
}

void Replacements::OnProgress(absl::Time now, const Node& node, const Progress& progress,
                              SchedulerEffects* effects) {
  const auto it = started_.find(node.index);
  if (it == started_.end() || node.role != Role::kWorker) return;
  const Started& started = it->second;
  const int64_t trained = std::max(started.first_step + 1, started.first_new_step);
  if (progress.step() < trained && !progress.done()) return;
  SchedulerNotice* const notice =
      effects->Notify(SchedulerNotice::Kind::kReplaced, node.Name(), "");
  notice->step = started.first_step;
  notice->seconds = absl::ToDoubleSeconds(now - started.since);
  notice->steps_again = started.first_new_step - started.first_step;
  started_.erase(it);
  if (started_.empty() && !vacant()) parts_.checkpoints->OnReplaced(now, effects);
}

// OverdueWatch limits the time in which the servers answer FORGET_WORKER.
absl::optional<Failure> Replacements::Check(absl::Time now) {
  if (!vacant()) return absl::nullopt;
  const absl::Duration waited = now - vacancy_->since;
  if (parts_.members->worker(vacancy_->rank)->vacant) {
    if (waited < limits_.start) return absl::nullopt;
    return GiveUp(vacancy_->cause,
                  absl::StrCat("no new process has registered within ", InSeconds(limits_.start)));
  }
  if (vacancy_->view == 0 || waited < limits_.start + limits_.stall) return absl::nullopt;
  return GiveUp(vacancy_->cause,
                absl::StrCat("view ", vacancy_->view, " of its new process not acknowledged by ",
                             SomeOf(NotReady()), ", ", InSeconds(waited), " after its death"));
}

void Replacements::Forgive(absl::Duration pause) {
  if (vacancy_.has_value()) vacancy_->since += pause;
  for (auto& [rank, started] : started_) started.since += pause;
  for (absl::Time& begun : begun_) begun += pause;
}

}  // namespace tandem::scheduler
