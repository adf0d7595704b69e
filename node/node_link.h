// NodeLink is a node's connection to the scheduler. NodeLink registers with the scheduler until a
// view comes, keeps the connection, and turns the scheduler's silence or its Failure message into a
// status.
//
// Thread safety: none; only the thread of its transport uses it.
#ifndef TANDEM_NODE_NODE_LINK_H_
#define TANDEM_NODE_NODE_LINK_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "proto/wire.pb.h"
#include "transport/transport.h"

namespace tandem::node {

class NodeLink {
 public:
  struct Options {
    std::string scheduler;  // its address
    Register registration;  // sent until a view comes, and again after a reconnect
    EndpointId self;        // its index may not be known yet
    absl::Duration retry = absl::Seconds(1);
    // without a connection; then the scheduler is dead
    absl::Duration lost_after = absl::Seconds(8);
    absl::Duration found_within = absl::Seconds(8);  // the same before its first message
    // Explains why nothing answers at an address (node/network_check.h); may be empty.
    std::function<std::string(const std::string& address)> why_no_answer;
    // Whether a program with ZeroMQ answers there (AnswersAsZmq). If not, a proxy may have closed
    // the connections, because its scheduler does not run yet. Empty: always.
    std::function<bool(const std::string& address)> answers_as_zmq;
  };

  NodeLink(transport::Transport& transport, const Options& options)
      : transport_(transport), options_(options) {}

  // INVALID_ARGUMENT if the address is malformed.
  absl::Status Start(absl::Time now);

  // Call it for every event of the transport. Control messages of the scheduler are appended to
  // `inbox`, except Failure, which sets failure().
  void OnEvent(absl::Time now, const transport::TransportEvent& event, std::vector<Control>* inbox);
  void OnTick(absl::Time now);

  // Does not send a message above kMaxControlBytes. Instead the node reports a failure that names
  // the message.
  void Send(const Control& control);
  void SendFrame(Frame frame);  // an encoded control frame
  // Answers a View (id: its number) or a Command (id: its id).
  void SendDone(uint64_t id, const absl::Status& status);
  // Tells the scheduler that this node must end the job. `culprit`: the node that failed, if it is
  // another one.
  void ReportFailure(const absl::Status& status, EndpointId culprit);
  // Reports a failure of this node itself. `step`: at which a worker has failed. Before a view has
  // told this node its name, the scheduler knows the name better.
  void ReportOwnFailure(const absl::Status& status, absl::optional<int64_t> step);

  // Not OK when the job has failed: who failed and why, as the scheduler says, or "scheduler: ...".
  const absl::Status& failure() const { return failure_; }
  // The job has failed and, as the scheduler says, no new attempt follows.
  bool last_attempt() const { return last_attempt_; }
  bool heard() const { return heard_; }  // true after the scheduler's first message
  // How long there has been no connection on which the scheduler has spoken; below 0: there is one.
  absl::Duration Unheard(absl::Time now) const { return now - unheard_since_; }
  void set_self(EndpointId self) {
    options_.self = self;
    have_name_ = true;
  }

 private:
  void Connect(absl::Time now);
  void SendFailure(const absl::Status& status, EndpointId culprit, absl::optional<int64_t> step);
  bool IsOurScheduler(uint64_t incarnation);
  void OnGarbage(const absl::Status& why);

  transport::Transport& transport_;
  Options options_;
  transport::PeerId peer_ = 0;
  bool have_name_ = false;  // a view told this node its name
  absl::Time next_register_ = absl::InfinitePast();
  // Begin of the time without a connection on which the scheduler has spoken. Infinite: there is
  // such a connection.
  absl::Time unheard_since_ = absl::InfiniteFuture();
  bool heard_ = false;  // at least once
  bool last_attempt_ = false;
  PauseWatch pauses_;
  absl::Status failure_;
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_NODE_LINK_H_
