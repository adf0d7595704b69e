#include "tools/sim/command/simulator.h"

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/diverged.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/console/describe_tables.h"
#include "cli/console/output_folder.h"
#include "cli/console/progress_view.h"
#include "data/batch_source.h"
#include "data/files.h"
#include "data/row_data.h"
#include "data/service_trace.h"
#include "data/statistics.h"
#include "job/timing_plan.h"
#include "node/programs.h"
#include "node/role_flags.h"
#include "node/role_options.h"
#include "proto/serialize.h"
#include "scheduler/observe/summary.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/segment_file.h"
#include "server/record/order_file.h"
#include "server/record/record_file.h"
#include "server/record/update_record.h"
#include "tools/sim/command/calibration.h"
#include "tools/sim/command/timing_command.h"
#include "tools/sim/timing.h"
#include "tools/sim/world.h"

namespace tandem::sim {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLongestRun = absl::Hours(24 * 365);  // of virtual time
constexpr int64_t kMaxSteps = 100'000'000;                     // of each worker
constexpr int64_t kStepsWithoutData = 1000;
constexpr char kSimulatedFile[] =
    "server-0-shard-0";  // for all shards: the simulator records one sequence

int Refuse(const absl::Status& why) {
  node::Finish("tandem simulate", why);
  return node::kExitBadInput;
}

// ---- unsupported jobs and flags ---------------------------------------------------------------

absl::Status CheckJob(const job::ResolvedJob& plan) {
  const Job& job = plan.job;
  if (job.model().has_program()) {
    return absl::InvalidArgumentError(
        "model: a program's loop is its own, and cannot be run by a virtual clock; hint: a module "
        "saved "
        "as TorchScript can, with model { script {} }");
  }
  if (job.train().evaluate_only()) {
    return absl::InvalidArgumentError(
        "train.evaluate_only: a simulated run begins with initial values; evaluate with tandem "
        "run");
  }
  if (job.dense().device() == Dense::CUDA) {
    return absl::InvalidArgumentError("dense.device: CUDA is not simulated; use CPU");
  }
  if (job.dense().codec().kind() > Codec::NONE) {
    return absl::InvalidArgumentError("dense.codec: codecs are not simulated; leave it out");
  }
  return absl::OkStatus();
}

// Refuses flags of --timing-only without it, and flags that it does not support.
absl::Status CheckTimingFlags(const SimulateFlags& flags) {
  const bool bytes = flags.step_bytes != 0 || flags.dense_bytes != 0;
  if (!flags.timing_only) {
    const bool ends = flags.steps != 0 || flags.seconds != 0;
    if (!bytes && (!ends || !flags.problem.empty())) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--step-bytes, --dense-bytes and, without --problem, --steps and --seconds are for "
        "--timing-only; hint: the job's train.max_steps limits other runs, whose frames have a "
        "size of their own");
  }
  if (!flags.problem.empty()) {
    return absl::InvalidArgumentError("--problem: has gradients; leave out --timing-only");
  }
  if (!flags.replay.empty()) {
    return absl::InvalidArgumentError("--replay: an order has rows; leave out --timing-only");
  }
  const bool negative = flags.seconds < 0 || flags.step_bytes < 0 || flags.dense_bytes < 0;
  if (flags.steps < 0 || flags.steps > kMaxSteps || negative ||
      !std::isfinite(flags.seconds + flags.step_bytes + flags.dense_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--steps must be 1 to ", kMaxSteps,
                     ", --seconds, --step-bytes and --dense-bytes not less than 0"));
  }
  if ((flags.bytes_per_second > 0) == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--bytes-per-second needs --step-bytes or --dense-bytes, and these need it: without rows "
      "nobody knows how long frames are");
}

