#include "worker/embedded_server.h"

#include <utility>

#include "absl/time/time.h"
#include "proto/incarnation.h"

namespace tandem::worker {
namespace {

// After a failure of the worker: time for the scheduler to tell all nodes.
constexpr absl::Duration kPatience = absl::Seconds(2);

}  // namespace

EmbeddedServer::EmbeddedServer(server::ServerOptions options) : options_(std::move(options)) {
  options_.member.index = -1;  // the scheduler derives it from the worker's rank
  options_.member.incarnation = ServerOfWorker(options_.member.incarnation);
  options_.end = &end_;
  thread_ = std::thread([this] {
    absl::Status how = server::RunServer(options_);
    absl::MutexLock lock(&mutex_);
    how_ = std::move(how);
    ended_ = true;
    changed_.SignalAll();
  });
}

EmbeddedServer::~EmbeddedServer() {
  end_.store(true);
  if (thread_.joinable()) thread_.join();
}

absl::Status EmbeddedServer::failure() const {
  absl::MutexLock lock(&mutex_);
  return how_;
}

absl::Status EmbeddedServer::Join(const absl::Status& worker) {
  if (!worker.ok()) {
    absl::MutexLock lock(&mutex_);
    const absl::Time until = MonotonicNow() + kPatience;
    while (!ended_ && !changed_.WaitUntil(&mutex_, until)) continue;
    end_.store(true);
  }
  if (thread_.joinable()) thread_.join();
  return failure();
}

}  // namespace tandem::worker
