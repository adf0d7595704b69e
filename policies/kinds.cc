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
    {Policy::K_BATCH_ASYNC, kKnobBatches, NewKBatchAsync},
    {Policy::GBA, kKnobBatches | kKnobTokenGap, NewGba},
    {Policy::DC_ASGD, kKnobCompensation | kKnobAsyncScale, NewDcAsgd},
    {Policy::DSSP, kKnobBound | kKnobUpperBound | kKnobAsyncScale, NewDssp},
    {Policy::SYNC_SWITCH, kKnobSwitchStep | kKnobAsyncScale, NewSyncSwitch},
    {Policy::ESSP, kKnobBound | kKnobCacheRows | kKnobAsyncScale, NewEssp},
    {Policy::KEY_VALUE, 0, NewStore},
    {Policy::COSINE_GATE, kKnobAgeDecay | kKnobAgeCutoff | kKnobAsyncScale, NewCosineGate},
};

absl::Status CheckKnob(const Policy& config, unsigned takes, unsigned knob, bool has, double value,
                       double least, const char* name) {
  if ((takes & knob) == 0 || (has && value >= least)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("policy ", Policy::Kind_Name(config.kind()), " needs ", name, " >= ", least));
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
        CheckKnob(config, row.knobs, kKnobBound, config.has_bound(), config.bound(), 0, "bound"),
        CheckKnob(config, row.knobs, kKnobDelay, config.has_delay(), config.delay(), 0, "delay"),
        CheckKnob(config, row.knobs, kKnobBackups, config.has_backups(), config.backups(), 0,
                  "backups"),
        CheckKnob(config, row.knobs, kKnobBatches, config.has_batches(), config.batches(), 1,
                  "batches"),
        CheckKnob(config, row.knobs, kKnobTokenGap, config.has_token_gap(), config.token_gap(), 0,
                  "token_gap"),
        CheckKnob(config, row.knobs, kKnobCompensation, config.has_compensation(),
                  config.compensation(), 0, "compensation"),
        CheckKnob(config, row.knobs, kKnobUpperBound, config.has_upper_bound(),
                  config.upper_bound(), config.bound(), "upper_bound"),
        CheckKnob(config, row.knobs, kKnobSwitchStep, config.has_switch_step(),
                  static_cast<double>(config.switch_step()), 0, "switch_step"),
        CheckKnob(config, row.knobs, kKnobAgeDecay, config.has_age_decay(), config.age_decay(), 0,
                  "age_decay"),
        CheckKnob(config, row.knobs, kKnobAgeCutoff, config.has_age_cutoff(), config.age_cutoff(),
                  1, "age_cutoff")};
    for (const absl::Status& check : checks) {
      if (!check.ok()) return check;
    }
    return row.make(config, workers);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("policy kind ", static_cast<int>(config.kind()), " is not resolved"));
}

}  // namespace tandem::policies
