// Files of the source tree, which tests read.
#ifndef TANDEM_TESTS_SOURCE_PATH_H_
#define TANDEM_TESTS_SOURCE_PATH_H_

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The path from the root of the system to a file of the tree ($TANDEM_SOURCE_DIR; CTest sets it).
inline std::string SourcePath(absl::string_view file) {
  const char* const folder = std::getenv("TANDEM_SOURCE_DIR");
  return absl::StrCat(std::filesystem::absolute(folder == nullptr ? "." : folder).string(), "/",
                      file);
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SOURCE_PATH_H_
