// Messages between mailboxes over links in memory, moved step by step.
#include "collectives/mailbox.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/links/in_memory_link.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using collectives::InMemoryLink;
using collectives::InMemoryLinkOptions;
using collectives::Link;
using collectives::Mailbox;
using ::testing::HasSubstr;

constexpr size_t kLinkBytes = size_t{1} << 16;  // on their way between two
constexpr absl::Time kNow = absl::UnixEpoch(), kNever = absl::InfiniteFuture();

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
absl::Span<uint8_t> Room(std::string& text) {
  return {reinterpret_cast<uint8_t*>(text.data()), text.size()};
}

// Mailboxes by rank, each joined to each.
std::vector<std::unique_ptr<Mailbox>> NewMailboxes(int ranks) {
  std::vector<std::vector<std::unique_ptr<Link>>> links(static_cast<size_t>(ranks));
  for (auto& of_one : links) of_one.resize(static_cast<size_t>(ranks));
  InMemoryLinkOptions options;
  options.capacity = kLinkBytes;
  for (size_t a = 0; a < links.size(); ++a) {
    for (size_t b = a + 1; b < links.size(); ++b) {
      auto [at_a, at_b] = InMemoryLink::NewPair(options);
      links[a][b] = std::move(at_a);
      links[b][a] = std::move(at_b);
    }
  }
  std::vector<std::unique_ptr<Mailbox>> out;
  for (int r = 0; r < ranks; ++r) {
    out.push_back(
        std::make_unique<Mailbox>(r, std::move(links[static_cast<size_t>(r)]), Mailbox::Options()));
  }
  return out;
}

// "ticket from rank" of what has ended, or the error.
std::string Ended(Mailbox& box) {
  std::string out;
  for (const Mailbox::Ended& one : box.TakeEnded()) {
    absl::StrAppend(&out, out.empty() ? "" : ", ", one.ticket, " from ", one.from,
                    one.status.ok() ? "" : absl::StrCat(": ", one.status.message()));
  }
  return out;
}

// A rank's messages with a tag keep their order even where a longer one of another rank began to
// arrive before them and is not there yet.
TEST(MailboxTest, WhatIsHereIsNotOvertakenBehindWhatIsArriving) {
  auto boxes = NewMailboxes(3);
  const std::string large(4 * kLinkBytes, 'L'), first = "first", second = "later";
  std::string got[3] = {"     ", "     ", std::string(large.size(), ' ')};
  boxes[1]->Send(-1, 0, 7, Bytes(large), kNever);
  boxes[1]->Progress(kNow);
  boxes[0]->Progress(kNow);  // has begun with it
  boxes[2]->Send(-1, 0, 7, Bytes(first), kNever);
  boxes[2]->Progress(kNow);
  boxes[0]->Progress(kNow);
  boxes[0]->Receive(0, Mailbox::kAnyRank, 7, Room(got[0]), kNever);
  EXPECT_EQ(Ended(*boxes[0]), "0 from 2");
  boxes[2]->Send(-1, 0, 7, Bytes(second), kNever);
  boxes[2]->Progress(kNow);
  boxes[0]->Progress(kNow);
  boxes[0]->Receive(1, 2, 7, Room(got[1]), kNever);
  EXPECT_EQ(Ended(*boxes[0]), "1 from 2");
  EXPECT_EQ(got[0], first);
  EXPECT_EQ(got[1], second);
  // What is arriving is still to be had, by who comes while it does.
  boxes[0]->Receive(2, Mailbox::kAnyRank, 7, Room(got[2]), kNever);
  EXPECT_EQ(Ended(*boxes[0]), "");
  for (int i = 0; i < 8; ++i) {
    boxes[1]->Progress(kNow);
    boxes[0]->Progress(kNow);
  }
  EXPECT_EQ(Ended(*boxes[0]), "2 from 1");
  EXPECT_EQ(got[2], large);
}

// From any rank: while one is there that could send.
TEST(MailboxTest, NobodyIsWaitedForWhenAllOthersHaveLeft) {
  auto boxes = NewMailboxes(3);
  const std::string last = "last";
  std::string got[2] = {"    ", "    "};
  boxes[2]->Send(-1, 0, 7, Bytes(last), kNever);
  for (const size_t r : {1, 2}) {
    boxes[r]->Leave();
    boxes[r]->Progress(kNow);
    boxes[r].reset();
    boxes[0]->Progress(kNow);
  }
  EXPECT_TRUE(boxes[0]->failure().ok()) << boxes[0]->failure();
  boxes[0]->Receive(0, Mailbox::kAnyRank, 7, Room(got[0]), kNever);
  EXPECT_EQ(Ended(*boxes[0]), "0 from 2");
  EXPECT_EQ(got[0], last);
  boxes[0]->Receive(1, Mailbox::kAnyRank, 7, Room(got[1]), kNever);
  EXPECT_THAT(Ended(*boxes[0]),
              HasSubstr("any rank with tag 7: all other ranks have closed the group"));
  EXPECT_EQ(boxes[0]->NextDeadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace tandem
