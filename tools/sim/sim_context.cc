#include "tools/sim/sim_context.h"

#include "absl/strings/str_cat.h"

namespace tandem::sim {

void SimContext::Fail(const std::string& what) {
  if (!failure.ok()) return;
  failure = absl::InternalError(absl::StrCat("seed ", options.seed, " at ",
                                             absl::FormatDuration(agenda.elapsed()), ": ", what));
}

void SimContext::StartClock(EndpointId id, std::function<void()> tick) {
  processes.After(id, options.tick * random.NextDouble(),
                  [this, id, tick = std::move(tick)] { processes.Every(id, options.tick, tick); });
}

}  // namespace tandem::sim
