#include "collectives/dump.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::collectives {
namespace {

using Json = nlohmann::ordered_json;

// A rank is a straggler if the others waited longest for it in more than half of the operations in
// which anybody waited, and for at least this long in all.
constexpr absl::Duration kWorthTelling = absl::Milliseconds(1);

Json TimeJson(absl::Time t) {
  return t == absl::InfiniteFuture() ? Json(nullptr) : Json(absl::ToUnixMicros(t));
}
absl::Time TimeOf(const Json& j) {
  return j.is_null() ? absl::InfiniteFuture() : absl::FromUnixMicros(j.get<int64_t>());
}

Json RecordJson(const OperationRecord& r) {
  const bool point_to_point = r.primitive == Primitive::kPointToPoint;
  return {{"number", r.number},
          {"primitive", PrimitiveName(r.primitive)},
          {"algorithm", point_to_point ? "-" : AlgorithmName(r.algorithm)},
          {"type", Name(r.type)},
          {"op", Name(r.op)},
          {"root", r.root},
          {"count", r.count},
          {"bytes_sent", r.bytes_sent},
          {"called_us", TimeJson(r.called)},
          {"begun_us", TimeJson(r.begun)},
          {"finished_us", TimeJson(r.finished)},
          {"failed", r.failed},
          {"waited_rank", r.waited_rank},
          {"waited_us", absl::ToInt64Microseconds(r.waited)},
          {"last_wait_rank", r.last_wait_rank}};
}

absl::StatusOr<Primitive> AnyPrimitive(const std::string& name) {
  if (name == PrimitiveName(Primitive::kPointToPoint)) return Primitive::kPointToPoint;
  return ParsePrimitive(name);
}

absl::StatusOr<OperationRecord> RecordOf(const Json& j) {
  OperationRecord r;
  r.number = j.at("number").get<uint64_t>();
  TANDEM_ASSIGN_OR_RETURN(r.primitive, AnyPrimitive(j.at("primitive").get<std::string>()));
  if (r.primitive != Primitive::kPointToPoint) {
    TANDEM_ASSIGN_OR_RETURN(r.algorithm, ParseAlgorithm(j.at("algorithm").get<std::string>()));
  }
  const auto type = ParseDataType(j.at("type").get<std::string>());
  const auto op = ParseReduceOp(j.at("op").get<std::string>());
  if (!type.has_value() || !op.has_value()) return absl::InvalidArgumentError("unknown type or op");
  r.type = *type;
  r.op = *op;
  r.root = j.at("root").get<int>();
  r.count = j.at("count").get<int64_t>();
  r.bytes_sent = j.at("bytes_sent").get<int64_t>();
  r.called = TimeOf(j.at("called_us"));
  r.begun = TimeOf(j.at("begun_us"));
  r.finished = TimeOf(j.at("finished_us"));
  r.failed = j.at("failed").get<bool>();
  r.waited_rank = j.at("waited_rank").get<int>();
  r.waited = absl::Microseconds(j.at("waited_us").get<int64_t>());
  r.last_wait_rank = j.at("last_wait_rank").get<int>();
  return r;
}

absl::Status ReadLine(absl::string_view line, bool first, GroupDump* dump) {
  try {
    const Json j = Json::parse(line.begin(), line.end());
    if (!first) {
      TANDEM_ASSIGN_OR_RETURN(OperationRecord record, RecordOf(j));
      dump->records.push_back(record);
      return absl::OkStatus();
    }
    dump->group = j.at("group").get<std::string>();
    dump->rank = j.at("rank").get<int>();
    dump->ranks = j.at("ranks").get<int>();
    dump->host = j.at("host").get<std::string>();
    dump->written = TimeOf(j.at("written_us"));
    dump->status = j.at("status").get<std::string>();
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError(first ? "expected the first line of a rank's dump"
                                            : "expected an operation of a rank's dump");
  }
  if (dump->ranks < 1 || dump->ranks > 1 << 16 || dump->rank < 0 || dump->rank >= dump->ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", dump->rank, " of ", dump->ranks, " is invalid"));
  }
  return absl::OkStatus();
}

// ---- Comparing ----

std::string Short(const OperationRecord& r) {
  return absl::StrCat(PrimitiveName(r.primitive), " #", r.number);
}

std::string Long(const OperationRecord& r) {
  std::string out = absl::StrCat(PrimitiveName(r.primitive), " of ", r.count, " ", Name(r.type));
  if (Reduces(r.primitive)) absl::StrAppend(&out, ", ", Name(r.op));
  if (HasRoot(r.primitive)) absl::StrAppend(&out, ", root ", r.root);
  return absl::StrCat(out, ", ", AlgorithmName(r.algorithm));
}

bool Alike(const OperationRecord& a, const OperationRecord& b) {
  return a.primitive == b.primitive && a.count == b.count && a.type == b.type &&
         a.algorithm == b.algorithm && (!Reduces(a.primitive) || a.op == b.op) &&
         (!HasRoot(a.primitive) || a.root == b.root);
}

const char* State(const OperationRecord& r) {
  if (r.finished != absl::InfiniteFuture() && !r.failed) return "finished";
  return r.failed ? "failed" : "not finished";
}

// Puts the dumps of one group side by side, operation by operation. Sends and receives are left
// out, because they concern only two ranks. Without them the collectives have the same numbers on
// all ranks, provided that the dump begins at the first operation.
class Alignment {
 public:
  explicit Alignment(absl::Span<const GroupDump> dumps) : ranks_(dumps[0].ranks) {
    for (const GroupDump& dump : dumps) AddRank(dump);
  }

