#include "cli/launch/event_pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tandem::cli {

absl::Status EventPipe::Open() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot create a pipe: ", strerror(errno)));
  }
  read_end_ = OwnedFd(fds[0]);
  write_end_ = OwnedFd(fds[1]);
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return absl::OkStatus();
}

void EventPipe::Write(const nlohmann::json& event) {
  if (!write_end_.valid()) return;
  const std::string line =
      event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  // A pipe has room for thousands of these lines.
  if (write(write_end_.get(), line.data(), line.size()) < 0) write_end_ = OwnedFd();
}

std::vector<nlohmann::json> EventPipe::Read(absl::Duration timeout) {
  pollfd wait = {read_end_.get(), POLLIN, 0};
  poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  if ((wait.revents & POLLHUP) != 0 && (wait.revents & POLLIN) == 0) absl::SleepFor(timeout);
  char bytes[65536];
  for (ssize_t n; (n = read(read_end_.get(), bytes, sizeof bytes)) > 0;) {
    text_.append(bytes, static_cast<size_t>(n));
  }
  std::vector<nlohmann::json> events;
  for (size_t end; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1)) {
    auto event = nlohmann::json::parse(text_.substr(0, end), nullptr, false);
    if (event.is_object()) events.push_back(std::move(event));
  }
  return events;
}

}  // namespace tandem::cli
