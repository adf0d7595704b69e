#include "server/worker_sums.h"

#include <algorithm>
#include <utility>

namespace tandem::server {
namespace {

template <typename T>
Buffer CopyOf(absl::Span<const T> numbers, BufferSource& source) {
  return CopyToBuffer(
      source, {reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size() * sizeof(T)});
}

}  // namespace

WorkerSums::WorkerSums(int dim, int workers, MeasureRows measure, KeyedSums* scratch,
                       BufferSource* source)
    : dim_(static_cast<size_t>(dim)),
      measure_(std::move(measure)),
      scratch_(*scratch),
      source_(*source),
      held_(static_cast<size_t>(workers)) {}

size_t WorkerSums::OnHeld(HeldStep* group) {
  const HeldUpdate& last = group->updates.back();
  const int rank = last.rank;
  Held& held = held_[static_cast<size_t>(rank)];
  if (held.summed == 0) {
    held.summed = last.Bytes();
    return 0;
  }
  held.waiting += last.Bytes();
  if (held.waiting <= held.summed) return 0;
  const size_t before = held.summed + held.waiting;
  const size_t freed = Add(rank, absl::MakeSpan(group->updates));
  held = {.summed = before - std::min(before, freed)};
  return freed;
}

// Gives the first update of worker `rank` that has rows the sum of all of them, added in the order
// of their arrival. Returns the bytes that they no longer take.
size_t WorkerSums::Add(int rank, absl::Span<HeldUpdate> updates) {
  parts_.clear();
  size_t keys = 0, bytes = 0;
  for (HeldUpdate& update : updates) {
    if (update.rank != rank || !update.has_rows()) continue;
    parts_.push_back(&update);
    keys += update.keys.size() / sizeof(uint64_t);
    bytes += update.Bytes();
  }
  if (parts_.size() < 2) return 0;
  scratch_.Start(keys, dim_, /*reads=*/false);
  for (HeldUpdate* const part : parts_) {
    if (part->rows_before_sum < 0) {
      part->row_staleness = measure_(*part);
      part->rows_before_sum = static_cast<int64_t>(part->rows());
    }
    scratch_.Add(part->keys.As<uint64_t>(), part->values.As<float>().data(), part->version_read);
    part->keys = part->values = Buffer();
  }
  HeldUpdate& first = *parts_.front();
  first.keys = CopyOf(absl::MakeConstSpan(scratch_.keys()), source_);
  first.values = CopyOf(scratch_.sums(), source_);
  return bytes - first.Bytes();
}

size_t WorkerSums::Close(HeldStep* group, std::vector<uint64_t>* divisors) {
  group->SortByRank();
  std::vector<HeldUpdate>& updates = group->updates;
  divisors->clear();
  size_t freed = 0;
  uint64_t workers = 0;
  for (size_t begin = 0, end = 0; begin < updates.size(); begin = end) {
    const int rank = updates[begin].rank;
    uint64_t samples = 0;
    for (; end < updates.size() && updates[end].rank == rank; ++end)
      samples += updates[end].samples;
    freed += Add(rank, absl::MakeSpan(updates).subspan(begin, end - begin));
    divisors->resize(end, samples);
    ++workers;
  }
  for (uint64_t& divisor : *divisors) divisor *= workers;
  std::fill(held_.begin(), held_.end(), Held());
  return freed;
}

}  // namespace tandem::server
