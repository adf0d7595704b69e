// Golden traces of the scheduler: each file of tests/testdata/scheduler is a list of blocks
//
//   commands, one a line
//   ----
//   what the scheduler did, one line an effect
//
// The test runs the commands and compares. After a change that is meant, run with --update and
// review the diff of the files. Commands (connections are numbers; a node's incarnation is that
// number unless `inc=` says otherwise):
//
//   job workers=2 servers=1 shards=1 start=60 stall=600
//                          first; all but the first two are optional;
//                          checkpoints=PATH: it writes checkpoints there, by itself every
//                          checkpoint_seconds= or checkpoint_steps=;
//                          resume=STEP: the run resumes from this step;
//                          keep_best=1: it has train.keep_best; room=S: it waits S seconds for
//                          room; store=1: its table is KEY_VALUE
//   register CONN ROLE INDEX [inc=N] [hash=N] [endpoints=N]    ROLE: server, worker or agent
//   up                     registers servers 0.. on connections 1.. and workers 0.. on 11.., lets
//                          them acknowledge the view and beat; prints only the notice of the start
//   ack CONN ID [CODE TEXT]   CommandDone; ID may be VIEW or LAST (the last command sent); of a
//                          MARK with the reports of the server's shards before it;
//                          a text with no_room=1: because a disk is full
//   beat CONN PROGRESS STEP [for=ROLE-INDEX] [ACTIVITY]      for=: whom it waits for
//   beats CONN...          these connections beat each second from now on, and make progress
//   freeze CONN [for=ROLE-INDEX] [ACTIVITY]   it goes on beating, without progress
//   says CONN [for=ROLE-INDEX] ACTIVITY       it beats, makes progress, and says this
//   silent CONN            it stops beating
//   run SECONDS            ticks every 100 ms until then (time since the start of the file)
//   suspended SECONDS      nothing happens until then: the scheduler itself was stopped
//   enter CONN NAME [VALUE] [PARTIES] [do=ACTION] [path=PATH] [may_fail=1] [failure=WORD]
//                          [no_room=1] [part=BYTES] [free=BYTES]
//   progress CONN STEP SAMPLES LOSS_SUM [done] [eval=JSON]
//   report CONN SERVER SHARD SENT APPLIED
//   full CONN REASON       a server says that its memory is full
//   failure CONN CODE REASON         (CODE: a number of absl::StatusCode)
//   blame CONN NODE|CODE|REASON
//   stops CONN COUNT       an agent says how many stop signals have come
//   ask CONN KIND          a user's tool asks: CHECKPOINT, END, ABORT, or the number of a kind
//   lost CONN WHY / closed CONN / garbage CONN WHY
//   checkpoint PATH / move RANGE SERVER SHARD / end REASON / abort REASON
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "gtest/gtest.h"
#include "proto/activity.h"
#include "tests/source_path.h"
#include "tests/unit/scheduler/scheduler_test_job.h"

namespace tandem {
namespace {

bool update_files = false;  // --update; set once in main

using Words = std::vector<std::string>;

int64_t Number(const std::string& word) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(word, &value)) ADD_FAILURE() << "not a number: " << word;
  return value;
}

// The value of "key=value" among the words, or `otherwise`.
std::string Option(const Words& words, const std::string& key, const std::string& otherwise) {
  for (const std::string& word : words) {
    absl::string_view view = word;
    if (absl::ConsumePrefix(&view, key + "=")) return std::string(view);
  }
  return otherwise;
}

std::string Rest(const Words& words, size_t from) {
  if (from >= words.size()) return "";
  return absl::StrJoin(words.begin() + static_cast<std::ptrdiff_t>(from), words.end(), " ");
}

// What the words from `from` on say of a loop: "for=worker-1 waits for worker 1".
Activity ActivityOf(const Words& words, size_t from) {
  Activity activity;
  absl::string_view first = words.size() > from ? absl::string_view(words[from]) : "";
  if (absl::ConsumePrefix(&first, "for=")) {
    const std::vector<std::string> node = absl::StrSplit(first, '-');
    const int index = static_cast<int>(Number(node.back()));
    activity.waits_for =
        node[0] == "server" ? EndpointId::Shard(index, 0) : EndpointId::Worker(index);
    ++from;
  }
  activity.text = Rest(words, from);
  return activity;
}

