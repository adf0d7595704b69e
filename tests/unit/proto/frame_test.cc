// Frames: the worked example of proto/frame.md byte by byte, every field there and back, and no
// damaged frame that is taken for a whole one.
#include "proto/frame.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/source_path.h"

namespace tandem {
namespace {

using Bytes = std::vector<uint8_t>;

class FrameTest : public ::testing::Test {
 protected:
  template <typename T>
  Buffer Numbers(const std::vector<T>& numbers) {
    return CopyToBuffer(
        heap_, {reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size() * sizeof(T)});
  }
  // Part 0 of a frame with other bytes in it.
  Frame WithPart0(Frame frame, const Bytes& part0) {
    frame.part[0] = CopyToBuffer(heap_, part0);
    return frame;
  }
  // The frame of the worked example in proto/frame.md.
  Frame Example() {
    FrameHeader header;
    header.kind = FrameKind::kPush;
    header.sender = EndpointId::Worker(1);
    header.view = 3;
    header.incarnation = 0x1122334455667788;
    header.request = 42;
    header.first_step = 7;
    header.step = 7;
    header.samples = 128;
    header.clock_gap = 1;
    header.in_flight = 2;
    header.sample_clock = 1792;
    header.positives = 33;
    SliceEntry slice;
    slice.range = 5;
    slice.rows = 2;
    slice.version = 6;
    slice.row_floats = 2;
    return EncodeDataFrame(heap_, header, {slice}, Numbers<uint64_t>({100, 0xfeedfacecafebeef}),
                           Numbers<float>({0.5f, -1.0f, 2.0f, 0.25f}));
  }
  // A frame with one slice of `keys` keys and `keys` * row_floats values, but parts as given.
  Frame Slice(FrameKind kind, uint32_t rows, uint32_t row_floats, size_t key_bytes,
              size_t value_bytes) {
    FrameHeader header;
    header.kind = kind;
    SliceEntry slice;
    slice.rows = rows;
    slice.row_floats = row_floats;
    return EncodeDataFrame(heap_, header, {slice}, Numbers(Bytes(key_bytes, 1)),
                           Numbers(Bytes(value_bytes, 1)));
  }
  HeapBufferSource heap_;
};

Bytes ToBytes(const Buffer& buffer) { return Bytes(buffer.data(), buffer.data() + buffer.size()); }

std::string Refusal(const Frame& frame) {
  const auto parsed = DecodeFrame(frame);
  return parsed.ok() ? "accepted" : std::string(parsed.status().message());
}

// The parts of the example as the page has them: fenced blocks that begin with "part N", then lines
// "offset: hex bytes  comment".
std::vector<Bytes> PartsOnThePage() {
  std::ifstream page(SourcePath("proto/frame.md"));
  std::vector<Bytes> parts;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.size() == 6 && absl::StartsWith(line, "part ")) {
      parts.emplace_back();
      inside = true;
    } else if (absl::StartsWith(line, "```")) {
      inside = false;
    } else if (inside) {
      const size_t colon = line.find(':');
      EXPECT_EQ(std::stoul(line), parts.back().size()) << "offset of: " << line;
      std::istringstream hex(line.substr(colon + 1));
      for (std::string byte;
           hex >> byte && byte.size() == 2 && std::isxdigit(byte[0]) && std::isxdigit(byte[1]);) {
        parts.back().push_back(static_cast<uint8_t>(std::stoul(byte, nullptr, 16)));
      }
    }
  }
  return parts;
}

TEST_F(FrameTest, TheWorkedExampleOnThePageIsWhatTheEncoderWrites) {
  const std::vector<Bytes> page = PartsOnThePage();
  const Frame frame = Example();
  ASSERT_EQ(page.size(), 3u) << "is TANDEM_SOURCE_DIR set?";
  ASSERT_EQ(frame.parts, 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ToBytes(frame.part[i]), page[static_cast<size_t>(i)]) << "part " << i;
  }
}

TEST_F(FrameTest, TheWorkedExampleOnThePageDecodes) {
  const std::vector<Bytes> page = PartsOnThePage();
  ASSERT_EQ(page.size(), 3u);
  Frame frame;
  frame.parts = 3;
  for (size_t i = 0; i < 3; ++i) frame.part[i] = CopyToBuffer(heap_, page[i]);
  const auto parsed = DecodeFrame(frame);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->header.kind, FrameKind::kPush);
  EXPECT_EQ(parsed->header.sender, EndpointId::Worker(1));
  EXPECT_EQ(parsed->header.samples, 128u);
  EXPECT_EQ(parsed->header.sample_clock, 1792);
  EXPECT_EQ(parsed->header.positives, 33u);
  EXPECT_EQ(parsed->Entry(0).range, 5u);
  EXPECT_EQ(parsed->keys().As<uint64_t>()[0], 100u);
  EXPECT_EQ(parsed->values().As<float>()[3], 0.25f);
}

