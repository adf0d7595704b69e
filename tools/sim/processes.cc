#include "tools/sim/processes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/incarnation.h"

namespace tandem::sim {

Processes::Processes(const job::ResolvedJob& plan, int64_t attempt, Agenda& agenda)
    : plan_(plan), agenda_(agenda) {
  processes_.resize(static_cast<size_t>(1 + plan.server_processes() + plan.workers()));
  constexpr uint64_t kMaxProcesses = uint64_t{1} << 32;
  next_ = kMaxProcesses * static_cast<uint64_t>(attempt + 1);
  for (Process& process : processes_) process.incarnation = next_++;
}

EndpointId Processes::Of(EndpointId id) const {
  if (id.role != Role::kServer) return id;
  const int processes = plan_.server_processes();
  return id.index < processes ? EndpointId::Shard(id.index, 0)
                              : EndpointId::Worker(id.index - processes);
}

std::string Processes::NameOf(EndpointId id) const {
  const EndpointId process = Of(id);
  if (process.role == Role::kScheduler) return "scheduler";
  return absl::StrCat(process.role == Role::kServer ? "server " : "worker ", process.index);
}

size_t Processes::PlaceOf(EndpointId id) const {
  const EndpointId process = Of(id);
  if (process.role == Role::kScheduler) return 0;
  const int before = process.role == Role::kServer ? 1 : 1 + plan_.server_processes();
  return static_cast<size_t>(before + process.index);
}

uint64_t Processes::IncarnationOf(EndpointId id) const {
  const uint64_t own = Get(id).incarnation;
  return id.role == Role::kServer && Of(id).role == Role::kWorker ? ServerOfWorker(own) : own;
}

bool Processes::AnyStopped() const {
  for (const Process& process : processes_) {
    if (process.alive && process.stopped_until > agenda_.now()) return true;
  }
  return false;
}

void Processes::At(EndpointId id, absl::Time at, std::function<void()> run) {
  const Process& process = Get(id);
  if (process.alive) Schedule(Of(id), process.incarnation, at, std::move(run));
}

void Processes::Schedule(EndpointId id, uint64_t incarnation, absl::Time at,
                         std::function<void()> run) {
  agenda_.At(at, [this, id, incarnation, run = std::move(run)] {
    const Process& process = Get(id);
    if (!process.alive || process.incarnation != incarnation) return;
    if (process.stopped_until > agenda_.now()) {
      return Schedule(id, incarnation, process.stopped_until, run);
    }
    running_ = id;
    run();
  });
}

void Processes::Every(EndpointId id, absl::Duration period, std::function<void()> run) {
  After(id, period, [this, id, period, run = std::move(run)] {
    run();
    Every(id, period, run);
  });
}

}  // namespace tandem::sim
