// RequestPacker cuts the keys of a request into slices, one for each range, and makes frames from
// them. Keys are ordered by (owner, range), so the keys of one frame are contiguous bytes, and so
// are its values. A frame is therefore two views of memory that is filled once. If each worker has
// a copy of a table, reads go to one copy and pushes go to all copies. The memory of such a push is
// also filled once, and is sent several times.
//
// Thread safety: none; only the thread of its ClientCore uses it. ClientCore (client_core.h)
// decides which slices travel together, and when.
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
  // `plan` and `buffers` must outlive the packer. `copy` is the copy that this client reads, for
  // tables that have several copies.
  RequestPacker(const job::ResolvedJob& plan, uint32_t copy, BufferSource& buffers)
      : plan_(plan), own_copy_(copy), buffers_(buffers) {}

  // Sets the view. Call it before anything else, and again for each newer view.
  void OnView(std::shared_ptr<const RangeMap> view);
  const RangeMap* map() const { return map_.get(); }  // null before the first view

  // Makes the slices of a request whose header, keys, row_floats and `in_place` are set. A push
  // gets a slice for every range of its group.
  void Cut(ClientRequest* request);
  // Packs all slices of a push in place. at[i][k] becomes the place of the gradient of key k of
  // input i.
  void PackInPlace(ClientRequest* request, std::vector<std::vector<float*>>* at);
  // Packs a push, if one of its tables has several copies. Call it before its first frame is made.
  void PackAheadOfCopies(ClientRequest* request);
  // Makes a frame of these slices. Slices that travel for the first time are packed first.
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

  const job::ResolvedJob& plan_;
  const uint32_t own_copy_;
  BufferSource& buffers_;
  std::shared_ptr<const RangeMap> map_;
  // by group: ranges that are read, by (owner, id)
  std::vector<std::vector<uint32_t>> packed_ranges_;
  data::KeyIndex index_;
  // Scratch space, all below.
  std::vector<uint32_t> key_range_;   // range of each key
  std::vector<uint32_t> key_rank_;    // each key's rank among the keys of its range
  std::vector<uint32_t> range_fill_;  // by range id
  std::vector<float*> range_values_;  // by range id: where its values begin
  std::vector<uint32_t> input_of_table_;
  std::vector<SliceEntry> entries_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_REQUEST_PACKER_H_
