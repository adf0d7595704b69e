// How programs of other libraries are timed beside `tandem bench allreduce`: the same operations,
// back to back, as many as fill the same time. Standard library only.
//
//   PROGRAM SIZES SECONDS      sizes in bytes, separated by commas; seconds for each line
//
// prints, on one rank, `NAME BYTES MICROSECONDS` for each size: the median over repetitions of the
// mean time of an operation, on the slowest rank.
#ifndef TANDEM_TESTS_BENCH_PEER_TIMING_H_
#define TANDEM_TESTS_BENCH_PEER_TIMING_H_

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace tandem {

struct PeerTiming {
  static constexpr int kRepetitions = 3;
  static constexpr double kMaxOperations = 10'000;

  std::vector<size_t> sizes;
  double seconds = 0.1;

  PeerTiming(int argc, char** argv) {
    for (const char* at = argc > 1 ? argv[1] : "4"; *at != 0;) {
      char* end = nullptr;
      sizes.push_back(std::strtoull(at, &end, 10));
      at = *end == ',' ? end + 1 : end;
      if (end == at && *end != 0) std::exit(2);
    }
    if (argc > 2) seconds = std::strtod(argv[2], nullptr);
  }

  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // `largest` gives the greatest value of any rank, on all ranks; `meet` is a barrier.
  double Microseconds(const std::function<void()>& run,
                      const std::function<double(double)>& largest,
                      const std::function<void()>& meet) const {
    run();
    run();
    const double before = Now();
    run();
    const double share = seconds / kRepetitions / std::max(largest(Now() - before), 1e-9);
    const int operations = static_cast<int>(std::clamp(share, 1.0, kMaxOperations));
    std::vector<double> means;
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      meet();
      const double begin = Now();
      for (int i = 0; i < operations; ++i) run();
      means.push_back(largest((Now() - begin) / operations) * 1e6);
    }
    std::sort(means.begin(), means.end());
    return means[means.size() / 2];
  }
};

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_PEER_TIMING_H_
