// Round trips over loopback: bare ZeroMQ (DEALER and ROUTER, the same parts, blocking calls) beside
// the ZeroMQ transport and the one through shared memory, taken in turns in one run. Then the way
// of large values through shared memory, beside memcpy on one core.
//
//   transport_roundtrip [--tiny] [--rounds=N] [--trips=N] [--spin]
//
// --spin: who waits for shared memory always looks for a while before it sleeps, as it does on a
// machine with free cores; for one whose other programs have been put behind by a priority.
//
// One thread asks, one answers with the parts it got. A request is three parts: a header with one
// entry, keys, values; or one part of 64 bytes of values. Each line: parts, then the median over
// all trips, the spread of the medians of the rounds, and the ratios of ours to bare and of shared
// memory to ours over ZeroMQ. Every answer is checked for its size and its first and last bytes.
//
// A large value is copied by its sender from where it is to memory of the transport, and all of it
// is added up by the receiver, which answers with an empty frame; the other side of the comparison
// is the same copy and the same sum in one thread. Gigabytes a second of both, copy and sum of each
// counted as one pass.
#include <sys/utsname.h>
#include <zmq.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tools/bench/endpoints.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPart0Bytes = kFrameHeaderBytes + kSliceEntryBytes;

struct Sizes {
  size_t keys, values;  // bytes
};

// One way to make a round trip; returns its microseconds.
class Pair {
 public:
  virtual ~Pair() = default;
  virtual double Trip() = 0;
};

