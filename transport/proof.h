// Proof: the messages by which two processes show each other, at the start of a connection that is
// not encrypted, that both have the token of the job. The token itself is never sent.
//
//   kConnects -> kAccepts   hello      32 random bytes c
//   kAccepts -> kConnects   challenge  32 random bytes s, MAC(word, "accept", c, s, place)
//   kConnects -> kAccepts   answer     MAC(word, "connect", c, s, place)
//
// The MAC is BLAKE2b with a key (the word of JobKeys). An answer fits one challenge only, so a
// recorded connection is of no use to a stranger. `place` names the side that accepts, as the side
// that connects knows it. So a stranger at the port of a process that has died cannot have another
// process of the job answer for it. The side that connects may send its first message
// right after the answer. A stranger who can change packets on their way is not kept out: only
// encryption does that.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TRANSPORT_PROOF_H_
#define TANDEM_TRANSPORT_PROOF_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/job_keys.h"

namespace tandem::transport {

class Proof {
 public:
  enum class Side { kConnects, kAccepts };
  // The longest message, in bytes.
  static constexpr size_t kMaxBytes = 72;

  // `keys` must not be null. `place`: the same on both sides.
  Proof(Side side, std::shared_ptr<const JobKeys> keys, absl::string_view place);

  bool connects() const { return side_ == Side::kConnects; }
  // The first message of the side that connects.
  std::string Hello() const;
  // Takes the next message of the other side. Returns the message to send now, or "" if there is
  // none. UNAUTHENTICATED: the other side has no token or another one. Call it until done().
  absl::StatusOr<std::string> Take(absl::string_view message);
  // The other side has the token.
  bool done() const { return done_; }

 private:
  static constexpr size_t kBytes = 32;  // of a random number and of a MAC
  using Bytes = std::array<uint8_t, kBytes>;
  Bytes Mac(absl::string_view purpose) const;

  const Side side_;
  const std::shared_ptr<const JobKeys> keys_;
  const std::string place_;
  Bytes ours_;               // random
  Bytes theirs_ = {};        // random; known after their first message
  bool challenged_ = false;  // kAccepts: the challenge was sent
  bool done_ = false;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_PROOF_H_
