// Messages with tags between the ranks of a group, beside its collectives: over links of their own,
// so that neither waits for the other.
//
// A receive gets the messages from its rank (or from any) that carry its tag, in the order in which
// they were sent; receives of one rank and tag are served in the order in which they were posted.
// What arrives before it is wanted is kept, up to a limit; then the link rests until its first
// message is wanted.
//
// The links also tell how the others are: a rank that says goodbye has left in order, one whose link
// ends without it is lost, and a rank that has failed says why. Each rank hears of a lost one at
// first hand, so that all name the same one, whomever they wait for.
//
// Thread safety: none, and no threads or clock: its shell (async_group.h) calls Progress.
#ifndef TANDEM_COLLECTIVES_MAILBOX_H_
#define TANDEM_COLLECTIVES_MAILBOX_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/links/link.h"

namespace tandem::collectives {

class Mailbox {
 public:
  static constexpr int kAnyRank = -1;

  struct Options {
    size_t most_kept_bytes = size_t{1} << 30;  // of messages that nobody wants yet
  };

  // links[r] leads to rank r; null at `rank`.
  Mailbox(int rank, std::vector<std::unique_ptr<Link>> links, Options options);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // `ticket` comes back from TakeEnded. The memory is the mailbox's until then. Requires that `to`
  // is another rank, and `from` is one or kAnyRank. elements: ElementsCode.
  void Send(int64_t ticket, int to, int64_t tag, absl::Span<const uint8_t> data,
            absl::Time deadline, uint16_t elements = 0);
  // INVALID_ARGUMENT: a message of another size, or of other elements, came.
  void Receive(int64_t ticket, int from, int64_t tag, absl::Span<uint8_t> room, absl::Time deadline,
               uint16_t elements = 0);

  // Does what can be done now. True if anything has moved.
  bool Progress(absl::Time now);

  // How a send or receive ended. UNAVAILABLE names the rank that is gone (errors.h),
  // DEADLINE_EXCEEDED the one that was waited for.
  struct Ended {
    int64_t ticket;
    int from;  // who sent what was received; -1 for a send, or an error
    absl::Status status;
  };
  std::vector<Ended> TakeEnded() { return std::exchange(ended_, {}); }

  // OK, or why the group has failed: a rank is lost, or has told that it gave up.
  const absl::Status& failure() const { return failure_; }
  // Whether that rank has said goodbye.
  bool HasLeft(int rank) const;
  // Tells all others of it, behind what is being sent, and fails everything here.
  void Fail(const absl::Status& why);
  // Says goodbye to all others; nothing is sent after it.
  void Leave();
  // Whether everything that was to be sent has been taken by its link.
  bool AllSent() const;

  // When something here is late; InfiniteFuture if nothing can be.
  absl::Time NextDeadline() const;
  // Whether the link to rank r is one to sleep on: it lives, and may give or take something.
  Link* Awaited(int r) const;

 private:
  struct Header;
  struct Message;
  struct Outgoing;
  struct Wanted;
  struct Peer;

  bool Flush(int r);
  bool Take(int r);
  bool Begin(int r, const Header& header);
  void Finish(int r);
  void Told(int r, const Header& header, absl::string_view text);
  bool Alone() const;
  void Lose(int r, const absl::Status& why);
  void FailAll(const absl::Status& why);
  void CheckDeadlines(absl::Time now);
  void Queue(int r, const Header& header, absl::string_view text);
  void End(int64_t ticket, int from, absl::Status status);
  absl::Status Fits(const Wanted& wanted, int from, size_t bytes, uint16_t elements) const;
  void Deliver(const Wanted& wanted, const Message& message);

  const int rank_;
  const Options options_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Peer> peers_;
  std::list<Wanted> wanted_;  // posted and not served, in their order
  std::list<Message> kept_;   // arrived, or arriving, and not wanted, in their order
  size_t kept_bytes_ = 0;
  std::vector<Ended> ended_;
  absl::Status failure_;
  bool leaving_ = false;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MAILBOX_H_
