#include "collectives/schedules/build.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace tandem::collectives {
namespace {

int64_t SumOr(const std::vector<int64_t>& counts, int64_t each, int ranks) {
  if (counts.empty()) return each * ranks;
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Piece BlockAmong(const std::vector<int64_t>& counts, int64_t each, int r) {
  if (counts.empty()) return {each * r, each};
  return {std::accumulate(counts.begin(), counts.begin() + r, int64_t{0}),
          counts[static_cast<size_t>(r)]};
}

}  // namespace

int64_t InputElements(Primitive primitive, const CollectiveShape& shape) {
  const bool root = shape.rank == shape.root;
  switch (primitive) {
    case Primitive::kAllReduce:
    case Primitive::kReduce:
      return shape.count;
    case Primitive::kBroadcast:
      return root ? shape.count : 0;
    case Primitive::kReduceScatter:
      return shape.Total();
    case Primitive::kAllGather:
    case Primitive::kGather:
      return shape.CountOf(shape.rank);
    case Primitive::kScatter:
      return root ? shape.Total() : 0;
    case Primitive::kAllToAll:
      return SumOr(shape.send_counts, shape.count, shape.ranks);
    case Primitive::kBarrier:
    case Primitive::kPointToPoint:
      return 0;
  }
  return 0;
}

int64_t OutputElements(Primitive primitive, const CollectiveShape& shape) {
  const bool root = shape.rank == shape.root;
  switch (primitive) {
    case Primitive::kAllReduce:
    case Primitive::kBroadcast:
      return shape.count;
    case Primitive::kReduce:
      return root ? shape.count : 0;
    case Primitive::kReduceScatter:
    case Primitive::kScatter:
      return shape.CountOf(shape.rank);
    case Primitive::kAllGather:
      return shape.Total();
    case Primitive::kGather:
      return root ? shape.Total() : 0;
    case Primitive::kAllToAll:
      return SumOr(shape.receive_counts, shape.count, shape.ranks);
    case Primitive::kBarrier:
    case Primitive::kPointToPoint:
      return 0;
  }
  return 0;
}

Schedule NewSchedule(Primitive primitive, const CollectiveShape& shape) {
  Schedule s;
  s.rank = shape.rank;
  s.ranks = shape.ranks;
  s.input = InputElements(primitive, shape);
  s.output = OutputElements(primitive, shape);
  return s;
}

std::vector<Piece> Parts(int64_t count, int64_t part) {
  if (part == 0 || count <= part) return {{0, count}};
  std::vector<Piece> parts;
  for (int64_t at = 0; at < count; at += part) parts.push_back({at, std::min(part, count - at)});
  return parts;
}

// A part's schedule counts from the begin of the part. Its pieces are shifted to the part's place,
// and its input and output get the sizes of the whole vector: the parts of a pipeline share one
// input and one output, and their pieces must be valid there. Only then are the schedules put
// together.
Schedule InParts(Primitive primitive, const CollectiveShape& shape, int64_t part,
                 absl::FunctionRef<Schedule(const CollectiveShape&)> one) {
  std::vector<Schedule> schedules;
  CollectiveShape of_part = shape;
  for (const Piece& piece : Parts(shape.count, part)) {
    of_part.count = piece.count;
    Schedule s = one(of_part);
    Shift(&s, Region::kInput, piece.begin);
    Shift(&s, Region::kOutput, piece.begin);
    s.input = InputElements(primitive, shape);
    s.output = OutputElements(primitive, shape);
    schedules.push_back(std::move(s));
  }
  return Pipelined(std::move(schedules));
}

Piece BlockPart::operator()(int r) const {
  return block[static_cast<size_t>(Mod(r, static_cast<int>(block.size())))];
}

int64_t BlockPart::Longest() const {
  int64_t longest = 0;
  for (const Piece& piece : block) longest = std::max(longest, piece.count);
  return longest;
}

Schedule InBlockParts(Primitive primitive, const CollectiveShape& shape,
                      absl::FunctionRef<void(const BlockPart&, Schedule*)> one) {
  BlockPart whole;
  for (int64_t r = 0, at = 0; r < shape.ranks; ++r) {
    whole.block.push_back({at, shape.CountOf(static_cast<int>(r))});
    at += whole.block.back().count;
  }
  std::vector<Schedule> schedules;
  for (const Piece& slice : Parts(whole.Longest(), shape.segment)) {
    BlockPart part;
    for (const Piece& block : whole.block) {
      const int64_t begin = std::min(slice.begin, block.count);
      part.block.push_back({block.begin + begin, std::min(slice.end(), block.count) - begin});
    }
    const int64_t own_begin = whole(shape.rank).begin;
    part.own = {part(shape.rank).begin - own_begin, part(shape.rank).count};
    one(part, &schedules.emplace_back(NewSchedule(primitive, shape)));
  }
  return Pipelined(std::move(schedules));
}

Piece SendBlock(const CollectiveShape& shape, int to) {
  return BlockAmong(shape.send_counts, shape.count, to);
}
Piece ReceiveBlock(const CollectiveShape& shape, int from) {
  return BlockAmong(shape.receive_counts, shape.count, from);
}

int Mod(int64_t a, int p) { return static_cast<int>(((a % p) + p) % p); }

CollectiveShape ShapeOf(const CollectiveShape& shape, int rank,
                        absl::Span<const std::vector<int64_t>> counts_by_rank) {
  CollectiveShape of_rank = shape;
  of_rank.rank = rank;
  if (counts_by_rank.empty()) return of_rank;
  TANDEM_CHECK(counts_by_rank.size() == static_cast<size_t>(shape.ranks));
  of_rank.send_counts = counts_by_rank[static_cast<size_t>(rank)];
  of_rank.receive_counts.clear();
  for (const std::vector<int64_t>& row : counts_by_rank) {
    of_rank.receive_counts.push_back(row.at(static_cast<size_t>(rank)));
  }
  return of_rank;
}

int CeilLog2(int64_t n) {
  int log = 0;
  while ((int64_t{1} << log) < n) ++log;
  return log;
}
int FloorLog2(int64_t n) { return CeilLog2(n + 1) - 1; }

std::vector<int> RankOrder(int p) {
  std::vector<int> order(static_cast<size_t>(p));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// ---- CollectiveShape ----

Piece CollectiveShape::BlockOf(int r) const { return BlockAmong(counts, count, r); }
int64_t CollectiveShape::Total() const { return SumOr(counts, count, ranks); }

// ---- Building blocks for traffic formulas ----

Traffic operator+(Traffic a, Traffic b) {
  return {a.messages + b.messages, a.elements + b.elements};
}

Traffic Times(int64_t messages, int64_t elements_each) {
  return {messages, messages * elements_each};
}

Traffic OverParts(int64_t count, int64_t part, absl::FunctionRef<Traffic(int64_t n)> of_part) {
  if (part == 0 || count <= part) return of_part(count);
  const Traffic full = of_part(part);
  const int64_t times = count / part, rest = count % part;
  const Traffic all = {times * full.messages, times * full.elements};
  return rest == 0 ? all : all + of_part(rest);
}

Traffic OverBlockParts(const CollectiveShape& shape, Traffic whole) {
  int64_t longest = 0;
  for (int r = 0; r < shape.ranks; ++r) longest = std::max(longest, shape.CountOf(r));
  if (shape.segment > 0 && longest > shape.segment) {
    whole.messages *= (longest + shape.segment - 1) / shape.segment;
  }
  return whole;
}

int64_t BlockSum(const CollectiveShape& shape, int first, int blocks) {
  int64_t sum = 0;
  for (int i = 0; i < blocks; ++i) sum += shape.CountOf(Mod(first + i, shape.ranks));
  return sum;
}

}  // namespace tandem::collectives
