// The analysis of a study: the spread of each variation, how each variation differs from the
// baseline, and an answer to the study's question, one sentence for each set of variations that are
// compared. The text says "not resolved" if an interval contains "no effect". The analysis orders
// only variations whose difference is resolved.
//
// Pure; any thread.
#ifndef TANDEM_TOOLS_STUDY_ANALYSIS_H_
#define TANDEM_TOOLS_STUDY_ANALYSIS_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/study/run_record.h"
#include "tools/study/statistics.h"
#include "tools/study/study_runs.h"

namespace tandem::study {

// All runs of one variation and part.
struct Group {
  std::string variation;
  std::string among;  // set of variations that it is compared in
  Part part = Part::kUntuned;
  std::string value;                      // the tuned value; empty if not tuned
  std::string policy;                     // as the runs report it: "ids ASP, dense ALLREDUCE(AUTO)"
  std::vector<StudyRun> runs;             // by seed, in the study's order
  std::map<std::string, Spread> spreads;  // over complete runs, by column of StudyRun::numbers
  int complete = 0, diverged = 0, failed = 0, absent = 0;
  // Names of complete runs that have learned next to nothing. The AUC, hit rate or NDCG of their
  // last evaluation gains less than a fifth of what the best run among these variations gains over
  // a model that has learned nothing. Collapsed runs count in means.
  std::set<std::string> collapsed;

  const Spread* Find(const std::string& column) const;
};

// How a group differs from another one in one measure. Only seeds that are complete in both groups
// are compared.
struct Comparison {
  std::string variation, against;
  Part part = Part::kUntuned, against_part = Part::kUntuned;
  Metric measure;
  Effect effect;
  // `paired`: seeds that are complete or diverged in both groups. `reached` and `against_reached`:
  // how many of these runs reached the target, for times to a target only. A diverged run never
  // reached it.
  int paired = 0, reached = 0, against_reached = 0;
  bool censored() const { return reached < paired || against_reached < paired; }
  // How many of the paired runs diverged, for other measures. With one of them there is no effect
  // and no verdict, because the remaining runs are a biased sample.
  int diverged = 0, against_diverged = 0;
  bool lost() const { return diverged + against_diverged > 0; }
  // True if every seed has the same value in both groups, as runs with the same arithmetic do.
  bool same() const {
    const double none = measure.as_ratio ? 1 : 0;
    return effect.seeds > 1 && effect.low == none && effect.high == none;
  }
  // 1: better, -1: worse, 0: not resolved.
  int verdict = 0;
  // In words: "lower by 0.0123 (0.0101 to 0.0145)", "not resolved (-0.001 to 0.003)".
  std::string Words() const;
};

// One value that was tried for one variation, to choose the best one.
struct Trial {
  std::string variation, value;
  Spread spread;  // of the number that chooses the value
  int lost = 0;   // runs that do not count
  bool chosen = false;
};

struct Analysis {
  Part part = Part::kUntuned;           // part of the answer; tuned if all tuned runs are complete
  std::vector<Group> groups;            // untuned, then tuned, in the study's order
  std::vector<Comparison> comparisons;  // with the baseline, in the same part and set
  std::vector<Comparison> tuned_gains;  // tuned against untuned runs of the same variation
  std::vector<Trial> trials;
  std::string answer;              // one sentence for each set of variations, each on a line
  std::vector<std::string> notes;  // limits of the answer: lost runs, few seeds, and others
  // The rows of curves and times to a target, if these are not test rows: "training", "validation".
  std::string curve_rows;
};

// Analyses the runs of a study. `surroundings`: Manifest::surroundings.
Analysis Analyse(const StudyRuns& plan, const std::map<std::string, std::string>& chosen,
                 const std::vector<StudyRun>& runs,
                 const nlohmann::json& surroundings = nlohmann::json::object());

// The contents of DIR/results.json, from which figures are drawn.
nlohmann::json ResultsJson(const StudyRuns& plan, const Analysis& analysis);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_ANALYSIS_H_
