#include "tests/unit/collectives/proof/symbols.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem {

// ---- Sums ----

int Sums::Leaf(int rank) {
  nodes_.push_back({rank, -1, -1, 0});
  return static_cast<int>(nodes_.size()) - 1;
}

int Sums::Add(int left, int right, int64_t shift) {
  nodes_.push_back({-1, left, right, shift});
  return static_cast<int>(nodes_.size()) - 1;
}

std::vector<Sums::Contribution> Sums::Contributions(int sum) const {
  std::vector<Contribution> found;
  std::vector<std::pair<int, int64_t>> todo = {{sum, 0}};
  while (!todo.empty()) {
    const auto [at, offset] = todo.back();
    todo.pop_back();
    const Node& node = At(at);
    if (node.rank >= 0) {
      found.push_back({node.rank, offset});
    } else {
      todo.push_back({node.right, offset + node.shift});
      todo.push_back({node.left, offset});
    }
  }
  return found;
}

bool Sums::InRankOrder(int sum, int ranks) const {
  for (int last = ranks - 1; last > 0; --last) {
    const Node& node = At(sum);
    if (node.rank >= 0) return false;
    if (At(node.right).rank == last) {
      sum = node.left;
    } else if (At(node.left).rank == last) {
      sum = node.right;
    } else {
      return false;
    }
  }
  return At(sum).rank == 0;
}

std::string Sums::DebugString(int sum) const {
  const Node& node = At(sum);
  if (node.rank >= 0) return absl::StrCat(node.rank);
  const bool nested = At(node.right).rank < 0;
  return absl::StrCat(DebugString(node.left), nested ? " + (" : " + ", DebugString(node.right),
                      nested ? ")" : "");
}

// ---- Segments ----

void Move(Segments* segments, int64_t by) {
  for (Segment& segment : *segments) {
    segment.begin += by;
    segment.end += by;
    segment.base += by;
  }
}

Segments AddSegments(const Segments& x, const Segments& y, Sums* sums) {
  Segments out;
  for (size_t i = 0, j = 0; i < x.size() && j < y.size();) {
    const int64_t begin = std::max(x[i].begin, y[j].begin);
    const int64_t end = std::min(x[i].end, y[j].end);
    TANDEM_CHECK(begin < end);
    out.push_back({begin, end, sums->Add(x[i].sum, y[j].sum, x[i].base - y[j].base), x[i].base});
    if (x[i].end == end) ++i;
    if (y[j].end == end) ++j;
    // The segments of x and y may both end here. Then the next two begin at the same element.
    TANDEM_CHECK((i < x.size()) == (j < y.size()));
  }
  return out;
}

// ---- SymbolicMemory ----

Segments SymbolicMemory::Read(int64_t begin, int64_t end) const {
  Segments out;
  auto it = std::upper_bound(segments_.begin(), segments_.end(), begin,
                             [](int64_t at, const Segment& s) { return at < s.end; });
  for (int64_t at = begin; it != segments_.end() && it->begin <= at && at < end; ++it) {
    out.push_back({at, std::min(end, it->end), it->sum, it->base});
    at = it->end;
  }
  return out;
}

void SymbolicMemory::Write(const Segments& segments) {
  if (segments.empty()) return;
  const int64_t begin = segments.front().begin, end = segments.back().end;
  const auto first = std::upper_bound(segments_.begin(), segments_.end(), begin,
                                      [](int64_t at, const Segment& s) { return at < s.end; });
  auto last = first;
  while (last != segments_.end() && last->begin < end) ++last;
  Segments fresh;
  if (first != last && first->begin < begin) {
    fresh.push_back(*first);
    fresh.back().end = begin;
  }
  fresh.insert(fresh.end(), segments.begin(), segments.end());
  if (first != last && std::prev(last)->end > end) {
    fresh.push_back(*std::prev(last));
    fresh.back().begin = end;
  }
  const auto shared = std::min(last - first, static_cast<std::ptrdiff_t>(fresh.size()));
  const auto at = std::copy(fresh.begin(), fresh.begin() + shared, first);
  if (at != last) {
    segments_.erase(at, last);
  } else {
    segments_.insert(at, fresh.begin() + shared, fresh.end());
  }
}

}  // namespace tandem
