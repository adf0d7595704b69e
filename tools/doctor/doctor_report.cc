#include "tools/doctor/doctor_report.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace tandem::doctor {
namespace {

constexpr size_t kLevelColumn = 2, kCheckColumn = 11, kTextColumn = 27;

// Keeps only visible characters, because text of other hosts goes to a terminal.
std::string Visible(absl::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return out;
}

// Appends words from `column` on. Each further line is indented to `column`.
void AppendWrapped(absl::string_view text, size_t column, size_t columns, std::string* out) {
  size_t at = column;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (at > column && at + 1 + word.size() > columns) {
      absl::StrAppend(out, "\n", std::string(column, ' '));
      at = column;
    }
    absl::StrAppend(out, at > column ? " " : "", word);
    at += word.size() + (at > column ? 1 : 0);
  }
  absl::StrAppend(out, "\n");
}

const char* ColourOf(Severity level) {
  return level == Severity::kOk        ? "\x1b[32m"
         : level == Severity::kWarning ? "\x1b[33m"
                                       : "\x1b[1;31m";
}

void AppendFinding(const Finding& finding, const ReportStyle& style, std::string* out) {
  const std::string level = SeverityName(finding.level);
  absl::StrAppend(out, std::string(kLevelColumn, ' '), style.colour ? ColourOf(finding.level) : "",
                  level, style.colour ? "\x1b[0m" : "",
                  std::string(kCheckColumn - kLevelColumn - level.size(), ' '));
  const std::string check = Visible(finding.check).substr(0, kTextColumn - kCheckColumn - 1);
  absl::StrAppend(out, check, std::string(kTextColumn - kCheckColumn - check.size(), ' '));
  const size_t columns = static_cast<size_t>(std::max(style.columns, 60));
  AppendWrapped(Visible(finding.found), kTextColumn, columns, out);
  if (finding.advice.empty()) return;
  absl::StrAppend(out, std::string(kTextColumn, ' '), "-> ");
  AppendWrapped(Visible(finding.advice), kTextColumn + 3, columns, out);
}

void AppendSection(const std::string& title, const std::vector<Finding>& findings,
                   const ReportStyle& style, std::string* out) {
  absl::StrAppend(out, out->empty() ? "" : "\n", Visible(title), "\n");
  for (const Finding& finding : findings) AppendFinding(finding, style, out);
}

template <typename Visit>
void ForEachFinding(const DoctorReport& report, Visit visit) {
  for (const HostReport& host : report.hosts) {
    for (const Finding& finding : host.findings) visit(finding);
  }
  for (const PairReport& pair : report.pairs) {
    for (const Finding& finding : pair.findings) visit(finding);
  }
}

std::string Counted(int n, absl::string_view what) {
  return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
}

}  // namespace

int CountOf(const DoctorReport& report, Severity level) {
  int count = 0;
  ForEachFinding(report, [&](const Finding& finding) { count += finding.level == level; });
  return count;
}

std::string ReportText(const DoctorReport& report, const ReportStyle& style) {
  std::string out;
  for (size_t i = 0; i < report.hosts.size(); ++i) {
    const HostReport& host = report.hosts[i];
    AppendSection(i == 0 ? absl::StrCat("this host, ", host.host)
                         : absl::StrCat(host.name, ", host ", host.host),
                  host.findings, style, &out);
  }
  for (const PairReport& pair : report.pairs) {
    AppendSection(absl::StrCat(pair.facts.from, " -> ", pair.facts.to), pair.findings, style, &out);
  }
  absl::StrAppend(&out, "\n", Counted(CountOf(report, Severity::kProblem), "problem"), ", ",
                  Counted(CountOf(report, Severity::kWarning), "warning"), ", ",
                  CountOf(report, Severity::kOk), " ok\n");
  return out;
}

std::string ReportJson(const DoctorReport& report) {
  nlohmann::json object = {{"problems", CountOf(report, Severity::kProblem)},
                           {"warnings", CountOf(report, Severity::kWarning)},
                           {"hosts", nlohmann::json::array()},
                           {"pairs", nlohmann::json::array()}};
  for (const HostReport& host : report.hosts) {
    nlohmann::json one = {
        {"name", host.name}, {"host", host.host}, {"findings", nlohmann::json::array()}};
    for (const Finding& finding : host.findings) one["findings"].push_back(ToJson(finding));
    object["hosts"].push_back(std::move(one));
  }
  for (const PairReport& pair : report.pairs) object["pairs"].push_back(ToJson(pair));
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::doctor
