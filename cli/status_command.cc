#include "cli/status_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
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
#include "base/terminal.h"
#include "base/text.h"
#include "cli/console/output_folder.h"
#include "cli/scheduler_talk.h"
#include "cli/status_view.h"
#include "node/job_token.h"
#include "node/network_check.h"
#include "node/role_flags.h"
#include "node/role_options.h"
#include "scheduler/observe/summary.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr absl::Duration kRefresh = absl::Seconds(1);
constexpr absl::Duration kLookAgain = absl::Milliseconds(300);
constexpr absl::Duration kSayAfter = absl::Seconds(1);
// A new attempt begins after `tandem run` has ended all roles and has found the checkpoint.
constexpr absl::Duration kNextAttempt = absl::Minutes(10);

absl::StatusOr<json> StatusOf(SchedulerTalk* talk) {
  TANDEM_ASSIGN_OR_RETURN(const UserAnswer answer, talk->Ask(UserRequest::STATUS));
  json status = json::parse(answer.text(), nullptr, /*allow_exceptions=*/false);
  if (!status.is_object())
    return absl::DataLossError("the scheduler sent a status that is no JSON");
  return status;
}

// The summary of a run that has ended; null: there is none, so it runs, or was killed.
json SummaryOf(const std::string& where) {
  return SchedulerTalk::IsAddress(where) ? json() : ReadSummary(where);
}

absl::StatusOr<std::unique_ptr<SchedulerTalk>> TalkTo(const std::string& where) {
  TANDEM_ASSIGN_OR_RETURN(const std::string address, SchedulerTalk::AddressOf(where));
  node::RoleFlags role;
  Job job;  // of an address: not known, so the default counts
  if (!SchedulerTalk::IsAddress(where)) {
    role.out = where;
    if (const auto read = job::ReadJobFile(where + "/job.textproto", {}); read.ok()) job = *read;
  }
  TANDEM_RETURN_IF_ERROR(node::LoadKeys(job, &role));
  return SchedulerTalk::Open(address, role.keys);
}

