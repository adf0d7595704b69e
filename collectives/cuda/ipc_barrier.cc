#include "collectives/cuda/ipc_barrier.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

namespace tandem::collectives {
namespace {

using Code = DeviceStatus::Code;
using Clock = std::chrono::steady_clock;

constexpr size_t kNameBytes = 64;
constexpr size_t kTextBytes = 512;

DeviceStatus SystemError(const char* what) {
  return DeviceStatus(Code::kUnsupported,
                      std::string("shared memory: ") + what + ": " + std::strerror(errno));
}

void Pause(int round) {
  if (round < 1000) return;
  if (round < 3000) {
    sched_yield();
    return;
  }
  const timespec nap = {0, 50000};
  nanosleep(&nap, nullptr);
}

}  // namespace

struct alignas(64) IpcBarrier::Slot {
  std::atomic<uint64_t> entered{0};   // calls that this rank has posted
  std::atomic<uint64_t> launched{0};  // calls whose kernel this rank has enqueued
  CallPost post[2];                   // call n is at n % 2
};

struct alignas(64) IpcBarrier::Page {
  // 0: no failure; 1: a rank is writing its failure; 2: the failure is written.
  std::atomic<uint32_t> broken{0};
  int32_t code = 0;
  int32_t rank = -1;
  char text[kTextBytes] = {};
  Slot slots[1];  // one for each rank
};

IpcBarrier::~IpcBarrier() {
  if (page_ != nullptr) munmap(page_, bytes_);
}

// Rank 0 makes the memory with its zeroed counters; the others open it by name.
//
// Every rank takes part in both exchanges, even after a failure: a rank that left early would make
// the others wait until their deadline. The first exchange passes the name, the second one tells
// who has opened it.
DeviceStatus IpcBarrier::Open(const ByteAllGather& all_gather) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");
  bytes_ = sizeof(Page) + sizeof(Slot) * static_cast<size_t>(ranks_ - 1);
  std::string name;
  DeviceStatus made;
  if (rank_ == 0) made = Create(&name);

  char mine[kNameBytes] = {};  // empty: rank 0 could not make it
  if (made.ok()) name.copy(mine, kNameBytes - 1);
  std::vector<char> all(kNameBytes * static_cast<size_t>(ranks_));
  DeviceStatus status = all_gather(mine, sizeof(mine), all.data());
  if (status.ok() && all[0] == '\0') {
    status = rank_ == 0 ? made : DeviceStatus(Code::kPeer, "rank 0 has no shared memory", 0);
  }
  if (status.ok() && rank_ != 0) {
    const int file = shm_open(all.data(), O_RDWR | O_CLOEXEC, 0600);
    status =
        file < 0 ? SystemError("opening rank 0's memory (is rank 0 on this host?)") : Map(file);
    if (file >= 0) close(file);
  }
  // The name is removed once all ranks have opened the memory or have failed.
  char opened = status.ok() ? 1 : 0;
  std::vector<char> all_opened(static_cast<size_t>(ranks_));
  const DeviceStatus told = all_gather(&opened, 1, all_opened.data());
  if (!name.empty()) shm_unlink(name.c_str());
  if (!status.ok()) return status;
  if (!told.ok()) return told;
  for (int r = 0; r < ranks_; ++r) {
    if (all_opened[static_cast<size_t>(r)] == 0) {
      return DeviceStatus(Code::kPeer,
                          "rank " + std::to_string(r) + " has not opened the shared memory", r);
    }
  }
  return DeviceStatus();
}

DeviceStatus IpcBarrier::Create(std::string* name) {
  uint64_t random[2] = {};
  if (getrandom(random, sizeof(random), 0) != static_cast<ssize_t>(sizeof(random))) {
    return SystemError("getrandom");
  }
  char text[kNameBytes];
  std::snprintf(text, sizeof(text), "/tandem-%016llx%016llx",
                static_cast<unsigned long long>(random[0]),
                static_cast<unsigned long long>(random[1]));
  const int file = shm_open(text, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return SystemError("creating");
  *name = text;
  DeviceStatus status;
  if (ftruncate(file, static_cast<off_t>(bytes_)) != 0) status = SystemError("sizing");
  if (status.ok()) status = Map(file);
  close(file);
  if (!status.ok()) return status;
  new (page_) Page;
  for (int r = 1; r < ranks_; ++r) new (&page_->slots[r]) Slot;
  return status;
}

DeviceStatus IpcBarrier::Map(int file) {
  void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return SystemError("mapping");
  page_ = static_cast<Page*>(at);
  return DeviceStatus();
}

const CallPost& IpcBarrier::PostOf(int rank, uint64_t call) const {
  return page_->slots[rank].post[call % 2];
}

DeviceStatus IpcBarrier::Enter(const CallPost& mine) {
  deadline_ = Clock::now() + options_.deadline;
  ++call_;
  Slot& slot = page_->slots[rank_];
  slot.post[call_ % 2] = mine;
  slot.entered.store(call_, std::memory_order_release);
  for (int r = 0; r < ranks_; ++r) {
    TANDEM_DEVICE_RETURN(WaitFor(page_->slots[r].entered, r, "entered"));
  }
  return DeviceStatus();
}

void IpcBarrier::SayLaunched() {
  page_->slots[rank_].launched.store(call_, std::memory_order_release);
}

DeviceStatus IpcBarrier::WaitLaunched(int rank) {
  return WaitFor(page_->slots[rank].launched, rank, "launched");
}

DeviceStatus IpcBarrier::WaitFor(const std::atomic<uint64_t>& counter, int rank, const char* what) {
  for (int round = 0; counter.load(std::memory_order_acquire) < call_; ++round) {
    Pause(round);
    if (round % 64 != 63) continue;
    if (page_->broken.load(std::memory_order_acquire) == 2) return Broken();
    if (options_.still_waiting) TANDEM_DEVICE_RETURN(options_.still_waiting(rank));
    if (Clock::now() >= deadline_) {
      return DeviceStatus(Code::kDeadline,
                          "rank " + std::to_string(rank) + " has not " + what + " all-reduce #" +
                              std::to_string(call_) + " within " +
                              std::to_string(options_.deadline.count()) + " ms; its last was #" +
                              std::to_string(counter.load()),
                          rank);
    }
  }
  return DeviceStatus();
}

void IpcBarrier::Fail(const DeviceStatus& status) {
  if (page_ == nullptr) return;
  uint32_t fine = 0;
  if (!page_->broken.compare_exchange_strong(fine, 1)) return;
  page_->code = static_cast<int32_t>(status.code());
  page_->rank = status.rank() >= 0 ? status.rank() : rank_;
  const size_t size = std::min(status.message().size(), kTextBytes - 1);
  std::memcpy(page_->text, status.message().data(), size);
  page_->text[size] = '\0';
  page_->broken.store(2, std::memory_order_release);
}

DeviceStatus IpcBarrier::Broken() const {
  return DeviceStatus(
      Code::kPeer,
      "another rank gave up: " + std::string(page_->text, strnlen(page_->text, kTextBytes)),
      page_->rank);
}

}  // namespace tandem::collectives
