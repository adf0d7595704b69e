// Describes the machine on which a benchmark runs.
#ifndef TANDEM_TOOLS_BENCH_MACHINE_H_
#define TANDEM_TOOLS_BENCH_MACHINE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::bench {

// The first line of a file that begins with `prefix`; "unknown" if there is none.
std::string FirstLine(const std::string& path, absl::string_view prefix);

// One line: "AMD EPYC 9654, 2 cores, load 0.42".
std::string MachineLine();

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_MACHINE_H_
