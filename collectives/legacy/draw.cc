#include "collectives/legacy/draw.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/legacy/replay.h"

namespace tandem {
inline namespace legacy {
namespace {

struct Arrow {
  ReplayMessage message;
  bool added = false;
};

class ArrowCollector : public ReplayVisitor {
 public:
  void OnSend(const ReplayMessage& message) override { arrows.push_back({message}); }
  void OnApply(int /*rank*/, int /*step*/, const Op& op, const ReplayMessage* message) override {
    if (message != nullptr) arrows[message->id].added = op.kind == OpKind::kReduce;
  }

  std::vector<Arrow> arrows;  // by message id
};

}  // namespace

absl::StatusOr<std::string> DrawSchedules(absl::Span<const Schedule> schedules) {
  ArrowCollector collector;
  TANDEM_RETURN_IF_ERROR(Replay(schedules, /*max_in_flight=*/1, collector));
  std::vector<Arrow>& arrows = collector.arrows;
  std::stable_sort(arrows.begin(), arrows.end(), [](const Arrow& a, const Arrow& b) {
    return std::pair(a.message.step, a.message.from) < std::pair(b.message.step, b.message.from);
  });
  std::string out = absl::StrCat(schedules.size(), " ranks, ",
                                 schedules.empty() ? 0 : schedules[0].count, " elements\n");
  int step = -1;
  for (const Arrow& arrow : arrows) {
    const ReplayMessage& m = arrow.message;
    if (m.step != step) absl::StrAppend(&out, "step ", step = m.step, "\n");
    absl::StrAppend(&out, "  ", m.from, arrow.added ? " ==" : " --", m.piece.DebugString(),
                    arrow.added ? "+> " : "-> ", m.to, "\n");
  }
  return out;
}

}  // namespace legacy
}  // namespace tandem
