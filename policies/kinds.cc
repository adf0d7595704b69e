#include "policies/kinds.h"

#include "absl/strings/str_cat.h"

namespace tandem::policies {
namespace {

constexpr PolicyKind kKinds[] = {
    {Policy::BSP, 0, NewBsp},
    {Policy::SSP, kKnobBound | kKnobAsyncScale, NewSsp},
    {Policy::ASP, kKnobAsyncScale, NewAsp},
    {Policy::FIXED_DELAY, kKnobDelay, NewFixedDelay},
    {Policy::BACKUP_WORKERS, kKnobBackups, NewBackupWorkers},
    {Policy::STALENESS_AWARE, kKnobAsyncScale, NewStalenessAware},
};

absl::Status CheckKnob(const Policy& config, unsigned takes, unsigned knob, bool has, int64_t value,
                       const char* name) {
  if ((takes & knob) == 0 || (has && value >= 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("policy ", Policy::Kind_Name(config.kind()), " needs ", name, " >= 0"));
}

}  // namespace

absl::Span<const PolicyKind> PolicyKinds() { return kKinds; }

float AsyncScale(const Policy& config, int workers) {
  return config.async_scale() == Policy::INVERSE_WORKERS ? 1.0f / static_cast<float>(workers)
                                                         : 1.0f;
}

absl::StatusOr<std::unique_ptr<UpdatePolicy>> NewUpdatePolicy(const Policy& config, int workers) {
  for (const PolicyKind& row : kKinds) {
    if (row.kind != config.kind()) continue;
    const absl::Status checks[] = {
        CheckKnob(config, row.knobs, kKnobBound, config.has_bound(), config.bound(), "bound"),
        CheckKnob(config, row.knobs, kKnobDelay, config.has_delay(), config.delay(), "delay"),
        CheckKnob(config, row.knobs, kKnobBackups, config.has_backups(), config.backups(),
                  "backups")};
    for (const absl::Status& check : checks) {
      if (!check.ok()) return check;
    }
    return row.make(config, workers);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("policy kind ", static_cast<int>(config.kind()), " is not resolved"));
}

}  // namespace tandem::policies