absl::Status CheckProblemJob(const SimulateFlags& flags, const job::ResolvedJob& plan) {
  TANDEM_RETURN_IF_ERROR(CheckProblem(flags.problem, plan));
  if (flags.problem.empty()) return absl::OkStatus();
  if (!flags.replay.empty()) {
    return absl::InvalidArgumentError("--replay: of a run with data; leave out --problem");
  }
  if (flags.problem.kind == "clicks" && flags.seconds != 0) {
    return absl::InvalidArgumentError("--seconds is not for --problem clicks; say --steps");
  }
  if (flags.problem.until > 0 && flags.steps == 0 && flags.seconds == 0 &&
      plan.job.train().max_steps() == 0) {
    return absl::InvalidArgumentError(
        "--until: the run also needs a limit, because it may never reach this loss; add --seconds "
        "1000 (virtual time) or --steps");
  }
  if (flags.steps >= 0 && flags.steps <= kMaxSteps && flags.seconds >= 0 &&
      std::isfinite(flags.seconds)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--steps must be 1 to ", kMaxSteps, ", --seconds not less than 0"));
}

absl::StatusOr<job::ResolvedJob> PlanOf(const SimulateFlags& flags) {
  node::RoleFlags role;
  role.job = flags.job;
  role.set = flags.set;
  if (!flags.timing_only) return node::PlanOf(role);
  TANDEM_ASSIGN_OR_RETURN(const job::Overrides overrides, node::ParseOverrides(flags.set));
  return job::ReadJobForTiming(flags.job, overrides);
}

// ---- files ------------------------------------------------------------------------------------

// Writes checkpoints as a live job does.
class DiskFiles final : public CheckpointFiles {
 public:
  DiskFiles(const job::ResolvedJob& plan, uint64_t run, std::string model_folder,
            std::vector<DataFile> trained_on)
      : plan_(plan),
        run_(run),
        model_folder_(std::move(model_folder)),
        trained_on_(std::move(trained_on)) {}

  // Before the first checkpoint: another run may have written to the folder.
  absl::Status Begin() const { return server::BeginAttempt(model_folder_, Head()); }

  // The runner of rank 0, which knows the names of parameters.
  void set_runner(const worker::TaskRunner* runner) { runner_ = runner; }

  // All servers write to one segment.
  absl::Status WriteRange(const std::string& folder, const server::RangeImage& image,
                          const std::string& bytes) override {
    std::unique_ptr<server::SegmentWriter>& segments = segments_[folder];
    if (segments == nullptr) {
      segments = std::make_unique<server::SegmentWriter>(In(folder), "servers");
    }
    return segments->Add(image, image.keys.size(),
                         [&](const ByteSink& sink) { return sink(bytes); });
  }
  absl::Status WriteDense(const std::string& folder, const std::string& bytes) override {
    return server::WriteDenseFile(In(folder), bytes);
  }
  absl::Status WriteWorker(const std::string& folder, int rank, const std::string& state,
                           const std::string& program) override {
    if (!state.empty()) {
      TANDEM_RETURN_IF_ERROR(server::WriteWorkerFile(In(folder), rank, state));
    }
    if (program.empty()) return absl::OkStatus();
    return server::WriteProgramFile(In(folder), rank, program);
  }
  absl::Status Commit(const std::string& folder, int64_t step, bool best,
                      const std::string& record) override {
    if (const auto segments = segments_.extract(folder); !segments.empty()) {
      TANDEM_RETURN_IF_ERROR(segments.mapped()->Finish());
    }
    server::CheckpointHead head = Head();
    head.step = step;
    head.best = best;
    RunRecord run;
    TANDEM_CHECK(run.ParseFromString(record));
    run.mutable_train()->Assign(trained_on_.begin(), trained_on_.end());
    run.set_blocks(plan_.job.data().deal() == Data::BLOCKS);
    head.record = Serialize(run);
    return server::CommitCheckpoint(In(folder), plan_, head, runner_->Parameters());
  }
  void Abandon(const std::string& folder) override {
    segments_.erase(folder);
    server::AbandonCheckpoint(In(folder));
  }

 private:
  server::CheckpointHead Head() const {
    server::CheckpointHead head;
    head.run = run_;
    head.keep = plan_.job.checkpoint().keep();
    return head;
  }
  std::string In(const std::string& folder) const {
    return model_folder_ + "/" + fs::path(folder).filename().string();
  }

  const job::ResolvedJob& plan_;
  const uint64_t run_;
  const std::string model_folder_;
  const std::vector<DataFile> trained_on_;
  std::map<std::string, std::unique_ptr<server::SegmentWriter>> segments_;  // by folder
  const worker::TaskRunner* runner_ = nullptr;
};

template <typename Head, typename Record>
absl::Status WriteRecords(const std::string& path, const std::vector<Record>& records) {
  server::RecordFile<Record, Head> file("records");
  TANDEM_RETURN_IF_ERROR(file.Open(path, /*keep=*/0));
  TANDEM_RETURN_IF_ERROR(file.Append(records));
  return file.Flush();
}

// ---- the run ----------------------------------------------------------------------------------

// "1.9 ms".
std::string Milliseconds(double seconds) { return absl::StrFormat("%.3g ms", seconds * 1000); }

class Simulation {
 public:
  // `live`: the run that gave the times, if any. `problem`: replaces the job's model, if not null.
  Simulation(const SimulateFlags& flags, const job::ResolvedJob& plan,
             absl::optional<Calibration> live, const Problem* problem)
      : flags_(flags),
        plan_(plan),
        live_(std::move(live)),
        problem_(problem),
        view_(stdout, CanRewriteLines()) {}

  absl::Status Prepare(const std::vector<std::string>& bad_rows) {
    if (!flags_.replay.empty()) {
      if (cli::IsInside(flags_.replay, flags_.out)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--out ", flags_.out, ": is the recorded run; name another folder"));
      }
      TANDEM_ASSIGN_OR_RETURN(auto order, server::ReadOrder(flags_.replay, plan_.workers(),
                                                            [](uint32_t) { return true; }));
      order_ = std::make_shared<Orders>(std::move(order));
    }
    std::vector<DataFile> files;
    if (flags_.problem.empty()) {
      TANDEM_ASSIGN_OR_RETURN(files, data::TrainingFiles(plan_.job.data()));
    }
    files_.emplace(plan_, run_, flags_.out + "/model", files);
    TANDEM_ASSIGN_OR_RETURN(cli::OutputFolder folder,
                            cli::OutputFolder::Claim(flags_.out, flags_.overwrite));
    folder_.emplace(std::move(folder));
    folder_->Clear(/*keep_model=*/flags_.checkpoint);
    if (flags_.checkpoint) TANDEM_RETURN_IF_ERROR(files_->Begin());
    std::error_code ignored;
    fs::remove_all(flags_.out + "/logs", ignored);  // from a live run
    if (!bad_rows.empty()) {
      TANDEM_RETURN_IF_ERROR(
          WriteFileAtomically(flags_.out + "/bad_rows.txt", absl::StrJoin(bad_rows, "\n") + "\n"));
    }
    TANDEM_RETURN_IF_ERROR(
        WriteFileAtomically(flags_.out + "/job.textproto", job::ResolvedText(plan_)));
    metrics_ = std::fopen((flags_.out + "/metrics.jsonl").c_str(), "we");
    if (metrics_ != nullptr) return absl::OkStatus();
    return absl::PermissionDeniedError(
        absl::StrCat("--out ", flags_.out, ": metrics.jsonl cannot be written"));
  }
  ~Simulation() {
    if (metrics_ != nullptr) std::fclose(metrics_);
  }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  int Execute(const worker::MakeTaskRunner& make_runner) {
    stops_ = node::StopSignals();
    Announce();
    begun_ = MonotonicNow();
    absl::StatusOr<std::unique_ptr<World>> world = World::New(plan_, Options(make_runner));
    if (!world.ok()) return Finish(world.status(), nullptr);
    world_ = *std::move(world);
    return Finish(world_->Run(), world_.get());
  }
  // Virtual time. Requires that Execute runs the world.
  absl::Duration elapsed() const { return world_->elapsed(); }

 private:
  using Orders = std::map<uint32_t, std::vector<server::OrderEntry>>;

  void Announce() {
    view_.Line(absl::StrFormat("%s, simulated: %d workers, %d servers, seed %d; %s; %s",
                               plan_.job.name(), plan_.workers(), plan_.server_processes(),
                               plan_.job.seed(), cli::DescribeTables(plan_), StepText()));
  }

  std::string StepText() const {
    if (!live_.has_value()) {
      return absl::StrFormat("a step takes %g s%s", flags_.step_seconds,
                             plan_.job.fault_injection().slow_workers().empty()
                                 ? ""
                                 : " where fault_injection.slow_workers says nothing else");
    }
    const auto [least, most] =
        std::minmax_element(live_->compute_seconds.begin(), live_->compute_seconds.end());
    return absl::StrCat("by ", live_->folder, " a step computes ", Milliseconds(*least),
                        *least == *most ? "" : absl::StrCat(" to ", Milliseconds(*most)),
                        live_->untold.empty()
                            ? ", a frame takes "
                            : absl::StrCat(", with ", live_->untold, ": assumed is "),
                        Milliseconds(flags_.latency_seconds));
  }

  WorldOptions Options(const worker::MakeTaskRunner& make_runner) {
    WorldOptions options;
    options.seed = plan_.job.seed();
    options.service_seed = plan_.job.seed();  // as live workers do
    options.run = run_;
    options.network.delay = absl::Seconds(flags_.latency_seconds);
    options.network.jitter = absl::ZeroDuration();
    options.network.bytes_per_second = flags_.bytes_per_second;
    options.compute = absl::Seconds(flags_.step_seconds);
    if (live_.has_value()) {
      options.compute = absl::ZeroDuration();
      for (const double seconds : live_->compute_seconds) {
        options.min_compute.push_back(absl::Seconds(seconds));
      }
    }
    options.fetch = absl::ZeroDuration();
    options.view_delay = absl::ZeroDuration();
    const client::ClientCore::Options live;
    options.resend = live.resend_after;
    options.frame_bytes = live.frame_bytes;
    options.limit = kLongestRun;
    options.replay = order_;
    options.trace_lines = 0;
    options.checkpoint_at_end = flags_.checkpoint;
    options.files = flags_.checkpoint ? &*files_ : nullptr;
    options.make_runner = [this, make_runner](
                              const job::ResolvedJob& plan,
                              int rank) -> absl::StatusOr<std::unique_ptr<worker::TaskRunner>> {
      if (stops_->load() > 0) return absl::CancelledError("stopped");
      TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<worker::TaskRunner> runner, make_runner(plan, rank));
      if (rank == 0) files_->set_runner(runner.get());
      return runner;
    };
    options.on_notice = [this](absl::Duration at, const scheduler::SchedulerNotice& notice) {
      OnNotice(at, notice);
    };
    options.stopped = [this] { return stops_->load() > 0; };
    return options;
  }

  void OnNotice(absl::Duration at, const scheduler::SchedulerNotice& notice) {
    using Kind = scheduler::SchedulerNotice::Kind;
    if (notice.kind == Kind::kProgress) {
      Emit("progress", at, scheduler::ProgressJson(notice.progress));
    } else if (notice.kind == Kind::kEvaluation) {
      nlohmann::json evaluation = scheduler::EvaluationJson(notice.text);
      Emit("evaluation", at, evaluation);
      evaluation["simulated_seconds"] = absl::ToDoubleSeconds(at);
      evaluations_.push_back(std::move(evaluation));
    } else if (notice.kind == Kind::kCheckpointed) {
      Emit("saved", at, {{"step", notice.step}});
    } else if (notice.kind == Kind::kFailed) {
      failed_ = {{"node", notice.node}, {"reason", notice.text}};
    }
  }

  void Emit(const char* event, absl::Duration at, nlohmann::json line) {
    line["event"] = event;
    view_.Show(line, MonotonicNow());
    line["simulated_seconds"] = absl::ToDoubleSeconds(at);
    const std::string text = scheduler::OneLine(line) + "\n";
    if (std::fputs(text.c_str(), metrics_) < 0) write_failed_ = true;
  }

  // `world` is null if there never was one.
  nlohmann::json Summary(const World* world, int code) const {
    nlohmann::json summary = {{"job", plan_.job.name()}, {"seed", plan_.job.seed()}};
    if (world != nullptr) {
      summary = scheduler::SummaryJson(plan_, world->report(), "simulated");
      summary["evaluations"] = evaluations_;
    }
    summary["simulated"] = {
        {"step_seconds", flags_.step_seconds},
        {"latency_seconds", flags_.latency_seconds},
        {"bytes_per_second", flags_.bytes_per_second},
        {"host_seconds", absl::ToDoubleSeconds(MonotonicNow() - begun_)},
        {"events", world == nullptr ? 0 : world->event_count()},
    };
    if (live_.has_value()) {
      nlohmann::json& simulated = summary["simulated"];
      simulated.erase("step_seconds");
      simulated["calibrated_by"] = live_->folder;
      simulated["compute_seconds"] = live_->compute_seconds;
      simulated["live_samples_per_second"] = live_->samples_per_second;
    }
    if (failed_.is_object()) summary["failed"] = failed_;
    if (problem_ != nullptr) summary["simulated"]["problem"] = problem_->Json();
    summary["command"] = flags_.command;
    summary["exit"] = code;
    if (!flags_.replay.empty()) summary["replay_of"] = flags_.replay;
    return summary;
  }

  // Compares speeds without evaluations and checkpoints, which take no time in a simulation.
  std::string BesideLive(const nlohmann::json& summary) const {
    const double here = TrainingSpeed(summary), there = live_->samples_per_second;
    const auto whole = [](double x) { return WithCommas(static_cast<int64_t>(x)); };
    std::string text = absl::StrCat("training alone: ", whole(here), " samples/s, where ",
                                    live_->folder, " had ", whole(there));
    if (there > 0) absl::StrAppendFormat(&text, "; %.2f times as much", here / there);
    if (!live_->differs.empty()) absl::StrAppend(&text, ", with ", live_->differs);
    return text;
  }

  absl::Status WriteFiles(const World& world) {
    const std::string path = flags_.out + "/" + kSimulatedFile;
    if (plan_.job.staleness().record_updates()) {
      TANDEM_RETURN_IF_ERROR(
          WriteRecords<server::RecordFileHead>(path + ".updates", world.records()));
    }
    if (!plan_.job.staleness().record_order()) return absl::OkStatus();
    std::vector<server::OrderEntry> order;
    for (const auto& [range, entries] : world.servers().order()) {
      order.insert(order.end(), entries.begin(), entries.end());
    }
    return WriteRecords<server::OrderFileHead>(path + server::kOrderSuffix, order);
  }

  int Finish(absl::Status run, const World* world) {
    view_.Clear();
    if (run.ok()) run = WriteFiles(*world);
    if (run.ok() && (write_failed_ || std::fflush(metrics_) != 0)) {
      run = absl::ResourceExhaustedError(flags_.out +
                                         "/metrics.jsonl: cannot be written: disk full?");
    }
    const bool stopped = run.code() == absl::StatusCode::kCancelled || stops_->load() > 0;
    const int code = run.ok()  ? node::kExitOk
                     : stopped ? node::kExitBySignal + node::StopSignalNumber()
                               : node::kExitFailed;
    if (!run.ok() && !failed_.is_object()) {
      failed_ = {{"node", "simulation"},
                 {"reason", stopped ? "stopped by a signal" : std::string(run.message())}};
      if (IsDiverged(run)) failed_["diverged"] = true;
    }
    const nlohmann::json summary = Summary(world, code);
    const absl::Status written =
        WriteFileAtomically(flags_.out + "/summary.json", scheduler::PrettyPrint(summary));
    if (!written.ok()) std::fprintf(stderr, "%s\n", std::string(written.message()).c_str());
    if (!run.ok()) {
      node::Finish("tandem simulate", stopped ? absl::AbortedError("stopped by a signal") : run);
      return code;
    }
    if (!written.ok()) return node::Finish("tandem simulate", written);
    const std::string result =
        cli::ProgressView::FormatEvaluation(summary.value("eval", nlohmann::json::object()));
    view_.Line(absl::StrFormat(
        "done: %s samples in %.4g simulated s, %s samples/s%s%s; %.1f s here",
        WithCommas(summary.value("samples", int64_t{0})), summary.value("seconds", 0.0),
        WithCommas(static_cast<int64_t>(summary.value("samples_per_second", 0.0))),
        result.empty() ? "" : "; ", result, summary["simulated"].value("host_seconds", 0.0)));
    if (live_.has_value()) view_.Line(BesideLive(summary));
    if (problem_ != nullptr) view_.Line(problem_->Text());
    view_.Line(absl::StrCat("wrote ", flags_.out, "/summary.json"));
    return node::kExitOk;
  }

  const SimulateFlags& flags_;
  const job::ResolvedJob& plan_;
  const absl::optional<Calibration> live_;
  const Problem* const problem_;
  // Different for each run, as in a live run.
  const uint64_t run_ = HashCombine(static_cast<uint64_t>(absl::GetCurrentTimeNanos()),
                                    static_cast<uint64_t>(getpid()));
  cli::ProgressView view_;
  std::optional<cli::OutputFolder> folder_;
  std::optional<DiskFiles> files_;
  std::shared_ptr<const Orders> order_;  // null: the order of arrival
  std::FILE* metrics_ = nullptr;
  bool write_failed_ = false;
  const std::atomic<int>* stops_ = nullptr;
  absl::Time begun_;
  std::unique_ptr<World> world_;
  nlohmann::json evaluations_ = nlohmann::json::array();
  nlohmann::json failed_;
};

}  // namespace

