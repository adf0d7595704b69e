// The connection between two `tandem doctor` processes: one TCP connection. The listener sends 8
// bytes at once. Then both sides send messages: a u32 (little-endian) with the number of bytes,
// and so many bytes of JSON. Each operation has a deadline, and sizes are checked before bytes
// are read.
//
// A doctor cannot use Tandem's transports for this. It must tell apart whether a port is refused,
// filtered, silent, or belongs to a role or to another program, but a transport retries until its
// deadline. It must also talk to another version of Tandem, whose frames may differ. Once the
// doctor knows that a doctor answers, it measures frames over the transports that a job would use.
//
// Thread safety: one thread for each object.
#ifndef TANDEM_TOOLS_DOCTOR_DOCTOR_LINK_H_
#define TANDEM_TOOLS_DOCTOR_DOCTOR_LINK_H_

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
  // UNAVAILABLE: the host cannot be reached; FAILED_PRECONDITION: refused; DEADLINE_EXCEEDED.
  static absl::StatusOr<DoctorLink> Connect(const std::string& address, absl::Time deadline);
  explicit DoctorLink(OwnedFd socket) : socket_(std::move(socket)) {}

  // The number of the other host; empty: the connection has ended.
  std::string PeerHost() const;

  // Returns the first bytes that arrive, between 1 and `most`. DEADLINE_EXCEEDED: no byte came in
  // time. UNAVAILABLE: the other side has closed the connection.
  absl::StatusOr<std::string> ReadSome(size_t most, absl::Time deadline);
  absl::StatusOr<std::string> ReadAll(size_t bytes, absl::Time deadline);
  absl::Status Write(absl::string_view bytes, absl::Time deadline);

  absl::Status Send(const nlohmann::json& message, absl::Time deadline);
  // INVALID_ARGUMENT: the message is too long, or no JSON object.
  absl::StatusOr<nlohmann::json> Receive(absl::Time deadline);
  // Sends `message` and waits for the reply.
  absl::StatusOr<nlohmann::json> Ask(const nlohmann::json& message, absl::Time deadline);

 private:
  OwnedFd socket_;
};

class DoctorListener {
 public:
  // `address`: HOST:PORT; port 0 or * means any free port. UNAVAILABLE: it cannot be bound.
  static absl::StatusOr<DoctorListener> Bind(const std::string& address);
  int port() const { return port_; }
  // NOT_FOUND: no connection came before the deadline.
  absl::StatusOr<DoctorLink> Accept(absl::Time deadline);

 private:
  DoctorListener(OwnedFd socket, int port) : socket_(std::move(socket)), port_(port) {}
  OwnedFd socket_;
  int port_ = 0;
};

// Fields of a message from another process. The default value if a field is missing or has
// another type.
std::string TextOf(const nlohmann::json& object, const char* key);
double NumberOf(const nlohmann::json& object, const char* key);
bool FlagOf(const nlohmann::json& object, const char* key);

}  // namespace tandem::doctor

#endif  // TANDEM_TOOLS_DOCTOR_DOCTOR_LINK_H_
