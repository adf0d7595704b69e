// tandem-server: holds key ranges of the embedding tables of one job.
#include "base/exhaustion.h"
#include "base/process.h"
#include "node/job_token.h"
#include "node/network_check.h"
#include "node/role_options.h"
#include "node/transport_choice.h"
#include "server/server_shell.h"

namespace tandem::cli {
namespace {

// Call it before any other thread starts.
absl::Status Pin(const job::ResolvedJob& plan, int index) {
  if (!plan.job.cluster().pin_servers()) return absl::OkStatus();
  if (index < 0) {
    return absl::InvalidArgumentError(
        "cluster.pin_servers: which processors, depends on the server: give it --index");
  }
  return StayOnProcessors(index * plan.shards_per_server(), plan.shards_per_server());
}

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) {
  using namespace tandem;
  SetUpProcess();
  EndInOneLine();
  CLI::App app("A server of one Tandem job: holds key ranges of its tables.", "tandem-server");
  node::RoleFlags flags;
  node::AddJobFlags(&app, &flags);
  node::AddNetworkFlags(&app, &flags);
  node::AddLogFlag(&app);
  node::AddMemberFlags(&app, &flags);
  app.add_option("--out", flags.out, "Folder for staleness records, if the job asks for them");
  std::string replay;
  app.add_option("--replay", replay, "Folder of a run whose order of updates this one takes");
  std::string trace;
  int64_t trace_steps = 0;
  app.add_option("--trace", trace, "File for a trace of the first steps (Perfetto)");
  app.add_option("--trace-steps", trace_steps, "How many")->check(node::CheckNotNegative);
  int code = node::kExitOk;
  if (!node::ParseFlags(&app, argc, argv, &code)) return code;

  const auto plan = node::PlanOf(flags);
  absl::Status ready = plan.status();
  if (ready.ok()) ready = node::CheckAddresses(flags);
  if (ready.ok()) ready = node::LoadKeys(plan->job, &flags);
  if (ready.ok()) ready = cli::Pin(*plan, flags.index);
  if (ready.ok()) ready = node::CheckTransport(plan->job);
  if (!ready.ok()) {
    node::Finish("tandem-server", ready);
    return node::kExitBadInput;
  }
  server::ServerOptions options;
  options.plan = *plan;
  options.member =
      node::MemberOf(flags, plan->serving(),
                     std::make_shared<transport::PathLog>());  // workers report how they reach us
  options.record_dir = flags.out;
  options.replay = replay;
  options.trace_path = trace;
  options.trace_steps = trace_steps;
  node::RoleEnd end("tandem-server");
  options.on_end = [&end](const absl::Status& how) {
    if (!how.ok()) end.Begin(how);
  };
  return end.Finish(server::RunServer(options));
}
