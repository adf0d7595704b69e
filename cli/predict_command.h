// tandem predict: writes the scores of a checkpoint for rows of files, one a row, in the order of
// the rows. Rows need no label. The command runs the job without training steps and scores these
// files. If the model belongs to a script, it scores the rows that the script evaluates, in the
// script's order.
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
  std::vector<std::string> columns;  // columns of the rows to write before each score
  std::string python;                // script, for a job with a program; then `data` is empty
  std::vector<std::string> script_flags;
};

// Returns the exit code of RunCommand.
int PredictCommand(const PredictFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PREDICT_COMMAND_H_
