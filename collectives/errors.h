// How a collective says that another rank is at fault: UNAVAILABLE with the rank as payload.
#ifndef TANDEM_COLLECTIVES_ERRORS_H_
#define TANDEM_COLLECTIVES_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tandem {

// "rank 3 is lost: connection reset".
absl::Status PeerLostError(int rank, absl::string_view why);
// The rank that a status names as lost; nothing for any other status.
absl::optional<int> LostPeer(const absl::Status& status);

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_ERRORS_H_