  std::vector<std::string> Findings() {
    NoDump();
    NeverEntered();
    Disagreements();
    Unfinished();
    Stragglers();
    if (out_.empty()) out_.push_back("nothing unusual");
    return std::move(out_);
  }

 private:
  using Column = std::map<uint64_t, OperationRecord>;  // by number of the collective

  void AddRank(const GroupDump& dump) {
    Column& column = by_rank_[dump.rank];
    uint64_t skipped = 0;
    for (const OperationRecord& record : dump.records) {
      if (record.primitive == Primitive::kPointToPoint) {
        ++skipped;
        continue;
      }
      OperationRecord own = record;
      own.number -= std::min(skipped, own.number);
      column[own.number] = own;
    }
  }

  void NoDump() {
    for (int r = 0; r < ranks_; ++r) {
      if (by_rank_.count(r) == 0) out_.push_back(absl::StrCat("rank ", r, " left no dump"));
    }
  }

  // The furthest operation that any rank has called.
  const OperationRecord* Furthest() const {
    const OperationRecord* furthest = nullptr;
    for (const auto& [rank, column] : by_rank_) {
      if (column.empty()) continue;
      const OperationRecord& last = column.rbegin()->second;
      if (furthest == nullptr || last.number > furthest->number) furthest = &last;
    }
    return furthest;
  }

  // The first operation that the rank has not called, as the other ranks recorded it.
  const OperationRecord* NextOf(const Column& column) const {
    const uint64_t next = column.empty() ? 0 : column.rbegin()->first + 1;
    for (const auto& [rank, other] : by_rank_) {
      const auto found = other.lower_bound(next);
      if (found != other.end()) return &found->second;
    }
    return nullptr;
  }

  void NeverEntered() {
    const OperationRecord* const furthest = Furthest();
    if (furthest == nullptr) return;
    for (const auto& [rank, column] : by_rank_) {
      const OperationRecord* const next = NextOf(column);
      if (next == nullptr) continue;
      const std::string last = column.empty()
                                   ? "it called no operation"
                                   : absl::StrCat("its last was ", Short(column.rbegin()->second),
                                                  " (", State(column.rbegin()->second), ")");
      out_.push_back(absl::StrCat("rank ", rank, " never entered ", Short(*next), "; ", last));
    }
  }

  void Disagreements() {
    std::set<uint64_t> numbers;
    for (const auto& [rank, column] : by_rank_) {
      for (const auto& [number, record] : column) numbers.insert(number);
    }
    for (const uint64_t number : numbers) {
      // Report only the first disagreement: later ones follow from it.
      if (TellDisagreement(number)) return;
    }
  }

  bool TellDisagreement(uint64_t number) {
    int first_rank = -1;
    const OperationRecord* first = nullptr;
    std::vector<std::string> others;
    for (const auto& [rank, column] : by_rank_) {
      const auto found = column.find(number);
      if (found == column.end()) continue;
      if (first == nullptr) {
        first_rank = rank;
        first = &found->second;
      } else if (!Alike(*first, found->second)) {
        others.push_back(absl::StrCat("rank ", rank, " in ", Long(found->second)));
      }
    }
    if (others.empty()) return false;
    out_.push_back(absl::StrCat("ranks disagree on #", number, ": rank ", first_rank, " is in ",
                                Long(*first), "; ", absl::StrJoin(others, "; ")));
    return true;
  }