namespace {

void AddSimulate(CLI::App* app, SimulateFlags* flags) {
  app->add_option("job", flags->job, "Job file (protobuf text)")->required();
  node::AddSetFlag(app, &flags->set);
  node::AddOutFlags(app,
                    "Folder for summary.json, metrics.jsonl and model/; without: out/NAME-TIME",
                    &flags->out, &flags->overwrite);
  app->add_flag_callback(
      "--no-checkpoint", [flags] { flags->checkpoint = false; }, "Leave no model behind");
  CLI::Option* const calibrate =
      app->add_option("--calibrate", flags->calibrate,
                      "Folder of a live run: steps and frames take as long as they took there")
          ->check(CLI::ExistingDirectory);
  app->add_flag("--timing-only", flags->timing_only,
                "No data, rows or gradients: only who is when at which step; up to 65,536 workers");
  app->add_option(
      "--steps", flags->steps,
      "--timing-only, --problem: of each worker; without: the job's train.max_steps, or 1,000");
  app->add_option(
      "--seconds", flags->seconds,
      "--timing-only, --problem quadratic or tridiagonal: virtual seconds after which no worker "
      "begins a step; without: no limit");
  app->add_option("--step-bytes", flags->step_bytes,
                  "--timing-only: of rows that a step reads, and of gradients that it pushes");
  app->add_option("--dense-bytes", flags->dense_bytes, "--timing-only: that an allreduce sums");
  AddProblem(app, &flags->problem);
  // Set by tandem replay --serial, which checks that the run can be repeated.
  app->add_option("--replay", flags->replay)->check(CLI::ExistingDirectory)->group("");
  app->add_option(
         "--step-seconds", flags->step_seconds,
         "What a step computes on workers for which the job has no fault_injection.slow_workers")
      ->capture_default_str()
      ->excludes(calibrate);
  app->add_option("--latency-seconds", flags->latency_seconds, "From sending to receiving")
      ->capture_default_str()
      ->excludes(calibrate);
  app->add_option("--bytes-per-second", flags->bytes_per_second,
                  "What each process can send, and receive; 0 = no limit")
      ->capture_default_str();
}

absl::Status CheckAssumptions(const SimulateFlags& flags, const job::ResolvedJob& plan) {
  const double stall = plan.job.limits().stall_timeout_seconds();
  if (flags.step_seconds >= stall || flags.latency_seconds >= stall) {
    return absl::InvalidArgumentError(
        absl::StrCat("--step-seconds and --latency-seconds must be less than the job's "
                     "limits.stall_timeout_seconds, ",
                     stall));
  }
  const double max_bytes = std::max(flags.step_bytes, flags.dense_bytes);
  if (flags.bytes_per_second > 0 && !(max_bytes / flags.bytes_per_second < stall)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--step-bytes and --dense-bytes: ", max_bytes, " at --bytes-per-second ",
                     flags.bytes_per_second, " take ", max_bytes / flags.bytes_per_second,
                     " s, must be less than the job's limits.stall_timeout_seconds, ", stall));
  }
  if (flags.step_seconds > 0 && std::isfinite(flags.step_seconds) && flags.latency_seconds >= 0 &&
      std::isfinite(flags.latency_seconds) && flags.bytes_per_second >= 0 &&
      std::isfinite(flags.bytes_per_second)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--step-seconds must be more than 0, --latency-seconds and --bytes-per-second not less than "
      "0");
}

}  // namespace

