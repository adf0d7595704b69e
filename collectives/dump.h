// GroupDump: the operations of one rank of a group, written to a file of its own. A tool reads the
// files of all ranks together and says which rank never came, which called something else, and
// which was late.
//
// A dump is a file DIR/GROUP.RANK.jsonl (GROUP: any name without '/'). The first line is the rank:
//   {"group": "dense", "rank": 3, "ranks": 4, "host": "a", "written_us": ..., "status": "OK"}
// Each further line is one operation, oldest first. The engine remembers only the last ones:
//   {"number": 417, "primitive": "allreduce", "algorithm": "ring", "type": "f32", "op": "sum",
//    "root": 0, "count": 1000, "bytes_sent": 2000, "called_us": ..., "begun_us": ...,
//    "finished_us": ..., "failed": false, "waited_rank": 2, "waited_us": 31, "last_wait_rank": 2}
// Times are microseconds since 1970 by the rank's own clock. A null means "not yet", and rank -1
// means "nobody".
#ifndef TANDEM_COLLECTIVES_DUMP_H_
#define TANDEM_COLLECTIVES_DUMP_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "collectives/record.h"

namespace tandem::collectives {

struct GroupDump {
  std::string group = "group";
  int rank = 0, ranks = 1;
  std::string host;
  absl::Time written;
  std::string status = "OK";  // status of the group
  std::vector<OperationRecord> records;
};

// Copies the operations that a group remembers now. `host` becomes the name of this machine.
GroupDump DumpOf(const Group& group, const std::string& name);

std::string DumpText(const GroupDump& dump);
// INVALID_ARGUMENT names the line.
absl::StatusOr<GroupDump> ParseDump(absl::string_view text);

// Writes the dump into a folder and makes the folder if needed. A reader sees the whole file, or
// no file.
absl::Status WriteDump(const std::string& folder, const GroupDump& dump);
// Reads all dumps of a folder, ordered by group and rank. NOT_FOUND: the folder has none.
absl::StatusOr<std::vector<GroupDump>> ReadDumps(const std::string& folder);

// Compares the dumps of one group. Returns one finding a line, the gravest first:
//   "rank 2 left no dump"
//   "rank 3 never entered allreduce #418; its last was allreduce #417 (finished)"
//   "ranks disagree on #418: rank 0 is in allreduce of 1000 f32, sum, ring; rank 2 in ..."
//   "allreduce #418 did not finish on ranks 0, 1: they waited for rank 3"
//   "straggler: rank 2 was waited for longest in 40 of 50 operations, 1.2s in all"
// Returns "nothing unusual" if there is no finding. Requires dumps of one group.
std::vector<std::string> CompareDumps(absl::Span<const GroupDump> dumps);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DUMP_H_
