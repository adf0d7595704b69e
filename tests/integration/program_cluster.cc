#include "tests/integration/program_cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "data/batch_source.h"
#include "google/protobuf/text_format.h"
#include "models/model.h"
#include "node/role_flags.h"
#include "node/transport_choice.h"
#include "scheduler/scheduler_shell.h"
#include "server/server_shell.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

constexpr absl::Duration kHang = absl::Seconds(60);

node::NodeSession::Options MemberAt(const job::ResolvedJob& plan, const std::string& scheduler,
                                    int index) {
  node::NodeSession::Options member;
  member.index = index;
  member.scheduler = scheduler;
  member.incarnation = node::NewIncarnation();
  member.make_transport =
      node::EndpointFactory(node::RoleFlags(), plan.serving(), member.incarnation,
                            std::make_shared<transport::PathLog>());
  return member;
}

// A training loop, with what it reuses.
class TrainingLoop {
 public:
  TrainingLoop(const job::ResolvedJob& compiled, worker::AttachedWorker& worker, float rate,
               absl::Duration pause)
      : plan_(compiled), worker_(worker), rate_(rate), pause_(pause) {}

  absl::Status Run() {
    TANDEM_ASSIGN_OR_RETURN(const bool joined, worker_.WaitJoined(MonotonicNow() + kHang));
    TANDEM_CHECK(joined);
    TANDEM_RETURN_IF_ERROR(Open());
    std::vector<server::CheckpointParameter> parameters;
    for (const models::ParameterInfo& p : model_->parameters())
      parameters.push_back({p.name, p.shape});
    std::vector<float> values(static_cast<size_t>(model_->parameter_count()));
    models::InitParameters(model_->parameters(), plan_.job.seed(), absl::MakeSpan(values));
    TANDEM_RETURN_IF_ERROR(worker_.Start(parameters, values));
    TANDEM_ASSIGN_OR_RETURN(const bool started, worker_.WaitStarted(MonotonicNow() + kHang));
    TANDEM_CHECK(started);
    gradient_.resize(values.size());
    for (;;) {
      TANDEM_ASSIGN_OR_RETURN(const worker::Request request, worker_.Next(MonotonicNow() + kHang));
      if (request.kind == worker::Request::Kind::kEnd) return worker_.Close();
      TANDEM_RETURN_IF_ERROR(Do(request));
    }
  }

 private:
  absl::Status Open() {
    TANDEM_ASSIGN_OR_RETURN(const data::DataShape shape, data::FindDataShape(plan_));
    TANDEM_ASSIGN_OR_RETURN(train_, data::NewTrainSource(plan_, worker_.rank()));
    TANDEM_ASSIGN_OR_RETURN(test_, data::NewTestSource(plan_, worker_.rank()));
    models::ModelInputs inputs;
    inputs.numeric = shape.numeric;
    for (size_t t = 0; t < shape.table_fields.size(); ++t) {
      if (shape.table_fields[t].empty()) continue;
      inputs.tables.push_back({plan_.tables[t].name, static_cast<int>(shape.table_fields[t].size()),
                               plan_.tables[t].dim});
    }
    TANDEM_ASSIGN_OR_RETURN(model_, models::NewDenseModel(plan_.job.model(), inputs, 1));
    return absl::OkStatus();
  }

  absl::Status Do(const worker::Request& request) {
    switch (request.kind) {
      case worker::Request::Kind::kBatch:
        if (request.slot->epoch != epoch_)
          TANDEM_RETURN_IF_ERROR(train_->StartEpoch(request.slot->epoch));
        epoch_ = request.slot->epoch;
        TANDEM_RETURN_IF_ERROR(train_->Next(&batch_));
        absl::SleepFor(pause_);
        return worker_.GiveBatch(&batch_);
      case worker::Request::Kind::kTestBatch:
        if (request.first) TANDEM_RETURN_IF_ERROR(test_->StartEpoch(0));
        TANDEM_RETURN_IF_ERROR(test_->Next(&batch_));
        return worker_.GiveBatch(&batch_);
      case worker::Request::Kind::kCompute:
        return Compute(request.slot->batch);
      case worker::Request::Kind::kScore:
        TANDEM_RETURN_IF_ERROR(Pool(request.slot->batch));
        TANDEM_RETURN_IF_ERROR(
            model_->Forward(request.slot->batch, worker_.dense(), spans_, absl::MakeSpan(logits_)));
        return worker_.Score(logits_, std::vector<float>(request.slot->batch.labels));
      case worker::Request::Kind::kUpdate:
        return Update();
      default:
        return absl::OkStatus();
    }
  }

  absl::Status Pool(const data::Batch& batch) {
    const size_t inputs = batch.sparse.size();
    cells_.resize(inputs);
    pooled_gradients_.resize(inputs);
    spans_.clear();
    gradient_spans_.clear();
    for (size_t i = 0; i < inputs; ++i) {
      const auto dim = static_cast<size_t>(plan_.tables[batch.sparse[i].table].dim);
      cells_[i].resize(batch.sparse[i].index.size() * dim);
      pooled_gradients_[i].resize(cells_[i].size());
      TANDEM_RETURN_IF_ERROR(worker_.Rows(i, absl::MakeSpan(cells_[i])));
      spans_.push_back(cells_[i]);
      gradient_spans_.push_back(absl::MakeSpan(pooled_gradients_[i]));
    }
    logits_.resize(static_cast<size_t>(batch.samples));
    return absl::OkStatus();
  }

