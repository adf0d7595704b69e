// tandem-worker: trains on its share of the data of one job.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exhaustion.h"
#include "base/process.h"
#include "models/model.h"
#include "node/job_token.h"
#include "node/log.h"
#include "node/network_check.h"
#include "node/role_options.h"
#include "node/transport_choice.h"
#include "tools/doctor/doctor_gather.h"
#include "worker/step_runner.h"
#include "worker/worker_shell.h"

namespace tandem::cli {
namespace {

// The model of models/ that the job names.
absl::StatusOr<std::unique_ptr<models::DenseModel>> CompiledModel(const job::ResolvedJob& plan,
                                                                  const models::ModelInputs& inputs,
                                                                  int gpu) {
  const int threads = plan.job.cluster().threads_per_worker();
  if (plan.job.dense().device() != Dense::CUDA) {
    return models::NewDenseModel(plan.job.model(), inputs, threads);
  }
  return models::NewDenseModel(plan.job.model(), inputs, threads, models::ModelDevice::kCuda, gpu);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TANDEM_BEFORE_LIBRARIES(EndInOneLineEarly);  // because loading LibTorch may fail for lack of memory
#endif

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) {
  using namespace tandem;
  SetUpProcess();
  EndInOneLine();
  CLI::App app("A worker of one Tandem job: trains on its share of the data.", "tandem-worker");
  node::RoleFlags flags;
  node::AddJobFlags(&app, &flags);
  node::AddNetworkFlags(&app, &flags);
  node::AddLogFlag(&app);
  node::AddMemberFlags(&app, &flags);
  node::RefuseJobsFlag(&app, "--checkpoint", "with --out it checkpoints to OUT/model");
  std::string trace;
  int64_t trace_steps = 20;
  app.add_option("--trace", trace, "Write a trace of the first steps to this file (for Perfetto)");
  app.add_option("--trace-steps", trace_steps, "How many steps")->check(node::CheckAboveZero);
  std::string dump_folder;
  app.add_option("--dump-collectives", dump_folder,
                 "Folder for what the collectives did, if the job fails or at SIGUSR1");
  app.add_option(
      "--out", flags.out,
      "Folder for staleness records, if the job asks for them and tables are on workers");
  std::string replay;
  app.add_option("--replay", replay, "Folder of a run whose order of updates this one takes");
  std::string scores;
  app.add_option("--scores", scores, "Write the logits of test rows to this file, as float32");
  int code = node::kExitOk;
  if (!node::ParseFlags(&app, argc, argv, &code)) return code;

  const auto plan = node::PlanOf(flags);
  absl::Status ready = plan.status();
  if (ready.ok() && plan->job.model().has_program()) {
    ready = absl::InvalidArgumentError(
        flags.job +
        ": batches and model are those of a program, which is a worker itself; start it "
        "in place of tandem-worker (docs/PYTHON.md)");
  }
  if (ready.ok()) ready = node::CheckAddresses(flags);
  if (ready.ok()) ready = node::LoadKeys(plan->job, &flags);
  if (ready.ok()) ready = doctor::CheckDenseDevice(*plan);
  if (ready.ok()) ready = node::CheckTransport(plan->job);
  if (!ready.ok()) {
    node::Finish("tandem-worker", ready);
    return node::kExitBadInput;
  }
  worker::WorkerOptions options;
  options.plan = *plan;
  options.paths = std::make_shared<transport::PathLog>();
  options.member = node::MemberOf(flags, plan->serving(), options.paths);
  options.make_runner = [&](const job::ResolvedJob& job, int rank, int gpu,
                            std::shared_ptr<const server::CheckpointReader> saved) {
    const auto model = [gpu](const job::ResolvedJob& of, const models::ModelInputs& inputs) {
      return cli::CompiledModel(of, inputs, gpu);
    };
    return worker::StepRunner::New(job, rank, std::move(saved), model, scores);
  };
  options.security = {flags.keys, flags.encrypt_all};
  options.trace_path = trace;
  options.trace_steps = trace_steps;
  options.dump_folder = dump_folder;
  options.record_dir = flags.out;
  options.replay = replay;
  options.dump_signals = node::CheckpointSignals();
  node::RoleEnd end("tandem-worker");
  options.on_end = [&end](const absl::Status& how) {
    if (!how.ok()) end.Begin(how);
  };
  return end.Finish(worker::RunWorker(options));
}