std::string DescribeView(const View& view) {
  const auto member = [](std::string* out, const Member& m) {
    absl::StrAppend(out, m.incarnation());
  };
  const auto owner = [](std::string* out, const RangeInfo& r) {
    absl::StrAppend(out, r.server(), "/", r.shard());
  };
  return absl::StrCat("View ", view.number(), " servers=[",
                      absl::StrJoin(view.server(), " ", member), "] workers=[",
                      absl::StrJoin(view.worker(), " ", member), "] ranges=[",
                      absl::StrJoin(view.range(), " ", owner), "]");
}

std::string Describe(const Control& control) {
  switch (control.body_case()) {
    case Control::kView:
      return DescribeView(control.view());
    case Control::kReaderWelcome:
      return absl::StrCat("the job, as reader ", control.reader_welcome().reader());
    case Control::kCommand:
      return absl::StrCat(
          Command::Kind_Name(control.command().kind()), control.command().path().empty() ? "" : " ",
          control.command().path(), control.command().hold() ? ", then hold" : "",
          control.command().abandon() ? ", abandon" : "",
          control.command().may_fail() ? ", may fail" : "",
          control.command().reason().empty() ? "" : ": ", control.command().reason());
    case Control::kBarrierRelease:
      return absl::StrCat("release \"", control.barrier_release().name(), "\" max ",
                          control.barrier_release().max_value(),
                          control.barrier_release().failure().empty() ? "" : ", failed: ",
                          control.barrier_release().failure(),
                          control.barrier_release().again() ? "; again" : "");
    case Control::kFailure:
      return absl::StrCat(
          "Failure ", control.failure().node(), ": ", control.failure().reason(), " (",
          absl::StatusCodeToString(static_cast<absl::StatusCode>(control.failure().code())), ")");
    case Control::kMoveRange:
      return absl::StrCat("MoveRange ", control.move_range().range(), " as of view ",
                          control.move_range().view());
    case Control::kBeatAck:
      return "BeatAck";
    case Control::kUserAnswer:
      return absl::StrCat(
          "answer ",
          absl::StatusCodeToString(static_cast<absl::StatusCode>(control.user_answer().code())),
          ": ", control.user_answer().text(),
          control.user_answer().checkpoints() > 0
              ? absl::StrCat(" (checkpoint ", control.user_answer().checkpoints(), ")")
              : "");
    default:
      return control.ShortDebugString();
  }
}

std::string DescribeProgress(const scheduler::JobProgress& p) {
  return absl::StrFormat("step %d..%d samples %d (%.0f/s) loss %.3f", p.min_step, p.max_step,
                         p.samples, p.samples_per_second, p.loss);
}

std::string Describe(const scheduler::SchedulerNotice& notice) {
  switch (notice.kind) {
    case scheduler::SchedulerNotice::Kind::kStarted:
      return "started";
    case scheduler::SchedulerNotice::Kind::kProgress:
      return absl::StrCat("progress ", DescribeProgress(notice.progress));
    case scheduler::SchedulerNotice::Kind::kEvaluation:
      return absl::StrCat("evaluation ", notice.text);
    case scheduler::SchedulerNotice::Kind::kReported:
      return absl::StrCat("reported ", notice.text);
    case scheduler::SchedulerNotice::Kind::kCheckpointed:
      return absl::StrCat("saved step ", notice.step);
    case scheduler::SchedulerNotice::Kind::kStall:
      return absl::StrCat("stall of ", notice.node, ": ", notice.text);
    case scheduler::SchedulerNotice::Kind::kStallOver:
      return absl::StrCat("stall of ", notice.node, " is over");
    case scheduler::SchedulerNotice::Kind::kEnding:
      return "ending";
    case scheduler::SchedulerNotice::Kind::kVacant:
      return absl::StrCat("vacant ", notice.node, ": ", notice.text);
    case scheduler::SchedulerNotice::Kind::kReplaced:
      return absl::StrCat("replaced ", notice.node, ": step ", notice.step);
    case scheduler::SchedulerNotice::Kind::kFailed:
      return absl::StrCat("failed: ", notice.node, ": ", notice.text, " (",
                          absl::StatusCodeToString(notice.code), ")");
    case scheduler::SchedulerNotice::Kind::kFinished:
      return "finished";
  }
  return "?";
}

