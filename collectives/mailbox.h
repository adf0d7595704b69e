// Mailbox: messages with tags between the ranks of a group. Messages travel over links of their
// own, so neither messages nor collectives wait for the other kind.
//
// A receive takes messages of its rank (or of any rank) with its tag, in the order in which they
// were sent. Receives of the same rank and tag are served in the order in which they were posted.
// Messages that arrive before a receive wants them are kept, up to a limit. At the limit the
// mailbox stops reading that link until a receive wants its first message.
//
// The links also show the state of the other ranks. A rank that says goodbye has left in order. A
// rank whose link ends without a goodbye is lost. A rank that has failed says why. Each rank learns
// of a lost rank from its own link to that rank. So all ranks name the same one, whichever rank
// they wait for.
//
// Thread safety: none. The mailbox has no threads and no clock: its shell (async_group.h) calls
// Progress.
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
    size_t max_kept_bytes = size_t{1} << 30;  // limit on messages that no receive wants yet
  };

  // links[r] leads to rank r. links[rank] is null.
  Mailbox(int rank, std::vector<std::unique_ptr<Link>> links, Options options);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Sends `data`. `ticket` comes back from TakeEnded, and the memory must not change until then.
  // elements: ElementsCode. Requires that `to` is another rank.
  void Send(int64_t ticket, int to, int64_t tag, absl::Span<const uint8_t> data,
            absl::Time deadline, uint16_t elements = 0);
  // Receives into `room`, under the same conditions. Requires that `from` is another rank or
  // kAnyRank. INVALID_ARGUMENT: the message has another size or other elements.
  void Receive(int64_t ticket, int from, int64_t tag, absl::Span<uint8_t> room, absl::Time deadline,
               uint16_t elements = 0);

  // Does the work that is possible now. True if anything has moved.
  bool Progress(absl::Time now);

  // The result of a send or a receive. UNAVAILABLE names the rank that is gone (errors.h);
  // DEADLINE_EXCEEDED names the rank that did not come in time.
  struct Ended {
    int64_t ticket;
    int from;  // the sender of a received message; -1: a send, or an error
    absl::Status status;
  };
  std::vector<Ended> TakeEnded() { return std::exchange(ended_, {}); }

  // OK, or why the group has failed: a rank is lost, or a rank said that it has failed.
  const absl::Status& failure() const { return failure_; }
  // Whether the rank has said goodbye.
  bool HasLeft(int rank) const;
  // Tells all other ranks of the failure and fails every operation here. Each rank reads it behind
  // the message that is leaving towards it.
  void Fail(const absl::Status& why);
  // Says goodbye to all other ranks. Nothing may be sent after it.
  void Leave();
  // Whether the links have taken everything that was queued.
  bool AllSent() const;

  // The earliest deadline of a send or receive; InfiniteFuture if there is none.
  absl::Time NextDeadline() const;
  // The link to rank r if the mailbox should sleep on it; null otherwise. A link counts if it
  // lives, and may give a message or take a queued one.
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
  std::list<Wanted> wanted_;  // receives posted and not served, in order
  std::list<Message> kept_;   // messages arrived or arriving that no receive wants, in order
  size_t kept_bytes_ = 0;
  std::vector<Ended> ended_;
  absl::Status failure_;
  bool leaving_ = false;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MAILBOX_H_
