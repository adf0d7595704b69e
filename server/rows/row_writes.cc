#include "server/rows/row_writes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxBytes = kMaxStoreRows / 8;  // of Writer::changed

// The encoded form of a writer. The bytes of Writer::changed follow.
struct WriterHead {
  uint64_t writer = 0;
  int64_t number = 0;
  uint64_t at = 0;
  uint64_t bytes = 0;
};

// Performs the action on one key. True if it inserted or erased a row.
absl::StatusOr<bool> Act(StoreAction action, uint64_t key, const float* values, RowTable* store) {
  if (action == StoreAction::kErase) return store->Erase(key);
  uint32_t row = RowIndex::kNoRow;
  store->Find({&key, 1}, {&row, 1});
  if (row != RowIndex::kNoRow && action == StoreAction::kInsert) return false;
  if (row == RowIndex::kNoRow) TANDEM_RETURN_IF_ERROR(store->Add(key, &row));
  store->SetRow(key, row, values);
  return action == StoreAction::kInsert;
}

}  // namespace

RowWrites::Writer* RowWrites::Find(uint64_t writer) {
  const auto known = writers_.find(writer);
  if (known != writers_.end()) return &known->second;
  if (writers_.size() >= kMaxWriters) {
    writers_.erase(
        std::min_element(writers_.begin(), writers_.end(),
                         [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  }
  return &writers_[writer];
}

absl::Status RowWrites::Apply(uint64_t writer, int64_t number, StoreAction action,
                              absl::Span<const uint64_t> keys, absl::Span<const float> values,
                              RowTable* store, std::vector<uint64_t>* changed) {
  TANDEM_CHECK(keys.size() <= kMaxStoreRows && IsStoreWrite(action));
  Writer& memory = *Find(writer);
  if (number < memory.number) return absl::OkStatus();  // nobody waits for its answer any more
  if (number > memory.number) {
    memory.number = number;
    memory.at = ++writes_;
    memory.changed.assign(action == StoreAction::kAssign ? 0 : (keys.size() + 7) / 8, 0);
    const size_t width = static_cast<size_t>(store->dim() + store->slots_per_row());
    for (size_t i = 0; i < keys.size(); ++i) {
      const float* const row = HasStoreValues(action) ? values.data() + i * width : nullptr;
      TANDEM_ASSIGN_OR_RETURN(const bool acted, Act(action, keys[i], row, store));
      if (!acted) continue;
      memory.changed[i / 8] |= static_cast<uint8_t>(1u << (i % 8));
    }
  }
  for (size_t i = 0; i < std::min(keys.size(), memory.changed.size() * 8); ++i) {
    if ((memory.changed[i / 8] >> (i % 8) & 1) != 0) changed->push_back(keys[i]);
  }
  return absl::OkStatus();
}

// Layout: u64 writes_, then the writers one after the other.
void RowWrites::Encode(std::string* out) const {
  out->append(reinterpret_cast<const char*>(&writes_), sizeof writes_);
  for (const auto& [id, writer] : writers_) {
    const WriterHead head = {id, writer.number, writer.at, writer.changed.size()};
    out->append(reinterpret_cast<const char*>(&head), sizeof head);
    out->append(reinterpret_cast<const char*>(writer.changed.data()), writer.changed.size());
  }
}

absl::Status RowWrites::Decode(absl::string_view bytes) {
  const auto damaged = [](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("memory of writers: ", what));
  };
  writers_.clear();
  if (bytes.size() < sizeof writes_) return damaged("ends before its count of writes");
  bytes.copy(reinterpret_cast<char*>(&writes_), sizeof writes_);
  bytes.remove_prefix(sizeof writes_);
  while (!bytes.empty()) {
    WriterHead head;
    if (bytes.size() < sizeof head) return damaged("ends within a writer");
    bytes.copy(reinterpret_cast<char*>(&head), sizeof head);
    bytes.remove_prefix(sizeof head);
    if (head.number < 1 || head.at > writes_ || head.bytes > std::min(kMaxBytes, bytes.size()) ||
        writers_.size() >= kMaxWriters) {
      return damaged(absl::StrCat("write ", head.number, " with ", head.bytes, " bytes of rows"));
    }
    Writer writer;
    writer.number = head.number;
    writer.at = head.at;
    writer.changed.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(head.bytes));
    bytes.remove_prefix(head.bytes);
    if (!writers_.emplace(head.writer, std::move(writer)).second) return damaged("a writer twice");
  }
  return absl::OkStatus();
}

}  // namespace tandem::server
