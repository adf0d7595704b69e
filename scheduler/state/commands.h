// Commands of the scheduler that not all nodes have answered yet.
//
// This class is pure state. The core sends the commands and acts on the last answer.
#ifndef TANDEM_SCHEDULER_STATE_COMMANDS_H_
#define TANDEM_SCHEDULER_STATE_COMMANDS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/state/membership.h"

namespace tandem::scheduler {

struct PendingCommand {
  Command command;
  std::set<int> servers, workers;        // nodes that have not answered
  std::set<std::pair<int, int>> shards;  // (server, shard) that have not reported; REPORT, MARK
  int shards_of_server = 0;
  std::string barrier;  // to release after the last answer; empty = none
  absl::Time since;
  absl::Time next_report;  // when to log again that it takes long

  bool answered() const { return servers.empty() && workers.empty() && shards.empty(); }
  // Servers whose answer or report is missing, ascending.
  std::set<int> MissingServers() const;
  // "server 1, worker 0".
  std::string MissingNames() const;
};

class Commands {
 public:
  // A command with a new number, above those of all views.
  Command New(Command::Kind kind, const std::string& path = "");

  // Remembers a command until all have answered: servers [0, servers) and workers [0, workers). A
  // REPORT and a MARK also need the reports of `shards` shards of each server.
  void Await(absl::Time now, const Command& command, int servers, int shards, int workers,
             const std::string& barrier = "");

  void OnDone(const Node& node, uint64_t id);
  void OnReport(int server, int shard);

  // Removes and returns the next command that all have answered.
  absl::optional<PendingCommand> TakeAnswered();

  // The scheduler was paused for this long and could not see answers. The pause does not count as
  // delay.
  void Forgive(absl::Duration pause) {
    for (auto& [id, command] : pending_) command.since += pause;
  }

  // The commands to repeat to a node that has reconnected: those that it has not answered, or whose
  // reports are missing. A pending MARK is always repeated, and needs all reports of a server
  // again: an earlier report may have come instead of the one that was lost.
  std::vector<Command> Repeat(const Node& node);
  // For example "CHECKPOINT /out/model"; "a command" if the id is unknown.
  std::string Describe(uint64_t id) const;
  // Whether a server has not answered a command. CHECKPOINT does not count, because servers answer
  // other commands while they write.
  bool ServersAreBusy() const;
  // True if the command was given and no answer is missing.
  bool IsAnswered(uint64_t id) const { return id < next_ && pending_.count(id) == 0; }

  // The pending commands, by number. OverdueWatch sets `next_report`.
  std::map<uint64_t, PendingCommand>& pending() { return pending_; }
  const std::map<uint64_t, PendingCommand>& pending() const { return pending_; }

 private:
  uint64_t next_ = (uint64_t{1} << 32) + 1;
  std::map<uint64_t, PendingCommand> pending_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_COMMANDS_H_
