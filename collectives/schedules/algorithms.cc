#include "collectives/schedules/algorithms.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/schedules/build.h"

namespace tandem::collectives {

// Each row is at the end of its algorithm's file.
extern const AlgorithmRow kRingRow, kDirectRow, kOneShotRow, kRecursiveDoublingRow,
    kHalvingDoublingRow, kTreeRow, kChainRow, kPairwiseRow, kBruckRow, kDoubleTreeRow, kSwingRow,
    kHierarchicalRow, kDisseminationRow, kNaiveRow;

namespace {

// In the order of Algorithm.
constexpr const AlgorithmRow* kTable[] = {
    &kRingRow,
    &kDirectRow,
    &kOneShotRow,
    &kRecursiveDoublingRow,
    &kHalvingDoublingRow,
    &kTreeRow,
    &kChainRow,
    &kPairwiseRow,
    &kBruckRow,
    &kDoubleTreeRow,
    &kSwingRow,
    &kHierarchicalRow,
    &kDisseminationRow,
    &kNaiveRow,
};

const AlgorithmRow& RowOf(Algorithm algorithm) {
  const auto number = static_cast<size_t>(algorithm);
  TANDEM_CHECK(number < std::size(kTable) && kTable[number]->algorithm == algorithm);
  return *kTable[number];
}

// Null if the algorithm does not support the primitive.
const PrimitiveRow* FindRow(Primitive primitive, Algorithm algorithm) {
  for (const PrimitiveRow& row : RowOf(algorithm).primitives) {
    if (row.primitive == primitive) return &row;
  }
  return nullptr;
}

// More elements than any memory holds, but few enough that no sum of counts overflows.
constexpr int64_t kMaxElements = int64_t{1} << 48;
constexpr int64_t kMaxParts = int64_t{1} << 20;

std::string CountsFault(absl::string_view name, const std::vector<int64_t>& counts, int ranks) {
  if (counts.empty()) return "";
  if (counts.size() != static_cast<size_t>(ranks)) {
    return absl::StrCat(counts.size(), " ", name, " for ", ranks, " ranks");
  }
  int64_t sum = 0;
  for (const int64_t count : counts) {
    if (count < 0 || count > kMaxElements - sum) return absl::StrCat(count, " among the ", name);
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
    return absl::StrCat("hosts are given for ", hosts.size(), " ranks");
  }
  if (std::any_of(hosts.begin(), hosts.end(), [](int host) { return host < 0; })) {
    return "a host number is below 0";
  }
  return "";
}

absl::Status CheckShape(Primitive primitive, const CollectiveShape& shape) {
  std::string fault = RanksFault(shape);
  if (fault.empty() && (shape.count < 0 || shape.count > kMaxElements / shape.ranks)) {
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
      (shape.segment < 0 || shape.segment > kMaxElements / shape.ranks ||
       (shape.segment > 0 && std::max(shape.count, shape.Total()) / shape.segment > kMaxParts))) {
    fault = absl::StrCat("segments of ", shape.segment, " elements");
  }
  if (fault.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(PrimitiveName(primitive), " of ", shape.ranks, " ranks: ", fault));
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

absl::string_view AlgorithmName(Algorithm algorithm) { return RowOf(algorithm).name; }

bool IsAlgorithm(int number) { return number >= 0 && number < static_cast<int>(std::size(kTable)); }

absl::Span<const Algorithm> Algorithms() {
  static constexpr auto kAll = [] {
    std::array<Algorithm, std::size(kTable)> all{};
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Algorithm>(i);
    return all;
  }();
  return kAll;
}

absl::StatusOr<Primitive> ParsePrimitive(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const Primitive primitive : kPrimitives) {
    if (PrimitiveName(primitive) == name) return primitive;
    names.push_back(PrimitiveName(primitive));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown collective '", name, "'; expected one of ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const Algorithm algorithm : Algorithms()) {
    if (AlgorithmName(algorithm) == name) return algorithm;
    names.push_back(AlgorithmName(algorithm));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown algorithm '", name, "'; expected one of ", absl::StrJoin(names, ", ")));
}

// ---- Properties ----

bool Reduces(Primitive primitive) {
  return primitive == Primitive::kAllReduce || primitive == Primitive::kReduce ||
         primitive == Primitive::kReduceScatter;
}

bool HasRoot(Primitive primitive) {
  return primitive == Primitive::kReduce || primitive == Primitive::kBroadcast ||
         primitive == Primitive::kGather || primitive == Primitive::kScatter;
}

double BusFactor(Primitive primitive, int ranks) {
  const double share = static_cast<double>(ranks - 1) / ranks;
  switch (primitive) {
    case Primitive::kAllReduce:
      return 2 * share;
    case Primitive::kReduceScatter:
    case Primitive::kAllGather:
    case Primitive::kGather:
    case Primitive::kScatter:
    case Primitive::kAllToAll:
      return share;
    case Primitive::kReduce:
    case Primitive::kBroadcast:
    case Primitive::kPointToPoint:
      return ranks > 1 ? 1 : 0;
    case Primitive::kBarrier:
      return 0;
  }
  return 0;
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
  for (const Algorithm algorithm : Algorithms()) {
    if (Supports(primitive, algorithm)) algorithms.push_back(algorithm);
  }
  return algorithms;
}

bool CutsMessages(Primitive primitive, Algorithm algorithm) {
  const PrimitiveRow* const row = FindRow(primitive, algorithm);
  return row != nullptr && row->cuts;
}

bool AddsInRankOrder(Algorithm algorithm) { return RowOf(algorithm).rank_order; }

int ChannelNeeded(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape) {
  const PrimitiveRow* const row = FindRow(primitive, algorithm);
  return shape.ranks == 1 || row == nullptr || row->channel == nullptr ? 0 : row->channel(shape);
}

Traffic AlgorithmTraffic(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape) {
  const PrimitiveRow* const row = FindRow(primitive, algorithm);
  TANDEM_CHECK(row != nullptr);
  return shape.ranks == 1 ? Traffic{} : row->traffic(shape);
}

absl::StatusOr<Schedule> MakeSchedule(Primitive primitive, Algorithm algorithm,
                                      const CollectiveShape& shape) {
  TANDEM_RETURN_IF_ERROR(CheckShape(primitive, shape));
  const PrimitiveRow* const row = FindRow(primitive, algorithm);
  if (row == nullptr) {
    return absl::UnimplementedError(absl::StrCat("algorithm ", AlgorithmName(algorithm),
                                                 " does not support ", PrimitiveName(primitive)));
  }
  if (row->fits != nullptr) TANDEM_RETURN_IF_ERROR(row->fits(shape));
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

}  // namespace tandem::collectives
