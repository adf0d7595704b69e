// The readers of a job: programs without a rank that read rows while it runs (client/session.h).
//
// Readers get views and the end of the job, and nothing else. They send no heartbeats, enter no
// barriers, and may come and go at any time. A reader is identified by its connection.
//
// Thread safety: none needed; part of the scheduler core.
#ifndef TANDEM_SCHEDULER_STATE_READERS_H_
#define TANDEM_SCHEDULER_STATE_READERS_H_

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"

namespace tandem::scheduler {

class Readers {
 public:
  static constexpr size_t kMax = 1024;  // at the same time

  // Adds a reader and returns the number that shards know it by. The same connection gets the same
  // number again; no two connected readers have the same. RESOURCE_EXHAUSTED: there are kMax
  // already.
  absl::StatusOr<int> Add(uint64_t connection);
  // False if the connection is not that of a reader.
  bool Remove(uint64_t connection) { return numbers_.erase(connection) > 0; }
  bool Has(uint64_t connection) const { return numbers_.count(connection) > 0; }

  // Connection -> number.
  const std::map<uint64_t, int>& all() const { return numbers_; }

 private:
  std::map<uint64_t, int> numbers_;
  int next_ = 0;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_READERS_H_
