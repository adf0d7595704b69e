#include "worker/job_news.h"

#include <utility>

#include "absl/strings/match.h"
#include "worker/evaluation_round.h"

namespace tandem::worker {

void JobNews::Hear(const Control& control) {
  absl::MutexLock lock(&mutex_);
  if (control.has_record()) {
    records_.push_back(control.record().json());
    if (records_.size() > kMaxRecords) records_.pop_front();
  }
  const BarrierRelease& release = control.barrier_release();
  // A release may come twice.
  if (!absl::StartsWith(release.name(), kEvaluated) || release.name() == barrier_) return;
  barrier_ = release.name();
  json_ = release.evaluation_json();
  ++over_;
  changed_.SignalAll();
}

void JobNews::End(const absl::Status& how) {
  absl::MutexLock lock(&mutex_);
  how_ = how;
  changed_.SignalAll();
}

void JobNews::OnEvaluationGiven() {
  absl::MutexLock lock(&mutex_);
  ++given_;
}

absl::StatusOr<bool> JobNews::Evaluation(absl::Time deadline, std::string* json) {
  absl::MutexLock lock(&mutex_);
  while (over_ < given_ && !how_.has_value()) {
    if (changed_.WaitUntil(&mutex_, deadline)) return false;
  }
  if (over_ < given_ && !how_->ok()) return *how_;
  *json = json_;
  return true;
}

std::optional<std::string> JobNews::TakeRecord() {
  absl::MutexLock lock(&mutex_);
  if (records_.empty()) return std::nullopt;
  std::string record = std::move(records_.front());
  records_.pop_front();
  return record;
}

}  // namespace tandem::worker
