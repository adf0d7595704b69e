#include "rdma/offers.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::rdma {
namespace {

constexpr size_t kInlinePart = 512;  // up to this size a part travels in the offer

absl::Status Refused(const char* what, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(error)));
}

}  // namespace

void RdmaOffers::DropWindows() {
  for (Offer& offer : offers_) {
    for (Key& key : offer.keys) {
      if (key.window != nullptr) ibv_dealloc_mw(key.window);
    }
  }
  for (ibv_mw* const window : windows_) ibv_dealloc_mw(window);
}

void RdmaOffers::DropRegions() {
  for (Offer& offer : offers_) {
    for (Key& key : offer.keys) {
      if (key.region != nullptr) ibv_dereg_mr(key.region);
    }
  }
}

absl::StatusOr<const Frame*> RdmaOffers::Add(Frame* frame, RdmaMessage* message) {
  Offer* const offer =
      std::find_if(offers_, offers_ + kMaxRdmaOffers, [](const Offer& o) { return !o.used; });
  TANDEM_CHECK(offer != offers_ + kMaxRdmaOffers);
  TANDEM_RETURN_IF_ERROR(StageParts(frame));
  offer->used = true;
  ++size_;
  offer->keys_left = 0;
  offer->token = next_token_;
  if (++next_token_ == 0) ++next_token_;  // 0 means "no token"
  offer->frame = std::move(*frame);
  message->kind = RdmaMessageKind::kOffer;
  message->token = offer->token;
  message->parts = static_cast<uint16_t>(offer->frame.parts);
  for (int i = 0; i < offer->frame.parts; ++i) {
    const Buffer& part = offer->frame.part[i];
    message->part_bytes[i] = part.size();
    if (part.size() <= kInlinePart) continue;
    TANDEM_RETURN_IF_ERROR(MakeKey(part, &offer->keys[i]));
    ++offer->keys_left;
    message->part_key[i] = offer->keys[i].key;
    message->part_address[i] = reinterpret_cast<uintptr_t>(part.data());
  }
  return &offer->frame;
}

// Copies large parts into registered memory if they are not registered: the peer can read nothing
// else.
absl::Status RdmaOffers::StageParts(Frame* frame) {
  for (int i = 0; i < frame->parts; ++i) {
    Buffer& part = frame->part[i];
    if (part.size() <= kInlinePart || memory_->Find(part.data(), part.size())) continue;
    Buffer copy = memory_->Alloc(part.size());
    if (memory_->Find(copy.data(), copy.size()) == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system refuses to register ", part.size(), " bytes to send from"));
    }
    std::memcpy(copy.mutable_data(), part.data(), part.size());
    *staged_ += part.size();
    part = std::move(copy);
  }
  return absl::OkStatus();
}

// Makes a key with which the peer can read exactly these bytes.
absl::Status RdmaOffers::MakeKey(const Buffer& part, Key* key) {
  if (!memory_->has_windows()) {
    const int access = IBV_ACCESS_REMOTE_READ;
    key->region = ibv_reg_mr(memory_->pd(), const_cast<uint8_t*>(part.data()), part.size(), access);
    if (key->region == nullptr) return Refused("ibv_reg_mr", errno);
    key->key = key->region->rkey;
    return absl::OkStatus();
  }
  if (windows_.empty()) {
    ibv_mw* const made = ibv_alloc_mw(memory_->pd(), IBV_MW_TYPE_2);
    if (made == nullptr) return Refused("ibv_alloc_mw", errno);
    windows_.push_back(made);
  }
  key->window = windows_.back();
  windows_.pop_back();
  key->key = ibv_inc_rkey(key->window->rkey);
  ibv_send_wr request = {};
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw.mw = key->window;
  request.bind_mw.rkey = key->key;
  request.bind_mw.bind_info = {memory_->Find(part.data(), part.size()),
                               reinterpret_cast<uintptr_t>(part.data()), part.size(),
                               IBV_ACCESS_REMOTE_READ};
  TANDEM_RETURN_IF_ERROR(queue_->Post(&request, {.kind = RdmaWork::Kind::kBind}));
  key->window->rkey = key->key;  // only now: ibv_post_send needs the old one
  return absl::OkStatus();
}

absl::Status RdmaOffers::OnDone(uint32_t token) {
  // An offer whose keys are being taken back has token 0, so no report can match it.
  Offer* const offer = std::find_if(offers_, offers_ + kMaxRdmaOffers, [token](const Offer& o) {
    return o.used && token != 0 && o.token == token && o.keys_left > 0;
  });
  if (offer == offers_ + kMaxRdmaOffers) {
    return RdmaViolation("it reports reading a frame that was not offered");
  }
  offer->token = 0;  // so that a second kDone for it is a violation
  const auto index = static_cast<uint64_t>(offer - offers_);
  for (Key& key : offer->keys) {
    if (key.window != nullptr) {
      control_->Push({RdmaControl::Kind::kInvalidate, 0, index, key.key});
    } else if (key.region != nullptr) {
      TANDEM_CHECK(ibv_dereg_mr(std::exchange(key.region, nullptr)) == 0);
      KeyGone(index);
    }
  }
  return absl::OkStatus();
}

void RdmaOffers::KeyGone(uint64_t index) {
  Offer& offer = offers_[index];
  if (--offer.keys_left > 0) return;
  for (Key& key : offer.keys) {
    if (key.window != nullptr) windows_.push_back(key.window);
    key = Key();
  }
  offer.frame = Frame();
  offer.used = false;
  --size_;
}

}  // namespace tandem::rdma