bool ParseSimulate(int argc, char** argv, SimulateFlags* flags, int* exit_code) {
  CLI::App app("A job under a virtual clock, in one process.", "tandem simulate");
  AddSimulate(&app, flags);
  if (!node::ParseFlags(&app, argc, argv, exit_code)) return false;
  flags->command = "tandem simulate";
  for (int i = 1; i < argc; ++i) absl::StrAppend(&flags->command, " ", ForShell(argv[i]));
  return true;
}

absl::Status CheckFlags(const SimulateFlags& flags, const job::ResolvedJob& plan) {
  TANDEM_RETURN_IF_ERROR(CheckTimingFlags(flags));
  TANDEM_RETURN_IF_ERROR(CheckAssumptions(flags, plan));
  TANDEM_RETURN_IF_ERROR(CheckProblemJob(flags, plan));
  // data::CheckData makes this check if there are data.
  if (flags.without_model()) TANDEM_RETURN_IF_ERROR(data::CheckServiceTraces(plan));
  return flags.timing_only ? Timing::Check(plan) : CheckJob(plan);
}

absl::Status CheckSimulated(const job::ResolvedJob& plan) {
  TANDEM_RETURN_IF_ERROR(CheckJob(plan));
  return data::CheckData(plan);
}

namespace {

int SimulateProblem(SimulateFlags flags, const job::ResolvedJob& plan,
                    absl::optional<Calibration> live) {
  flags.checkpoint = false;  // the checkpoint could not be loaded: the job has another model
  const Simulation* running = nullptr;
  const ProblemRun run = {flags.steps, flags.seconds, [&running] { return running->elapsed(); }};
  const std::unique_ptr<Problem> problem = NewProblem(flags.problem, run, plan);
  Simulation simulation(flags, plan, std::move(live), problem.get());
  running = &simulation;
  if (const absl::Status prepared = simulation.Prepare({}); !prepared.ok()) return Refuse(prepared);
  return simulation.Execute(problem->runners());
}

}  // namespace

