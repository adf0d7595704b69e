// Draws the figures of a report with a Python script (tools/study/figures.py) and matplotlib.
#ifndef TANDEM_TOOLS_STUDY_FIGURES_H_
#define TANDEM_TOOLS_STUDY_FIGURES_H_

#include <string>
#include <vector>

namespace tandem::study {

struct Figure {
  std::string name;  // DIR/figures/NAME.svg and NAME.png
  std::string title;
  std::string read;  // how to read it, in one or two sentences
  std::string svg;   // the drawing
};

struct Figures {
  std::vector<Figure> figures;
  std::string missing;  // empty, or one line: why there are no figures, and what to do
};

// The path of the script, next to the folder of this program: share/tandem/figures.py.
std::string FigureScript();

// Draws DIR/figures from DIR/results.json within a few minutes. Without python3 or matplotlib there
// are no figures, and `missing` says what to install.
Figures DrawFigures(const std::string& folder, const std::string& script);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_FIGURES_H_
