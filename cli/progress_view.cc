#include "cli/progress_view.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tandem {
namespace {
constexpr absl::Duration kPlainInterval = absl::Seconds(5);

double NumberOf(const nlohmann::json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}
std::string TextOf(const nlohmann::json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}
}  // namespace

std::string WithCommas(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string ProgressView::Format(const nlohmann::json& p) {
  std::vector<std::string> parts;
  std::string where = absl::StrCat("epoch ", static_cast<int64_t>(NumberOf(p, "epoch")) + 1);
  if (p.contains("epoch_fraction") && NumberOf(p, "epoch_fraction") > 0) {
    absl::StrAppend(&where, absl::StrFormat(" %3.0f%%", 100 * NumberOf(p, "epoch_fraction")));
  }
  parts.push_back(
      absl::StrCat(where, " step ", WithCommas(static_cast<int64_t>(NumberOf(p, "min_step")))));
  parts.push_back(absl::StrCat(WithCommas(static_cast<int64_t>(NumberOf(p, "samples_per_second"))),
                               " samples/s"));
  if (p.contains("loss")) parts.push_back(absl::StrFormat("loss %.4f", NumberOf(p, "loss")));
  if (p.contains("auc")) parts.push_back(absl::StrFormat("AUC %.4f", NumberOf(p, "auc")));
  parts.push_back(absl::StrFormat("staleness %.2f max %.0f", NumberOf(p, "staleness_mean"),
                                  NumberOf(p, "staleness_max")));
  if (p.contains("seconds_left")) {
    const int64_t left = static_cast<int64_t>(NumberOf(p, "seconds_left"));
    parts.push_back(absl::StrFormat("%d:%02d left", left / 60, left % 60));
  }
  return absl::StrJoin(parts, " | ");
}

void ProgressView::EndLive() {
  if (!live_line_) return;
  std::fputs("\n", out_);
  std::fflush(out_);
  live_line_ = false;
}

void ProgressView::Line(const std::string& text) {
  if (live_line_) std::fputs("\r\x1b[K", out_);
  live_line_ = false;
  std::fprintf(out_, "%s\n", text.c_str());
  std::fflush(out_);
}

void ProgressView::Show(const nlohmann::json& event, absl::Time now) {
  const std::string kind = TextOf(event, "event");
  if (kind == "progress") {
    const std::string line = Format(event);
    if (live_) {
      std::fprintf(out_, "\r\x1b[K%s", line.c_str());
      std::fflush(out_);
      live_line_ = true;
    } else if (now >= next_plain_) {
      next_plain_ = now + kPlainInterval;
      Line(line);
    }
  } else if (kind == "evaluation") {
    std::vector<std::string> parts;
    for (const auto& [name, value] : event.items()) {
      if (value.is_number()) parts.push_back(absl::StrCat(name, " ", value.dump()));
    }
    Line(absl::StrCat("evaluation: ", absl::StrJoin(parts, ", ")));
  } else if (kind == "log") {
    Line(TextOf(event, "text"));
  } else if (kind == "stall") {
    Line(absl::StrCat("stall: ", TextOf(event, "node"), ": ", TextOf(event, "text")));
  } else if (kind == "stall_over") {
    Line(absl::StrCat("stall over: ", TextOf(event, "node")));
  }
}

}  // namespace tandem