class Trace {
 public:
  // Runs one command line; returns what happened.
  std::string Run(const std::string& line) {
    const Words words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    output_.clear();
    if (words.empty() || words[0][0] == '#') return "";
    if (words[0] == "job") {
      MakeJob(words);
    } else {
      EXPECT_NE(core_, nullptr) << "a trace starts with `job`";
      if (core_ != nullptr) Dispatch(words);
    }
    return output_;
  }

 private:
  void MakeJob(const Words& words) {
    job::ResolvedJob plan = TestPlan(static_cast<int>(Number(Option(words, "workers", "1"))),
                                     static_cast<int>(Number(Option(words, "servers", "1"))),
                                     static_cast<int>(Number(Option(words, "shards", "1"))));
    plan.job.mutable_limits()->set_startup_timeout_seconds(
        static_cast<double>(Number(Option(words, "start", "60"))));
    plan.job.mutable_limits()->set_stall_timeout_seconds(
        static_cast<double>(Number(Option(words, "stall", "600"))));
    plan.job.mutable_limits()->set_report_interval_seconds(
        static_cast<double>(Number(Option(words, "every", "1000"))));
    plan.job.mutable_checkpoint()->set_every_seconds(
        static_cast<double>(Number(Option(words, "checkpoint_seconds", "0"))));
    plan.job.mutable_checkpoint()->set_every_steps(Number(Option(words, "checkpoint_steps", "0")));
    plan.job.mutable_checkpoint()->set_wait_for_room_seconds(
        static_cast<double>(Number(Option(words, "room", "0"))));
    plan.tables[0].store = Option(words, "store", "0") == "1";
    if (Option(words, "keep_best", "0") == "1") plan.job.mutable_train()->mutable_keep_best();
    scheduler::SchedulerCore::Options options;
    options.models.checkpoint_folder = Option(words, "checkpoints", "");
    options.models.step = Number(Option(words, "resume", "0"));
    options.models.resume = options.models.step > 0;
    core_ = std::make_unique<scheduler::SchedulerCore>(plan, options);
    Step(scheduler::SchedulerEvent());
  }

  void Dispatch(const Words& words) {
    const std::string& verb = words[0];
    if (verb == "register") return DoRegister(words);
    if (verb == "up") return DoUp();
    if (verb == "beats" || verb == "silent" || verb == "freeze" || verb == "says") {
      return SetBeats(words);
    }
    if (verb == "run") return DoRun(words);
    if (verb == "suspended") {
      now_ = absl::UnixEpoch() + absl::Seconds(Number(words[1]));
      return Step(scheduler::SchedulerEvent());
    }
    scheduler::SchedulerEvent event;
    const bool numbered = words.size() > 1 && absl::SimpleAtoi(words[1], &event.connection);
    if (!numbered) event.connection = 0;
    event.incarnation = event.connection;
    event.text = Rest(words, 1);
    event.why = absl::UnavailableError(Rest(words, 2));
    event.kind = KindOf(verb);
    if (verb == "move") {
      event.range = static_cast<uint32_t>(Number(words[1]));
      event.server = static_cast<int>(Number(words[2]));
      event.shard = static_cast<int>(Number(words[3]));
    }
    if (event.kind == scheduler::SchedulerEvent::Kind::kControl) event.control = Message(words);
    if (verb == "ack" && marks_.count(event.control.command_done().id()) > 0) {
      for (int shard = 0; shard < core_->plan().shards_per_server(); ++shard) {
        scheduler::SchedulerEvent report = event;
        SetReport({"report", "", absl::StrCat(event.connection - 1), absl::StrCat(shard), "0", "0"},
                  report.control.mutable_shard_report());
        Step(report);
      }
    }
    const bool ends = verb == "lost" || verb == "closed";
    if (ends) beating_.erase(event.connection);
    Step(event);
  }

