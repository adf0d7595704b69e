// tandem predict: the scores that a saved model gives rows of files, one a row, in the order of the
// rows, which need no label. A run of the job that takes no step and scores these files; where the model is a
// script's, the rows that this evaluates, in its order.
#ifndef TANDEM_CLI_PREDICT_COMMAND_H_
#define TANDEM_CLI_PREDICT_COMMAND_H_

#include <string>
#include <vector>

namespace tandem::cli {

struct PredictFlags {
  std::string job;
  std::vector<std::string> set;
  std::string init_from;
  std::vector<std::string> data;     // files or globs
  std::string out;                   // the file of scores
  std::vector<std::string> columns;  // of the rows, to be written in front of the scores
  std::string python;                // script, of a job of a program; then there is no `data`
  std::vector<std::string> script_flags;
};

// Returns the exit code, as RunCommand.
int PredictCommand(const PredictFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PREDICT_COMMAND_H_
