// Prints the scheduler's reports for `tandem run`: one live line if the output is a terminal, and
// plain lines if it is a file or a pipe.
//
// Thread safety: none; one thread.
#ifndef TANDEM_CLI_CONSOLE_PROGRESS_VIEW_H_
#define TANDEM_CLI_CONSOLE_PROGRESS_VIEW_H_

#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "base/text.h"

namespace tandem::cli {

class ProgressView {
 public:
  // `out` is a terminal if `live`.
  ProgressView(std::FILE* out, bool live) : out_(out), live_(live) {}
  ~ProgressView() { Clear(); }

  // Shows one event of the scheduler (scheduler_shell.h lists them).
  void Show(const nlohmann::json& event, absl::Time now);
  // Prints a whole line above the live line.
  void Line(const std::string& text);

  // Erases the live line, if there is one, so that the caller can print.
  void Clear();

  // "epoch 1 41%, step 1,200 | 35,100 samples/s | training loss 0.4512, AUC 0.7810 | staleness
  // 1.20 versions, max 5 | 0:42 left", in shorter words if that is wider than `columns`.
  static std::string Format(const nlohmann::json& progress, int columns);
  // "AUC 0.7810, logloss 0.4512, accuracy 0.7905, 1,000 samples".
  static std::string FormatEvaluation(const nlohmann::json& evaluation);

 private:
  void ShowProgress(const nlohmann::json& progress, absl::Time now);
  void ShowPlain(absl::Time now);

  std::FILE* const out_;
  const bool live_;
  bool live_line_ = false;
  absl::Time next_plain_ = absl::InfinitePast();
  nlohmann::json skipped_;  // progress after the last plain line; null: none
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_CONSOLE_PROGRESS_VIEW_H_
