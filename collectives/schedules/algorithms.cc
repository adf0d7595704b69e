#include "collectives/schedules/algorithms.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/schedules/build.h"
#include "collectives/schedules/hierarchical.h"

namespace tandem {
namespace {

struct Row {
  Primitive primitive;
  Algorithm algorithm;
  Schedule (*make)(const CollectiveShape& shape);
  bool cuts;  // no message is longer than shape.segment
};

constexpr bool kCuts = true, kWhole = false;
constexpr Row kRows[] = {
    {Primitive::kAllReduce, Algorithm::kRing, RingAllReduce, kCuts},
    {Primitive::kAllReduce, Algorithm::kDirect, DirectAllReduce, kCuts},
    {Primitive::kAllReduce, Algorithm::kOneShot, OneShotAllReduce, kCuts},
    {Primitive::kAllReduce, Algorithm::kRecursiveDoubling, RecursiveDoublingAllReduce, kCuts},
    {Primitive::kAllReduce, Algorithm::kHalvingDoubling, HalvingDoublingAllReduce, kCuts},
    {Primitive::kAllReduce, Algorithm::kTree, TreeAllReduce, kCuts},
    {Primitive::kAllReduce, Algorithm::kDoubleTree, DoubleTreeAllReduce, kCuts},
    {Primitive::kAllReduce, Algorithm::kSwing, SwingAllReduce, kCuts},
    {Primitive::kAllReduce, Algorithm::kHierarchical, HierarchicalAllReduce, kCuts},
    {Primitive::kReduce, Algorithm::kDirect, DirectReduce, kCuts},
    {Primitive::kReduce, Algorithm::kTree, TreeReduce, kCuts},
    {Primitive::kReduce, Algorithm::kChain, ChainReduce, kCuts},
    {Primitive::kReduce, Algorithm::kHierarchical, HierarchicalReduce, kCuts},
    {Primitive::kBroadcast, Algorithm::kDirect, DirectBroadcast, kWhole},
    {Primitive::kBroadcast, Algorithm::kTree, TreeBroadcast, kCuts},
    {Primitive::kBroadcast, Algorithm::kChain, ChainBroadcast, kCuts},
    {Primitive::kBroadcast, Algorithm::kHierarchical, HierarchicalBroadcast, kCuts},
    {Primitive::kReduceScatter, Algorithm::kRing, RingReduceScatter, kCuts},
    {Primitive::kReduceScatter, Algorithm::kDirect, DirectReduceScatter, kCuts},
    {Primitive::kReduceScatter, Algorithm::kHalvingDoubling, HalvingReduceScatter, kWhole},
    {Primitive::kReduceScatter, Algorithm::kHierarchical, HierarchicalReduceScatter, kWhole},
    {Primitive::kAllGather, Algorithm::kRing, RingAllGather, kCuts},
    {Primitive::kAllGather, Algorithm::kDirect, DirectAllGather, kWhole},
    {Primitive::kAllGather, Algorithm::kRecursiveDoubling, RecursiveDoublingAllGather, kWhole},
    {Primitive::kAllGather, Algorithm::kBruck, BruckAllGather, kWhole},
    {Primitive::kAllGather, Algorithm::kHierarchical, HierarchicalAllGather, kWhole},
    {Primitive::kGather, Algorithm::kDirect, DirectGather, kWhole},
    {Primitive::kGather, Algorithm::kTree, TreeGather, kWhole},
    {Primitive::kScatter, Algorithm::kDirect, DirectScatter, kWhole},
    {Primitive::kScatter, Algorithm::kTree, TreeScatter, kWhole},
    {Primitive::kAllToAll, Algorithm::kPairwise, PairwiseAllToAll, kWhole},
    {Primitive::kAllToAll, Algorithm::kBruck, BruckAllToAll, kWhole},
    {Primitive::kBarrier, Algorithm::kDissemination, DisseminationBarrier, kWhole},
};

const Row* FindRow(Primitive primitive, Algorithm algorithm) {
  for (const Row& row : kRows) {
    if (row.primitive == primitive && row.algorithm == algorithm) return &row;
  }
  return nullptr;
}

// More elements than any memory holds, and few enough that no sum of them overflows.
constexpr int64_t kMostElements = int64_t{1} << 48;
constexpr int64_t kMostParts = int64_t{1} << 20;

std::string CountsFault(absl::string_view name, const std::vector<int64_t>& counts, int ranks) {
  if (counts.empty()) return "";
  if (counts.size() != static_cast<size_t>(ranks)) {
    return absl::StrCat(counts.size(), " ", name, " for ", ranks, " ranks");
  }
  int64_t sum = 0;
  for (const int64_t count : counts) {
    if (count < 0 || count > kMostElements - sum) return absl::StrCat(count, " among the ", name);
    sum += count;
  }
  return "";
}

std::string RanksFault(const CollectiveShape& shape) {
  if (shape.ranks < 1 || shape.rank < 0 || shape.rank >= shape.ranks) {
    return absl::StrCat("rank ", shape.rank, " of ", shape.ranks);
  }
  if (shape.root < 0 || shape.root >= shape.ranks) return absl::StrCat("root ", shape.root);
  const std::vector<int>& hosts = shape.host_of_rank;
  if (!hosts.empty() && hosts.size() != static_cast<size_t>(shape.ranks)) {
    return absl::StrCat("hosts of ", hosts.size(), " ranks");
  }
  if (std::any_of(hosts.begin(), hosts.end(), [](int host) { return host < 0; })) {
    return "a host below 0";
  }
  return "";
}

absl::Status CheckShape(Primitive primitive, const CollectiveShape& shape) {
  std::string fault = RanksFault(shape);
  if (fault.empty() && (shape.count < 0 || shape.count > kMostElements / shape.ranks)) {
    fault = absl::StrCat("count ", shape.count);
  }
  if (fault.empty()) fault = CountsFault("counts", shape.counts, shape.ranks);
  if (fault.empty()) fault = CountsFault("send counts", shape.send_counts, shape.ranks);
  if (fault.empty()) fault = CountsFault("receive counts", shape.receive_counts, shape.ranks);
  if (fault.empty() &&
      (shape.send_counts.empty() != shape.receive_counts.empty() ||
       (!shape.send_counts.empty() && shape.send_counts[static_cast<size_t>(shape.rank)] !=
                                          shape.receive_counts[static_cast<size_t>(shape.rank)]))) {
    fault = "a rank sends itself another number of elements than it receives";
  }
  if (fault.empty() &&
      (shape.segment < 0 || shape.segment > kMostElements / shape.ranks ||
       (shape.segment > 0 && std::max(shape.count, shape.Total()) / shape.segment > kMostParts))) {
    fault = absl::StrCat("segments of ", shape.segment, " elements");
  }
  if (fault.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(PrimitiveName(primitive), " of ", shape.ranks, " ranks: ", fault));
}

// What an algorithm cannot do with a well-formed shape.
absl::Status CheckAlgorithmFits(Primitive primitive, Algorithm algorithm,
                                const CollectiveShape& shape) {
  if (algorithm == Algorithm::kHierarchical) {
    return primitive == Primitive::kAllReduce ? Hierarchy::Check(shape)
                                              : TwoLevel::Check(primitive, shape);
  }
  if (primitive == Primitive::kAllToAll && algorithm == Algorithm::kBruck &&
      !shape.send_counts.empty()) {
    return absl::UnimplementedError("alltoall by bruck with a count for each rank; use pairwise");
  }
  return absl::OkStatus();
}

Schedule Alone(Primitive primitive, const CollectiveShape& shape) {
  Schedule s = NewSchedule(primitive, shape);
  const Piece all{0, s.output};
  if (!shape.in_place && s.output > 0) s.AddStep().Copy(all, In(all));
  return s;
}

}  // namespace

// ---- Names ----

absl::string_view PrimitiveName(Primitive primitive) {
  switch (primitive) {
    case Primitive::kAllReduce:
      return "allreduce";
    case Primitive::kReduce:
      return "reduce";
    case Primitive::kBroadcast:
      return "broadcast";
    case Primitive::kReduceScatter:
      return "reduce_scatter";
    case Primitive::kAllGather:
      return "allgather";
    case Primitive::kGather:
      return "gather";
    case Primitive::kScatter:
      return "scatter";
    case Primitive::kAllToAll:
      return "alltoall";
    case Primitive::kBarrier:
      return "barrier";
    case Primitive::kPointToPoint:
      return "point_to_point";
  }
  return "?";
}

absl::string_view AlgorithmName(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kOneShot:
      return "one_shot";
    case Algorithm::kRecursiveDoubling:
      return "recursive_doubling";
    case Algorithm::kHalvingDoubling:
      return "halving_doubling";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kChain:
      return "chain";
    case Algorithm::kPairwise:
      return "pairwise";
    case Algorithm::kBruck:
      return "bruck";
    case Algorithm::kDoubleTree:
      return "double_tree";
    case Algorithm::kSwing:
      return "swing";
    case Algorithm::kHierarchical:
      return "hierarchical";
    case Algorithm::kDissemination:
      return "dissemination";
  }
  return "?";
}

