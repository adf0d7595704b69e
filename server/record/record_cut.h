// Cuts the files of update records (update_record.h) of a resumed run at its checkpoint. The run
// does the later steps again, so each update is in the files once.
//
// Each shard has a file of its own. It cuts this file as it opens it (record_file.h). A run may
// resume with fewer servers than before. CutOtherRecords cuts the files that no shard opens then.
#ifndef TANDEM_SERVER_RECORD_RECORD_CUT_H_
#define TANDEM_SERVER_RECORD_RECORD_CUT_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "proto/wire.pb.h"

namespace tandem::server {

inline constexpr char kRecordSuffix[] = ".updates";
inline constexpr uint64_t kAllRecords = std::numeric_limits<uint64_t>::max();

// "server-0-shard-1", without the suffix.
std::string RecordFileName(int server, int shard);

// How many bytes of the file `name` are from before the mark of the checkpoint. `run`: its record.
// kAllRecords: the checkpoint is of an earlier version, which did not note the lengths.
uint64_t RecordBytesAt(const RunRecord& run, const std::string& name);

// Cuts the files in `folder` that belong to no shard of the run: to a server from `servers` on, or
// to a shard from `shards` on. Removes a file that has no record from before the checkpoint.
// RESOURCE_EXHAUSTED: a file cannot be cut.
absl::Status CutOtherRecords(const std::string& folder, const RunRecord& run, int servers,
                             int shards);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RECORD_RECORD_CUT_H_
