#include "scheduler/state/readers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tandem::scheduler {
namespace {
constexpr int kNumbers = 1 << 16;  // the index of an EndpointId has 16 bits
}  // namespace

absl::StatusOr<int> Readers::Add(uint64_t connection) {
  const auto known = numbers_.find(connection);
  if (known != numbers_.end()) return known->second;
  if (numbers_.size() >= kMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("registration of a reader: there are ", kMax, " already"));
  }
  // A number is reused as late as possible, since a reader that has lost its connection may still
  // use it.
  const auto taken = [this](int number) {
    return std::any_of(numbers_.begin(), numbers_.end(),
                       [number](const auto& reader) { return reader.second == number; });
  };
  while (taken(next_)) next_ = (next_ + 1) % kNumbers;
  const int number = next_;
  next_ = (next_ + 1) % kNumbers;
  numbers_[connection] = number;
  return number;
}

}  // namespace tandem::scheduler