absl::StatusOr<Primitive> ParsePrimitive(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const Primitive primitive : kPrimitives) {
    if (PrimitiveName(primitive) == name) return primitive;
    names.push_back(PrimitiveName(primitive));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no collective is called '", name, "'; one of ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const Algorithm algorithm : kAlgorithms) {
    if (AlgorithmName(algorithm) == name) return algorithm;
    names.push_back(AlgorithmName(algorithm));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no algorithm is called '", name, "'; one of ", absl::StrJoin(names, ", ")));
}

// ---- What they do ----

bool Reduces(Primitive primitive) {
  return primitive == Primitive::kAllReduce || primitive == Primitive::kReduce ||
         primitive == Primitive::kReduceScatter;
}

bool HasRoot(Primitive primitive) {
  return primitive == Primitive::kReduce || primitive == Primitive::kBroadcast ||
         primitive == Primitive::kGather || primitive == Primitive::kScatter;
}

int64_t InPlaceOffset(Primitive primitive, const CollectiveShape& shape) {
  switch (primitive) {
    case Primitive::kAllGather:
    case Primitive::kGather:
      return shape.BlockOf(shape.rank).begin;
    case Primitive::kReduceScatter:
    case Primitive::kScatter:
      return -shape.BlockOf(shape.rank).begin;
    default:
      return 0;
  }
}

