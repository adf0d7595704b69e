// Long vectors over every kind of link: 1,000,003 elements at addresses that are aligned to
// nothing, summed on 2, 3, 4 and 8 ranks, exact to the last bit. All ranks are in one thread, which
// lets each go on in turn.
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "collectives/group.h"
#include "collectives/links/frame_link.h"
#include "collectives/links/in_memory_link.h"
#include "collectives/links/shm_link.h"
#include "collectives/links/tcp_link.h"
#include "collectives/links/tcp_socket.h"
#include "gtest/gtest.h"
#include "tests/unit/collectives/collective_world.h"
#include "tests/unit/transport/transport_links.h"

namespace tandem {
namespace {

using Ends = CollectiveWorld::Ends;

constexpr int64_t kCount = 1'000'003;

// ---- Links ----

Ends MemoryEnds() {
  collectives::InMemoryLink::Pair pair = collectives::InMemoryLink::NewPair();
  return {std::move(pair[0]), std::move(pair[1])};
}

Ends ShmEnds() {
  auto pair = collectives::ShmLink::NewPair(collectives::ShmLink::kDefaultCapacity);
  TANDEM_CHECK_OK(pair.status());
  return {std::move((*pair)[0]), std::move((*pair)[1])};
}

Ends TcpEnds() {
  auto pair = collectives::TcpPair();
  TANDEM_CHECK_OK(pair.status());
  return {std::make_unique<collectives::TcpLink>(std::move(pair->first)),
          std::make_unique<collectives::TcpLink>(std::move(pair->second))};
}

// Two frame links; what one has to send is given to the other whenever either is used.
struct FrameWire {
  FrameWire() {
    collectives::FrameLinkOptions options;
    options.group = 1;
    options.incarnation = 2;
    for (auto& link : links) link = std::make_unique<collectives::FrameLink>(source, options);
  }
  void Carry() {
    for (int from = 0; from < 2; ++from) {
      frames.clear();
      links[from]->Flush(&frames);
      for (const Frame& frame : frames) {
        const auto parsed = DecodeFrame(frame);
        TANDEM_CHECK_OK(parsed.status());
        TANDEM_CHECK_OK(links[1 - from]->OnFrame(*parsed));
      }
    }
  }

  HeapBufferSource source;
  std::unique_ptr<collectives::FrameLink> links[2];
  std::vector<Frame> frames;
};

class FrameWireEnd final : public collectives::Link {
 public:
  FrameWireEnd(std::shared_ptr<FrameWire> wire, int end)
      : wire_(std::move(wire)), link_(*wire_->links[end]) {}
  absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                               absl::Span<const uint8_t> body) override {
    wire_->Carry();
    return link_.Write(head, body);
  }
  absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) override {
    wire_->Carry();
    return link_.Peek(least);
  }
  void Consume(size_t n) override { link_.Consume(n); }
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) override {
    wire_->Carry();
    return link_.Read(to);
  }
  absl::string_view kind() const override { return link_.kind(); }

 private:
  const std::shared_ptr<FrameWire> wire_;
  collectives::FrameLink& link_;
};

Ends FrameEnds() {
  auto wire = std::make_shared<FrameWire>();
  return {std::make_unique<FrameWireEnd>(wire, 0), std::make_unique<FrameWireEnd>(wire, 1)};
}

// ---- The sum ----

struct LinkKind {
  std::string name;
  std::function<std::function<Ends()>(int ranks)> ends;
  std::vector<int> ranks = {2, 3, 4, 8};
  std::function<std::string()> missing = [] { return ""; };
};

LinkKind Kind(const std::string& name, Ends (*ends)()) {
  return {name, [ends](int) { return ends; }};
}

// One endpoint for each rank.
LinkKind OverTransport(const std::string& name, collectives::LinkChoice choice,
                       std::vector<int> ranks) {
  const auto ends = [=](int p) -> std::function<Ends()> {
    return [mesh = std::make_shared<TransportMesh>(choice, p)]() -> Ends { return mesh->Next(); };
  };
  return {name, ends, std::move(ranks), [=] { return Missing(choice); }};
}

class LongVectors : public ::testing::TestWithParam<LinkKind> {
 protected:
  void SetUp() override {
    if (const std::string missing = GetParam().missing(); !missing.empty()) GTEST_SKIP() << missing;
  }
};

// Every algorithm in turn, over the numbers of ranks and the types.
TEST_P(LongVectors, AreSummedExactlyFromUnalignedBuffers) {
  const std::vector<collectives::Algorithm> algorithms =
      collectives::AlgorithmsFor(collectives::Primitive::kAllReduce);
  size_t turn = 0;
  for (const int p : GetParam().ranks) {
    CollectiveWorld world(p, GetParam().ends(p));
    for (const collectives::DataType type :
         {collectives::DataType::kF32, collectives::DataType::kBF16}) {
      std::vector<collectives::Vector> in, out;
      for (int r = 0; r < p; ++r) {
        in.emplace_back(type, kCount, /*misaligned=*/1 + static_cast<size_t>(r % 3));
        out.emplace_back(type, kCount, /*misaligned=*/3);
        collectives::FillExact(collectives::ReduceOp::kSum, r, &in.back());
      }
      collectives::Vector want(type, kCount);
      for (int64_t i = 0; i < kCount; ++i)
        want.Set(i, collectives::ExactResult(collectives::ReduceOp::kSum, type, p, i));
      // As the group chooses, and by an algorithm that takes its turn, cut into odd segments.
      for (const bool as_chosen : {true, false}) {
        collectives::CallOptions call;
        if (!as_chosen) call.choice = {algorithms[turn++ % algorithms.size()], 100'002};
        const absl::Status status = world.RunAll([&](collectives::Group& g) {
          const auto r = static_cast<size_t>(g.rank());
          return g.AllReduce(in[r].data(), as_chosen ? out[r].data() : in[r].data(), kCount, type,
                             collectives::ReduceOp::kSum, call);
        });
        const std::string what = absl::StrCat(
            p, " ranks, ", collectives::Name(type), ", ",
            as_chosen ? "as chosen" : collectives::AlgorithmName(call.choice->algorithm));
        ASSERT_TRUE(status.ok()) << what << ": " << status;
        for (size_t r = 0; r < in.size(); ++r) {
          const collectives::Vector& got = as_chosen ? out[r] : in[r];
          ASSERT_TRUE(got == want) << what << ", rank " << r;
          ASSERT_TRUE(in[r].GuardsIntact() && out[r].GuardsIntact()) << what << ", rank " << r;
        }
      }
    }
  }
  EXPECT_EQ(turn, 2 * GetParam().ranks.size());
}

INSTANTIATE_TEST_SUITE_P(
    All, LongVectors,
    ::testing::Values(Kind("Memory", MemoryEnds), Kind("Shm", ShmEnds), Kind("Tcp", TcpEnds),
                      Kind("Frames", FrameEnds),
                      OverTransport("Zmq", collectives::LinkChoice::kZmq, {2, 3, 4, 8}),
                      OverTransport("Rdma", collectives::LinkChoice::kRdma, {2, 3})),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace tandem
