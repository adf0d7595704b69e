#include "tools/sim/sim_context.h"

#include "absl/strings/str_cat.h"

namespace tandem::sim {

void SimContext::Fail(const std::string& what) {
  if (!failure.ok()) return;
  failure = absl::InternalError(absl::StrCat("seed ", options.seed, " at ",
                                             absl::FormatDuration(agenda.elapsed()), ": ", what));
}

void SimContext::StartClock(std::function<void()> tick) {
  agenda.After(options.tick * random.NextDouble(),
               [this, tick = std::move(tick)] { agenda.Every(options.tick, tick); });
}

}  // namespace tandem::sim
