// tandem-simulator: what `tandem simulate` starts. A program of its own, because models need LibTorch.
#include "base/process.h"
#include "cli/run_command.h"
#include "cli/simulator.h"
#include "data/shared_reader.h"
#include "models/model.h"
#include "node/role_options.h"
#include "worker/step_runner.h"

namespace tandem::cli {
namespace {

absl::StatusOr<std::unique_ptr<models::DenseModel>> CompiledModel(
    const job::JobPlan& plan, const models::ModelInputs& inputs) {
  return models::NewDenseModel(plan.job.model(), inputs, plan.job.cluster().threads_per_worker(),
                               models::ModelDevice::kCpu);
}

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) {
  using namespace tandem;
  SetUpProcess();
  CLI::App app("A job under a virtual clock, in one process.", "tandem simulate");
  cli::SimulateFlags flags;
  cli::AddSimulate(&app, &flags);
  int code = node::kExitOk;
  if (!node::ParseFlags(&app, argc, argv, &code)) return code;
  flags.command = "tandem simulate";
  for (int i = 1; i < argc; ++i) flags.command += " " + cli::ForShell(argv[i]);
  data::SharedReader reader;  // of all workers
  code = cli::Simulate(flags, [&reader](const job::JobPlan& plan, int rank) {
    return worker::StepRunner::New(plan, rank, "", cli::CompiledModel, "", &reader);
  });
  if (code > node::kExitBySignal) node::DieBySignal(code - node::kExitBySignal);
  return code;
}
