// tandem-simulator: `tandem simulate` starts this program. It is a separate one, because models may
// need LibTorch.
#include <sys/resource.h>

#include "base/exhaustion.h"
#include "base/process.h"
#include "data/shared_reader.h"
#include "models/model.h"
#include "node/role_options.h"
#include "tools/sim/command/simulator.h"
#include "worker/step_runner.h"

namespace tandem::sim {
namespace {

absl::StatusOr<std::unique_ptr<models::DenseModel>> CompiledModel(
    const job::ResolvedJob& plan, const models::ModelInputs& inputs) {
  return models::NewDenseModel(plan.job.model(), inputs, plan.job.cluster().threads_per_worker(),
                               models::ModelDevice::kCpu);
}

// With data.deal BLOCKS each simulated worker has files of its own open.
void AllowManyFiles() {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TANDEM_BEFORE_LIBRARIES(EndInOneLineEarly);  // because loading LibTorch may fail for lack of memory
#endif

}  // namespace
}  // namespace tandem::sim

int main(int argc, char** argv) {
  using namespace tandem;
  SetUpProcess();
  EndInOneLine();
  sim::AllowManyFiles();
  sim::SimulateFlags flags;
  int code = node::kExitOk;
  if (!sim::ParseSimulate(argc, argv, &flags, &code)) return code;
  data::SharedReader reader;  // for all workers
  code = sim::Simulate(flags, [&reader](const job::ResolvedJob& plan, int rank) {
    return worker::StepRunner::New(plan, rank, nullptr, sim::CompiledModel, "", &reader);
  });
  if (code > node::kExitBySignal) node::DieBySignal(code - node::kExitBySignal);
  return code;
}
