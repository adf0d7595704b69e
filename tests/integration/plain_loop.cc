#include "tests/integration/plain_loop.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "collectives/reduce.h"
#include "data/batch_source.h"
#include "data/pooling.h"
#include "models/model.h"
#include "optim/fold.h"
#include "optim/initializer.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "tests/round_row.h"
#include "tests/rows_in.h"

namespace tandem {
namespace {

using Gradients = std::unordered_map<uint64_t, std::vector<float>>;

// The gradient sums of one step for one table, added in rank order, and the samples of all workers.
struct Fold {
  Gradients sums;
  int64_t samples = 0;
  int64_t sample_clock = 0;

  void Add(uint64_t key, absl::Span<const float> gradient) {
    const auto [it, first] = sums.try_emplace(key, gradient.begin(), gradient.end());
    if (!first) optim::FoldAdd(it->second.data(), gradient.data(), gradient.size());
  }
};

// One table: rows of weights followed by slots, and the queue of a fixed delay.
class PlainTable {
 public:
  static absl::StatusOr<PlainTable> New(int dim, const Optimizer& config, int64_t delay,
                                        optim::RowTypes types = {}, uint64_t seed = 0) {
    TANDEM_ASSIGN_OR_RETURN(auto optimizer, optim::NewRowOptimizer(config));
    TANDEM_ASSIGN_OR_RETURN(auto schedule, optim::Schedule::New(config.schedule()));
    PlainTable table(dim, std::move(optimizer), std::move(schedule), delay);
    table.types_ = types;
    table.seed_ = seed;
    return table;
  }

  int dim() const { return dim_; }
  const std::unordered_map<uint64_t, std::vector<float>>& rows() const { return rows_; }

  void Load(const std::map<uint64_t, std::vector<float>>& rows) {
    rows_.insert(rows.begin(), rows.end());
  }
  // A row that nobody has seen before gets its initial values from `init`.
  template <typename Init>
  std::vector<float> Read(uint64_t key, Init init) {
    const auto [it, first] = rows_.try_emplace(key);
    std::vector<float>& row = it->second;
    if (first) {
      row.resize(static_cast<size_t>(dim_ + optimizer_->slots_per_row(dim_)));
      const auto weights = absl::MakeSpan(row).first(static_cast<size_t>(dim_));
      init(weights);
      heads_[key] = FirstHead(types_, weights);
      optim::RoundToNearest(types_.row, weights);
      optimizer_->InitSlots(dim_, absl::MakeSpan(row).subspan(static_cast<size_t>(dim_)));
    }
    std::vector<float> read(static_cast<size_t>(dim_));
    optimizer_->CatchUp(dim_, steps_, row.data(), row.data() + dim_, read.data(), nullptr);
    return read;
  }

  void Close(Fold fold) {
    queue_.push_back(std::move(fold));
    while (static_cast<int64_t>(queue_.size()) > delay_) ApplyOldest();
  }
  void Finish() {
    while (!queue_.empty()) ApplyOldest();
  }

 private:
  PlainTable(int dim, std::unique_ptr<optim::RowOptimizer> optimizer,
             std::unique_ptr<optim::Schedule> schedule, int64_t delay)
      : dim_(dim),
        optimizer_(std::move(optimizer)),
        schedule_(std::move(schedule)),
        delay_(delay) {}

  void ApplyOldest() {
    const Fold fold = std::move(queue_.front());
    queue_.pop_front();
    if (fold.samples == 0) return;
    ++steps_;
    const float factor = optim::FoldFactor(static_cast<double>(fold.samples));
    optim::OptimizerStep step = {.number = steps_, .stamp = steps_};
    if (schedule_ != nullptr) step.rate = schedule_->FactorAt(fold.sample_clock);
    for (const auto& [key, gradient] : fold.sums) {
      const absl::Span<float> all = absl::MakeSpan(rows_.at(key));
      float* const row = all.data();
      float* const slots = row + dim_;
      optimizer_->Apply(dim_, factor, step, gradient, {&row, 1}, {&slots, 1});
      RoundRow(types_, *optimizer_, seed_, steps_, key, all.first(static_cast<size_t>(dim_)),
               all.subspan(static_cast<size_t>(dim_)), &heads_[key]);
    }
  }

