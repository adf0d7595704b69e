#include "transport/proof.h"

#include <sodium.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::transport {
namespace {

// Begins every message. No frame and no Protocol Buffer begins with these bytes, so a process
// without a token takes a proof for garbage, and not for something else.
constexpr absl::string_view kMagic = "\x07TNDMPF1";

}  // namespace

Proof::Proof(Side side, std::shared_ptr<const JobKeys> keys, absl::string_view place)
    : side_(side), keys_(std::move(keys)), place_(place) {
  static_assert(kMaxBytes == 8 + 2 * kBytes);
  static_assert(kBytes == crypto_generichash_BYTES);
  TANDEM_CHECK(keys_ != nullptr && kMagic.size() == 8);
  randombytes_buf(ours_.data(), ours_.size());
}

Proof::Bytes Proof::Mac(absl::string_view purpose) const {
  const bool connects = side_ == Side::kConnects;
  const Bytes &c = connects ? ours_ : theirs_, &s = connects ? theirs_ : ours_;
  const auto& key = keys_->word();
  crypto_generichash_state state;
  Bytes mac;
  const auto add = [&state](const void* bytes, size_t size) {
    crypto_generichash_update(&state, static_cast<const uint8_t*>(bytes), size);
  };
  TANDEM_CHECK(crypto_generichash_init(&state, key.data(), key.size(), mac.size()) == 0);
  add(purpose.data(), purpose.size());
  add(c.data(), c.size());
  add(s.data(), s.size());
  add(place_.data(), place_.size());
  TANDEM_CHECK(crypto_generichash_final(&state, mac.data(), mac.size()) == 0);
  return mac;
}

std::string Proof::Hello() const {
  return absl::StrCat(kMagic,
                      absl::string_view(reinterpret_cast<const char*>(ours_.data()), kBytes));
}

absl::StatusOr<std::string> Proof::Take(absl::string_view message) {
  TANDEM_CHECK(!done_);
  const bool accepts = side_ == Side::kAccepts;
  const size_t expected = accepts ? kBytes : 2 * kBytes;
  if (message.substr(0, kMagic.size()) != kMagic || message.size() != kMagic.size() + expected) {
    return absl::UnauthenticatedError("has no token");
  }
  message.remove_prefix(kMagic.size());
  const auto view = [](const Bytes& bytes) {
    return absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const auto* const at = reinterpret_cast<const uint8_t*>(message.data());
  if (!challenged_) {
    std::copy_n(at, kBytes, theirs_.begin());
    if (accepts) {
      challenged_ = true;
      return absl::StrCat(kMagic, view(ours_), view(Mac("accept")));
    }
  }
  const Bytes mac = Mac(accepts ? "connect" : "accept");
  if (sodium_memcmp(mac.data(), at + expected - kBytes, kBytes) != 0) {
    return absl::UnauthenticatedError("has another token");
  }
  done_ = true;
  return accepts ? std::string() : absl::StrCat(kMagic, view(Mac("connect")));
}

}  // namespace tandem::transport
