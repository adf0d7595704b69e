// BenchCommand is the command `tandem bench store | pushpull | allreduce | allgather | ...`. The
// folder bench/ has the benchmarks of the product. Each benchmark prints the machine, its settings,
// and a check of its results. The other headers of this folder say what each benchmark compares.
// tests/bench/ compares with other programs.
#ifndef TANDEM_TOOLS_BENCH_BENCH_COMMAND_H_
#define TANDEM_TOOLS_BENCH_BENCH_COMMAND_H_

#include <memory>

#include <CLI/CLI.hpp>

#include "tools/bench/collective_bench.h"

namespace tandem::bench {

// Adds the flags of a collective. Other programs use it, too.
void AddCollectiveFlags(CLI::App* app, CollectiveBenchOptions* options);

class BenchCommand {
 public:
  // Adds `bench` and its subcommands to `app`. This object and `app` must live as long as the
  // program.
  explicit BenchCommand(CLI::App* app);
  ~BenchCommand();

  // Runs the subcommand that was parsed and returns the exit code.
  int Run() const;

 private:
  struct Flags;
  const std::unique_ptr<Flags> flags_;
};

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_BENCH_COMMAND_H_
