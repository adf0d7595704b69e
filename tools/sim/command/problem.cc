#include "tools/sim/command/problem.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "data/datagen.h"
#include "tools/sim/clicks.h"
#include "tools/sim/quadratic.h"

namespace tandem::sim {
namespace {

constexpr char kQuadratic[] = "quadratic", kTridiagonal[] = "tridiagonal", kClicks[] = "clicks";
constexpr int64_t kMaxParameters = 1 << 20;
constexpr int64_t kMaxFields = 256, kMaxIds = 10'000'000;
constexpr double kMaxSampleBytes = 4e9;

class Quadratic final : public Problem {
 public:
  Quadratic(const ProblemFlags& flags, const ProblemRun& run, const job::ResolvedJob& plan)
      : kind_(flags.kind) {
    options_.tridiagonal = flags.kind == kTridiagonal;
    options_.curvature = flags.curvature;
    options_.condition = flags.condition;
    options_.noise = flags.noise;
    options_.dense = flags.parameters;
    if (options_.tridiagonal) options_.first = flags.start;
    options_.steps = run.steps;
    options_.seconds = run.seconds;
    options_.until = flags.until;
    options_.now = run.now;
    options_.seed = plan.job.seed();
  }
  worker::MakeTaskRunner runners() override {
    return [this](const job::ResolvedJob& plan, int rank) {
      return QuadraticRunner::New(plan, rank, options_, &losses_);
    };
  }
  nlohmann::json Json() const override {
    nlohmann::json out = {{"kind", kind_},
                          {"steps", options_.steps},
                          {"noise", options_.noise},
                          {"parameters", options_.dense},
                          {"first_loss", losses_.first()},
                          {"last_loss", losses_.last()},
                          {"diverged", losses_.diverged()}};
    if (options_.tridiagonal) {
      out["start"] = options_.first;
    } else {
      out["curvature"] = options_.curvature;
      out["condition"] = options_.condition;
    }
    if (options_.seconds > 0) out["seconds"] = options_.seconds;
    if (options_.until > 0) out["until"] = options_.until;
    if (losses_.reached.has_value()) out["reached_seconds"] = ReachedSeconds();
    return out;
  }
  std::string Text() const override {
    std::string text = absl::StrFormat(
        "%s: the loss began at %.4g, and was %.4g %s: %s", kind_, losses_.first(), losses_.last(),
        losses_.last_count > 0 ? "over the last tenth of the steps" : "at the end",
        losses_.diverged() ? "diverged" : "did not diverge");
    if (losses_.reached.has_value()) {
      absl::StrAppendFormat(&text, "; %g of its first value after %.6g s", options_.until,
                            ReachedSeconds());
    } else if (options_.until > 0) {
      absl::StrAppendFormat(&text, "; %g of its first value was not reached", options_.until);
    }
    return text;
  }

 private:
  double ReachedSeconds() const { return absl::ToDoubleSeconds(*losses_.reached - *losses_.begun); }

  const std::string kind_;
  QuadraticOptions options_;
  QuadraticLosses losses_;
};

class Clicks final : public Problem {
 public:
  Clicks(const ProblemFlags& flags, const ProblemRun& run, const job::ResolvedJob& plan)
      : model_(std::make_shared<const ClickModel>(plan, Options(flags, run.steps, plan))) {}
  worker::MakeTaskRunner runners() override {
    return [this](const job::ResolvedJob& plan, int rank) {
      return ClickRunner::New(plan, rank, model_, &losses_);
    };
  }
  nlohmann::json Json() const override {
    const ClickOptions& options = model_->options();
    return {{"kind", kClicks},
            {"steps", options.steps},
            {"fields", options.fields},
            {"ids", options.ids},
            {"skew", options.skew},
            {"parameters", options.dense},
            {"first_loss", losses_.first.Loss()},
            {"last_loss", losses_.last.Loss()},
            {"least_loss", losses_.last.Least()},
            {"diverged", losses_.diverged()}};
  }
  std::string Text() const override {
    return absl::StrFormat(
        "clicks: the logloss began at %.5f, and was %.5f over the last tenth of the steps, where "
        "the "
        "planted model has %.5f: %.5f above it%s",
        losses_.first.Loss(), losses_.last.Loss(), losses_.last.Least(), losses_.last.Above(),
        losses_.diverged() ? ", further than at first: diverged" : "");
  }

 private:
  static ClickOptions Options(const ProblemFlags& flags, int64_t steps,
                              const job::ResolvedJob& plan) {
    ClickOptions options;
    options.fields = static_cast<int>(flags.fields);
    options.ids = flags.ids;
    options.skew = flags.skew;
    options.dense = flags.parameters;
    options.steps = steps;
    options.seed = plan.job.seed();
    return options;
  }

