// StepOrder decides the order in which a worker takes the steps of an epoch: for which step it
// fetches a batch, pulls rows, computes or pushes next, which steps it skips, and when the epoch is
// over. StepOrder has no rows, no client, no clock and no tasks. StepPipeline uses it with these,
// and the simulator of times uses it with an agenda (tools/sim/timing.h). UpdateOrder
// (policies/order/update_order.h) does the same for servers.
//
// The caller asks Next, does the act that Next returns, reports the act by the function that Act
// names, and asks again until Next returns kNothing. The caller also reports the end of each fetch,
// pull, computation and synchronisation.
//
// Next asks a gate whether a step may start:
//
//   pushes() -> int64_t     steps that are pushed and not acknowledged
//   AwaitPush()             too many pushes are in flight
//   groups() -> int         number of trained policy groups
//   policy(g), told(g)      the policy of a group, and the largest minimum clock that this worker
//                           was told
//   Refused(g)              the policy of a group does not let the step start
//
// Each step has a slot from its fetch until it is synchronised. Slots are used in turn. A skipped
// step has no slot: its batch, and its slot, now belong to a later step.
//
// Thread safety: none needed; one thread. Nothing is allocated after the constructor.
#ifndef TANDEM_WORKER_STEP_ORDER_H_
#define TANDEM_WORKER_STEP_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/check.h"

namespace tandem::worker {

// The place of a worker in its epoch. StepOrder changes it.
class StepState {
 public:
  struct Options {
    int depth = 0;              // steps for which rows may be pulled ahead
    int slots = 2;              // at least depth + 2
    int64_t max_in_flight = 1;  // steps pushed and not acknowledged
    bool lockstep = false;      // workers without data continue with empty steps
  };
  struct Epoch {
    int64_t first_step = 0;
    int64_t limit = std::numeric_limits<int64_t>::max();  // steps from here on have no samples
    // Batches of steps below are dropped: the servers have these steps of a dead process.
    int64_t first_trained = 0;
    // After the policies tell the end, one more step follows, with a synchronisation.
    bool syncs_at_end = false;
  };
  enum class State : uint8_t { kFree, kFetching, kFetched, kReading, kReady, kComputing };

  int64_t step() const { return step_; }      // the current step; all steps before it are pushed
  int64_t pushed() const { return pushed_; }  // steps pushed
  int64_t next_fetch() const { return next_fetch_; }
  int64_t next_read() const { return next_read_; }
  int64_t first_step() const { return epoch_.first_step; }
  int slots() const { return options_.slots; }
  // The slot of a step from the current one to the last one fetched.
  int SlotOf(int64_t step) const {
    const int slot = static_cast<int>(current_) + static_cast<int>(step - step_);
    return slot < options_.slots ? slot : slot - options_.slots;
  }
  State state(int64_t step) const { return At(step).state; }
  bool has_samples(int64_t step) const { return At(step).samples; }
  // Whether the answer to the pull of a step may tell that a step of this epoch had no samples.
  bool MayTellEnd(int64_t step) const { return options_.lockstep && step > epoch_.first_step; }
  // Both are about the step that started last: its clock gap at the start, and whether it is the
  // last step of an epoch that ends with a synchronisation.
  int64_t clock_gap() const { return clock_gap_; }
  bool last() const { return last_; }
  // Steps begun and not acknowledged, the current one included, before it is pushed.
  int64_t InFlight(int64_t pushes) const { return next_read_ - step_ + pushes; }

  bool over() const { return over_; }
  // The epoch is over, or will be at the next step to be taken.
  bool ends() const { return over_ || (empty_step_ && !syncs_at_end()); }
  bool computing() const {
    return !over_ && !synchronising_ && slots_[current_].state == State::kComputing;
  }
  // The current step has begun, so other workers need its result.
  bool step_begun() const { return computing() || (!over_ && synchronising_); }
  // The current step is pushed, or skipped steps are reported, but not synchronised.
  bool synchronising() const { return synchronising_; }
  bool synchronised() const { return synchronised_; }
  bool skipping() const { return skipping_; }  // synchronises skipped steps

