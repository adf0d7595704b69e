// The functions of tandem_group.h.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "capi/returns.h"
#include "capi/tandem_group.h"
#include "collectives/async_group.h"
#include "collectives/types.h"
#include "node/job_token.h"
#include "node/launch_environment.h"

struct tandem_group {
  std::unique_ptr<tandem::collectives::AsyncGroup> members;
};

namespace tandem::capi {
namespace {

using collectives::AsyncGroup;
using collectives::CallOptions;
using collectives::DataType;
using collectives::ElementName;
using collectives::Group;
using collectives::ReduceOp;
using collectives::Work;
using Ticket = absl::StatusOr<AsyncGroup::Ticket>;

struct Elements {
  DataType type = DataType::kU8;
  CallOptions call;  // contains the name of the element type
};

// Translates the header's numbers, which stay the same when numbers on the wire change.
absl::StatusOr<Elements> ElementsOf(int32_t type) {
  static constexpr DataType kTypes[] = {DataType::kF32,  DataType::kF64, DataType::kF16,
                                        DataType::kBF16, DataType::kI32, DataType::kI64,
                                        DataType::kU8};
  static constexpr ElementName kNames[] = {ElementName::kAsType, ElementName::kBool,
                                           ElementName::kI8,     ElementName::kI16,
                                           ElementName::kC64,    ElementName::kC128};
  const int32_t low = type & 0xff, called = type >> 8;
  if (type < 0 || low >= static_cast<int32_t>(std::size(kTypes)) ||
      called >= static_cast<int32_t>(std::size(kNames))) {
    return absl::InvalidArgumentError(absl::StrCat("type ", type,
                                                   ": expected one of TANDEM_F32 (0) to TANDEM_U8 "
                                                   "(6), plus one of TANDEM_CALLED_BOOL (256) to "
                                                   "TANDEM_CALLED_C128 (1280) or nothing"));
  }
  Elements out;
  out.type = kTypes[low];
  out.call.called = kNames[called];
  return out;
}

absl::StatusOr<ReduceOp> OpOf(int32_t op, DataType type) {
  static constexpr ReduceOp kOps[] = {ReduceOp::kSum,   ReduceOp::kProduct, ReduceOp::kMin,
                                      ReduceOp::kMax,   ReduceOp::kAverage, ReduceOp::kBitAnd,
                                      ReduceOp::kBitOr, ReduceOp::kBitXor};
  if (op < 0 || op >= static_cast<int32_t>(std::size(kOps))) {
    return absl::InvalidArgumentError(
        absl::StrCat("op ", op, ": expected one of TANDEM_SUM (0) to TANDEM_BIT_XOR (7)"));
  }
  if (collectives::Defined(kOps[op], type)) return kOps[op];
  return absl::InvalidArgumentError(absl::StrCat(
      Name(kOps[op]), " is not defined for ", Name(type),
      kOps[op] == ReduceOp::kAverage ? "; take the sum and divide" : "; give integers"));
}

absl::Status CheckRoot(const AsyncGroup& group, int32_t root) {
  if (root >= 0 && root < group.ranks()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("root ", root, " in a group of ", group.ranks()));
}

absl::Status CheckMemory(const char* name, const void* at, int64_t count) {
  if (count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", count, " elements; expected 0 or more"));
  }
  return at == nullptr && count > 0 ? Missing(name) : absl::OkStatus();
}

// Checks and copies the counts of all ranks; `*total` becomes their sum.
absl::StatusOr<std::vector<int64_t>> CountsOf(const AsyncGroup& group, const int64_t* counts,
                                              int64_t* total) {
  if (counts == nullptr) return Missing("counts");
  std::vector<int64_t> out(counts, counts + group.ranks());
  *total = 0;
  for (size_t r = 0; r < out.size(); ++r) {
    if (out[r] < 0 || __builtin_add_overflow(*total, out[r], total)) {
      return absl::InvalidArgumentError(absl::StrCat("counts[", r, "] is ", out[r],
                                                     "; expected 0 or more, and a sum below 2^63"));
    }
  }
  return out;
}

absl::Duration DeadlineOf(int64_t deadline_ms) {
  constexpr absl::Duration kDefault = absl::Minutes(30);
  return deadline_ms > 0 ? absl::Milliseconds(deadline_ms) : kDefault;
}

absl::StatusOr<std::unique_ptr<AsyncGroup>> Open(const tandem_group_options& options) {
  collectives::AsyncGroupOptions out;
  out.rank = options.rank;
  out.ranks = options.ranks;
  if (options.host != nullptr) out.host = options.host;
  if (options.link != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(out.links, collectives::LinkChoiceOf(options.link));
  }
  if (options.deadline_ms < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("deadline_ms: ", options.deadline_ms, "; expected 0 or more"));
  }
  out.deadline = DeadlineOf(options.deadline_ms);
  out.reproducible = options.reproducible != 0;
  TANDEM_ASSIGN_OR_RETURN(out.security.keys, node::FindKeys(/*folder=*/""));
  return AsyncGroup::Open(std::move(out));
}

absl::Status Connect(tandem_group* group, const void* const* addresses, const int64_t* counts,
                     int64_t timeout_ms) {
  if (addresses == nullptr || counts == nullptr) return Missing("addresses and counts");
  std::vector<std::string> all;
  for (int r = 0; r < group->members->ranks(); ++r) {
    if (addresses[r] == nullptr || counts[r] < 0) {
      return Missing(absl::StrCat("the address of rank ", r));
    }
    all.emplace_back(static_cast<const char*>(addresses[r]), static_cast<size_t>(counts[r]));
  }
  return group->members->Connect(all, After(timeout_ms));
}

// Starts an operation with `start`.
template <class Start>
int Begin(tandem_group* group, int64_t* work, const Start& start) {
  if (group == nullptr || work == nullptr) return Return(Missing("group or work"));
  return Call([&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(*work, start(*group->members));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace tandem::capi

using namespace tandem::capi;  // NOLINT: C functions follow
using tandem::collectives::AsyncGroup;
using tandem::collectives::CallOptions;
using tandem::collectives::Group;

int tandem_find_launch(tandem_launch* launch) {
  return Call([&]() -> absl::StatusOr<bool> {
    if (launch == nullptr) return Missing("launch");
    if (launch->size < sizeof *launch) return absl::InvalidArgumentError("launch: invalid size");
    TANDEM_ASSIGN_OR_RETURN(const tandem::node::Launch found,
                            tandem::node::FindLaunch(getenv, getppid()));
    launch->rank = found.rank;
    launch->ranks = found.size;
    launch->one_host = found.one_host ? 1 : 0;
    launch->port = found.id.empty() ? 0 : tandem::node::PortOfLaunch(found.id);
    return !found.family.empty();
  });
}

int tandem_group_open(const tandem_group_options* options, tandem_group** group) {
  constexpr uint64_t kFirstVersion = sizeof(tandem_group_options);
  if (options == nullptr || group == nullptr || options->size < kFirstVersion) {
    return Return(
        absl::InvalidArgumentError("tandem_group_open: options of another version; set "
                                   "options->size to sizeof(tandem_group_options)"));
  }
  return Call([&]() -> absl::Status {
    SetUpHost();
    TANDEM_ASSIGN_OR_RETURN(auto opened, Open(*options));
    *group = new tandem_group{std::move(opened)};
    return absl::OkStatus();
  });
}

int tandem_group_address(const tandem_group* group, const void** bytes, int64_t* count) {
  if (group == nullptr || bytes == nullptr || count == nullptr) {
    return Return(Missing("group, bytes or count"));
  }
  *bytes = group->members->address().data();
  *count = static_cast<int64_t>(group->members->address().size());
  return Return(absl::OkStatus());
}

int tandem_group_connect(tandem_group* group, const void* const* addresses, const int64_t* counts,
                         int64_t timeout_ms) {
  if (group == nullptr) return Return(Missing("group"));
  return Call([&] { return Connect(group, addresses, counts, timeout_ms); });
}

int tandem_group_wait_connected(tandem_group* group, int64_t timeout_ms) {
  if (group == nullptr) return Return(Missing("group"));
  return Call([&] { return group->members->WaitConnected(After(timeout_ms)); });
}

int tandem_group_allreduce(tandem_group* group, const void* in, void* out, int64_t count,
                           int32_t type, int32_t op, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_ASSIGN_OR_RETURN(const ReduceOp o, OpOf(op, e.type));
    TANDEM_RETURN_IF_ERROR(CheckMemory("in", in, count));
    TANDEM_RETURN_IF_ERROR(CheckMemory("out", out, count));
    return all.Start([=](Group& g) { return g.AllReduce(in, out, count, e.type, o, e.call); });
  });
}

int tandem_group_reduce(tandem_group* group, const void* in, void* out, int64_t count, int32_t type,
                        int32_t op, int32_t root, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_ASSIGN_OR_RETURN(const ReduceOp o, OpOf(op, e.type));
    TANDEM_RETURN_IF_ERROR(CheckRoot(all, root));
    TANDEM_RETURN_IF_ERROR(CheckMemory("in", in, count));
    TANDEM_RETURN_IF_ERROR(CheckMemory("out", out, root == all.rank() ? count : 0));
    return all.Start([=](Group& g) { return g.Reduce(in, out, count, e.type, o, root, e.call); });
  });
}