  static scheduler::SchedulerEvent::Kind KindOf(const std::string& verb) {
    static const std::map<std::string, scheduler::SchedulerEvent::Kind> kinds = {
        {"lost", scheduler::SchedulerEvent::Kind::kLost},
        {"closed", scheduler::SchedulerEvent::Kind::kClosed},
        {"garbage", scheduler::SchedulerEvent::Kind::kGarbage},
        {"checkpoint", scheduler::SchedulerEvent::Kind::kCheckpoint},
        {"abort", scheduler::SchedulerEvent::Kind::kAbort},
        {"move", scheduler::SchedulerEvent::Kind::kMoveRange},
        {"end", scheduler::SchedulerEvent::Kind::kEnd}};
    const auto it = kinds.find(verb);
    return it == kinds.end() ? scheduler::SchedulerEvent::Kind::kControl : it->second;
  }

  Control Message(const Words& words) {
    Control control;
    const std::string& verb = words[0];
    if (verb == "ack") {
      CommandDone& done = *control.mutable_command_done();
      done.set_id(words[2] == "VIEW"   ? core_->view().number()
                  : words[2] == "LAST" ? last_command_
                                       : static_cast<uint64_t>(Number(words[2])));
      if (words.size() > 3) done.set_code(static_cast<int32_t>(Number(words[3])));
      done.set_message(Rest(words, 4));
      done.set_no_room(Option(words, "no_room", "0") == "1");
    } else if (verb == "beat") {
      SetBeat(static_cast<uint64_t>(Number(words[2])), static_cast<uint64_t>(Number(words[3])),
              ActivityOf(words, 4), control.mutable_beat());
    } else if (verb == "enter") {
      SetEntry(words, control.mutable_barrier_enter());
    } else if (verb == "progress") {
      SetProgress(words, control.mutable_progress());
    } else if (verb == "ask") {
      UserRequest::Kind kind = UserRequest::KIND_UNSPECIFIED;
      if (!UserRequest::Kind_Parse(words[2], &kind)) {
        kind = static_cast<UserRequest::Kind>(Number(words[2]));
      }
      control.mutable_user_request()->set_kind(kind);
    } else if (verb == "stops") {
      control.mutable_agent_note()->set_stops(static_cast<int32_t>(Number(words[2])));
    } else if (verb == "full") {
      control.mutable_memory_full()->set_reason(Rest(words, 2));
    } else if (verb == "report") {
      SetReport(words, control.mutable_shard_report());
    } else {
      SetComplaint(words, &control);
    }
    return control;
  }

  static void SetBeat(uint64_t progress, uint64_t step, const Activity& activity, Beat* beat) {
    beat->set_progress(progress);
    beat->set_step(step);
    beat->set_activity(activity.text);
    beat->set_waits_for(activity.waits_for.Pack());
  }

  static void SetEntry(const Words& words, BarrierEnter* entry) {
    Words numbers;
    std::copy_if(words.begin() + 3, words.end(), std::back_inserter(numbers),
                 [](const std::string& word) { return !absl::StrContains(word, '='); });
    entry->set_name(words[2]);
    if (!numbers.empty()) entry->set_value(Number(numbers[0]));
    if (numbers.size() > 1) entry->set_parties(static_cast<int32_t>(Number(numbers[1])));
    BarrierEnter::Action action = BarrierEnter::NONE;
    EXPECT_TRUE(BarrierEnter::Action_Parse(Option(words, "do", "NONE"), &action));
    entry->set_action(action);
    entry->set_path(Option(words, "path", ""));
    entry->set_may_fail(Option(words, "may_fail", "0") == "1");
    entry->set_failure(Option(words, "failure", ""));
    entry->set_no_room(Option(words, "no_room", "0") == "1");
    entry->set_part_bytes(Number(Option(words, "part", "0")));
    entry->set_free_bytes(Number(Option(words, "free", "0")));
  }

