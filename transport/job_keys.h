// JobKeys: the keys that a job derives from its token. The token is a secret of 32 random bytes.
// Every process of the job has it, and nobody else does.
//
// One pair of CURVE keys (Curve25519, as in libzmq) serves all sockets of the job, those that
// accept and those that connect. A socket that connects must know the public key of the other end
// in advance, and no message of the handshake contains that key. So only processes with the token
// finish a handshake.
//
// Connections that are not encrypted begin with a password (transport/zmq_gate.h), which keeps out
// strangers who cannot read the packets of others. The proof after it keeps out those who can. Each
// endpoint has a password of its own. A stranger can listen at the port of a process that has died
// and hear its password, but no other endpoint takes this password.
//
// Thread safety: constant after construction.
#ifndef TANDEM_TRANSPORT_JOB_KEYS_H_
#define TANDEM_TRANSPORT_JOB_KEYS_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::transport {

class JobKeys {
 public:
  static constexpr int kTokenBytes = 32;

  // A new token: 64 hexadecimal digits, from the system's entropy.
  static std::string NewToken();
  // `token`: 32 bytes as hexadecimal digits or in base64; white space around them is ignored.
  // INVALID_ARGUMENT: it is no such text. The error does not contain the text.
  static absl::StatusOr<JobKeys> FromToken(absl::string_view token);

  // The CURVE keys, as 40 characters of Z85.
  const std::string& curve_public() const { return curve_public_; }
  const std::string& curve_secret() const { return curve_secret_; }

  // Opens connections to one endpoint that are not encrypted: 64 hexadecimal digits, sent in the
  // clear. `endpoint`: a number that no other endpoint has. The number is no secret.
  std::string PasswordOf(absl::string_view endpoint) const;

  // The key of the MACs by which processes prove that they have the token (transport/proof.h).
  const std::array<uint8_t, kTokenBytes>& word() const { return word_; }

 private:
  JobKeys() = default;

  std::string curve_public_, curve_secret_;
  std::array<uint8_t, kTokenBytes> word_ = {}, gate_ = {};
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_JOB_KEYS_H_
