// Two-level reduce, broadcast, reduce-scatter and allgather over any two algorithms, one within
// hosts and one across hosts (the all-reduce is in hierarchical.cc). Data cross between two hosts
// once for each host, and not once for each rank.
//
//   broadcast       across hosts from the root to one rank of each, then within hosts
//   reduce          the same steps backwards
//   allgather       across hosts: the first ranks of all hosts among themselves, the second ranks,
//                   ...; then within hosts
//   reduce-scatter  the same steps backwards
//
// Cost: the sum of the two levels. Allgather and reduce-scatter also copy the vector once: the
// blocks that travel together (those of the i-th ranks of all hosts) do not lie side by side. If
// hosts have different numbers of ranks, some ranks of a larger host have no counterpart on the
// smallest host. Such a rank hands its block to another rank of its host before the levels
// (allgather), or gets it from there after them (reduce-scatter).
//
// Order of additions: inner, then outer. So the order differs from rank order, even if both are
// direct.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "collectives/schedules/build.h"
#include "collectives/schedules/hierarchical.h"

namespace tandem::collectives {
namespace {

Schedule Make(const HierarchyLevel& level) {
  auto schedule = MakeSchedule(level.phase.primitive, level.phase.algorithm, level.shape);
  TANDEM_CHECK(schedule.ok());
  return *std::move(schedule);
}

size_t StepsOf(const HierarchyLevel& level) { return Make(level).steps.size(); }

// Moves every piece of `region` to the region `to`, `by` elements further.
void Move(Schedule* s, Region region, Region to, int64_t by) {
  const auto move = [&](Piece* piece) {
    if (piece->region == region) *piece = {piece->begin + by, piece->count, to};
  };
  for (Step& step : s->steps) {
    for (Op& op : step.ops) {
      move(&op.piece);
      if (op.HasOperand()) move(&op.operand);
    }
  }
}

// Makes a level's own scratch memory begin behind the scratch that the levels share.
void ReserveScratch(int64_t elements, Schedule* s) {
  Shift(s, Region::kScratch, elements);
  s->scratch += elements;
}

Schedule InnerAlone(Primitive primitive, const CollectiveShape& shape) {
  auto schedule = MakeSchedule(primitive, InnerOf(primitive, shape), shape);
  TANDEM_CHECK(schedule.ok());
  return *std::move(schedule);
}

Schedule Empty(const Schedule& group) {
  Schedule s;
  s.rank = group.rank;
  s.ranks = group.ranks;
  return s;
}

// Runs the levels one after another. The regions have the sizes of the whole collective.
Schedule Join(const Schedule& group, std::vector<Schedule> levels) {
  Schedule s = Empty(group);
  for (Schedule& level : levels) s = Sequence(std::move(s), level);
  s.input = group.input;
  s.output = group.output;
  return s;
}

bool HasLanes(Primitive primitive) {
  return primitive == Primitive::kAllGather || primitive == Primitive::kReduceScatter;
}

// Reduce and broadcast: the rank that represents the host, by its number there. On the root's host
// the root itself, on other hosts the first rank.
int LeaderOf(const HostMap& map, int host, int root) {
  const std::vector<int>& ranks = map.hosts[static_cast<size_t>(host)];
  const auto found = std::find(ranks.begin(), ranks.end(), root);
  return found == ranks.end() ? 0 : static_cast<int>(found - ranks.begin());
}

int HostOf(const HostMap& map, int rank) {
  for (size_t h = 0; h < map.hosts.size(); ++h) {
    if (std::count(map.hosts[h].begin(), map.hosts[h].end(), rank) > 0) return static_cast<int>(h);
  }
  TANDEM_CHECK(false);
}

}  // namespace

// ---- TwoLevel ----

absl::Status TwoLevel::Check(Primitive primitive, const CollectiveShape& shape) {
  for (const Algorithm algorithm : {InnerOf(primitive, shape), OuterOf(primitive, shape)}) {
    if (algorithm != Algorithm::kHierarchical && Supports(primitive, algorithm)) continue;
    return absl::UnimplementedError(absl::StrCat("hierarchical ", PrimitiveName(primitive),
                                                 " does not support ", AlgorithmName(algorithm)));
  }
  return absl::OkStatus();
}

TwoLevel::TwoLevel(Primitive primitive, const CollectiveShape& shape)
    : primitive_(primitive),
      shape_(shape),
      map_(shape),
      lanes_(HasLanes(primitive) ? map_.smallest : 0),
      leader_(lanes_ > 0 ? -1 : LeaderOf(map_, map_.host, shape.root)) {}

HierarchyLevel TwoLevel::Inner() const {
  HierarchyLevel level;
  level.phase = {primitive_, InnerOf(primitive_, shape_)};
  level.members = map_.hosts[static_cast<size_t>(map_.host)];
  level.shape.rank = map_.local;
  level.shape.ranks = static_cast<int>(level.members.size());
  level.shape.segment = shape_.segment;
  if (lanes_ == 0) {
    level.shape.count = shape_.count;
    level.shape.root = leader_;
    // A broadcast is in place: the level across hosts has put the data into the output of each
    // leader. A reduce is in place only at the root of an in-place call.
    level.shape.in_place =
        primitive_ == Primitive::kBroadcast || (shape_.in_place && shape_.rank == shape_.root);
    return level;
  }
  // An allgather finds the lanes' blocks at their places in scratch, so it is in place. A
  // reduce-scatter writes its sums behind its input.
  level.shape.in_place = primitive_ == Primitive::kAllGather;
  level.shape.counts.resize(level.members.size());
  for (int lane = 0; lane < lanes_; ++lane) {
    level.shape.counts[static_cast<size_t>(lane)] = Lane(lane).count;
  }
  return level;
}

HierarchyLevel TwoLevel::Outer() const {
  HierarchyLevel level;
  level.phase = {primitive_, OuterOf(primitive_, shape_)};
  level.across = true;
  level.shape.rank = map_.host;
  level.shape.ranks = static_cast<int>(map_.hosts.size());
  level.shape.segment = shape_.segment;
  // A broadcast is the first level: it reads the caller's input, in place or not. A reduce-scatter
  // writes its sums behind its input. The others work on data that the level within hosts, or the
  // hand-in before, has put into place.
  level.shape.in_place = primitive_ == Primitive::kBroadcast
                             ? shape_.in_place
                             : primitive_ != Primitive::kReduceScatter;
  if (lanes_ == 0) {
    level.shape.count = shape_.count;
    level.shape.root = HostOf(map_, shape_.root);
    for (int h = 0; h < level.shape.ranks; ++h) {
      const auto leader = static_cast<size_t>(LeaderOf(map_, h, shape_.root));
      level.members.push_back(map_.hosts[static_cast<size_t>(h)][leader]);
    }
    return level;
  }
  for (const std::vector<int>& host : map_.hosts) {
    level.members.push_back(host[static_cast<size_t>(map_.local)]);
    int64_t count = 0;
    for (auto j = static_cast<size_t>(map_.local); j < host.size();
         j += static_cast<size_t>(lanes_)) {
      count += shape_.CountOf(host[j]);
    }
    level.shape.counts.push_back(count);
  }
  return level;
}

size_t TwoLevel::InnerSteps() const {
  size_t most = 0;
  for (const std::vector<int>& host : map_.hosts) {
    CollectiveShape of_host = shape_;
    of_host.rank = host[0];
    HierarchyLevel level = TwoLevel(primitive_, of_host).Inner();
    most = std::max(most, StepsOf(level));
    // A rank that is alone on its host copies, and the copy is a step of its own.
    level.shape.in_place = false;
    most = std::max(most, StepsOf(level));
  }
  return most;
}

size_t TwoLevel::OuterSteps() const {
  size_t most = 0;
  for (int lane = 0; lane < std::max(lanes_, 1); ++lane) {
    CollectiveShape of_lane = shape_;
    of_lane.rank = lanes_ > 0 ? map_.hosts[0][static_cast<size_t>(lane)] : shape_.root;
    most = std::max(most, StepsOf(TwoLevel(primitive_, of_lane).Outer()));
  }
  return most;
}

int TwoLevel::StandIn() const {
  const std::vector<int>& host = map_.hosts[static_cast<size_t>(map_.host)];
  return host[static_cast<size_t>(map_.local % lanes_)];
}

std::vector<int> TwoLevel::StandsFor() const {
  const std::vector<int>& host = map_.hosts[static_cast<size_t>(map_.host)];
  std::vector<int> others;
  for (size_t j = static_cast<size_t>(map_.local + lanes_); j < host.size();
       j += static_cast<size_t>(lanes_)) {
    others.push_back(host[j]);
  }
  return others;
}

std::vector<Piece> TwoLevel::ByLane() const {
  std::vector<Piece> place(static_cast<size_t>(shape_.ranks));
  int64_t at = 0;
  for (int lane = 0; lane < lanes_; ++lane) {
    for (const std::vector<int>& host : map_.hosts) {
      for (auto j = static_cast<size_t>(lane); j < host.size(); j += static_cast<size_t>(lanes_)) {
        Piece& piece = place[static_cast<size_t>(host[j])];
        piece = {at, shape_.CountOf(host[j]), Region::kScratch};
        at += piece.count;
      }
    }
  }
  return place;
}

Piece TwoLevel::Lane(int lane) const {
  const std::vector<Piece> place = ByLane();
  Piece all{0, 0, Region::kScratch};
  bool first = true;
  for (const std::vector<int>& host : map_.hosts) {
    for (auto j = static_cast<size_t>(lane); j < host.size(); j += static_cast<size_t>(lanes_)) {
      const Piece& piece = place[static_cast<size_t>(host[j])];
      if (first) all.begin = piece.begin;
      first = false;
      all.count += piece.count;
    }
  }
  return all;
}

// ---- Broadcast and reduce ----

Schedule HierarchicalBroadcast(const CollectiveShape& shape) {
  return InParts(Primitive::kBroadcast, shape, shape.segment, [](const CollectiveShape& of_part) {
    CollectiveShape part = of_part;
    part.segment = 0;
    const TwoLevel levels(Primitive::kBroadcast, part);
    const Schedule group = NewSchedule(Primitive::kBroadcast, part);
    const HierarchyLevel inner = levels.Inner();
    Schedule first = Empty(group);
    std::vector<int> members = inner.members;
    if (levels.InOuter()) {
      const HierarchyLevel outer = levels.Outer();
      first = Make(outer);
      members = outer.members;
    }
    Embed(members, group, levels.OuterSteps(), &first);
    Schedule second = Make(inner);
    Move(&second, Region::kInput, Region::kOutput, 0);
    Embed(inner.members, group, levels.InnerSteps(), &second);
    return Join(group, {std::move(first), std::move(second)});
  });
}

// After the first level each host's sum is with its leader: in the output of the root, and in the
// scratch memory of the other leaders.
Schedule HierarchicalReduce(const CollectiveShape& shape) {
  return InParts(Primitive::kReduce, shape, shape.segment, [](const CollectiveShape& of_part) {
    CollectiveShape part = of_part;
    part.segment = 0;
    const TwoLevel levels(Primitive::kReduce, part);
    const Schedule group = NewSchedule(Primitive::kReduce, part);
    const bool root = part.rank == part.root;
    const HierarchyLevel inner = levels.Inner();
    Schedule first = Make(inner);
    Schedule second = Empty(group);
    std::vector<int> members = inner.members;
    if (levels.InOuter()) {
      const HierarchyLevel outer = levels.Outer();
      second = Make(outer);
      members = outer.members;
      const Region sums = root ? Region::kOutput : Region::kScratch;
      if (!root) {
        ReserveScratch(part.count, &first);
        ReserveScratch(part.count, &second);
      }
      Move(&first, Region::kOutput, sums, 0);
      Move(&second, Region::kInput, sums, 0);
    }
    Embed(inner.members, group, levels.InnerSteps(), &first);
    Embed(members, group, levels.OuterSteps(), &second);
    return Join(group, {std::move(first), std::move(second)});
  });
}

// ---- Allgather and reduce-scatter ----

// Scratch: the blocks of all ranks, by lane.
//
// The steps: ranks without a lane hand their block to their stand-in; the lanes gather across
// hosts; the hosts gather within; the blocks are copied to the output in rank order. All of it
// happens in scratch, because only there the blocks of a lane lie side by side, which both
// algorithms need.
Schedule HierarchicalAllGather(const CollectiveShape& shape) {
  const TwoLevel levels(Primitive::kAllGather, shape);
  if (levels.OneHost()) return InnerAlone(Primitive::kAllGather, shape);
  const Schedule group = NewSchedule(Primitive::kAllGather, shape);
  const std::vector<Piece> place = levels.ByLane();
  const auto of = [&](int rank) { return place[static_cast<size_t>(rank)]; };
  const Piece own{0, shape.CountOf(shape.rank), Region::kInput};

  Schedule hand_in = Empty(group);
  Step& step = hand_in.AddStep();
  if (levels.InOuter()) {
    step.Copy(of(shape.rank), own);
    for (const int other : levels.StandsFor()) step.Receive(of(other), other);
  } else {
    step.Send(own, levels.StandIn());
  }
  hand_in.scratch = shape.Total();

  const HierarchyLevel inner = levels.Inner();
  Schedule across = Empty(group);
  std::vector<int> members = inner.members;
  if (levels.InOuter()) {
    const HierarchyLevel outer = levels.Outer();
    across = Make(outer);
    members = outer.members;
    ReserveScratch(shape.Total(), &across);
    const int64_t lane = levels.Lane(inner.shape.rank).begin;
    Move(&across, Region::kInput, Region::kScratch,
         lane + InPlaceOffset(Primitive::kAllGather, outer.shape));
    Move(&across, Region::kOutput, Region::kScratch, lane);
  }
  Embed(members, group, levels.OuterSteps(), &across);

  Schedule within = Make(inner);
  ReserveScratch(shape.Total(), &within);
  Move(&within, Region::kInput, Region::kScratch,
       InPlaceOffset(Primitive::kAllGather, inner.shape));
  Move(&within, Region::kOutput, Region::kScratch, 0);
  Embed(inner.members, group, levels.InnerSteps(), &within);

  Schedule unpack = Empty(group);
  Step& last = unpack.AddStep();
  for (int r = 0; r < shape.ranks; ++r) {
    if (of(r).count > 0) last.Copy(shape.BlockOf(r), of(r));
  }
  return Join(group, {std::move(hand_in), std::move(across), std::move(within), std::move(unpack)});
}

// Scratch: the vector by lane; then the host's sums of the own lane; then the sums of the own block
// and of the blocks of the ranks that this rank stands for.
//
// The steps are those of the allgather backwards: the input is copied to scratch by lane; the hosts
// reduce within; the lanes reduce across hosts; each stand-in hands the other ranks their block.
Schedule HierarchicalReduceScatter(const CollectiveShape& shape) {
  const TwoLevel levels(Primitive::kReduceScatter, shape);
  if (levels.OneHost()) return InnerAlone(Primitive::kReduceScatter, shape);
  const Schedule group = NewSchedule(Primitive::kReduceScatter, shape);
  const std::vector<Piece> place = levels.ByLane();
  const HierarchyLevel inner = levels.Inner();
  const int64_t host_sums = shape.Total(), sums = host_sums + inner.shape.CountOf(inner.shape.rank);

  Schedule pack = Empty(group);
  Step& first = pack.AddStep();
  for (int r = 0; r < shape.ranks; ++r) {
    const Piece& to = place[static_cast<size_t>(r)];
    if (to.count > 0) first.Copy(to, In(shape.BlockOf(r)));
  }
  pack.scratch = shape.Total();

  Schedule within = Make(inner);
  ReserveScratch(sums, &within);
  Move(&within, Region::kInput, Region::kScratch, 0);
  Move(&within, Region::kOutput, Region::kScratch, host_sums);
  Embed(inner.members, group, levels.InnerSteps(), &within);

  Schedule across = Empty(group), hand_out = Empty(group);
  std::vector<int> members = inner.members;
  const Piece own{0, shape.CountOf(shape.rank)};
  Step& last = hand_out.AddStep();
  if (levels.InOuter()) {
    const HierarchyLevel outer = levels.Outer();
    across = Make(outer);
    members = outer.members;
    ReserveScratch(sums + outer.shape.CountOf(outer.shape.rank), &across);
    Move(&across, Region::kInput, Region::kScratch, host_sums);
    Move(&across, Region::kOutput, Region::kScratch, sums);
    int64_t at = sums + own.count;
    for (const int other : levels.StandsFor()) {
      last.Send({at, shape.CountOf(other), Region::kScratch}, other);
      at += shape.CountOf(other);
    }
    last.Copy(own, {sums, own.count, Region::kScratch});
  } else {
    last.Receive(own, levels.StandIn());
  }
  Embed(members, group, levels.OuterSteps(), &across);
  return Join(group, {std::move(pack), std::move(within), std::move(across), std::move(hand_out)});
}

// ---- Traffic ----

namespace {

// The traffic of the levels, plus the blocks that ranks without a lane hand to their stand-ins
// (allgather) or get from them (reduce-scatter).
Traffic LevelsTraffic(Primitive primitive, const CollectiveShape& shape) {
  const TwoLevel levels(primitive, shape);
  const auto of = [](const HierarchyLevel& level) {
    return AlgorithmTraffic(level.phase.primitive, level.phase.algorithm, level.shape);
  };
  Traffic traffic = of(levels.Inner());
  if (levels.InOuter()) traffic = traffic + of(levels.Outer());
  if (primitive == Primitive::kAllGather && !levels.InOuter()) {
    traffic = traffic + Traffic{1, shape.CountOf(shape.rank)};
  }
  if (primitive == Primitive::kReduceScatter && levels.InOuter()) {
    for (const int other : levels.StandsFor()) {
      traffic = traffic + Traffic{1, shape.CountOf(other)};
    }
  }
  return traffic;
}

}  // namespace

Traffic TwoLevelTraffic(Primitive primitive, const CollectiveShape& shape) {
  const bool rooted = primitive == Primitive::kReduce || primitive == Primitive::kBroadcast;
  if (!rooted) return LevelsTraffic(primitive, shape);
  return OverParts(shape.count, shape.segment, [&](int64_t n) {
    CollectiveShape part = shape;
    part.count = n;
    part.segment = 0;
    return LevelsTraffic(primitive, part);
  });
}

}  // namespace tandem::collectives