double Microseconds(Clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

void CheckAnswer(const uint8_t* sent, const uint8_t* got, size_t sent_bytes, size_t got_bytes) {
  TANDEM_CHECK(sent_bytes == got_bytes);
  TANDEM_CHECK(got_bytes == 0 || (sent[0] == got[0] && sent[got_bytes - 1] == got[got_bytes - 1]));
}

// ---- bare ----

void Nothing(void*, void*) {}

void SendBytes(void* socket, Buffer& bytes, bool more) {
  zmq_msg_t message;
  zmq_msg_init_data(&message, bytes.mutable_data(), bytes.size(), &Nothing, nullptr);
  TANDEM_CHECK(zmq_msg_send(&message, socket, more ? ZMQ_SNDMORE : 0) >= 0);
}

class BarePair final : public Pair {
 public:
  explicit BarePair(const Sizes& sizes) {
    router_ = zmq_socket(context_.handle(), ZMQ_ROUTER);
    dealer_ = zmq_socket(context_.handle(), ZMQ_DEALER);
    TANDEM_CHECK(zmq_bind(router_, "tcp://127.0.0.1:*") == 0);
    char address[256];
    size_t size = sizeof address;
    TANDEM_CHECK(zmq_getsockopt(router_, ZMQ_LAST_ENDPOINT, address, &size) == 0);
    TANDEM_CHECK(zmq_connect(dealer_, address) == 0);
    for (const size_t bytes : {kPart0Bytes, sizes.keys, sizes.values}) {
      parts_.push_back(heap_.Alloc(bytes));
      std::memset(parts_.back().mutable_data(), 7, bytes);
    }
    thread_ = std::thread([this] { Echo(); });
  }
  ~BarePair() override {
    zmq_send(dealer_, "", 0, 0);  // a message of one part ends it
    thread_.join();
    zmq_close(dealer_);
    zmq_close(router_);
  }
  double Trip() override {
    const auto start = Clock::now();
    for (size_t i = 0; i < 3; ++i) SendBytes(dealer_, parts_[i], i < 2);
    zmq_msg_t got;
    for (size_t i = 0; i < 3; ++i) {
      zmq_msg_init(&got);
      TANDEM_CHECK(zmq_msg_recv(&got, dealer_, 0) >= 0);
      CheckAnswer(parts_[i].data(), static_cast<uint8_t*>(zmq_msg_data(&got)), parts_[i].size(),
                  zmq_msg_size(&got));
      zmq_msg_close(&got);
    }
    return Microseconds(Clock::now() - start);
  }

 private:
  void Echo() {
    for (;;) {
      zmq_msg_t parts[4];
      int count = 0;
      do {
        zmq_msg_init(&parts[count]);
        TANDEM_CHECK(zmq_msg_recv(&parts[count], router_, 0) >= 0);
      } while (zmq_msg_more(&parts[count++]) != 0);
      for (int i = 0; i < count; ++i) {
        if (count == 2) {
          zmq_msg_close(&parts[i]);
        } else {
          TANDEM_CHECK(zmq_msg_send(&parts[i], router_, i + 1 < count ? ZMQ_SNDMORE : 0) >= 0);
        }
      }
      if (count == 2) return;
    }
  }

  transport::ZmqContext context_{1};
  HeapBufferSource heap_;
  void* router_;
  void* dealer_;
  std::vector<Buffer> parts_;
  std::thread thread_;
};

// ---- ours ----

using MakeTransport = std::function<std::unique_ptr<transport::Transport>()>;

class TransportPair final : public Pair {
 public:
  TransportPair(const Sizes& sizes, const MakeTransport& make)
      : sizes_(sizes), here_(make()), there_(make()) {
    peer_ = here_->Connect(there_->address()).value();
    thread_ = std::thread([this] { Echo(); });
  }
  ~TransportPair() override {
    here_->Close(peer_);
    here_.reset();
    thread_.join();
  }
  double Trip() override {
    const auto start = Clock::now();
    Buffer keys = here_->Alloc(sizes_.keys), values = here_->Alloc(sizes_.values);
    keys.mutable_data()[0] = keys.mutable_data()[sizes_.keys - 1] = 7;
    values.mutable_data()[0] = values.mutable_data()[sizes_.values - 1] = 9;
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    header.step = ++step_;
    TANDEM_CHECK_OK(
        here_->Send(peer_, EncodeDataFrame(*here_, header, {&slice_, 1}, keys, values)));
    while (events_.empty()) here_->Poll(absl::InfiniteDuration(), &events_);
    const ParsedFrame& got = events_[0].frame;
    TANDEM_CHECK(events_.size() == 1 && got.header.step == step_);
    CheckAnswer(keys.data(), got.keys().data(), keys.size(), got.keys().size());
    CheckAnswer(values.data(), got.values().data(), values.size(), got.values().size());
    events_.clear();  // the answer's memory goes back, as it does in the bare trip
    return Microseconds(Clock::now() - start);
  }

 private:
  void Echo() {
    for (std::vector<transport::TransportEvent> events;; events.clear()) {
      there_->Poll(absl::InfiniteDuration(), &events);
      for (transport::TransportEvent& event : events) {
        if (event.kind == transport::TransportEvent::Kind::kPeerClosed) return;
        TANDEM_CHECK(event.kind == transport::TransportEvent::Kind::kFrame);
        TANDEM_CHECK_OK(there_->Send(event.peer, std::move(event.frame.frame)));
      }
    }
  }

  const Sizes sizes_;
  std::unique_ptr<transport::Transport> here_;
  const std::unique_ptr<transport::Transport> there_;
  transport::PeerId peer_ = 0;
  int64_t step_ = 0;
  SliceEntry slice_;
  std::vector<transport::TransportEvent> events_;
  std::thread thread_;
};

double Median(std::vector<double> all) {
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

struct Result {
  std::vector<double> trips, medians;
  void Run(Pair& pair, int count) {
    std::vector<double> now;
    for (int i = 0; i < count; ++i) now.push_back(pair.Trip());
    medians.push_back(Median(now));
    trips.insert(trips.end(), now.begin(), now.end());
  }
};

void Print(const char* name, const Result& r) {
  std::printf("  %s p50 %8.1f us (%.1f to %.1f)", name, Median(r.trips),
              *std::min_element(r.medians.begin(), r.medians.end()),
              *std::max_element(r.medians.begin(), r.medians.end()));
}

void Compare(const Sizes& sizes, transport::SpinMode spin, int rounds, int trips) {
  BarePair bare(sizes);
  TransportPair ours(sizes, [] { return bench::NewZmqEndpoint(); }),
      shm(sizes, [spin] { return bench::NewShmEndpoint(spin); });
  Result bare_result, our_result, shm_result, warm;
  for (Pair* const pair : std::initializer_list<Pair*>{&bare, &ours, &shm}) {
    warm.Run(*pair, trips / 4 + 1);
  }
  for (int round = 0; round < rounds; ++round) {
    bare_result.Run(bare, trips);
    our_result.Run(ours, trips);
    shm_result.Run(shm, trips);
  }
  std::printf("parts %zu + %8zu + %9zu bytes", kPart0Bytes, sizes.keys, sizes.values);
  Print("bare", bare_result);
  Print("ours", our_result);
  Print("shm", shm_result);
  std::printf("  ours / bare %.3f  shm / ours %.3f\n",
              Median(our_result.trips) / Median(bare_result.trips),
              Median(shm_result.trips) / Median(our_result.trips));
  std::fflush(stdout);
}

// ---- large values ----

uint64_t Sum(const Buffer& values) {
  uint64_t sum = 0;
  for (const uint64_t word : values.As<uint64_t>()) sum += word;
  return sum;
}

// Sends values one way, several on the way at a time so that both cores have work.
class LargeValues {
 public:
  LargeValues(size_t bytes, transport::SpinMode spin)
      : source_(heap_.Alloc(bytes)),
        target_(heap_.Alloc(bytes)),
        under_way_(std::max(2, static_cast<int>((4 << 20) / bytes))),
        here_(bench::NewShmEndpoint(spin)),
        there_(bench::NewShmEndpoint(spin)) {
    for (uint64_t& word : source_.MutableAs<uint64_t>()) word = sum_ += 77;
    sum_ = Sum(source_);
    peer_ = here_->Connect(there_->address()).value();
    thread_ = std::thread([this] { Receive(); });
  }
  ~LargeValues() {
    here_->Close(peer_);
    thread_.join();
  }
  // Seconds for `count` values through shared memory.
  double Ship(int count) {
    const auto start = Clock::now();
    for (int sent = 0, answered = 0; answered < count;) {
      if (sent < count && sent - answered < under_way_) {
        Buffer values = here_->Alloc(source_.size());
        std::memcpy(values.mutable_data(), source_.data(), source_.size());
        FrameHeader header;
        header.kind = FrameKind::kSegment;
        TANDEM_CHECK_OK(
            here_->Send(peer_, EncodeDataFrame(*here_, header, {}, Buffer(), std::move(values))));
        ++sent;
        continue;
      }
      here_->Poll(absl::InfiniteDuration(), &events_);
      answered += static_cast<int>(events_.size());
      events_.clear();
    }
    return Microseconds(Clock::now() - start) / 1e6;
  }
  // The same in one thread without a transport.
  double Copy(int count) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      std::memcpy(target_.mutable_data(), source_.data(), source_.size());
      TANDEM_CHECK(Sum(target_) == sum_);
    }
    return Microseconds(Clock::now() - start) / 1e6;
  }
  double CopyOnly(int count) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      std::memcpy(target_.mutable_data(), source_.data(), source_.size());
      asm volatile("" : : "r"(target_.data()) : "memory");  // each one is made
    }
    return Microseconds(Clock::now() - start) / 1e6;
  }

 private:
  void Receive() {
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    for (std::vector<transport::TransportEvent> events;; events.clear()) {
      there_->Poll(absl::InfiniteDuration(), &events);
      for (const transport::TransportEvent& event : events) {
        if (event.kind == transport::TransportEvent::Kind::kPeerClosed) return;
        TANDEM_CHECK(Sum(event.frame.values()) == sum_);
        TANDEM_CHECK_OK(
            there_->Send(event.peer, EncodeDataFrame(*there_, header, {}, Buffer(), Buffer())));
      }
    }
  }

  HeapBufferSource heap_;
  Buffer source_, target_;
  const int under_way_;  // frames
  uint64_t sum_ = 0;
  const std::unique_ptr<transport::Transport> here_, there_;
  transport::PeerId peer_ = 0;
  std::vector<transport::TransportEvent> events_;
  std::thread thread_;
};

