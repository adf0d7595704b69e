// Fuzzing what an endpoint reads of a peer on the same host: the handshake and segments that come
// through the socket, and the cursors, records and shared words of the rings. The input is what the
// peer does, step by step, each a byte that says what and then its numbers; the endpoint is asked
// to read at steps of the peer's choice. Whatever happens, the endpoint touches nothing but what it
// has mapped, and every part that it hands out can be read.
//
//   0 greet: kind of memory, greeting right?   1 segment: id, kind of memory   2 raw message: bytes
//   3 record, well formed: parts               4 raw bytes into the ring       5 move the tail
//   6 write a word of the endpoint's ring      7 write a word of our ring
//   8 the endpoint reads its socket            9 ... receives   10 ... sends   11 ... does the rest
//   12 frames are dropped                      13 we close our end
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "proto/frame.h"
#include "transport/shm_channel.h"
#include "transport/unix_link.h"

namespace tandem {
namespace {

constexpr size_t kRingBytes = 4 * transport::kPageBytes;
constexpr size_t kMaxFrames = 256;

class Script {
 public:
  Script(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool over() const { return size_ == 0; }
  // Zeroes at the end.
  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    const size_t here = std::min(bytes, size_);
    std::memcpy(&value, data_, here);
    data_ += here;
    size_ -= here;
    return value;
  }
  uint8_t Byte() { return static_cast<uint8_t>(Number(1)); }
  absl::Span<const uint8_t> Bytes(size_t bytes) {
    const absl::Span<const uint8_t> some(data_, std::min(bytes, size_));
    data_ += some.size();
    size_ -= some.size();
    return some;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// Descriptors that a peer may send.
OwnedFd NewMemory(uint8_t kind) {
  switch (kind % 6) {
    case 0:
      return transport::ShmRing::Create(kRingBytes).value();
    case 1:
      return transport::CreateSharedMemory(transport::kPageBytes).value();
    case 2: {
      OwnedFd open(memfd_create("open", MFD_CLOEXEC));  // not sealed
      TANDEM_CHECK(ftruncate(open.get(), 2 * transport::kPageBytes) == 0);
      return open;
    }
    case 3:
      return OwnedFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    case 4:
      return transport::CreateSharedMemory(transport::ShmArena::kLargestKept +
                                           transport::kPageBytes)
          .value();  // one that passes
    default:
      return transport::CreateSharedMemory(3 * transport::kPageBytes).value();
  }
}

// The peer.
class Attacker {
 public:
  explicit Attacker(transport::UnixLink socket) : socket_(std::move(socket)) {}

  // Its own ring, to be written at will; the endpoint's, once it has come.
  void Greet(uint8_t kind, bool right) {
    const OwnedFd fd = NewMemory(kind);
    if (kind % 6 == 0 && !ring_.data()) {
      auto mapped = transport::MapSharedMemory(fd.get(), transport::kPageBytes + kRingBytes,
                                               /*writable=*/true);
      if (mapped.ok()) ring_ = *std::move(mapped);
    }
    const int fds[] = {fd.get()};
    (void)socket_.Send(right ? "hTNDMSHM1" : "hTNDMSHM2", fds);
  }
  void Segment(uint32_t id, uint8_t kind) {
    const OwnedFd fd = NewMemory(kind);
    char message[1 + sizeof id] = {'s'};
    std::memcpy(message + 1, &id, sizeof id);
    const int fds[] = {fd.get()};
    (void)socket_.Send({message, sizeof message}, fds);
  }
  void Raw(absl::Span<const uint8_t> bytes) {
    if (bytes.empty()) return;
    (void)socket_.Send({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  void WriteToRing(absl::Span<const uint8_t> bytes) {
    if (!ring_.data()) return;
    for (const uint8_t byte : bytes)
      ring_.data()[transport::kPageBytes + tail_++ % kRingBytes] = byte;
  }
  void Publish(uint64_t tail) {
    tail_ = tail;
    if (ring_.data()) Word(ring_, 0).store(tail);
  }
  uint64_t tail() const { return tail_; }
  void WriteOurWord(size_t word, uint64_t value) {
    if (ring_.data()) Word(ring_, word).store(value);
  }
  void WriteTheirWord(size_t word, uint64_t value) {
    if (!theirs_.data()) TakeTheirRing();
    if (theirs_.data()) Word(theirs_, word).store(value);
  }
  void Close() { socket_ = transport::UnixLink(); }

 private:
  static std::atomic<uint64_t>& Word(const transport::Mapping& mapping, size_t word) {
    return reinterpret_cast<std::atomic<uint64_t>*>(
        mapping.data())[word % (transport::kPageBytes / 8)];
  }
  void TakeTheirRing() {
    if (socket_.fd() < 0) return;
    auto hello = socket_.Receive();
    if (!hello.ok() || hello->fds.empty()) return;
    auto mapped =
        transport::MapSharedMemory(hello->fds[0].get(), transport::kPageBytes, /*writable=*/true);
    if (mapped.ok()) theirs_ = *std::move(mapped);
  }

  transport::UnixLink socket_;
  transport::Mapping ring_, theirs_;
  uint64_t tail_ = 0;
};

// A record whose lengths are right, but for what the script says.
std::vector<uint8_t> Record(Script* script) {
  std::vector<uint8_t> out(8);
  const auto add = [&](uint64_t value, size_t bytes) {
    const auto* const from = reinterpret_cast<const uint8_t*>(&value);
    out.insert(out.end(), from, from + bytes);
  };
  const uint32_t parts = script->Byte() % 6;
  for (uint32_t i = 0; i < parts; ++i) {
    if (script->Byte() % 2 == 0) {
      const size_t size = script->Byte();
      add(size, 8);
      const absl::Span<const uint8_t> bytes = script->Bytes(size);
      out.insert(out.end(), bytes.begin(), bytes.end());
      out.resize(out.size() + (size - bytes.size()));
      out.resize((out.size() + 7) / 8 * 8);
    } else {
      add(script->Number(4) | uint64_t{1} << 63, 8);  // size
      add(script->Byte(), 4);                         // segment
      add(script->Number(2), 4);                      // slot
      add(script->Number(3), 8);                      // offset
    }
  }
  const auto bytes = static_cast<uint32_t>(out.size());
  std::memcpy(out.data(), &bytes, sizeof bytes);
  std::memcpy(out.data() + 4, &parts, sizeof parts);
  return out;
}

// Every page of every part.
void Touch(const Frame& frame) {
  TANDEM_CHECK(frame.parts >= 0 && frame.parts <= kMaxFrameParts);
  uint64_t sum = 0;
  for (const Buffer& part : frame.part) {
    const size_t step = part.size() > 64 * transport::kPageBytes ? part.size() / 64 : 512;
    for (size_t i = 0; i < part.size(); i += step) sum += part.data()[i];
    if (part.size() > 0) sum += part.data()[part.size() - 1];
  }
  static std::atomic<uint64_t> sink;
  sink.store(sum);
  (void)DecodeFrame(frame);
}

class Endpoint {
 public:
  explicit Endpoint(transport::UnixLink socket)
      : link_(*transport::ShmChannel::New(std::move(socket), shared_, 8)) {}

  void ReadSocket() { Note(link_->ReadSocket()); }
  void Receive() {
    for (size_t i = 0; i < 64 && usable_; ++i) {
      Frame frame;
      size_t parts = 0;
      const auto more = link_->Receive(&frame, &parts);
      Note(more.status());
      if (!more.ok() || !*more) return;
      Touch(frame);
      if (frames_.size() < kMaxFrames) frames_.push_back(std::move(frame));
    }
  }
  void Send(size_t small, size_t large) {
    const std::vector<Buffer> parts = {Part(small), Part(large)};
    const absl::Status sent = link_->Send(parts);
    if (!absl::IsResourceExhausted(sent)) Note(sent);
  }
  void Rest(uint8_t what) {
    if (what & 1) link_->CollectReleased();
    if (what & 2) Note(link_->RoomAgain().status());
    if (what & 4) (void)link_->MaySleep(/*blocked=*/(what & 8) != 0);
    if (what & 16) link_->Awake();
    if (what & 32) (void)link_->PeerMayRead();
    if (what & 64) (void)(link_->HasNews() || link_->peer_finished());
    if (what & 128) link_->Finish();
  }
  void Drop(size_t count) {
    frames_.erase(frames_.begin(), frames_.begin() + std::min(count, frames_.size()));
  }
  bool usable() const { return usable_; }

 private:
  Buffer Part(size_t bytes) {
    Buffer part = bytes == 0 ? Buffer() : arena_.Alloc(bytes);
    if (bytes > 0) std::memset(part.mutable_data(), 1, bytes);
    return part;
  }
  void Note(const absl::Status& status) { usable_ = usable_ && status.ok(); }

  HeapBufferSource heap_;
  transport::ShmArena arena_;
  transport::ShmStats stats_;
  const transport::ReceivedSpansOwner spans_ = transport::NewReceivedSpans();
  const transport::ShmShared shared_ = {&arena_, &heap_, spans_.get(), &stats_};
  std::unique_ptr<transport::ShmChannel> link_;
  std::vector<Frame> frames_;  // may outlive the link
  bool usable_ = true;
};

void Step(Script* script, Attacker* peer, Endpoint* endpoint) {
  switch (script->Byte() % 14) {
    case 0:
      return peer->Greet(script->Byte(), script->Byte() % 8 != 7);
    case 1: {
      const uint32_t id = script->Byte();
      return peer->Segment(id, script->Byte());
    }
    case 2:
      return peer->Raw(script->Bytes(script->Byte()));
    case 3: {
      const std::vector<uint8_t> record = Record(script);
      peer->WriteToRing(record);
      return peer->Publish(peer->tail());
    }
    case 4:
      peer->WriteToRing(script->Bytes(script->Byte()));
      return peer->Publish(peer->tail());
    case 5:
      return peer->Publish(peer->tail() +
                           static_cast<uint64_t>(static_cast<int64_t>(script->Number(8))));
    case 6: {
      const size_t word = script->Byte();
      return peer->WriteTheirWord(word, script->Number(8));
    }
    case 7: {
      const size_t word = script->Byte();
      return peer->WriteOurWord(word, script->Number(8));
    }
    case 8:
      return endpoint->ReadSocket();
    case 9:
      return endpoint->Receive();
    case 10: {
      const size_t small = script->Byte();
      return endpoint->Send(small, script->Number(2));
    }
    case 11:
      return endpoint->Rest(script->Byte());
    case 12:
      return endpoint->Drop(script->Byte());
    default:
      return peer->Close();
  }
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto ends = tandem::transport::UnixLink::Pair();
  TANDEM_CHECK_OK(ends.status());
  tandem::Script script(data, size);
  tandem::Attacker peer(std::move(ends->first));
  tandem::Endpoint endpoint(std::move(ends->second));
  while (!script.over() && endpoint.usable()) tandem::Step(&script, &peer, &endpoint);
  return 0;
}
