// Fuzzing the job parser: no text and no override may crash it, and a job that is accepted resolves
// to a plan whose text parses to the same hash. Input: the override on the first line
// ("path=value", or nothing), the job below.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "job/job.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t line = input.find('\n');
  if (line == std::string::npos) return 0;
  const size_t equals = input.substr(0, line).find('=');
  tandem::job::Overrides overrides;
  if (equals != std::string::npos) {
    overrides.emplace_back(input.substr(0, equals), input.substr(equals + 1, line - equals - 1));
  }
  const auto job = tandem::job::ParseJob(input.substr(line + 1), "fuzz", overrides);
  if (!job.ok()) {
    TANDEM_CHECK(!job.status().message().empty());
    return 0;
  }
  const auto plan = tandem::job::Resolve(*job);
  TANDEM_CHECK(plan.ok());
  const auto again = tandem::job::ParseJob(tandem::job::ResolvedText(*plan), "again", {});
  TANDEM_CHECK(again.ok());
  const auto plan_again = tandem::job::Resolve(*again);
  TANDEM_CHECK(plan_again.ok() && plan_again->hash == plan->hash);
  return 0;
}
