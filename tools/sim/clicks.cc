#include "tools/sim/clicks.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "tools/sim/last_tenth.h"

namespace tandem::sim {
namespace {

// The bias of the planted logits, and the standard deviations of the parts that come from the ids
// of a sample, from pairs of ids, and from its numbers.
constexpr double kBias = -1, kOfIds = 1, kOfPairs = 0.5, kOfNumbers = 1;

std::vector<double> ZipfWeights(int64_t ids, double skew) {
  std::vector<double> weights(static_cast<size_t>(ids));
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = std::pow(static_cast<double>(i) + 1, -skew);
  }
  return weights;
}

uint64_t SeedOf(uint64_t seed, const char* what, uint64_t a, uint64_t b) {
  return HashCombine(HashCombine(seed, HashName(what)), HashCombine(a, b));
}

double Sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

// -p log q - (1 - p) log(1 - q) with the probability q of the logit z.
double LossOf(double p, double z) {
  return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))) - p * z;
}

}  // namespace

ClickModel::ClickModel(const job::ResolvedJob& plan, const ClickOptions& options)
    : options_(options),
      batch_(plan.job.train().batch_size()),
      draw_(ZipfWeights(options.ids, options.skew)) {
  for (const job::TablePlan& table : plan.tables) {
    if (table.of_model()) tables_.push_back({table.id, static_cast<size_t>(table.dim)});
  }
  double factors = 0;  // number of products of two factors in a sample
  const double pairs = 0.5 * options_.fields * (options_.fields - 1);
  for (const Table& table : tables_) factors += pairs * static_cast<double>(table.dim - 1);
  const double fields = static_cast<double>(tables_.size()) * options_.fields;
  single_ = kOfIds / std::sqrt(std::max(1.0, fields));
  factor_ = std::sqrt(kOfPairs / std::sqrt(std::max(1.0, factors)));
  Random random(SeedOf(options_.seed, "planted numbers", 0, 0));
  dense_.push_back(static_cast<float>(kBias));
  const double scale = kOfNumbers / std::sqrt(std::max<double>(1, options_.dense - 1));
  for (int64_t i = 1; i < options_.dense; ++i) {
    dense_.push_back(static_cast<float>(scale * random.Normal()));
  }
}

void ClickModel::Planted(uint32_t table, uint64_t key, absl::Span<float> row) const {
  Random random(SeedOf(options_.seed, "planted row", table, key));
  for (size_t e = 0; e < row.size(); ++e) {
    row[e] = static_cast<float>((e == 0 ? single_ : factor_) * random.Normal());
  }
}

// One stream of random numbers serves the whole batch, so a seed gives other batches if the order
// of the draws changes. The labels come last, because they depend on the logits of all tables.
void ClickModel::FillBatch(int rank, int64_t step, data::Batch* batch,
                           std::vector<double>* truth) const {
  Random random(
      SeedOf(options_.seed, "sample", static_cast<uint64_t>(rank), static_cast<uint64_t>(step)));
  const auto samples = static_cast<size_t>(batch_);
  batch->Clear();
  batch->samples = batch_;
  batch->numeric = static_cast<int>(options_.dense - 1);
  batch->numbers.resize(samples * static_cast<size_t>(batch->numeric));
  for (float& number : batch->numbers) number = static_cast<float>(random.Normal());
  batch->sparse.resize(tables_.size());
  truth->assign(samples, 0);
  AddDense(*batch, dense_, truth);
  std::unordered_map<uint64_t, uint32_t> places;
  std::vector<float> rows;
  std::vector<const float*> at;
  for (size_t t = 0; t < tables_.size(); ++t) {
    data::SparseInput& input = batch->sparse[t];
    input = data::SparseInput();
    input.table = tables_[t].id;
    input.fields = options_.fields;
    places.clear();
    for (size_t cell = 0; cell < samples * static_cast<size_t>(options_.fields); ++cell) {
      const uint64_t field = cell % static_cast<size_t>(options_.fields);
      const uint64_t key =
          1 + field * static_cast<uint64_t>(options_.ids) + draw_.Draw(random.Next64());
      const auto [place, added] = places.try_emplace(key, static_cast<uint32_t>(input.keys.size()));
      if (added) input.keys.push_back(key);
      input.index.push_back(place->second);
    }
    const size_t dim = tables_[t].dim;
    rows.resize(input.keys.size() * dim);
    at.resize(input.keys.size());
    for (size_t k = 0; k < at.size(); ++k) {
      at[k] = rows.data() + k * dim;
      Planted(input.table, input.keys[k], absl::MakeSpan(rows).subspan(k * dim, dim));
    }
    AddRows(input, dim, at, truth);
  }
  batch->labels.resize(samples);
  for (size_t s = 0; s < samples; ++s) {
    batch->labels[s] = random.Bernoulli(Sigmoid((*truth)[s])) ? 1.0f : 0.0f;
  }
}

void ClickModel::AddDense(const data::Batch& batch, absl::Span<const float> dense,
                          std::vector<double>* logits) {
  const auto numeric = static_cast<size_t>(batch.numeric);
  for (size_t s = 0; s < logits->size(); ++s) {
    double sum = dense[0];
    for (size_t i = 0; i < numeric; ++i) {
      sum += double{dense[1 + i]} * batch.numbers[s * numeric + i];
    }
    (*logits)[s] += sum;
  }
}

