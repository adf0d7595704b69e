// Two-level all-reduce over any two algorithms, one within hosts and one across hosts (as in Jia et
// al. 2018). The three phases are: a reduce-scatter within each host; an all-reduce across hosts,
// between the ranks that have the same number in their hosts; an allgather within each host. Some
// inner algorithms do not scatter (tree, chain). Then the phases are a reduce to the first rank of
// each host, an all-reduce among these ranks, and a broadcast.
//
// Hosts may have different numbers of ranks. The vector is cut into as many blocks as the smallest
// host has ranks. The other ranks of a larger host own no block, but contribute and receive.
//
// Cost: the sum of the phases, with h hosts of g ranks, if the inner algorithm scatters:
//   inner reduce-scatter and allgather of S among g + outer all-reduce of S/g among h
// So a host sends S to the other hosts once, and not once for each of its ranks.
//
// Order of additions: inner within hosts, then outer across them. So the order differs from that of
// the flat algorithms and from rank order, even if both algorithms are direct.
#include "collectives/schedules/hierarchical.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "collectives/schedules/build.h"

namespace tandem::collectives {
namespace {

bool Scatters(Algorithm inner) {
  return inner == Algorithm::kRing || inner == Algorithm::kDirect ||
         inner == Algorithm::kHalvingDoubling;
}

Schedule Make(const Phase& phase, const CollectiveShape& shape) {
  auto schedule = MakeSchedule(phase.primitive, phase.algorithm, shape);
  TANDEM_CHECK(schedule.ok());
  return *std::move(schedule);
}

// The number of steps of a phase, which is the same for all ranks.
size_t StepsOf(const Phase& phase, CollectiveShape shape) {
  shape.rank = 0;
  return Make(phase, shape).steps.size();
}

// The number of steps of the phase on the host with the most ranks. All hosts use this number, so
// the next phase, which joins ranks of different hosts, is in the same step on all of them.
size_t MaxSteps(const Hierarchy& hierarchy, const Phase& phase, CollectiveShape shape) {
  size_t most = 0;
  for (const std::vector<int>& host : hierarchy.hosts()) {
    shape.ranks = static_cast<int>(host.size());
    if (!shape.counts.empty()) shape.counts.resize(host.size());
    most = std::max(most, StepsOf(phase, shape));
  }
  return most;
}

// Makes an in-place schedule read its input from the output: input element i becomes output element
// i + offset.
void InputIsOutput(int64_t offset, Schedule* s) {
  const auto move = [&](Piece* piece) {
    if (piece->region == Region::kInput) *piece = {piece->begin + offset, piece->count};
  };
  for (Step& step : s->steps) {
    for (Op& op : step.ops) {
      move(&op.piece);
      move(&op.operand);
    }
  }
  s->input = 0;
}

// The steps of the three phases for a part of `count` elements. All parts use the numbers of the
// longest part. (A rank that is alone on its host copies its data in one step; a shorter part may
// have nothing to copy and would have no step.)
struct PhaseSteps {
  size_t first, outer, last;
};
PhaseSteps StepsOfPhases(const Hierarchy& h, Algorithm outer, int64_t count) {
  return {MaxSteps(h, h.First(), h.FirstShape(count)),
          StepsOf({Primitive::kAllReduce, outer}, h.OuterShape(count)),
          MaxSteps(h, h.Last(), h.LastShape(count))};
}

// Makes one part's schedule of the whole group from the schedules of its three phases. Each phase
// is made among its members and counts from the begin of its own data. Then the schedule is moved
// to the place of its data in the part, and embedded in the group. From the second phase on the
// data are in the output, so these phases read their input there. A rank outside the lanes has an
// empty second phase with the same number of steps.
Schedule OfPart(const Hierarchy& h, const CollectiveShape& part, const PhaseSteps& steps) {
  const Schedule group = NewSchedule(Primitive::kAllReduce, part);
  const std::vector<int>& host = h.hosts()[static_cast<size_t>(h.host())];
  const int64_t begin = h.Own(part.count).begin;

  const CollectiveShape first_shape = h.FirstShape(part.count);
  Schedule first = Make(h.First(), first_shape);
  Shift(&first, Region::kOutput, begin);
  Embed(host, group, steps.first, &first);

  const Phase across{Primitive::kAllReduce, OuterOf(Primitive::kAllReduce, part)};
  const CollectiveShape outer_shape = h.OuterShape(part.count);
  Schedule second = h.InLane() ? Make(across, outer_shape) : Schedule();
  InputIsOutput(0, &second);
  Shift(&second, Region::kOutput, begin);
  Embed(h.InLane() ? h.Lane(h.local()) : host, group, steps.outer, &second);

  const CollectiveShape last_shape = h.LastShape(part.count);
  Schedule last = Make(h.Last(), last_shape);
  InputIsOutput(InPlaceOffset(h.Last().primitive, last_shape), &last);
  Embed(host, group, steps.last, &last);

  Schedule s = Sequence(Sequence(std::move(first), second), last);
  s.input = group.input;
  s.output = group.output;
  return s;
}

}  // namespace

// ---- Levels ----

Algorithm InnerOf(Primitive primitive, const CollectiveShape& shape) {
  const bool scatters = primitive != Primitive::kReduce && primitive != Primitive::kBroadcast;
  return shape.inner.value_or(scatters ? Algorithm::kDirect : Algorithm::kTree);
}

Algorithm OuterOf(Primitive primitive, const CollectiveShape& shape) {
  const bool scatters = primitive != Primitive::kReduce && primitive != Primitive::kBroadcast;
  return shape.outer.value_or(scatters ? Algorithm::kRing : Algorithm::kTree);
}

HostMap::HostMap(const CollectiveShape& shape) : smallest(shape.ranks) {
  std::map<int, std::vector<int>> ranks_of_host;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const int number =
        shape.host_of_rank.empty() ? 0 : shape.host_of_rank[static_cast<size_t>(rank)];
    ranks_of_host[number].push_back(rank);
  }
  for (const auto& [number, ranks] : ranks_of_host) {
    const auto it = std::find(ranks.begin(), ranks.end(), shape.rank);
    if (it != ranks.end()) {
      host = static_cast<int>(hosts.size());
      local = static_cast<int>(it - ranks.begin());
    }
    smallest = std::min(smallest, static_cast<int>(ranks.size()));
    hosts.push_back(ranks);
  }
}

