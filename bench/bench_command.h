// `tandem bench store | pushpull | allreduce | allgather | ...`: the benchmarks behind one command.
// Each prints the machine, its knobs, and a check of its results; the other headers of this folder
// say what is compared with what. What other programs do beside them is in tests/bench/.
#ifndef TANDEM_BENCH_BENCH_COMMAND_H_
#define TANDEM_BENCH_BENCH_COMMAND_H_

#include <memory>

#include <CLI/CLI.hpp>

namespace tandem::bench {

class BenchCommand {
 public:
  // Adds `bench` and its subcommands to `app`; both live as long as the program.
  explicit BenchCommand(CLI::App* app);
  ~BenchCommand();

  // Runs the one that was parsed; the exit code.
  int Run() const;

 private:
  struct Flags;
  const std::unique_ptr<Flags> flags_;
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_BENCH_COMMAND_H_
