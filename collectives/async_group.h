// A group that a program opens by itself: collectives, and messages with tags, that any thread
// starts and any thread waits for. The program introduces the members to each other: it gives the
// address of each to all, by whatever they have in common already.
//
// Two threads of its own do the work, so that whoever started it can compute meanwhile: one runs
// the collectives, in the order in which they were started; one serves a mailbox (mailbox.h), by
// which ranks also learn which of them is lost, so that all name the same one.
//
// Thread safety: all methods, from any thread. In a process that was forked from the group's, all
// that return a status fail at once with FAILED_PRECONDITION, and the rest do nothing.
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
#include "collectives/meeting/link_ports.h"

namespace tandem::collectives {

struct AsyncGroupOptions {
  int rank = 0;
  int ranks = 1;
  std::string host = "127.0.0.1";  // by which the others reach this one
  LinkChoice links = LinkChoice::kAuto;
  absl::Duration deadline = absl::Minutes(30);  // of each operation
  bool reproducible = false;                    // as in GroupOptions
};

class AsyncGroup {
 public:
  // Of an operation; each is waited for once. From 1.
  using Ticket = int64_t;

  // INVALID_ARGUMENT: no such group or host.
  static absl::StatusOr<std::unique_ptr<AsyncGroup>> Open(AsyncGroupOptions options);
  // Closes.
  ~AsyncGroup();
  AsyncGroup(const AsyncGroup&) = delete;
  AsyncGroup& operator=(const AsyncGroup&) = delete;

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  absl::Duration deadline() const { return options_.deadline; }
  // For the others: some hundred bytes. Theirs are what Connect wants.
  const std::string& address() const { return address_; }

  // Once, with the addresses by rank: joins the others in the background. INVALID_ARGUMENT: an
  // address that is none, or is of another rank or group.
  absl::Status Connect(absl::Span<const std::string> addresses, absl::Time deadline);
  // Whether all are joined. DEADLINE_EXCEEDED names the ranks that are missing.
  absl::StatusOr<bool> WaitConnected(absl::Time at_most);

  // Runs after those that were started before: `call` makes one call of the group (group.h), on
  // the thread of collectives. FAILED_PRECONDITION: not connected.
  absl::StatusOr<Ticket> Start(std::function<absl::StatusOr<Work>(Group&)> call);
  // elements: ElementsCode (types.h).
  absl::StatusOr<Ticket> Send(absl::Span<const uint8_t> data, int to, int64_t tag,
                              absl::Duration deadline, uint16_t elements = 0);
  // `from`: a rank, or Mailbox::kAnyRank.
  absl::StatusOr<Ticket> Receive(absl::Span<uint8_t> room, int from, int64_t tag,
                                 absl::Duration deadline, uint16_t elements = 0);
  // Whether the operation has ended; then `*from` (may be null) becomes who sent what it received,
  // and the ticket is forgotten. An error: how it failed. UNAVAILABLE names the rank that is lost
  // (errors.h). After an error of a collective, or a loss, the group is finished: every later one
  // has the same. A receive, or a send that nothing was taken of, fails alone by its deadline.
  absl::StatusOr<bool> Wait(Ticket ticket, absl::Time at_most, int* from = nullptr);
  // Nobody will wait for it.
  void Forget(Ticket ticket);

  // Says goodbye to the others and ends the threads. What has not ended is CANCELLED.
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
  const int process_;  // whose threads these are: a fork has none of them
  std::string address_;
  // Made by who opens the group, and kept in the table of its threads (OwnDescriptors in the .cc):
  // each is the same descriptor to all who wake by it.
  WakeFd wake_;  // of the mailbox's thread
  WakeFd news_;  // of the thread of collectives, through Watch
  std::thread thread_;

  absl::Mutex mutex_;
  CondVar changed_;  // for who waits for something to end
  CondVar called_;   // for the thread of collectives
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  bool connecting_ ABSL_GUARDED_BY(mutex_) = false;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_ ABSL_GUARDED_BY(mutex_) = false;  // the others know of failure_
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mutex_);
  absl::Time connect_by_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> left_ ABSL_GUARDED_BY(mutex_);  // by rank: has closed the group
  Ticket next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<Ticket, Outcome> outcomes_ ABSL_GUARDED_BY(mutex_);
  std::deque<Queued> queued_ ABSL_GUARDED_BY(mutex_);
  std::vector<Posted> posted_ ABSL_GUARDED_BY(mutex_);
  Watch* watch_ ABSL_GUARDED_BY(mutex_) = nullptr;  // while the thread is there
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ASYNC_GROUP_H_
