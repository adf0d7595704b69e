// The read-only clients of a job: programs that read rows while it runs (client/session.h).
//
// They learn of views and of the end like everybody else, and that is all: they have no rank, beat
// for nobody, are in no barrier, and may come and go as they like. A reader is its connection.
//
// Thread safety: none needed; the scheduler core's.
#ifndef TANDEM_SCHEDULER_READERS_H_
#define TANDEM_SCHEDULER_READERS_H_

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"

namespace tandem::scheduler {

class Readers {
 public:
  static constexpr size_t kMost = 1024;  // at a time

  // The number by which shards know the reader; the same again on the same connection. No other one
  // that is connected has it. RESOURCE_EXHAUSTED: there are kMost.
  absl::StatusOr<int> Add(uint64_t connection);
  // False: it was none of them.
  bool Remove(uint64_t connection) { return numbers_.erase(connection) > 0; }
  bool Has(uint64_t connection) const { return numbers_.count(connection) > 0; }

  // Connection -> number.
  const std::map<uint64_t, int>& all() const { return numbers_; }

 private:
  std::map<uint64_t, int> numbers_;
  int next_ = 0;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_READERS_H_
