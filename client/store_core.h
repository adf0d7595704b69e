// StoreCore reads and writes rows of KEY_VALUE tables: a deterministic state machine beside
// ClientCore. Requests and frames from shards go in; frames and completions come out.
//
// A request is cut into pieces, one for each range. A piece travels in a frame of its own until it
// is answered. After silence or a lost connection the piece is sent again; when its range has
// moved, it goes to the new owner. A client numbers its writes to a range and has one of them in
// flight at a time. So each write counts once, in the order of the calls
// (server/rows/row_writes.h). Reads are sent at once.
//
// Thread safety: none; one thread at a time.
#ifndef TANDEM_CLIENT_STORE_CORE_H_
#define TANDEM_CLIENT_STORE_CORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "client/client_core.h"
#include "job/job.h"
#include "proto/frame.h"
#include "proto/outgoing.h"
#include "proto/range_map.h"

namespace tandem::client {

// Rows of one range of a table, starting at a cursor.
struct ScanPage {
  std::vector<uint64_t> keys;
  std::vector<float> rows;  // [keys, row floats]
  uint64_t next = 0;        // the cursor of the next page; 0: the range has no more
  uint64_t ranges = 0;      // number of ranges of the table
};

struct StoreRequest {
  uint32_t table = 0;
  StoreAction action = StoreAction::kRead;
  // For all actions except SCAN: at most kMaxStoreRows keys. A repeated key counts once for each
  // place, in order.
  absl::Span<const uint64_t> keys;
  absl::Span<const float> values;  // ASSIGN, INSERT: [keys, row floats]
  // Where answers go; valid until the request is done or cancelled.
  absl::Span<float> rows;  // READ: [keys, row floats]; absent rows stay as they are
  // READ, INSERT, ERASE: [keys], 1: the key existed, was inserted, was erased; otherwise 0.
  absl::Span<uint8_t> found;
  uint64_t range = 0;   // SCAN: number in the table, from 0; past the last range there are no rows
  uint64_t cursor = 0;  // SCAN: 0, or `next` of the page before
  uint64_t wanted = 0;  // SCAN: about how many rows
  ScanPage* page = nullptr;  // SCAN
};

class StoreCore {
 public:
  struct Completion {
    uint64_t request = 0;
    absl::Status status;
  };

  // `plan` and `buffers` must outlive the core. Only the times of the options are used.
  StoreCore(const job::ResolvedJob& plan, EndpointId self, uint64_t incarnation,
            BufferSource& buffers, const ClientCore::Options& options);

  // Takes a newer view; older views are ignored. Requests need a view.
  void OnView(absl::Time now, std::shared_ptr<const RangeMap> view);
  // Requires: a request that Client::Check accepts. Start copies keys and values.
  uint64_t Start(absl::Time now, const StoreRequest& request);
  // Forgets a request. A write in flight counts at most once, and never after a later write of this
  // client to the same range.
  void Cancel(absl::Time now, uint64_t request);

  void OnFrame(absl::Time now, const ParsedFrame& frame);  // a STORED frame
  void OnTick(absl::Time now);
  void OnLost(absl::Time now, EndpointId shard, absl::string_view why);

  // Queues for the caller: take what is there and clear them.
  std::vector<Outgoing>& out() { return out_; }
  std::vector<Completion>& completions() { return completions_; }
  std::string Waiting(absl::Time now, uint64_t request) const;

 private:
  struct Call {
    StoreRequest request;
    size_t open = 0;  // pieces without an answer
    absl::Time started;
  };
  struct Piece {
    uint64_t call = 0;
    uint32_t range = 0;
    StoreAction action = StoreAction::kRead;
    std::vector<uint32_t> source;  // for each key its place in the request
    Buffer keys, values;
    int64_t write = 0;  // the number of the write
    bool sent = false;
    EndpointId to;
    Frame frame;
    ResendClock clock;          // starts anew when the piece is sent
    absl::Time next;            // when the piece is sent
    uint32_t refused_view = 0;  // view of a shard that refused the piece
  };
  struct Writes {  // writes of this client to one range
    int64_t numbered = 0;
    std::deque<uint64_t> pieces;  // only the first one is in flight
  };
  using Pieces = std::map<uint64_t, Piece>;  // by number, which is also the frame's number

  std::map<uint32_t, Piece> Cut(const StoreRequest& request);
  void Send(absl::Time now, uint64_t number, Piece* piece);
  absl::Status Take(const ParsedFrame& frame, const Piece& piece, const Call& call) const;
  void EndPiece(absl::Time now, Pieces::iterator piece);
  void Finish(absl::Time now, uint64_t call, absl::Status status);

  const job::ResolvedJob& plan_;
  const EndpointId self_;
  const uint64_t incarnation_;
  BufferSource& buffers_;
  const ClientCore::Options options_;
  const ResendTimes times_;
  std::shared_ptr<const RangeMap> map_;
  uint64_t next_number_ = 1;  // next number of a request or piece
  std::map<uint64_t, Call> calls_;
  Pieces pieces_;
  ResendLine line_;  // pieces in flight
  PauseWatch pauses_;
  std::map<uint32_t, Writes> writes_;  // by range
  std::vector<Outgoing> out_;
  std::vector<Completion> completions_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_STORE_CORE_H_
