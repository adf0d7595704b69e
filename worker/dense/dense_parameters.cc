#include "worker/dense/dense_parameters.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/dense/replica_digests.h"

namespace tandem::worker {

namespace {

std::vector<collectives::Piece> PlacesOf(absl::Span<const server::CheckpointParameter> parameters) {
  std::vector<collectives::Piece> places;
  int64_t offset = 0;
  for (const server::CheckpointParameter& parameter : parameters) {
    int64_t size = 1;
    for (const int64_t extent : parameter.shape) size *= extent;
    places.push_back({offset, size});
    offset += size;
  }
  return places;
}

std::vector<optim::MatrixPlace> MatricesOf(absl::Span<const server::CheckpointParameter> parameters,
                                           absl::Span<const collectives::Piece> places) {
  std::vector<optim::MatrixPlace> matrices;
  for (size_t i = 0; i < places.size(); ++i) {
    const std::vector<int64_t>& shape = parameters[i].shape;
    if (shape.size() != 2 || places[i].count == 0) continue;
    matrices.push_back({places[i].begin, shape[0], shape[1]});
  }
  return matrices;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseParameters>> DenseParameters::New(
    const Optimizer& optimizer, int64_t count,
    absl::Span<const server::CheckpointParameter> parameters) {
  if (optimizer.kind() == Optimizer::MUON && parameters.empty() && count > 0) {
    return absl::InvalidArgumentError(
        "dense.optimizer.kind: MUON needs the shapes of the parameters, and this model has none; "
        "use ADAMW");
  }
  std::vector<collectives::Piece> places = PlacesOf(parameters);
  TANDEM_ASSIGN_OR_RETURN(
      auto row_optimizer,
      optim::NewRowOptimizer(optimizer, /*program_slots=*/0, MatricesOf(parameters, places)));
  if (places.empty()) places.push_back({0, count});
  TANDEM_ASSIGN_OR_RETURN(auto schedule, optim::Schedule::New(optimizer.schedule()));
  return std::unique_ptr<DenseParameters>(
      new DenseParameters(std::move(row_optimizer), std::move(schedule), std::move(places),
                          optimizer.kind() == Optimizer::PROGRAM, count));
}

DenseParameters::DenseParameters(std::unique_ptr<optim::RowOptimizer> optimizer,
                                 std::unique_ptr<optim::Schedule> schedule,
                                 std::vector<collectives::Piece> parameters, bool is_program,
                                 int64_t count)
    : optimizer_(std::move(optimizer)),
      schedule_(std::move(schedule)),
      count_(count),
      slots_per_block_(optimizer_->slots_per_row(job::kDenseBlockFloats)),
      parameters_(std::move(parameters)),
      is_program_(is_program) {
  const int64_t blocks = (count + job::kDenseBlockFloats - 1) / job::kDenseBlockFloats;
  kept_ = {0, blocks};
  values_.assign(static_cast<size_t>(blocks * job::kDenseBlockFloats), 0.0f);
  slots_.assign(static_cast<size_t>(blocks * slots_per_block_), 0.0f);
  for (int64_t b = 0; b < blocks; ++b) {
    block_keys_.push_back(static_cast<uint64_t>(b));
    value_rows_.push_back(values_.data() + b * job::kDenseBlockFloats);
    slot_rows_.push_back(slots_.data() + b * slots_per_block_);
    optimizer_->InitSlots(job::kDenseBlockFloats,
                          {slot_rows_.back(), static_cast<size_t>(slots_per_block_)});
  }
}

void DenseParameters::set_program(Program program) { program_ = std::move(program); }

uint64_t DenseParameters::Digest() const { return digest_ ? digest_() : DigestOf(values()); }

void DenseParameters::Apply(absl::Span<const float> padded_gradient, float factor,
                            int64_t sample_clock) {
  if (is_program_) {
    TANDEM_CHECK(program_ != nullptr);
    return program_(padded_gradient, factor);
  }
  const auto first = static_cast<size_t>(kept_.begin), blocks = static_cast<size_t>(kept_.count);
  all_slots_.clear();
  optim::OptimizerStep step;
  if (schedule_ != nullptr) step.rate = schedule_->FactorAt(sample_clock);
  optimizer_->Apply(
      job::kDenseBlockFloats, factor, step,
      padded_gradient.subspan(first * job::kDenseBlockFloats, blocks * job::kDenseBlockFloats),
      absl::MakeSpan(value_rows_).subspan(first, blocks), slot_rows_);
}

void DenseParameters::KeepSlotsOf(collectives::Piece blocks) {
  TANDEM_CHECK(kept_.count == this->blocks());  // called once
  const auto first = slots_.begin() + blocks.begin * slots_per_block_;
  slots_ = std::vector<float>(first, first + blocks.count * slots_per_block_);
  kept_ = blocks;
  slot_rows_.clear();
  for (int64_t b = 0; b < blocks.count; ++b) {
    slot_rows_.push_back(slots_.data() + b * slots_per_block_);
  }
}

std::vector<float> DenseParameters::RowsWithSlots() const {
  std::vector<float> rows;
  rows.reserve(values_.size() + slots_.size());
  for (size_t b = 0; b < block_keys_.size(); ++b) {
    rows.insert(rows.end(), value_rows_[b], value_rows_[b] + job::kDenseBlockFloats);
    rows.insert(rows.end(), slot_rows_[b], slot_rows_[b] + slots_per_block_);
  }
  return rows;
}

absl::Status DenseParameters::SetRowsWithSlots(absl::Span<const float> rows) {
  if (rows.size() != values_.size() + slots_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dense parameters: ", rows.size(), " floats, expected ", values_.size() + slots_.size()));
  }
  const float* at = rows.data();
  for (size_t b = 0; b < block_keys_.size(); ++b) {
    std::copy_n(at, job::kDenseBlockFloats, value_rows_[b]);
    std::copy_n(at + job::kDenseBlockFloats, slots_per_block_, slot_rows_[b]);
    at += row_floats();
  }
  return absl::OkStatus();
}

std::string DenseParameters::EncodeFile() const {
  server::RangeImage image;
  image.table = job::kDenseTableName;
  image.dim = job::kDenseBlockFloats;
  image.slots_per_row = slots_per_block_;
  image.optimizer = optimizer_->name();
  image.keys = block_keys_;
  image.weights = values_to_checkpoint_.empty() ? values_ : values_to_checkpoint_;
  image.slots = all_slots_.empty() ? slots_ : all_slots_;
  return server::EncodeRange(image);
}

absl::Status DenseParameters::Load(const server::RangeImage& image) {
  if (image.table != job::kDenseTableName || image.keys != block_keys_ ||
      image.weights.size() != values_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dense file of table \"", image.table, "\" with ", image.keys.size(),
        " blocks; the model has ", block_keys_.size(), "; does the file belong to another model?"));
  }
  std::copy(image.weights.begin(), image.weights.end(), values_.begin());
  // slots keep their initial values
  if (image.optimizer != optimizer_->name()) return absl::OkStatus();
  if (image.slots.size() != slots_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("dense file has ", image.slots.size(),
                                                   " floats of optimizer state, expected ",
                                                   slots_.size()));
  }
  std::copy(image.slots.begin(), image.slots.end(), slots_.begin());
  return absl::OkStatus();
}

void DenseParameters::ForgetUpdatesInFlight() {
  if (!optimizer_->settles()) return;
  const std::vector<float> loaded = values_, none(values_.size());
  optimizer_->Apply(job::kDenseBlockFloats, 0, {.settles = true}, none, value_rows_, slot_rows_);
  std::copy(loaded.begin(), loaded.end(), values_.begin());
}

}  // namespace tandem::worker