TEST_F(FrameTest, EveryFieldComesBack) {
  FrameHeader header;
  header.kind = FrameKind::kRows;
  header.flags = kFlagEvaluate | kFlagAssign | kFlagWithSlots | kFlagEndOfEpoch;
  header.sender = EndpointId::Shard(65'535, 255);
  header.view = std::numeric_limits<uint32_t>::max();
  header.incarnation = std::numeric_limits<uint64_t>::max() - 1;
  header.request = 0x0102030405060708;
  header.first_step = std::numeric_limits<int64_t>::min();
  header.step = std::numeric_limits<int64_t>::max();
  header.group = 0xabcdef01;
  header.samples = std::numeric_limits<uint64_t>::max();
  header.clock_gap = -5;
  header.in_flight = 0x12345678;
  header.sample_clock = -7;
  header.positives = 0x1020304050607080;
  std::vector<SliceEntry> slices(2);
  slices[0].range = 0xdeadbeef;
  slices[0].rows = 3;
  slices[0].version = -9;
  slices[0].clock = std::numeric_limits<int64_t>::max();
  slices[0].status = SliceStatus::kOverBudget;
  slices[0].row_floats = 2;
  slices[1].status = SliceStatus::kWrongView;
  const auto parsed =
      DecodeFrame(EncodeDataFrame(heap_, header, slices, Buffer(), Numbers(Bytes(24, 1))));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->header, header);
  ASSERT_EQ(parsed->entry_count, 2u);
  EXPECT_EQ(parsed->Entry(0), slices[0]);
  EXPECT_EQ(parsed->Entry(1), slices[1]);
}

TEST_F(FrameTest, EveryKindComesBack) {
  for (const FrameKind kind :
       {FrameKind::kPull, FrameKind::kRows, FrameKind::kPush, FrameKind::kAck, FrameKind::kWaiting,
        FrameKind::kSegment, FrameKind::kRefresh, FrameKind::kPing, FrameKind::kGoodbye}) {
    FrameHeader header;
    header.kind = kind;
    const auto parsed = DecodeFrame(EncodeDataFrame(heap_, header, {}, Buffer(), Buffer()));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->header.kind, kind);
    EXPECT_EQ(parsed->frame.parts, 1);
    EXPECT_FALSE(parsed->ParseControl().ok()) << "no Control message in kind " << int(kind);
  }
}

TEST_F(FrameTest, ControlMessagesComeBack) {
  Control control;
  const auto parsed =
      DecodeFrame(EncodeControlFrame(heap_, FrameHeader(), control, Numbers<float>({1.0f})));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->entry_count, 0u);
  EXPECT_EQ(parsed->values().As<float>()[0], 1.0f);
  const auto message = parsed->ParseControl();
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->SerializeAsString(), control.SerializeAsString());
}

TEST_F(FrameTest, EveryTruncationIsRefused) {
  const Frame whole = Example();
  for (int part = 0; part < whole.parts; ++part) {
    for (size_t size = 0; size < whole.part[part].size(); ++size) {
      Frame cut = whole;
      cut.part[part] = whole.part[part].Slice(0, size);
      ASSERT_NE(Refusal(cut), "accepted") << "part " << part << " cut to " << size << " bytes";
    }
  }
  for (int parts = 0; parts < whole.parts; ++parts) {
    Frame cut = whole;
    cut.parts = parts;
    ASSERT_NE(Refusal(cut), "accepted") << parts << " parts";
  }
}

TEST_F(FrameTest, EveryFlippedBitOfPart0IsRefused) {
  const Frame whole = Example();
  const Bytes part0 = ToBytes(whole.part[0]);
  for (size_t bit = 0; bit < part0.size() * 8; ++bit) {
    Bytes flipped = part0;
    flipped[bit / 8] = static_cast<uint8_t>(flipped[bit / 8] ^ 1u << (bit % 8));
    ASSERT_NE(Refusal(WithPart0(whole, flipped)), "accepted") << "bit " << bit;
  }
  for (size_t at = 0; at < part0.size(); ++at) {
    Bytes flipped = part0;
    flipped[at] = static_cast<uint8_t>(~flipped[at]);
    ASSERT_NE(Refusal(WithPart0(whole, flipped)), "accepted") << "byte " << at;
  }
}

TEST_F(FrameTest, RefusalsSayTheNumbers) {
  using ::absl::StrContains;
  Frame frame = Example();
  frame.parts = 5;
  EXPECT_TRUE(StrContains(Refusal(frame), "frame of 5 parts, expected 1 to 4")) << Refusal(frame);
  frame = Example();
  frame.part[0] = frame.part[0].Slice(0, 95);
  EXPECT_TRUE(StrContains(Refusal(frame), "have 95 bytes, need 96")) << Refusal(frame);
  Bytes part0 = ToBytes(Example().part[0]);
  part0[0] = 'X';
  EXPECT_TRUE(StrContains(Refusal(WithPart0(Example(), part0)), "0x4d444e58"));
  part0 = ToBytes(Example().part[0]);
  part0[4] = 9;
  EXPECT_TRUE(StrContains(Refusal(WithPart0(Example(), part0)), "version 9, this build speaks 2"));
  frame = Example();
  frame.parts = 2;
  EXPECT_TRUE(StrContains(Refusal(frame), "frame of 2 parts, its header says 3"));
}

