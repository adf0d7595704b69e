// Commands that the scheduler has given and not all nodes have answered.
//
// Pure: what is sent, and what follows the last answer, is the core's business.
#ifndef TANDEM_SCHEDULER_COMMANDS_H_
#define TANDEM_SCHEDULER_COMMANDS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/membership.h"

namespace tandem::scheduler {

struct PendingCommand {
  Command command;
  std::set<int> servers, workers;        // that have not answered
  std::set<std::pair<int, int>> shards;  // REPORT: (server, shard) that have not reported
  std::string barrier;                   // released afterwards; empty = none
  absl::Time since;
  absl::Time next_report;  // when to say that it takes long

  bool answered() const { return servers.empty() && workers.empty() && shards.empty(); }
  // Servers that owe an answer or a report, ascending.
  std::set<int> MissingServers() const;
  // "server 1, worker 0".
  std::string MissingNames() const;
};

class Commands {
 public:
  // A command with a number of its own, above those of all views.
  Command New(Command::Kind kind, const std::string& path = "");

  // Remembers a command until it is answered: by all `servers` (a REPORT: and their `shards` each)
  // and all `workers`, counted from 0.
  void Await(absl::Time now, const Command& command, int servers, int shards, int workers,
             const std::string& barrier = "");

  void OnDone(const Node& node, uint64_t id);
  void OnReport(int server, int shard);

  // The next command that all have answered; it is forgotten.
  absl::optional<PendingCommand> TakeAnswered();

  // Nobody could answer for this long: it counts as no delay.
  void Forgive(absl::Duration pause) {
    for (auto& [id, command] : pending_) command.since += pause;
  }

  // What a node that has been away must be told again.
  std::vector<Command> MissingOf(const Node& node) const;
  // "SAVE /out/model"; "a command" if it is not known.
  std::string Describe(uint64_t id) const;
  bool ServersAreBusy() const;
  // It was given out, and nobody's answer is waited for.
  bool IsAnswered(uint64_t id) const { return id < next_ && pending_.count(id) == 0; }

  // By number; the watch keeps `next_report`.
  std::map<uint64_t, PendingCommand>& pending() { return pending_; }
  const std::map<uint64_t, PendingCommand>& pending() const { return pending_; }

 private:
  uint64_t next_ = (uint64_t{1} << 32) + 1;
  std::map<uint64_t, PendingCommand> pending_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_COMMANDS_H_
