// Refusals of a value in a job, as "path: value, must be ...", with paths as in `--set`. Used by
// the checks of a job only.
#ifndef TANDEM_JOB_REFUSE_H_
#define TANDEM_JOB_REFUSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include <google/protobuf/descriptor.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/utf8.h"

namespace tandem::job {

template <typename... Parts>
absl::Status Refuse(absl::string_view path, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", parts...));
}

inline std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", EscapeInvisible(text), "\"");
}

// The names of all values of an enum except 0, which means "not set".
inline std::vector<std::string> ValueNames(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names.push_back(type.value(i)->name());
  }
  return names;
}

inline absl::Status Between(absl::string_view path, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Refuse(path, value, ", must be ", low, " to ", high);
}

}  // namespace tandem::job

#endif  // TANDEM_JOB_REFUSE_H_
