#include "tests/sim/proof/toy_model.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"

namespace tandem {
namespace {

uint64_t Hash(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  return HashCombine(HashCombine(HashCombine(seed, a), b), c);
}

}  // namespace

ToyModel::ToyModel(const job::ResolvedJob& plan, Options options)
    : plan_(plan), options_(std::move(options)), workers_(plan.workers()) {
  TANDEM_CHECK(static_cast<int>(options_.batches.size()) == workers_);
  TANDEM_CHECK(options_.dense > workers_);
  for (const job::TablePlan& table : plan.tables) TANDEM_CHECK(table.dim > workers_);
}

int64_t ToyModel::Samples(int rank, int64_t epoch, int64_t index) const {
  if (index >= options_.batches[static_cast<size_t>(rank)]) return 0;
  if (options_.full_batches) return 4;
  return int64_t{1} << (Hash(options_.seed, static_cast<uint64_t>(rank),
                             static_cast<uint64_t>(epoch), static_cast<uint64_t>(index)) %
                        3);
}

int64_t ToyModel::SumOfSamples(int64_t epoch, int64_t index) const {
  int64_t sum = 0;
  for (int rank = 0; rank < workers_; ++rank) sum += Samples(rank, epoch, index);
  return sum;
}

uint64_t ToyModel::Key(uint32_t table, int i) const {
  return HashCombine(table + 1, static_cast<uint64_t>(i));
}

void ToyModel::FillBatch(int rank, int64_t epoch, int64_t index, data::Batch* batch) const {
  batch->Clear();
  batch->samples = Samples(rank, epoch, index);
  if (batch->samples == 0) return;
  batch->labels.assign(static_cast<size_t>(batch->samples), Label(rank));
  FillSparse(Hash(options_.seed + 1, static_cast<uint64_t>(rank), static_cast<uint64_t>(epoch),
                  static_cast<uint64_t>(index)),
             /*test=*/false, batch);
}

void ToyModel::FillTestBatch(int rank, int64_t index, data::Batch* batch) const {
  batch->Clear();
  batch->samples = index < options_.test_batches ? 1 : 0;
  if (batch->samples == 0) return;
  FillSparse(Hash(options_.seed + 2, static_cast<uint64_t>(rank), static_cast<uint64_t>(index), 0),
             /*test=*/true, batch);
}

void ToyModel::FillSparse(uint64_t seed, bool test, data::Batch* batch) const {
  Random random(seed);
  batch->sparse.clear();
  // Keys beyond the universe are never trained, so they must have their initial values.
  const int universe = options_.universe + (test ? 3 : 0);
  for (const job::TablePlan& table : plan_.tables) {
    if (table.dense) continue;
    data::SparseInput input;
    input.table = table.id;
    input.fields = 1;
    const size_t want = options_.full_batches
                            ? static_cast<size_t>(options_.keys_per_batch)
                            : random.Uniform(static_cast<uint64_t>(options_.keys_per_batch) + 1);
    while (input.keys.size() < want) {
      const uint64_t key =
          Key(table.id, static_cast<int>(random.Uniform(static_cast<uint64_t>(universe))));
      const bool known = std::find(input.keys.begin(), input.keys.end(), key) != input.keys.end();
      if (!known) input.keys.push_back(key);
    }
    batch->sparse.push_back(std::move(input));
  }
}

int64_t ToyModel::Ticket(int rank, int64_t step, uint64_t key) const {
  return 1 + static_cast<int64_t>(Hash(options_.seed, static_cast<uint64_t>(rank),
                                       static_cast<uint64_t>(step), key) %
                                  64);
}

void ToyModel::Gradient(int rank, int64_t step, uint64_t key, float norm,
                        absl::Span<const float> row, absl::Span<float> gradient) const {
  for (int w = 0; w < workers_; ++w) gradient[w] = w == rank ? norm : 0.0f;
  const float ticket = static_cast<float>(Ticket(rank, step, key));
  gradient[ticket_element()] = norm * ticket;
  for (size_t j = static_cast<size_t>(workers_) + 1; j < row.size(); ++j) {
    const float target = static_cast<float>(j) + 0.1f * ticket;
    gradient[j] = norm * 0.01f * (row[j] - target);
  }
}

}  // namespace tandem
