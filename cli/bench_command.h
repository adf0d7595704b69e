// `tandem bench store | pushpull | allreduce | allgather | ...`: the benchmarks behind one command.
// Each prints the machine, its knobs, and a check of its results; see the headers in tests/bench/
// for what is compared with what. Built with the tests.
#ifndef TANDEM_CLI_BENCH_COMMAND_H_
#define TANDEM_CLI_BENCH_COMMAND_H_

#include <memory>

#include <CLI/CLI.hpp>

namespace tandem {

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

}  // namespace tandem

#endif  // TANDEM_CLI_BENCH_COMMAND_H_