 protected:
  explicit StepState(const Options& options) : options_(options) {
    TANDEM_CHECK(options.slots >= options.depth + 2);
    slots_.resize(static_cast<size_t>(options.slots));
  }

  struct Slot {
    State state = State::kFree;
    bool samples = false;  // its batch has samples
  };
  Slot& At(int64_t step) { return slots_[static_cast<size_t>(SlotOf(step))]; }
  const Slot& At(int64_t step) const { return slots_[static_cast<size_t>(SlotOf(step))]; }
  void MoveOn() {
    ++step_;
    if (++current_ == slots_.size()) current_ = 0;
  }
  bool syncs_at_end() const { return epoch_.syncs_at_end && !synced_at_end_; }

  Options options_;
  Epoch epoch_;
  int64_t step_ = 0, pushed_ = 0;
  int64_t next_fetch_ = 0, next_read_ = 0;
  int64_t open_step_ = 0;  // the open step, after a push of this worker came too late
  int64_t clock_gap_ = 0;
  size_t current_ = 0;  // slot of the current step
  bool over_ = true;
  bool empty_step_ = false;     // no worker had samples for a step
  bool synced_at_end_ = false;  // ... and the workers had a sync round in the step after it
  bool last_ = false;           // the current step is that step
  bool fetching_ = false, exhausted_ = false;
  bool computed_ = false;  // the current step is computed; nothing is pushed yet
  // The synchroniser works on the current step,
  bool synchronising_ = false;
  bool skipping_ = false;      // ... or on the steps skipped before it,
  bool synchronised_ = false;  // ... and finished
  absl::InlinedVector<Slot, 16> slots_;
};

class StepOrder final : public StepState {
 public:
  enum class Act : uint8_t {
    kNothing,
    kPush,    // push the current step, which is computed: Pushed
    kDrop,    // drop the batch of the current step: Drop
    kEnd,     // the epoch is over: End
    kSkip,    // skip to the step skips_to: Skip
    kFetch,   // fetch the batch of step next_fetch: BeginFetch
    kRead,    // pull the rows of step next_read: BeginRead
    kStart,   // compute the current step: Start
    kFinish,  // the current step is synchronised: Finish
  };

  explicit StepOrder(const Options& options) : StepState(options) {}

  // Between two epochs: all steps below `step` are pushed.
  void StandAt(int64_t step) { step_ = pushed_ = step; }
  // An epoch begins at the step at which the worker stands.
  void Begin(const Epoch& epoch) {
    epoch_ = epoch;
    over_ = false;
    next_fetch_ = step_;
    next_read_ = std::max(step_, epoch.first_trained);
  }

  template <typename Gate>
  Act Next(int64_t hold_from, Gate&& gate) {
    // A step at or after `hold_from` is computed, but not pushed.
    if (computed_ && step_ < hold_from) return Act::kPush;
    const Slot current = slots_[current_];
    // Without samples the epoch ends, as usual: the dead process may have told some ranges so.
    if (step_ < epoch_.first_trained && current.state == State::kFetched && current.samples) {
      return Act::kDrop;
    }
    // The end of the epoch goes first: after an empty step nothing more may be fetched or read.
    if (empty_step_ && !syncs_at_end()) return Act::kEnd;
    // Skip before anything else begins: the fetched batches get new step numbers, and their rows
    // must be read for these.
    if (skips_to(hold_from) > step_ && !fetching_ && !step_begun()) return Act::kSkip;
    // Start fetches and pulls of later steps before the compute task, so that data and rows travel
    // while the current step is computed.
    if (MayFetch()) return Act::kFetch;
    if (MayRead()) return Act::kRead;
    // A step starts only when the previous one is synchronised, because the model needs the new
    // dense parameters.
    if (synchronising_) return synchronised_ ? Act::kFinish : Act::kNothing;
    if (step_ >= hold_from) return Act::kNothing;
    if (current.state == State::kFetched && !current.samples && !options_.lockstep)
      return Act::kEnd;
    // The policies come last, because a refusal sends a probe.
    return current.state == State::kReady && MayStart(gate) ? Act::kStart : Act::kNothing;
  }
  bool MayFetch() const { return !fetching_ && next_fetch_ <= step_ + options_.depth + 1; }
  // Without data, lockstep jobs continue with empty steps. In other jobs the epoch ends there.
  bool MayRead() const {
    if (next_read_ >= next_fetch_ || next_read_ > pushed_ + options_.depth) return false;
    const Slot& slot = At(next_read_);
    return slot.state == State::kFetched && (slot.samples || options_.lockstep);
  }

