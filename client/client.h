// This folder, client/, has everything that a program needs to read and write rows on the servers
// of a job. `Client` is its public interface: asynchronous pulls of rows and pushes of gradient
// sums, for callers other than the trainer.
//
//   TANDEM_ASSIGN_OR_RETURN(auto client, Client::New(plan, std::move(transport), options));
//   TANDEM_RETURN_IF_ERROR(client->SetView(view));        // from the scheduler
//   Future read = client->Pull(group, step, keys, rows);  // the program continues meanwhile
//   TANDEM_RETURN_IF_ERROR(read.status());                // waits; `rows` is filled
//
// Session (session.h) makes a Client for a running job and keeps its view up to date.
//
// Rows and gradients are either copied between frames and the caller's arrays, or stay in the
// frames. For the second, PullInPlace says where each row has arrived, and PreparePush says where
// the caller writes each gradient before the push is sent.
//
// Ids may repeat within a request. Each id travels once. Its row goes to every place that asked for
// it, and its gradients are summed in the order in which they stand in the request. The number of
// requests in flight is bounded by max_in_flight: beyond it a call blocks until a request is done,
// or returns RESOURCE_EXHAUSTED at once with `refuse_when_full`. An error names the server and the
// key range that failed.
//
// Thread safety: any thread may call; requests of one thread go out in the order of its calls. The
// calling thread packs ids and gradients into frames and sends them. While it waits, it also
// receives the answers and puts rows into place (client_engine.h says how threads share this work).
// Not here: registration with the scheduler (session.h), the order of steps of a training loop
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

// The outcome of a request, now or later. Copies refer to the same request.
// Thread safety: any thread.
class Future {
 public:
  bool done() const { return call_->done.load(std::memory_order_acquire); }
  void Wait() const {
    if (!done()) engine_->Wait(*call_, absl::InfiniteFuture());
  }
  // Waits for at most `timeout`. Returns false if the request is not done by then.
  bool WaitFor(absl::Duration timeout) const {
    if (!done()) engine_->Wait(*call_, MonotonicNow() + timeout);
    return done();
  }
  // Gives the request up: it ends with CANCELLED, unless it is done already. Afterwards nobody
  // reads or writes the caller's arrays, so the caller may free them; the usual caller is one whose
  // WaitFor returned false. A cancelled push may have arrived, completely or in part, so its rank
  // can continue only by pushing the same step again.
  void Cancel() const {
    if (!done()) engine_->Cancel(*call_);
  }
  // Waits until the request is done.
  const absl::Status& status() const {
    Wait();
    return call_->status;
  }

 private:
  friend class Client;
  Future(std::shared_ptr<ClientCall> call, std::shared_ptr<ClientEngine> engine)
      : call_(std::move(call)), engine_(std::move(engine)) {}
  std::shared_ptr<ClientCall> call_;
  std::shared_ptr<ClientEngine> engine_;  // keeps the engine alive while callers wait
};

class Client {
 public:
  // The caller's knowledge of the ids of a request. kUnique promises that no id repeats, which
  // saves the search for repeated ids. The keys of a Batch never repeat.
  enum class Ids { kMayRepeat, kUnique };

  struct Options {
    // The identity that the shards see: a worker of the job, or a reader, which may call only Read
    // and Store.
    EndpointId self = EndpointId::Worker(0);
    uint64_t incarnation = 0;  // number of this process; never 0
    int max_in_flight = 8;     // requests in flight, at most
    bool refuse_when_full = false;
    // Time limit of each request, from its call to its end, including all waiting. After it the
    // request fails with DEADLINE_EXCEEDED, and the message says whom it waited for. The engine
    // checks deadlines every 50 ms.
    absl::Duration deadline = absl::InfiniteDuration();
    ClientCore::Options core;
  };

  // `plan` must outlive the client. INVALID_ARGUMENT: options out of range.
  static absl::StatusOr<std::unique_ptr<Client>> New(
      const job::ResolvedJob& plan, std::unique_ptr<transport::Transport> transport,
      const Options& options);
  // Ends requests that are not done with CANCELLED.
  ~Client();