void CompareLarge(size_t bytes, transport::SpinMode spin, int rounds) {
  LargeValues values(bytes, spin);
  const int count = static_cast<int>((size_t{64} << 20) / bytes) + 2;
  values.Ship(count);
  std::vector<double> ship, copy, only;
  const double gigabytes = static_cast<double>(bytes) * count / 1e9;
  for (int round = 0; round < rounds; ++round) {
    ship.push_back(gigabytes / values.Ship(count));
    copy.push_back(gigabytes / values.Copy(count));
    only.push_back(gigabytes / values.CopyOnly(count));
  }
  std::printf("values of %9zu bytes: shm %6.2f GB/s, copy and sum %6.2f, memcpy alone %6.2f\n",
              bytes, Median(ship), Median(copy), Median(only));
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  int rounds = 15, trips = 400;
  bool tiny = false;
  transport::SpinMode spin = transport::SpinMode::kWhenCoresAreFree;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--tiny") {
      tiny = true;
    } else if (arg == "--spin") {
      spin = transport::SpinMode::kAlways;
    } else if (arg.rfind("--rounds=", 0) == 0) {
      rounds = std::stoi(arg.substr(9));
    } else if (arg.rfind("--trips=", 0) == 0) {
      trips = std::stoi(arg.substr(8));
    } else {
      std::fprintf(stderr, "unknown argument %s (see the top of the source)\n", arg.c_str());
      return 2;
    }
  }
  if (tiny) rounds = trips = 2;
  utsname machine;
  uname(&machine);
  std::printf("transport_roundtrip: %s %s, %u cores, %d rounds of %d trips\n", machine.sysname,
              machine.machine, std::thread::hardware_concurrency(), rounds, trips);
  Compare({8, 64}, spin, rounds, trips);
  // 1 k, 10 k and 50 k keys of 16 floats.
  for (const size_t keys : {1'000, 10'000, 50'000}) {
    Compare({keys * 8, keys * 64}, spin, rounds, keys < 10'000 ? trips : trips / 4 + 1);
  }
  for (const size_t bytes : {size_t{64} << 10, size_t{1} << 20, size_t{16} << 20}) {
    CompareLarge(bytes, spin, rounds);
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::Main(argc, argv); }
