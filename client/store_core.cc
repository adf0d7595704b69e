#include "client/store_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"

namespace tandem::client {
namespace {

size_t RowFloats(const job::TablePlan& table) {
  return static_cast<size_t>(table.dim + table.extra_floats);
}

// The reason that a refusal gives (proto/frame.md), as printable text.
std::string TextOf(const Buffer& keys) {
  std::string text;
  for (const uint8_t c : keys.As<uint8_t>()) {
    if (c == 0) break;
    text.push_back(absl::ascii_isprint(c) ? static_cast<char>(c) : '?');
  }
  return text.empty() ? "no reason given" : text;
}

}  // namespace

StoreCore::StoreCore(const job::ResolvedJob& plan, EndpointId self, uint64_t incarnation,
                     BufferSource& buffers, const ClientCore::Options& options)
    : plan_(plan),
      self_(self),
      incarnation_(incarnation),
      buffers_(buffers),
      options_(options),
      times_{options.resend_after, options.reconnect_after} {}

// A new view sends refused pieces again, to the owners that it names (as ClientCore::OnView).
void StoreCore::OnView(absl::Time now, std::shared_ptr<const RangeMap> view) {
  if (map_ != nullptr && view->view() <= map_->view()) return;
  map_ = std::move(view);
  for (auto& [number, piece] : pieces_) {
    if (!piece.sent && piece.next == absl::InfiniteFuture() && piece.refused_view > 0 &&
        piece.refused_view <= map_->view()) {
      Send(now, number, &piece);
    }
  }
}

// ---- requests --------------------------------------------------------------------------------

// Cuts a request into pieces by range. The keys of each piece keep the order of the request.
std::map<uint32_t, StoreCore::Piece> StoreCore::Cut(const StoreRequest& request) {
  const job::TablePlan& table = plan_.tables[request.table];
  const size_t width = RowFloats(table);
  std::map<uint32_t, Piece> pieces;
  if (request.action == StoreAction::kScan) {
    *request.page = ScanPage();
    request.page->ranges = map_->RangeCount(table.id);
    if (request.range < request.page->ranges) {
      pieces[map_->FirstRange(table.id) + static_cast<uint32_t>(request.range)] = Piece();
    }
    return pieces;
  }
  for (size_t i = 0; i < request.keys.size(); ++i) {
    const uint32_t range = map_->Find(table.id, Position(table.salt, request.keys[i]));
    pieces[range].source.push_back(static_cast<uint32_t>(i));
  }
  for (auto& [range, piece] : pieces) {
    const size_t count = piece.source.size();
    piece.keys = buffers_.Alloc(count * sizeof(uint64_t));
    for (size_t i = 0; i < count; ++i) {
      piece.keys.MutableAs<uint64_t>()[i] = request.keys[piece.source[i]];
    }
    if (!HasStoreValues(request.action)) continue;
    piece.values = buffers_.Alloc(count * width * sizeof(float));
    float* to = piece.values.MutableAs<float>().data();
    for (const uint32_t i : piece.source) {
      to = std::copy_n(request.values.data() + i * width, width, to);
    }
  }
  return pieces;
}

// Starts a request. A write behind another write of this client to the same range is numbered now,
// and waits for its turn: a range ignores a write whose number is smaller than one that it has
// taken from the same writer.
uint64_t StoreCore::Start(absl::Time now, const StoreRequest& request) {
  TANDEM_CHECK(map_ != nullptr && request.keys.size() <= kMaxStoreRows);
  const uint64_t id = next_number_++;
  Call& call = calls_[id];
  call.request = request;
  call.request.keys = {};  // copied below; the caller may free them
  call.request.values = {};
  call.started = now;
  std::fill(request.found.begin(), request.found.end(), uint8_t{0});
  std::map<uint32_t, Piece> cut = Cut(request);
  call.open = cut.size();
  if (cut.empty()) Finish(now, id, absl::OkStatus());
  for (auto& [range, made] : cut) {
    const uint64_t number = next_number_++;
    Piece& piece = pieces_[number] = std::move(made);
    piece.call = id;
    piece.range = range;
    piece.action = request.action;
    piece.next = absl::InfiniteFuture();
    piece.clock.OnSent(now, times_);
    if (IsStoreWrite(request.action)) {
      Writes& writes = writes_[range];
      piece.write = ++writes.numbered;
      writes.pieces.push_back(number);
      if (writes.pieces.size() > 1) continue;  // the write waits for its turn
    }
    Send(now, number, &piece);
  }
  return id;
}

// Sends a piece to the present owner of its range.
void StoreCore::Send(absl::Time now, uint64_t number, Piece* piece) {
  SliceEntry e;
  e.range = piece->range;
  e.rows = static_cast<uint32_t>(piece->source.size());
  e.version = piece->write;
  const StoreRequest& request = calls_.at(piece->call).request;
  if (piece->action == StoreAction::kScan) e.clock = static_cast<int64_t>(request.cursor);
  if (HasStoreValues(piece->action)) {
    e.row_floats = static_cast<uint32_t>(RowFloats(plan_.tables[request.table]));
  }
  FrameHeader header;
  header.kind = FrameKind::kStore;
  header.flags = static_cast<uint8_t>(piece->action);
  header.sender = self_;
  header.incarnation = incarnation_;
  header.view = map_->view();
  header.request = number;
  header.group = plan_.tables[request.table].group;
  header.samples = request.wanted;
  piece->to = map_->range(piece->range).owner;
  piece->frame = EncodeDataFrame(buffers_, header, {&e, 1}, piece->keys, piece->values);
  piece->sent = true;
  piece->clock.OnSent(now, times_);
  out_.push_back({piece->to, piece->frame});
}

void StoreCore::Cancel(absl::Time now, uint64_t request) {
  if (calls_.erase(request) == 0) return;
  for (auto piece = pieces_.begin(); piece != pieces_.end();) {
    const auto next = std::next(piece);
    if (piece->second.call == request) EndPiece(now, piece);
    piece = next;
  }
}

// ---- answers ----------------------------------------------------------------------------------

void StoreCore::OnFrame(absl::Time now, const ParsedFrame& frame) {
  const FrameHeader& h = frame.header;
  if (h.kind != FrameKind::kStored) return;
  if (h.request < next_number_) line_.OnAnswer(now, h.sender, h.request);
  const auto at = pieces_.find(h.request);
  if (at == pieces_.end()) return;  // late, doubled or cancelled
  Piece& piece = at->second;
  if (!piece.sent || h.sender != piece.to) return;
  const SliceEntry e = frame.entry_count == 1 ? frame.Entry(0) : SliceEntry();
  if (frame.entry_count == 1 && e.range == piece.range && e.status == SliceStatus::kWrongView) {
    piece.sent = false;
    piece.refused_view = h.view;
    // If the shard knows a newer view, wait for this view: OnView sends the piece then. If the
    // shard's view is older, give it a moment.
    piece.next = h.view > map_->view() ? absl::InfiniteFuture() : now + options_.wrong_view_pause;
    return;
  }
  const uint64_t call = piece.call;
  absl::Status taken = Take(frame, piece, calls_.at(call));
  if (!taken.ok()) return Finish(now, call, std::move(taken));
  EndPiece(now, at);
  if (--calls_.at(call).open == 0) Finish(now, call, absl::OkStatus());
}

// Copies an answer to the caller's memory.
absl::Status StoreCore::Take(const ParsedFrame& frame, const Piece& piece, const Call& call) const {
  const SliceEntry e = frame.entry_count == 1 ? frame.Entry(0) : SliceEntry();
  const StoreRequest& request = call.request;
  const size_t width = RowFloats(plan_.tables[request.table]);
  const bool rows = !IsStoreWrite(piece.action) && e.rows > 0;
  if (e.range == piece.range && e.status == SliceStatus::kOverBudget) {
    return absl::UnavailableError(absl::StrCat(piece.to.DebugString(), " takes no writes of table ",
                                               plan_.tables[request.table].name,
                                               " now: ", TextOf(frame.keys())));
  }
  if (e.range == piece.range && e.status == SliceStatus::kRefused) {
    const std::string why = TextOf(frame.keys());
    return absl::InvalidArgumentError(absl::StrCat(
        piece.to.DebugString(), " refuses rows of table ", plan_.tables[request.table].name, ": ",
        why, "; hint: do all programs and servers use the same job file?"));
  }
  if (frame.entry_count != 1 || e.range != piece.range || e.status != SliceStatus::kOk ||
      frame.header.flags != static_cast<uint8_t>(piece.action) ||
      e.row_floats != (rows ? width : 0)) {
    return absl::InternalError(absl::StrCat(
        piece.to.DebugString(), " answered range ", e.range, " with ", e.rows, " rows of ",
        e.row_floats, " floats; asked for range ", piece.range, ", rows of ", width));
  }
  const absl::Span<const uint64_t> keys = frame.keys().As<uint64_t>();
  const absl::Span<const float> values = frame.values().As<float>();
  if (piece.action == StoreAction::kScan) {
    request.page->keys.assign(keys.begin(), keys.end());
    request.page->rows.assign(values.begin(), values.end());
    request.page->next = static_cast<uint64_t>(e.clock);
    return absl::OkStatus();
  }
  // The keys of the answer are a subset of the keys of the piece, in the same order.
  const absl::Span<const uint64_t> asked = piece.keys.As<uint64_t>();
  size_t next = 0;
  for (size_t i = 0; i < asked.size() && next < keys.size(); ++i) {
    if (keys[next] != asked[i]) continue;
    if (!request.found.empty()) request.found[piece.source[i]] = 1;
    if (rows) {
      std::copy_n(values.data() + next * width, width,
                  request.rows.data() + piece.source[i] * width);
    }
    ++next;
  }
  if (next == keys.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(piece.to.DebugString(), " answered range ", piece.range,
                                          " with keys that nobody asked for"));
}

// Ends a piece. If it was a write at the head of its range's queue, the next write is sent.
void StoreCore::EndPiece(absl::Time now, Pieces::iterator piece) {
  const uint64_t number = piece->first;
  const uint32_t range = piece->second.range;
  const bool write = IsStoreWrite(piece->second.action);
  pieces_.erase(piece);
  if (!write) return;
  std::deque<uint64_t>& queue = writes_.at(range).pieces;
  const bool first = queue.front() == number;
  queue.erase(std::find(queue.begin(), queue.end(), number));
  if (!first || queue.empty()) return;
  Send(now, queue.front(), &pieces_.at(queue.front()));
}

void StoreCore::Finish(absl::Time now, uint64_t call, absl::Status status) {
  completions_.push_back({call, std::move(status)});
  Cancel(now, call);
}

// ---- time -------------------------------------------------------------------------------------

// Works in two passes, as ClientCore::OnTick: first all pieces look at the answers, then pieces are
// sent again. Requests that fail are ended at the end, because that changes pieces_.
void StoreCore::OnTick(absl::Time now) {
  std::vector<std::pair<uint64_t, absl::Status>> silent;
  const absl::Duration pause = pauses_.Tick(now);
  line_.Begin();
  for (auto& [number, piece] : pieces_) {
    if (pause > absl::ZeroDuration()) piece.clock.Forgive(now, pause);
    if (piece.sent) line_.Look(now, piece.to, number, times_, &piece.clock);
  }
  for (auto& [number, piece] : pieces_) {
    if (!piece.sent && piece.next == absl::InfiniteFuture() && piece.refused_view == 0) {
      continue;  // waits behind another write
    }
    if (piece.clock.quiet(now) > options_.silence_limit) {
      silent.emplace_back(
          piece.call, SilenceError("", now, piece.clock, piece.to, map_->Describe(piece.range)));
      continue;
    }
    if (!piece.sent) {
      if (now >= piece.next) Send(now, number, &piece);
      continue;
    }
    if (!piece.clock.due(now)) continue;
    if (!line_.MayAsk(piece.to, number, piece.clock)) continue;
    piece.clock.OnSentAgain(now, times_);
    out_.push_back({piece.to, piece.frame});
  }
  for (auto& [call, status] : silent) {
    if (calls_.count(call) > 0) Finish(now, call, std::move(status));
  }
}

void StoreCore::OnLost(absl::Time now, EndpointId shard, absl::string_view why) {
  for (auto& [number, piece] : pieces_) {
    if (!piece.sent || piece.to != shard) continue;
    piece.clock.OnLostConnection(now, times_, why);
  }
}

std::string StoreCore::Waiting(absl::Time now, uint64_t request) const {
  for (const auto& [number, piece] : pieces_) {
    if (piece.call != request) continue;
    return absl::StrCat("rows of table ", plan_.tables[calls_.at(request).request.table].name,
                        " since ", absl::ToInt64Seconds(now - calls_.at(request).started), " s; ",
                        map_->Describe(piece.range),
                        piece.sent ? " has not answered" : " is not asked yet");
  }
  return "";
}

}  // namespace tandem::client
