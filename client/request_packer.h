// Cuts the keys of a request into slices, one a range, and makes frames of them. Keys are ordered by
// (owner, range), so that the keys of one frame are one run of bytes, and so are its values: a frame
// is two views of memory that is filled once. Of a table of which each worker has a copy, reads go to
// one copy and pushes to all: the memory is filled once, too, and travels several times.
//
// Thread safety: none; it belongs to the thread of its ClientCore. Not here: which slices travel
// together, and when (client_core.h).
#ifndef TANDEM_CLIENT_REQUEST_PACKER_H_
#define TANDEM_CLIENT_REQUEST_PACKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/buffer.h"
#include "client/client_request.h"
#include "data/batch_builder.h"
#include "job/job.h"
#include "proto/frame.h"
#include "proto/range_map.h"

namespace tandem::client {

class RequestPacker {
 public:
  // `plan` and `buffers` outlive the packer. `copy`: that is read, of tables that have several.
  RequestPacker(const job::JobPlan& plan, uint32_t copy, BufferSource& buffers)
      : plan_(plan), own_copy_(copy), buffers_(buffers) {}

  // Before anything else, and whenever there is a newer one.
  void OnView(std::shared_ptr<const RangeMap> view);
  const RangeMap* map() const { return map_.get(); }  // null before the first view

  // Makes the slices of a request whose header, keys, row_floats and `in_place` are set; a push has
  // one for every range of its group.
  void Cut(ClientRequest* request);
  // Packs all slices of a push in place. at[i][k]: where the gradient of key k of input i goes.
  void PackInPlace(ClientRequest* request, std::vector<std::vector<float*>>* at);
  // Before the first frame of a push: packs it, if a table of it has several copies.
  void PackAheadOfCopies(ClientRequest* request);
  // A frame of these slices. Those that travel for the first time are packed before.
  Frame MakeFrame(ClientRequest* request, uint64_t number, absl::Span<const uint32_t> slices);

 private:
  using Slice = ClientRequest::Slice;
  uint32_t CopyRead(uint32_t table) const { return map_->Copies(table) > 1 ? own_copy_ : 0; }
  void MakeSlices(ClientRequest* request);
  void AddOtherCopies(ClientRequest* request);
  static void AlignFloats(ClientRequest* request);
  void PackSlice(ClientRequest* request, Slice* slice);
  void PackValues(ClientRequest* request, const Slice& slice);
  void GatherParts(const ClientRequest& request, absl::Span<const uint32_t> slices, Buffer* keys,
                   Buffer* values);

  const job::JobPlan& plan_;
  const uint32_t own_copy_;
  BufferSource& buffers_;
  std::shared_ptr<const RangeMap> map_;
  std::vector<std::vector<uint32_t>> packed_ranges_;  // by group: ids that are read, by (owner, id)
  data::KeyIndex index_;
  // Scratch, all of it.
  std::vector<uint32_t> key_range_;   // of each key
  std::vector<uint32_t> key_rank_;    // of each key: its place among those of its range
  std::vector<uint32_t> range_fill_;  // by range id
  std::vector<float*> range_values_;  // by range id: where its values begin
  std::vector<uint32_t> input_of_table_;
  std::vector<SliceEntry> entries_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_REQUEST_PACKER_H_
