// The trainer alone, with its peers played by hand: what it sends and when; and that no frame,
// however hostile, crashes it or makes it grow. Whole runs are in tests/sim.
#include "worker/trainer_core.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/diverged.h"
#include "base/random.h"
#include "data/batch_builder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tests/unit/server/core_fixture.h"
#include "worker/row_fingerprint.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class TrainerCoreTest : public ::testing::Test {
 protected:
  void Start(const std::string& policy, const std::string& synchroniser, int rank = 0) {
    plan_ = CorePlan(policy, 2, 2, "train { batch_size: 4 }", synchroniser);
    map_ = CoreView(plan_, 1);
    dense_ = *worker::DenseParameters::New(plan_.job.dense().optimizer(), 5);
    worker::TrainerCore::Options options;
    options.rank = rank;
    options.incarnation = 7;
    auto made = worker::TrainerCore::New(plan_, options, *dense_, buffers_);
    ASSERT_TRUE(made.ok()) << made.status();
    core_ = *std::move(made);
    core_->OnView(now_, map_, &effects_);
    Command(Command::START);
  }
  void Command(Command::Kind kind) {
    Control control;
    control.mutable_command()->set_kind(kind);
    control.mutable_command()->set_id(1);
    GiveControl(EndpointId::Scheduler(), control);
  }
  void GiveControl(EndpointId from, const Control& control, Buffer values = Buffer()) {
    FrameHeader header;
    header.sender = from;
    core_->OnFrame(now_, Decoded(EncodeControlFrame(buffers_, header, control, std::move(values))),
                   &effects_);
  }
  void Release(const std::string& barrier) {
    Control control;
    control.mutable_barrier_release()->set_name(barrier);
    GiveControl(EndpointId::Scheduler(), control);
  }
  // Frames of this kind among what was sent since the last call of Clear.
  std::vector<ParsedFrame> Sent(FrameKind kind) {
    std::vector<ParsedFrame> frames;
    for (const Outgoing& out : effects_.out) {
      ParsedFrame frame = Decoded(out.frame);
      if (frame.header.kind == kind) frames.push_back(std::move(frame));
    }
    return frames;
  }

  // The last task of this type that was handed out; one without a slot if there is none.
  template <typename Task>
  Task TaskOf() const {
    Task last{};
    for (const worker::TrainerTask& task : effects_.tasks) {
      if (const auto* const found = std::get_if<Task>(&task)) last = *found;
    }
    return last;
  }

  job::ResolvedJob plan_;
  HeapBufferSource buffers_;
  absl::Time now_ = absl::UnixEpoch();
  std::shared_ptr<const RangeMap> map_;
  std::unique_ptr<worker::DenseParameters> dense_;
  std::unique_ptr<worker::TrainerCore> core_;
  worker::TrainerEffects effects_;
};

TEST_F(TrainerCoreTest, RankZeroAssignsDenseParametersBeforeAnybodyReads) {
  Start("kind: BSP", "SERVERS");
  EXPECT_TRUE(effects_.tasks.empty());
  std::vector<ParsedFrame> pushes = Sent(FrameKind::kPush);
  ASSERT_EQ(pushes.size(), 2u);
  EXPECT_EQ(pushes[0].header.flags, kFlagAssign | kFlagWithSlots);
  for (const Outgoing& out : std::vector<Outgoing>(effects_.out)) {
    const ParsedFrame frame = Decoded(out.frame);
    if (frame.header.kind != FrameKind::kPush) continue;
    FrameHeader ack = frame.header;
    ack.kind = FrameKind::kAck;
    ack.sender = out.to;
    core_->OnFrame(now_, Decoded(EncodeDataFrame(buffers_, ack, {}, Buffer(), Buffer())),
                   &effects_);
  }
  EXPECT_TRUE(effects_.tasks.empty()) << "not before the others are there, too";
  Release("assigned");
  ASSERT_EQ(effects_.tasks.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<worker::FetchTask>(effects_.tasks[0]));
}

TEST_F(TrainerCoreTest, StartIsNotEnoughWithoutAView) {
  plan_ = CorePlan("kind: BSP", 2, 2, "", "ALLREDUCE");
  dense_ = *worker::DenseParameters::New(plan_.job.dense().optimizer(), 5);
  core_ = *worker::TrainerCore::New(plan_, worker::TrainerCore::Options(), *dense_, buffers_);
  Command(Command::START);
  EXPECT_TRUE(effects_.tasks.empty());
  core_->OnView(now_, CoreView(plan_, 1), &effects_);
  EXPECT_EQ(effects_.tasks.size(), 1u);
}