void Embed(const std::vector<int>& members, const Schedule& group, size_t steps, Schedule* s) {
  const auto rank_of = [&](int member) { return members[static_cast<size_t>(member)]; };
  for (Step& step : s->steps) {
    for (Op& op : step.ops) {
      if (op.kind == OpKind::kSend || op.ReceivesOne()) op.peer = rank_of(op.peer);
    }
  }
  for (std::vector<int>& fold : s->folds) {
    for (int& rank : fold) rank = rank_of(rank);
  }
  s->rank = group.rank;
  s->ranks = group.ranks;
  TANDEM_CHECK(s->steps.size() <= steps);
  s->steps.resize(steps);
}

// ---- Hierarchy ----

absl::Status Hierarchy::Check(const CollectiveShape& shape) {
  const Algorithm inner = InnerOf(Primitive::kAllReduce, shape);
  const Algorithm outer = OuterOf(Primitive::kAllReduce, shape);
  if (!Scatters(inner) && inner != Algorithm::kTree && inner != Algorithm::kChain) {
    return absl::UnimplementedError(
        absl::StrCat("hierarchical allreduce does not support ", AlgorithmName(inner),
                     " within hosts; use ring, direct, halving_doubling, tree, chain"));
  }
  if (outer == Algorithm::kHierarchical || !Supports(Primitive::kAllReduce, outer)) {
    return absl::UnimplementedError(absl::StrCat("hierarchical allreduce does not support ",
                                                 AlgorithmName(outer), " across hosts"));
  }
  return absl::OkStatus();
}

Hierarchy::Hierarchy(const CollectiveShape& shape)
    : shape_(shape),
      inner_(InnerOf(Primitive::kAllReduce, shape)),
      map_(shape),
      scatters_(Scatters(inner_)),
      lanes_(scatters_ ? map_.smallest : 1) {}

Phase Hierarchy::First() const {
  return {scatters_ ? Primitive::kReduceScatter : Primitive::kReduce, inner_};
}

Phase Hierarchy::Last() const {
  if (!scatters_) return {Primitive::kBroadcast, inner_};
  const bool doubling = inner_ == Algorithm::kHalvingDoubling;
  return {Primitive::kAllGather, doubling ? Algorithm::kRecursiveDoubling : inner_};
}

std::vector<int> Hierarchy::Lane(int lane) const {
  std::vector<int> ranks;
  for (const std::vector<int>& host : hosts()) ranks.push_back(host[static_cast<size_t>(lane)]);
  return ranks;
}

