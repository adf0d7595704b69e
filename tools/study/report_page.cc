#include "tools/study/report_page.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "tools/study/json_value.h"

namespace tandem::study {
namespace {

// The colours of tools/study/figures.py, their names in the page, and their dark variants.
struct Colour {
  const char* drawn;
  const char* name;
  const char* dark;
};
constexpr Colour kColours[] = {
    {"#ffffff", "--paper", "#14181d"}, {"#1b1f24", "--ink", "#e4e8ec"},
    {"#68727d", "--muted", "#98a3ae"}, {"#dde2e7", "--grid", "#2d343c"},
    {"#0a6ab0", "--c0", "#5aa9e6"},    {"#cf5a00", "--c1", "#f0883e"},
    {"#07875f", "--c2", "#3fc48f"},    {"#b0578d", "--c3", "#de8fbf"},
    {"#b98300", "--c4", "#e0b03a"},    {"#3d95c9", "--c5", "#86cdf4"},
    {"#6f5fb3", "--c6", "#a99be8"},    {"#84633b", "--c7", "#c6a074"},
    {"#4f5d68", "--c8", "#a3b2bf"},    {"#9a8f00", "--c9", "#cfc33a"},
};

constexpr char kStyle[] = R"css(
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
 font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:84rem;margin:0 auto;padding:2rem 1.25rem 4rem}
p,ul.notes,dl,h1{max-width:60rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4rem}
h2{font-size:1.2rem;margin:2.8rem 0 .6rem;padding-top:.9rem;border-top:1px solid var(--grid)}
h3{font-size:1rem;margin:1.8rem 0 .3rem}
p{margin:.5rem 0}
.question{font-size:1.1rem;color:var(--muted);margin:0 0 1.2rem}
.answer{font-size:1.15rem;line-height:1.5;border-left:4px solid var(--c0);padding:.1rem 0 .1rem 1rem;
 margin:1.2rem 0;white-space:pre-line}
.read,.small{color:var(--muted);font-size:.9rem}
ul.notes{padding-left:1.2rem;color:var(--muted);font-size:.9rem;margin:1rem 0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.35rem .7rem .35rem 0;text-align:right;vertical-align:top;
 border-bottom:1px solid var(--grid)}
th{font-weight:600;color:var(--muted);vertical-align:bottom}
th:first-child,td:first-child,th.text,td.text{text-align:left}
td.name{font-weight:600;min-width:7rem}
td .spread{display:block;color:var(--muted);font-size:.8rem;font-weight:400}
td{overflow-wrap:break-word}dd{overflow-wrap:anywhere}
td .spread.bad{color:var(--c1)}
.good{color:var(--c2);font-weight:600}.bad{color:var(--c1);font-weight:600}.open{color:var(--muted)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,36rem),1fr));gap:0 2.5rem}
figure{margin:1.6rem 0 2.2rem;min-width:0}
figcaption h3{margin:0 0 .2rem}
figure .drawing{margin-top:.5rem}
figure svg{display:block;width:100%;max-width:100%;height:auto}
code,pre{font:.85rem/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--grid);padding:.7rem .9rem;border-radius:4px}
details{margin:.6rem 0}summary{cursor:pointer}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;font-size:.9rem;margin:.8rem 0}
dt{color:var(--muted)}dd{margin:0}
@media screen and (max-width:80rem){table,tbody,tr,td{display:block}thead{display:none}
 tr{padding:.6rem 0;border-bottom:1px solid var(--grid)}
 td,td.text{display:flex;gap:1rem;text-align:left;padding:.15rem 0;border:0;overflow-wrap:anywhere}
 td::before{content:attr(data-of);flex:0 0 42%;color:var(--muted)}
 td:not([data-of])::before{content:none}}
@media (max-width:40rem){main{padding:1.2rem .9rem 3rem}h1{font-size:1.35rem}
 dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}}
@media print{body{font-size:10pt}main{max-width:none;padding:0}.figures{display:block}
 h2{break-after:avoid}figure,tr{break-inside:avoid}figure svg{max-width:16cm}}
)css";

