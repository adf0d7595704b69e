// Counts what a program asks the heap for, by replacing every operator new. Include it in one file
// of a test program that has nothing else in it. Nothing here is inlined: a compiler that sees
// through only one of new and delete takes the pair for a mismatch.
#ifndef TANDEM_TESTS_UNIT_COUNT_ALLOCATIONS_H_
#define TANDEM_TESTS_UNIT_COUNT_ALLOCATIONS_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> allocations{0};  // since the program began

void* CountedAlloc(size_t bytes, size_t alignment) {
  ++allocations;
  void* p = nullptr;
  if (posix_memalign(&p, alignment, bytes > 0 ? bytes : 1) != 0) std::abort();
  return p;
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) { return CountedAlloc(bytes, 16); }
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return CountedAlloc(bytes, 16);
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return CountedAlloc(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

#endif  // TANDEM_TESTS_UNIT_COUNT_ALLOCATIONS_H_
