// Where the processes of a job find its token (transport/job_keys.h), and what protects a job that
// has none. The token is never a flag, because everybody on a host can read command lines.
//
// Thread safety: free functions. ProvideToken changes the environment; call it before other threads
// start.
#ifndef TANDEM_NODE_JOB_TOKEN_H_
#define TANDEM_NODE_JOB_TOKEN_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/role_flags.h"
#include "proto/job.pb.h"
#include "transport/job_keys.h"

namespace tandem::node {

// The environment variables with the token, and with the name of a file that contains it.
inline constexpr char kTokenVariable[] = "TANDEM_TOKEN";
inline constexpr char kTokenFileVariable[] = "TANDEM_TOKEN_FILE";
// The file with the token in the folder of a run.
inline constexpr char kTokenFile[] = "token";

// Returns the keys of the first token of: TANDEM_TOKEN; the file that TANDEM_TOKEN_FILE names; the
// file `token` in `folder`, if `folder` is not empty and has one. Null: there is no token.
// INVALID_ARGUMENT: it is malformed. PERMISSION_DENIED: the file belongs to another user, or others
// may read it. The error names the source.
absl::StatusOr<std::shared_ptr<const transport::JobKeys>> FindKeys(const std::string& folder);

// Sets what connections of a role follow: flags->keys, with flags->out as the folder, and
// flags->silence. The keys are null if the job does not use its token (security.encrypt: NONE).
absl::Status LoadKeys(const Job& job, RoleFlags* flags);

// Gives the job a token, for the process that starts all roles: the one that FindKeys finds, or a
// new one. The roles inherit it by the environment.
absl::Status ProvideToken(const Job& job, const std::string& folder);

// Writes the token, if there is one, to the file `token` in `folder`, which only this user can
// read. Programs that read rows find it there. If the job does not use its token, removes the file
// of an earlier run instead.
absl::Status PublishToken(const Job& job, const std::string& folder);

// Writes a file that only this user can read. The file is new: it never has the mode or the readers
// of an earlier file of that name.
absl::Status WriteSecret(const std::string& path, absl::string_view text);

// INVALID_ARGUMENT: flags.bind is an address that other hosts can reach, and nothing keeps them
// out.
absl::Status CheckNotExposed(const Job& job, const RoleFlags& flags);

}  // namespace tandem::node

#endif  // TANDEM_NODE_JOB_TOKEN_H_
