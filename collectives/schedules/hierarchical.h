// What the two levels of hierarchical collectives are, for their schedules and their costs.
#ifndef TANDEM_COLLECTIVES_SCHEDULES_HIERARCHICAL_H_
#define TANDEM_COLLECTIVES_SCHEDULES_HIERARCHICAL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

// Within hosts, and across them.
Algorithm InnerOf(Primitive primitive, const CollectiveShape& shape);
Algorithm OuterOf(Primitive primitive, const CollectiveShape& shape);

// A collective of some of the ranks, numbered 0, 1, ... among themselves.
struct Phase {
  Primitive primitive;
  Algorithm algorithm;
};

// Hosts are numbered in the order of CollectiveShape::host_of_rank, without gaps.
struct HostMap {
  explicit HostMap(const CollectiveShape& shape);
  std::vector<std::vector<int>> hosts;  // ranks of each, ascending
  int host = 0, local = 0;              // of shape.rank: index in hosts, and number in its host
  int smallest = 1;                     // ranks of the host with the fewest
};

// Of two_level.cc, for the row of the algorithm. They require that TwoLevel::Check finds nothing.
Schedule HierarchicalReduce(const CollectiveShape& shape);
Schedule HierarchicalBroadcast(const CollectiveShape& shape);
Schedule HierarchicalReduceScatter(const CollectiveShape& shape);
Schedule HierarchicalAllGather(const CollectiveShape& shape);
Traffic TwoLevelTraffic(Primitive primitive, const CollectiveShape& shape);

// A schedule among `members` becomes one of the whole group, with `steps` steps.
void Embed(const std::vector<int>& members, const Schedule& group, size_t steps, Schedule* s);

// ---- Reduce, broadcast, reduce-scatter, allgather (two_level.cc) ----

// One collective among some ranks, of which shape.rank is one by its number in `members`.
struct HierarchyLevel {
  Phase phase;
  CollectiveShape shape;
  std::vector<int> members;
  bool across = false;  // hosts
};

class TwoLevel {
 public:
  // UNIMPLEMENTED if an algorithm of shape.inner and shape.outer does not do that.
  static absl::Status Check(Primitive primitive, const CollectiveShape& shape);

  TwoLevel(Primitive primitive, const CollectiveShape& shape);

  bool OneHost() const { return map_.hosts.size() == 1; }  // then the inner algorithm does it all
  HierarchyLevel Inner() const;                            // of the host of shape.rank
  // Between one rank of each host: all first ranks of a host, all second ones, ... as far as the
  // smallest host goes. Only if InOuter().
  HierarchyLevel Outer() const;
  // Steps of the longest, so that all ranks make as many.
  size_t InnerSteps() const;
  size_t OuterSteps() const;

  // Reduce and broadcast go through one rank of each host, the others use as many as the smallest
  // host has (lanes). What other ranks of a larger host have goes through that of their number
  // modulo lanes, who stands for them.
  bool InOuter() const { return map_.local == leader_ || (lanes_ > 0 && map_.local < lanes_); }
  int StandIn() const;                 // of shape.rank; itself if it is in a lane
  std::vector<int> StandsFor() const;  // others than itself
  // With lanes: where the block of each rank is if those of a lane lie side by side, first those of
  // the first host; by rank.
  std::vector<Piece> ByLane() const;
  Piece Lane(int lane) const;  // all blocks of a lane, in that order

 private:
  const Primitive primitive_;
  const CollectiveShape shape_;
  const HostMap map_;
  const int lanes_;   // 0: reduce and broadcast
  const int leader_;  // number in the own host; -1: with lanes
};

class Hierarchy {
 public:
  // UNIMPLEMENTED if there is no such schedule by shape.inner and shape.outer.
  static absl::Status Check(const CollectiveShape& shape);

  explicit Hierarchy(const CollectiveShape& shape);

  // Before and after the phase across hosts. Either a reduce-scatter and an allgather, or, if
  // !scatters(), a reduce and a broadcast.
  Phase First() const;
  Phase Last() const;
  bool scatters() const { return scatters_; }
  // Ranks of a host that take part across hosts: as many as the smallest host has, or one.
  int lanes() const { return lanes_; }

  const std::vector<std::vector<int>>& hosts() const { return map_.hosts; }
  int host() const { return map_.host; }
  int local() const { return map_.local; }
  bool InLane() const { return local() < lanes_; }
  std::vector<int> Lane(int lane) const;  // a rank of each host

  // Shapes of the phases for a part of the vector; the first is in place if `shape` is, the others
  // always. Only ranks in a lane have an outer shape.
  CollectiveShape FirstShape(int64_t count) const;
  CollectiveShape OuterShape(int64_t count) const;
  CollectiveShape LastShape(int64_t count) const;
  // Where in the part the own block begins, and its size.
  Piece Own(int64_t count) const;
  // Most elements of a part such that no message is longer than a segment.
  int64_t Part() const;

 private:
  CollectiveShape InnerShape(int64_t count) const;

  const CollectiveShape shape_;
  const Algorithm inner_;
  const HostMap map_;
  const bool scatters_;
  const int lanes_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SCHEDULES_HIERARCHICAL_H_
