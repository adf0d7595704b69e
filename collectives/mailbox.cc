#include "collectives/mailbox.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "collectives/errors.h"
#include "collectives/types.h"

namespace tandem::collectives {
namespace {

constexpr uint32_t kMagic = 0x314d4354;             // "TCM1"
constexpr uint64_t kMostBytes = uint64_t{1} << 40;  // of a message
constexpr size_t kMostText = 1024;
constexpr size_t kTurnBytes = 1 << 20;  // moved before other links get their turn
constexpr size_t kGrowth = 16 << 20;    // memory for what a peer announces comes as it arrives

}  // namespace

// As it lies in memory, before every message (little-endian machines only, as in frames).
struct Mailbox::Header {
  enum Kind : uint8_t { kMessage, kGoodbye, kFailed };
  uint32_t magic = kMagic;
  uint8_t kind = kMessage;
  uint8_t code = 0;       // kFailed: of the status
  uint16_t elements = 0;  // kMessage: ElementsCode
  int32_t blamed = -1;    // kFailed: the rank at fault; -1: none
  int32_t padding = 0;
  int64_t tag = 0;     // kMessage
  uint64_t bytes = 0;  // behind the header: the message, or why
};

// One that arrived, or is arriving, before it was wanted.
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
  std::string text;  // where data is the mailbox's own
  absl::Time deadline = absl::InfiniteFuture();
  size_t sent = 0;  // of header and data
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
  // The message that is arriving: into the memory of who wants it, to be kept, or to be dropped.
  enum class Into { kNothing, kWanted, kKept, kText, kDropped } into = Into::kNothing;
  Header header;
  size_t arrived = 0;
  Wanted wanted;
  std::list<Message>::iterator kept;
  std::string text;
  bool resting = false;  // its next message is one for which there is no room
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
  out.text = std::string(text.substr(0, kMostText));
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
  // The first that is complete: it has none of its own rank before it that is not, and ranks have no
  // order between them.
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

// Decides where a message goes. False: nowhere yet.
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
  // Nothing of this rank that is kept is wanted: Receive and Finish have looked.
  if (wanted != wanted_.end()) {
    peer.wanted = *wanted;
    wanted_.erase(wanted);
    absl::Status fits = Fits(peer.wanted, r, static_cast<size_t>(header.bytes), header.elements);
    peer.into = fits.ok() ? Peer::Into::kWanted : Peer::Into::kDropped;
    if (!fits.ok()) End(peer.wanted.ticket, -1, std::move(fits));
    return true;
  }
  if (kept_bytes_ > 0 && kept_bytes_ + header.bytes > options_.most_kept_bytes) return false;
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
  // It may have come to be wanted while it arrived.
  const auto wanted = std::find_if(wanted_.begin(), wanted_.end(),
                                   [&](const Wanted& w) { return w.Takes(r, peer.header.tag); });
  if (wanted == wanted_.end()) return;
  Deliver(*wanted, *peer.kept);
  wanted_.erase(wanted);
  kept_bytes_ -= peer.kept->size;
  kept_.erase(peer.kept);
}

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
          header.bytes > (text ? kMostText : kMostBytes)) {
        Lose(r, absl::DataLossError("what it sends is no message"));
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

// ---- How the others are -------------------------------------------------------

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

// Whether no other rank is left that could send.
bool Mailbox::Alone() const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& other) {
    return other.gone || &other == &peers_[static_cast<size_t>(rank_)];
  });
}

// The link to a rank has ended. That is no failure of the group if it has said goodbye, but what
// was to come from it or to go to it does not any more.
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
    // What has begun to leave is the peer's to read to its end, if that is in time; no more of it
    // is, for its memory goes back to its owner: the link ends with it.
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

// ---- Going on -----------------------------------------------------------------

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
      if (out.sent > 0) return Fail(late);  // half a message: nothing can come behind it
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