// The dense parameters are on the servers, and the others train: the new process neither assigns
// values nor waits at the barrier of the start. Its reports say where another process could begin.
TEST_F(TrainerCoreTest, AProcessInThePlaceOfADeadOneTrainsAtOnce) {
  plan_ = CorePlan("kind: ASP", 2, 2, "train { batch_size: 4 }", "SERVERS");
  dense_ = *worker::DenseParameters::New(plan_.job.dense().optimizer(), 5);
  worker::TrainerCore::Options options;
  options.incarnation = 7;
  options.files_hash = 11;
  WorkerStart& start = options.replaces.emplace();
  start.mutable_position()->set_step(5);
  start.mutable_position()->set_rows(20);
  start.set_first_step(6);
  start.set_first_new_step(8);
  start.set_evaluations(2);
  options.start = start.position();
  core_ = *worker::TrainerCore::New(plan_, options, *dense_, buffers_);
  core_->OnView(now_, CoreView(plan_, 1), &effects_);
  Command(Command::START);
  EXPECT_TRUE(effects_.out.empty());
  ASSERT_EQ(effects_.tasks.size(), 1u);
  const auto fetch = std::get<worker::FetchTask>(effects_.tasks[0]);
  EXPECT_EQ(fetch.slot->step, 5);
  fetch.slot->batch.Clear();
  fetch.slot->batch.samples = 4;
  core_->OnTaskDone(now_, fetch, absl::OkStatus(), &effects_);
  EXPECT_EQ(core_->step(), 6) << "the servers have step 5";
  effects_.Clear();
  now_ += absl::Milliseconds(1500);
  core_->OnTick(now_, &effects_);
  ASSERT_EQ(Sent(FrameKind::kControl).size(), 1u);
  const Progress progress = Sent(FrameKind::kControl)[0].ParseControl()->progress();
  EXPECT_EQ(progress.trains_at().step(), 6);
  EXPECT_EQ(progress.trains_at().rows(), 24);
  EXPECT_EQ(progress.trains_at().files_hash(), 11u);
  EXPECT_EQ(progress.samples(), 4);
  EXPECT_EQ(progress.evaluations(), 2);
}

TEST_F(TrainerCoreTest, BarrierEntriesAreRepeatedUntilReleased) {
  Start("kind: BSP", "SERVERS", /*rank=*/1);  // waits at "assigned" at once
  EXPECT_EQ(Sent(FrameKind::kControl).size(), 1u);
  effects_.Clear();
  now_ += absl::Milliseconds(1500);
  core_->OnTick(now_, &effects_);
  int entries = 0;
  for (const ParsedFrame& frame : Sent(FrameKind::kControl)) {
    entries += frame.ParseControl()->has_barrier_enter();
  }
  EXPECT_EQ(entries, 1);
  EXPECT_THAT(core_->Doing(now_, {}).text, HasSubstr("at barrier assigned"));
}

TEST_F(TrainerCoreTest, ALossThatIsNotFiniteEndsTheJob) {
  Start("kind: BSP", "ALLREDUCE");
  ASSERT_EQ(effects_.tasks.size(), 1u);
  const auto fetch = std::get<worker::FetchTask>(effects_.tasks[0]);
  effects_.Clear();
  fetch.slot->batch.samples = 4;  // no keys at all: the read asks one shard for nothing
  core_->OnTaskDone(now_, fetch, absl::OkStatus(), &effects_);
  for (const Outgoing& out : std::vector<Outgoing>(effects_.out)) {
    const ParsedFrame frame = Decoded(out.frame);
    if (frame.header.kind != FrameKind::kPull) continue;
    FrameHeader rows = frame.header;
    rows.kind = FrameKind::kRows;
    rows.sender = out.to;
    SliceEntry e = frame.Entry(0);
    core_->OnFrame(now_, Decoded(EncodeDataFrame(buffers_, rows, {&e, 1}, Buffer(), Buffer())),
                   &effects_);
  }
  const auto compute = TaskOf<worker::ComputeTask>();
  ASSERT_NE(compute.slot, nullptr);
  compute.slot->loss_sum = std::numeric_limits<double>::quiet_NaN();
  core_->OnTaskDone(now_, compute, absl::OkStatus(), &effects_);
  EXPECT_THAT(core_->failure().ToString(), HasSubstr("the loss is nan at step 0"));
  EXPECT_TRUE(IsDiverged(core_->failure()));
}

