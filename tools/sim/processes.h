// The processes of a simulated world: the scheduler, the servers and the workers. A process has an
// incarnation while it lives, and its events end with it. A stopped process (SIGSTOP) gets its
// events late, when it continues.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_PROCESSES_H_
#define TANDEM_TOOLS_SIM_PROCESSES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "job/job.h"
#include "proto/endpoint.h"
#include "tools/sim/agenda.h"

namespace tandem::sim {

class Processes {
 public:
  // All processes are alive at first. Attempts of one run have different incarnations. References
  // must outlive this.
  Processes(const job::ResolvedJob& plan, int64_t attempt, Agenda& agenda);

  // The process that has this endpoint. Shard 0 stands for the process of a server. A server that
  // is a part of a worker belongs to the worker's process.
  EndpointId Of(EndpointId id) const;
  // The name of the process in messages of the scheduler.
  std::string NameOf(EndpointId id) const;
  bool alive(EndpointId id) const { return Get(id).alive; }
  // The incarnation of a server or worker. A server that is a part of a worker has its own.
  uint64_t IncarnationOf(EndpointId id) const;
  bool AnyStopped() const;

  // Runs `run` on the process of `id`, which must still have the same incarnation then.
  void At(EndpointId id, absl::Time at, std::function<void()> run);
  void After(EndpointId id, absl::Duration delay, std::function<void()> run) {
    At(id, agenda_.now() + delay, std::move(run));
  }
  // Repeats `run` every `period`; the first time is after one `period`.
  void Every(EndpointId id, absl::Duration period, std::function<void()> run);
  // The process of the current or last event.
  EndpointId running() const { return running_; }

  void Kill(EndpointId id) { Get(id).alive = false; }
  // A new process with an incarnation of its own takes the place of this one.
  void Replace(EndpointId id) {
    Get(id) = Process();
    Get(id).incarnation = next_++;
  }
  // A new process connects to the others now. Frames that were sent before are not for it.
  void Connect(EndpointId id) { Get(id).connected_at = agenda_.now(); }
  absl::Time connected_at(EndpointId id) const { return Get(id).connected_at; }
  void Stop(EndpointId id, absl::Duration length) {
    Get(id).stopped_until = agenda_.now() + length;
  }

 private:
  struct Process {
    bool alive = true;
    uint64_t incarnation = 0;
    absl::Time stopped_until = absl::InfinitePast();
    absl::Time connected_at = absl::InfinitePast();
  };

  size_t PlaceOf(EndpointId id) const;
  Process& Get(EndpointId id) { return processes_[PlaceOf(id)]; }
  const Process& Get(EndpointId id) const { return processes_[PlaceOf(id)]; }
  void Schedule(EndpointId id, uint64_t incarnation, absl::Time at, std::function<void()> run);

  const job::ResolvedJob& plan_;
  Agenda& agenda_;
  std::vector<Process> processes_;  // the scheduler, then servers, then workers
  uint64_t next_ = 0;               // incarnation of the next process
  EndpointId running_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_PROCESSES_H_
