// Push and pull for a program of its own: asynchronous reads of rows and pushes of gradient sums,
// for callers that are not the trainer.
//
//   TANDEM_ASSIGN_OR_RETURN(auto client, Client::New(plan, std::move(transport), options));
//   TANDEM_RETURN_IF_ERROR(client->SetView(view));        // from the scheduler
//   Future read = client->Pull(group, step, keys, rows);  // the program goes on meanwhile
//   TANDEM_RETURN_IF_ERROR(read.status());                // waits; `rows` is filled
//
// session.h makes one for a running job, and keeps its view.
//
// Rows and gradients are copied between frames and arrays of the caller's, or stay in the frames:
// PullInPlace says where each row has arrived, and PreparePush where each gradient is to
// be written before the push is sent.
//
// Ids may repeat within a request: each travels once, its row goes to every place that asked for
// it, and its gradients are summed in the order in which they stand. Work in flight is bounded:
// with max_in_flight requests under way a call blocks until one is done, or with `refuse_when_full`
// comes back at once with RESOURCE_EXHAUSTED. An error names the server and the key range at fault.
//
// Thread safety: any thread may call; requests of one thread go out in its order. The thread that
// calls brings ids and gradients into frames and sends them, and while it waits it takes the
// answers and puts rows into place itself (client_engine.h says how threads share this). Not here:
// registration with the scheduler (session.h), the order of steps of a training loop
// (worker/trainer_core.h).
#ifndef TANDEM_CLIENT_CLIENT_H_
#define TANDEM_CLIENT_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "client/client_core.h"
#include "client/client_engine.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "transport/transport.h"

namespace tandem::client {

// The outcome of a request, now or later. Copies name the same request. Any thread.
class Future {
 public:
  bool done() const { return call_->done.load(std::memory_order_acquire); }
  void Wait() const {
    if (!done()) engine_->Wait(*call_, absl::InfiniteFuture());
  }
  // False if it was not done in time.
  bool WaitFor(absl::Duration timeout) const {
    if (!done()) engine_->Wait(*call_, MonotonicNow() + timeout);
    return done();
  }
  // Gives up: CANCELLED, unless the request is done. Nobody reads or writes the caller's arrays any
  // more, so they may go, as after a WaitFor that came back false. A push may have arrived, wholly or
  // in part, so its rank can go on only by sending the same step again.
  void Cancel() const {
    if (!done()) engine_->Cancel(*call_);
  }
  // Waits.
  const absl::Status& status() const {
    Wait();
    return call_->status;
  }

 private:
  friend class Client;
  Future(std::shared_ptr<ClientCall> call, std::shared_ptr<ClientEngine> engine)
      : call_(std::move(call)), engine_(std::move(engine)) {}
  std::shared_ptr<ClientCall> call_;
  std::shared_ptr<ClientEngine> engine_;  // lives on for those who still wait
};

class Client {
 public:
  // What a caller knows of the ids of a request. kUnique is a promise, which saves looking for
  // repeated ones; the keys of a Batch keep it.
  enum class Ids { kMayRepeat, kUnique };

  struct Options {
    // Whom the shards see: a worker of the job, or a reader, which may call Read and Store only.
    EndpointId self = EndpointId::Worker(0);
    uint64_t incarnation = 0;  // of this process; never 0
    int max_in_flight = 8;     // requests
    bool refuse_when_full = false;
    // Of each request, from the call to its end, whatever it waits for: DEADLINE_EXCEEDED then says
    // for whom. Noticed within 50 ms.
    absl::Duration deadline = absl::InfiniteDuration();
    ClientCore::Options core;
  };

  // `plan` outlives the client. INVALID_ARGUMENT: options out of range.
  static absl::StatusOr<std::unique_ptr<Client>> New(
      const job::JobPlan& plan, std::unique_ptr<transport::Transport> transport,
      const Options& options);
  // Requests that are not done end with CANCELLED.
  ~Client();

  // Ends all requests, and those to come, with `why`.
  void Fail(const absl::Status& why);

  // Where the ranges are, and where the shards listen; older views are ignored. Until the first one
  // every request fails with FAILED_PRECONDITION.
  absl::Status SetView(const View& view);

  // Reads the rows of `ids` as they are at this moment: rows is [ids.size(), dim]. It waits for no
  // other worker, and creates no row: one that nobody has touched reads as its first value. ids and
  // rows stay valid until the future is done. `deadline` as in the options; the shorter one counts.
  Future Read(uint32_t table, absl::Span<const uint64_t> ids, absl::Span<float> rows,
              absl::Duration deadline = absl::InfiniteDuration());

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

  // The same without a copy: rows[i]->at()[k] is where the row of keys[i].keys[k] has arrived, if
  // the future's status is OK. No key may repeat. The keys and rows[i] stay valid until it is done.
  Future PullInPlace(uint32_t group, int64_t step, absl::Span<const TableKeys> keys,
                     absl::Span<PulledRows* const> rows);

  // Push without a copy: first, PreparePush says where the gradient of each key goes, none of which
  // may repeat; then all of them are written to push->at(i)[k]; then Push sends it, after which
  // they may not be touched. INVALID_ARGUMENT: as for Push. A prepared push may be dropped.
  using PreparedPush = ClientCore::PreparedPush;
  absl::Status PreparePush(uint32_t group, absl::Span<const TableKeys> keys, PreparedPush* push);
  // `push` may be prepared again when Push has returned.
  Future Push(int64_t step, uint64_t samples, PreparedPush* push);

  // Reads, writes or scans rows of a STORE table, as a worker or as a reader; the memory that the
  // request names for answers stays valid until the future is done, its keys and values are copied.
  // Writes of this client to one range count once each, in the order of these calls.
  Future Store(const StoreRequest& request, absl::Duration deadline = absl::InfiniteDuration());

  ClientCore::Counters counters() const;
  // The oldest push or pull and whom it waits for, for people; empty: there is none.
  std::string Waiting() const;

 private:
  Client(const job::JobPlan& plan, std::unique_ptr<transport::Transport> transport,
         const Options& options);

  absl::Status Check(const ClientCall& call) const;
  absl::Status CheckStore(const StoreRequest& request) const;
  absl::Status CheckDistinct(const char* what, absl::Span<const TableKeys> keys) const;
  absl::Status CheckTables(const char* what, uint32_t group,
                           absl::Span<const TableKeys> keys) const;
  Future Start(std::shared_ptr<ClientCall> call);

  const job::JobPlan& plan_;
  const bool reader_;
  const absl::Duration deadline_;
  const std::shared_ptr<ClientEngine> engine_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_CLIENT_H_