std::string Escape(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Tag(absl::string_view name, absl::string_view text) {
  return absl::StrCat("<", name, ">", Escape(text), "</", name, ">\n");
}

// The style rule with the colours: ":root{--paper:#fff;...}". Dark colours apply if the reader's
// screen asks for them; printed pages are always light.
std::string Colours() {
  std::string light, dark;
  for (const Colour& colour : kColours) {
    absl::StrAppend(&light, colour.name, ":", colour.drawn, ";");
    absl::StrAppend(&dark, colour.name, ":", colour.dark, ";");
  }
  return absl::StrCat(":root{color-scheme:light dark;", light,
                      "}\n@media screen and (prefers-color-scheme:dark){:root{", dark, "}}\n");
}

// A number with no more digits than a reader can use: "0.7912".
std::string Number(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1e-3) return absl::StrFormat("%.2e", value);
  if (size < 10) return absl::StrFormat("%.4f", value);
  if (size < 1000) return absl::StrFormat("%.1f", value);
  return size < 1e18 ? WithCommas(std::llround(value)) : absl::StrFormat("%g", value);
}

// A table cell. `of`: the head of its column, which is shown beside the cell on narrow pages.
// `html`: the contents.
std::string Cell(absl::string_view of, absl::string_view html, absl::string_view classes = "") {
  return absl::StrCat("<td", classes.empty() ? "" : absl::StrCat(" class=\"", classes, "\""),
                      " data-of=\"", Escape(of), "\"><div>", html, "</div></td>");
}

struct Column {
  std::string title;
  std::string column;
  double scale = 1;  // from the unit of the run's number to the unit of the title
};

std::string Mean(const Spread* spread, double scale) {
  if (spread == nullptr) return "–";
  const std::string mean = Number(scale * spread->mean);
  if (spread->count < 2 || spread->low == spread->high) return mean;
  return absl::StrCat(mean, "<span class=\"spread\">", Number(scale * spread->low), " to ",
                      Number(scale * spread->high), "</span>");
}

// A cell of the results table. The mean of a time to the target is shown only if all runs reached
// the target.
std::string Cell(const Group& group, const Column& column) {
  const Spread* const spread = group.Find(column.column);
  const int reached = spread == nullptr ? 0 : static_cast<int>(spread->count);
  const int tried = group.complete + group.diverged;
  if (!absl::StartsWith(column.column, "to_target.") || reached == tried) {
    return Cell(column.title, Mean(spread, column.scale));
  }
  return Cell(column.title, absl::StrCat("reached ", reached, " of ", tried));
}

std::string NameCell(const Group& group) {
  std::string under;
  if (group.part == Part::kTuned) under = absl::StrCat("tuned: ", group.value);
  if (!group.policy.empty()) absl::StrAppend(&under, under.empty() ? "" : "; ", group.policy);
  return absl::StrCat("<td class=\"name\"><div>", Escape(group.variation),
                      "<span class=\"spread\">", Escape(under), "</span></div></td>");
}

std::string RunsCell(const Group& group) {
  std::vector<std::string> lost;
  if (!group.collapsed.empty()) lost.push_back(absl::StrCat(group.collapsed.size(), " collapsed"));
  if (group.diverged > 0) lost.push_back(absl::StrCat(group.diverged, " diverged"));
  if (group.failed > 0) lost.push_back(absl::StrCat(group.failed, " failed"));
  if (group.absent > 0) lost.push_back(absl::StrCat(group.absent, " not done"));
  return Cell("runs",
              absl::StrCat(group.complete,
                           lost.empty() ? ""
                                        : absl::StrCat("<span class=\"spread bad\">",
                                                       absl::StrJoin(lost, ", "), "</span>")));
}

// Whether some data was dropped or counted less than in full.
bool SomeBelow1(const Analysis& analysis, const Column& column) {
  return std::any_of(analysis.groups.begin(), analysis.groups.end(), [&](const Group& group) {
    const Spread* const spread = group.Find(column.column);
    return spread != nullptr && spread->mean < 1;
  });
}

