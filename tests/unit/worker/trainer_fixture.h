// What tests of the trainer's machines share: a context, with the peers of its client played by
// hand.
#ifndef TANDEM_TESTS_UNIT_WORKER_TRAINER_FIXTURE_H_
#define TANDEM_TESTS_UNIT_WORKER_TRAINER_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/core_fixture.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/dense_synchroniser.h"
#include "worker/trainer_context.h"

namespace tandem {

class TrainerMachineTest : public ::testing::Test {
 protected:
  // Of two workers and two servers (core_fixture.h), and five dense parameters.
  void Make(const std::string& policy, const std::string& synchroniser, int rank = 0,
            const std::string& more = "train { batch_size: 4 }") {
    plan_ = CorePlan(policy, 2, 2, more, synchroniser);
    dense_ = *worker::DenseParameters::New(plan_.job.dense().optimizer(), 5);
    context_ = std::make_unique<worker::TrainerContext>(
        plan_, rank, 7, buffers_, client::ClientCore::Options(), absl::Seconds(1));
    for (const job::GroupPlan& group : plan_.groups) {
      context_->policies.push_back(*policies::NewUpdatePolicy(group.policy, plan_.workers()));
    }
    map_ = CoreView(plan_, 1);
    context_->client.OnView(now_, map_);
    synchroniser_ = worker::NewDenseSynchroniser(*context_, *dense_);
  }

  // Answers what the client has sent: pushes are acknowledged, reads get zeros. `closed_samples`:
  // of the step closed last, as answers to reads say.
  void AnswerAll(uint64_t closed_samples = 1) {
    std::vector<Outgoing> sent;
    sent.swap(context_->client.out());
    for (const Outgoing& out : sent) {
      const ParsedFrame frame = Decoded(out.frame);
      FrameHeader header = frame.header;
      header.sender = out.to;
      header.first_step = 0;
      const bool push = header.kind == FrameKind::kPush;
      header.kind = push ? FrameKind::kAck : FrameKind::kRows;
      if (!push) header.samples = closed_samples;
      std::vector<SliceEntry> entries;
      size_t floats = 0;
      for (uint32_t i = 0; !push && i < frame.entry_count; ++i) {
        SliceEntry e = frame.Entry(i);
        e.status = SliceStatus::kOk;
        e.row_floats = static_cast<uint32_t>(plan_.tables[map_->range(e.range).table].dim);
        floats += size_t{e.rows} * e.row_floats;
        entries.push_back(e);
      }
      context_->client.OnFrame(
          now_, Decoded(EncodeDataFrame(buffers_, header, entries, Buffer(),
                                        BufferOf(buffers_, std::vector<float>(floats, 0.0f)))));
    }
  }
  // Requests that have been answered since the last call.
  std::vector<client::ClientCore::Completion> TakeCompletions() {
    std::vector<client::ClientCore::Completion> done;
    done.swap(context_->client.completions());
    return done;
  }
  // ... of pushes.
  void AcknowledgePushes() {
    AnswerAll();
    for (const client::ClientCore::Completion& c : TakeCompletions()) {
      EXPECT_TRUE(context_->pushes.OnDone(now_, c.request, &effects_));
    }
  }
  // Frames of this kind that the client wants sent.
  std::vector<ParsedFrame> Sent(FrameKind kind) {
    std::vector<ParsedFrame> frames;
    for (const Outgoing& out : context_->client.out()) {
      ParsedFrame frame = Decoded(out.frame);
      if (frame.header.kind == kind) frames.push_back(std::move(frame));
    }
    return frames;
  }
  // Entries of barriers that are due.
  std::vector<BarrierEnter> Entries() {
    std::vector<Control> controls;
    context_->barriers.AppendDue(now_, &controls);
    std::vector<BarrierEnter> entries;
    for (const Control& control : controls) entries.push_back(control.barrier_enter());
    return entries;
  }
  void Release(const std::string& name, int64_t max_value = 0) {
    BarrierRelease release;
    release.set_name(name);
    release.set_max_value(max_value);
    context_->barriers.OnRelease(release);
  }
  // Control frames for others, in their order.
  std::vector<Control> TakeControls() {
    std::vector<Control> controls;
    for (const Outgoing& out : context_->control_out) {
      controls.push_back(*Decoded(out.frame).ParseControl());
    }
    context_->control_out.clear();
    return controls;
  }

  job::ResolvedJob plan_;
  HeapBufferSource buffers_;
  absl::Time now_ = absl::UnixEpoch();
  std::shared_ptr<const RangeMap> map_;
  std::unique_ptr<worker::DenseParameters> dense_;
  std::unique_ptr<worker::TrainerContext> context_;
  std::unique_ptr<worker::DenseSynchroniser> synchroniser_;
  worker::TrainerEffects effects_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_WORKER_TRAINER_FIXTURE_H_
