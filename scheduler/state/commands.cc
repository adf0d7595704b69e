#include "scheduler/state/commands.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::scheduler {
namespace {

bool WantsReports(const Command& command) {
  return command.kind() == Command::REPORT || command.kind() == Command::MARK;
}

void AwaitServer(int server, PendingCommand* pending) {
  pending->servers.insert(server);
  for (int shard = 0; WantsReports(pending->command) && shard < pending->shards_of_server;
       ++shard) {
    pending->shards.insert({server, shard});
  }
}

}  // namespace

std::set<int> PendingCommand::MissingServers() const {
  std::set<int> missing = servers;
  for (const auto& [server, shard] : shards) missing.insert(server);
  return missing;
}

std::string PendingCommand::MissingNames() const {
  std::vector<std::string> names;
  for (const int server : MissingServers()) names.push_back(absl::StrCat("server ", server));
  for (const int rank : workers) names.push_back(absl::StrCat("worker ", rank));
  return absl::StrJoin(names, ", ");
}

Command Commands::New(Command::Kind kind, const std::string& path) {
  Command command;
  command.set_kind(kind);
  command.set_id(next_++);
  command.set_path(path);
  return command;
}

void Commands::Await(absl::Time now, const Command& command, int servers, int shards, int workers,
                     const std::string& barrier) {
  PendingCommand& pending = pending_[command.id()];
  pending.command = command;
  pending.barrier = barrier;
  pending.since = now;
  pending.shards_of_server = shards;
  for (int server = 0; server < servers; ++server) AwaitServer(server, &pending);
  for (int rank = 0; rank < workers; ++rank) pending.workers.insert(rank);
}

void Commands::OnDone(const Node& node, uint64_t id) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  (node.role == Role::kServer ? it->second.servers : it->second.workers).erase(node.index);
}

void Commands::OnReport(int server, int shard) {
  for (auto& [id, pending] : pending_) pending.shards.erase({server, shard});
}

absl::optional<PendingCommand> Commands::TakeAnswered() {
  const auto it = std::find_if(pending_.begin(), pending_.end(),
                               [](const auto& command) { return command.second.answered(); });
  if (it == pending_.end()) return absl::nullopt;
  PendingCommand done = std::move(it->second);
  pending_.erase(it);
  return done;
}

std::vector<Command> Commands::Repeat(const Node& node) {
  const bool server = node.role == Role::kServer;
  std::vector<Command> repeated;
  for (auto& [id, pending] : pending_) {
    if (server && pending.command.kind() == Command::MARK) AwaitServer(node.index, &pending);
    const std::set<int> who = server ? pending.MissingServers() : pending.workers;
    if (who.count(node.index) > 0) repeated.push_back(pending.command);
  }
  return repeated;
}

std::string Commands::Describe(uint64_t id) const {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return "a command";
  const Command& command = it->second.command;
  return absl::StrCat(Command::Kind_Name(command.kind()), " ", command.path());
}

bool Commands::ServersAreBusy() const {
  return std::any_of(pending_.begin(), pending_.end(), [](const auto& command) {
    return command.second.command.kind() != Command::CHECKPOINT &&
           !command.second.MissingServers().empty();
  });
}

}  // namespace tandem::scheduler
