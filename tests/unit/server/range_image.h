// The contents of a range as its file and its move have them.
#ifndef TANDEM_TESTS_UNIT_SERVER_RANGE_IMAGE_H_
#define TANDEM_TESTS_UNIT_SERVER_RANGE_IMAGE_H_

#include <string>

#include "gtest/gtest.h"
#include "server/checkpoint/range_file.h"
#include "server/range.h"

namespace tandem {

inline server::RangeImage Decoded(const std::string& bytes) {
  auto image = server::DecodeRange({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  EXPECT_TRUE(image.ok()) << image.status();
  return *std::move(image);
}

inline server::RangeImage ImageOf(const server::Range& range) { return Decoded(range.Encode()); }

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SERVER_RANGE_IMAGE_H_
