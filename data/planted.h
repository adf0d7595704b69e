// PlantedModel is a model with known parameters that labels generated samples. A trained model can
// be compared with the best that is knowable.
//
//   logit = bias + an effect per id of each categorical field
//         + for three pairs of fields <u(id), v(id')>, of rank 2 and without main effects
//         + linear effects of some (log-transformed) numbers.
// Ids follow Zipf's law (Zipf 1949) in 26 fields of 10 to 100,000 ids: the n-th id has the weight
// n^-exponent. All effects are functions of (seed, exponent, field, id). Memory is about 6 MB for
// any number of rows.
//
// Thread safety: const methods may run on many threads at once.
#ifndef TANDEM_DATA_PLANTED_H_
#define TANDEM_DATA_PLANTED_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"

namespace tandem::data {

// Draws from a discrete distribution with one table look-up (Walker 1977, Vose 1991).
class AliasTable {
 public:
  explicit AliasTable(absl::Span<const double> weights);  // positive, at least one
  uint32_t Draw(uint64_t random_word) const;

 private:
  struct Cell {
    uint32_t threshold = 0;  // a word below it (of 2^32) means the cell itself, else the alias
    uint32_t alias = 0;
  };
  std::vector<Cell> cells_;
};

inline constexpr int kPlantedNumbers = 13;
inline constexpr int kPlantedFields = 26;
inline constexpr int kPlantedPairs = 3;
inline constexpr double kPlantedExponent = 1.05;

struct PlantedSample {
  std::array<int32_t, kPlantedNumbers> numbers;
  std::array<bool, kPlantedNumbers> number_missing;
  // By falling frequency; the cardinality of the field: missing.
  std::array<uint32_t, kPlantedFields> ids;
};

// Counts how often each id and each pair of ids occurred in training rows.
class Sightings {
 public:
  Sightings();
  void Add(const PlantedSample& sample);
  uint32_t Id(int field, uint32_t id) const { return ids_[field][id]; }
  uint32_t Pair(int pair, uint32_t first, uint32_t second) const;

 private:
  std::array<std::vector<uint32_t>, kPlantedFields> ids_;
  std::array<std::vector<uint32_t>, kPlantedPairs> pairs_;
};

class PlantedModel {
 public:
  // `exponent`: the exponent of Zipf's law, not negative. 0: all ids of a field are equally
  // frequent.
  explicit PlantedModel(uint64_t seed, double exponent = kPlantedExponent);

  static uint32_t Cardinality(int field);  // without the missing value
  // The value that eight hexadecimal digits show for an id in the file. Different ids of a field
  // have different values.
  static uint32_t ValueOf(int field, uint32_t id);

  void Draw(Random* random, PlantedSample* sample) const;
  double Logit(const PlantedSample& sample) const;
  // The logit without the effects of ids and pairs that were seen fewer than `least` times.
  double KnowableLogit(const PlantedSample& sample, const Sightings& seen, uint32_t least) const;

 private:
  static constexpr int kRank = 2;
  using Factor = std::array<float, kRank>;

  void MakeField(uint64_t seed, int field);
  void MakePair(uint64_t seed, int pair);
  double PairEffect(int pair, const PlantedSample& sample) const;
  double NumericEffect(const PlantedSample& sample) const;
  double FindBias(uint64_t seed) const;

  const double exponent_;
  std::vector<AliasTable> samplers_;                        // one per field, over its ids
  std::array<std::vector<float>, kPlantedFields> effects_;  // one per id; the last one: missing
  // One per id of the pair's fields.
  std::array<std::vector<Factor>, kPlantedPairs> first_, second_;
  double bias_ = 0;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_PLANTED_H_
