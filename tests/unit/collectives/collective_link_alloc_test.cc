// In steady state links ask the heap for nothing. A program of its own, because it replaces
// operator new.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/check.h"
#include "collectives/links/frame_link.h"
#include "collectives/links/in_memory_link.h"
#include "collectives/links/link.h"
#include "collectives/links/shm_link.h"
#include "collectives/links/tcp_link.h"
#include "collectives/links/tcp_socket.h"
#include "gtest/gtest.h"
#include "rdma/rdma_transport.h"
#include "tests/unit/count_allocations.h"
#include "tests/unit/transport/transport_links.h"

namespace tandem {
namespace {

// Sends small and large messages from a to b, sleeping and waking as an engine does.
class Traffic {
 public:
  template <typename Pump>
  void Run(collectives::Link& a, collectives::Link& b, int messages, const Pump& pump) {
    for (int i = 0; i < messages; ++i) {
      const size_t size = i % 5 == 0 ? bytes_.size() : 40;
      for (size_t sent = 0, got = 0; got < size;) {
        const auto rest = absl::MakeConstSpan(bytes_).subspan(sent, size - sent);
        sent += a.Write(rest.first(rest.size() / 4), rest.subspan(rest.size() / 4)).value();
        pump();
        got += i % 2 == 0 ? b.Read(absl::MakeSpan(got_).subspan(got, size - got)).value()
                          : PeekAll(b, size - got);
        (void)b.PrepareToSleep();
        b.WakeUp();
      }
    }
  }

 private:
  static size_t PeekAll(collectives::Link& link, size_t most) {
    const size_t n = std::min(link.Peek(1).value().size(), most);
    link.Consume(n);
    return n;
  }
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(700'000), got_ = bytes_;
};

template <typename Pump>
void ExpectNoAllocations(collectives::Link& a, collectives::Link& b, const Pump& pump) {
  Traffic traffic;
  traffic.Run(a, b, 50, pump);
  const int64_t before = allocations;
  traffic.Run(a, b, 200, pump);
  EXPECT_EQ(allocations - before, 0) << a.kind();
}

TEST(LinkAllocTest, NothingIsAllocatedInSteadyState) {
  const auto nothing = [] {};
  auto memory = collectives::InMemoryLink::NewPair();
  ExpectNoAllocations(*memory[0], *memory[1], nothing);
  auto shm = collectives::ShmLink::NewPair();
  ASSERT_TRUE(shm.ok());
  ExpectNoAllocations(*(*shm)[0], *(*shm)[1], nothing);
  auto sockets = collectives::TcpPair();
  ASSERT_TRUE(sockets.ok());
  collectives::TcpLink a(std::move(sockets->first)), b(std::move(sockets->second));
  ExpectNoAllocations(a, b, nothing);
}

TEST(LinkAllocTest, FrameLinksAllocateNothingButBuffersThatAreReused) {
  HeapBufferSource source;
  collectives::FrameLink a(source, {}), b(source, {});
  std::vector<Frame> frames;
  const auto carry = [&](collectives::FrameLink& from, collectives::FrameLink& to) {
    from.Flush(&frames);
    for (const Frame& frame : frames) TANDEM_CHECK_OK(to.OnFrame(*DecodeFrame(frame)));
    frames.clear();
  };
  const auto pump = [&] {
    carry(a, b);
    carry(b, a);
  };
  ExpectNoAllocations(a, b, pump);
}

// Transports have threads or devices of their own, so how much is under way at once varies, and
// with it what their pools hold. But not for ever: some round asks for nothing. One that asked for
// something with each frame would in every round.
template <typename Count>
void ExpectSteadyState(collectives::Link& a, collectives::Link& b, const Count& count) {
  Traffic traffic;
  for (int round = 0; round < 100; ++round) {
    const auto before = count();
    traffic.Run(a, b, 50, [] {});
    if (count() == before) return;
  }
  ADD_FAILURE() << "each round asks for more over " << a.kind();
}

TEST(LinkAllocTest, LinksOverZeroMqAllocateNothing) {
  TransportEnds ends = TransportMesh(collectives::LinkChoice::kZmq, 2).Next();
  ExpectSteadyState(*ends.first, *ends.second, [] { return allocations.load(); });
}

// Nor do they register memory, or copy what they send or receive a second time.
TEST(LinkAllocTest, LinksOverRdmaAllocateRegisterAndCopyNothing) {
  if (const std::string missing = Missing(collectives::LinkChoice::kRdma); !missing.empty()) {
    GTEST_SKIP() << missing;
  }
  TransportMesh mesh(collectives::LinkChoice::kRdma, 2);
  TransportEnds ends = mesh.Next();
  const auto counters = [&](size_t rank) {
    return dynamic_cast<const rdma::RdmaTransport&>(mesh.hub(rank).transport()).rdma_counters();
  };
  ExpectSteadyState(*ends.first, *ends.second, [&] {
    const rdma::RdmaCounters a = counters(0), b = counters(1);
    return static_cast<uint64_t>(allocations.load()) + a.registrations + a.allocations +
           b.registrations + b.allocations;
  });
  const rdma::RdmaCounters sender = counters(0), receiver = counters(1);
  EXPECT_GT(sender.ring, 0u);
  EXPECT_EQ(sender.staged_bytes, 0u);
  EXPECT_EQ(sender.offered, 0u);
  EXPECT_GT(receiver.lent, 0u);
  EXPECT_EQ(receiver.copied_out, 0u);
}

}  // namespace
}  // namespace tandem