  int dim_;
  std::unique_ptr<optim::RowOptimizer> optimizer_;
  std::unique_ptr<optim::Schedule> schedule_;
  int64_t delay_;
  std::unordered_map<uint64_t, std::vector<float>> rows_;
  std::unordered_map<uint64_t, optim::RowHead> heads_;
  std::deque<Fold> queue_;
  int64_t steps_ = 0;  // of the optimizer
  optim::RowTypes types_;
  uint64_t seed_ = 0;
};

// The sum of the workers' dense gradients, of what the job lets travel of them: all, or what a
// codec sends, or values rounded to 16 bits. Codecs: TOP_K and SIGN.
class PlainSum {
 public:
  explicit PlainSum(const job::ResolvedJob& plan) : dense_(plan.job.dense()) {
    kept_.resize(static_cast<size_t>(plan.workers()));
    const auto most = static_cast<double>(plan.workers() * plan.job.train().batch_size());
    to_wire_ = std::exp2(-std::round(static_cast<float>(std::log2(most))));
  }

  // `gradients`: by rank, sums over the `samples` of all; empty where there is no data, but not
  // all.
  std::vector<float> operator()(std::vector<std::vector<float>> gradients, int64_t samples) {
    size_t count = 0;
    for (const auto& gradient : gradients) count = std::max(count, gradient.size());
    std::vector<float> sum;
    for (size_t rank = 0; rank < gradients.size(); ++rank) {
      std::vector<float>& gradient = gradients[rank];
      if (dense_.codec().kind() > Codec::NONE) {
        gradient.resize(count);
        Encode(static_cast<double>(samples), &gradient, &kept_[rank]);
      }
      Round(&gradient);
      if (sum.empty()) {
        sum = gradient;
      } else if (!gradient.empty()) {
        optim::FoldAdd(sum.data(), gradient.data(), count);
      }
    }
    Round(&sum);
    return sum;
  }

 private:
  // What is not sent stays in `kept`, as a part of the mean.
  void Encode(double samples, std::vector<float>* gradient, std::vector<double>* kept) const {
    kept->resize(gradient->size());
    std::vector<double> mean(gradient->size());
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = (*gradient)[i] / samples + (*kept)[i];
    const std::vector<double> sent =
        dense_.codec().kind() == Codec::TOP_K ? TopK(mean) : Sign(mean);
    const bool feedback = !dense_.codec().has_error_feedback() || dense_.codec().error_feedback();
    for (size_t i = 0; i < mean.size(); ++i) {
      (*gradient)[i] = static_cast<float>(sent[i] * samples);
      if (feedback) (*kept)[i] = mean[i] - sent[i];
    }
  }

  std::vector<double> TopK(const std::vector<double>& mean) const {
    const double wanted = std::ceil(dense_.codec().fraction() * static_cast<double>(mean.size()));
    std::vector<size_t> order(mean.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return std::fabs(mean[a]) > std::fabs(mean[b]); });
    std::vector<double> sent(mean.size());
    for (size_t i = 0; i < static_cast<size_t>(wanted); ++i) sent[order[i]] = mean[order[i]];
    return sent;
  }

  static std::vector<double> Sign(const std::vector<double>& mean) {
    constexpr size_t kRun = 1024;
    std::vector<double> sent(mean.size());
    for (size_t begin = 0; begin < mean.size(); begin += kRun) {
      const size_t end = std::min(mean.size(), begin + kRun);
      double scale = 0;
      for (size_t i = begin; i < end; ++i) scale += std::fabs(mean[i]);
      scale /= static_cast<double>(end - begin);
      for (size_t i = begin; i < end; ++i) sent[i] = mean[i] < 0 ? -scale : scale;
    }
    return sent;
  }

  void Round(std::vector<float>* values) const {
    if (dense_.wire_dtype() == Dense::F32 || dense_.wire_dtype() == Dense::WIRE_DTYPE_UNSPECIFIED)
      return;
    const collectives::DataType type = dense_.wire_dtype() == Dense::F16
                                           ? collectives::DataType::kF16
                                           : collectives::DataType::kBF16;
    std::vector<uint16_t> narrow(values->size());
    collectives::Narrow(type, *values, to_wire_, narrow.data());
    collectives::Widen(type, narrow.data(), 1 / to_wire_, absl::MakeSpan(*values));
  }

  const Dense& dense_;
  float to_wire_;
  std::vector<std::vector<double>> kept_;  // by rank, per sample
};

class PlainLoop {
 public:
  explicit PlainLoop(const job::ResolvedJob& plan) : plan_(plan), sum_(plan) {}