int Simulate(const SimulateFlags& given, const worker::MakeTaskRunner& make_runner) {
  SimulateFlags flags = given;
  absl::StatusOr<job::ResolvedJob> plan = PlanOf(flags);
  absl::Status ready = plan.status();
  absl::optional<Calibration> live;
  if (ready.ok() && !flags.calibrate.empty()) {
    const auto read = ReadCalibration(flags.calibrate, *plan);
    ready = read.status();
    if (ready.ok()) live = *read;
    if (ready.ok()) flags.latency_seconds = live->latency_seconds.value_or(flags.latency_seconds);
  }
  if (ready.ok()) ready = CheckFlags(flags, *plan);
  if (ready.ok() && flags.out.empty()) flags.out = cli::NewFolderName(plan->job.name());
  if (ready.ok()) ready = cli::OutputFolder::Check(flags.out, flags.overwrite);
  if (ready.ok() && flags.without_model() && flags.steps == 0) {
    flags.steps = plan->job.train().max_steps();
    if (flags.steps == 0) flags.steps = flags.seconds > 0 ? kMaxSteps : kStepsWithoutData;
  }
  if (ready.ok() && flags.timing_only) return SimulateTiming(flags, *plan, live);
  if (ready.ok() && flags.without_model()) return SimulateProblem(flags, *plan, std::move(live));
  data::DataReport data;
  if (ready.ok()) {
    data::ClearMeasured(plan->job.mutable_data());
    ready = data::CheckData(*plan, &data);
  }
  if (ready.ok()) ready = data::FillFromData("", &*plan);
  if (!ready.ok()) return Refuse(ready);
  for (const std::string& text : data.warnings) {
    std::fprintf(stderr, "warning: %s\n", text.c_str());
  }
  Simulation simulation(flags, *plan, std::move(live), nullptr);
  if (const absl::Status prepared = simulation.Prepare(data.bad_rows); !prepared.ok())
    return Refuse(prepared);
  return simulation.Execute(make_runner);
}

namespace {

// Replaces this process by the simulator of models, a separate program. Returns only on an error.
int ExecSimulator(char** argv) {
  if (const absl::Status there = node::CheckProgram("tandem-simulator"); !there.ok()) {
    return node::Finish("tandem simulate", there);
  }
  const std::string program = node::ProgramPath("tandem-simulator");
  argv[1] = const_cast<char*>("tandem-simulator");
  execv(program.c_str(), argv + 1);
  std::cerr << "tandem simulate: " << program << " cannot be started: " << std::strerror(errno)
            << "\n";
  return node::kExitFailed;
}

}  // namespace

// Simulations without a model run here, because most are shorter than the time to load LibTorch.
int SimulateCommand(int argc, char** argv) {
  SimulateFlags flags;
  int code = node::kExitOk;
  if (!ParseSimulate(argc - 1, argv + 1, &flags, &code)) return code;
  return flags.without_model() ? Simulate(flags, nullptr) : ExecSimulator(argv);
}

}  // namespace tandem::sim