std::vector<Column> ColumnsOf(const StudyRuns& plan, const Analysis& analysis) {
  constexpr double kMilliseconds = 1e3;
  const std::string rows =
      analysis.curve_rows.empty() ? "" : absl::StrCat(" (", analysis.curve_rows, " rows)");
  std::vector<Column> columns = {{plan.metric.label, plan.metric.column}};
  const std::vector<Column> others = {
      {"AUC", "eval.auc"},
      {"logloss", "eval.logloss"},
      {"normalised entropy", "eval.normalised_entropy"},
      {"calibration", "eval.calibration"},
      {"samples/s", "samples_per_second"},
      {"training alone, samples/s", "training_speed"},
      {"its twin", "twin.training_speed"},
      {"twin / live", "twin.ratio"},
      {"after the start, samples/s", "steady.speed"},
      {"seconds a step", "steady.step_seconds"},
      {"by the model", "model.step_seconds"},
      {"model / measured", "model.ratio"},
      {"link, all at once", "model.at_once_seconds"},
      {"link, one way at a time", "model.one_way_seconds"},
      {"by the model at full size", "model.full_step_seconds"},
      {"seconds", "seconds"},
      {"seconds to target" + rows, "to_target.seconds"},
      {"samples to target" + rows, "to_target.samples"},
      {"version staleness, mean", "staleness.version_mean"},
      {"version staleness of dense, mean", "staleness.dense_version_mean"},
      {"the twin's", "twin.version_mean"},
      {"row staleness, mean", "staleness.row_mean"},
      {"age, mean (ms)", "staleness.age_mean", kMilliseconds},
      {"clock gap, largest (steps)", "staleness.clock_gap_max"},
      {"in flight, mean", "staleness.in_flight_mean"},
      {"share of data applied", "data_applied.share"},
      {"of the worker with the least", "data_applied.least_worker"},
      {"of label 1", "data_applied.label_1"},
      {"of label 0", "data_applied.label_0"},
      {"bytes a sample", "bytes_per_sample.all"},
      {"looked-up ids with a row", "found_share"},
      {"rows", "rows"},
      {"table memory, bytes", "memory_bytes"}};
  for (const Column& column : others) {
    if (column.column == plan.metric.column) continue;
    if (column.column == "training_speed" && !plan.study.twin()) continue;
    if (column.column == "steady.speed" && !plan.study.has_network()) continue;
    if (absl::StartsWith(column.column, "data_applied.") && !SomeBelow1(analysis, column)) continue;
    for (const Group& group : analysis.groups) {
      if (group.Find(column.column) == nullptr) continue;
      columns.push_back(column);
      break;
    }
  }
  return columns;
}

std::string ResultsTable(const StudyRuns& plan, const Analysis& analysis) {
  const std::vector<Column> columns = ColumnsOf(plan, analysis);
  std::string html = "<table><thead><tr><th>variation</th><th>runs</th>";
  for (const Column& column : columns)
    absl::StrAppend(&html, "<th>", Escape(column.title), "</th>");
  absl::StrAppend(&html, "</tr></thead><tbody>\n");
  for (const Group& group : analysis.groups) {
    absl::StrAppend(&html, "<tr>", NameCell(group), RunsCell(group));
    for (const Column& column : columns) absl::StrAppend(&html, Cell(group, column));
    absl::StrAppend(&html, "</tr>\n");
  }
  return absl::StrCat(html, "</tbody></table>\n");
}

std::string VerdictClass(const Comparison& comparison) {
  return comparison.verdict > 0 ? "good" : comparison.verdict < 0 ? "bad" : "open";
}
// The verdict in one or two words. A verdict comes first, since it is the strongest claim. Without
// one, the word tells why: some runs diverged or missed the target, all seeds were equal, or the
// interval contains "no effect". With enough seeds such an interval is a result; with few seeds it
// is a lack of data.
std::string VerdictWord(const Comparison& comparison) {
  if (comparison.verdict != 0) return comparison.verdict > 0 ? "better" : "worse";
  if (comparison.lost() || comparison.censored()) return "no verdict";
  if (comparison.same()) return "no difference";
  return comparison.effect.enough ? "no difference seen" : "not resolved";
}

// All comparisons of one variation (and part), one for each measure.
struct Verdicts {
  std::string name;
  std::vector<const Comparison*> of;

  bool resolved() const {
    return std::any_of(of.begin(), of.end(),
                       [](const Comparison* comparison) { return comparison->verdict != 0; });
  }
};

