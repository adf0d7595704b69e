// How a test makes endpoints, strangers and victims of one kind of transport; for the conformance
// suite.
//
// Thread safety: none, but for what a Transport promises.
#ifndef TANDEM_TESTS_UNIT_TRANSPORT_TRANSPORT_WORLD_H_
#define TANDEM_TESTS_UNIT_TRANSPORT_TRANSPORT_WORLD_H_

#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/owned_fd.h"
#include "transport/transport.h"

extern char** environ;

namespace tandem {

using Parts = std::vector<std::vector<uint8_t>>;

struct EndpointOptions {
  std::string address = "";  // empty: any
  int send_queue_frames = 1024;
  absl::Duration connect_deadline = absl::Seconds(30);
};

// An endpoint outside the test's control that sends every frame back and can be killed.
class Victim {
 public:
  virtual ~Victim() = default;
  virtual std::string address() const = 0;
  virtual void Kill() = 0;
};

// A TCP address of this host at which a test will listen later. The kernel gives ports of this
// range to nobody who does not ask for them. A port that it chooses could soon be that of a
// connection, even of the one that tries to reach it.
inline std::string TcpAddressForLater() {
  for (int port = 10000 + getpid() % 10000;; ++port) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const OwnedFd fd(socket(AF_INET, SOCK_STREAM, 0));
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) continue;
    return absl::StrCat("tcp://127.0.0.1:", port);
  }
}

class TransportWorld {
 public:
  virtual ~TransportWorld() = default;
  // Why this kind cannot be tested here; empty if it can.
  virtual std::string missing() const { return ""; }
  virtual std::unique_ptr<transport::Transport> New(const EndpointOptions& options) = 0;
  virtual std::string FreeAddress() = 0;
  // A stranger connects, sends one message of these parts, and stays until the world ends.
  virtual void SendRaw(const std::string& address, const Parts& parts) = 0;
  // Empty address: any. Empty connect_to: it only listens.
  virtual std::unique_ptr<Victim> NewVictim(const std::string& address,
                                            const std::string& connect_to) = 0;
};

// A child process that runs transport_victim.
class ChildVictim final : public Victim {
 public:
  ChildVictim(const std::string& bind, const std::string& connect_to) {
    const char* const bin = std::getenv("TANDEM_BIN_DIR");
    TANDEM_CHECK(bin != nullptr);
    std::string program = absl::StrCat(bin, "/transport_victim"), to = bind, from = connect_to;
    char* const argv[] = {program.data(), to.data(), from.empty() ? nullptr : from.data(), nullptr};
    int out[2];
    TANDEM_CHECK(pipe(out) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    TANDEM_CHECK(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    char c;
    while (read(out[0], &c, 1) == 1 && c != '\n') address_ += c;
    close(out[0]);
    TANDEM_CHECK(!address_.empty());
  }
  ~ChildVictim() override { Kill(); }
  std::string address() const override { return address_; }
  void Kill() override {
    if (pid_ < 0) return;
    Signal(SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  void Signal(int signal) { kill(pid_, signal); }

 private:
  pid_t pid_ = -1;
  std::string address_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_TRANSPORT_TRANSPORT_WORLD_H_
