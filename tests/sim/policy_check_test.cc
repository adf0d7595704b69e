// The built-in policies keep their promises in random schedules, and a promise that is not kept is
// found. tests/integration/plugin_test.cc has the faults of plug-ins.
#include "tools/sim/policy_check.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "policies/kinds.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<sim::PolicyCheckReport> CheckKind(const std::string& text) {
  Policy config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return sim::CheckPolicyPromises(
      [&config](int workers) -> absl::StatusOr<std::unique_ptr<policies::UpdatePolicy>> {
        if (config.backups() >= workers) return absl::InvalidArgumentError("too few workers");
        return policies::NewUpdatePolicy(config, workers);
      },
      /*schedules=*/300, /*seed=*/1);
}

TEST(PolicyCheckTest, BuiltInPoliciesKeepTheirPromises) {
  for (const char* policy :
       {"kind: BSP", "kind: SSP bound: 0", "kind: SSP bound: 3", "kind: ASP",
        "kind: FIXED_DELAY delay: 3", "kind: BACKUP_WORKERS backups: 1", "kind: STALENESS_AWARE",
        "kind: K_BATCH_ASYNC batches: 3", "kind: GBA batches: 2 token_gap: 1",
        "kind: DC_ASGD compensation: 0.1", "kind: DSSP bound: 1 upper_bound: 4",
        "kind: RINGMASTER max_delay: 2", "kind: RINGLEADER", "kind: RENNALA batches: 2",
        "kind: ORDERED_MOMENTUM", "kind: DELAY_ADAPTIVE full_rate_delay: 2",
        "kind: SYNC_SWITCH switch_step: 5", "kind: COSINE_GATE age_decay: 0.1 age_cutoff: 4"}) {
    const auto report = CheckKind(policy);
    ASSERT_TRUE(report.ok()) << policy << ": " << report.status();
    EXPECT_GT(report->updates, 5000) << policy;
    const bool drops =
        absl::StrContains(policy, "BACKUP_WORKERS") || absl::StrContains(policy, "RENNALA");
    EXPECT_EQ(report->dropped > 0, drops) << policy;
  }
}

// Another policy, whose properties promise more.
class Boasting final : public policies::UpdatePolicy {
 public:
  Boasting(std::unique_ptr<policies::UpdatePolicy> of, const policies::Properties& promised)
      : of_(std::move(of)), promised_(promised) {}
  std::string name() const override { return "BOASTING"; }
  policies::Properties properties() const override { return promised_; }
  bool MayStart(int64_t step, int64_t min_clock) const override {
    return of_->MayStart(step, min_clock);
  }
  bool MayServe(const policies::RangeProgress& progress, int rank, int64_t step,
                int depth) const override {
    return of_->MayServe(progress, rank, step, depth);
  }
  policies::Arrival OnArrival(const policies::RangeProgress& progress,
                              const policies::Update& update) const override {
    return of_->OnArrival(progress, update);
  }
  policies::Transform OnApply(const policies::RangeProgress& progress,
                              const policies::Update& update,
                              const policies::Group& group) const override {
    return of_->OnApply(progress, update, group);
  }
  int64_t Ticks(const policies::RangeProgress& progress, const policies::Buffered& buffered,
                const policies::Pushed& pushed) const override {
    return of_->Ticks(progress, buffered, pushed);
  }

 private:
  const std::unique_ptr<policies::UpdatePolicy> of_;
  const policies::Properties promised_;
};

std::string Fault(const std::string& text, void (*boast)(policies::Properties*)) {
  Policy config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  const auto report = sim::CheckPolicyPromises(
      [&](int workers) -> absl::StatusOr<std::unique_ptr<policies::UpdatePolicy>> {
        auto policy = *policies::NewUpdatePolicy(config, workers);
        policies::Properties promised = policy->properties();
        boast(&promised);
        return std::make_unique<Boasting>(std::move(policy), promised);
      },
      /*schedules=*/300, /*seed=*/1);
  return report.ok() ? "kept" : std::string(report.status().message());
}

TEST(PolicyCheckTest, FindsPromisesThatAreNotKept) {
  EXPECT_THAT(Fault("kind: SSP bound: 3", [](auto* p) { p->clock_bound = 2; }),
              HasSubstr("clock_bound 2 promises"));
  EXPECT_THAT(Fault("kind: SSP bound: 3", [](auto* p) { p->read_bound = 2; }),
              HasSubstr("read_bound 2 promises"));
  EXPECT_THAT(Fault("kind: ASP", [](auto* p) { p->order_free = true; }),
              HasSubstr("and `order_free` is promised"));
  EXPECT_THAT(Fault("kind: K_BATCH_ASYNC batches: 5", [](auto* p) { p->batch = 4; }),
              HasSubstr("and `batch` promises at most 4"));
  EXPECT_THAT(Fault("kind: BACKUP_WORKERS backups: 0", [](auto* p) { p->holds = false; }),
              HasSubstr("and `holds` is not promised"));
}

}  // namespace
}  // namespace tandem
