// The output of a shard's core: frames to send, records to write, lines for the log.
#ifndef TANDEM_SERVER_SHARD_EFFECTS_H_
#define TANDEM_SERVER_SHARD_EFFECTS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/outgoing.h"
#include "server/record/order_file.h"
#include "server/record/update_record.h"

namespace tandem::server {

struct ShardEffects {
  std::vector<Outgoing> out;
  bool urgent = false;                // `out` holds more than acknowledgements
  std::vector<UpdateRecord> records;  // if the job records staleness
  std::vector<OrderEntry> order;      // if the job records the order of updates
  absl::Status failure;               // not OK: the shard cannot continue; send nothing in `out`
  // Not empty: rows have begun to take the memory that is kept free (MemoryBudget), so the job must
  // end soon. The text is the reason, for users. Given once.
  std::string memory_full;
  std::vector<std::string> log;  // one line each: refused frames, moved ranges

  void Say(Outgoing outgoing) {
    out.push_back(std::move(outgoing));
    urgent = true;
  }
  // Acknowledgements may wait until no more frames have come in. Sending each one at once would
  // delay the pushes behind it.
  bool MustSend() const { return urgent || out.size() >= 16; }
  void ClearOut() {
    out.clear();
    urgent = false;
  }
  void Clear() {
    ClearOut();
    records.clear();
    order.clear();
    memory_full.clear();
    log.clear();
  }
};

// Logs lines about frames from other processes, but only the first kMax lines. Otherwise those
// processes could fill the log.
class PeerLog {
 public:
  static constexpr int kMax = 100;
  void Add(std::string line, ShardEffects* effects) {
    if (lines_ >= kMax) return;
    effects->log.push_back(std::move(line));
    if (++lines_ == kMax) effects->log.push_back("further lines about frames are not logged");
  }

 private:
  int lines_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SHARD_EFFECTS_H_