CollectiveShape Hierarchy::InnerShape(int64_t count) const {
  CollectiveShape inner;
  inner.rank = local();
  inner.ranks = static_cast<int>(hosts()[static_cast<size_t>(host())].size());
  if (!scatters_) {
    inner.count = count;
    return inner;
  }
  inner.counts.resize(static_cast<size_t>(inner.ranks));
  const Blocks block(count, lanes_);
  for (int lane = 0; lane < lanes_; ++lane) {
    inner.counts[static_cast<size_t>(lane)] = block(lane).count;
  }
  return inner;
}

CollectiveShape Hierarchy::FirstShape(int64_t count) const {
  CollectiveShape first = InnerShape(count);
  first.in_place = shape_.in_place;
  return first;
}

CollectiveShape Hierarchy::LastShape(int64_t count) const {
  CollectiveShape last = InnerShape(count);
  last.in_place = true;
  return last;
}

CollectiveShape Hierarchy::OuterShape(int64_t count) const {
  CollectiveShape outer;
  outer.rank = host();
  outer.ranks = static_cast<int>(hosts().size());
  outer.count = Own(count).count;
  outer.in_place = true;
  return outer;
}

Piece Hierarchy::Own(int64_t count) const {
  if (!InLane()) return {scatters_ ? count : 0, 0};
  return Blocks(count, lanes_)(local());
}

int64_t Hierarchy::Part() const {
  const bool only_blocks = inner_ == Algorithm::kRing || inner_ == Algorithm::kDirect;
  return shape_.segment * (only_blocks ? lanes_ : 1);
}

// ---- Row of the table ----

namespace {

Schedule HierarchicalAllReduce(const CollectiveShape& shape) {
  const Hierarchy hierarchy(shape);
  const int64_t part = hierarchy.Part();
  const PhaseSteps steps = StepsOfPhases(hierarchy, OuterOf(Primitive::kAllReduce, shape),
                                         Parts(shape.count, part).front().count);
  return InParts(Primitive::kAllReduce, shape, part,
                 [&](const CollectiveShape& of_part) { return OfPart(hierarchy, of_part, steps); });
}

Traffic AllReduceTraffic(const CollectiveShape& shape) {
  const Hierarchy h(shape);
  return OverParts(shape.count, h.Part(), [&](int64_t n) {
    const Traffic within =
        AlgorithmTraffic(h.First().primitive, h.First().algorithm, h.FirstShape(n)) +
        AlgorithmTraffic(h.Last().primitive, h.Last().algorithm, h.LastShape(n));
    if (!h.InLane()) return within;
    return within + AlgorithmTraffic(Primitive::kAllReduce, OuterOf(Primitive::kAllReduce, shape),
                                     h.OuterShape(n));
  });
}

template <Primitive primitive>
Traffic TrafficOf(const CollectiveShape& shape) {
  return TwoLevelTraffic(primitive, shape);
}

template <Primitive primitive>
absl::Status Fits(const CollectiveShape& shape) {
  return TwoLevel::Check(primitive, shape);
}

// The phase across hosts works in place, so the group needs the channel of that phase.
int ChannelOf(const CollectiveShape& shape) {
  return ChannelNeeded(Primitive::kAllReduce, OuterOf(Primitive::kAllReduce, shape),
                       Hierarchy(shape).OuterShape(0));
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, HierarchicalAllReduce, AllReduceTraffic, kCuts, ChannelOf,
     Hierarchy::Check},
    {Primitive::kReduce, HierarchicalReduce, TrafficOf<Primitive::kReduce>, kCuts, nullptr,
     Fits<Primitive::kReduce>},
    {Primitive::kBroadcast, HierarchicalBroadcast, TrafficOf<Primitive::kBroadcast>, kCuts, nullptr,
     Fits<Primitive::kBroadcast>},
    {Primitive::kReduceScatter, HierarchicalReduceScatter, TrafficOf<Primitive::kReduceScatter>,
     kWhole, nullptr, Fits<Primitive::kReduceScatter>},
    {Primitive::kAllGather, HierarchicalAllGather, TrafficOf<Primitive::kAllGather>, kWhole,
     nullptr, Fits<Primitive::kAllGather>},
};

}  // namespace

extern const AlgorithmRow kHierarchicalRow = {Algorithm::kHierarchical, "hierarchical", kOtherOrder,
                                              kSupported};

}  // namespace tandem::collectives