std::vector<Verdicts> VerdictsOf(const std::vector<Comparison>& comparisons, bool of_tuning) {
  std::vector<Verdicts> all;
  for (const Comparison& comparison : comparisons) {
    const std::string name = absl::StrCat(
        comparison.variation, comparison.part == Part::kTuned && !of_tuning ? " (tuned)" : "");
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const Verdicts& one) { return one.name == name; });
    if (same == all.end()) {
      all.push_back({name, {&comparison}});
    } else {
      same->of.push_back(&comparison);
    }
  }
  return all;
}

// A table with one row for each variation.
std::string VerdictTable(const std::vector<Verdicts>& rows) {
  std::string html = "<table><thead><tr><th>variation</th>";
  for (const Comparison* comparison : rows[0].of) {
    absl::StrAppend(&html, "<th class=\"text\">", Escape(comparison->measure.label), "</th>");
  }
  absl::StrAppend(&html, "</tr></thead><tbody>\n");
  for (const Verdicts& row : rows) {
    absl::StrAppend(&html, "<tr><td class=\"name\"><div>", Escape(row.name), "</div></td>");
    for (const Comparison* c : row.of) {
      const std::string words = c->Words(), verdict = VerdictWord(*c);
      const std::string seeds =
          c->effect.seeds > 1 ? absl::StrCat("; ", c->effect.seeds, " seeds") : "";
      // The verdict stands above the words, so do not repeat it.
      absl::string_view said = words;
      if (absl::ConsumePrefix(&said, verdict)) {
        absl::ConsumePrefix(&said, ":");
      } else {
        absl::ConsumePrefix(&said, "not resolved");  // "no difference seen" says more
      }
      said = absl::StripLeadingAsciiWhitespace(said);
      absl::StrAppend(&html, Cell(c->measure.label,
                                  absl::StrCat("<span class=\"", VerdictClass(*c), "\">", verdict,
                                               "</span><span class=\"spread\">",
                                               Escape(absl::StrCat(said, seeds)), "</span>"),
                                  "text"));
    }
    absl::StrAppend(&html, "</tr>\n");
  }
  return absl::StrCat(html, "</tbody></table>\n");
}

// The tables of comparisons. Variations without a resolved difference are folded away if other
// variations have one.
std::string ComparisonTables(const std::vector<Comparison>& comparisons, bool of_tuning) {
  std::vector<Verdicts> shown, folded;
  for (Verdicts& one : VerdictsOf(comparisons, of_tuning)) {
    (one.resolved() ? shown : folded).push_back(std::move(one));
  }
  constexpr size_t kFew = 3;
  if (shown.empty() && folded.size() <= kFew) shown.swap(folded);
  std::string html = shown.empty() ? "" : VerdictTable(shown);
  if (folded.empty()) return html;
  const std::string names = absl::StrJoin(
      folded, ", ", [](std::string* out, const Verdicts& one) { absl::StrAppend(out, one.name); });
  absl::StrAppend(&html, "<details><summary>Nothing is resolved of ", folded.size(),
                  folded.size() == 1 ? " variation: " : " variations: ", Escape(names),
                  "</summary>", VerdictTable(folded), "</details>\n");
  return html;
}

std::string Comparisons(const StudyRuns& plan, const Analysis& analysis) {
  if (analysis.comparisons.empty()) return "";
  const std::vector<std::string> amongs = plan.Amongs();
  std::string html = Tag(
      "h2",
      absl::StrCat("Against ", absl::StrJoin(amongs, " and ", [&](std::string* out, const auto& a) {
                     absl::StrAppend(out, plan.BaselineAmong(a));
                   })));
  absl::StrAppend(
      &html,
      "<p class=\"read\">Differences, or factors for speeds and times, are taken seed by seed; ",
      "in brackets the 95&nbsp;% interval of their mean by Student's t. Where it holds &ldquo;no ",
      "difference&rdquo; nothing is resolved, and no order is given.</p>\n",
      ComparisonTables(analysis.comparisons, /*of_tuning=*/false));
  return html;
}