TEST_F(FrameTest, CountsThatDoNotFitThePartsAreRefusedWithTheNumbers) {
  using ::absl::StrContains;
  EXPECT_EQ(Refusal(Slice(FrameKind::kPush, 2, 3, 16, 24)), "accepted");
  std::string why = Refusal(Slice(FrameKind::kPush, 2, 3, 24, 24));
  EXPECT_TRUE(StrContains(why, "need 16 bytes of keys, the part has 24")) << why;
  why = Refusal(Slice(FrameKind::kPush, 2, 3, 16, 28));
  EXPECT_TRUE(StrContains(why, "need 24 bytes of values, the part has 28")) << why;
  why = Refusal(Slice(FrameKind::kRows, 2, 3, 0, 20));
  EXPECT_TRUE(StrContains(why, "need 24 bytes of values, the part has 20")) << why;
  why = Refusal(Slice(FrameKind::kPull, 2, 0, 8, 0));
  EXPECT_TRUE(StrContains(why, "need 16 bytes of keys, the part has 8")) << why;
  for (const FrameKind kind : {FrameKind::kStore, FrameKind::kStored, FrameKind::kRefresh}) {
    why = Refusal(Slice(kind, 2, 1, 8, 8));
    EXPECT_TRUE(StrContains(why, "need 16 bytes of keys, the part has 8")) << why;
    why = Refusal(Slice(kind, 2, 3, 16, 20));
    EXPECT_TRUE(StrContains(why, "need 24 bytes of values, the part has 20")) << why;
  }
  why = Refusal(Slice(FrameKind::kPush, 0xffffffff, 0xffffffff, 8, 8));
  EXPECT_TRUE(StrContains(why, "34359738360 bytes of keys")) << "no overflow: " << why;
}

TEST_F(FrameTest, UnknownKindsAreRefused) {
  FrameHeader header;
  header.kind = static_cast<FrameKind>(10);
  EXPECT_EQ(Refusal(EncodeDataFrame(heap_, header, {}, Buffer(), Buffer())),
            "frame kind 10 is unknown");
}

TEST_F(FrameTest, PayloadsAreNotCopied) {
  const Buffer keys = Numbers<uint64_t>({1, 2}), values = Numbers<float>({1, 2});
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  const auto parsed = DecodeFrame(EncodeDataFrame(heap_, header, {}, keys, values));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->keys().data(), keys.data());
  EXPECT_EQ(parsed->values().data(), values.data());
}

// Text may name a file in any encoding, and protobuf refuses a `string` that is not UTF-8.
TEST_F(FrameTest, TextsAreBytes) {
  const google::protobuf::FileDescriptor* const file = Control::descriptor()->file();
  std::vector<const google::protobuf::Descriptor*> messages;
  for (int i = 0; i < file->message_type_count(); ++i) messages.push_back(file->message_type(i));
  for (size_t m = 0; m < messages.size(); ++m) {
    const google::protobuf::Descriptor* const message = messages[m];
    for (int i = 0; i < message->nested_type_count(); ++i) {
      if (!message->nested_type(i)->options().map_entry()) {
        messages.push_back(message->nested_type(i));
      }
    }
    for (int i = 0; i < message->field_count(); ++i) {
      const google::protobuf::FieldDescriptor* const field = message->field(i);
      EXPECT_NE(field->type(), google::protobuf::FieldDescriptor::TYPE_STRING)
          << field->full_name();
    }
  }
}

// The key of a map is a name of ours: one that is not UTF-8 is refused without a word on stderr.
TEST_F(FrameTest, TextOfAPeerNeedNotBeUtf8) {
  Control beat, progress;
  beat.mutable_beat()->set_activity("AAAA");
  (*progress.mutable_progress()->mutable_bytes())["AAAA"] = 1;
  for (const Control& control : {beat, progress}) {
    std::string bytes = control.SerializeAsString();
    std::replace(bytes.begin(), bytes.end(), 'A', '\xff');
    ParsedFrame frame;
    frame.header.kind = FrameKind::kControl;
    frame.body = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
    testing::internal::CaptureStderr();
    const absl::StatusOr<Control> parsed = frame.ParseControl();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    if (control.has_beat()) {
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(parsed->beat().activity(), "\xff\xff\xff\xff");
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << parsed.status();
    }
  }
}

}  // namespace
}  // namespace tandem
