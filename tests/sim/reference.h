// The same training as a plain loop: all ranks in turn, rows in a std::unordered_map, no frames,
// ranges, shards, policies or collectives. Rows come and go by COUNT and AGE: each look at a row
// asks how old it is. The loop shares only optim/ and the toy gradient with the system, so what
// agrees with it bit for bit is right for another reason than itself.
#ifndef TANDEM_TESTS_SIM_REFERENCE_H_
#define TANDEM_TESTS_SIM_REFERENCE_H_

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "job/job.h"
#include "optim/fold.h"
#include "optim/optimizer.h"
#include "optim/row_dtype.h"
#include "optim/schedule.h"
#include "tests/round_row.h"
#include "tests/sim/proof/toy_model.h"

namespace tandem {

class Reference {
 public:
  // `delay` as of the policy FIXED_DELAY, for all tables; dense parameters by allreduce have none.
  Reference(const job::ResolvedJob& plan, const ToyModel& model, int64_t delay, int64_t dense_delay)
      : plan_(plan), model_(model) {
    for (const job::TablePlan& table : plan.tables) {
      if (table.dense) continue;
      tables_.emplace_back(table.optimizer, delay).SetRules(table);
    }
    const size_t blocks =
        (static_cast<size_t>(model.options().dense) + job::kDenseBlockFloats - 1) /
        job::kDenseBlockFloats;
    dense_ = std::make_unique<TableState>(plan.job.dense().optimizer(), dense_delay);
    for (size_t b = 0; b < blocks; ++b) {
      std::vector<float>& row = RowOf(*dense_, b, job::kDenseBlockFloats, 0.0f).weights;
      for (size_t j = 0; j < row.size(); ++j) {
        const bool used =
            b * job::kDenseBlockFloats + j < static_cast<size_t>(model.options().dense);
        if (used) row[j] = ToyModel::kFirstCount;
      }
    }
  }

  void Run() {
    int64_t step = 0;
    for (int64_t epoch = 0; epoch < plan_.job.train().epochs(); ++epoch) {
      for (int64_t index = 0;; ++index, ++step) {
        Step(epoch, index, step);
        if (model_.SumOfSamples(epoch, index) == 0) break;
      }
      step += plan_.lockstep ? 1 : 2;  // those that close an epoch
    }
    step_ = step;
    for (TableState& table : tables_) ApplyDownTo(table, 0, step);
    ApplyDownTo(*dense_, 0, step);
    if (!dense_->optimizer->settles()) return;
    const std::vector<float> none(job::kDenseBlockFloats);
    for (auto& [block, row] : dense_->rows) {
      float* const weights = row.weights.data();
      float* const slots = row.slots.data();
      dense_->optimizer->Apply(job::kDenseBlockFloats, 0, {.settles = true}, none, {&weights, 1},
                               {&slots, 1});
    }
  }

  // As read at the end.
  std::vector<float> Row(uint32_t table, uint64_t key) const {
    return Read(tables_[table], key, static_cast<size_t>(plan_.tables[table].dim), step_);
  }
  // Steps so far.
  int64_t step() const { return step_; }
  std::vector<float> Dense() {
    std::vector<float> values;
    for (size_t b = 0; b < dense_->rows.size(); ++b) {
      const std::vector<float>& row = dense_->rows.at(b).weights;
      values.insert(values.end(), row.begin(), row.end());
    }
    values.resize(static_cast<size_t>(model_.options().dense));
    return values;
  }

 private:
  struct RowState {
    std::vector<float> weights, slots;
    optim::RowHead head;
    int64_t updated = 0;  // the step in which it was updated last
  };
  struct Candidate {
    int count = 0;
    int64_t updated = 0;
  };
  struct Gradients {  // of one closed step: by key, in rank order
    int64_t samples = 0;
    int64_t sample_clock = 0;
    std::map<uint64_t, std::vector<std::vector<float>>> of_key;
  };
  struct TableState {
    TableState(const Optimizer& config, int64_t its_delay)
        : optimizer(*optim::NewRowOptimizer(config)),
          schedule(*optim::Schedule::New(config.schedule())),
          delay(its_delay) {}
    float RateAt(int64_t sample_clock) const {
      return schedule == nullptr ? 1.0f : schedule->FactorAt(sample_clock);
    }
    std::unique_ptr<optim::RowOptimizer> optimizer;
    std::unique_ptr<optim::Schedule> schedule;
    int64_t delay;
    int64_t steps = 0;  // of the optimizer
    optim::RowTypes types;
    uint64_t seed = 0;
    std::unordered_map<uint64_t, RowState> rows;
    std::deque<Gradients> queue;

    void SetRules(const job::TablePlan& table) {
      types = table.types;
      seed = table.seed;
      threshold = table.admission.kind() == Admission::COUNT ? table.admission.threshold() : 1;
      within = table.admission.within_versions();
      max_age = table.eviction.versions();
      zeros = table.admission.unadmitted() == Admission::ZERO;
    }
    bool IsThere(uint64_t key, int64_t step) const {
      const auto row = rows.find(key);
      return row != rows.end() && (max_age == 0 || step - row->second.updated <= max_age);
    }
    int threshold = 1;
    int64_t within = 0, max_age = 0;  // 0: no limit
    bool zeros = false;
    std::unordered_map<uint64_t, Candidate> candidates;
  };

