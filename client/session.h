// A program's way into a running job: give it the address of the scheduler, and read rows.
//
//   TANDEM_ASSIGN_OR_RETURN(const auto session, Session::Open("tcp://10.0.0.1:41231"));
//   std::vector<float> rows(ids.size() * dim);
//   TANDEM_RETURN_IF_ERROR(session->Read("items", ids, absl::MakeSpan(rows)));
//
// The scheduler hands out the job, so that nothing else need be known; views are followed for as long
// as the session lives. A session is of one of two kinds:
//   a reader  has no rank and no clock. It sees the rows as they are at the moment, a row that no
//             worker has touched as its first value, and changes nothing that is trained. Nobody
//             waits for it, and its end hurts nobody.
//   a rank    is a worker of the job in the place of tandem-worker: it is registered, beats, and is
//             waited for. It pulls and pushes the steps of each group through client(), in order from
//             step 0, and says at the end that it has finished. It has no part in checkpoints: to
//             a request for one it says so, and the scheduler makes none.
//
// Both read and write the rows of STORE tables (store_table.h).
//
// Thread safety: any thread. Not here: the training loop of tandem-worker (worker/), dense gradients
// between ranks (collectives/).
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
#include "node/job_member.h"
#include "proto/wire.pb.h"
#include "transport/transport.h"

namespace tandem::transport {
class ZmqContext;
}  // namespace tandem::transport

namespace tandem::client {

class Session {
 public:
  struct Options {
    std::string scheduler;                           // tcp://HOST:PORT
    absl::optional<int> rank;                        // a worker of the job; none: a reader
    absl::Duration open_within = absl::Seconds(60);  // until the job has begun
    std::string bind = "tcp://127.0.0.1:*";  // where this process listens; nobody need reach it
    int max_in_flight = 8;                   // requests
    // Of each request, in total; waits of a policy count. client() then says DEADLINE_EXCEEDED.
    absl::Duration deadline = absl::InfiniteDuration();
  };

  // Returns when the job has begun. DEADLINE_EXCEEDED: it has not in time. UNAVAILABLE: no scheduler
  // there. Otherwise what the scheduler refuses, or why the job has failed.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const Options& options);
  // A reader.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const std::string& scheduler);
  // Requests that are not done end with CANCELLED. A rank that has not finished is missed.
  ~Session();

  const job::JobPlan& plan() const { return plan_; }
  Client& client() { return *client_; }

  // Reads the rows of `ids`, which may repeat, as they are now: rows is [ids.size(), dim]. Waits; when
  // it returns, `ids` and `rows` are the caller's again, whatever the outcome. NOT_FOUND: there is no
  // such table. DEADLINE_EXCEEDED: not all came within the time.
  absl::Status Read(absl::string_view table, absl::Span<const uint64_t> ids, absl::Span<float> rows,
                    absl::Duration within = absl::Seconds(30));

  // How many floats a row of the table has; 0: there is no such table.
  size_t RowFloats(absl::string_view table) const;

  // OK while the job goes on. CANCELLED "the job has ended" after a good end; else who failed, and
  // why. Requests fail with the same.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Ranks: all pushes are done. Waits for the other ranks, and until the job has ended well or badly.
  // FAILED_PRECONDITION for readers.
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit Session(const Options& options) : options_(options) {}
  const job::TablePlan* FindTable(absl::string_view name) const;
  absl::Status Start();
  absl::StatusOr<std::unique_ptr<transport::Transport>> NewControlEndpoint() const;
  absl::Status NewMember(Register::Role role);
  absl::Status MakeClient();
  // Rounds until `over()`; DEADLINE_EXCEEDED says `what`.
  template <typename Over>
  absl::Status RoundsUntil(absl::Time deadline, const char* what, Over over);
  absl::Status Round();
  absl::Status OnControl(const Control& control);
  absl::Status TakePlan(const ReaderWelcome& welcome);
  absl::Status OnView(const View& view);
  void Follow() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  // Constant once open.
  job::JobPlan plan_;
  uint64_t incarnation_ = 0;
  EndpointId self_;
  Register::Role role_ = Register::READER;  // that it is registered as at the moment
  std::shared_ptr<transport::ZmqContext> zmq_;
  std::unique_ptr<Client> client_;

  // Of the thread that opens, and then of thread_.
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<node::JobMember> member_;
  std::vector<transport::TransportEvent> events_;
  View view_;  // the newest
  bool welcome_ = false, begun_ = false, ended_ = false;

  mutable absl::Mutex mutex_;
  CondVar changed_;  // status_
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ended_well_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finish_ ABSL_GUARDED_BY(mutex_) = false;  // asked for
  std::thread thread_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_SESSION_H_
