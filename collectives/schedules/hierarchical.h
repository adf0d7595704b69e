// The two levels of hierarchical collectives (within hosts, across hosts): their schedules and the
// facts that the cost model needs.
#ifndef TANDEM_COLLECTIVES_SCHEDULES_HIERARCHICAL_H_
#define TANDEM_COLLECTIVES_SCHEDULES_HIERARCHICAL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

// The algorithm within hosts (inner) and across them (outer).
Algorithm InnerOf(Primitive primitive, const CollectiveShape& shape);
Algorithm OuterOf(Primitive primitive, const CollectiveShape& shape);

// One part of a hierarchical collective: a collective among some of the ranks, which are numbered
// 0, 1, ... among themselves.
struct Phase {
  Primitive primitive;
  Algorithm algorithm;
};

// The ranks of each host. Hosts are numbered in the order of CollectiveShape::host_of_rank, without
// gaps.
struct HostMap {
  explicit HostMap(const CollectiveShape& shape);
  std::vector<std::vector<int>> hosts;  // ranks of each host, ascending
  int host = 0, local = 0;              // shape.rank's index in hosts, and number in its host
  int smallest = 1;                     // ranks of the host with the fewest ranks
};

// Schedules and traffic of two_level.cc, for the row of the algorithm. Requires that
// TwoLevel::Check returns OK.
Schedule HierarchicalReduce(const CollectiveShape& shape);
Schedule HierarchicalBroadcast(const CollectiveShape& shape);
Schedule HierarchicalReduceScatter(const CollectiveShape& shape);
Schedule HierarchicalAllGather(const CollectiveShape& shape);
Traffic TwoLevelTraffic(Primitive primitive, const CollectiveShape& shape);

// Adds a schedule among `members` to the schedule `s` of the whole group, with `steps` steps.
void Embed(const std::vector<int>& members, const Schedule& group, size_t steps, Schedule* s);

// ---- Reduce, broadcast, reduce-scatter, allgather (two_level.cc) ----

// One collective among some of the ranks. In `shape`, rank is the number of this rank in `members`.
struct HierarchyLevel {
  Phase phase;
  CollectiveShape shape;
  std::vector<int> members;
  bool across = false;  // across hosts
};

class TwoLevel {
 public:
  // UNIMPLEMENTED if an algorithm of shape.inner or shape.outer does not support the primitive.
  static absl::Status Check(Primitive primitive, const CollectiveShape& shape);

  TwoLevel(Primitive primitive, const CollectiveShape& shape);

  // With one host the inner algorithm does all the work.
  bool OneHost() const { return map_.hosts.size() == 1; }
  HierarchyLevel Inner() const;  // for the host of shape.rank
  // The collective across hosts, between one rank of each host: the first ranks of all hosts, the
  // second ranks of all hosts, and so on, up to the size of the smallest host. Requires InOuter().
  HierarchyLevel Outer() const;
  // The number of steps of the longest such collective, so that all ranks make the same number of
  // steps.
  size_t InnerSteps() const;
  size_t OuterSteps() const;

  // Whether this rank takes part across hosts. Reduce and broadcast use one rank of each host. The
  // other primitives use as many ranks of each host as the smallest host has; the i-th ranks of all
  // hosts form lane i. A larger host has ranks without a lane: the data of such a rank go through
  // its stand-in, the rank of the same host whose number is the rank's number modulo lanes.
  bool InOuter() const { return map_.local == leader_ || (lanes_ > 0 && map_.local < lanes_); }
  int StandIn() const;                 // for shape.rank; itself if it has a lane
  std::vector<int> StandsFor() const;  // the other ranks that this rank stands for
  // With lanes: the place of each rank's block (by rank) when the blocks of a lane lie side by
  // side, the blocks of the first host first.
  std::vector<Piece> ByLane() const;
  Piece Lane(int lane) const;  // all blocks of a lane, in that order

 private:
  const Primitive primitive_;
  const CollectiveShape shape_;
  const HostMap map_;
  const int lanes_;   // 0 for reduce and broadcast
  const int leader_;  // number in the own host; -1: with lanes
};

class Hierarchy {
 public:
  // UNIMPLEMENTED if shape.inner or shape.outer has no such schedule.
  static absl::Status Check(const CollectiveShape& shape);

  explicit Hierarchy(const CollectiveShape& shape);

  // The phases before and after the one across hosts: a reduce-scatter and an allgather; if
  // !scatters(), a reduce and a broadcast.
  Phase First() const;
  Phase Last() const;
  bool scatters() const { return scatters_; }
  // The number of ranks of a host that take part across hosts: the size of the smallest host, or
  // one.
  int lanes() const { return lanes_; }

  const std::vector<std::vector<int>>& hosts() const { return map_.hosts; }
  int host() const { return map_.host; }
  int local() const { return map_.local; }
  bool InLane() const { return local() < lanes_; }
  std::vector<int> Lane(int lane) const;  // a rank of each host

  // Shapes of the phases for a part of the vector. The first phase is in place if `shape` is; the
  // others always are. Only ranks in a lane have an outer shape.
  CollectiveShape FirstShape(int64_t count) const;
  CollectiveShape OuterShape(int64_t count) const;
  CollectiveShape LastShape(int64_t count) const;
  // The own block of a part: its begin and its size.
  Piece Own(int64_t count) const;
  // The most elements of a part such that no message is longer than a segment.
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
