// Session connects a program to a running job: give it the address of the scheduler, and read rows.
//
//   TANDEM_ASSIGN_OR_RETURN(const auto session, Session::Open("tcp://10.0.0.1:41231"));
//   std::vector<float> rows(ids.size() * dim);
//   TANDEM_RETURN_IF_ERROR(session->Read("items", ids, absl::MakeSpan(rows)));
//
// The scheduler sends the job, so the program needs nothing but the address, and the token of the
// job if it has one (node/job_token.h: TANDEM_TOKEN or TANDEM_TOKEN_FILE). The session follows
// views as long as it lives. A session is of one of two kinds:
//   reader  has no rank and no clock. A reader sees the rows as they are at the moment, and a row
//           that no worker has touched as its initial value. A reader changes nothing that is
//           trained. Nobody waits for a reader, and its end harms nobody.
//   rank    is a worker of the job in the place of tandem-worker. A rank is registered and sends
//           heartbeats, and others wait for it. The program pulls and pushes the steps of each
//           group through client(), in order from step 0, and calls Finish() at the end. A rank
//           takes no part in checkpoints: the session answers a request for one with an error, and
//           the scheduler makes none.
//
// Both kinds read and write the rows of KEY_VALUE tables (store_table.h).
//
// Thread safety: any thread. Not here: the training loop of tandem-worker (worker/), dense
// gradients between ranks (collectives/).
#ifndef TANDEM_CLIENT_SESSION_H_
#define TANDEM_CLIENT_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "client/client.h"
#include "job/job.h"
#include "node/node_session.h"
#include "proto/wire.pb.h"
#include "transport/transport.h"

namespace tandem::transport {
class JobKeys;
class ZmqContext;
}  // namespace tandem::transport

namespace tandem::client {

class Session {
 public:
  struct Options {
    std::string scheduler;                           // tcp://HOST:PORT
    absl::optional<int> rank;                        // a worker of the job; none: a reader
    absl::Duration open_within = absl::Seconds(60);  // until the job has begun
    std::string bind = "tcp://127.0.0.1:*";          // where this process listens; local suffices
    int max_in_flight = 8;                           // requests in flight, at most
    // Time limit of each request in total; waits that the policy demands count, too. Requests of
    // client() then fail with DEADLINE_EXCEEDED.
    absl::Duration deadline = absl::InfiniteDuration();
  };

  // Returns when the job has begun. DEADLINE_EXCEEDED: it has not begun in time. UNAVAILABLE: there
  // is no scheduler at the address. Other errors: the scheduler's reason for a refusal, or why the
  // job has failed.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const Options& options);
  // Opens a reader.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const std::string& scheduler);
  // Ends open requests with CANCELLED. A rank that has not called Finish() counts as failed.
  ~Session();

  const job::ResolvedJob& plan() const { return plan_; }
  Client& client() { return *client_; }

  // Reads the rows of `ids` as they are now; rows is [ids.size(), dim]. Ids may repeat. Waits; when
  // Read returns, the caller may use `ids` and `rows` again, whatever the outcome. NOT_FOUND: there
  // is no such table. DEADLINE_EXCEEDED: not all rows came within the time.
  absl::Status Read(absl::string_view table, absl::Span<const uint64_t> ids, absl::Span<float> rows,
                    absl::Duration within = absl::Seconds(30));

  // The number of floats in a row of the table; 0: there is no such table.
  size_t RowFloats(absl::string_view table) const;

  // OK while the job runs. CANCELLED "the job has ended" after a good end; otherwise who failed,
  // and why. Requests fail with the same error.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // For ranks, after all pushes are done: waits for the other ranks, and until the job has ended
  // well or badly. FAILED_PRECONDITION for readers.
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit Session(const Options& options) : options_(options) {}
  const job::TablePlan* FindTable(absl::string_view name) const;
  absl::Status Start();
  absl::StatusOr<std::unique_ptr<transport::Transport>> NewControlEndpoint() const;
  absl::Status NewMember(Register::Role role);
  absl::Status MakeClient();
  // Calls Round() until `over()` is true. DEADLINE_EXCEEDED contains `what`.
  template <typename Over>
  absl::Status RoundsUntil(absl::Time deadline, const char* what, Over over);
  absl::Status Round();
  absl::Status OnControl(const Control& control);
  absl::Status TakePlan(const ReaderWelcome& welcome);
  absl::Status OnView(const View& view);
  void Follow() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  // Constant once open.
  job::ResolvedJob plan_;
  uint64_t incarnation_ = 0;
  EndpointId self_;
  Register::Role role_ = Register::READER;  // the role that it is registered as at present
  std::shared_ptr<transport::ZmqContext> zmq_;
  std::shared_ptr<const transport::JobKeys> keys_;  // null: no token
  std::unique_ptr<Client> client_;

  // Used by the thread that opens, and then by thread_.
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<node::NodeSession> member_;
  std::vector<transport::TransportEvent> events_;
  View view_;  // the newest one
  bool welcome_ = false, begun_ = false, ended_ = false;

  mutable absl::Mutex mutex_;
  CondVar changed_;  // status_ has changed
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ended_well_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finish_ ABSL_GUARDED_BY(mutex_) = false;  // Finish() was called
  std::thread thread_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_SESSION_H_
