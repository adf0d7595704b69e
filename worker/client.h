// Push and pull for a program of its own: asynchronous reads of rows and pushes of gradient sums,
// for callers that are not the trainer.
//
//   absl::StatusOr<std::unique_ptr<Client>> client = Client::New(plan, std::move(transport),
//   options);
//   (*client)->SetView(view);                              // from the scheduler
//   Future read = (*client)->Pull(group, step, keys, rows);  // the program goes on meanwhile
//   TANDEM_RETURN_IF_ERROR(read.status());                 // waits; `rows` is filled
//
// Ids may repeat within a request: each travels once, its row goes to every place that asked for
// it, and its gradients are summed in the order in which they stand. Work in flight is bounded:
// with max_in_flight requests under way a call blocks until one is done, or with `refuse_when_full`
// comes back at once with RESOURCE_EXHAUSTED. An error names the server and the key range at fault.
//
// Thread safety: any thread may call; requests of one thread go out in its order. Ids and gradients
// are brought into frames by the thread that calls, which has them in its cache; a thread of the
// client's own, which alone uses the transport, sends the frames, takes the answers and puts rows
// into place. Not here: registration with the scheduler (scheduler/node_link.h), the order of steps
// of a training loop (trainer_core.h).
#ifndef TANDEM_WORKER_CLIENT_H_
#define TANDEM_WORKER_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/job.h"
#include "proto/wire.pb.h"
#include "transport/peer_map.h"
#include "transport/transport.h"
#include "worker/batch.h"
#include "worker/client_core.h"
#include "worker/data/batch_builder.h"

namespace tandem {

// The outcome of a request, now or later. Copies name the same request. Any thread.
class Future {
 public:
  bool done() const { return state_->done.HasBeenNotified(); }
  void Wait() const { state_->done.WaitForNotification(); }
  // False if it was not done in time.
  bool WaitFor(absl::Duration timeout) const {
    return state_->done.WaitForNotificationWithTimeout(timeout);
  }
  // Waits.
  const absl::Status& status() const {
    Wait();
    return state_->status;
  }

 private:
  friend class Client;
  struct State {
    absl::Notification done;
    absl::Status status;  // written once, before `done`
  };
  Future() : state_(std::make_shared<State>()) {}
  void Set(absl::Status status) const {
    state_->status = std::move(status);
    state_->done.Notify();
  }
  std::shared_ptr<State> state_;
};

class Client {
 public:
  // What a caller knows of the ids of a request. kUnique is a promise, which saves looking for
  // repeated ones; the keys of a Batch keep it.
  enum class Ids { kMayRepeat, kUnique };

  struct Options {
    int rank = 0;              // the worker that the shards see
    uint64_t incarnation = 0;  // of this process; never 0
    int max_in_flight = 8;     // requests
    bool refuse_when_full = false;
    ClientCore::Options core;
  };

  // `plan` outlives the client. INVALID_ARGUMENT: options out of range.
  static absl::StatusOr<std::unique_ptr<Client>> New(const JobPlan& plan,
                                                     std::unique_ptr<Transport> transport,
                                                     const Options& options);
  // Requests that are not done end with CANCELLED.
  ~Client();

  // Where the ranges are, and where the shards listen; older views are ignored. Until the first one
  // every request fails with FAILED_PRECONDITION.
  absl::Status SetView(const View& view);

  // Reads rows of tables of `group` for `step`: rows[i] is [keys[i].keys.size(), dim]. What a read
  // sees, and whether it must wait for other workers, is the policy's affair. keys and rows stay
  // valid until the future is done.
  Future Pull(uint32_t group, int64_t step, absl::Span<const TableKeys> keys,
              absl::Span<const absl::Span<float>> rows, Ids ids = Ids::kMayRepeat);

  // Pushes the gradient sums over `samples` samples: gradients[i] is [keys[i].keys.size(), dim].
  // Steps of a group are pushed once each and in order from 0, also those without a row, because
  // the push is the clock. keys and gradients stay valid until the future is done, which means that
  // every row is held or applied, and from then on neither lost nor applied twice.
  Future Push(uint32_t group, int64_t step, uint64_t samples, absl::Span<const TableKeys> keys,
              absl::Span<const absl::Span<const float>> gradients, Ids ids = Ids::kMayRepeat);

  ClientCore::Counters counters() const;

 private:
  // A request from its call to its end. Inputs with repeated ids travel as `unique`.
  struct Call {
    explicit Call(const Future& f) : future(f) {}
    Future future;
    bool push = false;
    ClientCore::PushInfo info;  // reads use group and step
    std::vector<TableKeys> keys;
    std::vector<absl::Span<float>> rows;
    std::vector<absl::Span<const float>> gradients;
    struct Unique {
      size_t input = 0;
      SparseInput ids;
      std::vector<float> floats;  // rows or gradient sums of the unique ids
      absl::Span<float> rows;     // reads: where the caller wants them
    };
    std::vector<Unique> unique;
  };

  Client(const JobPlan& plan, std::unique_ptr<Transport> transport, const Options& options);

  absl::Status Check(const Call& call) const;
  void MergeRepeated(Call* call);
  Future Start(std::unique_ptr<Call> call, Ids ids);
  absl::Status Admit(std::unique_ptr<Call> call) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The client's thread only.
  void Loop();
  void TakeResults() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetAddresses();
  void SendAll();
  void Complete();

  const JobPlan& plan_;
  const Options options_;
  const std::unique_ptr<Transport> transport_;

  absl::Mutex merge_mutex_;  // taken alone
  KeyIndex index_ ABSL_GUARDED_BY(merge_mutex_);
  SparseInput ids_ ABSL_GUARDED_BY(merge_mutex_);  // scratch

  mutable absl::Mutex mutex_;
  ClientCore core_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::unique_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);  // by the core's number
  std::vector<View> views_ ABSL_GUARDED_BY(mutex_);  // whose addresses are not known yet
  bool have_view_ ABSL_GUARDED_BY(mutex_) = false;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // admitted, their futures not yet set
  int pushes_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  struct Done {
    std::unique_ptr<Call> call;
    absl::Status status;
  };
  PeerMap peers_;  // the client's thread, as all below
  std::vector<View> new_views_;
  std::vector<Outgoing> out_;  // on their way to the transport
  std::vector<Done> done_;     // on their way to their callers
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_WORKER_CLIENT_H_
