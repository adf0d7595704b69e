#include "server/shard_ranges.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::server {
namespace {

constexpr absl::Duration kMoveResend = absl::Milliseconds(500);

uint64_t MoveId(uint32_t range, uint32_t view) { return static_cast<uint64_t>(view) << 32 | range; }

}  // namespace

// For each range, in this order: view 1 creates the ranges of this shard empty; a range that the
// view gives to another shard is sent there; a range that had arrived before its view is installed
// now. If the view has already given that range on, it is sent on at once.
bool ShardRanges::OnView(absl::Time now, std::shared_ptr<const RangeMap> view,
                         ShardEffects* effects) {
  if (map_ != nullptr && view->view() <= map_->view()) return false;
  const bool first = map_ == nullptr;
  map_ = std::move(view);
  owned_.resize(map_->ranges().size());
  for (uint32_t id = 0; id < owned_.size(); ++id) {
    const bool mine = map_->range(id).owner == self_;
    if (first && mine && map_->view() == 1) Install(id, nullptr, 1, effects);
    if (!mine && owned_[id] != nullptr) MoveAway(now, id, effects);
    const auto arrival = arrivals_.find(id);
    if (arrival != arrivals_.end() && arrival->second.view <= map_->view()) {
      const IncomingRange incoming = std::move(arrival->second);
      arrivals_.erase(arrival);
      Install(id, &incoming.image, incoming.view, effects);
      if (!mine && owned_[id] != nullptr) MoveAway(now, id, effects);
    }
  }
  return true;
}

// `view`: number of the view that gave the range to this shard.
void ShardRanges::Install(uint32_t id, const RangeImage* image, uint32_t view,
                          ShardEffects* effects) {
  const RangeMap::Range& info = map_->range(id);
  auto range = std::make_unique<Range>(id, info.begin, info.end, tables_[info.table].get(),
                                       &scratch_, &totals_);
  if (image != nullptr) {
    if (const absl::Status status = range->Restore(*image, buffers_); !status.ok()) {
      if (absl::IsResourceExhausted(status)) effects->failure.Update(status);
      log_.Add(absl::StrCat("range ", id, " cannot be installed: ", status.ToString()), effects);
      return;
    }
    if (delayed_finished_) range->FinishDelayed();
  }
  if (range->subscriptions() != nullptr) {
    range->subscriptions()->Begin(view, range->progress().MinApplied());
  }
  owned_[id] = std::move(range);
}

void ShardRanges::MoveAway(absl::Time now, uint32_t id, ShardEffects* effects) {
  uint64_t left_out = 0;
  const std::string bytes = owned_[id]->Encode(&left_out);
  tables_[map_->range(id).table]->stats.rows.evicted += left_out;
  OutgoingMove move;
  move.image =
      CopyToBuffer(buffers_, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  move.view = map_->view();
  move.to = map_->range(id).owner;
  owned_[id].reset();
  SendMove(now, id, &(moves_[id] = std::move(move)), effects);
}

void ShardRanges::SendMove(absl::Time now, uint32_t id, OutgoingMove* move, ShardEffects* effects) {
  move->next_send = now + kMoveResend;
  Control control;
  control.mutable_range_data()->set_range(id);
  control.mutable_range_data()->set_view(move->view);
  effects->Say({move->to, EncodeControlFrame(buffers_, NewHeader(), control, move->image)});
}

bool ShardRanges::OnRangeData(absl::Time now, const ParsedFrame& frame, const RangeData& data,
                              ShardEffects* effects) {
  const uint32_t id = data.range();
  if (map_ == nullptr || id >= owned_.size() || frame.header.sender.role != Role::kServer) {
    log_.Add(absl::StrCat("ignored range ", id, " from ", frame.header.sender.DebugString()),
             effects);
    return false;
  }
  absl::StatusOr<RangeImage> image = DecodeRange({frame.values().data(), frame.values().size()});
  if (!image.ok()) {
    log_.Add(absl::StrCat("range ", id, " from ", frame.header.sender.DebugString(), ": ",
                          image.status().ToString()),
             effects);
    return false;  // the sender will resend it
  }
  // A move carries the number of the view that caused it. These numbers grow from owner to owner.
  // So a late copy, of a range that has moved on meanwhile, is recognised and not installed again.
  uint32_t& newest = newest_arrival_[id];
  if (data.view() > newest) {
    if (const auto move = moves_.find(id);
        move != moves_.end() && move->second.view < data.view()) {
      moves_.erase(move);  // the range comes back, so the new owner had received our bytes
    }
    if (map_->view() < data.view()) {
      arrivals_[id] = {*std::move(image), data.view()};
    } else if (owned_[id] == nullptr) {
      Install(id, &*image, data.view(), effects);
      if (owned_[id] == nullptr) return false;
      if (map_->range(id).owner != self_) MoveAway(now, id, effects);
    } else {
      return false;
    }
    newest = data.view();
  }
  // The confirmation comes last, because the sender forgets its bytes then.
  Control control;
  control.mutable_command_done()->set_id(MoveId(id, data.view()));
  effects->Say({frame.header.sender, EncodeControlFrame(buffers_, NewHeader(), control)});
  return true;
}

void ShardRanges::OnConfirmed(uint64_t id) {
  const auto move = moves_.find(static_cast<uint32_t>(id));
  if (move != moves_.end() && move->second.view == id >> 32) moves_.erase(move);
}

void ShardRanges::OnTick(absl::Time now, ShardEffects* effects) {
  for (auto& [id, move] : moves_) {
    if (move.next_send <= now) SendMove(now, id, &move, effects);
  }
}

void ShardRanges::FinishDelayed() {
  delayed_finished_ = true;
  for (Range* const range : Owned()) range->FinishDelayed();
}

std::vector<Range*> ShardRanges::Owned() const {
  std::vector<Range*> ranges;
  for (const auto& range : owned_) {
    if (range != nullptr) ranges.push_back(range.get());
  }
  return ranges;
}

bool ShardRanges::Settled() const {
  if (map_ == nullptr || !moves_.empty() || !arrivals_.empty()) return false;
  for (uint32_t id = 0; id < owned_.size(); ++id) {
    if ((map_->range(id).owner == self_) != (owned_[id] != nullptr)) return false;
  }
  return true;
}

FrameHeader ShardRanges::NewHeader() const {
  FrameHeader header;
  header.sender = self_;
  header.view = view();
  header.incarnation = incarnation_;
  return header;
}

}  // namespace tandem::server
