// The figures of a report, drawn by a script in Python (study/figures.py) with matplotlib.
#ifndef TANDEM_STUDY_FIGURES_H_
#define TANDEM_STUDY_FIGURES_H_

#include <string>
#include <vector>

namespace tandem::study {

struct Figure {
  std::string name;  // of its files: DIR/figures/NAME.svg and NAME.png
  std::string title;
  std::string read;  // how to read it, a sentence or two
  std::string svg;   // the drawing itself
};

struct Figures {
  std::vector<Figure> figures;
  std::string missing;  // empty, or one line: why there are none, and what to do
};

// The script, beside the folder of this program: share/tandem/figures.py.
std::string FigureScript();

// Draws DIR/figures from DIR/results.json, in at most a few minutes. Without python3 or matplotlib
// there are none, and `missing` says what to install.
Figures DrawFigures(const std::string& folder, const std::string& script);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_FIGURES_H_