  // Ends all requests, present and future, with the error `why`.
  void Fail(const absl::Status& why);

  // Sets where the ranges are and where the shards listen. Older views are ignored. Before the
  // first view every request fails with FAILED_PRECONDITION.
  absl::Status SetView(const View& view);

  // Reads the rows of `ids` as they are at this moment; rows is [ids.size(), dim]. The read waits
  // for no other worker. A row that does not exist yet reads as its initial value. ids and rows
  // must stay valid until the future is done. The read fails at the earlier of
  // `deadline` and the deadline of the options.
  Future Read(uint32_t table, absl::Span<const uint64_t> ids, absl::Span<float> rows,
              absl::Duration deadline = absl::InfiniteDuration());

  // Reads rows of tables of `group` for `step`; rows[i] is [keys[i].keys.size(), dim]. The policy
  // decides which updates the read sees and whether it waits for other workers. keys and rows must
  // stay valid until the future is done.
  Future Pull(uint32_t group, int64_t step, absl::Span<const TableKeys> keys,
              absl::Span<const absl::Span<float>> rows, Ids ids = Ids::kMayRepeat);

  // Pushes gradient sums over `samples` samples; gradients[i] is [keys[i].keys.size(), dim]. Each
  // step of a group is pushed exactly once and in order from 0, even if it has no row, because the
  // push is the worker's clock. keys and gradients must stay valid until the future is done. From
  // then on the servers hold or have applied every row, and no row is lost or applied twice.
  Future Push(uint32_t group, int64_t step, uint64_t samples, absl::Span<const TableKeys> keys,
              absl::Span<const absl::Span<const float>> gradients, Ids ids = Ids::kMayRepeat);

  // Like Pull, but without a copy: rows[i]->at()[k] is where the row of keys[i].keys[k] has
  // arrived, if the future's status is OK. Keys must not repeat. The keys and rows[i] must stay
  // valid until the future is done.
  Future PullInPlace(uint32_t group, int64_t step, absl::Span<const TableKeys> keys,
                     absl::Span<PulledRows* const> rows);

  // Prepares a push without a copy, in three steps. First PreparePush says where the gradient of
  // each key goes; keys must not repeat. Then the caller writes all gradients to push->at(i)[k].
  // Then Push sends them, and the caller must not touch them any more. INVALID_ARGUMENT: as for
  // Push. A prepared push may be dropped.
  using PreparedPush = ClientCore::PreparedPush;
  absl::Status PreparePush(uint32_t group, absl::Span<const TableKeys> keys, PreparedPush* push);
  // Sends a prepared push. When Push has returned, `push` may be prepared again.
  Future Push(int64_t step, uint64_t samples, PreparedPush* push);

  // Reads, writes or scans rows of a KEY_VALUE table, as a worker or as a reader. Keys and values
  // are copied before Store returns. The memory that the request names for answers must stay valid
  // until the future is done. Each write of this client to a range counts once, in call order.
  Future Store(const StoreRequest& request, absl::Duration deadline = absl::InfiniteDuration());

  ClientCore::Counters counters() const;
  // The oldest push or pull and whom it waits for, as text for people; empty if there is none.
  std::string Waiting() const;

 private:
  Client(const job::ResolvedJob& plan, std::unique_ptr<transport::Transport> transport,
         const Options& options);

  absl::Status Check(const ClientCall& call) const;
  absl::Status CheckStore(const StoreRequest& request) const;
  absl::Status CheckDistinct(const char* what, absl::Span<const TableKeys> keys) const;
  absl::Status CheckTables(const char* what, uint32_t group,
                           absl::Span<const TableKeys> keys) const;
  Future Start(std::shared_ptr<ClientCall> call);

  const job::ResolvedJob& plan_;
  const bool reader_;
  const absl::Duration deadline_;
  const std::shared_ptr<ClientEngine> engine_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_CLIENT_H_
