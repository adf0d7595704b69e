// One rank's tie to the coordinator: meets the other ranks, shows that it lives (from a thread of
// its own, whatever the caller does), and learns the verdict when the group fails.
//
//   TANDEM_ASSIGN_OR_RETURN(auto client, CoordinatorClient::Join(options, deadline));
//   TANDEM_ASSIGN_OR_RETURN(auto links, ConnectLinks(client->membership(), ports, {}, deadline));
//   Group group(client->membership().rank, std::move(links), {.watch = client.get()});
//
// If the coordinator itself goes, that is the verdict; if it ends in order, groups go on without
// it, and what this rank sees is then the verdict on this rank.
//
// Thread safety: all methods, from any thread; Shrink one at a time.
#ifndef TANDEM_COLLECTIVES_MEETING_COORDINATOR_CLIENT_H_
#define TANDEM_COLLECTIVES_MEETING_COORDINATOR_CLIENT_H_

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
#include "collectives/meeting/message_stream.h"
#include "collectives/meeting/rendezvous.h"
#include "proto/collectives.pb.h"

namespace tandem::collectives {

struct JoinOptions {
  std::string coordinator;  // host:port
  std::string group = "default";
  int rank = -1;  // -1: any
  int ranks = 1;
  GroupMember member;
  // Asked now and then while others are waited for; an error ends the wait. May be empty. It must
  // not call back into the client.
  std::function<absl::Status()> interrupted;
};

class CoordinatorClient final : public GroupWatch {
 public:
  // Returns when all ranks have come. By the deadline: DEADLINE_EXCEEDED names the ranks that are
  // missing. UNAVAILABLE: no coordinator there, or (errors.h) a rank that had come is lost.
  // FAILED_PRECONDITION: refused, and why.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Join(const JoinOptions& options,
                                                                 absl::Time deadline);
  // Only exchanges addresses: meets the others as above, and leaves. What becomes of them is not the
  // coordinator's business then: for groups of which somebody else says who is lost.
  static absl::StatusOr<GroupMembership> Meet(const JoinOptions& options, absl::Time deadline);
  // Says goodbye. A process that ends without it is taken for killed.
  ~CoordinatorClient() override;
  CoordinatorClient(const CoordinatorClient&) = delete;
  CoordinatorClient& operator=(const CoordinatorClient&) = delete;

  GroupMembership membership() const;  // changed by Shrink only

  // OK until the group has failed; one load.
  absl::Status Verdict() override;
  int fd() const override { return verdict_fd_.fd(); }
  // Reports what this rank has seen and waits for the verdict, as long as one can take.
  absl::Status Agree(const absl::Status& seen) override;

  // The link to `rank` failed, or it was waited for in vain.
  void ReportLinkFailure(int rank, absl::string_view why);
  // This rank waits for `rank`. No reproach; but if that has left in order there will be a verdict.
  void Want(int rank);
  // This rank gives up, and nobody else is at fault.
  void ReportAbort(const absl::Status& why);
  // The verdict, or OK if there is none by the deadline.
  absl::Status WaitVerdict(absl::Time deadline);

  // After a verdict: the group of those that live and ask for it too. By the deadline at the latest
  // with those that did by then. Clears the verdict.
  absl::StatusOr<GroupMembership> Shrink(absl::Time deadline);

  // Nothing more is wanted of this rank. Later calls do nothing.
  void Goodbye();

 private:
  explicit CoordinatorClient(MessageStream stream);
  absl::Status JoinBy(const JoinOptions& options, absl::Time deadline);
  // Waits until the coordinator has answered a Join or a Shrink.
  absl::Status WaitAnswer(absl::Time deadline,
                          const std::function<absl::Status()>& interrupted = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Run();
  bool Turn(absl::Time now);  // false: over
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
  CondVar changed_;  // answered, lost its coordinator, or has a verdict
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

#endif  // TANDEM_COLLECTIVES_MEETING_COORDINATOR_CLIENT_H_
