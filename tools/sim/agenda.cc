#include "tools/sim/agenda.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::sim {

void Agenda::At(absl::Time at, std::function<void()> run) {
  heap_.push_back({at, order_++, std::move(run)});
  std::push_heap(heap_.begin(), heap_.end());
}

void Agenda::Every(absl::Duration period, std::function<void()> run) {
  After(period, [this, period, run = std::move(run)] {
    run();
    Every(period, run);
  });
}

void Agenda::RunNext() {
  TANDEM_CHECK(!heap_.empty());
  std::pop_heap(heap_.begin(), heap_.end());
  const Entry entry = std::move(heap_.back());
  heap_.pop_back();
  now_ = entry.at;
  entry.run();
}

}  // namespace tandem::sim