  absl::StatusOr<PlainLoopResult> Run(const ModelBits& start) {
    TANDEM_RETURN_IF_ERROR(Open());
    Import(start);
    const Train& train = plan_.job.train();
    const int64_t limit =
        train.max_steps() > 0 ? train.max_steps() : std::numeric_limits<int64_t>::max();
    int64_t trained = 0;  // steps with samples
    for (int64_t epoch = 0; epoch < train.epochs() && trained < limit; ++epoch) {
      for (const auto& source : sources_) TANDEM_RETURN_IF_ERROR(source->StartEpoch(epoch));
      has_data_.assign(sources_.size(), true);
      int64_t samples = -1;
      while (samples != 0) {  // a step without any sample ends the epoch, and is a step
        if (trained >= limit) has_data_.assign(sources_.size(), false);
        TANDEM_ASSIGN_OR_RETURN(samples, Step(trained));
        ++result_.steps;
        trained += samples > 0 ? 1 : 0;
        result_.samples += samples;
      }
    }
    for (PlainTable& table : tables_) table.Finish();
    Export();
    return std::move(result_);
  }

 private:
  int64_t Delay(uint32_t group) const {
    const Policy& policy = plan_.groups[group].policy;
    return policy.kind() == Policy::FIXED_DELAY ? policy.delay() : 0;
  }

  absl::Status Open() {
    models::ModelInputs inputs;
    TANDEM_ASSIGN_OR_RETURN(const data::DataShape shape, data::FindDataShape(plan_));
    inputs.numeric = shape.numeric;
    for (size_t t = 0; t < shape.table_fields.size(); ++t) {
      const job::TablePlan& table = plan_.tables[t];
      if (table.dense) continue;  // comes last, below
      inputs.tables.push_back(
          {table.name, static_cast<int>(shape.table_fields[t].size()), table.dim});
      TANDEM_ASSIGN_OR_RETURN(
          PlainTable made,
          PlainTable::New(table.dim, table.optimizer, Delay(table.group), table.types, table.seed));
      tables_.push_back(std::move(made));
    }
    TANDEM_ASSIGN_OR_RETURN(model_,
                            models::NewDenseModel(plan_.job.model(), inputs, /*threads=*/1));
    for (int rank = 0; rank < plan_.workers(); ++rank) {
      TANDEM_ASSIGN_OR_RETURN(auto source, data::NewTrainSource(plan_, rank));
      sources_.push_back(std::move(source));
    }
    return OpenDense();
  }

  // The last table: blocks of the dense parameters, the last one padded with zeros.
  absl::Status OpenDense() {
    const int64_t delay = plan_.dense_table < 0
                              ? 0
                              : Delay(plan_.tables[static_cast<size_t>(plan_.dense_table)].group);
    TANDEM_ASSIGN_OR_RETURN(PlainTable made, PlainTable::New(job::kDenseBlockFloats,
                                                             plan_.job.dense().optimizer(), delay));
    tables_.push_back(std::move(made));
    blocks_ = static_cast<uint64_t>((model_->parameter_count() + job::kDenseBlockFloats - 1) /
                                    job::kDenseBlockFloats);
    initial_values_.resize(blocks_ * job::kDenseBlockFloats);
    models::InitParameters(model_->parameters(), plan_.job.seed(), absl::MakeSpan(initial_values_));
    return absl::OkStatus();
  }

  // One step of all workers, each reading what the step before has left. `trained`: earlier steps
  // with samples. Returns the sum of n.
  absl::StatusOr<int64_t> Step(int64_t trained) {
    std::vector<Fold> folds(tables_.size());
    std::vector<std::vector<float>> dense(sources_.size());  // gradients, by rank
    const std::vector<float> parameters = DenseParametersNow();
    int64_t samples = 0;
    int without_data = 0;
    for (size_t rank = 0; rank < sources_.size(); ++rank) {
      data::Batch batch;
      if (has_data_[rank]) TANDEM_RETURN_IF_ERROR(sources_[rank]->Next(&batch));
      has_data_[rank] = batch.samples > 0;
      without_data += batch.samples == 0 ? 1 : 0;
      if (batch.samples == 0) continue;
      if (batch.samples < plan_.job.train().batch_size()) ++result_.short_batches;
      samples += batch.samples;
      TANDEM_RETURN_IF_ERROR(AddGradients(batch, parameters, &folds, &dense[rank]));
    }
    if (samples > 0) AddDense(sum_(std::move(dense), samples), &folds.back());
    if (samples > 0 && without_data > 0) ++result_.uneven_steps;
    for (size_t t = 0; t < tables_.size(); ++t) {
      folds[t].samples = samples;
      folds[t].sample_clock = trained * plan_.job.train().batch_size() * plan_.workers();
      tables_[t].Close(std::move(folds[t]));
    }
    return samples;
  }

