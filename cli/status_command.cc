#include "cli/status_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/numbers.h"
#include "cli/scheduler_talk.h"
#include "cli/status_view.h"
#include "node/job_token.h"
#include "node/role_flags.h"
#include "scheduler/summary.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr absl::Duration kRefresh = absl::Seconds(1);
constexpr absl::Duration kLookAgain = absl::Milliseconds(300);
constexpr absl::Duration kSummaryStays = absl::Seconds(2);  // of an attempt that is followed
constexpr absl::Duration kEnds = absl::Seconds(15);         // from the last answer to the summary

absl::StatusOr<json> StatusOf(SchedulerTalk* talk) {
  TANDEM_ASSIGN_OR_RETURN(const UserAnswer answer, talk->Ask(UserRequest::STATUS));
  json status = json::parse(answer.text(), nullptr, /*allow_exceptions=*/false);
  if (!status.is_object())
    return absl::DataLossError("the scheduler sent a status that is no JSON");
  return status;
}

// The summary of a run that has ended; null: there is none, so it runs, or was killed.
json SummaryOf(const std::string& where) {
  if (SchedulerTalk::IsAddress(where)) return nullptr;
  std::ifstream file(where + "/summary.json");
  json summary = json::parse(file, nullptr, /*allow_exceptions=*/false);
  return summary.is_object() ? summary : json();
}

absl::StatusOr<std::unique_ptr<SchedulerTalk>> TalkTo(const std::string& where) {
  TANDEM_ASSIGN_OR_RETURN(const std::string address, SchedulerTalk::AddressOf(where));
  node::RoleFlags role;
  Job job;  // of an address: not known, so the default counts
  if (!SchedulerTalk::IsAddress(where)) {
    role.out = where;
    if (const auto read = job::ReadJobFile(where + "/job.textproto", {}); read.ok()) job = *read;
  }
  TANDEM_RETURN_IF_ERROR(node::TakeKeys(job, &role));
  return SchedulerTalk::Open(address, role.keys);
}

absl::Status WithHint(const std::string& where, const absl::Status& why) {
  if (!absl::IsUnavailable(why) || SchedulerTalk::IsAddress(where)) return why;
  return absl::Status(why.code(), absl::StrCat(why.message(),
                                               "; a run that was killed continues with: tandem "
                                               "run JOB --resume ",
                                               where));
}

int Refuse(const char* program, const std::string& where, const absl::Status& why) {
  node::Finish(program, WithHint(where, why));
  const bool bad = absl::IsNotFound(why) || absl::IsInvalidArgument(why);
  return bad ? node::kExitBadInput : node::kExitFailed;
}

void Print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Replaces the contents of the terminal. Lines are cut to its size, because a wrapped line would
// move the others.
void Redraw(std::vector<std::string> lines) {
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 2;
  const size_t rows = known ? size.ws_row - size_t{1} : 24, columns = known ? size.ws_col : 80;
  if (lines.size() > rows) {
    const size_t more = lines.size() - rows + 1;
    lines.resize(rows - 1);
    lines.push_back(absl::StrCat("and ", more, " more lines: tandem status --once"));
  }
  std::printf("\x1b[H");
  for (const std::string& line : lines) {
    std::printf("%s\x1b[K\n", line.substr(0, columns).c_str());
  }
  std::printf("\x1b[J");
  std::fflush(stdout);
}

int ShowEnd(const StatusFlags& flags, json summary) {
  if (flags.json) {
    summary["state"] = EndOf(summary);
    Print({scheduler::PrettyPrint(summary)});
  } else {
    Print(EndedLines(summary));
  }
  return node::kExitOk;
}

// Waits until the scheduler has gone. True: it has.
bool AwaitEnd(SchedulerTalk* talk) {
  while (!talk->gone()) {
    if (!StatusOf(talk).ok()) break;
    absl::SleepFor(kLookAgain);
  }
  return talk->gone();
}

// `tandem run` completes the summary after the scheduler has gone.
json AwaitSummary(const std::string& where) {
  if (SchedulerTalk::IsAddress(where)) return nullptr;
  const absl::Time deadline = MonotonicNow() + kEnds;
  json summary = SummaryOf(where);
  while (summary.is_null() && MonotonicNow() < deadline) {
    absl::SleepFor(kLookAgain);
    summary = SummaryOf(where);
  }
  return summary;
}

// The scheduler of `talk` has gone. Waits for that of the next attempt, and stores it in `talk`.
// False: the job has ended.
bool AwaitNextAttempt(const std::string& where, std::unique_ptr<SchedulerTalk>* talk) {
  if (SchedulerTalk::IsAddress(where)) return false;
  const absl::Time begin = MonotonicNow();
  while (MonotonicNow() < begin + kEnds) {
    absl::SleepFor(kLookAgain);
    // If another attempt follows, `tandem run` soon removes the summary of the failed one. At the
    // end of the run it adds "exit" to the summary.
    const json summary = SummaryOf(where);
    const bool over = summary.contains("exit") || MonotonicNow() > begin + kSummaryStays;
    if (!summary.is_null() && over) return false;
    absl::StatusOr<std::unique_ptr<SchedulerTalk>> next = TalkTo(where);
    if (!next.ok() || !StatusOf(next->get()).ok()) continue;
    *talk = *std::move(next);
    return true;
  }
  return false;
}