  // ---- the acts of Next ----

  // False: no data are left, so the batch is empty and the caller fetches nothing.
  bool BeginFetch() {
    exhausted_ = exhausted_ || next_fetch_ >= epoch_.limit;
    At(next_fetch_++) = {exhausted_ ? State::kFetched : State::kFetching, false};
    return fetching_ = !exhausted_;
  }
  void BeginRead() { At(next_read_++).state = State::kReading; }
  // A step without samples is computed at once.
  void Start() {
    slots_[current_].state = State::kComputing;
    last_ = empty_step_;
    computed_ = !slots_[current_].samples;
  }
  // `waits`: the next step may begin only after OnSynchronised.
  void Pushed(bool waits) {
    computed_ = false;
    pushed_ = step_ + 1;
    synchronising_ = true;
    synchronised_ = !waits;
  }
  // The current step is never pushed, because the job ends.
  void Withhold() { computed_ = false; }
  // `empty`: the synchronisation told that no worker had samples.
  void Finish(bool empty) {
    synchronising_ = false;
    if (std::exchange(skipping_, false)) return;  // the current step is the open one already
    empty_step_ = empty_step_ || empty;
    synced_at_end_ = last_;
    slots_[current_].state = State::kFree;
    MoveOn();
  }
  void Drop() {
    slots_[current_].state = State::kFree;
    MoveOn();
    pushed_ = step_;
  }
  // The worker never skips a step that is held, such as the first one after an agreed checkpoint.
  int64_t skips_to(int64_t hold_from) const { return std::min(open_step_, hold_from); }
  // The batches fetched ahead now belong to later steps, whose rows are pulled anew.
  void Skip(int64_t to) {
    next_fetch_ += to - step_;
    step_ = pushed_ = next_read_ = to;
    for (int64_t step = to; step < next_fetch_; ++step) {
      Slot& slot = At(step);
      slot = {State::kFetched, slot.samples && step < epoch_.limit};
    }
  }
  // After Skip: the worker waits for the synchronisation of the skipped steps.
  void AwaitSkipped() {
    synchronising_ = skipping_ = true;
    synchronised_ = false;
  }
  void End() {
    TANDEM_CHECK(!fetching_);
    for (Slot& slot : slots_) slot.state = State::kFree;
    next_fetch_ = next_read_ = step_;
    exhausted_ = empty_step_ = synced_at_end_ = false;
    over_ = true;
  }

  // ---- events ----

  void OnFetched(bool samples) {
    fetching_ = false;
    At(next_fetch_ - 1) = {State::kFetched, samples};
    exhausted_ = exhausted_ || !samples;
  }
  // The rows of the step in a slot arrived.
  void OnRows(int slot) { slots_[static_cast<size_t>(slot)].state = State::kReady; }
  // A step that was taken back does not count.
  void OnComputed() { computed_ = computing(); }
  void TakeBack() { slots_[current_].state = State::kReady; }
  void OnSynchronised() { synchronised_ = true; }
  // The answer to a pull tells that no worker had samples for a step.
  void OnEmptyStep() { empty_step_ = true; }
  // A shard dropped a push that came too late: `step` is open now (0: no push was late).
  void OnOpenStep(int64_t step) { open_step_ = std::max(open_step_, step); }

 private:
  template <typename Gate>
  bool MayStart(Gate& gate) {
    if (gate.pushes() >= options_.max_in_flight) {
      gate.AwaitPush();
      return false;
    }
    int64_t gap = 0;
    for (int group = 0; group < gate.groups(); ++group) {
      const int64_t told = gate.told(group);
      if (!gate.policy(group).MayStart(step_, told)) {
        gate.Refused(group);
        return false;
      }
      gap = std::max(gap, step_ - told);
    }
    clock_gap_ = gap;
    return true;
  }
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_ORDER_H_