  absl::Status Compute(const data::Batch& batch) {
    TANDEM_RETURN_IF_ERROR(Pool(batch));
    worker::StepGradients gradients;
    TANDEM_RETURN_IF_ERROR(model_->ForwardBackward(batch, worker_.dense(), spans_,
                                                   absl::MakeSpan(logits_), &gradients.loss_sum,
                                                   absl::MakeSpan(gradient_), gradient_spans_));
    gradients.cells.assign(pooled_gradients_.begin(), pooled_gradients_.end());
    gradients.dense = gradient_;
    absl::SleepFor(pause_);
    return worker_.Finish(gradients);
  }

  absl::Status Update() {
    TANDEM_RETURN_IF_ERROR(worker_.MeanGradient(absl::MakeSpan(gradient_)));
    const absl::Span<float> values = worker_.dense();
    for (size_t i = 0; i < values.size(); ++i) {
      const volatile float change = rate_ * gradient_[i];  // rounded by itself, as optim/ does it
      values[i] -= change;
    }
    return worker_.Updated();
  }

  const job::ResolvedJob& plan_;
  worker::AttachedWorker& worker_;
  const float rate_;
  const absl::Duration pause_;
  std::unique_ptr<data::BatchSource> train_, test_;
  std::unique_ptr<models::DenseModel> model_;
  int64_t epoch_ = -1;
  data::Batch batch_;
  std::vector<std::vector<float>> cells_, pooled_gradients_;
  std::vector<models::PooledRows> spans_;
  std::vector<absl::Span<float>> gradient_spans_;
  std::vector<float> logits_, gradient_;
};

}  // namespace

job::ResolvedJob ProgramPlan(const job::ResolvedJob& compiled,
                             const std::vector<std::string>& set) {
  const absl::StatusOr<data::DataShape> shape = data::FindDataShape(compiled);
  TANDEM_CHECK_OK(shape.status());
  Job job = compiled.job;
  job.mutable_data()->Clear();
  job.mutable_data()->set_format(Data::PROGRAM);
  job.mutable_model()->Clear();
  job.mutable_model()->mutable_program();
  for (int t = 0; t < job.table_size(); ++t) {
    job.mutable_table(t)->clear_field();
    for (const std::string& field : shape->table_fields[static_cast<size_t>(t)]) {
      job.mutable_table(t)->add_field(field);
    }
  }
  std::string text;
  TANDEM_CHECK(google::protobuf::TextFormat::PrintToString(job, &text));
  job::Overrides overrides;
  for (const std::string& s : set) overrides.push_back(absl::StrSplit(s, absl::MaxSplits('=', 1)));
  const absl::StatusOr<Job> parsed = job::ParseJob(text, "program", overrides);
  TANDEM_CHECK_OK(parsed.status());
  absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*parsed);
  TANDEM_CHECK_OK(plan.status());
  return *std::move(plan);
}

ProgramCluster::ProgramCluster(const job::ResolvedJob& plan, const std::string& out) : plan_(plan) {
  transport::ZmqOptions zmq;
  zmq.context = std::make_shared<transport::ZmqContext>(1);
  zmq.self = EndpointId::Scheduler();
  transport_ = transport::NewZmqTransport(zmq).value();
  address_ = transport_->address();
  scheduler_ = std::thread([this, out] {
    scheduler::SchedulerOptions options;
    options.plan = plan_;
    options.out_dir = out;
    options.models.checkpoint_folder = out + "/model";
    options.abort = &abort_;
    ended_ = scheduler::ServeJob(options, *transport_, "ZeroMQ");
  });
  for (int s = 0; s < plan_.server_processes(); ++s) {
    servers_.emplace_back([this, s] {
      server::ServerOptions options;
      options.plan = plan_;
      options.member = MemberAt(plan_, address_, s);
      (void)server::RunServer(options);  // what went wrong is the scheduler's to say
    });
  }
}

ProgramCluster::~ProgramCluster() {
  abort_ = true;
  (void)Wait();
}

absl::Status ProgramCluster::Wait() {
  if (scheduler_.joinable()) scheduler_.join();
  for (std::thread& server : servers_) server.join();
  servers_.clear();
  return ended_;
}

std::unique_ptr<worker::AttachedWorker> ProgramCluster::Join(int rank) {
  worker::WorkerOptions options;
  options.plan = plan_;
  options.member = MemberAt(plan_, address_, rank);
  absl::StatusOr<std::unique_ptr<worker::AttachedWorker>> worker =
      worker::AttachedWorker::Join(std::move(options));
  TANDEM_CHECK_OK(worker.status());
  return *std::move(worker);
}

absl::Status ProgramCluster::Run(
    const std::function<void(worker::AttachedWorker& worker)>& program) {
  std::vector<std::thread> programs;
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    programs.emplace_back([this, rank, &program] {
      const std::unique_ptr<worker::AttachedWorker> worker = Join(rank);
      program(*worker);
    });
  }
  for (std::thread& thread : programs) thread.join();
  return Wait();
}

absl::Status TrainCompiled(const job::ResolvedJob& compiled, worker::AttachedWorker& worker,
                           float rate, absl::Duration pause) {
  return TrainingLoop(compiled, worker, rate, pause).Run();
}

}  // namespace tandem
