#include "node/network_check.h"

#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tandem::node {
namespace {

// tcp://HOST:PORT; of ipc:// neither.
struct HostAndPort {
  std::string host, port;
};

HostAndPort Split(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "tcp://")) return {};
  const size_t colon = address.rfind(':');
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return {std::string(host), std::string(address.substr(colon + 1))};
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const char* flag, const HostAndPort& at, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const char* const port = at.port == "*" ? "0" : at.port.c_str();
  const int failed = getaddrinfo(at.host.c_str(), port, &hints, &found);
  if (failed == 0) return AddressList(found, &freeaddrinfo);
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": host '", at.host, "' is not known: ", gai_strerror(failed)));
}

// Listens there for a moment.
absl::Status CheckBind(const RoleFlags& flags) {
  const HostAndPort at = Split(flags.bind);
  const bool all = at.host == "*" || at.host == "0.0.0.0" || at.host == "::";
  if (all && flags.advertise.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bind ", flags.bind,
                     ": listens everywhere, but under which name do others "
                     "find it? hint: --advertise HOST, or bind the address of one network"));
  }
  if (at.host.empty() || all || if_nametoindex(at.host.c_str()) != 0) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const AddressList list, Resolve("--bind", at, AI_PASSIVE));
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::OkStatus();  // who listens in earnest will say why it cannot
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool free = bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, 1) == 0;
  const int why = errno;
  close(fd);
  if (free) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--bind ", flags.bind, ": ", std::strerror(why),
                   why == EADDRINUSE ? "; hint: another port, or * for any free one" : ""));
}

}  // namespace

absl::Status CheckAddresses(const RoleFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckBind(flags));
  const HostAndPort scheduler = Split(flags.scheduler);
  if (scheduler.host.empty()) return absl::OkStatus();
  return Resolve("--scheduler", scheduler, 0).status();
}

}  // namespace tandem::node