// All workers count from START, so that reports of one number are of one moment, however late
// a tick is.
TEST_F(TrainerCoreTest, ReportsAreOfTheSameMomentsEverywhere) {
  Start("kind: BSP", "ALLREDUCE");
  const auto reports_at = [this](double seconds) {
    effects_.Clear();
    core_->OnTick(now_ + absl::Seconds(seconds), &effects_);
    int reports = 0;
    for (const ParsedFrame& frame : Sent(FrameKind::kControl)) {
      reports += frame.ParseControl()->has_progress();
    }
    return reports;
  };
  const std::vector<double> ticks = {0.05, 0.99, 1.04, 1.99, 2.01, 4.7, 4.9, 5};
  std::vector<int> reports;
  for (const double tick : ticks) reports.push_back(reports_at(tick));
  EXPECT_EQ(reports, (std::vector<int>{0, 0, 1, 0, 1, 1, 0, 1}));
}

// A worker whose step was dropped covers the steps up to the open one with one empty push, and what
// it has fetched is for that step.
TEST_F(TrainerCoreTest, ALateWorkerGoesOnAtTheOpenStep) {
  Start("kind: BACKUP_WORKERS backups: 1", "SERVERS", /*rank=*/1);
  Release("assigned");
  const auto fetch = [&] {
    const auto task = TaskOf<worker::FetchTask>();
    ASSERT_NE(task.slot, nullptr);
    task.slot->batch.samples = 4;
    effects_.Clear();
    core_->OnTaskDone(now_, task, absl::OkStatus(), &effects_);
  };
  const auto answer = [&](FrameKind kind, const std::vector<SliceEntry>& first) {
    std::vector<Outgoing> asked;
    asked.swap(effects_.out);
    for (const Outgoing& out : asked) {
      const ParsedFrame frame = Decoded(out.frame);
      const bool pull = frame.header.kind == FrameKind::kPull;
      if (!pull && frame.header.kind != FrameKind::kPush) continue;
      if (pull != (kind == FrameKind::kRows)) continue;
      FrameHeader h = frame.header;
      h.kind = kind;
      h.sender = out.to;
      std::vector<SliceEntry> entries = first;
      std::vector<float> values;
      if (pull) {
        entries.clear();
        for (uint32_t i = 0; i < frame.entry_count; ++i) {
          SliceEntry e = frame.Entry(i);
          e.row_floats = job::kDenseBlockFloats;
          values.resize(values.size() + size_t{e.rows} * job::kDenseBlockFloats);
          entries.push_back(e);
        }
      } else if (!entries.empty()) {
        entries[0].range = frame.Entry(0).range;
      }
      core_->OnFrame(
          now_,
          Decoded(EncodeDataFrame(buffers_, h, entries, Buffer(), BufferOf(buffers_, values))),
          &effects_);
    }
  };
  fetch();  // step 0 ...
  answer(FrameKind::kRows, {});
  const auto compute = TaskOf<worker::ComputeTask>();
  ASSERT_NE(compute.slot, nullptr);
  fetch();  // ... and step 1 while it computes
  effects_.Clear();
  core_->OnTaskDone(now_, compute, absl::OkStatus(), &effects_);
  ASSERT_GE(Sent(FrameKind::kPush).size(), 1u);
  SliceEntry dropped;
  dropped.status = SliceStatus::kDropped;
  dropped.version = 6;
  answer(FrameKind::kAck, {dropped});
  EXPECT_EQ(core_->step(), 1) << "a batch is being fetched for a step";
  fetch();
  EXPECT_EQ(core_->step(), 6);
  const std::vector<ParsedFrame> pushes = Sent(FrameKind::kPush);
  ASSERT_GE(pushes.size(), 1u);
  EXPECT_EQ(pushes[0].header.first_step, 1);
  EXPECT_EQ(pushes[0].header.step, 5);
  EXPECT_EQ(pushes[0].header.samples, 0u);
  const std::vector<ParsedFrame> pulls = Sent(FrameKind::kPull);
  ASSERT_GE(pulls.size(), 1u);
  EXPECT_EQ(pulls.back().header.step, 6) << "the batch fetched for step 1";
}

