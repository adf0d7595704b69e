#include "server/store_answer.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxAnswerBytes = size_t{64} << 20;  // of rows in the answer to one frame
constexpr size_t kMaxRefusalBytes = 512;
constexpr size_t kMaxScanBytes = size_t{8} << 20;  // of rows in one slice of a scan

size_t RowFloats(const job::TablePlan& table) {
  return static_cast<size_t>(table.dim + table.extra_floats);
}

absl::Status CheckSender(const ParsedFrame& frame, const job::ResolvedJob& plan,
                         const RangeMap* map) {
  const FrameHeader& h = frame.header;
  const bool known = h.sender.role == Role::kReader ||
                     (h.sender.role == Role::kWorker && h.sender.index < plan.workers());
  if (map == nullptr) return absl::FailedPreconditionError("no view yet");
  if (!known || h.incarnation == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(h.sender.DebugString(), " may not send STORE frames"));
  }
  if (h.sender.role == Role::kWorker && !map->MayBeWorker(h.sender.index, h.incarnation)) {
    return absl::FailedPreconditionError(
        absl::StrCat("another process is worker ", h.sender.index));
  }
  if (IsStoreAction(h.flags)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unknown action ", h.flags));
}

// Checks what the frame decoder cannot check because it does not know the job.
absl::Status CheckSlices(const ParsedFrame& frame, const job::ResolvedJob& plan,
                         const RangeMap& map) {
  const auto action = static_cast<StoreAction>(frame.header.flags);
  size_t bytes = 0;
  for (uint32_t i = 0; i < frame.entry_count; ++i) {
    const SliceEntry e = frame.Entry(i);
    if (e.range >= map.ranges().size() || !plan.tables[map.range(e.range).table].store) {
      return absl::InvalidArgumentError(
          absl::StrCat("range ", e.range, " does not belong to a KEY_VALUE table"));
    }
    const size_t width = RowFloats(plan.tables[map.range(e.range).table]);
    const size_t want = HasStoreValues(action) && e.rows > 0 ? width : 0;
    if (e.rows > kMaxStoreRows || (e.row_floats != want && e.rows > 0) ||
        (action == StoreAction::kScan && e.rows > 0) ||
        (IsStoreWrite(action) ? e.version < 1 : e.version != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("write ", e.version, " with ", e.rows, " rows of ", e.row_floats,
                       " floats, expected ", want, " and at most ", kMaxStoreRows, " rows"));
    }
    bytes += action == StoreAction::kScan   ? kMaxScanBytes
             : action == StoreAction::kRead ? e.rows * width * sizeof(float)
                                            : 0;
    if (bytes > kMaxAnswerBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("asks for ", bytes, " bytes, at most ", kMaxAnswerBytes));
    }
  }
  return absl::OkStatus();
}

// An answer under construction.
struct Answer {
  std::vector<SliceEntry> entries;
  std::vector<uint64_t> keys;
  std::vector<float> values;

  void AddRows(const RowTable& store, absl::Span<const uint32_t> rows) {
    const size_t width = static_cast<size_t>(store.dim() + store.slots_per_row());
    const size_t before = values.size();
    values.resize(before + rows.size() * width);
    for (size_t i = 0; i < rows.size(); ++i) {
      store.CopyRow(rows[i], values.data() + before + i * width);
    }
  }
};

void Read(const RowTable& store, absl::Span<const uint64_t> keys, Answer* answer) {
  std::vector<uint32_t> rows(keys.size());
  store.Find(keys, absl::MakeSpan(rows));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] != RowIndex::kNoRow) answer->keys.push_back(keys[i]);
  }
  rows.erase(std::remove(rows.begin(), rows.end(), RowIndex::kNoRow), rows.end());
  answer->AddRows(store, rows);
}

int64_t Scan(const RowTable& store, int64_t cursor, uint64_t wanted, Answer* answer) {
  const size_t width = static_cast<size_t>(store.dim() + store.slots_per_row());
  const size_t most = std::max<size_t>(1, kMaxScanBytes / 2 / (width * sizeof(float)));
  std::vector<uint32_t> rows;
  const uint64_t next = store.Scan(static_cast<uint64_t>(cursor),
                                   std::clamp<size_t>(wanted, 1, most), &answer->keys, &rows);
  answer->AddRows(store, rows);
  return static_cast<int64_t>(next);
}

}  // namespace