int tandem_group_broadcast(tandem_group* group, void* data, int64_t count, int32_t type,
                           int32_t root, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_RETURN_IF_ERROR(CheckRoot(all, root));
    TANDEM_RETURN_IF_ERROR(CheckMemory("data", data, count));
    return all.Start(
        [=](Group& g) { return g.Broadcast(data, data, count, e.type, root, e.call); });
  });
}

int tandem_group_allgather(tandem_group* group, const void* in, void* out, const int64_t* counts,
                           int32_t type, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    int64_t total = 0;
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_ASSIGN_OR_RETURN(auto each, CountsOf(all, counts, &total));
    TANDEM_RETURN_IF_ERROR(CheckMemory("in", in, counts[all.rank()]));
    TANDEM_RETURN_IF_ERROR(CheckMemory("out", out, total));
    return all.Start([=](Group& g) { return g.AllGatherV(in, out, each, e.type, e.call); });
  });
}

int tandem_group_gather(tandem_group* group, const void* in, void* out, const int64_t* counts,
                        int32_t type, int32_t root, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    int64_t total = 0;
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_ASSIGN_OR_RETURN(auto each, CountsOf(all, counts, &total));
    TANDEM_RETURN_IF_ERROR(CheckRoot(all, root));
    TANDEM_RETURN_IF_ERROR(CheckMemory("in", in, counts[all.rank()]));
    TANDEM_RETURN_IF_ERROR(CheckMemory("out", out, root == all.rank() ? total : 0));
    return all.Start([=](Group& g) { return g.GatherV(in, out, each, e.type, root, e.call); });
  });
}

