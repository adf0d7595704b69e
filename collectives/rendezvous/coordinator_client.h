// CoordinatorClient: one rank's connection to the coordinator. The client does the rendezvous with
// the other ranks, sends heartbeats (from a thread of its own, whatever the caller does), and
// receives the verdict when the group fails.
//
//   TANDEM_ASSIGN_OR_RETURN(auto client, CoordinatorClient::Join(options, deadline));
//   TANDEM_ASSIGN_OR_RETURN(auto links, ConnectLinks(client->membership(), ports, {}, deadline));
//   Group group(client->membership().rank, std::move(links), {.watch = client.get()});
//
// If the coordinator is lost, this loss is the verdict. If the coordinator ends in order, groups
// continue without it, and the first failure that this rank sees is then its verdict.
//
// Thread safety: all methods may be called from any thread.
#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_COORDINATOR_CLIENT_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_COORDINATOR_CLIENT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/wake_fd.h"
#include "collectives/group.h"
#include "collectives/rendezvous/message_stream.h"
#include "collectives/rendezvous/rendezvous.h"
#include "proto/collectives.pb.h"

namespace tandem::collectives {

struct JoinOptions {
  std::string coordinator;  // host:port
  std::string group = "default";
  int rank = -1;  // -1: any free rank
  int ranks = 1;
  GroupMember member;
  std::shared_ptr<const transport::JobKeys> keys = nullptr;  // of the token; null: none
  // Called from time to time during the rendezvous; an error ends the wait. May be empty. The
  // function must not call the client.
  std::function<absl::Status()> interrupted;
};

class CoordinatorClient final : public GroupWatch {
 public:
  // Does the rendezvous: returns when all ranks have come. DEADLINE_EXCEEDED names the ranks that
  // are missing at the deadline. UNAVAILABLE: there is no coordinator, or a rank that had come is
  // lost (errors.h). FAILED_PRECONDITION: refused; the text says why.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Join(const JoinOptions& options,
                                                                 absl::Time deadline);
  // Only exchanges addresses: does the rendezvous as Join does, and leaves. The coordinator does
  // not watch the group afterwards. For groups with another judge of failures, such as the
  // scheduler.
  static absl::StatusOr<GroupMembership> Meet(const JoinOptions& options, absl::Time deadline);
  // Says goodbye. A process that ends without a goodbye counts as killed.
  ~CoordinatorClient() override;
  CoordinatorClient(const CoordinatorClient&) = delete;
  CoordinatorClient& operator=(const CoordinatorClient&) = delete;

  GroupMembership membership() const;

  // OK until the group has failed; costs one atomic load.
  absl::Status Verdict() override;
  int fd() const override { return verdict_fd_.fd(); }
  // Reports the failure that this rank has seen and waits for the verdict, as long as a verdict can
  // take.
  absl::Status Agree(const absl::Status& seen) override;

  // Reports that the link to `rank` failed, or that `rank` did not come in time.
  void ReportLinkFailure(int rank, absl::string_view why);
  // Reports that this rank waits for `rank`. Waiting is no accusation; but if `rank` has left in
  // order, the coordinator decides on a verdict.
  void Want(int rank);
  // Reports that this rank gives up, and that no other rank is at fault.
  void ReportAbort(const absl::Status& why);
  // The verdict, or OK if there is none by the deadline.
  absl::Status WaitVerdict(absl::Time deadline);

  // Says that this rank is no longer needed. Later calls do nothing.
  void Goodbye();

 private:
  explicit CoordinatorClient(MessageStream stream);
  absl::Status JoinBy(const JoinOptions& options, absl::Time deadline);
  // Waits until the coordinator has answered a Join.
  absl::Status WaitAnswer(absl::Time deadline,
                          const std::function<absl::Status()>& interrupted = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Run();
  bool Turn(absl::Time now);  // false: the thread must end
  bool TakeTurn(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Handle(const rendezvous::FromCoordinator& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeWelcome(const rendezvous::Welcome& welcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeVerdict(const rendezvous::Verdict& verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetVerdict(absl::Status verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LoseCoordinator(absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(const rendezvous::ToCoordinator& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  WakeFd wake_;        // for the thread: something to send, or the end
  WakeFd verdict_fd_;  // for the caller
  std::atomic<bool> has_verdict_{false};

  mutable absl::Mutex mu_;
  CondVar changed_;  // answered, lost the coordinator, or has a verdict
  MessageStream stream_ ABSL_GUARDED_BY(mu_);
  GroupMembership membership_ ABSL_GUARDED_BY(mu_);
  absl::Duration beat_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  int coordinator_rank_ ABSL_GUARDED_BY(mu_) = -1;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status answer_ ABSL_GUARDED_BY(mu_);
  absl::Status verdict_ ABSL_GUARDED_BY(mu_);
  bool connected_ ABSL_GUARDED_BY(mu_) = true;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time heard_ ABSL_GUARDED_BY(mu_);
  absl::Time last_turn_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_COORDINATOR_CLIENT_H_
