#include "server/rows/row_copies.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "server/rows/page_arena.h"

namespace tandem::server {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kCandidateFloats = 2;

size_t RoundedUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void CopyBlocks::Free(std::unique_ptr<std::byte[]> memory, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  const size_t begin = RoundedUp(address, PageArena::kPage) - address;
  const size_t end = (address + bytes) / PageArena::kPage * PageArena::kPage - address;
  // A hint: without it, only used() of the budget is too large.
  if (begin < end) madvise(memory.get() + begin, end - begin, MADV_DONTNEED);
}

CopyList::CopyList(size_t floats, std::shared_ptr<CopyBlocks> blocks)
    : floats_(floats), blocks_(std::move(blocks)) {
  const size_t usable = CopyBlocks::kBytes - kLine - sizeof(uint64_t);  // the rest aligns
  chunk_rows_ = std::max<size_t>(2, usable / (floats_ * sizeof(float) + sizeof(uint64_t)));
  inverse_ = ~uint64_t{0} / chunk_rows_ + 1;
}

void CopyList::AddChunk() {
  TANDEM_CHECK(blocks_ != nullptr);
  const size_t keys_at = RoundedUp(chunk_rows_ * floats_ * sizeof(float), sizeof(uint64_t));
  const size_t bytes = kLine + keys_at + chunk_rows_ * sizeof(uint64_t);
  Chunk chunk;
  if (bytes <= CopyBlocks::kBytes) {
    chunk.memory = {blocks_->Take().release(), GiveBack{blocks_, 0}};
  } else {
    chunk.memory = {new std::byte[bytes], GiveBack{blocks_, bytes}};
    blocks_->CountOther(bytes, 0);
  }
  const auto address = reinterpret_cast<uintptr_t>(chunk.memory.get());
  std::byte* const begin = chunk.memory.get() + (RoundedUp(address, kLine) - address);
  chunk.floats = reinterpret_cast<float*>(begin);
  chunk.keys = reinterpret_cast<uint64_t*>(begin + keys_at);
  chunks_.push_back(std::move(chunk));
}

RowCopies::RowCopies(size_t numbers, size_t floats, std::shared_ptr<CopyBlocks> blocks,
                     size_t extra, CopyExtra copy_extra, int64_t version)
    : numbers_(numbers),
      store_floats_(floats),
      version_(version),
      copy_extra_(std::move(copy_extra)),
      done_((numbers + 63) / 64),
      rows_(floats + extra, blocks),
      candidates_(kCandidateFloats, std::move(blocks)) {}

// A copy of a candidate has its two numbers as the bits of floats.
void RowCopies::AddCandidate(const Candidate& candidate) {
  float* const to = candidates_.Add(candidate.key);
  std::memcpy(to, &candidate.count, sizeof candidate.count);
  std::memcpy(to + 1, &candidate.age, sizeof candidate.age);
}

Candidate RowCopies::CandidateOf(const CopyList& candidates, uint32_t i) {
  Candidate candidate;
  candidate.key = candidates.key(i);
  std::memcpy(&candidate.count, candidates.row(i), sizeof candidate.count);
  std::memcpy(&candidate.age, candidates.row(i) + 1, sizeof candidate.age);
  return candidate;
}

}  // namespace tandem::server
