// Ranks in threads of one process, with links in memory between them.
#ifndef TANDEM_TESTS_UNIT_COLLECTIVES_MEMORY_LINKS_H_
#define TANDEM_TESTS_UNIT_COLLECTIVES_MEMORY_LINKS_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/links/in_memory_link.h"

namespace tandem {

using RankLinks = std::vector<std::unique_ptr<collectives::Link>>;  // null at the own rank

// The links of each rank. A `partial_seed` other than 0 becomes a different one for each link.
inline std::vector<RankLinks> MemoryLinks(int ranks,
                                          collectives::InMemoryLinkOptions options = {}) {
  std::vector<RankLinks> links(static_cast<size_t>(ranks));
  for (RankLinks& row : links) row.resize(links.size());
  for (size_t a = 0; a < links.size(); ++a) {
    for (size_t b = a + 1; b < links.size(); ++b) {
      if (options.partial_seed != 0) ++options.partial_seed;
      collectives::InMemoryLink::Pair pair = collectives::InMemoryLink::NewPair(options);
      links[a][b] = std::move(pair[0]);
      links[b][a] = std::move(pair[1]);
    }
  }
  return links;
}

// Runs `body` for each rank in a thread of its own.
inline void RunRankThreads(int ranks, const std::function<void(int rank, RankLinks links)>& body) {
  std::vector<RankLinks> links = MemoryLinks(ranks);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < links.size(); ++r) {
    threads.emplace_back([&, r] { body(static_cast<int>(r), std::move(links[r])); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_COLLECTIVES_MEMORY_LINKS_H_
