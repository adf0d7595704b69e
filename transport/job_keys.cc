#include "transport/job_keys.h"

#include <sodium.h>
#include <zmq.h>

#include <array>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::transport {
namespace {

using Secret = std::array<uint8_t, JobKeys::kTokenBytes>;
static_assert(JobKeys::kTokenBytes == crypto_kdf_KEYBYTES);
static_assert(JobKeys::kTokenBytes == crypto_scalarmult_SCALARBYTES);
static_assert(JobKeys::kTokenBytes == crypto_scalarmult_BYTES);

// Numbers of the derived keys; each is used once and never again. 3 was the password of all
// endpoints.
constexpr uint64_t kCurveSecret = 1, kWord = 2, kGate = 4;

bool Decode(absl::string_view text, Secret* token) {
  size_t size = 0;
  const char* end = nullptr;
  const auto complete = [&] { return size == token->size() && end == text.data() + text.size(); };
  if (sodium_hex2bin(token->data(), token->size(), text.data(), text.size(), nullptr, &size,
                     &end) == 0 &&
      complete()) {
    return true;
  }
  for (const int variant :
       {sodium_base64_VARIANT_ORIGINAL, sodium_base64_VARIANT_URLSAFE,
        sodium_base64_VARIANT_ORIGINAL_NO_PADDING, sodium_base64_VARIANT_URLSAFE_NO_PADDING}) {
    if (sodium_base642bin(token->data(), token->size(), text.data(), text.size(), nullptr, &size,
                          &end, variant) == 0 &&
        complete()) {
      return true;
    }
  }
  return false;
}

Secret Derive(const Secret& token, uint64_t number) {
  constexpr char kContext[crypto_kdf_CONTEXTBYTES + 1] = "TandemJb";
  Secret key;
  TANDEM_CHECK(crypto_kdf_derive_from_key(key.data(), key.size(), number, kContext, token.data()) ==
               0);
  return key;
}

std::string Hex(const Secret& key) {
  std::array<char, 2 * JobKeys::kTokenBytes + 1> text;
  sodium_bin2hex(text.data(), text.size(), key.data(), key.size());
  return text.data();
}

std::string Z85(const Secret& key) {
  std::array<char, JobKeys::kTokenBytes * 5 / 4 + 1> text;
  TANDEM_CHECK(zmq_z85_encode(text.data(), key.data(), key.size()) != nullptr);
  return text.data();
}

}  // namespace

std::string JobKeys::NewToken() {
  TANDEM_CHECK(sodium_init() >= 0);
  Secret token;
  randombytes_buf(token.data(), token.size());
  return Hex(token);
}

absl::StatusOr<JobKeys> JobKeys::FromToken(absl::string_view text) {
  TANDEM_CHECK(sodium_init() >= 0);
  text = absl::StripAsciiWhitespace(text);
  Secret token;
  if (!Decode(text, &token)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a token of ", text.size(),
                     " characters; expected 32 bytes as 64 hexadecimal digits or in base64; hint: "
                     "openssl rand -hex 32"));
  }
  JobKeys keys;
  Secret curve_public;
  const Secret curve_secret = Derive(token, kCurveSecret);
  TANDEM_CHECK(crypto_scalarmult_base(curve_public.data(), curve_secret.data()) == 0);
  keys.curve_secret_ = Z85(curve_secret);
  keys.curve_public_ = Z85(curve_public);
  keys.word_ = Derive(token, kWord);
  keys.gate_ = Derive(token, kGate);
  return keys;
}

std::string JobKeys::PasswordOf(absl::string_view endpoint) const {
  Secret password;
  TANDEM_CHECK(crypto_generichash(password.data(), password.size(),
                                  reinterpret_cast<const uint8_t*>(endpoint.data()),
                                  endpoint.size(), gate_.data(), gate_.size()) == 0);
  return Hex(password);
}

}  // namespace tandem::transport
