// Buffers: what is shared, when it is reused, and that a pool may go before its buffers.
#include "base/buffer.h"

#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(BufferTest, SlicesShareTheBytesAndKeepThemAlive) {
  HeapBufferSource source;
  Buffer slice;
  {
    Buffer whole = source.Alloc(16);
    for (int i = 0; i < 16; ++i) whole.mutable_data()[i] = static_cast<uint8_t>(i);
    slice = whole.Slice(8, 4);
  }
  ASSERT_EQ(slice.size(), 4u);
  EXPECT_EQ(slice.data()[0], 8);
  EXPECT_EQ(slice.data()[3], 11);
}

TEST(BufferTest, ABufferComesBackOnlyWhenItsLastReferenceGoes) {
  HeapBufferSource source;
  Buffer first = source.Alloc(1000);
  const uint8_t* const at = first.data();
  Buffer copy = first;
  first = Buffer();
  Buffer second = source.Alloc(1000);
  EXPECT_NE(second.data(), at) << "still referenced by copy";
  copy = Buffer();
  Buffer third = source.Alloc(1000);
  EXPECT_EQ(third.data(), at) << "the free block should be reused";
}

TEST(BufferTest, BuffersMayOutliveTheirSource) {
  auto source = std::make_unique<HeapBufferSource>();
  Buffer buffer = source->Alloc(100);
  source.reset();
  buffer.mutable_data()[99] = 7;
  EXPECT_EQ(buffer.data()[99], 7);
}

TEST(BufferTest, ReferencesMayBeDroppedOnAnyThread) {
  HeapBufferSource source;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([buffer = source.Alloc(64), &source] {
      for (int i = 0; i < 1000; ++i) {
        Buffer mine = buffer.Slice(0, 8);
        Buffer other = source.Alloc(64 << (i % 5));
        other.mutable_data()[0] = 1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(BufferTest, AllocationsAreAlignedTo64) {
  HeapBufferSource source;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{65}, size_t{4097}}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(source.Alloc(bytes).data()) % 64, 0u) << bytes;
  }
}

}  // namespace
}  // namespace tandem
