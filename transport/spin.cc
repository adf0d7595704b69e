#include "transport/spin.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>

namespace tandem::transport {
namespace {

// The number of threads on the whole machine that run or want to run, this one included; -1 if the
// system does not say.
int Runnable(int fd) {
  char text[128];
  const ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
  if (bytes <= 0) return -1;
  text[bytes] = '\0';
  double one, five, fifteen;
  int runnable = -1;
  return std::sscanf(text, "%lf %lf %lf %d/", &one, &five, &fifteen, &runnable) == 4 ? runnable
                                                                                     : -1;
}

}  // namespace

Spin::Spin(SpinMode mode) : mode_(mode), load_(open("/proc/loadavg", O_RDONLY | O_CLOEXEC)) {
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) == 0) cores_ = CPU_COUNT(&mine);
}

// Decides whether to spin. The system is asked only after a failed spin, because a thread that is
// about to sleep has the time.
bool Spin::Allowed(Clock::time_point now) {
  if (mode_ != SpinMode::kWhenCoresAreFree) return mode_ == SpinMode::kAlways;
  if (now < next_look_ || (allowed_ && !failed_)) return allowed_;
  failed_ = false;
  next_look_ = now + kLook;
  const int runnable = Runnable(load_.get());
  allowed_ = cores_ > 1 && runnable >= 0 && runnable <= cores_;
  return allowed_;
}

void Spin::Crowded(Clock::time_point now) {
  allowed_ = false;
  budget_ = kMin;
  next_look_ = now + kLook;
}

}  // namespace tandem::transport
