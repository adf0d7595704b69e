#include "client/pulled_versions.h"

#include <algorithm>
#include <utility>

namespace tandem::client {

const std::vector<int64_t>* PulledVersions::Find(uint32_t group, int64_t step) const {
  for (const Entry& entry : entries_) {
    if (entry.group == group && entry.step == step) return &entry.versions;
  }
  return nullptr;
}

std::vector<int64_t>& PulledVersions::At(uint32_t group, int64_t step, size_t ranges) {
  for (Entry& entry : entries_) {
    if (entry.group == group && entry.step == step) return entry.versions;
  }
  if (entries_.size() >= most_) {
    std::rotate(entries_.begin(), entries_.begin() + 1, entries_.end());
    spare_.push_back(std::move(entries_.back()));
    entries_.pop_back();
  }
  if (spare_.empty()) spare_.emplace_back();
  Entry entry = std::move(spare_.back());
  spare_.pop_back();
  entry.group = group;
  entry.step = step;
  entry.versions.assign(ranges, 0);
  entries_.push_back(std::move(entry));
  return entries_.back().versions;
}

// Entries that stay keep their order, because At drops the oldest entry first.
void PulledVersions::Forget(uint32_t group, int64_t step) {
  size_t kept = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].group == group && entries_[i].step <= step) continue;
    if (i != kept) std::swap(entries_[i], entries_[kept]);
    ++kept;
  }
  for (size_t i = kept; i < entries_.size(); ++i) spare_.push_back(std::move(entries_[i]));
  entries_.resize(kept);
}

}  // namespace tandem::client