int tandem_group_scatter(tandem_group* group, const void* in, void* out, const int64_t* counts,
                         int32_t type, int32_t root, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    int64_t total = 0;
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_ASSIGN_OR_RETURN(auto each, CountsOf(all, counts, &total));
    TANDEM_RETURN_IF_ERROR(CheckRoot(all, root));
    TANDEM_RETURN_IF_ERROR(CheckMemory("in", in, root == all.rank() ? total : 0));
    TANDEM_RETURN_IF_ERROR(CheckMemory("out", out, counts[all.rank()]));
    return all.Start([=](Group& g) { return g.ScatterV(in, out, each, e.type, root, e.call); });
  });
}

int tandem_group_reduce_scatter(tandem_group* group, const void* in, void* out,
                                const int64_t* counts, int32_t type, int32_t op, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    int64_t total = 0;
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_ASSIGN_OR_RETURN(const ReduceOp o, OpOf(op, e.type));
    TANDEM_ASSIGN_OR_RETURN(auto each, CountsOf(all, counts, &total));
    TANDEM_RETURN_IF_ERROR(CheckMemory("in", in, total));
    TANDEM_RETURN_IF_ERROR(CheckMemory("out", out, counts[all.rank()]));
    return all.Start([=](Group& g) { return g.ReduceScatterV(in, out, each, e.type, o, e.call); });
  });
}

