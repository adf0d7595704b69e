// tandem replay: runs a recorded job again with the same order of updates in each range. The result
// has the same bits, or shows the effect of a change under that order (docs/REPLAY.md).
#ifndef TANDEM_CLI_REPLAY_COMMAND_H_
#define TANDEM_CLI_REPLAY_COMMAND_H_

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "cli/launch/run_flags.h"
#include "proto/job.pb.h"
#include "proto/wire.pb.h"

namespace tandem::cli {

struct ReplayFlags {
  std::string recorded;  // the folder of a run with staleness.record_order
  bool serial = false;   // runs in one process, tandem-simulator
  RunFlags run;          // of the new run; its job is the recorded job
};

void AddReplay(CLI::App* app, ReplayFlags* flags);

// Returns the exit code: 0; 1 (the run failed, a model cannot be read, or the models differ
// although nothing was changed); or 2 (this run cannot be replayed with these flags; no process
// was started).
int ReplayCommand(const ReplayFlags& flags);

// FAILED_PRECONDITION: an earlier version recorded the run of `was`, an NCF job, so a replay would
// draw other negatives.
absl::Status CheckNegatives(const RunRecord& was, const Data& data);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_REPLAY_COMMAND_H_