  std::vector<float> DenseParametersNow() {
    std::vector<float> parameters;
    for (uint64_t block = 0; block < blocks_; ++block) {
      const auto first = absl::MakeConstSpan(initial_values_)
                             .subspan(block * job::kDenseBlockFloats, job::kDenseBlockFloats);
      const auto values = tables_.back().Read(block, [&](absl::Span<float> row) {
        std::copy(first.begin(), first.end(), row.begin());
      });
      parameters.insert(parameters.end(), values.begin(), values.end());
    }
    parameters.resize(static_cast<size_t>(model_->parameter_count()));
    return parameters;
  }

  // The rows of all keys of a table's part of a batch.
  std::vector<float> ReadRows(const data::SparseInput& input) {
    const job::TablePlan& plan = plan_.tables[input.table];
    std::vector<float> rows;
    for (const uint64_t key : input.keys) {
      const auto row = tables_[input.table].Read(key, [&](absl::Span<float> weights) {
        optim::InitRow(plan.initializer, plan.seed, key, weights);
      });
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }

  absl::Status AddGradients(const data::Batch& batch, const std::vector<float>& parameters,
                            std::vector<Fold>* folds, std::vector<float>* dense) {
    std::vector<std::vector<float>> cells, cell_gradients;
    for (const data::SparseInput& input : batch.sparse) {
      const int dim = tables_[input.table].dim();
      cells.emplace_back(static_cast<size_t>(batch.samples * input.fields * dim));
      cell_gradients.emplace_back(cells.back().size());
      const std::vector<float> rows = ReadRows(input);
      data::PoolRows(input, dim, RowsIn(rows.data(), input.keys.size(), static_cast<size_t>(dim)),
                     absl::MakeSpan(cells.back()));
    }
    const std::vector<models::PooledRows> pooled(cells.begin(), cells.end());
    std::vector<absl::Span<float>> pooled_gradients;
    for (auto& gradients : cell_gradients) pooled_gradients.push_back(absl::MakeSpan(gradients));
    std::vector<float> logits(static_cast<size_t>(batch.samples));
    dense->resize(parameters.size());
    double loss = 0;
    TANDEM_RETURN_IF_ERROR(model_->ForwardBackward(batch, parameters, pooled,
                                                   absl::MakeSpan(logits), &loss,
                                                   absl::MakeSpan(*dense), pooled_gradients));
    for (size_t i = 0; i < batch.sparse.size(); ++i) {
      AddTable(batch.sparse[i], cell_gradients[i], &(*folds)[batch.sparse[i].table]);
    }
    return absl::OkStatus();
  }

  void AddDense(std::vector<float> sum, Fold* fold) {
    sum.resize(blocks_ * job::kDenseBlockFloats);
    for (uint64_t block = 0; block < blocks_; ++block) {
      fold->Add(block, absl::MakeConstSpan(sum).subspan(block * job::kDenseBlockFloats,
                                                        job::kDenseBlockFloats));
    }
  }

  void AddTable(const data::SparseInput& input, const std::vector<float>& pooled_gradients,
                Fold* fold) {
    const size_t dim = static_cast<size_t>(tables_[input.table].dim());
    std::vector<float> gradients(input.keys.size() * dim);
    data::MergeGradients(input, static_cast<int>(dim), pooled_gradients,
                         RowsIn(gradients.data(), input.keys.size(), dim));
    for (size_t k = 0; k < input.keys.size(); ++k) {
      fold->Add(input.keys[k], absl::MakeConstSpan(gradients).subspan(k * dim, dim));
    }
  }

  std::string NameOf(size_t table) const {
    return table + 1 == tables_.size() ? job::kDenseTableName : plan_.tables[table].name;
  }
  void Import(const ModelBits& start) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (const auto it = start.find(NameOf(t)); it != start.end()) tables_[t].Load(it->second);
    }
  }
  void Export() {
    for (size_t t = 0; t < tables_.size(); ++t) {
      result_.model[NameOf(t)].insert(tables_[t].rows().begin(), tables_[t].rows().end());
    }
  }

  const job::ResolvedJob& plan_;
  std::deque<PlainTable> tables_;  // those of the plan, then the dense blocks
  uint64_t blocks_ = 0;
  std::vector<float> initial_values_;  // of the dense parameters
  std::unique_ptr<models::DenseModel> model_;
  std::vector<std::unique_ptr<data::BatchSource>> sources_;  // by rank
  std::vector<bool> has_data_;                               // in this epoch
  PlainSum sum_;
  PlainLoopResult result_;
};

}  // namespace

absl::StatusOr<PlainLoopResult> RunPlainLoop(const job::ResolvedJob& plan, const ModelBits& start) {
  return PlainLoop(plan).Run(start);
}

}  // namespace tandem
