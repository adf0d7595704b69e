#include "collectives/mailbox.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clip_text.h"
#include "collectives/errors.h"
#include "collectives/types.h"

namespace tandem::collectives {
namespace {

constexpr uint32_t kMagic = 0x314d4354;            // "TCM1"
constexpr uint64_t kMaxBytes = uint64_t{1} << 40;  // bytes of one message
constexpr size_t kMaxText = 1024;
constexpr size_t kTurnBytes = 1 << 20;  // bytes moved before other links get their turn
// The memory of an announced message grows by at most this at a time, as its bytes arrive.
constexpr size_t kGrowth = 16 << 20;

}  // namespace

// The header before every message, as it lies in memory (little-endian machines only, as in
// frames).
struct Mailbox::Header {
  enum Kind : uint8_t { kMessage, kGoodbye, kFailed };
  uint32_t magic = kMagic;
  uint8_t kind = kMessage;
  uint8_t code = 0;       // kFailed: code of the status
  uint16_t elements = 0;  // kMessage: ElementsCode
  int32_t blamed = -1;    // kFailed: the rank at fault; -1: none
  int32_t padding = 0;
  int64_t tag = 0;     // kMessage
  uint64_t bytes = 0;  // size of the message, or of the reason, behind the header
};

// A message that arrives, or has arrived, before a receive wants it.
struct Mailbox::Message {
  int from;
  int64_t tag;
  std::vector<uint8_t> bytes;
  size_t size;
  uint16_t elements = 0;
  bool complete = false;
};

struct Mailbox::Outgoing {
  Header header;
  int64_t ticket = -1;  // -1: nobody waits
  absl::Span<const uint8_t> data;
  std::string text;  // the bytes of `data` if the mailbox owns them
  absl::Time deadline = absl::InfiniteFuture();
  size_t sent = 0;  // bytes of header and data that have left
};

struct Mailbox::Wanted {
  int64_t ticket;
  int from;
  int64_t tag;
  absl::Span<uint8_t> room;
  absl::Time deadline;
  uint16_t elements = 0;
  bool Takes(int rank, int64_t with_tag) const {
    return (from == kAnyRank || from == rank) && tag == with_tag;
  }
};

struct Mailbox::Peer {
  std::deque<Outgoing> queue;
  // The state of the message that is arriving from the peer. Its bytes go into the memory of a
  // receive, into a kept message, into `text`, or nowhere.
  enum class Into { kNothing, kWanted, kKept, kText, kDropped } into = Into::kNothing;
  Header header;
  size_t arrived = 0;
  Wanted wanted;
  std::list<Message>::iterator kept;
  std::string text;
  bool resting = false;  // there is no room for its next message
  bool left = false;     // has said goodbye
  bool gone = false;     // its link has ended
};

Mailbox::Mailbox(int rank, std::vector<std::unique_ptr<Link>> links, Options options)
    : rank_(rank), options_(options), links_(std::move(links)), peers_(links_.size()) {
  static_assert(sizeof(Header) == 32);
  TANDEM_CHECK(rank >= 0 && static_cast<size_t>(rank) < links_.size());
}

Mailbox::~Mailbox() = default;

void Mailbox::End(int64_t ticket, int from, absl::Status status) {
  if (ticket >= 0) ended_.push_back({ticket, status.ok() ? from : -1, std::move(status)});
}

// ---- Sending ------------------------------------------------------------------

void Mailbox::Send(int64_t ticket, int to, int64_t tag, absl::Span<const uint8_t> data,
                   absl::Time deadline, uint16_t elements) {
  TANDEM_CHECK(to != rank_ && to >= 0 && static_cast<size_t>(to) < peers_.size());
  if (!failure_.ok()) return End(ticket, -1, failure_);
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.left || peer.gone) {
    return End(ticket, -1, PeerLostError(to, "it has closed the group"));
  }
  Outgoing& out = peer.queue.emplace_back();
  out.header.tag = tag;
  out.header.elements = elements;
  out.header.bytes = data.size();
  out.ticket = ticket;
  out.data = data;
  out.deadline = deadline;
}

void Mailbox::Queue(int r, const Header& header, absl::string_view text) {
  Outgoing& out = peers_[static_cast<size_t>(r)].queue.emplace_back();
  out.text = std::string(ClipText(text, kMaxText));
  out.header = header;
  out.header.bytes = out.text.size();
}

