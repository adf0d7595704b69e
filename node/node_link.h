// A node's side of membership: registers with the scheduler until a view comes, keeps the
// connection, and turns the scheduler's silence or its Failure into a status.
//
// Thread safety: none; the thread of the transport it is given.
#ifndef TANDEM_NODE_NODE_LINK_H_
#define TANDEM_NODE_NODE_LINK_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/wire.pb.h"
#include "transport/transport.h"

namespace tandem::node {

class NodeLink {
 public:
  struct Options {
    std::string scheduler;  // its address
    Register registration;  // sent until a view comes, and again after a reconnect
    EndpointId self;        // the index may not be known yet
    absl::Duration retry = absl::Seconds(1);
    absl::Duration lost_after = absl::Seconds(8);    // without a connection: the scheduler is dead
    absl::Duration found_within = absl::Seconds(8);  // ... and until it has been heard once
    // Why nobody answers at an address (node/network_check.h); may be empty.
    std::function<std::string(const std::string& address)> why_no_answer;
  };

  NodeLink(transport::Transport& transport, const Options& options)
      : transport_(transport), options_(options) {}

  // INVALID_ARGUMENT if the address is malformed.
  absl::Status Start(absl::Time now);

  // Call for every event of the transport. Control messages of the scheduler are appended to
  // `inbox`, except Failure, which ends up in failure().
  void OnEvent(absl::Time now, const transport::TransportEvent& event, std::vector<Control>* inbox);
  void OnTick(absl::Time now);

  void Send(const Control& control);
  void SendFrame(Frame frame);  // an encoded control frame
  // Answers a View (its number) or a Command (its id).
  void SendDone(uint64_t id, const absl::Status& status);
  // Tells the scheduler that this node must end the job.
  // `culprit`: whom it is about, if that is not this node.
  void ReportFailure(const absl::Status& status, EndpointId culprit);
  // About this node itself, whose name the scheduler knows best before a view tells it.
  void ReportFailure(const absl::Status& status) {
    ReportFailure(status, have_name_ ? options_.self : EndpointId());
  }

  // Not OK once the job has failed: who and why, as the scheduler says, or "scheduler: ...".
  const absl::Status& failure() const { return failure_; }
  bool heard() const { return heard_; }  // the scheduler, ever
  void set_self(EndpointId self) {
    options_.self = self;
    have_name_ = true;
  }

 private:
  void Connect(absl::Time now);

  transport::Transport& transport_;
  Options options_;
  transport::PeerId peer_ = 0;
  bool have_name_ = false;  // a view said who this node is
  absl::Time next_register_ = absl::InfinitePast();
  // Since when there is no connection that the scheduler has been heard on; infinite: there is one.
  absl::Time unheard_since_ = absl::InfiniteFuture();
  bool heard_ = false;  // ever
  PauseWatch pauses_;
  absl::Status failure_;
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_NODE_LINK_H_
