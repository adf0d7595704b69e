// The keys of a store in order of position, as in files.
#ifndef TANDEM_TESTS_UNIT_SERVER_SORTED_KEYS_H_
#define TANDEM_TESTS_UNIT_SERVER_SORTED_KEYS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "server/rows/row_table.h"

namespace tandem {

inline std::vector<uint64_t> SortedKeys(const server::RowTable& store) {
  std::vector<uint64_t> keys;
  std::vector<uint32_t> numbers;
  store.Scan(0, static_cast<size_t>(store.size()) + 1, &keys, &numbers);
  std::sort(keys.begin(), keys.end(), [&](uint64_t a, uint64_t b) {
    return Position(store.options().salt, a) < Position(store.options().salt, b);
  });
  return keys;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SERVER_SORTED_KEYS_H_
