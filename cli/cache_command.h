// tandem cache: parses the files of a job once and writes their rows in a binary form. Runs read
// them with data.cache (data/cache_rows.h, docs/CACHE.md).
#ifndef TANDEM_CLI_CACHE_COMMAND_H_
#define TANDEM_CLI_CACHE_COMMAND_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tandem::cli {

struct CacheFlags {
  std::string job;
  std::vector<std::string> set;
  std::string out;     // folder; empty: data.cache of the job
  int zstd_level = 0;  // 0: not packed
};

void AddCache(CLI::App* app, CacheFlags* flags);

// Prints a line for each file and returns the exit code: 0, 1 if a cache cannot be written, or 2 if
// the job, the data or a flag is refused.
int CacheCommand(const CacheFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_CACHE_COMMAND_H_
