// InMemoryLink: two links in one process that are each other's peer, over two bounded queues of
// bytes. For tests of the engine (a group of ranks in one thread, or a thread for each rank), of
// transfers that stop at any byte, and of failures at a chosen moment.
//
// Thread safety: each end belongs to one thread; any thread may call Break.
#ifndef TANDEM_COLLECTIVES_LINKS_IN_MEMORY_LINK_H_
#define TANDEM_COLLECTIVES_LINKS_IN_MEMORY_LINK_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "collectives/links/link.h"

namespace tandem::collectives {

struct InMemoryLinkOptions {
  // Bytes in flight in each direction: a power of two, at least Link::kMaxPeek.
  size_t capacity = size_t{1} << 16;
  // If not 0, every call moves only a random part of the possible bytes, often none.
  uint64_t partial_seed = 0;
};

class InMemoryLink final : public Link {
 public:
  using Pair = std::array<std::unique_ptr<InMemoryLink>, 2>;
  static Pair NewPair(const InMemoryLinkOptions& options = {});

  // Destroying an end closes it: the other end reads the bytes that were written before, then
  // UNAVAILABLE.
  ~InMemoryLink() override;

  // From now on every call of both ends returns `why` (not OK), even if bytes are still in flight.
  void Break(absl::Status why);

  absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                               absl::Span<const uint8_t> body) override;
  absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) override;
  void Consume(size_t n) override;
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) override;
  absl::string_view kind() const override { return "memory"; }

 private:
  struct Queue;
  struct Shared;
  InMemoryLink(std::shared_ptr<Shared> shared, int end, const InMemoryLinkOptions& options);

  absl::Status Broken() const;
  // The number of bytes that have arrived. An error if there are fewer than `least` and no more
  // will come.
  absl::StatusOr<size_t> Arrived(size_t least);
  size_t Part(size_t n);  // n, or with partial_seed a number from 0 to n

  const std::shared_ptr<Shared> shared_;
  Queue& in_;
  Queue& out_;
  const bool partial_;
  Random random_;
  size_t peeked_ = 0;
  std::array<uint8_t, kMaxPeek> joined_;  // result of Peek if the queue wraps
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_IN_MEMORY_LINK_H_
