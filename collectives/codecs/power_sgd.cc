#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "collectives/codecs/codec.h"

namespace tandem::collectives {
namespace {

// A column counts as zero if its length shrinks to less than this share of its former length.
constexpr double kNothing = 1e-7;

class PowerSgdCodec final : public GradientCodec {
 public:
  PowerSgdCodec(int rank, uint64_t seed) : wanted_(static_cast<size_t>(rank)), seed_(seed) {}
  absl::string_view name() const override { return "PowerSGD"; }
  bool linear() const override { return true; }

  absl::Status Sum(Group& group, absl::Span<const float> mine, absl::Span<float> sum,
                   absl::Span<float> sent) override {
    if (mine.empty()) return absl::OkStatus();
    if (mine.size() != count_) Shape(mine.size());
    Multiply(mine);
    TANDEM_RETURN_IF_ERROR(SumOver(group, &p_));
    Orthonormalise();
    MultiplyTransposed(mine);
    Product(sent);  // with this rank's own Q
    TANDEM_RETURN_IF_ERROR(SumOver(group, &q_));
    Product(sum);
    Renew();
    return absl::OkStatus();
  }

  // Format: u64 count, Q.
  std::string State() const override {
    if (count_ == 0) return "";
    const uint64_t count = count_;
    std::string state(reinterpret_cast<const char*>(&count), sizeof count);
    state.append(reinterpret_cast<const char*>(q_.data()), q_.size() * sizeof(float));
    return state;
  }

  absl::Status SetState(absl::string_view state) override {
    if (state.empty()) return absl::OkStatus();
    uint64_t count = 0;
    if (state.size() >= sizeof count) std::memcpy(&count, state.data(), sizeof count);
    if (count == 0 || count > kMaxCount) {
      return absl::DataLossError(absl::StrCat("PowerSGD: the state has an invalid count, ", count));
    }
    Shape(static_cast<size_t>(count));
    state.remove_prefix(sizeof count);
    if (state.size() != q_.size() * sizeof(float)) {
      return absl::DataLossError(absl::StrCat("PowerSGD: Q has ", state.size(), " bytes, expected ",
                                              q_.size() * sizeof(float)));
    }
    std::memcpy(q_.data(), state.data(), state.size());
    return absl::OkStatus();
  }

 private:
  static constexpr uint64_t kMaxCount = uint64_t{1} << 40;

  // M is [n, m]; its last row is padded with zeros. The columns of P [n, rank] and of Q [m, rank]
  // are stored one after the other.
  void Shape(size_t count) {
    count_ = count;
    m_ = static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(count))));
    n_ = (count + m_ - 1) / m_;
    rank_ = std::min(wanted_, std::min(n_, m_));
    p_.assign(n_ * rank_, 0);
    q_.resize(m_ * rank_);
    Random random(seed_);
    for (float& x : q_) x = static_cast<float>(random.Normal());
  }

  // Refills columns of Q that are zero with random numbers: a zero column would stay zero forever.
  // All ranks hold the same Q, so they fill in the same numbers.
  void Renew() {
    for (size_t c = 0; c < rank_; ++c) {
      float* const column = &q_[c * m_];
      if (std::any_of(column, column + m_, [](float x) { return x != 0; })) continue;
      Random random(HashCombine(seed_, c));
      for (size_t j = 0; j < m_; ++j) column[j] = static_cast<float>(random.Normal());
    }
  }

  static absl::Status SumOver(Group& group, std::vector<float>* v) {
    return group.Wait(group.AllReduce(v->data(), v->data(), static_cast<int64_t>(v->size()),
                                      DataType::kF32, ReduceOp::kSum));
  }

  absl::Span<const float> Row(absl::Span<const float> matrix, size_t i) const {
    return matrix.subspan(i * m_, m_);  // the last row may be shorter
  }

  // P = M Q.
  void Multiply(absl::Span<const float> matrix) {
    for (size_t i = 0; i < n_; ++i) {
      const absl::Span<const float> row = Row(matrix, i);
      for (size_t c = 0; c < rank_; ++c) {
        const float* const q = &q_[c * m_];
        float dot = 0;
        for (size_t j = 0; j < row.size(); ++j) dot += row[j] * q[j];
        p_[c * n_ + i] = dot;
      }
    }
  }

  // Q = M^T P.
  void MultiplyTransposed(absl::Span<const float> matrix) {
    std::fill(q_.begin(), q_.end(), 0.0f);
    for (size_t i = 0; i < n_; ++i) {
      const absl::Span<const float> row = Row(matrix, i);
      for (size_t c = 0; c < rank_; ++c) {
        float* const q = &q_[c * m_];
        const float p = p_[c * n_ + i];
        for (size_t j = 0; j < row.size(); ++j) q[j] += row[j] * p;
      }
    }
  }

  // Makes the columns of P orthonormal, by modified Gram-Schmidt. A column that is only a
  // combination of the columns before becomes zero. All ranks hold the same P, and get equal bits.
  void Orthonormalise() {
    for (size_t c = 0; c < rank_; ++c) {
      float* const column = &p_[c * n_];
      const double before = std::sqrt(Dot(column, column));
      // Do it twice. If a column is nearly a combination of those before, the little that the first
      // pass leaves is mostly rounding error, which is not orthogonal to them.
      for (size_t b = 0; b < 2 * c; ++b) {
        const float* const before_it = &p_[b % c * n_];
        const auto along = static_cast<float>(Dot(column, before_it));
        for (size_t i = 0; i < n_; ++i) column[i] -= along * before_it[i];
      }
      const double length = std::sqrt(Dot(column, column));
      const double factor = length > kNothing * before ? 1 / length : 0;
      for (size_t i = 0; i < n_; ++i) column[i] = static_cast<float>(column[i] * factor);
    }
  }

  double Dot(const float* a, const float* b) const {
    double dot = 0;
    for (size_t i = 0; i < n_; ++i) dot += static_cast<double>(a[i]) * b[i];
    return dot;
  }

  // out = P Q^T.
  void Product(absl::Span<float> out) const {
    std::fill(out.begin(), out.end(), 0.0f);
    for (size_t i = 0; i < n_; ++i) {
      const absl::Span<float> row = out.subspan(i * m_, m_);
      for (size_t c = 0; c < rank_; ++c) {
        const float p = p_[c * n_ + i];
        for (size_t j = 0; j < row.size(); ++j) row[j] += p * q_[c * m_ + j];
      }
    }
  }

  const size_t wanted_;
  const uint64_t seed_;
  size_t count_ = 0, n_ = 0, m_ = 0, rank_ = 0;
  std::vector<float> p_, q_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientCodec>> NewPowerSgdCodec(int rank, uint64_t seed) {
  if (rank < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("PowerSGD: rank ", rank, "; it must be at least 1"));
  }
  return {std::make_unique<PowerSgdCodec>(rank, seed)};
}

}  // namespace tandem::collectives
