// algorithm_bench: for authors of algorithms of collectives.
//
//   algorithm_bench draw allreduce --algorithm ring --ranks 4 --min 64
//       prints every message of the schedules of the smallest size
//   algorithm_bench regret allreduce --link tcp --ranks 4 --repetitions 21
//       measures all algorithms in turns, and how much slower the choice is than the fastest
//
// Takes the flags of `tandem bench allreduce`.
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "collectives/schedules/algorithms.h"
#include "node/role_options.h"
#include "tests/bench/algorithm_bench.h"
#include "tools/bench/bench_command.h"

namespace tandem {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("For authors of algorithms of collectives.", "algorithm_bench");
  app.require_subcommand(1);
  std::string collective;
  bench::CollectiveBenchOptions options;
  for (const char* const name : {"draw", "regret"}) {
    CLI::App* const command = app.add_subcommand(name);
    command->add_option("collective", collective, "allreduce, broadcast, ...")->required();
    bench::AddCollectiveFlags(command, &options);
  }
  int code = node::kExitOk;
  if (!node::ParseFlags(&app, argc, argv, &code)) return code;
  const absl::StatusOr<collectives::Primitive> primitive = collectives::ParsePrimitive(collective);
  if (!primitive.ok()) return node::Finish("algorithm_bench", primitive.status());
  options.primitive = *primitive;
  return node::Finish("algorithm_bench", app.got_subcommand("draw")
                                             ? DrawAlgorithms(options, std::cout)
                                             : MeasureRegret(options, std::cout));
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::Main(argc, argv); }
