// How a group chooses the algorithm and the segment of its collectives: by rules.
//
//   allreduce:<=32K=one_shot,<=4M=direct/128K,ring/256K; broadcast:tree
//
// A rule names the primitive, then cases in ascending order of size: up to so many bytes of one
// rank's vector (K, M, G: times 1024), this algorithm, in segments of so many bytes (without: whole
// pieces). The last case has no limit. What has no rule is chosen by DefaultChooser.
//
// Rules are written by hand, or made from measured costs: every algorithm is played on the costs of
// this machine's links (engine_cost.h) for sizes that double, and the fastest makes the case. Those
// that come out nearly alike may be tried out. Rank 0 decides and tells the others the text, so
// that all ranks decide alike whatever their processors make of the arithmetic. Nothing but
// algorithm and segment is ever chosen so.
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
  int64_t most_bytes = 0;  // of this case; the last one: any
  AlgorithmChoice choice;
};

class ChooserRules {
 public:
  // INVALID_ARGUMENT says where, and what was expected: "rules: at 12 ('magic'): want an algorithm
  // of allreduce: ring, direct, ...".
  static absl::StatusOr<ChooserRules> Parse(absl::string_view text);
  std::string ToString() const;  // what Parse reads

  // Requires at least one case, ascending. Replaces the rule of that primitive.
  void Set(Primitive primitive, std::vector<ChooserCase> cases);
  // Takes over the rules of `other`, which win.
  void Override(const ChooserRules& other);
  // Null: there is no rule.
  const AlgorithmChoice* Find(Primitive primitive, int64_t bytes) const;
  bool empty() const { return cases_.empty(); }

 private:
  std::map<Primitive, std::vector<ChooserCase>> cases_;
};

// Looks at `rules` at each call, so that they can be replaced between operations, on all ranks
// alike: a group is made first, and calibrated then.
Chooser ChooserFrom(std::shared_ptr<const ChooserRules> rules, int ranks, bool tcp);

// ---- Costs ----

// What an algorithm took, for a vector of that size.
struct Trial {
  Primitive primitive = Primitive::kAllReduce;
  int64_t bytes = 0;
  AlgorithmChoice choice;
  double seconds = 0;
};

struct Calibration {
  std::string link;  // its kind, for the reader
  int ranks = 0, cores = 0;
  EngineCosts costs;
  int64_t segment_bytes = 0;  // the best one for long vectors
  std::vector<Trial> trials;  // by primitive and ascending size; may be empty

  // One line a number: "message 1.2e-07". For files.
  std::string ToString() const;
  static absl::StatusOr<Calibration> Parse(absl::string_view text);
};

struct CalibrateOptions {
  int cores = 1;                 // of each host
  int64_t most_bytes = 4 << 20;  // longest vector measured; at least 256 KiB is taken
  // To spend, about: repetitions, and then the longest vector, become fewer and shorter.
  double seconds = 1;
};

// Measures on the group itself, with collectives that show one cost each. All ranks call it; rank
// 0's figures, on all ranks.
absl::StatusOr<Calibration> Calibrate(Group& group, const CalibrateOptions& options);

struct Prediction {
  AlgorithmChoice choice;
  double seconds = 0;
  bool tried = false;  // rather than predicted
};
// Every algorithm that can do it with its best segment, fastest first; by costs alone.
absl::StatusOr<std::vector<Prediction>> Predict(Primitive primitive, int64_t bytes, int ranks,
                                                absl::Span<const int> host_of_rank,
                                                const Calibration& calibration);
// The same, but those that were tried out at the next larger size before all others, and with what
// they took there.
absl::StatusOr<std::vector<Prediction>> Rank(Primitive primitive, int64_t bytes, int ranks,
                                             absl::Span<const int> host_of_rank,
                                             const Calibration& calibration);

struct TryOptions {
  std::vector<Primitive> primitives = {Primitive::kAllReduce};  // reduce_scatter, allgather
  std::vector<int> host_of_rank;                                // empty: one host
  int64_t most_bytes = 4 << 20;
  double seconds = 0.5;  // to spend, about
};
// Runs the algorithms that `calibration` predicts to be nearly as fast as the fastest, in turns,
// for sizes that double, and makes the median times its trials. All ranks call it, with the same
// `calibration`, and have the same after it. UNIMPLEMENTED: another primitive.
absl::Status TryOut(Group& group, const TryOptions& options, Calibration* calibration);

// Sizes for which rules are made and algorithms tried out: this one, and doubled again and again.
inline constexpr int64_t kLeastSize = 256;

// Whether some host has fewer cores than ranks. `host_of_rank` empty: one host.
bool SharesCores(int ranks, absl::Span<const int> host_of_rank, int cores);

struct RuleScope {
  std::vector<Primitive> primitives;        // empty: all that have more than one algorithm
  int64_t most_bytes = int64_t{256} << 20;  // longer vectors are decided like this
};
// The fastest, but among those that are as fast within the noise (which is larger where ranks share
// cores and nothing was tried out) one that adds in rank order.
absl::StatusOr<ChooserRules> MakeRules(int ranks, absl::Span<const int> host_of_rank,
                                       const Calibration& calibration, const RuleScope& scope = {});

// ---- Buckets ----

// Shorter gradients are never cut.
inline constexpr int64_t kLeastBucketedBytes = 256 << 10;

struct BucketChoice {
  int64_t bytes = 0;  // of a bucket; 0: the gradient at once
  std::string why;    // "an all-reduce of 1M spends 8% of its time on latency"
};

// For a gradient that is summed while the backward pass goes on (GradientBuckets in
// worker/allreduce_gradients.h): the smallest power of two of which latency is at most a tenth. At
// once if that makes fewer than four buckets, and on one host where ranks have no core to spare:
// who copies the bytes would then be who computes. `algorithm`: how it is summed; none: the best.
absl::StatusOr<BucketChoice> ChooseBucket(int64_t gradient_bytes, int ranks,
                                          absl::Span<const int> host_of_rank,
                                          absl::optional<Algorithm> algorithm,
                                          const Calibration& calibration);

// Rank 0's text, on all ranks: how they agree on rules, and on costs. At most 1 MiB.
absl::StatusOr<std::string> TextOfRank0(Group& group, std::string text);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_TUNING_CHOOSER_H_