std::string Tuning(const StudyRuns& plan, const Analysis& analysis) {
  if (!plan.tunes()) return "";
  const Tune& tune = plan.study.tune();
  const bool by_loss = tune.choose_by() == Tune::TRAINING_LOSS;
  const char* const on_validation_rows =
      tune.choose_by() == Tune::METRIC ? "" : " on validation rows";
  std::string html = Tag("h2", "Tuning");
  absl::StrAppend(&html, "<p class=\"read\">Each variation tried the same ", tune.value_size(),
                  " values of <code>", Escape(tune.path()), "</code> on the same ",
                  tune.seed_size(), " seeds (", absl::StrJoin(tune.seed(), ", "),
                  "), none of which is among the results; the best mean of ",
                  Escape(by_loss ? "the training loss of the last tenth of the samples"
                                 : absl::StrCat(plan.metric.label, on_validation_rows)),
                  " was taken.</p>\n<table><thead><tr><th>variation</th>");
  for (const std::string& value : tune.value())
    absl::StrAppend(&html, "<th>", Escape(value), "</th>");
  absl::StrAppend(&html, "</tr></thead><tbody>\n");
  for (size_t i = 0; i < analysis.trials.size(); ++i) {
    const Trial& trial = analysis.trials[i];
    if (i % tune.value_size() == 0) {
      absl::StrAppend(&html, "<tr><td class=\"name\"><div>", Escape(trial.variation),
                      "</div></td>");
    }
    const std::string mean = trial.spread.count == 0 ? "–" : Number(trial.spread.mean);
    absl::StrAppend(
        &html, Cell(trial.value,
                    absl::StrCat(mean, trial.chosen ? " ✓" : "",
                                 trial.lost > 0 ? absl::StrCat(" (", trial.lost, " lost)") : ""),
                    trial.chosen ? "good" : ""));
    if ((i + 1) % tune.value_size() == 0) absl::StrAppend(&html, "</tr>\n");
  }
  absl::StrAppend(&html, "</tbody></table>\n");
  if (analysis.tuned_gains.empty()) return html;
  return absl::StrCat(html, Tag("h3", "What it gave"),
                      ComparisonTables(analysis.tuned_gains, /*of_tuning=*/true));
}

std::string FiguresHtml(const Figures& figures) {
  if (figures.figures.empty() && figures.missing.empty()) return "";
  std::string html = Tag("h2", "Figures");
  if (!figures.missing.empty()) absl::StrAppend(&html, Tag("p", figures.missing));
  absl::StrAppend(&html, "<div class=\"figures\">\n");
  for (const Figure& figure : figures.figures) {
    absl::StrAppend(&html, "<figure id=\"", Escape(figure.name), "\"><figcaption>",
                    Tag("h3", figure.title), "<p class=\"read\">", Escape(figure.read),
                    "</p></figcaption><div class=\"drawing\">", InlineSvg(figure.svg),
                    "</div></figure>\n");
  }
  return absl::StrCat(html, "</div>\n");
}

std::string RunsTable(const StudyRuns& plan, const Analysis& analysis) {
  std::string html = absl::StrCat(
      Tag("h2", "Runs"),
      "<p class=\"read\">All numbers of each run are in <code>runs.csv</code>, what it left behind "
      "in <code>runs/</code>.</p>\n<details><summary>",
      "Every run</summary><table><thead><tr><th>run</th><th "
      "class=\"text\">state",
      "</th><th>", Escape(plan.metric.label),
      "</th><th>samples/s</th><th>seconds</th></tr></thead>", "<tbody>\n");
  for (const Group& group : analysis.groups) {
    for (const StudyRun& run : group.runs) {
      const bool collapsed = group.collapsed.count(run.name) > 0;
      const std::string state =
          absl::StrCat(StateName(run.state), collapsed ? ", collapsed" : "",
                       run.restarts > 0 ? absl::StrCat(", restarts: ", run.restarts) : "",
                       run.why.empty() ? "" : absl::StrCat(": ", Escape(run.why)));
      absl::StrAppend(&html, "<tr><td class=\"name\"><div>", Escape(run.name), "</div></td>",
                      Cell("state", state, run.counts() && !collapsed ? "text" : "text bad"));
      for (const auto& [title, column] :
           {std::pair(plan.metric.label, plan.metric.column),
            std::pair<std::string, std::string>("samples/s", "samples_per_second"),
            std::pair<std::string, std::string>("seconds", "seconds")}) {
        const auto number = run.Number(column);
        absl::StrAppend(&html, Cell(title, number.has_value() ? Number(*number) : "–"));
      }
      absl::StrAppend(&html, "</tr>\n");
    }
  }
  return absl::StrCat(html, "</tbody></table></details>\n");
}

