#include "collectives/errors.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tandem::collectives {
namespace {
constexpr absl::string_view kLostRank = "tandem/lost_rank";
}  // namespace

absl::Status PeerLostError(int rank, absl::string_view why) {
  return BlameOn(rank, absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: ", why)));
}

absl::Status BlameOn(int rank, absl::Status status) {
  status.SetPayload(kLostRank, absl::Cord(absl::StrCat(rank)));
  return status;
}

absl::optional<int> LostPeer(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kLostRank);
  int rank = -1;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) {
    return absl::nullopt;
  }
  return rank;
}

}  // namespace tandem::collectives