// The sum of the products of all pairs is half of (the square of the sum minus the sum of
// the squares).
void ClickModel::AddRows(const data::SparseInput& input, size_t dim,
                         absl::Span<const float* const> rows, std::vector<double>* logits) {
  const auto fields = static_cast<size_t>(input.fields);
  for (size_t s = 0; s < logits->size(); ++s) {
    const uint32_t* const cells = input.index.data() + s * fields;
    double logit = 0;
    for (size_t e = 0; e < dim; ++e) {
      double sum = 0, squares = 0;
      for (size_t f = 0; f < fields; ++f) {
        const double value = rows[cells[f]][e];
        sum += value;
        squares += value * value;
      }
      logit += e == 0 ? sum : (sum * sum - squares) / 2;
    }
    (*logits)[s] += logit;
  }
}

void ClickModel::DenseGradient(const data::Batch& batch, absl::Span<const double> errors,
                               absl::Span<float> gradient) {
  const auto numeric = static_cast<size_t>(batch.numeric);
  for (size_t i = 0; i <= numeric; ++i) {
    double sum = 0;
    for (size_t s = 0; s < errors.size(); ++s) {
      sum += i == 0 ? errors[s] : errors[s] * batch.numbers[s * numeric + i - 1];
    }
    gradient[i] = static_cast<float>(sum);
  }
}

void ClickModel::RowGradients(const data::SparseInput& input, size_t dim,
                              absl::Span<const double> errors, absl::Span<const float* const> rows,
                              absl::Span<float* const> gradients) {
  const auto fields = static_cast<size_t>(input.fields);
  for (float* const gradient : gradients) std::fill_n(gradient, dim, 0.0f);
  for (size_t s = 0; s < errors.size(); ++s) {
    const uint32_t* const cells = input.index.data() + s * fields;
    for (size_t e = 0; e < dim; ++e) {
      double sum = 0;
      for (size_t f = 0; f < fields && e > 0; ++f) sum += rows[cells[f]][e];
      for (size_t f = 0; f < fields; ++f) {
        const double slope = e == 0 ? 1 : sum - rows[cells[f]][e];
        gradients[cells[f]][e] += static_cast<float>(errors[s] * slope);
      }
    }
  }
}

// ---- a worker ---------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<worker::TaskRunner>> ClickRunner::New(
    const job::ResolvedJob& plan, int rank, std::shared_ptr<const ClickModel> model,
    ClickLosses* losses) {
  TANDEM_ASSIGN_OR_RETURN(auto dense, worker::DenseParameters::New(plan.job.dense().optimizer(),
                                                                   model->options().dense));
  return std::unique_ptr<worker::TaskRunner>(
      new ClickRunner(plan, rank, std::move(model), losses, std::move(dense)));
}

absl::Status ClickRunner::NoTest() {
  return absl::UnimplementedError("a click model has no rows to evaluate on: all are new");
}

absl::Status ClickRunner::Fetch(worker::StepSlot* slot) {
  if (slot->epoch != epoch_) fetched_ = 0;
  epoch_ = slot->epoch;
  if (fetched_ >= model_->options().steps) {
    slot->batch.Clear();
    slot->batch.sparse.clear();
    return absl::OkStatus();
  }
  // Counts the worker's own batches, because policies do not change this number.
  const int64_t sample = epoch_ * model_->options().steps + fetched_++;
  model_->FillBatch(rank_, sample, &slot->batch, &truth_[slot]);
  return absl::OkStatus();
}

absl::Status ClickRunner::Compute(worker::StepSlot* slot) {
  const data::Batch& batch = slot->batch;
  const size_t count = static_cast<size_t>(dense_->count());
  const absl::Span<const float> dense =
      slot->dense.empty() ? dense_->values() : absl::MakeConstSpan(slot->dense).first(count);
  logits_.assign(static_cast<size_t>(batch.samples), 0);
  ClickModel::AddDense(batch, dense, &logits_);
  for (size_t i = 0; i < batch.sparse.size(); ++i) {
    const size_t dim = static_cast<size_t>(plan_.tables[batch.sparse[i].table].dim);
    ClickModel::AddRows(batch.sparse[i], dim, slot->rows[i].at(), &logits_);
  }
  errors_.resize(logits_.size());
  slot->loss_sum = 0;
  for (size_t s = 0; s < logits_.size(); ++s) {
    errors_[s] = Sigmoid(logits_[s]) - batch.labels[s];
    slot->loss_sum += LossOf(batch.labels[s], logits_[s]);
  }
  for (size_t i = 0; i < batch.sparse.size(); ++i) {
    const size_t dim = static_cast<size_t>(plan_.tables[batch.sparse[i].table].dim);
    ClickModel::RowGradients(batch.sparse[i], dim, errors_, slot->rows[i].at(), slot->gradients[i]);
    slot->rows[i].Clear();
  }
  std::fill(slot->dense_gradient.begin(), slot->dense_gradient.end(), 0.0f);
  ClickModel::DenseGradient(batch, errors_, absl::MakeSpan(slot->dense_gradient).first(count));
  Note(slot->step, truth_.at(slot));
  return absl::OkStatus();
}

void ClickRunner::Note(int64_t step, absl::Span<const double> truth) {
  const bool first = computed_ == 0;
  const bool last = InLastTenth(plan_, model_->options().steps, ++computed_, step);
  for (size_t s = 0; s < truth.size() && (first || last); ++s) {
    const double p = Sigmoid(truth[s]);
    const ClickLosses::Mean one = {LossOf(p, logits_[s]), LossOf(p, truth[s]), 1};
    for (ClickLosses::Mean* const mean : {&losses_->first, &losses_->last}) {
      if (!(mean == &losses_->first ? first : last)) continue;
      mean->loss += one.loss;
      mean->least += one.least;
      ++mean->samples;
    }
  }
}

}  // namespace tandem::sim
