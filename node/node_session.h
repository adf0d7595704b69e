// This folder, node/, has what every role does: registration, heartbeats, flags, logs, choice of
// the transport. NodeSession is a process's membership in a job, whatever its role. NodeSession
// registers with the scheduler and keeps that connection, sends heartbeats from a thread of its
// own, finds itself in views, and tells the scheduler why it leaves.
//
//   NodeSession member(*transport, options);
//   TANDEM_RETURN_IF_ERROR(member.Start());
//   for (;;) {
//     transport->Poll(timeout, &events);
//     for (const TransportEvent& event : events) member.OnEvent(now, event);
//     for (const Control& control : member.TakeInbox()) ...   // STOP: the orderly end
//     TANDEM_RETURN_IF_ERROR(member.OnTick(now));             // the job failed, or a signal came
//   }
//
// Thread safety: none; only the thread of its transport uses it. progress() is for any thread.
#ifndef TANDEM_NODE_NODE_SESSION_H_
#define TANDEM_NODE_NODE_SESSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/silence_times.h"
#include "node/beat_thread.h"
#include "node/node_link.h"
#include "proto/endpoint.h"
#include "proto/job.pb.h"
#include "proto/wire.pb.h"
#include "transport/transport.h"

namespace tandem::node {

// Makes an endpoint of this process.
using MakeTransport =
    std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>(EndpointId self)>;

class NodeSession {
 public:
  struct Options {
    Register::Role role = Register::ROLE_UNSPECIFIED;
    int index = -1;  // requested index; -1: any free one
    uint64_t incarnation = 0;
    uint64_t job_hash = 0;
    // The job as this node understands it; it must outlive the member. Its limits say how long to
    // look for the scheduler, and error messages name its differences from the scheduler's job.
    // Null: a reader, which has no job.
    const Job* job = nullptr;
    job::SilenceTimes silence;           // of the job
    std::string scheduler;               // its address
    std::vector<std::string> endpoints;  // where others reach this process
    // Makes the transport of the heartbeats, on their thread. Null: no heartbeats (a reader).
    MakeTransport make_transport;
    // Loops that heartbeats report besides progress(); they must outlive the member.
    std::vector<const LoopProgress*> loops;
    const std::atomic<bool>* stop = nullptr;  // set by a signal handler; may be null
  };

  // `transport` must outlive the member.
  NodeSession(transport::Transport& transport, Options options);

  // INVALID_ARGUMENT if the scheduler's address is malformed.
  absl::Status Start();

  // Call it for every event of the transport.
  void OnEvent(absl::Time now, const transport::TransportEvent& event);

  // Call it at least every 100 ms. Not OK when this process must end: the job has failed (the
  // scheduler says who failed, and why), the scheduler has gone, or a signal came. OnTick reports a
  // signal to the scheduler. If there is a view by then, the scheduler gets a second to end the job
  // for all nodes.
  absl::Status OnTick(absl::Time now);

  // The scheduler's messages since the last call, in order.
  std::vector<Control> TakeInbox();

  // Returns the index of this process among the servers or workers of the view; from now on
  // messages name it so. INTERNAL: the view does not contain it.
  absl::StatusOr<int> FindSelf(const View& view);

  // Runs the loop of this process and returns how it ended. An exception is reported to the
  // scheduler. A status that the loop returns is not: the loop has reported it with Fail, or it
  // comes from the scheduler.
  absl::Status RunLoop(const std::function<absl::Status()>& loop);

  // Tells the scheduler why this process must end the job, and which node failed if it is another
  // one. Waits until the report has left, and returns `why`.
  absl::Status Fail(absl::Status why, absl::optional<EndpointId> culprit = absl::nullopt);

  NodeLink& link() { return link_; }
  LoopProgress& progress() { return progress_; }  // progress of the loop that calls this object

 private:
  // True for Tandem's own programs, whose standard error is a log. In other programs, such as
  // scripts and notebooks, the output belongs to the user, and nothing is logged.
  bool IsProgramOfOurs() const { return options_.stop != nullptr; }

  transport::Transport& transport_;
  const Options options_;
  EndpointId self_;
  bool in_view_ = false;
  NodeLink link_;
  LoopProgress progress_;
  std::vector<Control> inbox_;
  std::string differences_;  // from the scheduler's job, if that is another one
  absl::Status stopped_;     // set by a signal
  absl::Time give_up_ = absl::InfiniteFuture();
  absl::Time say_no_answer_ = absl::InfiniteFuture();
  std::unique_ptr<BeatThread> beats_;
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_NODE_SESSION_H_