bool IsResentWrite(const ParsedFrame& frame, absl::Span<const std::unique_ptr<Range>> owned) {
  for (uint32_t i = 0; i < frame.entry_count; ++i) {
    const SliceEntry e = frame.Entry(i);
    if (e.range >= owned.size() || owned[e.range] == nullptr) return false;
    const RowWrites* const writes = owned[e.range]->writes();
    if (writes == nullptr || !writes->Knows(frame.header.incarnation, e.version)) return false;
  }
  return true;
}

Frame RefuseStore(const ParsedFrame& frame, const FrameHeader& header, SliceStatus status,
                  absl::string_view why, BufferSource& buffers) {
  why = why.substr(0, kMaxRefusalBytes);
  Buffer text;
  if (frame.entry_count > 0 && !why.empty()) {
    const size_t words = (why.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t);
    text = buffers.Alloc(words * sizeof(uint64_t));
    const absl::Span<uint64_t> to = text.MutableAs<uint64_t>();
    std::fill(to.begin(), to.end(), 0);
    std::memcpy(to.data(), why.data(), why.size());
  }
  std::vector<SliceEntry> entries;
  for (uint32_t i = 0; i < frame.entry_count; ++i) {
    SliceEntry& e = entries.emplace_back();
    e.range = frame.Entry(i).range;
    e.status = status;
    if (i == 0) e.rows = static_cast<uint32_t>(text.size() / sizeof(uint64_t));
  }
  return EncodeDataFrame(buffers, header, entries, std::move(text), Buffer());
}

absl::StatusOr<Frame> AnswerStore(const ParsedFrame& frame, const job::ResolvedJob& plan,
                                  const RangeMap* map,
                                  absl::Span<const std::unique_ptr<Range>> owned,
                                  const FrameHeader& header, BufferSource& buffers) {
  TANDEM_RETURN_IF_ERROR(CheckSender(frame, plan, map));
  TANDEM_RETURN_IF_ERROR(CheckSlices(frame, plan, *map));
  const auto action = static_cast<StoreAction>(frame.header.flags);
  Answer answer;
  absl::Span<const uint64_t> keys = frame.keys().As<uint64_t>();
  absl::Span<const float> values = frame.values().As<float>();
  for (uint32_t i = 0; i < frame.entry_count; ++i) {
    SliceEntry e = frame.Entry(i);
    const absl::Span<const uint64_t> own = keys.first(e.rows);
    const absl::Span<const float> own_values = values.first(size_t{e.rows} * e.row_floats);
    keys.remove_prefix(own.size());
    values.remove_prefix(own_values.size());
    const size_t before = answer.keys.size();
    Range* const range = owned[e.range].get();
    if (range == nullptr) {
      e.status = SliceStatus::kWrongView;
    } else if (action == StoreAction::kRead) {
      Read(range->store(), own, &answer);
    } else if (action == StoreAction::kScan) {
      e.clock = Scan(range->store(), e.clock, frame.header.samples, &answer);
    } else {
      const absl::Status applied =
          range->writes()->Apply(frame.header.incarnation, e.version, action, own, own_values,
                                 &range->store(), &answer.keys);
      if (!applied.ok()) return NoMemoryFor(*range, applied);
    }
    e.rows = static_cast<uint32_t>(answer.keys.size() - before);
    const bool rows = e.rows > 0 && !IsStoreWrite(action);
    e.row_floats =
        rows ? static_cast<uint32_t>(RowFloats(plan.tables[map->range(e.range).table])) : 0;
    answer.entries.push_back(e);
  }
  const auto bytes_of = [&buffers](const auto& vector) {
    using Value = typename std::decay_t<decltype(vector)>::value_type;
    return vector.empty() ? Buffer()
                          : CopyToBuffer(buffers, {reinterpret_cast<const uint8_t*>(vector.data()),
                                                   vector.size() * sizeof(Value)});
  };
  return EncodeDataFrame(buffers, header, answer.entries, bytes_of(answer.keys),
                         bytes_of(answer.values));
}

}  // namespace tandem::server
