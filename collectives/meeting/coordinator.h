// The one place where the ranks of a collective group meet, and where those of a group that stands
// alone agree on why it has failed. It runs in a launcher, or in the process of rank 0; what it
// decides is in coordinator_core.h. In a job's scheduler it only introduces the workers to each other
// (CoordinatorClient::Meet): who is lost is the scheduler's own word. It takes no part in
// collectives: no data passes through it.
//
// If the process it is in dies, every group fails with that process's rank as the cause (or, if it
// is no rank, UNAVAILABLE). Put it where nothing is lost with it: a launcher, a scheduler.
//
// Anything may connect: what does not speak the protocol is refused, logged, and changes nothing
// for others. It does not prove who it is; do not listen beyond the network that the job trusts.
//
// Thread safety: it has a thread of its own; all methods may be called from any thread.
#ifndef TANDEM_COLLECTIVES_MEETING_COORDINATOR_H_
#define TANDEM_COLLECTIVES_MEETING_COORDINATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::collectives {

struct CoordinatorOptions {
  std::string address = "127.0.0.1:0";  // where to listen; port 0: a free one
  absl::Duration beat = absl::Seconds(1);
  int own_rank = -1;  // the rank whose process this is; -1: none
  // One line an event, from the coordinator's thread; may be empty.
  std::function<void(absl::string_view)> log;
};

class Coordinator {
 public:
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(CoordinatorOptions options = {});
  // Tells everybody that it ends in order.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  const std::string& address() const { return address_; }

 private:
  class Server;
  explicit Coordinator(std::unique_ptr<Server> server);

  std::unique_ptr<Server> server_;
  std::string address_;
  std::thread thread_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MEETING_COORDINATOR_H_