TEST_F(TrainerCoreTest, AFailedTaskEndsTheJobWithItsReason) {
  Start("kind: BSP", "ALLREDUCE");
  core_->OnTaskDone(now_, effects_.tasks.at(0), absl::NotFoundError("train.tsv:7"), &effects_);
  EXPECT_EQ(core_->failure(), absl::NotFoundError("train.tsv:7"));
}

TEST_F(TrainerCoreTest, StopEndsIt) {
  Start("kind: BSP", "ALLREDUCE");
  EXPECT_FALSE(core_->finished());
  Command(Command::STOP);
  EXPECT_TRUE(core_->finished());
}

Control RandomControl(Random* random) {
  Control control;
  const int64_t number = random->Bernoulli(0.5) ? static_cast<int64_t>(random->Uniform(3))
                                                : static_cast<int64_t>(random->Next64());
  const char* const names[] = {"assigned", "evaluation 0",  "epoch 0", "checkpoint",
                               "",         "finish_delayed"};
  switch (random->Uniform(7)) {
    case 0:
      control.mutable_barrier_release()->set_name(names[random->Uniform(6)]);
      control.mutable_barrier_release()->set_max_value(number);
      break;
    case 1:
      control.mutable_command()->set_kind(Command::CHECKPOINT);
      control.mutable_command()->set_id(static_cast<uint64_t>(number));
      break;
    case 2:
      control.mutable_evaluation_share()->set_evaluation(number);
      break;
    case 3:
      control.mutable_command_done()->set_id(static_cast<uint64_t>(number));
      break;
    case 4:
      control.mutable_view()->set_number(static_cast<uint32_t>(number));
      break;
    case 5:
      control.mutable_range_data()->set_range(static_cast<uint32_t>(number));
      break;
    default:
      control.mutable_failure()->set_reason("no");
  }
  return control;
}

TEST_F(TrainerCoreTest, HostileFramesNeitherCrashItNorMakeItGrow) {
  Random random(TestSeed());
  const FrameKind kinds[] = {FrameKind::kRows,    FrameKind::kAck,  FrameKind::kWaiting,
                             FrameKind::kSegment, FrameKind::kPull, FrameKind::kPush};
  for (const char* synchroniser : {"SERVERS", "ALLREDUCE"}) {
    for (int round = 0; round < 50; ++round) {
      Start("kind: SSP bound: 1", synchroniser, static_cast<int>(random.Uniform(2)));
      for (int i = 0; i < 300; ++i) {
        const EndpointId from =
            random.Bernoulli(0.7)
                ? EndpointId::Shard(static_cast<int>(random.Uniform(2)), 0)
                : EndpointId::Unpack(static_cast<uint32_t>(random.Next64() & 0x3ff0007));
        if (random.Bernoulli(0.3)) {
          GiveControl(from, RandomControl(&random), BufferOf<float>(buffers_, {1, 2}));
          continue;
        }
        FrameHeader h;
        h.kind = kinds[random.Uniform(6)];
        h.flags = static_cast<uint8_t>(random.Bernoulli(0.5) ? 0 : random.Next64());
        h.sender = from;
        h.request = random.Uniform(12);  // near those it has sent
        h.step = static_cast<int64_t>(random.Bernoulli(0.7) ? random.Uniform(4) : random.Next64());
        h.first_step = static_cast<int64_t>(random.Next64() >> random.Uniform(64));
        h.group = static_cast<uint32_t>(random.Uniform(3));
        h.samples = random.Next64() >> random.Uniform(64);
        std::vector<SliceEntry> entries(random.Uniform(5));
        size_t floats = 0;
        const bool values = h.kind == FrameKind::kRows || h.kind == FrameKind::kPush;
        for (SliceEntry& e : entries) {
          e.range = static_cast<uint32_t>(random.Uniform(9));
          e.version = static_cast<int64_t>(random.Next64());
          e.status = static_cast<SliceStatus>(random.Bernoulli(0.5) ? 0 : random.Uniform(6));
          if (h.kind != FrameKind::kRows) continue;
          e.rows = static_cast<uint32_t>(random.Uniform(3));
          e.row_floats = static_cast<uint32_t>(random.Uniform(4));
          floats += size_t{e.rows} * e.row_floats;
        }
        const Frame frame = EncodeDataFrame(
            buffers_, h, entries, Buffer(),
            values ? BufferOf(buffers_, std::vector<float>(floats, 1.0f)) : Buffer());
        const absl::StatusOr<ParsedFrame> parsed = DecodeFrame(frame);
        if (!parsed.ok()) continue;
        effects_.Clear();
        core_->OnFrame(now_, *parsed, &effects_);
        now_ += absl::Milliseconds(10);
        core_->OnTick(now_, &effects_);
        ASSERT_LT(effects_.out.size(), 1000u);
        (void)core_->Doing(now_, {});
      }
    }
  }
}

