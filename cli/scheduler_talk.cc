#include "cli/scheduler_talk.h"

#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "node/network_check.h"
#include "node/role_flags.h"
#include "transport/zmq_transport.h"

namespace tandem::cli {
namespace {
constexpr absl::Duration kAnswerWithin = absl::Seconds(5);
constexpr absl::Duration kConnectWithin = absl::Seconds(4);  // so that a refusal comes before
constexpr absl::Duration kPollTime = absl::Milliseconds(50);
}  // namespace

bool SchedulerTalk::IsAddress(absl::string_view where) { return absl::StartsWith(where, "tcp://"); }

absl::StatusOr<std::string> SchedulerTalk::AddressOf(const std::string& where) {
  if (IsAddress(where)) return where;
  const absl::StatusOr<std::string> text = ReadWholeFile(where + "/address");
  if (text.ok()) return std::string(absl::StripAsciiWhitespace(*text));
  std::error_code error;
  const bool exists = std::filesystem::exists(where, error);
  const bool is_folder = std::filesystem::is_directory(where, error);
  return absl::NotFoundError(absl::StrCat(
      where,
      is_folder ? ": has no file `address`"
      : exists  ? ": is no folder"
                : ": there is no such folder",
      ", expected the --out folder of a run or the address of a scheduler, tcp://HOST:PORT"));
}

absl::StatusOr<std::unique_ptr<SchedulerTalk>> SchedulerTalk::Open(
    const std::string& address, std::shared_ptr<const transport::JobKeys> keys) {
  std::unique_ptr<SchedulerTalk> talk(new SchedulerTalk(address));
  talk->incarnation_ = node::NewIncarnation();
  transport::ZmqOptions zmq;
  zmq.context = std::make_shared<transport::ZmqContext>(/*io_threads=*/1);
  zmq.incarnation = talk->incarnation_;
  zmq.connect_deadline = kConnectWithin;
  zmq.linger = absl::ZeroDuration();
  zmq.keys = std::move(keys);
  TANDEM_ASSIGN_OR_RETURN(talk->transport_, transport::NewZmqTransport(zmq));
  TANDEM_ASSIGN_OR_RETURN(talk->peer_, talk->transport_->Connect(address));
  return talk;
}

absl::StatusOr<UserAnswer> SchedulerTalk::Ask(UserRequest::Kind kind) {
  Control control;
  control.mutable_user_request()->set_kind(kind);
  FrameHeader header;
  header.incarnation = incarnation_;
  const absl::Time deadline = MonotonicNow() + kAnswerWithin;
  TANDEM_RETURN_IF_ERROR(transport_->Send(peer_, EncodeControlFrame(*transport_, header, control)));
  while (!gone_ && MonotonicNow() < deadline) {
    events_.clear();
    transport_->Poll(kPollTime, &events_);
    for (const transport::TransportEvent& event : events_) {
      if (event.kind == transport::TransportEvent::Kind::kPeerLost ||
          event.kind == transport::TransportEvent::Kind::kPeerClosed) {
        if (absl::IsUnauthenticated(event.why)) return event.why;
        gone_ = true;
        break;
      }
      if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
      const absl::StatusOr<Control> answer = event.frame.ParseControl();
      if (!answer.ok() || !answer->has_user_answer()) continue;
      answered_ = true;
      const UserAnswer& said = answer->user_answer();
      if (said.code() == 0) return said;
      return absl::Status(static_cast<absl::StatusCode>(said.code()), said.text());
    }
  }
  if (gone_ && answered_) return absl::UnavailableError("the scheduler has ended");
  return absl::UnavailableError(absl::StrCat("no answer from the scheduler at ", address_, ": ",
                                             node::WhyNoAnswer(address_)));
}

}  // namespace tandem::cli