  void Unfinished() {
    std::map<uint64_t, std::map<int, std::vector<int>>> waiting;  // number -> whom -> who
    std::map<uint64_t, std::string> names;
    for (const auto& [rank, column] : by_rank_) {
      for (const auto& [number, r] : column) {
        if (r.finished != absl::InfiniteFuture() && !r.failed) continue;
        if (r.begun == absl::InfiniteFuture()) continue;  // behind another operation
        waiting[number][r.last_wait_rank].push_back(rank);
        names[number] = Short(r);
      }
    }
    for (const auto& [number, by_whom] : waiting) {
      for (const auto& [whom, who] : by_whom) {
        out_.push_back(absl::StrCat(
            names[number], " did not finish on rank", who.size() > 1 ? "s " : " ",
            absl::StrJoin(who, ", "), ": ", who.size() > 1 ? "they" : "it",
            whom < 0 ? " waited for nobody" : absl::StrCat(" waited for rank ", whom)));
      }
    }
  }

  void Stragglers() {
    struct Sum {
      int operations = 0;
      absl::Duration waited;
    };
    std::map<int, Sum> sums;
    int operations = 0;
    std::map<uint64_t, std::pair<absl::Duration, int>> longest;  // by operation
    for (const auto& [rank, column] : by_rank_) {
      for (const auto& [number, r] : column) {
        auto& entry = longest[number];
        if (r.waited_rank >= 0) entry = std::max(entry, {r.waited, r.waited_rank});
      }
    }
    for (const auto& [number, entry] : longest) {
      if (entry.first <= absl::ZeroDuration()) continue;
      ++operations;
      ++sums[entry.second].operations;
      sums[entry.second].waited += entry.first;
    }
    for (const auto& [rank, sum] : sums) {
      if (2 * sum.operations <= operations || sum.waited < kWorthTelling) continue;
      out_.push_back(absl::StrCat("straggler: rank ", rank, " was waited for longest in ",
                                  sum.operations, " of ", operations, " operations, ",
                                  absl::FormatDuration(sum.waited), " in all"));
    }
  }

  const int ranks_;
  std::map<int, Column> by_rank_;
  std::vector<std::string> out_;
};

}  // namespace

GroupDump DumpOf(const Group& group, const std::string& name) {
  GroupDump dump;
  dump.group = name;
  dump.rank = group.rank();
  dump.ranks = group.ranks();
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) dump.host = host;
  dump.written = absl::Now();
  dump.status = group.status().ToString();
  dump.records = group.Records();
  return dump;
}

std::string DumpText(const GroupDump& dump) {
  const Json head = {{"group", dump.group},
                     {"rank", dump.rank},
                     {"ranks", dump.ranks},
                     {"host", dump.host},
                     {"written_us", TimeJson(dump.written)},
                     {"status", dump.status}};
  const auto line = [](const Json& j) {  // a status may quote bytes that are not text
    return j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  };
  std::string out = line(head);
  for (const OperationRecord& record : dump.records) out += line(RecordJson(record));
  return out;
}

absl::StatusOr<GroupDump> ParseDump(absl::string_view text) {
  GroupDump dump;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const absl::Status read = ReadLine(line, ++number == 1, &dump);
    if (!read.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", read.message()));
    }
  }
  if (number == 0) return absl::InvalidArgumentError("line 1: the file is empty");
  return dump;
}

absl::Status WriteDump(const std::string& folder, const GroupDump& dump) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = absl::StrCat(folder, "/", dump.group, ".", dump.rank, ".jsonl");
  return WriteFileAtomically(path, DumpText(dump));
}

absl::StatusOr<std::vector<GroupDump>> ReadDumps(const std::string& folder) {
  std::vector<GroupDump> dumps;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".jsonl") continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(entry.path().string()));
    absl::StatusOr<GroupDump> dump = ParseDump(text);
    if (!dump.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.path().string(), ": ", dump.status().message()));
    }
    dumps.push_back(*std::move(dump));
  }
  if (dumps.empty()) {
    return absl::NotFoundError(absl::StrCat(folder, ": no dumps (*.jsonl) in this folder"));
  }
  std::sort(dumps.begin(), dumps.end(), [](const GroupDump& a, const GroupDump& b) {
    return std::tie(a.group, a.rank) < std::tie(b.group, b.rank);
  });
  return dumps;
}

std::vector<std::string> CompareDumps(absl::Span<const GroupDump> dumps) {
  if (dumps.empty()) return {"no dumps"};
  return Alignment(dumps).Findings();
}

}  // namespace tandem::collectives