// ---- which rows a worker had -------------------------------------------------------------------

// Samples of two fields, cut into batches; ids below `ids`.
worker::RowFingerprint FingerprintOf(const std::vector<uint64_t>& rows, size_t batch,
                                     uint64_t ids) {
  worker::RowFingerprint fingerprint;
  for (size_t begin = 0; begin < rows.size(); begin += batch) {
    data::Batch made;
    data::SparseInput& input = made.sparse.emplace_back();
    input.fields = 2;
    std::vector<uint64_t> occurrences;
    for (size_t i = begin; i < std::min(begin + batch, rows.size()); ++i) {
      occurrences.insert(occurrences.end(), {rows[i] % ids, 1000 + rows[i] / 7 % ids});
      ++made.samples;
    }
    data::KeyIndex().Unique(occurrences, &input.keys, &input.index);
    fingerprint.Add(made);
  }
  return fingerprint;
}

// A batch may have fewer ids of such a table than samples, or none.
TEST(RowFingerprintTest, IdsThatAreCellsOfTheirOwnMayBeAnyNumber) {
  for (const size_t ids : {size_t{0}, size_t{7}, size_t{500}}) {
    uint64_t first[2];
    for (uint64_t& hash : first) {
      data::Batch batch;
      batch.samples = 100;
      for (const size_t count : {size_t{100}, ids}) {
        data::SparseInput& input = batch.sparse.emplace_back();
        input.fields = count == ids ? 2 : 1;
        std::vector<uint64_t> occurrences(count);
        std::iota(occurrences.begin(), occurrences.end(), uint64_t{5});
        data::KeyIndex().Unique(occurrences, &input.keys, &input.index);
      }
      worker::RowFingerprint fingerprint;
      fingerprint.Add(batch);
      hash = fingerprint.first_rows();
    }
    EXPECT_NE(first[0], 0u);
    EXPECT_EQ(first[0], first[1]);
  }
}

TEST(RowFingerprintTest, TellsTheSameRowsFromOthers) {
  std::vector<uint64_t> rows(300), others(300);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = i;
    others[i] = 300 + i;
  }
  worker::RowFingerprint a = FingerprintOf(rows, 20, 500), b = FingerprintOf(rows, 30, 500);
  EXPECT_NE(a.first_rows(), 0u);
  EXPECT_EQ(a.first_rows(), b.first_rows()) << "wherever batches are cut";
  EXPECT_NE(a.first_rows(), FingerprintOf(others, 20, 500).first_rows());
  EXPECT_EQ(a.epoch(), 0u) << "not over";
  std::reverse(rows.begin(), rows.end());
  worker::RowFingerprint shuffled = FingerprintOf(rows, 20, 500);
  EXPECT_NE(a.first_rows(), shuffled.first_rows());
  worker::RowFingerprint other = FingerprintOf(others, 20, 500);
  for (worker::RowFingerprint* each : {&a, &shuffled, &other}) each->EndEpoch(/*whole=*/true);
  EXPECT_NE(a.epoch(), 0u);
  EXPECT_EQ(a.epoch(), shuffled.epoch());
  EXPECT_NE(a.epoch(), other.epoch());
  b.EndEpoch(/*whole=*/false);
  EXPECT_EQ(b.epoch(), 0u);

  // Rows that are all alike may well be others.
  worker::RowFingerprint alike = FingerprintOf(rows, 20, 3);
  alike.EndEpoch(/*whole=*/true);
  EXPECT_EQ(alike.first_rows(), 0u);
  EXPECT_EQ(alike.epoch(), 0u);
  rows.resize(60);
  EXPECT_EQ(FingerprintOf(rows, 20, 500).first_rows(), 0u) << "few rows";
}

}  // namespace
}  // namespace tandem