bool Mailbox::Flush(int r) {
  Peer& peer = peers_[static_cast<size_t>(r)];
  bool moved = false;
  while (!peer.queue.empty() && !peer.gone) {
    Outgoing& out = peer.queue.front();
    if (!out.text.empty()) {
      out.data = {reinterpret_cast<const uint8_t*>(out.text.data()), out.text.size()};
    }
    const absl::Span<const uint8_t> head(reinterpret_cast<const uint8_t*>(&out.header),
                                         sizeof(Header));
    const size_t of_head = std::min(out.sent, sizeof(Header));
    const auto wrote = links_[static_cast<size_t>(r)]->Write(head.subspan(of_head),
                                                             out.data.subspan(out.sent - of_head));
    if (!wrote.ok()) {
      Lose(r, wrote.status());
      return true;
    }
    out.sent += *wrote;
    moved = moved || *wrote > 0;
    if (out.sent < sizeof(Header) + out.data.size()) return moved;
    End(out.ticket, -1, absl::OkStatus());
    peer.queue.pop_front();
  }
  return moved;
}

// ---- Receiving ----------------------------------------------------------------

absl::Status Mailbox::Fits(const Wanted& wanted, int from, size_t bytes, uint16_t elements) const {
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", what...));
  };
  if (bytes != wanted.room.size()) {
    return refuse(bytes, " bytes came from rank ", from, " with tag ", wanted.tag, ", and rank ",
                  rank_, " has room for ", wanted.room.size());
  }
  if (elements == wanted.elements || elements == 0 || wanted.elements == 0) return absl::OkStatus();
  return refuse(ElementsName(elements), " came from rank ", from, " with tag ", wanted.tag,
                ", and rank ", rank_, " receives ", ElementsName(wanted.elements));
}

void Mailbox::Deliver(const Wanted& wanted, const Message& message) {
  absl::Status fits = Fits(wanted, message.from, message.bytes.size(), message.elements);
  if (fits.ok() && !message.bytes.empty()) {
    std::memcpy(wanted.room.data(), message.bytes.data(), message.bytes.size());
  }
  End(wanted.ticket, message.from, std::move(fits));
}

void Mailbox::Receive(int64_t ticket, int from, int64_t tag, absl::Span<uint8_t> room,
                      absl::Time deadline, uint16_t elements) {
  TANDEM_CHECK(from >= kAnyRank && from != rank_ && from < static_cast<int>(peers_.size()));
  const Wanted wanted{ticket, from, tag, room, deadline, elements};
  // Take the first complete message that fits. Messages of one rank arrive in order, so no
  // incomplete message of the same rank precedes a complete one. Messages of different ranks have
  // no order.
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    if (!it->complete || !wanted.Takes(it->from, it->tag)) continue;
    Deliver(wanted, *it);
    kept_bytes_ -= it->size;
    kept_.erase(it);
    return;
  }
  if (!failure_.ok()) return End(ticket, -1, failure_);
  if (from != kAnyRank && peers_[static_cast<size_t>(from)].gone) {
    return End(ticket, -1, PeerLostError(from, "it has closed the group"));
  }
  if (from == kAnyRank && Alone()) {
    return End(
        ticket, -1,
        absl::UnavailableError(absl::StrCat("receive on rank ", rank_, " from any rank with tag ",
                                            tag, ": all other ranks have closed the group")));
  }
  wanted_.push_back(wanted);
}

// Decides where the next message of rank r goes. False: there is no room for it yet.
//
// If a receive waits for the message, the bytes go straight into its memory and are copied only
// once. The limit on kept bytes is ignored when nothing is kept: otherwise a message larger than
// the limit would block its link forever.
bool Mailbox::Begin(int r, const Header& header) {
  Peer& peer = peers_[static_cast<size_t>(r)];
  peer.header = header;
  peer.arrived = 0;
  if (header.kind != Header::kMessage) {
    peer.into = Peer::Into::kText;
    peer.text.clear();
    return true;
  }
  const auto wanted = std::find_if(wanted_.begin(), wanted_.end(),
                                   [&](const Wanted& w) { return w.Takes(r, header.tag); });
  // No kept message of this rank fits this receive: Receive and Finish would have delivered it.
  if (wanted != wanted_.end()) {
    peer.wanted = *wanted;
    wanted_.erase(wanted);
    absl::Status fits = Fits(peer.wanted, r, static_cast<size_t>(header.bytes), header.elements);
    peer.into = fits.ok() ? Peer::Into::kWanted : Peer::Into::kDropped;
    if (!fits.ok()) End(peer.wanted.ticket, -1, std::move(fits));
    return true;
  }
  if (kept_bytes_ > 0 && kept_bytes_ + header.bytes > options_.max_kept_bytes) return false;
  kept_bytes_ += header.bytes;
  peer.kept = kept_.insert(kept_.end(),
                           {r, header.tag, {}, static_cast<size_t>(header.bytes), header.elements});
  peer.into = Peer::Into::kKept;
  return true;
}

