#include "collectives/links/in_memory_link.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::collectives {

// A queue with one producer and one consumer. Byte i of the stream is at index i % capacity.
struct InMemoryLink::Queue {
  std::vector<uint8_t> bytes;
  alignas(64) std::atomic<uint64_t> tail{0};  // bytes written
  alignas(64) std::atomic<uint64_t> head{0};  // bytes consumed
  std::atomic<bool> ended{false};             // nothing follows `tail`
  std::atomic<bool> unread{false};            // the reader is gone

  size_t size() const { return tail.load(std::memory_order_acquire) - head; }
  void CopyIn(uint64_t at, absl::Span<const uint8_t> from);
  void CopyOut(uint64_t at, absl::Span<uint8_t> to) const;
};

struct InMemoryLink::Shared {
  Queue queues[2];  // [i] carries the bytes that end i writes
  std::atomic<bool> broken{false};
  absl::Mutex mu;
  absl::Status why ABSL_GUARDED_BY(mu);
};

void InMemoryLink::Queue::CopyIn(uint64_t at, absl::Span<const uint8_t> from) {
  const size_t begin = at % bytes.size();
  const size_t first = std::min(from.size(), bytes.size() - begin);
  std::copy_n(from.begin(), first, bytes.begin() + begin);
  std::copy(from.begin() + first, from.end(), bytes.begin());
}

void InMemoryLink::Queue::CopyOut(uint64_t at, absl::Span<uint8_t> to) const {
  const size_t begin = at % bytes.size();
  const size_t first = std::min(to.size(), bytes.size() - begin);
  std::copy_n(bytes.begin() + begin, first, to.begin());
  std::copy_n(bytes.begin(), to.size() - first, to.begin() + first);
}

InMemoryLink::Pair InMemoryLink::NewPair(const InMemoryLinkOptions& options) {
  TANDEM_CHECK(std::has_single_bit(options.capacity) && options.capacity >= kMaxPeek);
  auto shared = std::make_shared<Shared>();
  for (Queue& queue : shared->queues) queue.bytes.resize(options.capacity);
  return {std::unique_ptr<InMemoryLink>(new InMemoryLink(shared, 0, options)),
          std::unique_ptr<InMemoryLink>(new InMemoryLink(shared, 1, options))};
}

InMemoryLink::InMemoryLink(std::shared_ptr<Shared> shared, int end,
                           const InMemoryLinkOptions& options)
    : shared_(std::move(shared)),
      in_(shared_->queues[1 - end]),
      out_(shared_->queues[end]),
      partial_(options.partial_seed != 0),
      random_(HashCombine(options.partial_seed, static_cast<uint64_t>(end))) {}

InMemoryLink::~InMemoryLink() {
  in_.unread.store(true, std::memory_order_release);
  out_.ended.store(true, std::memory_order_release);
}

void InMemoryLink::Break(absl::Status why) {
  TANDEM_CHECK(!why.ok());
  absl::MutexLock lock(&shared_->mu);
  shared_->why.Update(why);  // the first reason stays
  shared_->broken.store(true, std::memory_order_release);
}

absl::Status InMemoryLink::Broken() const {
  if (!shared_->broken.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&shared_->mu);
  return shared_->why;
}

size_t InMemoryLink::Part(size_t n) {
  if (!partial_) return n;
  // Few bytes as often as many, so that both the short parts of messages and the long ones are cut.
  return random_.Bernoulli(.5) ? std::min<size_t>(n, random_.Uniform(8)) : random_.Uniform(n + 1);
}

absl::StatusOr<size_t> InMemoryLink::Write(absl::Span<const uint8_t> head,
                                           absl::Span<const uint8_t> body) {
  TANDEM_RETURN_IF_ERROR(Broken());
  if (out_.unread.load(std::memory_order_acquire)) {
    return absl::UnavailableError("connection closed by the peer");
  }
  const uint64_t tail = out_.tail.load(std::memory_order_relaxed);
  const size_t free = out_.bytes.size() - (tail - out_.head.load(std::memory_order_acquire));
  const size_t n = Part(std::min(free, head.size() + body.size()));
  const size_t of_head = std::min(n, head.size());
  out_.CopyIn(tail, head.first(of_head));
  out_.CopyIn(tail + of_head, body.first(n - of_head));
  out_.tail.store(tail + n, std::memory_order_release);
  return n;
}

absl::StatusOr<size_t> InMemoryLink::Arrived(size_t least) {
  TANDEM_RETURN_IF_ERROR(Broken());
  if (const size_t n = in_.size(); n >= least) return n;
  const bool ended = in_.ended.load(std::memory_order_acquire);
  const size_t n = in_.size();  // bytes written before the end count
  if (n < least && ended) return absl::UnavailableError("connection closed by the peer");
  return n;
}

absl::StatusOr<absl::Span<const uint8_t>> InMemoryLink::Peek(size_t least) {
  TANDEM_CHECK(least >= 1 && least <= kMaxPeek);
  peeked_ = 0;
  TANDEM_ASSIGN_OR_RETURN(const size_t arrived, Arrived(least));
  const bool late = partial_ && random_.Bernoulli(.25);
  if (arrived < least || late) return absl::Span<const uint8_t>();
  peeked_ = least + Part(arrived - least);
  const uint64_t head = in_.head.load(std::memory_order_relaxed);
  const size_t begin = head % in_.bytes.size();
  const size_t until_wrap = in_.bytes.size() - begin;
  if (until_wrap >= least) {
    peeked_ = std::min(peeked_, until_wrap);
    return absl::MakeConstSpan(in_.bytes.data() + begin, peeked_);
  }
  peeked_ = least;
  in_.CopyOut(head, absl::MakeSpan(joined_.data(), least));
  return absl::MakeConstSpan(joined_.data(), least);
}

void InMemoryLink::Consume(size_t n) {
  TANDEM_CHECK(n <= peeked_);
  peeked_ -= n;
  in_.head.store(in_.head.load(std::memory_order_relaxed) + n, std::memory_order_release);
}

absl::StatusOr<size_t> InMemoryLink::Read(absl::Span<uint8_t> to) {
  peeked_ = 0;
  if (to.empty()) return size_t{0};
  TANDEM_ASSIGN_OR_RETURN(const size_t arrived, Arrived(1));
  const size_t n = Part(std::min(arrived, to.size()));
  const uint64_t head = in_.head.load(std::memory_order_relaxed);
  in_.CopyOut(head, to.first(n));
  in_.head.store(head + n, std::memory_order_release);
  return n;
}

}  // namespace tandem::collectives
