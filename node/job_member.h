// A process's part in a job, whatever its role, from its registration to its end: it registers with
// the scheduler and keeps that connection, beats from a thread of its own, finds itself in views, and
// leaves so that the scheduler learns why.
//
//   JobMember member(*transport, options);
//   TANDEM_RETURN_IF_ERROR(member.Start());
//   for (;;) {
//     transport->Poll(timeout, &events);
//     for (const TransportEvent& event : events) member.OnEvent(now, event);
//     for (const Control& control : member.TakeInbox()) ...   // STOP: the orderly end
//     TANDEM_RETURN_IF_ERROR(member.OnTick(now));             // the job has failed, or a signal came
//   }
//
// Thread safety: none; the thread of the transport it is given. progress() is for any thread.
#ifndef TANDEM_NODE_JOB_MEMBER_H_
#define TANDEM_NODE_JOB_MEMBER_H_

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

class JobMember {
 public:
  struct Options {
    Register::Role role = Register::ROLE_UNSPECIFIED;
    int index = -1;  // wanted; -1 = any free one
    uint64_t incarnation = 0;
    uint64_t job_hash = 0;
    // As this node understands it; outlives the member. Says how long to look for the scheduler, and
    // what differs from the scheduler's. Null: a reader, which has none.
    const Job* job = nullptr;
    std::string scheduler;               // address
    std::vector<std::string> endpoints;  // where others reach it
    // Of the beats, called on their thread; null: it does not beat (a reader).
    MakeTransport make_transport;
    std::vector<const LoopProgress*>
        loops;  // that the beats speak of besides progress(); outlive it
    const std::atomic<bool>* stop = nullptr;  // set by a signal handler; may be null
  };

  // `transport` outlives the member.
  JobMember(transport::Transport& transport, Options options);

  // INVALID_ARGUMENT if the scheduler's address is malformed.
  absl::Status Start();

  // For every event of the transport.
  void OnEvent(absl::Time now, const transport::TransportEvent& event);

  // At least every 100 ms. Not OK when this process must end: the job has failed (who and why, as
  // the scheduler says), the scheduler is gone, or a signal came, of which the scheduler has been told;
  // once there is a view it has a second to end the job for all.
  absl::Status OnTick(absl::Time now);

  // What the scheduler has said since the last call, in order.
  std::vector<Control> TakeInbox();

  // Which server or worker of the view this process is; from now on it is called so. INTERNAL: none.
  absl::StatusOr<int> FindSelf(const View& view);

  // Runs the loop of this process and returns how it ended. Tells the scheduler of an exception. A status
  // that the loop returns has been reported with Fail, or comes from the scheduler.
  absl::Status RunLoop(const std::function<absl::Status()>& loop);

  // Tells the scheduler why this process must end the job, and whose fault it is if not its own; lets
  // that leave, and returns `why`.
  absl::Status Fail(absl::Status why, absl::optional<EndpointId> culprit = absl::nullopt);

  NodeLink& link() { return link_; }
  LoopProgress& progress() { return progress_; }  // the loop's that calls this object

 private:
  // Its output is a log. What a script or a notebook prints is its own.
  bool IsProgramOfOurs() const { return options_.stop != nullptr; }

  transport::Transport& transport_;
  const Options options_;
  EndpointId self_;
  bool in_view_ = false;
  NodeLink link_;
  LoopProgress progress_;
  std::vector<Control> inbox_;
  std::string differences_;  // from the scheduler's job, if it has another
  absl::Status stopped_;     // by a signal
  absl::Time give_up_ = absl::InfiniteFuture();
  absl::Time say_no_answer_ = absl::InfiniteFuture();
  std::unique_ptr<BeatThread> beats_;
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_JOB_MEMBER_H_
