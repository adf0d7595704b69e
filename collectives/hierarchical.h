// What the two levels of a hierarchical all-reduce are, for its schedule and its cost.
#ifndef TANDEM_COLLECTIVES_HIERARCHICAL_H_
#define TANDEM_COLLECTIVES_HIERARCHICAL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "collectives/algorithms.h"

namespace tandem {

// A collective of some of the ranks, numbered 0, 1, ... among themselves.
struct Phase {
  Primitive primitive;
  Algorithm algorithm;
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

  const std::vector<std::vector<int>>& hosts() const { return hosts_; }  // ranks, ascending
  int host() const { return host_; }    // of shape.rank: index in hosts()
  int local() const { return local_; }  // number of shape.rank in its host
  bool InLane() const { return local_ < lanes_; }
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
  std::vector<std::vector<int>> hosts_;
  int host_ = 0, local_ = 0, lanes_ = 1;
  bool scatters_ = false;
};

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_HIERARCHICAL_H_