void Mailbox::Finish(int r) {
  Peer& peer = peers_[static_cast<size_t>(r)];
  const Peer::Into into = std::exchange(peer.into, Peer::Into::kNothing);
  if (into == Peer::Into::kWanted) return End(peer.wanted.ticket, r, absl::OkStatus());
  if (into == Peer::Into::kText) return Told(r, peer.header, peer.text);
  if (into != Peer::Into::kKept) return;
  peer.kept->complete = true;
  // A receive may have been posted for the message while it arrived.
  const auto wanted = std::find_if(wanted_.begin(), wanted_.end(),
                                   [&](const Wanted& w) { return w.Takes(r, peer.header.tag); });
  if (wanted == wanted_.end()) return;
  Deliver(*wanted, *peer.kept);
  wanted_.erase(wanted);
  kept_bytes_ -= peer.kept->size;
  kept_.erase(peer.kept);
}

// Reads from the link of rank r until it is empty, the turn is over or there is no room.
//
// The header is only peeked at until Begin has found a place for the message. A message without a
// place thus stays in the link, and the link's own flow control stops the sender. Whether a message
// is complete is checked before reading, because a message may have no bytes at all. A header is
// checked before anything uses its length, since the peer may send garbage.
bool Mailbox::Take(int r) {
  Peer& peer = peers_[static_cast<size_t>(r)];
  Link& link = *links_[static_cast<size_t>(r)];
  peer.resting = false;
  size_t taken = 0;
  while (!peer.gone && taken < kTurnBytes) {
    if (peer.into == Peer::Into::kNothing) {
      const auto bytes = link.Peek(sizeof(Header));
      if (!bytes.ok()) {
        Lose(r, bytes.status());
        return true;
      }
      if (bytes->empty()) return taken > 0;
      Header header;
      std::memcpy(&header, bytes->data(), sizeof header);
      const bool text = header.kind != Header::kMessage;
      if (header.magic != kMagic || header.kind > Header::kFailed ||
          header.bytes > (text ? kMaxText : kMaxBytes)) {
        Lose(r, absl::DataLossError("it sent bytes that are not a message"));
        return true;
      }
      if (!Begin(r, header)) {
        peer.resting = true;
        return taken > 0;
      }
      link.Consume(sizeof header);
      taken += sizeof header;
    }
    const size_t missing = static_cast<size_t>(peer.header.bytes) - peer.arrived;
    if (missing == 0) {
      Finish(r);
      continue;
    }
    uint8_t dropped[4096];
    absl::Span<uint8_t> to(dropped, std::min(missing, sizeof dropped));
    if (peer.into == Peer::Into::kWanted) {
      to = peer.wanted.room.subspan(peer.arrived);
    } else if (peer.into == Peer::Into::kKept) {
      std::vector<uint8_t>& bytes = peer.kept->bytes;
      if (bytes.size() == peer.arrived) bytes.resize(peer.arrived + std::min(missing, kGrowth));
      to = absl::MakeSpan(bytes).subspan(peer.arrived);
    }
    const auto read = link.Read(to);
    if (!read.ok()) {
      Lose(r, read.status());
      return true;
    }
    if (*read == 0) return taken > 0;
    if (peer.into == Peer::Into::kText) {
      peer.text.append(reinterpret_cast<const char*>(dropped), *read);
    }
    peer.arrived += *read;
    taken += *read;
  }
  return taken > 0;
}

// ---- State of the other ranks -------------------------------------------------

void Mailbox::Told(int r, const Header& header, absl::string_view text) {
  if (header.kind == Header::kGoodbye) {
    peers_[static_cast<size_t>(r)].left = true;
    return;
  }
  absl::Status why(static_cast<absl::StatusCode>(header.code), text);
  if (why.ok()) why = absl::UnknownError(text);
  FailAll(header.blamed >= 0 ? BlameOn(header.blamed, std::move(why)) : std::move(why));
}

bool Mailbox::HasLeft(int rank) const {
  return rank >= 0 && rank < static_cast<int>(peers_.size()) &&
         peers_[static_cast<size_t>(rank)].left;
}

// Whether every other rank is gone, so that nobody can send any more.
bool Mailbox::Alone() const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& other) {
    return other.gone || &other == &peers_[static_cast<size_t>(rank_)];
  });
}

// Handles the end of the link to rank r. If the rank has said goodbye, the group does not fail:
// only the operations that need this rank end. Otherwise the whole group fails.
void Mailbox::Lose(int r, const absl::Status& why) {
  Peer& peer = peers_[static_cast<size_t>(r)];
  peer.gone = true;
  const absl::Status lost = PeerLostError(r, peer.left ? "it has closed the group" : why.message());
  if (!peer.left) return FailAll(lost);
  for (const Outgoing& out : peer.queue) End(out.ticket, -1, lost);
  peer.queue.clear();
  const bool alone = Alone();
  for (auto it = wanted_.begin(); it != wanted_.end();) {
    if (it->from == r || alone) {
      End(it->ticket, -1, lost);
      it = wanted_.erase(it);
    } else {
      ++it;
    }
  }
}

