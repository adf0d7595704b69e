#include "server/range_copy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace tandem::server {

// Layout of `held`: u64 samples of the last closed step; u64 length of the held updates in bytes;
// the held updates; the data that the policy has asked to be remembered. Among these are the mean
// squares: u64 count, the keys, the values.
RangeImage RangeCopy::Image() && {
  std::vector<std::pair<uint64_t, uint32_t>> order;  // position, index of the copy
  order.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    order.emplace_back(Position(salt, rows.key(i)), static_cast<uint32_t>(i));
  }
  std::sort(order.begin(), order.end());
  RangeImage image = std::move(head);
  const size_t dim = static_cast<size_t>(image.dim);
  const size_t slots = static_cast<size_t>(image.slots_per_row);
  image.keys.reserve(order.size());
  image.weights.reserve(order.size() * dim);
  image.slots.reserve(order.size() * slots);
  std::vector<float> squares;
  if (has_squares) squares.reserve(order.size() * dim);
  for (const auto& [position, index] : order) {
    const float* const row = rows.row(index);
    image.keys.push_back(rows.key(index));
    image.weights.insert(image.weights.end(), row, row + dim);
    image.slots.insert(image.slots.end(), row + dim, row + dim + slots);
    if (has_squares) squares.insert(squares.end(), row + dim + slots, row + dim + slots + dim);
  }
  rows = RowCopies(0, 1);
  const std::string updates = EncodeHeld(open, delayed, in_batches);
  open.Clear();
  delayed.Clear();
  const auto append = [&image](const auto* values, size_t count) {
    image.held.append(reinterpret_cast<const char*>(values), count * sizeof(*values));
  };
  const uint64_t numbers[] = {last_samples, updates.size()};
  append(numbers, 2);
  image.held.append(updates);
  image.held.append(memory_before);
  if (has_squares) {
    const uint64_t count = image.keys.size();
    append(&count, 1);
    append(image.keys.data(), image.keys.size());
    append(squares.data(), squares.size());
  }
  image.held.append(memory_after);
  return image;
}

}  // namespace tandem::server
