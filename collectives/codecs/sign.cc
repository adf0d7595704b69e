#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status_macros.h"
#include "collectives/codecs/codec.h"

namespace tandem::collectives {
namespace {

constexpr size_t kRun = 1024;  // elements that share a scale

size_t Runs(size_t count) { return (count + kRun - 1) / kRun; }

// A code has the scale of each run, then one bit for each element (1: negative).
size_t CodeBytes(size_t count) { return Runs(count) * sizeof(float) + (count + 7) / 8; }

class SignCodec final : public GradientCodec {
 public:
  absl::string_view name() const override { return "sign"; }
  bool linear() const override { return false; }

  // The order matters: `sum` may be the same memory as `mine`, so `mine` is encoded and decoded
  // into `sent` before `sum` is written. `sent` is what the other ranks will decode from this
  // rank's code, so it is decoded from the code itself. All ranks add the codes in rank order, so
  // all get the same bits.
  absl::Status Sum(Group& group, absl::Span<const float> mine, absl::Span<float> sum,
                   absl::Span<float> sent) override {
    const size_t bytes = CodeBytes(mine.size());
    Encode(mine);
    std::fill(sent.begin(), sent.end(), 0.0f);
    AddDecoded(code_.data(), sent);
    all_.resize(bytes * static_cast<size_t>(group.ranks()));
    TANDEM_RETURN_IF_ERROR(group.Wait(
        group.AllGather(code_.data(), all_.data(), static_cast<int64_t>(bytes), DataType::kU8)));
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int r = 0; r < group.ranks(); ++r) {
      AddDecoded(all_.data() + static_cast<size_t>(r) * bytes, sum);
    }
    return absl::OkStatus();
  }

 private:
  // All scales come before the bits in the code, so there are two passes: one over the runs for the
  // scales, one over the elements for the signs.
  void Encode(absl::Span<const float> mine) {
    code_.assign(CodeBytes(mine.size()), 0);
    uint8_t* const bits = code_.data() + Runs(mine.size()) * sizeof(float);
    for (size_t run = 0; run < Runs(mine.size()); ++run) {
      const absl::Span<const float> part = mine.subspan(run * kRun, kRun);
      double magnitude = 0;
      for (const float x : part) magnitude += std::fabs(x);
      const auto scale = static_cast<float>(magnitude / static_cast<double>(part.size()));
      std::memcpy(code_.data() + run * sizeof(float), &scale, sizeof(scale));
    }
    for (size_t i = 0; i < mine.size(); ++i) {
      if (mine[i] < 0) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | (1u << (i % 8)));
    }
  }

  static void AddDecoded(const uint8_t* code, absl::Span<float> to) {
    const uint8_t* const bits = code + Runs(to.size()) * sizeof(float);
    for (size_t run = 0; run < Runs(to.size()); ++run) {
      float scale = 0;
      std::memcpy(&scale, code + run * sizeof(float), sizeof(scale));
      const size_t end = std::min(to.size(), (run + 1) * kRun);
      for (size_t i = run * kRun; i < end; ++i) {
        to[i] += (bits[i / 8] >> (i % 8)) % 2 == 1 ? -scale : scale;
      }
    }
  }

  std::vector<uint8_t> code_, all_;
};

}  // namespace

std::unique_ptr<GradientCodec> NewSignCodec() { return std::make_unique<SignCodec>(); }

}  // namespace tandem::collectives