std::string Line(absl::string_view name, absl::string_view text) {
  return absl::StrCat("<dt>", Escape(name), "</dt><dd>", Escape(text), "</dd>\n");
}

// The section that tells how to repeat the study.
std::string Repeat(const Manifest& manifest) {
  const nlohmann::json& around = manifest.surroundings;
  const auto text = [&around](const char* part, const char* name) {
    const auto& object = around.value(part, nlohmann::json::object());
    return TextIn(object, name);
  };
  std::string html = Tag("h2", "How to repeat this study");
  absl::StrAppend(
      &html, "<pre>tandem compare ", Escape(manifest.study_file), "</pre>\n<dl>\n",
      Line("job", manifest.plan.job_file),
      Line("seeds", absl::StrJoin(manifest.plan.study.seed(), ", ")),
      Line("build", absl::StrCat("tandem ", text("build", "version"), ", ", text("build", "type"),
                                 ", ", text("build", "march"), ", ", text("build", "compiler"))),
      Line("machine", absl::StrCat(text("machine", "processors"), "; ", text("machine", "memory"),
                                   "; ", text("machine", "system"))),
      Line("begun", TextIn(around, "began")));
  if (manifest.plan.study.has_simulate()) {
    const Simulate& assumed = manifest.plan.study.simulate();
    if (assumed.timing_only()) {
      absl::StrAppend(&html, Line("times alone", "nothing was read, computed or sent"));
    }
    if (assumed.has_problem()) {
      absl::StrAppend(&html, Line("problem", assumed.problem().ShortDebugString()));
    }
    absl::StrAppend(
        &html,
        Line("simulated",
             absl::StrCat(
                 "seconds and rates are of a virtual clock: a step takes ", assumed.step_seconds(),
                 " s where the job's fault_injection.slow_workers says otherwise, a frame ",
                 assumed.latency_seconds(), " s, a process sends ",
                 assumed.bytes_per_second() > 0
                     ? absl::StrCat(assumed.bytes_per_second(), " bytes a second")
                     : "without a limit")));
  }
  for (const auto& file : around.value("data", nlohmann::json::array())) {
    absl::StrAppend(&html, Line("data", absl::StrCat(TextIn(file, "file"), ", ",
                                                     Number(NumberIn(file, "bytes", 0)),
                                                     " bytes, xxh3 ", TextIn(file, "xxh3"))));
  }
  return absl::StrCat(html, "</dl>\n<details><summary>The study</summary><pre>",
                      Escape(StudyText(manifest.plan.study)), "</pre></details>\n");
}

}  // namespace

std::string InlineSvg(absl::string_view svg) {
  const size_t begin = svg.find("<svg");
  if (begin == absl::string_view::npos) return "";
  std::string text(svg.substr(begin));
  for (const Colour& colour : kColours) {
    text = absl::StrReplaceAll(text, {{colour.drawn, absl::StrCat("var(", colour.name, ")")}});
  }
  return text;
}

std::string ReportPage(const Manifest& manifest, const Analysis& analysis, const Figures& figures) {
  const StudyRuns& plan = manifest.plan;
  std::string notes;
  for (const std::string& note : analysis.notes) absl::StrAppend(&notes, Tag("li", note));
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n",
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n",
      Tag("title", plan.study.name()), "<style>", Colours(), kStyle,
      "</style></head>\n<body><main>\n", Tag("h1", plan.study.name()), "<p class=\"question\">",
      Escape(plan.study.question()), "</p>\n<p class=\"answer\">", Escape(analysis.answer),
      "</p>\n", notes.empty() ? "" : absl::StrCat("<ul class=\"notes\">", notes, "</ul>\n"),
      Tag("h2", "Results"),
      "<p class=\"read\">Mean over the seeds of complete runs; below it the 95&nbsp;% interval of "
      "the mean. Version staleness counts versions of a key range. The clock gap counts steps, as "
      "the bound of SSP does.</p>\n",
      ResultsTable(plan, analysis), Comparisons(plan, analysis), Tuning(plan, analysis),
      FiguresHtml(figures), RunsTable(plan, analysis), Repeat(manifest), "</main></body></html>\n");
}

}  // namespace tandem::study
