// What the ranks of a group did, written by each to a file of its own and read together: who never
// came, who called something else, who was late.
//
// A dump is a file DIR/GROUP.RANK.jsonl (GROUP: any name without '/'). Its first line describes the rank,
//   {"group": "dense", "rank": 3, "ranks": 4, "host": "a", "written_us": ..., "status": "OK"}
// and each further one an operation, oldest first, of the last ones that the engine remembers:
//   {"number": 417, "primitive": "allreduce", "algorithm": "ring", "type": "f32", "op": "sum",
//    "root": 0, "count": 1000, "bytes_sent": 2000, "called_us": ..., "begun_us": ...,
//    "finished_us": ..., "failed": false, "waited_rank": 2, "waited_us": 31, "last_wait_rank": 2}
// Times are microseconds since 1970 by the rank's own clock; null: not yet; ranks -1: nobody.
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
  std::string status = "OK";  // of the group
  std::vector<OperationRecord> records;
};

// What a group remembers now. `host` is this machine's name.
GroupDump DumpOf(const Group& group, const std::string& name);

std::string DumpText(const GroupDump& dump);
// INVALID_ARGUMENT names the line.
absl::StatusOr<GroupDump> ParseDump(absl::string_view text);

// Into a folder, which is made; a reader sees all of the file or nothing.
absl::Status WriteDump(const std::string& folder, const GroupDump& dump);
// All dumps of a folder, by group and rank. NOT_FOUND: there is none.
absl::StatusOr<std::vector<GroupDump>> ReadDumps(const std::string& folder);

// What the dumps of one group say together, one finding a line, the gravest first:
//   "rank 2 left no dump"
//   "rank 3 never entered allreduce #418; its last was allreduce #417 (finished)"
//   "ranks disagree on #418: rank 0 is in allreduce of 1000 f32, sum, ring; rank 2 in broadcast ..."
//   "allreduce #418 did not finish on ranks 0, 1: they waited for rank 3"
//   "stragglers: rank 2 was waited for longest in 40 of 50 operations, 1.2s in all"
// "nothing unusual" if there is nothing to say. Requires dumps of one group.
std::vector<std::string> CompareDumps(absl::Span<const GroupDump> dumps);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DUMP_H_
