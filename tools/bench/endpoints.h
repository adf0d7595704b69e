// Makes transport endpoints for benchmarks, with the options that matter there. An error aborts, so
// callers need not handle it.
#ifndef TANDEM_TOOLS_BENCH_ENDPOINTS_H_
#define TANDEM_TOOLS_BENCH_ENDPOINTS_H_

#include <memory>
#include <utility>

#include "base/check.h"
#include "transport/shm_transport.h"
#include "transport/zmq_transport.h"

namespace tandem::bench {

// Each endpoint has a context of its own, so that two endpoints share no thread. `keys` and
// `encrypted`: as in ZmqOptions.
inline std::unique_ptr<transport::Transport> NewZmqEndpoint(
    EndpointId self = {}, std::shared_ptr<const transport::JobKeys> keys = nullptr,
    bool encrypted = false) {
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(1);
  options.self = self;
  options.incarnation = 1;
  options.keys = std::move(keys);
  options.encrypted = encrypted;
  auto made = transport::NewZmqTransport(options);
  TANDEM_CHECK_OK(made.status());
  return *std::move(made);
}

inline std::unique_ptr<transport::Transport> NewShmEndpoint(
    transport::SpinMode spin = transport::ShmOptions().spin) {
  transport::ShmOptions options;
  options.spin = spin;
  auto made = transport::NewShmTransport(options);
  TANDEM_CHECK_OK(made.status());
  return *std::move(made);
}

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_ENDPOINTS_H_
