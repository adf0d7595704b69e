// Rows that lie one after the other, as functions want them that take each row's place.
#ifndef TANDEM_TESTS_ROWS_IN_H_
#define TANDEM_TESTS_ROWS_IN_H_

#include <cstddef>
#include <vector>

namespace tandem {

template <typename T>
std::vector<T*> RowsIn(T* rows, size_t count, size_t dim) {
  std::vector<T*> places;
  for (size_t i = 0; i < count; ++i) places.push_back(rows + i * dim);
  return places;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_ROWS_IN_H_
