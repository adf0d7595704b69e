// A conversation of a user's tool with the scheduler of a running job: the tool sends requests and
// gets answers, and is no member of the job.
//
//   TANDEM_ASSIGN_OR_RETURN(const std::string address, SchedulerTalk::AddressOf("out/first"));
//   TANDEM_ASSIGN_OR_RETURN(const auto talk, SchedulerTalk::Open(address));
//   TANDEM_ASSIGN_OR_RETURN(const UserAnswer answer, talk->Ask(UserRequest::STATUS));
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_SCHEDULER_TALK_H_
#define TANDEM_CLI_SCHEDULER_TALK_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire.pb.h"
#include "transport/job_keys.h"
#include "transport/transport.h"

namespace tandem::cli {

class SchedulerTalk {
 public:
  // Whether the text is an address, tcp://HOST:PORT, and not a folder.
  static bool IsAddress(absl::string_view where);
  // The address of a running job, from the file `address` in the folder of its run, or the text
  // itself if it is an address. NOT_FOUND: the folder has no run.
  static absl::StatusOr<std::string> AddressOf(const std::string& where);

  // `keys`: of the job's token; null: it has none. INVALID_ARGUMENT: the address is malformed.
  static absl::StatusOr<std::unique_ptr<SchedulerTalk>> Open(
      const std::string& address, std::shared_ptr<const transport::JobKeys> keys);

  // Waits a few seconds for the answer. UNAVAILABLE: no scheduler answers there, with the reason.
  // FAILED_PRECONDITION and others: the scheduler refuses the request.
  absl::StatusOr<UserAnswer> Ask(UserRequest::Kind kind);

  // True once the connection has ended after an answer: the scheduler has gone.
  bool gone() const { return gone_; }

 private:
  explicit SchedulerTalk(std::string address) : address_(std::move(address)) {}

  const std::string address_;
  uint64_t incarnation_ = 0;
  std::unique_ptr<transport::Transport> transport_;
  transport::PeerId peer_ = 0;
  bool answered_ = false, gone_ = false;
  std::vector<transport::TransportEvent> events_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_SCHEDULER_TALK_H_
