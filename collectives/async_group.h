// AsyncGroup: a group that a program opens by itself, without a job. Any thread may start a
// collective or a message with a tag, and any thread may wait for it. The program introduces the
// members to each other: over any channel that the members already share, every member gets the
// addresses of all members.
//
// The group does its work in two threads of its own, so the caller can compute meanwhile. One
// thread runs the collectives, in the order in which they were started. The other thread serves a
// mailbox (mailbox.h). The mailbox also spreads the news of a lost rank, so that all ranks name the
// same one.
//
// Thread safety: every method may be called from any thread. In a process that was forked from the
// group's process, every method that returns a status fails at once with FAILED_PRECONDITION, and
// every other method does nothing.
#ifndef TANDEM_COLLECTIVES_ASYNC_GROUP_H_
#define TANDEM_COLLECTIVES_ASYNC_GROUP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/wake_fd.h"
#include "collectives/group.h"
#include "collectives/mailbox.h"
#include "collectives/rendezvous/link_ports.h"

namespace tandem::collectives {

struct AsyncGroupOptions {
  int rank = 0;
  int ranks = 1;
  std::string host = "127.0.0.1";  // address at which the other ranks reach this one
  LinkChoice links = LinkChoice::kAuto;
  absl::Duration deadline = absl::Minutes(30);  // for each operation
  bool reproducible = false;                    // as in GroupOptions
  GroupSecurity security = {};
};

class AsyncGroup {
 public:
  // Identifies one operation until somebody has waited for it. Tickets count from 1.
  using Ticket = int64_t;

  // INVALID_ARGUMENT: the rank, the number of ranks or the host is invalid.
  static absl::StatusOr<std::unique_ptr<AsyncGroup>> Open(AsyncGroupOptions options);
  // Closes the group (Close).
  ~AsyncGroup();
  AsyncGroup(const AsyncGroup&) = delete;
  AsyncGroup& operator=(const AsyncGroup&) = delete;

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  absl::Duration deadline() const { return options_.deadline; }
  // This member's address, some hundred bytes. Pass the addresses of all members to Connect.
  const std::string& address() const { return address_; }

  // Connects to the other members in the background. Call it once, with the addresses ordered by
  // rank. INVALID_ARGUMENT: an address is malformed, or belongs to another rank or to a group of
  // another size.
  absl::Status Connect(absl::Span<const std::string> addresses, absl::Time deadline);
  // Whether all members are connected. DEADLINE_EXCEEDED names the ranks that are missing.
  absl::StatusOr<bool> WaitConnected(absl::Time at_most);

  // Queues a collective behind those that were started before. `call` makes exactly one call of the
  // group (group.h); the thread of collectives runs it. FAILED_PRECONDITION: not connected yet.
  absl::StatusOr<Ticket> Start(std::function<absl::StatusOr<Work>(Group&)> call);
  // elements: ElementsCode (types.h).
  absl::StatusOr<Ticket> Send(absl::Span<const uint8_t> data, int to, int64_t tag,
                              absl::Duration deadline, uint16_t elements = 0);
  // `from`: a rank, or Mailbox::kAnyRank.
  absl::StatusOr<Ticket> Receive(absl::Span<uint8_t> room, int from, int64_t tag,
                                 absl::Duration deadline, uint16_t elements = 0);
  // Waits until the operation ends, at most until `at_most`. Returns false if the operation has not
  // ended yet, true if it has ended well; `*from` (may be null) is the rank whose message a receive
  // got. Once the operation has ended, well or with an error, its ticket is gone. Several threads
  // that wait for the operation all get its result.
  //
  // An error says how the operation failed. UNAVAILABLE names the lost rank (errors.h). An error of
  // a collective, or the loss of a rank, ends the whole group: every later operation returns the
  // same error. A receive that reaches its deadline fails alone, and so does a send of which no
  // byte has left.
  absl::StatusOr<bool> Wait(Ticket ticket, absl::Time at_most, int* from = nullptr);
  // Gives the ticket up: nobody will begin to wait for the operation. A thread that waits for it
  // already gets its result.
  void Forget(Ticket ticket);

  // Says goodbye to the other ranks and ends the threads. Unfinished operations become CANCELLED.
  void Close();

 private:
  struct Queued {
    Ticket ticket = 0;
    std::function<absl::StatusOr<Work>(Group&)> call;
  };
  struct Posted {
    Ticket ticket = 0;
    int peer = 0;
    bool send = false;
    int64_t tag = 0;
    uint16_t elements = 0;
    absl::Span<const uint8_t> data;
    absl::Span<uint8_t> room;
    absl::Time deadline;
  };
  struct Outcome {
    bool ended = false, forgotten = false;
    int from = -1;
    absl::Status status;
  };
  class Watch;
  struct Links;

  explicit AsyncGroup(AsyncGroupOptions options);
  absl::Status CheckProcess() const;
  void Run();
  absl::Status OpenPorts(Links* links);
  absl::Status ConnectTo(Links* links);
  absl::Status Interrupted();
  void RunCollectives(Group& group);
  void RunMail(Mailbox& mailbox);
  void SleepOn(const Mailbox& mailbox);
  void TakeNews(Mailbox& mailbox);
  void Tell(Mailbox& mailbox, const absl::Status& why);
  void SayGoodbye(Mailbox& mailbox);
  absl::Status Agree(const absl::Status& seen);
  void Fail(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Ticket> NewTicket() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Ticket> Post(Posted posted);
  void End(Ticket ticket, const absl::Status& status, int from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AsyncGroupOptions options_;
  const int process_;  // the process that has the threads; a forked child has none of them
  std::string address_;
  // The opening thread makes both descriptors. The group's threads keep them in their own
  // descriptor table (OwnDescriptors in the .cc). So each thread that uses them sees the same one.
  WakeFd wake_;  // wakes the mailbox's thread
  WakeFd news_;  // wakes the thread of collectives, through Watch
  std::thread thread_;

  absl::Mutex mutex_;
  CondVar changed_;  // for callers that wait until an operation ends
  CondVar called_;   // for the thread of collectives
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  bool connecting_ ABSL_GUARDED_BY(mutex_) = false;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_ ABSL_GUARDED_BY(mutex_) = false;  // the other ranks know of failure_
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mutex_);
  absl::Time connect_by_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> left_ ABSL_GUARDED_BY(mutex_);  // by rank: has the rank closed the group?
  Ticket next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<Ticket, std::shared_ptr<Outcome>> outcomes_ ABSL_GUARDED_BY(mutex_);
  std::deque<Queued> queued_ ABSL_GUARDED_BY(mutex_);
  std::vector<Posted> posted_ ABSL_GUARDED_BY(mutex_);
  Watch* watch_ ABSL_GUARDED_BY(mutex_) = nullptr;  // while the group's thread runs
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ASYNC_GROUP_H_
