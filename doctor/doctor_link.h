// How one `tandem doctor` talks to another: one TCP connection, on which the one that listens says
// 8 bytes at once, and then both send messages, each a u32 of bytes (little-endian) and that many
// of JSON. Everything has a deadline, and whatever comes is bounded before it is read.
//
// No transport of ours would do: a doctor has to tell a port that is refused, filtered, silent, a role's
// or another program's from each other, where a transport goes on trying until its deadline, and has to
// be understood by a Tandem of another version, whose frames may differ. Frames over the ways that a job
// would take are what it measures once this has told who is there.
//
// Thread safety: one thread for each object.
#ifndef TANDEM_DOCTOR_DOCTOR_LINK_H_
#define TANDEM_DOCTOR_DOCTOR_LINK_H_

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"

namespace tandem::doctor {

inline constexpr char kDoctorBanner[] = "TNDMDOC1";
inline constexpr size_t kDoctorBannerBytes = 8;
inline constexpr size_t kDoctorMessageBytes = size_t{1} << 20;

// "HOST:PORT" or "tcp://HOST:PORT" -> both; INVALID_ARGUMENT otherwise.
absl::StatusOr<std::pair<std::string, std::string>> SplitHostPort(absl::string_view address);

class DoctorLink {
 public:
  // UNAVAILABLE: nobody there; FAILED_PRECONDITION: refused; DEADLINE_EXCEEDED.
  static absl::StatusOr<DoctorLink> Connect(const std::string& address, absl::Time deadline);
  explicit DoctorLink(OwnedFd socket) : socket_(std::move(socket)) {}

  // `bytes` at least 1 and at most `most`: what has come by then. DEADLINE_EXCEEDED: nothing;
  // UNAVAILABLE: the other side has closed.
  absl::StatusOr<std::string> ReadSome(size_t most, absl::Time deadline);
  absl::StatusOr<std::string> ReadAll(size_t bytes, absl::Time deadline);
  absl::Status Write(absl::string_view bytes, absl::Time deadline);

  absl::Status Send(const nlohmann::json& message, absl::Time deadline);
  // INVALID_ARGUMENT: too long, or not a JSON object.
  absl::StatusOr<nlohmann::json> Receive(absl::Time deadline);
  // Sends and waits for the answer.
  absl::StatusOr<nlohmann::json> Ask(const nlohmann::json& message, absl::Time deadline);

 private:
  OwnedFd socket_;
};

class DoctorListener {
 public:
  // HOST:PORT, port 0 or *: any free one. UNAVAILABLE: it cannot be bound.
  static absl::StatusOr<DoctorListener> Bind(const std::string& address);
  int port() const { return port_; }
  // NOT_FOUND: nobody came by then.
  absl::StatusOr<DoctorLink> Accept(absl::Time deadline);

 private:
  DoctorListener(OwnedFd socket, int port) : socket_(std::move(socket)), port_(port) {}
  OwnedFd socket_;
  int port_ = 0;
};

// Fields of what another process has sent: if they are not there, or something else, the default.
std::string TextOf(const nlohmann::json& object, const char* key);
double NumberOf(const nlohmann::json& object, const char* key);
bool FlagOf(const nlohmann::json& object, const char* key);

}  // namespace tandem::doctor

#endif  // TANDEM_DOCTOR_DOCTOR_LINK_H_
