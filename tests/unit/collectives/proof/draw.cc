#include "tests/unit/collectives/proof/draw.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/unit/collectives/proof/replay.h"

namespace tandem {
namespace {

// Collects lines by step and rank, in the order of a rank's ops.
class LineCollector : public ReplayVisitor {
 public:
  void OnSend(const ReplayMessage& m) override {
    arrows_.push_back({m.step, m.from, static_cast<int64_t>(lines_[{m.step, m.from}].size())});
    lines_[{m.step, m.from}].push_back(absl::StrCat(m.from, " ", m.piece.DebugString()));
  }

  void OnApply(int rank, int step, const collectives::Op& op,
               absl::Span<const ReplayMessage* const> messages) override {
    for (const ReplayMessage* m : messages) {
      const Arrow& arrow = arrows_[static_cast<size_t>(m->id)];
      lines_[{arrow.step, arrow.from}][static_cast<size_t>(arrow.line)] = ArrowText(*m, op, rank);
    }
    if (!messages.empty()) return;
    lines_[{step, rank}].push_back(absl::StrCat(
        rank, " ", op.piece.DebugString(),
        op.kind == collectives::OpKind::kCopy ? " = " : " += ", op.operand.DebugString()));
  }

  std::string Text() const {
    std::string out;
    int step = -1;
    for (const auto& [place, lines] : lines_) {
      if (place.first != step) absl::StrAppend(&out, "step ", step = place.first, "\n");
      for (const std::string& line : lines) absl::StrAppend(&out, "  ", line, "\n");
    }
    return out;
  }

 private:
  struct Arrow {
    int step, from;
    int64_t line;
  };

  static std::string ArrowText(const ReplayMessage& m, const collectives::Op& op, int rank) {
    const bool copy = op.kind == collectives::OpKind::kReceive;
    const char* head = copy ? "-> " : op.kind == collectives::OpKind::kFold ? "*> " : "+> ";
    std::string text =
        absl::StrCat(m.from, copy ? " --" : " ==", m.piece.DebugString(), head, rank);
    if (!(m.piece == op.piece)) absl::StrAppend(&text, " ", op.piece.DebugString());
    return text;
  }

  std::map<std::pair<int, int>, std::vector<std::string>> lines_;  // by step and rank
  std::vector<Arrow> arrows_;                                      // by message id
};

}  // namespace

absl::StatusOr<std::string> DrawSchedules(absl::Span<const collectives::Schedule> schedules) {
  LineCollector lines;
  TANDEM_RETURN_IF_ERROR(Replay(schedules, {}, lines));
  int64_t input = 0, output = 0;
  for (const collectives::Schedule& s : schedules) {
    input = std::max(input, s.input);
    output = std::max(output, s.output);
  }
  return absl::StrCat(schedules.size(), " ranks, ", input, " elements in, ", output, " out\n",
                      lines.Text());
}

}  // namespace tandem