  static std::vector<float> Read(const TableState& table, uint64_t key, size_t dim, int64_t step) {
    std::vector<float> read(dim, table.zeros ? 0.0f : ToyModel::kFirstCount);
    if (!table.IsThere(key, step)) return read;
    const RowState& row = table.rows.at(key);
    table.optimizer->CatchUp(static_cast<int>(dim), table.steps, row.weights.data(),
                             row.slots.data(), read.data(), /*out_slots=*/nullptr);
    return read;
  }

  // The row for an update in this step; null: the key is refused.
  RowState* RowForUpdate(TableState& table, uint64_t key, size_t dim, int64_t step) {
    if (!table.IsThere(key, step)) {
      table.rows.erase(key);
      Candidate& candidate = table.candidates[key];
      if (table.within > 0 && step - candidate.updated > table.within) candidate.count = 0;
      candidate.updated = step;
      if (++candidate.count < table.threshold) return nullptr;
      table.candidates.erase(key);
    }
    RowState& row = RowOf(table, key, dim, ToyModel::kFirstCount);
    row.updated = step;
    return &row;
  }

  RowState& RowOf(TableState& table, uint64_t key, size_t dim, float first) {
    const auto [it, fresh] = table.rows.try_emplace(key);
    if (fresh) {
      it->second.weights.assign(dim, first);
      it->second.head = FirstHead(table.types, it->second.weights);
      it->second.slots.resize(
          static_cast<size_t>(table.optimizer->slots_per_row(static_cast<int>(dim))));
      table.optimizer->InitSlots(static_cast<int>(dim), absl::MakeSpan(it->second.slots));
    }
    return it->second;
  }

  void Step(int64_t epoch, int64_t index, int64_t step) {
    const int64_t sum = model_.SumOfSamples(epoch, index);
    const float norm = static_cast<float>(sum);
    // Steps that close an epoch do not move the clock.
    const int64_t clock = trained_steps_ * plan_.job.train().batch_size() * model_.workers();
    if (sum > 0) ++trained_steps_;
    for (TableState& table : tables_) table.queue.push_back({sum, clock, {}});
    dense_->queue.push_back({sum, clock, {}});
    for (int rank = 0; rank < model_.workers(); ++rank) {
      data::Batch batch;
      model_.FillBatch(rank, epoch, index, &batch);
      if (batch.samples == 0) continue;
      for (const data::SparseInput& input : batch.sparse) {
        TableState& table = tables_[input.table];
        for (const uint64_t key : input.keys) {
          const size_t dim = static_cast<size_t>(plan_.tables[input.table].dim);
          const std::vector<float> row = Read(table, key, dim, step);
          std::vector<float> gradient(dim);
          model_.Gradient(rank, step, key, norm, row, absl::MakeSpan(gradient));
          table.queue.back().of_key[key].push_back(std::move(gradient));
        }
      }
      DenseGradient(rank, step, norm);
    }
    for (TableState& table : tables_) ApplyDownTo(table, table.delay, step);
    ApplyDownTo(*dense_, dense_->delay, step);
  }

  void DenseGradient(int rank, int64_t step, float norm) {
    std::vector<float> gradient(dense_->rows.size() * job::kDenseBlockFloats, 0.0f);
    const std::vector<float> values = Dense();
    model_.Gradient(rank, step, ToyModel::kDenseKey, norm, values,
                    absl::MakeSpan(gradient).first(values.size()));
    for (size_t b = 0; b < dense_->rows.size(); ++b) {
      const auto begin = gradient.begin() + static_cast<std::ptrdiff_t>(b * job::kDenseBlockFloats);
      dense_->queue.back().of_key[b].emplace_back(begin, begin + job::kDenseBlockFloats);
    }
  }

  // Applies closed steps, oldest first, until `keep` are left. `now`: the present step.
  void ApplyDownTo(TableState& table, int64_t keep, int64_t now) {
    for (; static_cast<int64_t>(table.queue.size()) > keep; table.queue.pop_front()) {
      const Gradients& step = table.queue.front();
      if (step.samples == 0) continue;
      ++table.steps;
      for (const auto& [key, of_rank] : step.of_key) {
        std::vector<float> sum = of_rank.front();
        for (size_t r = 1; r < of_rank.size(); ++r) {
          optim::FoldAdd(sum.data(), of_rank[r].data(), sum.size());
        }
        RowState* const row = RowForUpdate(table, key, sum.size(), now);
        if (row == nullptr) continue;
        float* const weights = row->weights.data();
        float* const slots = row->slots.data();
        table.optimizer->Apply(static_cast<int>(sum.size()),
                               optim::FoldFactor(static_cast<double>(step.samples)),
                               {.number = table.steps, .rate = table.RateAt(step.sample_clock)},
                               sum, {&weights, 1}, {&slots, 1});
        RoundRow(table.types, *table.optimizer, table.seed, table.steps, key,
                 absl::MakeSpan(row->weights), absl::MakeSpan(row->slots), &row->head);
      }
    }
  }

  const job::ResolvedJob& plan_;
  const ToyModel& model_;
  std::vector<TableState> tables_;
  std::unique_ptr<TableState> dense_;
  int64_t step_ = 0, trained_steps_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_REFERENCE_H_
