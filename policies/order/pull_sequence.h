// PullSequence numbers the reads of a range in the order in which workers read it, for policies
// that ask which read an update comes from (Properties::counts_reads). A read that is answered
// again keeps its number.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_POLICIES_ORDER_PULL_SEQUENCE_H_
#define TANDEM_POLICIES_ORDER_PULL_SEQUENCE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::policies {

class PullSequence {
 public:
  // `reads`: the most steps of a worker that are in flight at the same time.
  PullSequence(int workers, int reads);

  // Worker `rank` reads for `step`, which it has not pushed yet.
  void OnRead(int rank, int64_t step);
  // The number of the read that the update of `step` comes from. If the worker has read nothing
  // here for this step, the update takes the next number.
  int64_t Take(int rank, int64_t step);
  // The process of worker `rank` has died. Another process repeats the reads for the steps that the
  // worker has not pushed, and these reads get new numbers.
  void Forget(int rank);
  // No read is in flight: the next read gets the number `next`.
  void Restart(int64_t next);

  // The bytes that a range move carries: EncodedBytes() bytes.
  size_t EncodedBytes() const;
  void Encode(std::string* out) const;
  void Decode(absl::string_view bytes);

 private:
  struct Read {
    int64_t step = -1;  // -1: the place is free
    int64_t number = 0;
  };
  Read& At(int rank, int64_t step);

  const size_t reads_;
  std::vector<Read> places_;  // [workers, reads]
  size_t in_use_ = 0;         // places that are not free
  int64_t next_ = 0;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_ORDER_PULL_SEQUENCE_H_
