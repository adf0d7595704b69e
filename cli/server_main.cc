// tandem-server: holds key ranges of the embedding tables of one job.
#include "base/process.h"
#include "node/network_check.h"
#include "node/role_options.h"
#include "node/transport_choice.h"
#include "server/server_shell.h"

namespace tandem {
namespace {

// Before any other thread is there.
absl::Status Pin(const JobPlan& plan, int index) {
  if (!plan.job.cluster().pin_servers()) return absl::OkStatus();
  if (index < 0) {
    return absl::InvalidArgumentError(
        "cluster.pin_servers: which processors, depends on the server: give it --index");
  }
  return StayOnProcessors(index * plan.shards_per_server(), plan.shards_per_server());
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  using namespace tandem;
  SetUpProcess();
  CLI::App app("A server of one Tandem job: holds key ranges of its tables.", "tandem-server");
  RoleFlags flags;
  AddJobFlags(&app, &flags);
  AddNetworkFlags(&app, &flags);
  AddMemberFlags(&app, &flags);
  app.add_option("--out", flags.out, "Folder for staleness records, if the job asks for them");
  int code = kExitOk;
  if (!ParseFlags(&app, argc, argv, &code)) return code;

  const auto plan = PlanOf(flags);
  absl::Status ready = plan.status();
  if (ready.ok()) ready = CheckAddresses(flags);
  if (ready.ok()) ready = Pin(*plan, flags.index);
  if (ready.ok()) ready = CheckTransport(plan->job.cluster());
  if (!ready.ok()) {
    Finish("tandem-server", ready);
    return kExitBadInput;
  }
  ServerOptions options;
  options.plan = *plan;
  options.member = MemberOf(flags, plan->job.cluster(),
                            std::make_shared<PathLog>());  // workers report how they reach us
  options.record_dir = flags.out;
  return Finish("tandem-server", RunServer(options));
}