  const std::shared_ptr<const ClickModel> model_;
  ClickLosses losses_;
};

// Refuses flags of another problem, and flags without --problem.
absl::Status CheckUnused(const ProblemFlags& flags) {
  const ProblemFlags none;
  const bool curvatures = flags.curvature != none.curvature || flags.condition != none.condition;
  if (curvatures && flags.kind != kQuadratic) {
    return absl::InvalidArgumentError("--curvature and --condition are for --problem quadratic");
  }
  if (flags.start != none.start && flags.kind != kTridiagonal) {
    return absl::InvalidArgumentError("--start is for --problem tridiagonal");
  }
  const bool losses = flags.noise != none.noise || flags.until != none.until;
  if (losses && flags.kind != kQuadratic && flags.kind != kTridiagonal) {
    return absl::InvalidArgumentError(
        "--noise and --until are for --problem quadratic and tridiagonal");
  }
  const bool clicks =
      flags.fields != none.fields || flags.ids != none.ids || flags.skew != none.skew;
  if (clicks && flags.kind != kClicks) {
    return absl::InvalidArgumentError("--fields, --ids and --zipf are for --problem clicks");
  }
  if (flags.empty() && flags.parameters != none.parameters) {
    return absl::InvalidArgumentError("--parameters is for --problem");
  }
  return absl::OkStatus();
}

bool Finite(double value, double least) { return std::isfinite(value) && value >= least; }
bool Between(int64_t value, int64_t least, int64_t most) { return value >= least && value <= most; }

// Refuses too many samples. They are in memory until the worker has computed their step.
absl::Status CheckSamples(const ProblemFlags& flags, const job::ResolvedJob& plan) {
  if (flags.kind != kClicks) return absl::OkStatus();
  double values = static_cast<double>(flags.parameters - 1);
  for (const job::TablePlan& table : plan.tables) {
    if (table.of_model()) values += static_cast<double>(flags.fields);
  }
  const Train& train = plan.job.train();
  const double bytes =
      sizeof(float) * values * train.batch_size() * (train.prefetch_steps() + 2.0) * plan.workers();
  if (bytes <= kMaxSampleBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "--parameters, --fields: %.0f values a sample, %d samples a step and %d workers with %d "
      "steps each take %.3g GB of memory, must be at most %g; lower one of these, or "
      "train.batch_size",
      values, train.batch_size(), plan.workers(), train.prefetch_steps() + 2, bytes / 1e9,
      kMaxSampleBytes / 1e9));
}

}  // namespace

void AddProblem(CLI::App* app, ProblemFlags* flags) {
  app->add_option(
         "--problem", flags->kind,
         "In the place of the job's model and data: quadratic, half the sum of curvature times "
         "weight squared; tridiagonal, the quadratic of papers on asynchronous SGD; clicks, labels "
         "drawn from a model of the kind that is trained")
      ->check(CLI::IsMember({kQuadratic, kTridiagonal, kClicks}));
  app->add_option("--parameters", flags->parameters,
                  "--problem: dense ones; of clicks a bias, and a weight of each number")
      ->capture_default_str();
  app->add_option("--curvature", flags->curvature, "--problem quadratic: the largest")
      ->capture_default_str();
  app->add_option("--condition", flags->condition,
                  "--problem quadratic: the largest curvature over the smallest")
      ->capture_default_str();
  app->add_option("--noise", flags->noise,
                  "--problem quadratic, tridiagonal: standard deviation, in each element of a "
                  "gradient")
      ->capture_default_str();
  app->add_option("--until", flags->until,
                  "--problem quadratic, tridiagonal: the run ends once the loss is at most this "
                  "share of its first value; 0: after all steps")
      ->capture_default_str();
  app->add_option("--start", flags->start,
                  "--problem tridiagonal: the first parameter's initial value; the others are 0")
      ->capture_default_str();
  app->add_option("--fields", flags->fields, "--problem clicks: of each table")
      ->capture_default_str();
  app->add_option("--ids", flags->ids, "--problem clicks: of each field")->capture_default_str();
  app->add_option("--zipf", flags->skew,
                  "--problem clicks: exponent of Zipf's law, which ids follow; 0: all are alike")
      ->capture_default_str();
}

absl::Status CheckProblem(const ProblemFlags& flags, const job::ResolvedJob& plan) {
  if (const absl::Status unused = CheckUnused(flags); !unused.ok() || flags.empty()) return unused;
  if (plan.job.train().has_keep_best()) {
    return absl::InvalidArgumentError("train.keep_best: a problem has no rows to evaluate on");
  }
  if (!Between(flags.parameters, 1, kMaxParameters)) {
    return absl::InvalidArgumentError(absl::StrCat("--parameters must be 1 to ", kMaxParameters));
  }
  if (!Finite(flags.curvature, 0) || !Finite(flags.condition, 1) || !Finite(flags.noise, 0)) {
    return absl::InvalidArgumentError(
        "--curvature and --noise must not be less than 0, --condition not less than 1");
  }
  if (!Finite(flags.until, 0) || flags.until >= 1 || !std::isfinite(flags.start)) {
    return absl::InvalidArgumentError("--until must be 0 or a share below 1, --start a number");
  }
  if (!Between(flags.fields, 1, kMaxFields) || !Between(flags.ids, 1, kMaxIds) ||
      !Finite(flags.skew, 0) || flags.skew > data::kMaxSkew) {
    return absl::InvalidArgumentError(absl::StrCat("--fields must be 1 to ", kMaxFields,
                                                   ", --ids 1 to ", kMaxIds, ", --zipf 0 to ",
                                                   data::kMaxSkew));
  }
  return CheckSamples(flags, plan);
}

std::unique_ptr<Problem> NewProblem(const ProblemFlags& flags, const ProblemRun& run,
                                    const job::ResolvedJob& plan) {
  if (flags.kind == kClicks) return std::make_unique<Clicks>(flags, run, plan);
  return std::make_unique<Quadratic>(flags, run, plan);
}

}  // namespace tandem::sim
