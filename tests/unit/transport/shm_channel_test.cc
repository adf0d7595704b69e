// What one end of a shared-memory link makes of the other's: frames pass in both ways that parts
// travel by, and what a peer can choose is bounded before anything is done with it.
#include "transport/shm_channel.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sanitized.h"
#include "tests/unit/transport/scarce_system.h"

namespace tandem {
namespace {

class ShmChannelTest : public ::testing::Test {
 protected:
  ShmChannelTest() { Connect(8); }
  // Two new ends, with room for so many frames in the queue of each.
  void Connect(size_t frames) {
    auto ends = transport::UnixLink::Pair();
    TANDEM_CHECK_OK(ends.status());
    a_ = transport::ShmChannel::New(std::move(ends->first), shared_, frames).value();
    b_ = transport::ShmChannel::New(std::move(ends->second), shared_, frames).value();
    TANDEM_CHECK_OK(a_->ReadSocket());
    TANDEM_CHECK_OK(b_->ReadSocket());
  }
  Buffer Part(size_t bytes, uint8_t value) {
    Buffer part = arena_.Alloc(bytes);
    std::fill_n(part.mutable_data(), bytes, value);
    return part;
  }
  // The next frame at `b_`.
  absl::StatusOr<bool> Receive(Frame* frame) {
    size_t parts = 0;
    return b_->Receive(frame, &parts);
  }