void Mailbox::FailAll(const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  for (Peer& peer : peers_) {
    // A message that has partly left cannot be completed, because its memory goes back to its
    // owner. Nothing else may follow half a message, so this link is not used any more: the peer
    // reads as much as has left, and then sees the link end.
    for (const Outgoing& out : peer.queue) {
      End(out.ticket, -1, why);
      if (out.ticket >= 0 && out.sent > 0) peer.gone = true;
    }
    peer.queue.clear();
    if (peer.into == Peer::Into::kWanted) {
      End(peer.wanted.ticket, -1, why);
      peer.into = Peer::Into::kDropped;
    }
  }
  for (const Wanted& wanted : wanted_) End(wanted.ticket, -1, why);
  wanted_.clear();
}

void Mailbox::Fail(const absl::Status& why) {
  FailAll(why);
  Header header;
  header.kind = Header::kFailed;
  header.code = static_cast<uint8_t>(why.code());
  header.blamed = LostPeer(why).value_or(-1);
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (links_[r] != nullptr && !peers_[r].gone) Queue(static_cast<int>(r), header, why.message());
  }
}

void Mailbox::Leave() {
  if (std::exchange(leaving_, true)) return;
  Header header;
  header.kind = Header::kGoodbye;
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (links_[r] != nullptr && !peers_[r].gone) Queue(static_cast<int>(r), header, "");
  }
}

// ---- Progress and deadlines ---------------------------------------------------

// For each peer: send first, then read. Deadlines come last, so that a message that has just
// arrived is not late.
bool Mailbox::Progress(absl::Time now) {
  bool moved = false;
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (links_[r] == nullptr || peers_[r].gone) continue;
    moved = Flush(static_cast<int>(r)) || moved;
    if (!peers_[r].gone) moved = Take(static_cast<int>(r)) || moved;
  }
  CheckDeadlines(now);
  return moved;
}

void Mailbox::CheckDeadlines(absl::Time now) {
  for (auto it = wanted_.begin(); it != wanted_.end();) {
    if (now < it->deadline) {
      ++it;
      continue;
    }
    const std::string whom = it->from == kAnyRank ? "any rank" : absl::StrCat("rank ", it->from);
    absl::Status late = absl::DeadlineExceededError(absl::StrCat(
        "receive on rank ", rank_, ": no message with tag ", it->tag, " from ", whom, " in time"));
    if (it->from != kAnyRank) late = BlameOn(it->from, std::move(late));
    End(it->ticket, -1, std::move(late));
    it = wanted_.erase(it);
  }
  for (size_t r = 0; r < peers_.size(); ++r) {
    for (size_t i = 0; i < peers_[r].queue.size();) {
      Outgoing& out = peers_[r].queue[i];
      if (now < out.deadline) {
        ++i;
        continue;
      }
      absl::Status late =
          BlameOn(static_cast<int>(r),
                  absl::DeadlineExceededError(absl::StrCat("send on rank ", rank_, ": rank ", r,
                                                           " has not taken the message with tag ",
                                                           out.header.tag, " in time")));
      // Half a message has left, and no other message can follow it: the whole group fails.
      if (out.sent > 0) return Fail(late);
      End(out.ticket, -1, std::move(late));
      peers_[r].queue.erase(peers_[r].queue.begin() + static_cast<std::ptrdiff_t>(i));
    }
    Peer& peer = peers_[r];
    if (peer.into == Peer::Into::kWanted && now >= peer.wanted.deadline) {
      End(peer.wanted.ticket, -1,
          BlameOn(static_cast<int>(r), absl::DeadlineExceededError(absl::StrCat(
                                           "receive on rank ", rank_, ": ", peer.arrived, " of ",
                                           peer.header.bytes, " bytes with tag ", peer.header.tag,
                                           " have come from rank ", r, " in time"))));
      peer.into = Peer::Into::kDropped;
    }
  }
}

bool Mailbox::AllSent() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.gone || peer.queue.empty(); });
}

absl::Time Mailbox::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Wanted& wanted : wanted_) next = std::min(next, wanted.deadline);
  for (const Peer& peer : peers_) {
    for (const Outgoing& out : peer.queue) next = std::min(next, out.deadline);
    if (peer.into == Peer::Into::kWanted) next = std::min(next, peer.wanted.deadline);
  }
  return next;
}

Link* Mailbox::Awaited(int r) const {
  const Peer& peer = peers_[static_cast<size_t>(r)];
  const bool listens = !peer.gone && (!peer.resting || !peer.queue.empty());
  return listens ? links_[static_cast<size_t>(r)].get() : nullptr;
}

}  // namespace tandem::collectives