  static void SetProgress(const Words& words, Progress* progress) {
    progress->set_step(Number(words[2]));
    progress->set_samples(Number(words[3]));
    progress->set_loss_sum(static_cast<double>(Number(words[4])));
    progress->set_loss_samples(progress->samples());
    progress->set_done(std::count(words.begin(), words.end(), "done") > 0);
    progress->set_evaluation_json(Option(words, "eval", ""));
  }

  static void SetReport(const Words& words, ShardReport* report) {
    report->set_server(static_cast<uint32_t>(Number(words[2])));
    report->set_shard(static_cast<uint32_t>(Number(words[3])));
    TableReport& table = *report->add_table();
    table.set_table("emb");
    table.set_sent(static_cast<uint64_t>(Number(words[4])));
    table.set_applied(static_cast<uint64_t>(Number(words[5])));
  }

  static void SetComplaint(const Words& words, Control* control) {
    const Words parts = absl::StrSplit(Rest(words, 2), '|');
    if (words[0] == "failure" && words.size() > 2) {
      control->mutable_failure()->set_code(static_cast<int32_t>(Number(words[2])));
      control->mutable_failure()->set_reason(Rest(words, 3));
    } else if (words[0] == "blame" && parts.size() == 3) {
      const Words name = absl::StrSplit(parts[0], ' ');
      const auto index = static_cast<int>(Number(name.at(1)));
      const EndpointId culprit =
          name[0] == "worker" ? EndpointId::Worker(index) : EndpointId::Shard(index, 0);
      control->mutable_failure()->set_culprit(culprit.Pack());
      control->mutable_failure()->set_code(static_cast<int32_t>(Number(parts[1])));
      control->mutable_failure()->set_reason(parts[2]);
    } else {
      ADD_FAILURE() << "unknown command: " << Rest(words, 0);
    }
  }

  void DoRegister(const Words& words) {
    const uint64_t connection = static_cast<uint64_t>(Number(words[1]));
    const uint64_t incarnation = static_cast<uint64_t>(Number(Option(words, "inc", words[1])));
    const bool agent = words[2] == "agent";
    const auto role = agent                  ? Register::AGENT
                      : words[2] == "server" ? Register::SERVER
                                             : Register::WORKER;
    const int all = role == Register::SERVER ? core_->plan().shards_per_server() : agent ? 0 : 1;
    const int endpoints = static_cast<int>(Number(Option(words, "endpoints", absl::StrCat(all))));
    const uint64_t hash = static_cast<uint64_t>(
        Number(Option(words, "hash", absl::StrCat(agent ? 0 : kTestJobHash))));
    Step(FromNode(
        connection, incarnation,
        RegisterMessage(role, static_cast<int>(Number(words[3])), incarnation, endpoints, hash)));
  }

  void DoUp() {
    quiet_ = true;
    std::vector<uint64_t> all;
    for (int i = 0; i < core_->plan().servers(); ++i) {
      DoRegister({"register", absl::StrCat(1 + i), "server", absl::StrCat(i)});
      all.push_back(static_cast<uint64_t>(1 + i));
    }
    for (int i = 0; i < core_->plan().workers(); ++i) {
      DoRegister({"register", absl::StrCat(11 + i), "worker", absl::StrCat(i)});
      all.push_back(static_cast<uint64_t>(11 + i));
    }
    for (const uint64_t connection : all) {
      Dispatch({"ack", absl::StrCat(connection), "VIEW"});
      beating_[connection] = {"at work", {}};
    }
    quiet_ = false;
    output_ = "up\n";
  }

  void SetBeats(const Words& words) {
    if (words[0] == "beats") {
      for (size_t i = 1; i < words.size(); ++i) {
        beating_[static_cast<uint64_t>(Number(words[i]))] = {"at work", {}};
        frozen_.erase(static_cast<uint64_t>(Number(words[i])));
      }
      return;
    }
    const uint64_t connection = static_cast<uint64_t>(Number(words[1]));
    if (words[0] == "silent") {
      beating_.erase(connection);
    } else {
      beating_[connection] = ActivityOf(words, 2);
      if (words[0] == "freeze") frozen_.insert(connection);
    }
  }

