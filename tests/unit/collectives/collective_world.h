// Groups of ranks in one process and one thread, over links in memory.
#ifndef TANDEM_TESTS_UNIT_COLLECTIVES_COLLECTIVE_WORLD_H_
#define TANDEM_TESTS_UNIT_COLLECTIVES_COLLECTIVE_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "collectives/exact_numbers.h"
#include "collectives/group.h"
#include "tests/unit/collectives/memory_links.h"

namespace tandem {

class CollectiveWorld {
 public:
  using Ends = std::pair<std::unique_ptr<collectives::Link>, std::unique_ptr<collectives::Link>>;

  // Over links of any kind; `new_link` gives the two ends of one.
  CollectiveWorld(int ranks, const std::function<Ends()>& new_link) {
    std::vector<RankLinks> links(static_cast<size_t>(ranks));
    for (RankLinks& row : links) row.resize(links.size());
    for (size_t a = 0; a < links.size(); ++a) {
      for (size_t b = a + 1; b < links.size(); ++b) std::tie(links[a][b], links[b][a]) = new_link();
    }
    for (size_t r = 0; r < links.size(); ++r) {
      groups_.push_back(std::make_unique<collectives::Group>(
          static_cast<int>(r), std::move(links[r]), collectives::GroupOptions()));
    }
  }

  explicit CollectiveWorld(int ranks, const collectives::GroupOptions& options = {},
                           const collectives::InMemoryLinkOptions& link_options = {}) {
    std::vector<RankLinks> links = MemoryLinks(ranks, link_options);
    for (size_t r = 0; r < links.size(); ++r) {
      groups_.push_back(
          std::make_unique<collectives::Group>(static_cast<int>(r), std::move(links[r]), options));
    }
  }

  int ranks() const { return static_cast<int>(groups_.size()); }
  collectives::Group& group(int r) { return *groups_[static_cast<size_t>(r)]; }
  collectives::InMemoryLink& link(int from, int to) {
    return *static_cast<collectives::InMemoryLink*>(
        const_cast<collectives::Link*>(group(from).link(to)));
  }

  // Makes the call on every rank, and lets all go on until all have ended. By rank: how it ended.
  std::vector<absl::Status> Run(
      const std::function<absl::StatusOr<collectives::Work>(collectives::Group&)>& call) {
    std::vector<absl::StatusOr<collectives::Work>> work;
    for (auto& group : groups_) work.push_back(call(*group));
    std::vector<absl::Status> out(groups_.size());
    std::vector<bool> ended(groups_.size());
    for (size_t left = groups_.size(); left > 0;) {
      for (size_t r = 0; r < groups_.size(); ++r) {
        if (ended[r] || (work[r].ok() && !groups_[r]->Test(*work[r]))) continue;
        out[r] = groups_[r]->Wait(work[r]);
        ended[r] = true;
        --left;
      }
    }
    return out;
  }

  // The first error of any rank.
  absl::Status RunAll(
      const std::function<absl::StatusOr<collectives::Work>(collectives::Group&)>& call) {
    for (absl::Status& status : Run(call)) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<collectives::Group>> groups_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_COLLECTIVES_COLLECTIVE_WORLD_H_
