// tandem-worker: trains on its share of the data of one job.
#include <memory>
#include <string>

#include "base/process.h"
#include "models/model.h"
#include "node/network_check.h"
#include "node/role_options.h"
#include "node/transport_choice.h"
#include "worker/step_runner.h"
#include "worker/tune_group.h"
#include "worker/worker_shell.h"

namespace tandem {
namespace {

// The one of models/ that the job names.
absl::StatusOr<std::unique_ptr<DenseModel>> CompiledModel(const JobPlan& plan,
                                                          const ModelInputs& inputs) {
  const bool cuda = plan.job.dense().device() == Dense::CUDA;
  return NewDenseModel(plan.job.model(), inputs, plan.job.cluster().threads_per_worker(),
                       cuda ? ModelDevice::kCuda : ModelDevice::kCpu);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  using namespace tandem;
  SetUpProcess();
  CLI::App app("A worker of one Tandem job: trains on its share of the data.", "tandem-worker");
  RoleFlags flags;
  AddJobFlags(&app, &flags);
  AddNetworkFlags(&app, &flags);
  AddMemberFlags(&app, &flags);
  RefuseJobsFlag(&app, "--save", "with --out it saves to OUT/model");
  std::string trace;
  int64_t trace_steps = 20;
  app.add_option("--trace", trace, "Write a trace of the first steps to this file (for Perfetto)");
  app.add_option("--trace-steps", trace_steps, "How many steps")->check(CLI::PositiveNumber);
  std::string dump_folder;
  app.add_option("--dump-collectives", dump_folder,
                 "Folder for what the collectives did, if the job fails or at SIGUSR1");
  int code = kExitOk;
  if (!ParseFlags(&app, argc, argv, &code)) return code;

  const auto plan = PlanOf(flags);
  absl::Status ready = plan.status();
  if (ready.ok() && plan->job.model().has_program()) {
    ready = absl::InvalidArgumentError(
        flags.job + ": batches and model are those of a program, which is a worker itself; start it "
                    "in place of tandem-worker (docs/PYTHON.md)");
  }
  if (ready.ok()) ready = CheckAddresses(flags);
  if (ready.ok()) ready = CheckDenseDevice(*plan);
  if (ready.ok()) ready = CheckTransport(plan->job.cluster());
  if (!ready.ok()) {
    Finish("tandem-worker", ready);
    return kExitBadInput;
  }
  WorkerOptions options;
  options.plan = *plan;
  options.paths = std::make_shared<PathLog>();
  options.member = MemberOf(flags, plan->job.cluster(), options.paths);
  options.make_runner = [](const JobPlan& job, int rank, const std::string& init_from) {
    return StepRunner::New(job, rank, init_from, CompiledModel);
  };
  options.trace_path = trace;
  options.trace_steps = trace_steps;
  options.dump_folder = dump_folder;
  options.dump_signals = SaveSignals();
  return Finish("tandem-worker", RunWorker(options));
}
