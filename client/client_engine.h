// ClientEngine is the implementation of Client. The engine owns the two cores and the transport,
// and shares them between threads.
//
// Only one thread at a time may use the transport. The thread that does so "drives", which means
// that it receives and sends for all callers. A thread that waits for a request drives itself if
// nobody else does. Then no hand-over to another thread lies between a blocking call and the
// network, because the thread that needs the answer also processes it. The engine's own thread
// drives while requests are in flight that nobody waits for, and occasionally when there are no
// requests. The engine's thread stops driving when a caller begins to wait.
//
// Thread safety: any thread, except where a function says otherwise. After Shutdown() only the
// outcomes of requests may be used.
#ifndef TANDEM_CLIENT_CLIENT_ENGINE_H_
#define TANDEM_CLIENT_CLIENT_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "client/client_core.h"
#include "client/store_core.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "transport/peer_map.h"
#include "transport/transport.h"

namespace tandem::client {

// A request from its call to its end.
struct ClientCall {
  bool push = false;
  ClientCore::PushInfo info;  // reads use only group and step
  std::vector<TableKeys> keys;
  std::vector<absl::Span<float>> rows;
  std::vector<PulledRows*> kept_rows;  // instead of `rows`: the rows stay in their frames
  std::vector<absl::Span<const float>> gradients;
  ClientCore::PreparedPush* prepared = nullptr;  // instead of keys and gradients; until sent
  absl::optional<StoreRequest> store;            // instead of all of the above
  absl::Time deadline = absl::InfiniteFuture();  // limit for the whole call

  absl::Status status;  // written once, before `done`
  std::atomic<bool> done{false};

  void Finish(absl::Status outcome) {
    status = std::move(outcome);
    done.store(true, std::memory_order_release);
  }
};

class ClientEngine {
 public:
  struct Options {
    EndpointId self;
    uint64_t incarnation = 0;
    int max_in_flight = 8;
    bool refuse_when_full = false;
    ClientCore::Options core;
  };

  // `plan` must outlive the engine.
  ClientEngine(const job::ResolvedJob& plan, std::unique_ptr<transport::Transport> transport,
               const Options& options);
  ~ClientEngine();

  // Ends all requests with CANCELLED and closes the transport. Call it once.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status SetView(const View& view) ABSL_LOCKS_EXCLUDED(mutex_);

  // See ClientCore::PreparePush. FAILED_PRECONDITION before the first view.
  absl::Status PreparePush(uint32_t group, absl::Span<const TableKeys> keys,
                           ClientCore::PreparedPush* push) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends a well-formed call as soon as there is room for it. The call's outcome comes later,
  // unless Start returns an error.
  absl::Status Start(std::shared_ptr<ClientCall> call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends a call that is not done with CANCELLED. When Cancel returns, nobody reads or writes the
  // memory that the call names.
  void Cancel(const ClientCall& call) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all calls, present and future, with `why`. The first reason stays.
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns when the call is done, or at the deadline. The calling thread may drive meanwhile.
  void Wait(const ClientCall& call, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  ClientCore::Counters counters() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The oldest push or pull and whom it waits for; empty if there is none.
  std::string Waiting() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Running {
    uint64_t number = 0;  // the request's number in its core
    std::shared_ptr<ClientCall> call;
  };
  struct Lost {
    EndpointId shard;
    std::string why;
  };
  struct Done {
    std::shared_ptr<ClientCall> call;
    absl::Status status;
  };

  void End(std::vector<Running>::iterator running, absl::Status outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLateCalls(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Issue(std::shared_ptr<ClientCall> call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until ready() is true, and drives when nobody else does. Calls ready() with the lock.
  template <typename Ready>
  void DriveUntil(Ready ready, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Background() ABSL_LOCKS_EXCLUDED(mutex_);

  // For the thread that drives. These functions may release the lock in between.
  void Turn(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeResults() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetAddresses();
  void SendNow(Outgoing out);

  const job::ResolvedJob& plan_;
  const Options options_;
  // used by the driving thread, but Wake() by any
  std::unique_ptr<transport::Transport> transport_;

  mutable absl::Mutex mutex_;
  CondVar changed_;  // a call is done, or nobody drives
  CondVar started_;  // wakes the engine's thread from its long sleep
  ClientCore core_ ABSL_GUARDED_BY(mutex_);
  StoreCore store_ ABSL_GUARDED_BY(mutex_);
  std::vector<Running> running_ ABSL_GUARDED_BY(mutex_);
  // views whose addresses are not set in peers_ yet
  std::vector<View> views_ ABSL_GUARDED_BY(mutex_);
  bool have_view_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // not OK: no call starts any more
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;  // some thread drives
  // a thread that drives issues a call at this moment
  bool issuing_ ABSL_GUARDED_BY(mutex_) = false;
  bool background_ ABSL_GUARDED_BY(mutex_) = false;  // the engine's own thread drives
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;      // the engine's own thread is in its long sleep
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;          // threads in DriveUntil
  uint64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // issued and not yet done
  int pushes_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time next_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  // From here on: only for the thread that drives.
  transport::PeerMap peers_;
  std::vector<transport::TransportEvent> events_;
  std::vector<Lost> lost_;  // lost connections and frames, for the cores
  std::vector<View> new_views_;
  std::vector<Outgoing> out_;  // to be given to the transport
  std::vector<Done> done_;     // to be reported to their callers
  std::thread thread_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_CLIENT_ENGINE_H_
