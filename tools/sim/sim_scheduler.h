// The scheduler of a simulated world, and one connection to it from each process. Connections
// neither lose nor reorder messages, with one exception: entries into barriers and releases from
// them may be dropped, because their senders repeat them. Connections may break: messages in flight
// are lost, and the process registers again on a new connection. A process that
// hears of the job's failure leaves. This class also moves ranges at random, and starts new
// processes in the places of dead workers. A worker that was only silent is killed first. Its
// messages that are late arrive after those of the new process.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_SIM_SCHEDULER_H_
#define TANDEM_TOOLS_SIM_SIM_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/activity.h"
#include "scheduler/scheduler_core.h"
#include "tools/sim/sim_context.h"

namespace tandem::sim {

class SimScheduler {
 public:
  // A supervisor starts a new process in the place of this worker.
  using Replace = std::function<void(int rank)>;
  // A message has arrived at a server (`to` is its shard 0) or worker.
  using Arrive = std::function<void(EndpointId to, const Control& control)>;
  // `context` must outlive this.
  SimScheduler(SimContext& context, Arrive arrive, Replace replace);

  // Registers every process; starts clocks; starts accidents and requests for checkpoints.
  void Register();
  void StartClock();
  void StartAccidents();

  // `from`: shard 0 of a server, or a worker.
  void Send(EndpointId from, const Control& control);
  void Beat(EndpointId from, uint64_t progress, int64_t step, const Activity& activity);

  // The connections of a process that has ended: the scheduler gets what was sent before, and then
  // this event (kLost or kClosed).
  void Disconnect(EndpointId process, scheduler::SchedulerEvent::Kind kind);
  // The supervisor has seen that the process of this worker has ended, and tells the scheduler.
  void Exits(EndpointId worker);
  // The new process of this worker connects and registers.
  void Comes(EndpointId worker);
  // A connection that is half open: in one direction (`up`: to the scheduler) all messages sent
  // from now on arrive after `length`.
  void HoldBack(EndpointId process, bool up, absl::Duration length);

  const scheduler::SchedulerCore& core() const { return core_; }
  bool started() const { return started_; }    // START is on its way
  bool stopping() const { return stopping_; }  // the job has ended well, and STOP is on its way
  int moves() const { return moves_; }         // of ranges
  int breaks() const { return breaks_; }       // of connections
  int vacated() const { return vacated_; }     // places of workers that became vacant
  int revived() const { return revived_; }     // ... whose workers were dead, and not only silent
  int replaced() const { return replaced_; }   // ... whose new processes have trained
  // The server has answered the last REPORT. The job needs it no more if that was the end of it.
  bool HasReported(EndpointId server) const {
    const auto found = answered_.find(server);
    return found != answered_.end() && found->second == report_;
  }
  // A new process will be in the place of this process.
  bool IsVacant(EndpointId process) const { return vacant_.count(process) > 0; }

 private:
  struct Connection {
    uint64_t number = 0;  // new each time; connections_.size() of them belong to one time
    bool broken = false;
    bool away = false;  // broken, or new but without a message yet
    absl::Time last_up, last_down;
  };

  size_t NodeOf(EndpointId id) const;
  EndpointId EndpointOf(size_t node) const;
  void Disconnect(size_t node, scheduler::SchedulerEvent::Kind kind);
  void Register(EndpointId id);
  // The arrival time of a message that is sent now, after all earlier ones in this direction.
  absl::Time Arrival(absl::Time* last);
  void Step(const scheduler::SchedulerEvent& event);
  void StartAgain(const scheduler::SchedulerNotice& notice);
  void Deliver(size_t node, const Control& control);
  void BreakSomeConnection();
  void Break(EndpointId node, Connection* connection);
  void MoveSomeRange();
  void RequestCheckpoints();

  SimContext& context_;
  const Arrive arrive_;
  const Replace replace_;
  scheduler::SchedulerCore core_;
  scheduler::SchedulerEffects effects_;
  std::vector<Connection> connections_;  // servers from 0, then workers
  std::set<std::string> marks_;  // barriers before marks of checkpoints that workers have entered
  bool started_ = false, stopping_ = false;
  std::set<EndpointId> vacant_;
  uint64_t report_ = 0;                      // id of the last REPORT
  std::map<EndpointId, uint64_t> answered_;  // by process: id of its last answered command
  int moves_ = 0, breaks_ = 0, vacated_ = 0, revived_ = 0, replaced_ = 0;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_SIM_SCHEDULER_H_