bool Supports(Primitive primitive, Algorithm algorithm) {
  return FindRow(primitive, algorithm) != nullptr;
}

std::vector<Algorithm> AlgorithmsFor(Primitive primitive) {
  std::vector<Algorithm> algorithms;
  for (const Algorithm algorithm : kAlgorithms) {
    if (Supports(primitive, algorithm)) algorithms.push_back(algorithm);
  }
  return algorithms;
}

bool CutsMessages(Primitive primitive, Algorithm algorithm) {
  const Row* row = FindRow(primitive, algorithm);
  return row != nullptr && row->cuts;
}

bool AddsInRankOrder(Algorithm algorithm) {
  return algorithm == Algorithm::kDirect || algorithm == Algorithm::kOneShot;
}

int ChannelNeeded(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape) {
  if (primitive != Primitive::kAllReduce || shape.ranks == 1) return 0;
  switch (algorithm) {
    case Algorithm::kOneShot:
      return shape.in_place ? 1 : 0;
    case Algorithm::kRecursiveDoubling:
      return 1;
    case Algorithm::kHierarchical:  // Phase two is in place.
      return ChannelNeeded(primitive, OuterOf(primitive, shape), Hierarchy(shape).OuterShape(0));
    default:
      return 0;
  }
}

absl::StatusOr<Schedule> MakeSchedule(Primitive primitive, Algorithm algorithm,
                                      const CollectiveShape& shape) {
  TANDEM_RETURN_IF_ERROR(CheckShape(primitive, shape));
  const Row* row = FindRow(primitive, algorithm);
  if (row == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("no ", PrimitiveName(primitive), " by ", AlgorithmName(algorithm)));
  }
  TANDEM_RETURN_IF_ERROR(CheckAlgorithmFits(primitive, algorithm, shape));
  return shape.ranks == 1 ? Alone(primitive, shape) : row->make(shape);
}

absl::StatusOr<std::vector<Schedule>> MakeSchedules(
    Primitive primitive, Algorithm algorithm, const CollectiveShape& shape,
    absl::Span<const std::vector<int64_t>> counts_by_rank) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(Schedule schedule, MakeSchedule(primitive, algorithm,
                                                            ShapeOf(shape, rank, counts_by_rank)));
    schedules.push_back(std::move(schedule));
  }
  return schedules;
}

}  // namespace tandem
