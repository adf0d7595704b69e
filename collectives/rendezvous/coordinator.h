// Coordinator: the server where the ranks of a collective group find each other (rendezvous). If
// the group has no scheduler, its ranks also agree here on why the group has failed. The
// coordinator runs in a launcher or in the process of rank 0; coordinator_core.h makes its
// decisions. In a job's scheduler it only introduces the workers to each other
// (CoordinatorClient::Meet), because the scheduler itself decides who is lost. No collective data
// passes through the coordinator.
//
// The folder rendezvous/ has the rendezvous of a group, the code that connects its links, and the
// agreement on failures.
//
// If the coordinator's process dies, every group fails, with that process's rank as the cause
// (UNAVAILABLE if the process has no rank). Run it where its end harms nothing more: in a launcher
// or a scheduler.
//
// Anything may connect. A peer that does not speak the protocol is refused and logged, and changes
// nothing for others. With keys only processes that have the token of the job can join. Without
// keys, listen only on a network that the job trusts.
//
// Thread safety: the coordinator has a thread of its own; all methods may be called from any
// thread.
#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_COORDINATOR_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_COORDINATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "transport/job_keys.h"

namespace tandem::collectives {

struct CoordinatorOptions {
  std::string address = "127.0.0.1:0";  // where to listen; port 0: a free one
  absl::Duration beat = absl::Seconds(1);
  int own_rank = -1;                                         // the rank of this process; -1: none
  std::shared_ptr<const transport::JobKeys> keys = nullptr;  // of the token; null: none
  // Called with one line for each event, from the coordinator's thread; may be empty.
  std::function<void(absl::string_view)> log;
};

class Coordinator {
 public:
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(CoordinatorOptions options = {});
  // Tells all members that the coordinator ends in order.
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

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_COORDINATOR_H_
