// How a collective says that another rank is at fault: UNAVAILABLE with the rank as payload.
#ifndef TANDEM_COLLECTIVES_ERRORS_H_
#define TANDEM_COLLECTIVES_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tandem::collectives {

// "rank 3 is lost: connection reset".
absl::Status PeerLostError(int rank, absl::string_view why);
// `status`, which is not OK, naming `rank` as the one that was waited for in vain.
absl::Status BlameOn(int rank, absl::Status status);
// The rank that a status names as lost, or as waited for in vain; nothing for any other status.
absl::optional<int> LostPeer(const absl::Status& status);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ERRORS_H_
