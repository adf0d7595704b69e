#include "cli/console/progress_view.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "scheduler/observe/summary.h"

namespace tandem::cli {
namespace {

using scheduler::NumberOf;
using scheduler::TextOf;
constexpr absl::Duration kPlainInterval = absl::Seconds(5);
constexpr int kPlainColumns = 1000;

struct Words {
  const char *samples, *training, *staleness, *versions, *maximum, *left, *separator;
};
constexpr Words kWide = {" samples/s", "training ", "staleness", " versions",
                         ", max ",     " left",     " | "};
constexpr Words kNarrow = {"/s", "", "stale", "", "/", "", ", "};

std::string Speed(const nlohmann::json& p) {
  return WithCommas(static_cast<int64_t>(NumberOf(p, "samples_per_second")));
}

std::string Join(const nlohmann::json& p, const Words& words) {
  std::string where = absl::StrCat("epoch ", static_cast<int64_t>(NumberOf(p, "epoch")));
  if (NumberOf(p, "epoch_fraction") > 0) {
    absl::StrAppend(&where, absl::StrFormat(" %2.0f%%", 100 * NumberOf(p, "epoch_fraction")));
  }
  absl::StrAppend(&where, ", step ", WithCommas(static_cast<int64_t>(NumberOf(p, "min_step"))));
  if (NumberOf(p, "min_step") == 0 && NumberOf(p, "max_step") > 0) {  // one has not begun
    absl::StrAppend(&where, " to ", WithCommas(static_cast<int64_t>(NumberOf(p, "max_step"))));
  }
  std::vector<std::string> parts = {where};
  const bool trains = p.contains("samples_per_second");
  parts.push_back(p.value("evaluating", false) ? "evaluating"
                  : !trains                    ? "paused"
                                               : Speed(p) + words.samples);
  std::vector<std::string> measured;  // on the samples since the last line
  if (p.contains("loss")) measured.push_back(absl::StrFormat("loss %.4f", NumberOf(p, "loss")));
  if (p.contains("auc")) measured.push_back(absl::StrFormat("AUC %.4f", NumberOf(p, "auc")));
  if (!measured.empty()) parts.push_back(words.training + absl::StrJoin(measured, ", "));
  if (p.contains("staleness_mean")) {  // servers have reported
    parts.push_back(absl::StrFormat("%s %.2f%s%s%.0f", words.staleness,
                                    NumberOf(p, "staleness_mean"), words.versions, words.maximum,
                                    NumberOf(p, "staleness_max")));
  }
  if (p.contains("seconds_left")) {
    parts.push_back(absl::StrCat(ClockTime(NumberOf(p, "seconds_left")), words.left));
  }
  return absl::StrJoin(parts, words.separator);
}

// " at epoch 2, step 1,200, test data", with the parts that the event has. Epoch 0 is
// before training.
std::string WhereEvaluated(const nlohmann::json& event) {
  std::string where;
  if (NumberOf(event, "epoch") > 0 && event.contains("step")) {
    where = absl::StrCat(" at epoch ", static_cast<int64_t>(NumberOf(event, "epoch")), ", step ",
                         WithCommas(static_cast<int64_t>(NumberOf(event, "step"))));
  }
  const std::string data = TextOf(event, "data");
  return data.empty() ? where : absl::StrCat(where, where.empty() ? " on " : ", ", data, " data");
}

int ColumnsOf(std::FILE* terminal) {
  winsize size = {};
  const bool known = ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}
}  // namespace

std::string ProgressView::Format(const nlohmann::json& p, int columns) {
  const std::string wide = Join(p, kWide);
  return static_cast<int>(wide.size()) <= columns ? wide : Join(p, kNarrow);
}

std::string ProgressView::FormatEvaluation(const nlohmann::json& evaluation) {
  constexpr std::pair<const char*, const char*> kMeasures[] = {{"auc", "AUC"},
                                                               {"hr_at_10", "HR@10"},
                                                               {"ndcg_at_10", "NDCG@10"},
                                                               {"logloss", "logloss"},
                                                               {"accuracy", "accuracy"}};
  std::vector<std::string> parts;
  for (const auto& [key, name] : kMeasures) {
    if (evaluation.contains(key)) {
      parts.push_back(absl::StrFormat("%s %.4f", name, NumberOf(evaluation, key)));
    }
  }
  const auto reported = evaluation.value("reported", nlohmann::json::object());
  for (const auto& [name, value] : reported.items()) {
    if (value.is_number()) parts.push_back(absl::StrFormat("%s %.4f", name, value.get<double>()));
  }
  if (evaluation.contains("scores_not_finite")) parts.push_back("scores are not finite");
  const auto samples = static_cast<int64_t>(NumberOf(evaluation, "samples"));
  if (samples > 0) parts.push_back(absl::StrCat(WithCommas(samples), " samples"));
  return absl::StrJoin(parts, ", ");
}

void ProgressView::Clear() {
  if (!live_line_) return;
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
  live_line_ = false;
}

void ProgressView::Line(const std::string& text) {
  Clear();
  std::fprintf(out_, "%s\n", text.c_str());
  std::fflush(out_);
}

void ProgressView::ShowProgress(const nlohmann::json& progress, absl::Time now) {
  if (NumberOf(progress, "samples") <= 0) return;  // processes are still starting
  if (!live_) {
    skipped_ = progress;
    if (now >= next_plain_) ShowPlain(now);
    return;
  }
  const int columns = ColumnsOf(out_);
  // Cut the line, because a wrapped line cannot be erased.
  const std::string line =
      Format(progress, columns - 1).substr(0, static_cast<size_t>(columns - 1));
  std::fprintf(out_, "\r\x1b[K%s", line.c_str());
  std::fflush(out_);
  live_line_ = true;
}

void ProgressView::ShowPlain(absl::Time now) {
  next_plain_ = now + kPlainInterval;
  Line(Format(std::exchange(skipped_, nullptr), kPlainColumns));
}

void ProgressView::Show(const nlohmann::json& event, absl::Time now) {
  const std::string kind = TextOf(event, "event");
  if (kind == "progress") {
    ShowProgress(event, now);
  } else if (kind == "resumed" || kind == "failed") {
    skipped_ = nullptr;  // steps that are taken again
  } else if (kind == "evaluation") {
    if (skipped_.is_object()) ShowPlain(now);  // the step of the evaluation
    Line(absl::StrCat("evaluation", WhereEvaluated(event), ": ", FormatEvaluation(event),
                      event.value("best", false) ? "; the best so far" : ""));
  } else if (kind == "log") {
    Line(TextOf(event, "text"));
  } else if (kind == "stall") {
    Line(absl::StrCat("stall: ", TextOf(event, "node"), ": ", TextOf(event, "text")));
  } else if (kind == "stall_over") {
    Line(absl::StrCat("stall over: ", TextOf(event, "node"), " makes progress again"));
  }
}

}  // namespace tandem::cli
