// MakeCache parses the rows of a data file once, for `tandem cache`, and NewCacheParser reads them
// in a run (data.cache). Each data file has a cache file (data/cache_file.h). Its rows have the
// places and lines of the data file, so workers get the same rows in the same order. A checkpoint
// of a run on the text therefore resumes on the cache, and the other way round.
//
// The bytes of a row: the hash of its text (RowParser::HashOfRow), one byte of flags, the numbers,
// for each field the number of its ids if it may have several, the ids, and the weights. A bad row
// has two errors instead: the parser's, and that of a parser that has read no row before.
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

// The folder that a name in the job or on the command line stands for (ExpandName). `knob` is its
// field or flag, for messages.
absl::StatusOr<std::string> CacheFolder(absl::string_view knob, const std::string& name);

// The path of the cache of data file `source`: FOLDER/NAME-HASH.cache, where HASH is a hash of the
// whole path of `source`.
std::string CachePath(const std::string& folder, const std::string& source);

// Returns a parser whose Open reads the cache of a data file, in folder data.cache. `source`: the
// parser of the data files themselves. Open refuses a cache that is missing or damaged, that was
// made for other columns, or whose data file has changed since. If only the modification time of
// the data file differs, Open reads the file to compare its contents; an address is refused.
absl::StatusOr<std::unique_ptr<RowParser>> NewCacheParser(const Data& data,
                                                          std::unique_ptr<RowParser> source,
                                                          const DataStatistics* statistics);

// Reads the rows of a cache file. `name`: the data file, for messages. For NewCacheParser and for
// fuzzing.
std::unique_ptr<RowFile> NewCacheRows(std::unique_ptr<CacheFile> file, std::string name,
                                      RowParser* parser);

struct CacheReport {
  int64_t rows = 0, bad_rows = 0;
  int64_t bytes = 0;       // size of the cache file
  std::string first_bad;   // FILE:LINE: WHAT; empty: no bad row, or `was_there`
  std::string negative;    // the label that counts as 0 because it was read first; may be empty
  bool was_there = false;  // a valid cache was there and stays
};

// Makes the cache file of one data file of the job, unless a valid one is there. The file appears
// whole or not at all. `negative`: the label that counts as 0 according to the files before.
// INVALID_ARGUMENT: the data file cannot be read, or a row is bad only because of the label that a
// worker has read first. FAILED_PRECONDITION: the data file changes while it is read.
absl::StatusOr<CacheReport> MakeCache(const Data& data, const std::string& source,
                                      const std::string& folder, int zstd_level,
                                      const std::string& negative);

}  // namespace tandem::data

#endif  // TANDEM_DATA_CACHE_ROWS_H_
