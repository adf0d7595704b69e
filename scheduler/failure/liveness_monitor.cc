#include "scheduler/failure/liveness_monitor.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/failure/failure_judge.h"

namespace tandem::scheduler {

void LivenessMonitor::OnHeard(absl::Time now, Node* node, SchedulerEffects* effects) {
  node->heard = now;
  if (!node->silence_reported) return;
  node->silence_reported = false;
  effects->Warn(absl::StrCat(node->Name(), " is back"));
}

absl::optional<Failure> LivenessMonitor::Check(absl::Time now, SchedulerEffects* effects) {
  for (Node& node : members_->nodes()) {
    if (node.gone || node.reported_failure) continue;
    if (node.lost_since.has_value() && now - *node.lost_since >= times_.reconnect_grace) {
      if (node.connected && node.heard > *node.lost_since) {
        node.lost_since.reset();  // only another connection of the node broke
        continue;
      }
      return DeathOf(&node, absl::StrCat("connection lost (", node.lost_why, ")"));
    }
    const absl::Duration silence = now - node.heard;
    if (silence < std::min(times_.silence_report, times_.silence_death)) continue;
    const std::string text =
        absl::StrCat("no sign of life for ", InSeconds(silence), "; last seen at: ", node.Doing());
    if (silence >= times_.silence_death) return DeathOf(&node, text);
    if (silence < times_.silence_report || node.silence_reported) continue;
    node.silence_reported = true;
    effects->Log(absl::StrCat(node.Name(), ": ", text));
    effects->Notify(SchedulerNotice::Kind::kStall, node.Name(), text);
  }
  return absl::nullopt;
}

}  // namespace tandem::scheduler
