#include "data/deal_blocks.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace tandem::data {
namespace {

// A resumed run must deal as the run before did. So other sizes need a new value of Data.Deal.
constexpr int64_t kMaxBlockBytes = int64_t{16} << 20;
constexpr int64_t kRounds = 8;  // fewer only if blocks would be too small

int64_t RoundsFor(int64_t bytes, int64_t workers, int64_t min_bytes) {
  const int64_t share = bytes / workers;
  return std::max(std::clamp<int64_t>(share / min_bytes, 1, kRounds),
                  (share + kMaxBlockBytes - 1) / kMaxBlockBytes);
}

// Deals whole files, the largest first, each to the worker that has least. Adds their sizes to
// `loads`.
void DealWhole(absl::Span<const DealtFile> files, std::vector<int64_t>* loads, BlockDeal* deal) {
  std::vector<const DealtFile*> whole;
  for (const DealtFile& file : files) {
    if (file.whole) whole.push_back(&file);
  }
  std::stable_sort(whole.begin(), whole.end(), [](const DealtFile* a, const DealtFile* b) {
    return a->unpacked > b->unpacked;
  });
  using Load = std::pair<int64_t, size_t>;  // bytes, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (size_t rank = 0; rank < loads->size(); ++rank) least.emplace(0, rank);
  for (const DealtFile* file : whole) {
    const auto [bytes, rank] = least.top();
    least.pop();
    deal->of[rank].push_back(file->bytes);
    (*loads)[rank] = bytes + static_cast<int64_t>(file->unpacked);
    least.emplace((*loads)[rank], rank);
  }
}

// Divides `bytes` among the workers, by rank. All workers that get bytes end with the same load.
// Workers with a larger load get none.
std::vector<int64_t> SharesOf(int64_t bytes, const std::vector<int64_t>& loads) {
  std::vector<size_t> order(loads.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&loads](size_t a, size_t b) { return loads[a] < loads[b]; });
  int64_t filled = 0, total = bytes, level = 0;
  do {
    total += loads[order[static_cast<size_t>(filled++)]];
    level = total / filled;
  } while (filled < static_cast<int64_t>(order.size()) &&
           level > loads[order[static_cast<size_t>(filled)]]);
  std::vector<int64_t> shares(loads.size());
  for (int64_t i = 0; i < filled; ++i) {
    const size_t rank = order[static_cast<size_t>(i)];
    shares[rank] = level - loads[rank] + (i < total % filled ? 1 : 0);
  }
  return shares;
}

// The bytes of the plain files, which are taken from the front.
class PlainBytesLeft {
 public:
  explicit PlainBytesLeft(absl::Span<const DealtFile> files) : files_(files) {}

  // Adds the next `bytes` bytes to `blocks`.
  void Take(int64_t bytes, std::vector<Block>* blocks) {
    while (bytes > 0) {
      TANDEM_CHECK(file_ < files_.size());
      const DealtFile& file = files_[file_];
      const int64_t left = file.whole ? 0 : file.bytes.end - file.bytes.begin - taken_;
      if (left <= 0) {
        ++file_;
        taken_ = 0;
        continue;
      }
      const int64_t begin = file.bytes.begin + taken_;
      const int64_t end = begin + std::min(left, bytes);
      const bool adjoins =
          !blocks->empty() && blocks->back().file == file.bytes.file && blocks->back().end == begin;
      if (adjoins) {
        blocks->back().end = end;
      } else {
        blocks->push_back({file.bytes.file, begin, end, 0});
      }
      taken_ += end - begin;
      bytes -= end - begin;
    }
  }

 private:
  const absl::Span<const DealtFile> files_;
  size_t file_ = 0;
  int64_t taken_ = 0;  // bytes of that file
};

}  // namespace

BlockDeal DealBlocks(absl::Span<const DealtFile> files, int workers, int64_t min_bytes) {
  BlockDeal deal;
  deal.of.resize(static_cast<size_t>(workers));
  std::vector<int64_t> loads(deal.of.size());
  DealWhole(files, &loads, &deal);
  int64_t bytes = 0;
  for (const DealtFile& file : files) {
    if (!file.whole) bytes += std::max<int64_t>(0, file.bytes.end - file.bytes.begin);
  }
  const std::vector<int64_t> shares = SharesOf(bytes, loads);
  const int64_t rounds = RoundsFor(bytes, workers, min_bytes);
  std::vector<std::vector<Block>> plain(deal.of.size());
  PlainBytesLeft left(files);
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      left.Take(shares[rank] / rounds + (round < shares[rank] % rounds ? 1 : 0), &plain[rank]);
    }
  }
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    std::vector<Block>& blocks = deal.of[rank];
    blocks.insert(blocks.end(), plain[rank].begin(), plain[rank].end());
    std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) {
      return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
    });
    loads[rank] += shares[rank];
  }
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
  deal.everyone = *least > 0;
  if (total > 0) deal.largest = static_cast<double>(*most) * workers / total;
  return deal;
}

}  // namespace tandem::data
