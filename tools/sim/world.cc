#include "tools/sim/world.h"

#include "absl/strings/str_cat.h"
#include "base/diverged.h"
#include "base/status_macros.h"

namespace tandem::sim {
absl::StatusOr<std::unique_ptr<World>> World::New(const job::ResolvedJob& plan,
                                                  const WorldOptions& options) {
  std::unique_ptr<World> world(new World(plan, options, /*observer=*/nullptr));
  TANDEM_RETURN_IF_ERROR(world->Init());
  return world;
}

// Passes each arriving message to a server or a worker.
World::World(const job::ResolvedJob& plan, const WorldOptions& options, Observer* observer)
    : context_(plan, options, observer),
      frames_(context_,
              [this](EndpointId to, const ParsedFrame& frame) {
                if (to.role == Role::kServer) return servers_.OnFrame(to, frame);
                workers_.OnFrame(to.index, frame);
              }),
      scheduler_(
          context_,
          [this](EndpointId to, const Control& control) {
            if (to.role == Role::kServer) return servers_.OnControl(to.index, control);
            workers_.OnControl(to.index, control);
          },
          [this](int rank) {
            context_.processes.Replace(EndpointId::Worker(rank));
            workers_.Replace(rank);
            frames_.ArriveAgain(rank);
            scheduler_.Comes(EndpointId::Worker(rank));
          }),
      checkpoints_(context_),
      servers_(context_, scheduler_, frames_, checkpoints_),
      workers_(context_, scheduler_, frames_, servers_, checkpoints_) {}

absl::Status World::Init() {
  TANDEM_RETURN_IF_ERROR(servers_.Init());
  return workers_.Init(context_.options.make_runner);
}

// ---- the run ----------------------------------------------------------------------------------

absl::Status World::Run() {
  Begin();
  while (!ended()) RunNext();
  return Finish();
}

void World::Begin() {
  scheduler_.Register();
  scheduler_.StartClock();
  servers_.StartClocks();
  workers_.StartClocks();
  frames_.StartCuts();
  scheduler_.StartAccidents();
}

absl::Status World::Finish() {
  const absl::Status& result = scheduler_.core().result();
  if (context_.failure.ok() && !result.ok()) {
    context_.Fail(absl::StrCat("the scheduler ends the job: ", result.message()));
  }
  // Moving ranges arrive, and stopped processes continue.
  servers_.TellLastView(scheduler_.core().view());
  const auto settled = [this] {
    return servers_.Settled(scheduler_.core().view().number()) && !context_.processes.AnyStopped();
  };
  while (context_.failure.ok() && !settled()) RunNext();
  if (context_.failure.ok()) context_.observer.OnEnd();
  // Waits do not explain a run that diverged.
  if (context_.failure.ok() || absl::IsCancelled(context_.failure) ||
      IsDiverged(context_.failure)) {
    return context_.failure;
  }
  return absl::InternalError(
      absl::StrCat(context_.failure.message(), "\n", workers_.WhoWaits(), servers_.WhoWaits()));
}

void World::RunNext() {
  context_.agenda.RunNext();
  ++event_count_;
  if (context_.options.stopped && context_.options.stopped()) {
    context_.failure = absl::CancelledError("stopped");
  }
  if (elapsed() <= context_.options.limit) return;
  context_.Fail(absl::StrCat("not ended after ", absl::FormatDuration(context_.options.limit)));
}

}  // namespace tandem::sim
