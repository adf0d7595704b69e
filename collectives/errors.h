// Errors of a collective that name the rank at fault: the rank is a payload of the status.
#ifndef TANDEM_COLLECTIVES_ERRORS_H_
#define TANDEM_COLLECTIVES_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tandem::collectives {

// UNAVAILABLE with the text "rank 3 is lost: connection reset".
absl::Status PeerLostError(int rank, absl::string_view why);
// Returns `status`, which is not OK, with `rank` as the rank that did not come in time.
absl::Status BlameOn(int rank, absl::Status status);
// The rank that a status names as lost or as too late; nullopt for any other status.
absl::optional<int> LostPeer(const absl::Status& status);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ERRORS_H_
