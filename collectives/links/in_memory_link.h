// Two links in one process that are each other's far end, over two bounded queues of bytes. For
// tests: of the engine (a group of ranks in one thread, or a thread each), of what happens when
// transfers stop at any byte, and of failures at a chosen moment.
//
// Thread safety: each end belongs to one thread; Break may be called by any.
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
  // Bytes on their way in each direction: a power of two, at least Link::kMaxPeek.
  size_t capacity = size_t{1} << 16;
  // Not 0: every call moves a random part of what it could, often nothing.
  uint64_t partial_seed = 0;
};

class InMemoryLink final : public Link {
 public:
  using Pair = std::array<std::unique_ptr<InMemoryLink>, 2>;
  static Pair NewPair(const InMemoryLinkOptions& options = {});

  // An end that goes away has closed: the other reads what was written before, then UNAVAILABLE.
  ~InMemoryLink() override;

  // From now on every call of both ends returns `why` (not OK), whatever is still on its way.
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
  // Bytes that have arrived; an error if fewer than `least` have and no more will.
  absl::StatusOr<size_t> Arrived(size_t least);
  size_t Part(size_t n);  // n, or with partial_seed a number from 0 to n

  const std::shared_ptr<Shared> shared_;
  Queue& in_;
  Queue& out_;
  const bool partial_;
  Random random_;
  size_t peeked_ = 0;
  std::array<uint8_t, kMaxPeek> joined_;  // what Peek gives where the queue wraps
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_IN_MEMORY_LINK_H_
