// BenchCase is one collective with its buffers, for benchmarks, with functions to fill it with
// exact inputs, run it, and check it.
#ifndef TANDEM_TOOLS_BENCH_COLLECTIVE_CASE_H_
#define TANDEM_TOOLS_BENCH_COLLECTIVE_CASE_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/group.h"
#include "tools/bench/collective_bench.h"
#include "tools/bench/exact_pattern.h"

namespace tandem::bench {

absl::string_view BenchName(collectives::Primitive primitive);  // "sendrecv" for point to point

// True if the size is that of all blocks together.
bool InBlocks(collectives::Primitive primitive);

// CountOf: number of elements of a block for a size, at least one. SizeOfCount: the size that this
// many elements make.
int64_t CountOf(const CollectiveBenchOptions& options, int64_t bytes, int ranks);
int64_t SizeOfCount(const CollectiveBenchOptions& options, int64_t count, int ranks);
std::vector<int64_t> BenchSizes(const CollectiveBenchOptions& options);

// True if each message costs system calls, as over TCP.
bool OverKernel(const CollectiveBenchOptions& options);
// The algorithms that `--algorithm` means for this primitive.
std::vector<std::string> AlgorithmNames(const CollectiveBenchOptions& options);
// "ring", with the size of its segments "ring/256K".
std::string ChoiceName(const collectives::AlgorithmChoice& choice);

// Reduces every number over all ranks; all ranks get the result.
absl::Status ReduceNumbers(collectives::Group& group, collectives::ReduceOp op,
                           std::vector<double>* numbers);

// Memory that begins on a page.
class Memory {
 public:
  explicit Memory(int64_t bytes)
      : data_(static_cast<uint8_t*>(std::aligned_alloc(kPage, RoundUp(bytes)))) {}
  uint8_t* data() const { return data_.get(); }

 private:
  static constexpr size_t kPage = 4096;
  static size_t RoundUp(int64_t bytes) { return (static_cast<size_t>(bytes) / kPage + 1) * kPage; }
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> data_;
};

// One collective with its buffers on one rank.
class BenchCase {
 public:
  BenchCase(const CollectiveBenchOptions& options, collectives::Group& group, int64_t count,
            const collectives::AlgorithmChoice& choice, bool in_place);

  void set_choice(const collectives::AlgorithmChoice& choice);
  void Fill();                 // writes the input
  absl::Status Run();          // starts and waits
  int64_t CountWrong() const;  // wrong elements of this rank's output
  // Fill(), Run(), then adds the number of wrong elements on all ranks to *wrong.
  absl::Status CheckedRun(int64_t* wrong);

 private:
  int64_t Bytes(int64_t elements) const {
    return elements * static_cast<int64_t>(collectives::SizeOf(type_));
  }
  void PlaceBuffers();
  absl::StatusOr<collectives::Work> Start();
  absl::StatusOr<collectives::Work> StartSendReceive();
  int64_t WrongReduced(int64_t from) const;
  // Compares block `at` of the output with elements of rank r's pattern, starting at `from`.
  int64_t WrongBlock(int r, int64_t from, int at) const;
  int64_t WrongBlocks(int64_t from) const;

  const CollectiveBenchOptions& options_;
  collectives::Group& group_;
  const int rank_, ranks_;
  const collectives::DataType type_;
  const collectives::ReduceOp op_;
  const int64_t count_;
  const bool in_place_;
  const Memory memory_, second_;
  const ExactPattern own_;
  collectives::CallOptions call_;
  uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
};

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_COLLECTIVE_CASE_H_
