// Checks the fields of a job one by one: numbers within the bounds that the schema states, finite
// numbers, known values of enums. Checks of several fields together are in job_check.h.
#ifndef TANDEM_JOB_FIELD_CHECK_H_
#define TANDEM_JOB_FIELD_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "proto/bounds.pb.h"

namespace tandem::job {

// "1 to 255", "at least 0 and below 1"; empty without bounds.
std::string BoundsText(const Bounds& bounds);

// Refuses the first field that is set to a wrong value. `path` is the path of `message`
// in the job, with a dot at its end, and empty for the job itself.
absl::Status CheckFieldValues(const google::protobuf::Message& message, const std::string& path);

}  // namespace tandem::job

#endif  // TANDEM_JOB_FIELD_CHECK_H_
