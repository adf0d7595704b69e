// A transport that can be part of a common wait, so that one thread can sleep on several transports
// at once (transport/multi_transport.h). This sequence replaces its Poll:
//
//   t.Poll(absl::ZeroDuration(), &events);           until nothing is reported
//   if (t.BeginWait(&until)) wait for t.wait_fd() to be readable, at most until `until`;
//   t.EndWait(was it readable?);                     then Poll again
#ifndef TANDEM_TRANSPORT_WAITABLE_H_
#define TANDEM_TRANSPORT_WAITABLE_H_

#include <chrono>

#include "absl/time/time.h"
#include "transport/transport.h"

namespace tandem::transport {

class WaitableTransport : public Transport {
 public:
  using Clock = std::chrono::steady_clock;
  static Clock::duration ToClock(absl::Duration d) {
    return std::chrono::duration_cast<Clock::duration>(absl::ToChronoNanoseconds(d));
  }
  // The time point `d` from now; very long durations mean "never".
  static Clock::time_point After(absl::Duration d) {
    return d > absl::Hours(24 * 365) ? Clock::time_point::max() : Clock::now() + ToClock(d);
  }

  // Between BeginWait and EndWait: readable when Poll has something to do.
  virtual int wait_fd() const = 0;
  // Prepares a wait; may spin a little first. Lowers *until to the time when Poll must be called in
  // any case. False: there may be events already, so call Poll instead of waiting. EndWait is
  // required in both cases.
  virtual bool BeginWait(Clock::time_point* until) = 0;
  virtual void EndWait(bool readable) = 0;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_WAITABLE_H_
