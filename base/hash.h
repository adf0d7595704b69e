// 64-bit mixing functions for positions of keys and for counter-based random numbers. All are pure.
#ifndef TANDEM_BASE_HASH_H_
#define TANDEM_BASE_HASH_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tandem {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words.
constexpr uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 31;
  return x;
}

// The position of `key` in a table with this salt: a bijection of the key for a given salt.
constexpr uint64_t Position(uint64_t table_salt, uint64_t key) {
  return Mix64(key + table_salt + 0x9e3779b97f4a7c15u);
}

// The order of arguments matters: HashCombine(a, b) != HashCombine(b, a).
constexpr uint64_t HashCombine(uint64_t a, uint64_t b) {
  return Mix64(a + 0x9e3779b97f4a7c15u + Mix64(b + 0xd1b54a32d192ed03u));
}

// A stable hash of a name: the same on every machine and in every build.
constexpr uint64_t HashName(absl::string_view name) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Mix64(h);
}

// floor(x * n / 2^64): maps a 64-bit word evenly to [0, n).
inline uint64_t MulHigh(uint64_t x, uint64_t n) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(x) * n) >> 64);
}

}  // namespace tandem

#endif  // TANDEM_BASE_HASH_H_