  void DoRun(const Words& words) {
    double until = 0;
    EXPECT_TRUE(words.size() > 1 && absl::SimpleAtod(words[1], &until));
    const absl::Time end = absl::UnixEpoch() + absl::Seconds(until);
    while (now_ < end) {
      now_ += absl::Milliseconds(100);
      if (absl::ToUnixMillis(now_) % 1000 == 0) SendBeats();
      Step(scheduler::SchedulerEvent());
    }
  }

  void SendBeats() {
    hide_answers_ = true;
    for (const auto& [connection, activity] : beating_) {
      Control control;
      if (frozen_.count(connection) == 0) ++moving_count_[connection];
      SetBeat(moving_count_[connection], moving_count_[connection], activity,
              control.mutable_beat());
      Step(FromNode(connection, connection, std::move(control)));
    }
    hide_answers_ = false;
  }

  void Step(const scheduler::SchedulerEvent& event) {
    effects_.Clear();
    const bool was_done = core_->done();
    core_->Step(now_, event, &effects_);
    for (const auto& send : effects_.sends) {
      if (send.control->has_command()) last_command_ = send.control->command().id();
      if (send.control->command().kind() == Command::MARK) marks_.insert(last_command_);
      if (hide_answers_) continue;  // to the beats of `run`
      Print(absl::StrCat("-> ", send.connection, ": ", Describe(*send.control)));
    }
    for (const std::string& line : effects_.logs) Print(absl::StrCat("log ", line));
    for (const scheduler::SchedulerNotice& notice : effects_.notices)
      Print(absl::StrCat("** ", Describe(notice)));
    if (core_->done() && !was_done) Print(absl::StrCat("done: ", core_->result().ToString()));
  }

  void Print(const std::string& line) {
    if (quiet_) return;
    absl::StrAppendFormat(&output_, "%4.1f %s\n", absl::ToUnixMillis(now_) / 1000.0, line);
  }

  std::unique_ptr<scheduler::SchedulerCore> core_;
  scheduler::SchedulerEffects effects_;
  absl::Time now_ = absl::UnixEpoch();
  std::string output_;
  uint64_t last_command_ = 0;
  std::set<uint64_t> marks_;  // numbers of MARK commands
  bool quiet_ = false, hide_answers_ = false;
  std::map<uint64_t, Activity> beating_;  // by connection
  std::set<uint64_t> frozen_;
  std::map<uint64_t, uint64_t> moving_count_;  // progress and step of the beats
};

// What the file should say: its commands, with what they do now.
std::string Replay(const std::string& text) {
  Trace trace;
  std::string result, output;
  bool in_output = false;
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    if (line.empty()) {
      if (in_output) absl::StrAppend(&result, output);
      absl::StrAppend(&result, "\n");
      in_output = false;
      output.clear();
    } else if (line == "----") {
      in_output = true;
      absl::StrAppend(&result, "----\n");
    } else if (!in_output) {
      absl::StrAppend(&result, line, "\n");
      absl::StrAppend(&output, trace.Run(std::string(line)));
    }
  }
  if (in_output) absl::StrAppend(&result, output);
  return result;
}

TEST(SchedulerTraceTest, EveryFileSaysWhatTheSchedulerDoes) {
  const std::string folder = SourcePath("tests/testdata/scheduler");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".txt") continue;
    ++files;
    SCOPED_TRACE(entry.path().string());
    const std::string expected = ReadWholeFile(entry.path()).value();
    const std::string actual = Replay(expected);
    if (update_files && actual != expected) {
      std::ofstream(entry.path()) << actual;
    } else {
      EXPECT_EQ(actual, expected) << "if this is meant: run with --update and review the diff";
    }
  }
  EXPECT_GE(files, 12) << "in " << folder;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--update") tandem::update_files = true;
  }
  return RUN_ALL_TESTS();
}
