#include "worker/dense/deal_devices.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::worker {
namespace {

// A matching of workers and GPUs, in which a GPU has up to `most` workers. Each round of larger
// `most` adds workers by augmenting paths (Kuhn's algorithm), and keeps those that have a GPU.
class Matching {
 public:
  explicit Matching(absl::Span<const VisibleDevices> visible)
      : visible_(visible), of_worker_(visible.size(), -1) {}

  std::vector<int> Run() {
    bool all = false;
    for (size_t most = 1; !all; ++most) {
      all = true;
      for (size_t worker = 0; worker < visible_.size(); ++worker) {
        if (of_worker_[worker] >= 0 || visible_[worker].empty()) continue;
        std::set<std::string> tried;
        all = Place(worker, most, &tried) && all;
      }
    }
    return of_worker_;
  }

 private:
  const std::string& Uuid(size_t worker, size_t place) const { return visible_[worker][place]; }

  void Give(size_t worker, size_t place) {
    if (of_worker_[worker] >= 0) {
      workers_of_[Uuid(worker, static_cast<size_t>(of_worker_[worker]))].erase(worker);
    }
    of_worker_[worker] = static_cast<int>(place);
    workers_of_[Uuid(worker, place)].insert(worker);
  }

  bool Place(size_t worker, size_t most, std::set<std::string>* tried) {
    for (size_t place = 0; place < visible_[worker].size(); ++place) {
      if (workers_of_[Uuid(worker, place)].size() >= most) continue;
      Give(worker, place);
      return true;
    }
    for (size_t place = 0; place < visible_[worker].size(); ++place) {
      if (!tried->insert(Uuid(worker, place)).second) continue;
      const std::set<size_t> others = workers_of_[Uuid(worker, place)];
      for (const size_t other : others) {
        if (!Place(other, most, tried)) continue;
        Give(worker, place);
        return true;
      }
    }
    return false;
  }

  const absl::Span<const VisibleDevices> visible_;
  std::vector<int> of_worker_;
  std::map<std::string, std::set<size_t>> workers_of_;  // by UUID
};

}  // namespace

DealtDevices DealDevices(absl::Span<const VisibleDevices> visible) {
  DealtDevices dealt;
  dealt.of_worker = Matching(visible).Run();
  std::map<std::string, std::vector<size_t>> workers_of;
  for (size_t worker = 0; worker < visible.size(); ++worker) {
    for (const std::string& uuid : visible[worker]) workers_of[uuid];
    const int place = dealt.of_worker[worker];
    if (place >= 0) workers_of[visible[worker][static_cast<size_t>(place)]].push_back(worker);
  }
  constexpr size_t kNamed = 8;
  std::string shared, free;
  for (const auto& [uuid, workers] : workers_of) {
    if (workers.empty() && free.empty()) free = uuid;
    if (workers.size() > 1 && shared.empty()) {
      const size_t named = std::min(workers.size(), kNamed);
      shared = absl::StrCat("workers ", absl::StrJoin(absl::MakeSpan(workers).first(named), ", "));
      if (named < workers.size()) {
        absl::StrAppend(&shared, " and ", workers.size() - named, " more");
      }
      absl::StrAppend(&shared, " share GPU ", uuid);
    }
  }
  if (!shared.empty() && !free.empty()) {
    dealt.warning = absl::StrCat(shared, " and do not see GPU ", free,
                                 ", which is free; hint: set CUDA_VISIBLE_DEVICES so that one of "
                                 "these workers sees the free GPU");
  }
  return dealt;
}

}  // namespace tandem::worker
