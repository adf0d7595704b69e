#include "server/rows/pulled_row_snapshots.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::server {
namespace {

template <typename T>
void Put(std::string* out, const T* values, size_t count) {
  out->append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

// Takes `count` values off the front of `bytes`. False if there are fewer.
template <typename T>
bool Take(absl::string_view* bytes, T* values, size_t count) {
  if (count > bytes->size() / sizeof(T)) return false;
  if (count > 0) std::memcpy(values, bytes->data(), count * sizeof(T));
  bytes->remove_prefix(count * sizeof(T));
  return true;
}

}  // namespace

PulledRowSnapshots::PulledRowSnapshots(int dim, int workers, int reads)
    : dim_(static_cast<size_t>(dim)),
      of_worker_(static_cast<size_t>(workers), std::vector<Read>(static_cast<size_t>(reads))) {}

void PulledRowSnapshots::Free(Read* read) {
  bytes_ -= read->Bytes();
  read->step = -1;
  read->keys.clear();
  read->rows.clear();
}

void PulledRowSnapshots::Keep(int rank, int64_t step, int64_t version,
                              absl::Span<const uint64_t> keys, absl::Span<const float> rows) {
  TANDEM_CHECK(rows.size() == keys.size() * dim_);
  std::vector<Read>& reads = of_worker_[static_cast<size_t>(rank)];
  const auto same = std::find_if(reads.begin(), reads.end(), [&](const Read& r) {
    return r.step == step && r.version == version;
  });
  // A free place has the smallest step (-1), so it is taken first.
  const auto place = same != reads.end()
                         ? same
                         : std::min_element(reads.begin(), reads.end(),
                                            [](auto& a, auto& b) { return a.step < b.step; });
  Free(&*place);
  place->step = step;
  place->version = version;
  place->keys.assign(keys.begin(), keys.end());
  place->rows.assign(rows.begin(), rows.end());
  bytes_ += place->Bytes();
}

void PulledRowSnapshots::Find(const policies::Update& update, absl::Span<const uint64_t> keys,
                              std::vector<const float*>* rows) const {
  rows->assign(keys.size(), nullptr);
  for (const Read& read : of_worker_[static_cast<size_t>(update.rank)]) {
    if (read.step != update.step || read.version != update.version_read) continue;
    // A worker pushes rows in the order in which it read them, but perhaps not all of them.
    size_t at = 0;
    for (size_t i = 0; i < keys.size(); ++i, ++at) {
      while (at < read.keys.size() && read.keys[at] != keys[i]) ++at;
      if (at == read.keys.size()) return;
      (*rows)[i] = read.rows.data() + at * dim_;
    }
  }
}

void PulledRowSnapshots::Forget(int rank, int64_t step) {
  for (Read& read : of_worker_[static_cast<size_t>(rank)]) {
    if (read.step >= 0 && read.step <= step) Free(&read);
  }
}

std::string PulledRowSnapshots::Encode() const {
  std::string out;
  for (const std::vector<Read>& reads : of_worker_) {
    for (const Read& read : reads) {
      const int64_t numbers[] = {read.step, read.version, static_cast<int64_t>(read.keys.size())};
      Put(&out, numbers, 3);
      Put(&out, read.keys.data(), read.keys.size());
      Put(&out, read.rows.data(), read.rows.size());
    }
  }
  return out;
}

absl::Status PulledRowSnapshots::Decode(absl::string_view bytes) {
  const auto cut = [&] {
    return absl::DataLossError(absl::StrCat("rows as read: ", bytes.size(), " bytes do not fit"));
  };
  for (std::vector<Read>& reads : of_worker_) {
    for (Read& read : reads) {
      Free(&read);
      int64_t numbers[3];
      if (!Take(&bytes, numbers, 3)) return cut();
      const uint64_t count = static_cast<uint64_t>(numbers[2]);
      if (numbers[0] < -1 || count > bytes.size() / sizeof(uint64_t)) return cut();
      read.step = numbers[0];
      read.version = numbers[1];
      read.keys.resize(count);
      if (!Take(&bytes, read.keys.data(), count)) return cut();
      if (count * dim_ > bytes.size() / sizeof(float)) return cut();
      read.rows.resize(count * dim_);
      if (!Take(&bytes, read.rows.data(), read.rows.size())) return cut();
      bytes_ += read.Bytes();
    }
  }
  return bytes.empty() ? absl::OkStatus() : cut();
}

}  // namespace tandem::server