void AddWhere(CLI::App* command, std::string* where) {
  command
      ->add_option("where", *where,
                   "The --out folder of a run, or the address of its scheduler, tcp://HOST:PORT")
      ->required();
}

}  // namespace

void AddStatus(CLI::App* app, StatusFlags* flags) {
  CLI::App* status = app->add_subcommand("status", "What a running job does (docs/OBSERVE.md)");
  AddWhere(status, &flags->where);
  status->add_flag("--json", flags->json, "Print it once, as JSON");
  status->add_flag("--once", flags->once, "Print it once; on a terminal it is refreshed otherwise");
}

int StatusCommand(const StatusFlags& flags) {
  constexpr char kProgram[] = "tandem status";
  json summary = SummaryOf(flags.where);
  if (!summary.is_null()) return ShowEnd(flags, std::move(summary));
  absl::StatusOr<std::unique_ptr<SchedulerTalk>> talk = TalkTo(flags.where);
  if (!talk.ok()) return Refuse(kProgram, flags.where, talk.status());
  const bool live = !flags.once && !flags.json && isatty(STDOUT_FILENO) != 0;
  for (bool first = true;; first = false) {
    const absl::StatusOr<json> status = StatusOf(talk->get());
    if (!status.ok()) {
      if (first || !(*talk)->gone()) return Refuse(kProgram, flags.where, status.status());
      if (AwaitNextAttempt(flags.where, &*talk)) continue;
      break;
    }
    if (flags.json) Print({scheduler::PrettyPrint(*status)});
    if (flags.json) return node::kExitOk;
    if (!live) Print(StatusLines(*status));
    if (!live) return node::kExitOk;
    if (first) std::printf("\x1b[2J");
    Redraw(StatusLines(*status));
    absl::SleepFor(kRefresh);
  }
  summary = AwaitSummary(flags.where);
  if (!summary.is_null()) return ShowEnd(flags, std::move(summary));
  std::printf("the job has ended\n");
  return node::kExitOk;
}

void AddCheckpointAndStop(CLI::App* app, AskFlags* checkpoint, AskFlags* stop) {
  AddWhere(app->add_subcommand("checkpoint", "Have a running job write a checkpoint, and train on"),
           &checkpoint->where);
  CLI::App* end = app->add_subcommand("stop", "Have a running job write a checkpoint, and end");
  AddWhere(end, &stop->where);
  end->add_flag("--now", stop->now, "End at once, without a checkpoint");
}

int CheckpointCommand(const AskFlags& flags) {
  constexpr char kProgram[] = "tandem checkpoint";
  if (!SummaryOf(flags.where).is_null()) {
    return node::Finish(
        kProgram, absl::FailedPreconditionError(absl::StrCat(flags.where, ": the job has ended")));
  }
  absl::StatusOr<std::unique_ptr<SchedulerTalk>> talk = TalkTo(flags.where);
  if (!talk.ok()) return Refuse(kProgram, flags.where, talk.status());
  const absl::StatusOr<UserAnswer> answer = (*talk)->Ask(UserRequest::CHECKPOINT);
  if (!answer.ok()) return Refuse(kProgram, flags.where, answer.status());
  for (;;) {
    const absl::StatusOr<json> status = StatusOf(talk->get());
    if (!status.ok()) return Refuse(kProgram, flags.where, status.status());
    const json checkpoint = status->value("checkpoint", json::object());
    if (checkpoint.value("ended", int64_t{0}) >= answer->checkpoints()) {
      const std::string failure = checkpoint.value("failure", "");
      if (!failure.empty()) return node::Finish(kProgram, absl::AbortedError(failure));
      std::printf("checkpoint of step %s in %s\n",
                  WithCommas(checkpoint.value("step", int64_t{0})).c_str(),
                  checkpoint.value("folder", "").c_str());
      return node::kExitOk;
    }
    absl::SleepFor(kLookAgain);
  }
}

int StopCommand(const AskFlags& flags) {
  constexpr char kProgram[] = "tandem stop";
  if (!SummaryOf(flags.where).is_null()) {
    return node::Finish(kProgram, absl::FailedPreconditionError(
                                      absl::StrCat(flags.where, ": the job has ended already")));
  }
  absl::StatusOr<std::unique_ptr<SchedulerTalk>> talk = TalkTo(flags.where);
  if (!talk.ok()) return Refuse(kProgram, flags.where, talk.status());
  const absl::StatusOr<UserAnswer> answer =
      (*talk)->Ask(flags.now ? UserRequest::ABORT : UserRequest::END);
  if (!answer.ok()) return Refuse(kProgram, flags.where, answer.status());
  std::printf("%s\n", answer->text().c_str());
  std::fflush(stdout);
  if (!AwaitEnd(talk->get())) {
    return node::Finish(kProgram, absl::UnavailableError("the scheduler does not answer any more"));
  }
  const json summary = AwaitSummary(flags.where);
  Print({summary.is_null() ? "the job has ended" : EndedLines(summary).front()});
  return node::kExitOk;
}

}  // namespace tandem::cli
