#include "worker/dense/quorum_member.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "optim/fold.h"
#include "worker/dense/replica_digests.h"

namespace tandem::worker {

QuorumMember::QuorumMember(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
                           const Options& options)
    : dense_(dense),
      model_(std::move(model)),
      options_(options),
      waiting_(dense.padded().size() + 1),
      summing_(waiting_.size()),
      digests_(static_cast<size_t>(options.ranks)),
      digest_shares_(digests_.size(), 1) {
  const absl::Status taken = SetModel();
  TANDEM_CHECK(taken.ok());
}

absl::Status QuorumMember::SetModel() { return model_->SetRowsWithSlots(dense_.RowsWithSlots()); }

// ---- steps of the worker ------------------------------------------------------------------------

void QuorumMember::BeforeStep() {
  if (std::exchange(sums_read_, sums_) == sums_) return;
  const absl::Span<const float> values = std::as_const(*model_).values();
  std::copy(values.begin(), values.end(), dense_.values().begin());
}

void QuorumMember::Add(absl::Span<float> gradient, const DenseReduction::Step& step) {
  const auto count = static_cast<size_t>(dense_.count());
  TANDEM_CHECK(gradient.size() == waiting_.size());
  gradient[count] = static_cast<float>(step.samples);
  // The first gradient is copied and not added to zeros, because -0 + 0 is +0.
  if (waiting_since_.empty()) {
    std::copy(gradient.begin(), gradient.end(), waiting_.begin());
  } else {
    for (size_t i = 0; i <= count; ++i) waiting_[i] += gradient[i];
  }
  waiting_since_.push_back(sums_read_);
  gradient[count] = 0;  // the element is padding again
}

absl::Status QuorumMember::BecomeModel() {
  sums_read_ = sums_;
  return dense_.SetRowsWithSlots(model_->RowsWithSlots());
}

void QuorumMember::TakeMissed(std::vector<int64_t>* missed) {
  missed->insert(missed->end(), missed_.begin(), missed_.end());
  missed_.clear();
}

// ---- sums ---------------------------------------------------------------------------------------

const DenseReduction::Request& QuorumMember::BeginSum() {
  if (waiting_since_.empty()) {
    std::fill(summing_.begin(), summing_.end(), 0.0f);
  } else {
    summing_.swap(waiting_);
  }
  for (const uint64_t since : waiting_since_) {
    missed_.push_back(static_cast<int64_t>(sums_ - since));
  }
  waiting_since_.clear();
  request_ = DenseReduction::Request();
  request_.count = dense_.count() + 1;
  request_.input = request_.output = summing_.data();
  request_.algorithm = options_.algorithm;
  return request_;
}

void QuorumMember::EndSum() {
  const double samples = std::exchange(summing_[static_cast<size_t>(dense_.count())], 0.0f);
  if (samples > 0) {
    model_->Apply(absl::MakeConstSpan(summing_).first(summing_.size() - 1),
                  optim::FoldFactor(samples));
  }
  ++sums_;
}

const DenseReduction::Request& QuorumMember::BeginCompare() {
  uint64_t& own = digests_[static_cast<size_t>(options_.rank)];
  own = model_->Digest();
  request_ = DenseReduction::Request();
  request_.primitive = collectives::Primitive::kAllGather;
  request_.type = collectives::DataType::kI64;
  request_.counts = digest_shares_;
  request_.input = &own;
  request_.output = digests_.data();
  return request_;
}

absl::Status QuorumMember::EndCompare(int64_t step) const {
  return CompareReplicas(digests_, options_.rank, step);
}

}  // namespace tandem::worker
