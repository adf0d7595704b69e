// The number of each read of a range, in the order in which workers read it: for policies that ask
// which read an update comes from (Properties::counts_reads). A read that is answered again keeps its
// number.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_READ_NUMBERS_H_
#define TANDEM_SERVER_READ_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::server {

class ReadNumbers {
 public:
  // At most `reads` steps of each worker are under way at a time.
  ReadNumbers(int workers, int reads);

  // Worker `rank` reads for `step`, which it has not pushed yet.
  void OnRead(int rank, int64_t step);
  // The number of the read that the update of `step` comes from. One that read nothing here takes the
  // next number.
  int64_t Take(int rank, int64_t step);
  // No read is under way: the next one has this number.
  void Restart(int64_t next);

  // What a range move carries, EncodedBytes() of it.
  size_t EncodedBytes() const;
  void Encode(std::string* out) const;
  void Decode(absl::string_view bytes);

 private:
  struct Read {
    int64_t step = -1;  // -1: a place that is free
    int64_t number = 0;
  };
  Read& At(int rank, int64_t step);

  const size_t reads_;
  std::vector<Read> places_;  // [workers, reads]
  int64_t next_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_READ_NUMBERS_H_
