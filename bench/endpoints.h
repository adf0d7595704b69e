// Endpoints of benchmarks, each with the options that matter there and no error to handle.
#ifndef TANDEM_BENCH_ENDPOINTS_H_
#define TANDEM_BENCH_ENDPOINTS_H_

#include <memory>
#include <utility>

#include "base/check.h"
#include "transport/shm_transport.h"
#include "transport/zmq_transport.h"

namespace tandem {

// With a context of its own, so that two ends share no thread.
inline std::unique_ptr<Transport> NewZmqEndpoint(EndpointId self = {}) {
  ZmqOptions options;
  options.context = std::make_shared<ZmqContext>(1);
  options.self = self;
  options.incarnation = 1;
  auto made = NewZmqTransport(options);
  TANDEM_CHECK_OK(made.status());
  return *std::move(made);
}

inline std::unique_ptr<Transport> NewShmEndpoint(SpinMode spin = ShmOptions().spin) {
  ShmOptions options;
  options.spin = spin;
  auto made = NewShmTransport(options);
  TANDEM_CHECK_OK(made.status());
  return *std::move(made);
}

}  // namespace tandem

#endif  // TANDEM_BENCH_ENDPOINTS_H_