int tandem_group_alltoall(tandem_group* group, const void* in, const int64_t* send_counts,
                          void* out, const int64_t* receive_counts, int32_t type, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    int64_t sent = 0, received = 0;
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_ASSIGN_OR_RETURN(auto to, CountsOf(all, send_counts, &sent));
    TANDEM_ASSIGN_OR_RETURN(auto from, CountsOf(all, receive_counts, &received));
    TANDEM_RETURN_IF_ERROR(CheckMemory("in", in, sent));
    TANDEM_RETURN_IF_ERROR(CheckMemory("out", out, received));
    return all.Start([=](Group& g) { return g.AllToAllV(in, to, out, from, e.type, e.call); });
  });
}

int tandem_group_barrier(tandem_group* group, int64_t deadline_ms, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    CallOptions call;
    if (deadline_ms > 0) call.deadline = absl::Milliseconds(deadline_ms);
    return all.Start([=](Group& g) { return g.Barrier(call); });
  });
}

int tandem_group_send(tandem_group* group, const void* data, int64_t bytes, int32_t to, int64_t tag,
                      int64_t deadline_ms, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    TANDEM_RETURN_IF_ERROR(CheckMemory("data", data, bytes));
    return all.Send({static_cast<const uint8_t*>(data), static_cast<size_t>(bytes)}, to, tag,
                    deadline_ms > 0 ? DeadlineOf(deadline_ms) : all.deadline());
  });
}

int tandem_group_receive(tandem_group* group, void* data, int64_t bytes, int32_t from, int64_t tag,
                         int64_t deadline_ms, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    TANDEM_RETURN_IF_ERROR(CheckMemory("data", data, bytes));
    return all.Receive({static_cast<uint8_t*>(data), static_cast<size_t>(bytes)}, from, tag,
                       deadline_ms > 0 ? DeadlineOf(deadline_ms) : all.deadline());
  });
}

int tandem_group_send_elements(tandem_group* group, const void* data, int64_t count, int32_t type,
                               int32_t to, int64_t tag, int64_t deadline_ms, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_RETURN_IF_ERROR(CheckMemory("data", data, count));
    const size_t bytes = static_cast<size_t>(count) * SizeOf(e.type);
    return all.Send({static_cast<const uint8_t*>(data), bytes}, to, tag,
                    deadline_ms > 0 ? DeadlineOf(deadline_ms) : all.deadline(),
                    ElementsCode(e.type, e.call.called));
  });
}

int tandem_group_receive_elements(tandem_group* group, void* data, int64_t count, int32_t type,
                                  int32_t from, int64_t tag, int64_t deadline_ms, int64_t* work) {
  return Begin(group, work, [&](AsyncGroup& all) -> Ticket {
    TANDEM_ASSIGN_OR_RETURN(const Elements e, ElementsOf(type));
    TANDEM_RETURN_IF_ERROR(CheckMemory("data", data, count));
    const size_t bytes = static_cast<size_t>(count) * SizeOf(e.type);
    return all.Receive({static_cast<uint8_t*>(data), bytes}, from, tag,
                       deadline_ms > 0 ? DeadlineOf(deadline_ms) : all.deadline(),
                       ElementsCode(e.type, e.call.called));
  });
}

int tandem_group_wait(tandem_group* group, int64_t work, int64_t timeout_ms, int32_t* from) {
  if (group == nullptr) return Return(Missing("group"));
  return Call([&] { return group->members->Wait(work, After(timeout_ms), from); });
}

int tandem_group_forget(tandem_group* group, int64_t work) {
  if (group == nullptr) return Return(Missing("group"));
  return Call([&] {
    group->members->Forget(work);
    return absl::OkStatus();
  });
}

int tandem_group_close(tandem_group* group) {
  if (group == nullptr) return Return(Missing("group"));
  return Call([&] {
    group->members->Close();
    return absl::OkStatus();
  });
}

void tandem_group_free(tandem_group* group) { delete group; }
