// Rows that `tandem cache` has parsed once (data.cache). Each data file has a cache file
// (data/cache_file.h), whose rows have the places and lines of the data file. Readers therefore
// give the same rows to the same workers in the same order, and a checkpoint that was made on the
// text resumes on the cache, and the other way round.
//
// A row is, in this order: the hash of its text (RowParser::HashOfRow), flags, and what the parser
// made of it. A bad row has the error in its stead.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_CACHE_ROWS_H_
#define TANDEM_DATA_CACHE_ROWS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/cache_file.h"
#include "data/row.h"
#include "proto/job.pb.h"

namespace tandem::data {

// The cache file of a data file in a folder: its base name and a hash of its whole path.
std::string CachePath(const std::string& folder, const std::string& source);

// The parser of rows that are read from the cache of `data`. `source`: the parser of the data files
// themselves. Open refuses a cache that is missing or damaged, that was made for other columns, or
// whose data file has changed since. If only the file's time is another one, the file is read to
// compare its contents.
absl::StatusOr<std::unique_ptr<RowParser>> NewCacheParser(const Data& data,
                                                          std::unique_ptr<RowParser> source,
                                                          const DataStatistics* statistics);

// The rows of a cache file. `name`: of the data file. For NewCacheParser and for fuzzing.
std::unique_ptr<RowFile> NewCacheRows(std::unique_ptr<CacheFile> file, std::string name,
                                      RowParser* parser);

struct CacheReport {
  int64_t rows = 0, bad_rows = 0;
  int64_t bytes = 0;       // of the cache file
  std::string first_bad;   // FILE:LINE: WHAT; empty: there is none, or it is not known
  std::string negative;    // the label that counts as 0 because it was seen first; may be empty
  bool was_there = false;  // a valid cache was there and stays
};

// Makes the cache file of one data file of the job, which appears whole or not at all. `negative`:
// the label that counts as 0 by the files before. INVALID_ARGUMENT: the data file cannot be read,
// or whether a row is a bad one depends on the rows that a worker has seen before.
absl::StatusOr<CacheReport> MakeCache(const Data& data, const std::string& source,
                                      const std::string& folder, int zstd_level,
                                      const std::string& negative);

}  // namespace tandem::data

#endif  // TANDEM_DATA_CACHE_ROWS_H_
