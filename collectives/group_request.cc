#include "collectives/group_request.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "collectives/reduce.h"

namespace tandem::collectives {

absl::Status WrongPeer(bool send, int peer, int rank, int ranks) {
  const char* const how = send ? "send to" : "receive from";
  const std::string why = peer == rank
                              ? absl::StrCat("a rank cannot ", how, " itself; copy the memory")
                              : absl::StrCat("expected another rank, from 0 to ", ranks - 1);
  return absl::InvalidArgumentError(
      absl::StrCat(how, " rank ", peer, " on rank ", rank, " of ", ranks, ": ", why));
}

absl::Status CheckRequest(const GroupRequest& r) {
  const absl::string_view name = PrimitiveName(r.primitive);
  if (Reduces(r.primitive) && !Defined(r.op, r.type)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", Name(r.op), " is not defined for ", Name(r.type)));
  }
  const int rank = r.shape.rank, ranks = r.shape.ranks;
  if (r.shape.count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", r.shape.count, " elements"));
  }
  if (HasRoot(r.primitive) && (r.shape.root < 0 || r.shape.root >= ranks)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": root ", r.shape.root, " in a group of ", ranks));
  }
  if (r.primitive == Primitive::kPointToPoint) {
    const int peer = std::max(r.to, r.from);
    if (peer < 0 || peer >= ranks || peer == rank) {
      return WrongPeer(r.to >= 0, peer, rank, ranks);
    }
    if (r.shape.count > 0 && r.in == nullptr && r.out == nullptr) {
      return absl::InvalidArgumentError("send or receive: the buffer is null");
    }
  }
  return absl::OkStatus();
}

int64_t VectorBytes(const GroupRequest& r) {
  const auto element = static_cast<int64_t>(SizeOf(r.type));
  switch (r.primitive) {
    case Primitive::kReduceScatter:
    case Primitive::kAllGather:
    case Primitive::kGather:
    case Primitive::kScatter:
      return r.shape.Total() * element;
    case Primitive::kAllToAll:
      // Counts differ between ranks, but all ranks must choose the same algorithm: return the same
      // number on all of them.
      return r.shape.send_counts.empty() ? r.shape.count * r.shape.ranks * element : 0;
    default:
      return r.shape.count * element;
  }
}

void PendingWork::CopyResults() const {
  if (narrow_to != nullptr && narrow_count > 0) {
    Narrow(narrow, absl::MakeConstSpan(wide).subspan(narrow_begin, narrow_count), 1, narrow_to);
  }
  for (const CopyOut& copy : copies) std::memcpy(copy.to, memory.data() + copy.offset, copy.bytes);
}

bool InPlace(const GroupRequest& r) {
  const int64_t offset = InPlaceOffset(r.primitive, r.shape) * static_cast<int64_t>(SizeOf(r.type));
  return r.in != nullptr && r.out != nullptr && r.in == static_cast<uint8_t*>(r.out) + offset;
}

void BeginAverage(GroupRequest* request, std::unique_ptr<PendingWork>* pending) {
  GroupRequest& r = *request;
  const double factor = BeforeAverage(r.shape.ranks);
  const bool blocks = r.primitive == Primitive::kReduceScatter;
  const auto in = static_cast<size_t>(blocks ? r.shape.Total() : r.shape.count);
  if (in == 0) return;
  const bool wide = SizeOf(r.type) == 2;
  // A reduce-scatter's input also has the blocks of other ranks. These blocks are not this rank's
  // result, so the input must stay as it is.
  if (!wide && !blocks && InPlace(r)) return Scale(r.type, r.out, in, factor);
  if (*pending == nullptr) *pending = std::make_unique<PendingWork>();
  PendingWork& work = **pending;
  if (!wide) {
    work.memory.resize(in * SizeOf(r.type));
    ScaleCopy(r.type, work.memory.data(), r.in, in, factor);
    r.in = work.memory.data();
    return;
  }
  work.wide.resize(in);
  Widen(r.type, r.in, static_cast<float>(factor), absl::MakeSpan(work.wide));
  const int64_t begin = -InPlaceOffset(r.primitive, r.shape);
  work.narrow = r.type;
  work.narrow_begin = static_cast<size_t>(begin);
  work.narrow_count = static_cast<size_t>(blocks ? r.shape.CountOf(r.shape.rank) : r.shape.count);
  if (!HasRoot(r.primitive) || r.shape.root == r.shape.rank) work.narrow_to = r.out;
  r.call.called = r.type == DataType::kF16 ? ElementName::kF16 : ElementName::kBF16;
  r.type = DataType::kF32;
  r.in = work.wide.data();
  r.out = work.wide.data() + begin;
}

GroupRequest Fuse(absl::Span<const GroupRequest> requests, PendingWork* pending) {
  const size_t element = SizeOf(requests[0].type);
  size_t bytes = 0;
  for (const GroupRequest& r : requests) bytes += static_cast<size_t>(r.shape.count) * element;
  pending->memory.resize(bytes);
  size_t at = 0;
  for (const GroupRequest& r : requests) {
    const size_t size = static_cast<size_t>(r.shape.count) * element;
    if (size == 0) continue;
    std::memcpy(pending->memory.data() + at, r.in, size);
    pending->copies.push_back({r.out, at, size});
    at += size;
  }
  GroupRequest fused = requests[0];
  fused.shape.count = static_cast<int64_t>(bytes / element);
  fused.in = fused.out = pending->memory.data();
  return fused;
}

CollectiveCall SendsAndReceives(absl::Span<const GroupRequest> requests, PendingWork* pending) {
  Schedule& schedule = pending->schedule;
  schedule.rank = requests[0].shape.rank;
  schedule.ranks = requests[0].shape.ranks;
  Step& step = schedule.AddStep();
  // The schedule gives places relative to the lowest address of each side.
  const uint8_t* low_in = nullptr;
  uint8_t* low_out = nullptr;
  for (const GroupRequest& r : requests) {
    const auto* in = static_cast<const uint8_t*>(r.in);
    auto* out = static_cast<uint8_t*>(r.out);
    if (in != nullptr && (low_in == nullptr || in < low_in)) low_in = in;
    if (out != nullptr && (low_out == nullptr || out < low_out)) low_out = out;
  }
  const auto piece = [](const void* low, const void* at, const GroupRequest& r, Region region) {
    const auto bytes = static_cast<int64_t>(SizeOf(r.type));
    const int64_t begin =
        at == nullptr ? 0 : static_cast<const uint8_t*>(at) - static_cast<const uint8_t*>(low);
    return Piece{begin, r.shape.count * bytes, region};
  };
  for (const GroupRequest& r : requests) {
    if (r.to >= 0) step.Send(piece(low_in, r.in, r, Region::kInput), r.to);
  }
  for (const GroupRequest& r : requests) {
    if (r.from >= 0) step.Receive(piece(low_out, r.out, r, Region::kOutput), r.from);
  }
  for (const Op& op : step.ops) {
    int64_t& size = op.kind == OpKind::kSend ? schedule.input : schedule.output;
    size = std::max(size, op.piece.end());
  }
  CollectiveCall call;
  call.primitive = Primitive::kPointToPoint;
  call.type = DataType::kU8;
  call.schedule = &schedule;
  call.input = low_in;
  call.output = low_out;
  return call;
}

}  // namespace tandem::collectives
