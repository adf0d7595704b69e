#include "data/planted.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/hash.h"

namespace tandem::data {
namespace {

constexpr double kPositiveShare = 0.25;

// Pairs of fields whose ids interact. The fields have few enough ids that a pair of ids is seen
// often.
struct FieldPair {
  int first, second;
};
constexpr std::array<FieldPair, kPlantedPairs> kPairs = {{{4, 9}, {5, 10}, {6, 11}}};
constexpr double kPairDeviation = 0.12;  // of the effect of one pair, in logits

// The deviation of a field's effects over its samples, in logits. Fields with up to a few thousand
// ids have most of it. One pass over a million rows shows such ids often enough to learn them, but
// random (frozen) embeddings cannot tell so many ids apart.
double EffectDeviation(uint32_t cardinality) {
  if (cardinality < 200) return 0.33;
  if (cardinality < 2000) return 0.40;
  return cardinality < 8000 ? 0.20 : 0.06;
}

double MissingIdShare(int field) { return field % 3 == 2 ? 0.02 * (1 + field % 5) : 0.0; }

// The shape of a column of counts: exp of a normal number, cut to a whole number, minus `shift`.
struct NumberShape {
  double mean, deviation;  // of the logarithm of the count
  double missing;          // share
  int32_t shift;
  double effect;  // per unit of the transformed number
};
constexpr std::array<NumberShape, kPlantedNumbers> kNumbers = {{
    {0.8, 1.2, 0.40, 0, 0.00},
    {1.5, 1.8, 0.00, 2, 0.16},
    {2.0, 1.4, 0.20, 0, 0.00},
    {1.6, 1.0, 0.00, 0, -0.24},
    {6.5, 2.0, 0.03, 0, 0.00},
    {3.5, 1.5, 0.25, 0, 0.00},
    {1.6, 1.3, 0.00, 0, 0.30},
    {2.2, 1.1, 0.01, 0, 0.00},
    {4.0, 1.4, 0.05, 0, 0.00},
    {0.4, 0.5, 0.45, 0, 0.00},
    {0.9, 0.8, 0.04, 0, 0.25},
    {0.3, 0.6, 0.75, 0, 0.00},
    {1.7, 0.9, 0.20, 0, 0.00},
}};

std::vector<double> ZipfWeights(uint32_t count, double exponent) {
  std::vector<double> weights(count);
  for (uint32_t i = 0; i < count; ++i) weights[i] = std::pow(i + 1.0, -exponent);
  return weights;
}

// `count` normal numbers, shifted and scaled so that they have mean 0 and the given deviation over
// the distribution `weights`. Before that, each is a function of (seed, its index) alone.
std::vector<double> Standardised(uint64_t seed, const std::vector<double>& weights,
                                 double deviation) {
  std::vector<double> values(weights.size());
  double sum = 0, mean = 0, square = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Random(HashCombine(seed, i)).Normal();
    sum += weights[i];
    mean += weights[i] * values[i];
    square += weights[i] * values[i] * values[i];
  }
  mean /= sum;
  const double scale = deviation / std::sqrt(std::max(1e-12, square / sum - mean * mean));
  for (double& value : values) value = (value - mean) * scale;
  return values;
}

double Transformed(int32_t x) { return std::copysign(std::log1p(std::abs(x)), x); }

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

AliasTable::AliasTable(absl::Span<const double> weights) : cells_(weights.size()) {
  TANDEM_CHECK(!weights.empty() && weights.size() < (uint64_t{1} << 32));
  double sum = 0;
  for (const double weight : weights) sum += weight;
  std::vector<double> share(weights.begin(), weights.end());  // in units of a cell
  std::vector<uint32_t> small, large;
  for (uint32_t i = 0; i < share.size(); ++i) {
    share[i] *= static_cast<double>(share.size()) / sum;
    (share[i] < 1 ? small : large).push_back(i);
    cells_[i] = {0xffffffffu, i};
  }
  while (!small.empty() && !large.empty()) {
    const uint32_t low = small.back(), high = large.back();
    small.pop_back();
    cells_[low] = {static_cast<uint32_t>(share[low] * 0x1.0p32), high};
    share[high] -= 1 - share[low];
    if (share[high] >= 1) continue;
    large.pop_back();
    small.push_back(high);
  }
}

uint32_t AliasTable::Draw(uint64_t random_word) const {
  const uint32_t at = static_cast<uint32_t>(MulHigh(random_word, cells_.size()));
  // The low bits are practically independent of the cell, which the high bits have chosen.
  return static_cast<uint32_t>(random_word) < cells_[at].threshold ? at : cells_[at].alias;
}

Sightings::Sightings() {
  for (int f = 0; f < kPlantedFields; ++f) ids_[f].resize(PlantedModel::Cardinality(f) + 1);
  for (int p = 0; p < kPlantedPairs; ++p) {
    pairs_[p].resize(ids_[kPairs[p].first].size() * ids_[kPairs[p].second].size());
  }
}

uint32_t Sightings::Pair(int pair, uint32_t first, uint32_t second) const {
  return pairs_[pair][first * ids_[kPairs[pair].second].size() + second];
}

void Sightings::Add(const PlantedSample& sample) {
  for (int f = 0; f < kPlantedFields; ++f) ++ids_[f][sample.ids[f]];
  for (int p = 0; p < kPlantedPairs; ++p) {
    const auto [first, second] = kPairs[p];
    ++pairs_[p][sample.ids[first] * ids_[second].size() + sample.ids[second]];
  }
}

uint32_t PlantedModel::Cardinality(int field) {
  return static_cast<uint32_t>(
      std::lround(std::pow(10.0, 1.0 + 4.0 * field / (kPlantedFields - 1))));
}

uint32_t PlantedModel::ValueOf(int field, uint32_t id) {
  // The finaliser of MurmurHash3 is a bijection of 32-bit words, so different ids get different
  // digits.
  uint32_t x = id + 0x9e3779b9u * static_cast<uint32_t>(field + 1);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

PlantedModel::PlantedModel(uint64_t seed, double exponent) : exponent_(exponent) {
  for (int f = 0; f < kPlantedFields; ++f) MakeField(seed, f);
  for (int p = 0; p < kPlantedPairs; ++p) MakePair(seed, p);
  bias_ = FindBias(seed);
}

void PlantedModel::MakeField(uint64_t seed, int field) {
  const std::vector<double> weights = ZipfWeights(Cardinality(field), exponent_);
  samplers_.emplace_back(weights);
  const std::vector<double> effects =
      Standardised(HashCombine(HashCombine(seed, HashName("effect")), field), weights,
                   EffectDeviation(Cardinality(field)));
  effects_[field].assign(effects.begin(), effects.end());
  effects_[field].push_back(0.0f);  // a missing value has no effect
}

void PlantedModel::MakePair(uint64_t seed, int pair) {
  const auto make = [&](int field, std::vector<Factor>* factors) {
    const std::vector<double> weights = ZipfWeights(Cardinality(field), exponent_);
    factors->resize(weights.size() + 1);  // a missing value has zeros
    for (int r = 0; r < kRank; ++r) {
      const uint64_t stream = HashCombine(HashCombine(seed, HashName("pair")), field * kRank + r);
      const auto values = Standardised(stream, weights, 1.0);
      for (size_t i = 0; i < values.size(); ++i) (*factors)[i][r] = static_cast<float>(values[i]);
    }
  };
  make(kPairs[pair].first, &first_[pair]);
  make(kPairs[pair].second, &second_[pair]);
}

void PlantedModel::Draw(Random* random, PlantedSample* sample) const {
  for (int j = 0; j < kPlantedNumbers; ++j) {
    const NumberShape& shape = kNumbers[j];
    sample->number_missing[j] = shape.missing > 0 && random->Bernoulli(shape.missing);
    const double drawn = std::exp(shape.mean + shape.deviation * random->Normal());
    sample->numbers[j] = static_cast<int32_t>(std::min(drawn, 1e8)) - shape.shift;
    if (sample->number_missing[j]) sample->numbers[j] = 0;
  }
  for (int f = 0; f < kPlantedFields; ++f) {
    const double missing = MissingIdShare(f);
    sample->ids[f] = missing > 0 && random->Bernoulli(missing)
                         ? Cardinality(f)
                         : samplers_[f].Draw(random->Next64());
  }
}

double PlantedModel::PairEffect(int pair, const PlantedSample& sample) const {
  const Factor& u = first_[pair][sample.ids[kPairs[pair].first]];
  const Factor& v = second_[pair][sample.ids[kPairs[pair].second]];
  return kPairDeviation * (u[0] * v[0] + u[1] * v[1]) / std::sqrt(kRank);
}

double PlantedModel::NumericEffect(const PlantedSample& sample) const {
  double sum = 0;
  for (int j = 0; j < kPlantedNumbers; ++j) {
    if (kNumbers[j].effect != 0) sum += kNumbers[j].effect * Transformed(sample.numbers[j]);
  }
  return sum;
}

double PlantedModel::Logit(const PlantedSample& sample) const {
  double logit = bias_ + NumericEffect(sample);
  for (int f = 0; f < kPlantedFields; ++f) logit += effects_[f][sample.ids[f]];
  for (int p = 0; p < kPlantedPairs; ++p) logit += PairEffect(p, sample);
  return logit;
}

double PlantedModel::KnowableLogit(const PlantedSample& sample, const Sightings& seen,
                                   uint32_t least) const {
  double logit = bias_ + NumericEffect(sample);
  for (int f = 0; f < kPlantedFields; ++f) {
    if (seen.Id(f, sample.ids[f]) >= least) logit += effects_[f][sample.ids[f]];
  }
  for (int p = 0; p < kPlantedPairs; ++p) {
    const auto [first, second] = kPairs[p];
    if (seen.Pair(p, sample.ids[first], sample.ids[second]) < least) continue;
    logit += PairEffect(p, sample);
  }
  return logit;
}

double PlantedModel::FindBias(uint64_t seed) const {
  constexpr int kSamples = 20000, kHalvings = 40;
  std::vector<double> logits(kSamples);
  Random random(HashCombine(seed, HashName("bias")));
  PlantedSample sample;
  for (double& logit : logits) {
    Draw(&random, &sample);
    logit = Logit(sample);
  }
  double low = -20, high = 20;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    double share = 0;
    for (const double logit : logits) share += Sigmoid(logit + middle) / kSamples;
    (share < kPositiveShare ? low : high) = middle;
  }
  return low;
}

}  // namespace tandem::data