absl::Status WithHint(const std::string& where, const absl::Status& why) {
  if (!absl::IsUnavailable(why) || SchedulerTalk::IsAddress(where)) return why;
  std::error_code error;
  const bool script = std::filesystem::exists(where + "/script.json", error);
  return absl::Status(why.code(), absl::StrCat(why.message(),
                                               "; a run that was killed continues with: tandem "
                                               "run --resume ",
                                               where, script ? " --python SCRIPT" : ""));
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

// Waits until the scheduler has gone. True: it has. A pause precedes each question, because the
// scheduler does not answer two that come soon after one another. Says once that the last
// checkpoint waits for room, because that may take long.
bool AwaitEnd(SchedulerTalk* talk) {
  for (bool said = false; !talk->gone();) {
    absl::SleepFor(kLookAgain);
    const absl::StatusOr<json> status = StatusOf(talk);
    if (!status.ok()) break;
    const std::string room = RoomText(status->value("checkpoint", json::object()));
    if (!room.empty() && !std::exchange(said, true)) Print({room});
  }
  return talk->gone();
}

// The scheduler of a run, and its status. After the end of the run: null, and the summary.
struct Found {
  std::unique_ptr<SchedulerTalk> talk;
  json status;
  json summary;
};

absl::StatusOr<Found> TryToFind(const std::string& where) {
  Found found;
  TANDEM_ASSIGN_OR_RETURN(const std::string address, SchedulerTalk::AddressOf(where));
  if (node::IsRefused(address)) {  // known at once; a connection would be tried for seconds
    return absl::UnavailableError(absl::StrCat("no answer from the scheduler at ", address, ": ",
                                               node::WhyNoAnswer(address)));
  }
  TANDEM_ASSIGN_OR_RETURN(found.talk, TalkTo(where));
  TANDEM_ASSIGN_OR_RETURN(found.status, StatusOf(found.talk.get()));
  return found;
}

// Finds the scheduler of the run. Between two attempts (cluster.max_restarts) there is none, or the
// summary of a failed attempt: `tandem run` holds the folder then. Waits for the next attempt, or
// for the end of the run, at which `tandem run` adds "exit" to the summary and leaves the folder.
absl::StatusOr<Found> Find(const char* program, const std::string& where) {
  const absl::Time begin = MonotonicNow();
  for (bool said = false;;) {
    const bool held = !SchedulerTalk::IsAddress(where) && OutputFolder::IsHeld(where);
    if (json summary = SummaryOf(where); !summary.is_null()) {
      if (!held || summary.contains("exit")) return Found{nullptr, nullptr, std::move(summary)};
    }
    absl::StatusOr<Found> found = TryToFind(where);
    const bool absent = absl::IsUnavailable(found.status()) || absl::IsNotFound(found.status());
    const absl::Time now = MonotonicNow();
    if (!absent || !held || now - begin > kNextAttempt) return found;
    if (now - begin > kSayAfter && !std::exchange(said, true)) {
      std::fprintf(stderr, "%s: %s: waits for the next attempt of the run\n", program,
                   where.c_str());
    }
    absl::SleepFor(kLookAgain);
  }
}

void AddWhere(CLI::App* command, std::string* where) {
  command
      ->add_option("where", *where,
                   "The --out folder of a run, or the address of its scheduler, tcp://HOST:PORT")
      ->check([](const std::string& text) {
        return SchedulerTalk::IsAddress(text) ? node::CheckAddress(text) : "";
      })
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
  absl::StatusOr<Found> found = Find(kProgram, flags.where);
  if (!found.ok()) return Refuse(kProgram, flags.where, found.status());
  const bool live = !flags.once && !flags.json && CanRewriteLines();
  if (live && found->talk != nullptr) std::printf("\x1b[2J");
  while (found->talk != nullptr) {
    if (flags.json) Print({scheduler::PrettyPrint(found->status)});
    if (flags.json) return node::kExitOk;
    if (!live) Print(StatusLines(found->status));
    if (!live) return node::kExitOk;
    Redraw(StatusLines(found->status));
    absl::SleepFor(kRefresh);
    absl::StatusOr<json> status = StatusOf(found->talk.get());
    if (status.ok()) {
      found->status = *std::move(status);
      continue;
    }
    if (!found->talk->gone()) return Refuse(kProgram, flags.where, status.status());
    found = Find(kProgram, flags.where);
    if (found.ok()) continue;
    std::printf("the job has ended\n");
    return node::kExitOk;
  }
  return ShowEnd(flags, std::move(found->summary));
}

void AddCheckpointAndStop(CLI::App* app, AskFlags* checkpoint, AskFlags* stop) {
  AddWhere(app->add_subcommand("checkpoint", "Have a running job write a checkpoint, and train on"),
           &checkpoint->where);
  CLI::App* end = app->add_subcommand("stop", "Have a running job write a checkpoint, and end");
  AddWhere(end, &stop->where);
  end->add_flag("--now", stop->now, "End at once, without a checkpoint");
}

// Asks for a checkpoint when the job trains, and waits until it is written. Returns its status.
absl::StatusOr<json> WriteCheckpoint(Found* found) {
  for (;;) {
    const std::string state = found->status.value("state", "");
    if (state != "registering" && state != "starting" && state != "failing") break;
    absl::SleepFor(kLookAgain);
    TANDEM_ASSIGN_OR_RETURN(found->status, StatusOf(found->talk.get()));
  }
  TANDEM_ASSIGN_OR_RETURN(const UserAnswer answer, found->talk->Ask(UserRequest::CHECKPOINT));
  for (;;) {
    absl::SleepFor(kLookAgain);
    TANDEM_ASSIGN_OR_RETURN(const json status, StatusOf(found->talk.get()));
    json checkpoint = status.value("checkpoint", json::object());
    if (checkpoint.value("ended", int64_t{0}) >= answer.checkpoints()) return checkpoint;
  }
}

int CheckpointCommand(const AskFlags& flags) {
  constexpr char kProgram[] = "tandem checkpoint";
  for (;;) {
    absl::StatusOr<Found> found = Find(kProgram, flags.where);
    if (!found.ok()) return Refuse(kProgram, flags.where, found.status());
    if (found->talk == nullptr) {
      return node::Finish(kProgram, absl::FailedPreconditionError(
                                        absl::StrCat(flags.where, ": the job has ended")));
    }
    SchedulerTalk* const talk = found->talk.get();
    const absl::StatusOr<json> checkpoint = WriteCheckpoint(&*found);
    // The attempt has ended, and another one may follow.
    if (!checkpoint.ok() && talk->gone() && !SchedulerTalk::IsAddress(flags.where)) continue;
    if (!checkpoint.ok()) return Refuse(kProgram, flags.where, checkpoint.status());
    const std::string failure = checkpoint->value("failure", "");
    if (!failure.empty()) return node::Finish(kProgram, absl::AbortedError(failure));
    std::printf("checkpoint of step %s in %s\n",
                WithCommas(checkpoint->value("step", int64_t{0})).c_str(),
                checkpoint->value("folder", "").c_str());
    return node::kExitOk;
  }
}

int StopCommand(const AskFlags& flags) {
  constexpr char kProgram[] = "tandem stop";
  const bool by_address = SchedulerTalk::IsAddress(flags.where);
  for (bool asked = false;;) {
    const absl::StatusOr<Found> found = Find(kProgram, flags.where);
    if (!found.ok() && !asked) return Refuse(kProgram, flags.where, found.status());
    if (!asked && found->talk == nullptr) {
      return node::Finish(kProgram, absl::FailedPreconditionError(
                                        absl::StrCat(flags.where, ": the job has ended already")));
    }
    if (!found.ok() || found->talk == nullptr) {
      Print({found.ok() ? EndedLines(found->summary).front() : "the job has ended"});
      return node::kExitOk;
    }
    SchedulerTalk* const talk = found->talk.get();
    const absl::StatusOr<UserAnswer> answer =
        talk->Ask(flags.now ? UserRequest::ABORT : UserRequest::END);
    // FAILED_PRECONDITION: the attempt ends already. Another one may follow.
    const bool ends = absl::IsFailedPrecondition(answer.status()) || talk->gone();
    if (!answer.ok() && (by_address || !ends)) {
      return Refuse(kProgram, flags.where, answer.status());
    }
    if (answer.ok()) Print({answer->text()});
    asked |= answer.ok();
    if (!AwaitEnd(talk)) {
      return node::Finish(kProgram,
                          absl::UnavailableError("the scheduler does not answer any more"));
    }
    if (!by_address) continue;
    Print({"the job has ended"});
    return node::kExitOk;
  }
}

}  // namespace tandem::cli
