#include "tests/cuda/processes.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxPeers = 16;
constexpr size_t kMaxGather = 1024;

void Say(char* to, size_t room, const std::string& text) {
  const size_t size = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

}  // namespace

struct PeerPage {
  struct Rank {
    std::atomic<uint64_t> gathered{0};
    std::atomic<int> ended{0};
    char word[2][kMaxGather];  // of gather n at n % 2
    char result[2048];
  };
  Rank ranks[kMaxPeers];
};

collectives::DeviceStatus Peer::AllGather(const void* mine, size_t bytes, void* all) {
  if (bytes > kMaxGather) {
    return collectives::DeviceStatus(collectives::DeviceStatus::Code::kInvalidArgument,
                                     "gather: too many bytes");
  }
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  const uint64_t n = ++gathers_;
  int rounds = 0;
  std::memcpy(page_->ranks[rank_].word[n % 2], mine, bytes);
  page_->ranks[rank_].gathered.store(n);
  for (int r = 0; r < ranks_; ++r) {
    PeerPage::Rank& peer = page_->ranks[r];
    while (peer.gathered.load() < n) {
      if ((peer.ended.load() != 0 && peer.gathered.load() < n) || Clock::now() > deadline) {
        return collectives::DeviceStatus(collectives::DeviceStatus::Code::kPeer,
                                         "gather: a rank is missing", r);
      }
      if (++rounds < 1000) {
        sched_yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    std::memcpy(static_cast<char*>(all) + static_cast<size_t>(r) * bytes, peer.word[n % 2], bytes);
  }
  return collectives::DeviceStatus();
}

collectives::DeviceStatus Peer::Barrier() {
  char nothing = 0, all[kMaxPeers];
  return AllGather(&nothing, 1, all);
}

namespace {

[[noreturn]] void RunChild(int rank, int ranks, PeerPage* page, const PeerBody& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing stays behind, however the parent ends
  Peer peer(rank, ranks, page);
  Say(page->ranks[rank].result, sizeof(page->ranks[rank].result), body(peer));
  page->ranks[rank].ended.store(1);
  std::fflush(nullptr);
  _exit(0);
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "exited with " + std::to_string(WEXITSTATUS(status));
  return "";
}

// Kills and collects those that have not ended by the deadline.
std::string Collect(const std::vector<pid_t>& children, PeerPage* page,
                    Clock::time_point deadline) {
  std::vector<std::string> said(children.size());
  for (size_t r = 0; r < children.size(); ++r) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(children[r], &status, WNOHANG)) == 0 && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (ended == 0) {
      kill(children[r], SIGKILL);
      waitpid(children[r], &status, 0);
      said[r] = "did not end in time";
    } else {
      said[r] = HowItEnded(status);
    }
    page->ranks[r].ended.store(1);
    if (said[r].empty()) said[r] = page->ranks[r].result;
  }
  for (size_t r = 0; r < said.size(); ++r) {
    if (said[r].empty()) continue;
    const bool skipped = said[r].compare(0, std::strlen(kSkip), kSkip) == 0;
    return skipped ? said[r] : "rank " + std::to_string(r) + ": " + said[r];
  }
  return "";
}

}  // namespace

std::string RunProcesses(int ranks, std::chrono::seconds limit, const PeerBody& body) {
  void* const memory =
      mmap(nullptr, sizeof(PeerPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || ranks > kMaxPeers) return "cannot start the ranks";
  auto* const page = new (memory) PeerPage;
  std::fflush(nullptr);
  if (ranks == 1 && std::getenv("TANDEM_GPU_INLINE") != nullptr) {
    Peer alone(0, 1, page);
    return body(alone);
  }
  std::vector<pid_t> children;
  for (int r = 0; r < ranks; ++r) {
    const pid_t child = fork();
    if (child == 0) RunChild(r, ranks, page, body);
    if (child < 0) {
      for (const pid_t started : children) kill(started, SIGKILL);
      break;
    }
    children.push_back(child);
  }
  std::string said = Collect(children, page, Clock::now() + limit);
  if (children.size() < static_cast<size_t>(ranks)) said = "fork failed";
  munmap(memory, sizeof(PeerPage));
  return said;
}

}  // namespace tandem
