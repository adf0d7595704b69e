// What stands behind a Client: its core, its transport, and who uses them.
//
// Only one thread at a time may use the transport; whoever does "drives" for all. A thread that
// waits for a request drives itself if nobody else does, so that an answer is dealt with by the
// thread that wants it: no hand-over to another thread lies between a blocking call and the
// network. A thread of the engine's own drives while requests are under way that nobody waits for,
// and now and then when there are none; it makes way for a thread that waits.
//
// Thread safety: any thread, except where a function says otherwise. Nothing here outlives
// Shutdown() but the outcomes of requests.
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
  ClientCore::PushInfo info;  // reads use group and step
  std::vector<TableKeys> keys;
  std::vector<absl::Span<float>> rows;
  std::vector<PulledRows*> kept_rows;  // instead of `rows`: they stay in their frames
  std::vector<absl::Span<const float>> gradients;
  ClientCore::PreparedPush* prepared = nullptr;  // instead of keys and gradients; until it is sent
  absl::optional<StoreRequest> store;            // instead of all of the above
  absl::Time deadline = absl::InfiniteFuture();  // total, of the call

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

  // `plan` outlives the engine.
  ClientEngine(const job::JobPlan& plan, std::unique_ptr<transport::Transport> transport,
               const Options& options);
  ~ClientEngine();

  // Once: ends all requests with CANCELLED and closes the transport.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status SetView(const View& view) ABSL_LOCKS_EXCLUDED(mutex_);

  // See ClientCore::PreparePush. FAILED_PRECONDITION before the first view.
  absl::Status PreparePush(uint32_t group, absl::Span<const TableKeys> keys,
                           ClientCore::PreparedPush* push) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends a call that is well-formed once there is room for it; its outcome comes later, unless
  // Start returns an error.
  absl::Status Start(std::shared_ptr<ClientCall> call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends a call that is not done with CANCELLED; when this returns, nobody reads or writes the
  // memory that it names.
  void Cancel(const ClientCall& call) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for all calls, those to come too, with `why`. The first reason stays.
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns when the call is done or the deadline has passed; drives meanwhile.
  void Wait(const ClientCall& call, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  ClientCore::Counters counters() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The oldest push or pull and whom it waits for; empty: there is none.
  std::string Waiting() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Running {
    uint64_t number = 0;  // its core's
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
  // Waits for ready(), asked with the lock held; drives when nobody else does.
  template <typename Ready>
  void DriveUntil(Ready ready, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Background() ABSL_LOCKS_EXCLUDED(mutex_);

  // Of the thread that drives. They give the lock up in between.
  void Turn(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeResults() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetAddresses();
  void SendNow(Outgoing out);

  const job::JobPlan& plan_;
  const Options options_;
  std::unique_ptr<transport::Transport> transport_;  // whoever drives, but for Wake()

  mutable absl::Mutex mutex_;
  CondVar changed_;  // a call is done, or nobody drives
  CondVar started_;  // wakes the engine's thread when it sleeps deeply
  ClientCore core_ ABSL_GUARDED_BY(mutex_);
  StoreCore store_ ABSL_GUARDED_BY(mutex_);
  std::vector<Running> running_ ABSL_GUARDED_BY(mutex_);
  std::vector<View> views_ ABSL_GUARDED_BY(mutex_);  // whose addresses are not known yet
  bool have_view_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // not OK: nothing is begun any more
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;     // by any thread
  bool issuing_ ABSL_GUARDED_BY(mutex_) = false;     // by the thread that issues a call
  bool background_ ABSL_GUARDED_BY(mutex_) = false;  // by the engine's
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;      // the engine's thread, deeply
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;          // threads in DriveUntil
  uint64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // issued and not yet done
  int pushes_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time next_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  // Whoever drives, as all below.
  transport::PeerMap peers_;
  std::vector<transport::TransportEvent> events_;
  std::vector<Lost> lost_;  // connections and frames to shards, for the cores
  std::vector<View> new_views_;
  std::vector<Outgoing> out_;  // on their way to the transport
  std::vector<Done> done_;     // on their way to their callers
  std::thread thread_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_CLIENT_ENGINE_H_
