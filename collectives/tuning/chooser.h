// Chooser: chooses the algorithm and the segment of a group's collectives by rules.
//
// The folder tuning/ measures costs and makes such rules from them.
//
//   allreduce:<=32K=one_shot,<=4M=direct/128K,ring/256K; broadcast:tree
//
// A rule names the primitive. Its cases follow in ascending order of size. Each case says: up to
// this many bytes of one rank's vector (K, M, G: times 1024), use this algorithm, in segments of
// this many bytes (without a segment: whole pieces). The last case has no limit. DefaultChooser
// decides for primitives without a rule.
//
// Rules are written by hand, or made from measured costs. In the second case a cost model predicts
// the time of every algorithm on this machine's links (engine_cost.h), for sizes that double, and
// the fastest algorithm makes the case. Algorithms with nearly the same prediction may be tried
// out. Rank 0 decides and sends the text of the rules to the others, so that all ranks choose alike
// even if their processors compute slightly different numbers. Only the algorithm and the segment
// are chosen this way.
#ifndef TANDEM_COLLECTIVES_TUNING_CHOOSER_H_
#define TANDEM_COLLECTIVES_TUNING_CHOOSER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/tuning/engine_cost.h"

namespace tandem::collectives {

struct ChooserCase {
  int64_t max_bytes = 0;  // upper limit of the case; unlimited in the last one
  AlgorithmChoice choice;
};

class ChooserRules {
 public:
  // Parses rules. INVALID_ARGUMENT says where the error is and what was expected: "rules: at 12
  // ('magic'): expected an algorithm of allreduce: ring, direct, ...".
  static absl::StatusOr<ChooserRules> Parse(absl::string_view text);
  std::string ToString() const;  // in the format of Parse

  // Replaces the rule of the primitive. Requires at least one case; sizes must ascend.
  void Set(Primitive primitive, std::vector<ChooserCase> cases);
  // Adds the rules of `other`, which replace those of the same primitive.
  void Override(const ChooserRules& other);
  // Null if there is no rule.
  const AlgorithmChoice* Find(Primitive primitive, int64_t bytes) const;
  bool empty() const { return cases_.empty(); }

 private:
  std::map<Primitive, std::vector<ChooserCase>> cases_;
};

// Makes a chooser that reads `rules` at each call. So a group can be made first and calibrated
// later: the rules may be replaced between operations, on all ranks in the same way.
Chooser ChooserFrom(std::shared_ptr<const ChooserRules> rules, int ranks, bool tcp);

// ---- Costs ----

// The measured time of an algorithm for a vector of that size.
struct Trial {
  Primitive primitive = Primitive::kAllReduce;
  int64_t bytes = 0;
  AlgorithmChoice choice;
  double seconds = 0;
};

struct Calibration {
  std::string link;  // kind of the link, for readers
  int ranks = 0, cores = 0;
  EngineCosts costs;
  int64_t segment_bytes = 0;  // the best segment for long vectors
  std::vector<Trial> trials;  // by primitive and ascending size; may be empty

  // The text has one number a line: "message 1.2e-07". For files.
  std::string ToString() const;
  static absl::StatusOr<Calibration> Parse(absl::string_view text);
};

struct CalibrateOptions {
  int cores = 1;                // cores of each host
  int64_t max_bytes = 4 << 20;  // longest vector that is measured; at least 256 KiB
  // About how long the calibration takes. If the time is short, first the repetitions become fewer,
  // then the longest vector becomes shorter.
  double seconds = 1;
};

// Measures on the group itself, with collectives that each show one cost. All ranks call it, and
// all get rank 0's figures.
absl::StatusOr<Calibration> Calibrate(Group& group, const CalibrateOptions& options);

struct Prediction {
  AlgorithmChoice choice;
  double seconds = 0;
  bool tried = false;  // measured by a trial; false: predicted
};
// Predicts the time of every algorithm that can do the primitive, each with its best segment, from
// costs alone. Fastest first.
absl::StatusOr<std::vector<Prediction>> Predict(Primitive primitive, int64_t bytes, int ranks,
                                                absl::Span<const int> host_of_rank,
                                                const Calibration& calibration);
// As Predict, but uses the trials of the next larger size. Algorithms that were tried come before
// all others, with their measured time.
absl::StatusOr<std::vector<Prediction>> Rank(Primitive primitive, int64_t bytes, int ranks,
                                             absl::Span<const int> host_of_rank,
                                             const Calibration& calibration);

struct TryOptions {
  std::vector<Primitive> primitives = {Primitive::kAllReduce};  // reduce_scatter, allgather
  std::vector<int> host_of_rank;                                // empty: one host
  int64_t max_bytes = 4 << 20;
  double seconds = 0.5;  // about how long to try
};
// Runs the algorithms that `calibration` predicts to be nearly as fast as the fastest, in turns,
// for sizes that double. Their median times become the trials of `calibration`. All ranks call it
// with the same `calibration` and have the same one afterwards. UNIMPLEMENTED: a primitive other
// than these.
absl::Status TryOut(Group& group, const TryOptions& options, Calibration* calibration);

// Rules and trials are made for this size and its doubles.
inline constexpr int64_t kMinSize = 256;

// Whether some host has fewer cores than ranks. Empty `host_of_rank`: one host.
bool SharesCores(int ranks, absl::Span<const int> host_of_rank, int cores);

struct RuleScope {
  std::vector<Primitive> primitives;       // empty: all with more than one algorithm
  int64_t max_bytes = int64_t{256} << 20;  // longer vectors use the rule of this size
};
// Makes rules: the fastest algorithm; among algorithms that are as fast within the noise, one that
// adds in rank order. The noise is larger if ranks share cores and nothing was tried out.
absl::StatusOr<ChooserRules> MakeRules(int ranks, absl::Span<const int> host_of_rank,
                                       const Calibration& calibration, const RuleScope& scope = {});

// ---- Buckets ----

// Shorter gradients are never cut into buckets.
inline constexpr int64_t kMinBucketedBytes = 256 << 10;

struct BucketChoice {
  int64_t bytes = 0;  // size of a bucket; 0: the gradient is not cut
  std::string why;    // "an all-reduce of 1M spends 8% of its time on latency"
};

// Chooses the bucket size for a gradient that is summed while the backward pass runs
// (GradientBuckets in worker/dense/allreduce_gradients.h): the smallest power of two whose latency
// is at most a tenth of its time. The gradient is not cut if there would be fewer than four
// buckets, or if all ranks are on one host without spare cores: the thread that copies bytes would
// then take its time from the one that computes. `algorithm`: how the gradient is summed; none: by
// the best algorithm.
absl::StatusOr<BucketChoice> ChooseBucket(int64_t gradient_bytes, int ranks,
                                          absl::Span<const int> host_of_rank,
                                          absl::optional<Algorithm> algorithm,
                                          const Calibration& calibration);

// Returns rank 0's text on all ranks. Ranks agree on rules and on costs this way. At most 1 MiB.
absl::StatusOr<std::string> TextOfRank0(Group& group, std::string text);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_TUNING_CHOOSER_H_
