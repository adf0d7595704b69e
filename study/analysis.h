// What a study shows: the spread of each variation, how each differs from the baseline, and one sentence
// (for each set of variations that are compared) that answers the question. Says "not resolved" where an interval holds "no effect", and puts nothing
// in order that is not resolved.
//
// Pure; any thread.
#ifndef TANDEM_STUDY_ANALYSIS_H_
#define TANDEM_STUDY_ANALYSIS_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "study/run_record.h"
#include "study/statistics.h"
#include "study/study_plan.h"

namespace tandem::study {

// The runs of one variation and part.
struct Group {
  std::string variation;
  std::string among;  // of the variation
  Part part = Part::kUntuned;
  std::string value;                      // that was chosen, if tuned
  std::string policy;                     // "ids ASP, dense ALLREDUCE(AUTO)", as the runs say
  std::vector<StudyRun> runs;             // by seed, in the study's order
  std::map<std::string, Spread> spreads;  // of complete runs, by column of numbers
  int complete = 0, diverged = 0, failed = 0, absent = 0;
  // Names of complete runs that have learned next to nothing: by the AUC, hit rate or NDCG of their last
  // evaluation less than a fifth of what the best run among these has above knowing nothing. They count.
  std::set<std::string> collapsed;

  const Spread* Find(const std::string& column) const;
};

// How a group differs from another in one measure, over the seeds that are complete in both.
struct Comparison {
  std::string variation, against;
  Part part = Part::kUntuned, against_part = Part::kUntuned;
  Metric measure;
  Effect effect;
  // Seeds complete in both (of times to a target: complete or diverged, which never got there), and
  // in how many of them each has got to the target; of times to a target only.
  int paired = 0, reached = 0, against_reached = 0;
  bool censored() const { return reached < paired || against_reached < paired; }
  // All seeds have the same in both, as runs of the same arithmetic do.
  bool same() const {
    const double none = measure.as_ratio ? 1 : 0;
    return effect.seeds > 1 && effect.low == none && effect.high == none;
  }
  // 1: better, -1: worse, 0: not resolved.
  int verdict = 0;
  std::string Words()
      const;  // "lower by 0.0123 (0.0101 to 0.0145)", "not resolved (-0.001 to 0.003)"
};

// What was tried to choose a value, for one variation.
struct Trial {
  std::string variation, value;
  Spread spread;  // of what is judged by
  int lost = 0;   // runs that do not count
  bool chosen = false;
};

struct Analysis {
  Part part = Part::kUntuned;           // of the answer: tuned if nothing of that part is missing
  std::vector<Group> groups;            // untuned, then tuned, in the study's order
  std::vector<Comparison> comparisons;  // with the baseline, of the same part and among the same
  std::vector<Comparison> tuned_gains;  // tuned with untuned, same variation
  std::vector<Trial> trials;
  std::string answer;  // one sentence; a line for each set of variations that are compared
  std::vector<std::string> notes;  // what a reader must know beside it: lost runs, few seeds
  // Which rows curves and times to a target are of, if not test rows: "training", "validation".
  std::string curve_rows;
};

// `surroundings`: of the manifest.
Analysis Analyse(const StudyPlan& plan, const std::map<std::string, std::string>& chosen,
                 const std::vector<StudyRun>& runs,
                 const nlohmann::json& surroundings = nlohmann::json::object());

// For DIR/results.json, from which figures are drawn.
nlohmann::json ResultsJson(const StudyPlan& plan, const Analysis& analysis);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_ANALYSIS_H_
