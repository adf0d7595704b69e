// Marks errors that mean that a disk has no room: the file system is full (ENOSPC), or the user's
// quota is (EDQUOT). The mark is part of the status, and between processes part of the message
// (Failure, CommandDone and BarrierEnter in proto/wire.proto). A checkpoint that the job depends on
// waits for room after such an error, and fails after any other one.
#ifndef TANDEM_BASE_NO_ROOM_H_
#define TANDEM_BASE_NO_ROOM_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace tandem {

inline constexpr char kNoRoomMark[] = "tandem/no_room";

inline absl::Status NoRoomError(absl::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kNoRoomMark, absl::Cord());
  return status;
}

inline bool IsNoRoom(const absl::Status& status) {
  return status.GetPayload(kNoRoomMark).has_value();
}

}  // namespace tandem

#endif  // TANDEM_BASE_NO_ROOM_H_