  HeapBufferSource heap_;
  transport::ShmArena arena_;
  transport::ShmStats stats_;
  const transport::ReceivedSpansOwner spans_ = transport::NewReceivedSpans();
  const transport::ShmShared shared_ = {&arena_, &heap_, spans_.get(), &stats_};
  std::unique_ptr<transport::ShmChannel> a_, b_;
};

TEST_F(ShmChannelTest, PartsArriveAsSent) {
  TANDEM_CHECK_OK(a_->Send(std::vector<Buffer>{Part(100, 1), Part(100'000, 2), Buffer()}));
  Frame frame;
  ASSERT_TRUE(Receive(&frame).value());
  ASSERT_EQ(frame.parts, 3);
  EXPECT_EQ(frame.part[0].size(), 100u);
  ASSERT_EQ(frame.part[1].size(), 100'000u);
  EXPECT_EQ(frame.part[1].data()[99'999], 2);
  EXPECT_TRUE(frame.part[2].empty());
  EXPECT_EQ(stats_.parts_placed, 1u);
}

// A receiver that keeps all it gets, as a shard does with the updates of a long delay, still gets
// more: beyond half of the slots it has copies.
TEST_F(ShmChannelTest, AReceiverThatKeepsEverythingIsSentMore) {
  std::vector<Frame> kept;
  for (size_t i = 0; i < 2 * transport::ShmChannel::kSlots; ++i) {
    const auto value = static_cast<uint8_t>(i % 251);
    const absl::Status sent = a_->Send(
        std::vector<Buffer>{Part(8, 0), Part(transport::ShmArena::kInlineBytes + 8, value)});
    ASSERT_TRUE(sent.ok()) << "frame " << i << ": " << sent;
    ASSERT_TRUE(Receive(&kept.emplace_back()).value());
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    ASSERT_EQ(kept[i].part[1].size(), transport::ShmArena::kInlineBytes + 8);
    EXPECT_EQ(kept[i].part[1].data()[transport::ShmArena::kInlineBytes], i % 251) << i;
  }
  // Once they are dropped, parts lie where they were written again.
  kept.clear();
  const uint64_t copied = stats_.bytes_copied;
  TANDEM_CHECK_OK(a_->Send(std::vector<Buffer>{Part(8, 0), Part(100'000, 1)}));
  Frame frame;
  ASSERT_TRUE(Receive(&frame).value());
  EXPECT_EQ(stats_.bytes_copied, copied);
}

// Part 0 is copied before it is looked at: a peer must not choose that gigabytes are.
TEST_F(ShmChannelTest, AHugePart0IsRefusedBeforeItIsCopied) {
  constexpr size_t kMax = kMaxControlBytes + size_t{64} * 1024;
  for (const size_t bytes : {kMax, kMax + 1}) {
    Frame frame;
    TANDEM_CHECK_OK(a_->Send(std::vector<Buffer>{arena_.AllocShared(bytes).value()}));
    const auto received = Receive(&frame);
    if (bytes == kMax) {
      ASSERT_TRUE(received.ok()) << received.status();
      EXPECT_EQ(frame.part[0].size(), bytes);
    } else {
      EXPECT_EQ(received.status().code(), absl::StatusCode::kDataLoss);
    }
  }
}

// A peer keeps a large segment that it was told of until the frame comes: a send that is refused
// tells it of none.
TEST_F(ShmChannelTest, RefusedSendsLeaveNothingWithThePeer) {
  const std::vector<Buffer> large = {
      Part(8, 1), arena_.AllocShared(transport::ShmArena::kLargestKept + 1).value()};
  // All slots are taken while the queue has room: each frame has two large parts.
  Connect(transport::ShmChannel::kSlots);
  const Buffer part = Part(transport::ShmArena::kInlineBytes + 8, 2);
  const std::vector<Buffer> placed = {Part(8, 1), part, part};
  for (size_t i = 0; i < transport::ShmChannel::kSlots / 2; ++i) TANDEM_CHECK_OK(a_->Send(placed));
  const std::vector<Buffer> copied = {Part(8, 1), heap_.Alloc(100'000)};
  const uint64_t announced = stats_.announcements;
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(absl::IsResourceExhausted(a_->Send(large)));
    EXPECT_TRUE(absl::IsResourceExhausted(a_->Send(copied)));
  }
  EXPECT_EQ(stats_.announcements, announced);
  EXPECT_EQ(stats_.bytes_copied, 0u);
  Frame frame;
  for (size_t i = 0; i < transport::ShmChannel::kSlots / 2; ++i) {
    frame = Frame();
    ASSERT_TRUE(Receive(&frame).value());
  }
  frame = Frame();
  TANDEM_CHECK_OK(a_->Send(large));
  EXPECT_EQ(stats_.announcements, announced + 1);
  ASSERT_TRUE(Receive(&frame).value());
  EXPECT_EQ(frame.part[1].size(), large[1].size());
}

// Nobody would ever say that there is room: the link is given up, and the frame goes another way.
TEST_F(ShmChannelTest, AFrameThatFindsNoSharedMemoryIsNotToldToWait) {
  if (kSanitized) GTEST_SKIP() << "UBSan looks at objects through a pipe";
  const std::vector<Buffer> large = {Part(8, 1), heap_.Alloc(100'000)};
  {
    const NoDescriptorsLeft none;
    const absl::Status sent = a_->Send(large);
    EXPECT_TRUE(absl::IsAborted(sent)) << sent;
    EXPECT_THAT(std::string(sent.message()), ::testing::HasSubstr("Too many open files"));
    TANDEM_CHECK_OK(a_->Send(std::vector<Buffer>{Part(8, 3)}));
  }
  TANDEM_CHECK_OK(a_->Send(large));
  Frame frame;
  for (int i = 0; i < 2; ++i) {
    frame = Frame();
    ASSERT_TRUE(Receive(&frame).value());
  }
  EXPECT_EQ(frame.part[1].size(), 100'000u);
}

// A receiver without descriptors says so, and blames nobody.
TEST_F(ShmChannelTest, AReceiverWithoutDescriptorsSaysSo) {
  if (kSanitized) GTEST_SKIP() << "UBSan looks at objects through a pipe";
  TANDEM_CHECK_OK(a_->Send(std::vector<Buffer>{Part(8, 1), Part(100'000, 2)}));
  const NoDescriptorsLeft none;
  Frame frame;
  const auto received = Receive(&frame);
  EXPECT_TRUE(absl::IsResourceExhausted(received.status())) << received.status();
}

}  // namespace
}  // namespace tandem
