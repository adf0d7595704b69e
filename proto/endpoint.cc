#include "proto/endpoint.h"

#include "absl/strings/str_cat.h"

namespace tandem {

std::string EndpointId::DebugString() const {
  switch (role) {
    case Role::kScheduler:
      return "scheduler";
    case Role::kServer:
      return absl::StrCat("server ", index, " shard ", shard);
    case Role::kWorker:
      return absl::StrCat("worker ", index);
    case Role::kReader:
      return absl::StrCat("reader ", index);
    case Role::kNone:
      break;
  }
  return absl::StrCat("endpoint ", Pack());
}

}  // namespace tandem
