#include "worker/quorum_sums.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/mailbox.h"
#include "optim/fold.h"
#include "worker/replica_digests.h"

namespace tandem::worker {
namespace {

constexpr int64_t kToLeader = 1, kToWorker = 2;            // tags
constexpr absl::Duration kLook = absl::Milliseconds(100);  // between two looks at the watch
constexpr absl::Duration kIdle = absl::Seconds(1);
constexpr int64_t kAddressBytes = 4096;

absl::Status VerdictOf(collectives::GroupWatch* watch) {
  return watch == nullptr ? absl::OkStatus() : watch->Verdict();
}

}  // namespace

absl::StatusOr<std::unique_ptr<collectives::AsyncGroup>> OpenQuorumMail(
    collectives::Group& group, const std::string& host, absl::Duration deadline,
    collectives::GroupWatch* watch) {
  collectives::AsyncGroupOptions options;
  options.rank = group.rank();
  options.ranks = group.ranks();
  options.host = host;
  options.links =
      collectives::LinkChoice::kTcp;  // few bytes, and nobody is to look again and again
  options.deadline = deadline;
  TANDEM_ASSIGN_OR_RETURN(auto mail, collectives::AsyncGroup::Open(std::move(options)));
  const size_t length = mail->address().size();
  if (length + sizeof length > kAddressBytes) return absl::InternalError("an address too long");
  std::string own(kAddressBytes, '\0');
  std::memcpy(own.data(), &length, sizeof length);
  std::memcpy(own.data() + sizeof length, mail->address().data(), length);
  std::string all(static_cast<size_t>(group.ranks()) * kAddressBytes, '\0');
  TANDEM_RETURN_IF_ERROR(group.Wait(
      group.AllGather(own.data(), all.data(), kAddressBytes, collectives::DataType::kU8)));
  std::vector<std::string> addresses;
  for (int r = 0; r < group.ranks(); ++r) {
    const char* const at = all.data() + static_cast<int64_t>(r) * kAddressBytes;
    size_t bytes = 0;
    std::memcpy(&bytes, at, sizeof bytes);
    addresses.emplace_back(at + sizeof bytes,
                           std::min<size_t>(bytes, kAddressBytes - sizeof bytes));
  }
  TANDEM_RETURN_IF_ERROR(mail->Connect(addresses, MonotonicNow() + deadline));
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool joined, mail->WaitConnected(MonotonicNow() + kLook));
    if (joined) return mail;
    TANDEM_RETURN_IF_ERROR(VerdictOf(watch));
  }
}

QuorumSums::QuorumSums(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
                       std::unique_ptr<collectives::AsyncGroup> mail,
                       collectives::GroupWatch* watch, Run run, Idle idle, const Options& options)
    : dense_(dense),
      mail_(std::move(mail)),
      watch_(watch),
      run_(std::move(run)),
      idle_(std::move(idle)),
      options_(options),
      summing_(dense.padded().size() + 1),
      leader_(options.leader),
      told_(static_cast<size_t>(options.leader.workers), -1),
      model_(std::move(model)),
      waiting_(dense.padded().size() + 1) {
  const absl::Status taken = model_->SetRowsWithSlots(dense_.RowsWithSlots());
  TANDEM_CHECK(taken.ok());
  summer_ = std::thread([this] { SumAll(); });
  if (mail_->rank() == 0) leading_ = std::thread([this] { Lead(); });
}

QuorumSums::~QuorumSums() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  mail_->Close();
  summer_.join();
  if (leading_.joinable()) leading_.join();
}

void QuorumSums::Fail(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (!closing_) failure_.Update(why);
  changed_.SignalAll();
}

// ---- the worker's thread ------------------------------------------------------------------------

void QuorumSums::BeforeStep() {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(sums_read_, sums_) == sums_) return;
  const absl::Span<const float> values = model_->values();
  std::copy(values.begin(), values.end(), dense_.values().begin());
}

absl::Status QuorumSums::Finish(absl::Span<float> gradient, const DenseReduction::Step& step,
                                std::vector<int64_t>* missed) {
  const auto count = static_cast<size_t>(dense_.count());
  TANDEM_CHECK(gradient.size() == dense_.padded().size() + 1);
  gradient[count] = static_cast<float>(step.samples);
  {
    absl::MutexLock lock(&mutex_);
    // What comes first is not added to zeros, which would change the sign of some.
    if (waiting_since_.empty()) {
      std::copy(gradient.begin(), gradient.end(), waiting_.begin());
    } else {
      for (size_t i = 0; i <= count; ++i) waiting_[i] += gradient[i];
    }
    waiting_since_.push_back(sums_read_);
  }
  gradient[count] = 0;  // padding again
  step_ = step.number + 1;
  TANDEM_RETURN_IF_ERROR(Tell({Says::kGradient, step.number}));
  return AwaitGoOn(missed);
}

absl::Status QuorumSums::OutOfData() { return Tell({Says::kOutOfData, 0}); }

absl::Status QuorumSums::Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) {
  {
    absl::MutexLock lock(&mutex_);
    settle_step_ = new_epoch ? step : step_;
  }
  TANDEM_RETURN_IF_ERROR(Tell({new_epoch ? Says::kSettleForNewEpoch : Says::kSettle, step}));
  TANDEM_RETURN_IF_ERROR(AwaitGoOn(missed));
  absl::MutexLock lock(&mutex_);
  sums_read_ = sums_;
  return dense_.SetRowsWithSlots(model_->RowsWithSlots());
}

absl::Status QuorumSums::Tell(const ToLeader& message) {
  if (mail_->rank() == 0) return Lead(0, message);
  return Send({static_cast<int64_t>(message.says), message.step, 0}, /*to=*/0, kToLeader);
}

absl::Status QuorumSums::AwaitGoOn(std::vector<int64_t>* missed) {
  absl::MutexLock lock(&mutex_);
  while (!go_on_ && failure_.ok()) {
    if (!changed_.WaitUntil(&mutex_, MonotonicNow() + kLook)) continue;
    TANDEM_RETURN_IF_ERROR(VerdictOf(watch_));
  }
  TANDEM_RETURN_IF_ERROR(failure_);
  go_on_ = false;
  activity_ = {};
  missed->insert(missed->end(), missed_.begin(), missed_.end());
  missed_.clear();
  return absl::OkStatus();
}

uint64_t QuorumSums::sums() const {
  absl::MutexLock lock(&mutex_);
  return sums_;
}

Activity QuorumSums::WaitingFor() const {
  absl::MutexLock lock(&mutex_);
  return activity_;
}

// ---- messages -----------------------------------------------------------------------------------

absl::Status QuorumSums::Send(const Bytes& bytes, int to, int64_t tag) {
  absl::MutexLock lock(&sent_mutex_);
  while (!sent_.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const bool ended, mail_->Wait(sent_.front().ticket, MonotonicNow()));
    if (!ended) break;
    sent_.pop_front();
  }
  Sent sent;
  sent.bytes = std::make_unique<Bytes>(bytes);
  const absl::Span<const uint8_t> raw(reinterpret_cast<const uint8_t*>(sent.bytes->data()),
                                      sizeof(Bytes));
  TANDEM_ASSIGN_OR_RETURN(sent.ticket, mail_->Send(raw, to, tag, options_.deadline));
  sent_.push_back(std::move(sent));
  return absl::OkStatus();
}

absl::StatusOr<QuorumSums::Bytes> QuorumSums::Receive(int from, int64_t tag, const Idle& idle,
                                                      int* who) {
  Bytes bytes = {};
  const absl::Span<uint8_t> room(reinterpret_cast<uint8_t*>(bytes.data()), sizeof bytes);
  TANDEM_ASSIGN_OR_RETURN(const auto ticket,
                          mail_->Receive(room, from, tag, absl::InfiniteDuration()));
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(
        const bool ended,
        mail_->Wait(ticket, idle ? MonotonicNow() + kIdle : absl::InfiniteFuture(), who));
    if (ended) return bytes;
    idle();
  }
}

// ---- at rank 0 ----------------------------------------------------------------------------------

void QuorumSums::Lead() {
  for (;;) {
    int worker = -1;
    const auto bytes = Receive(collectives::Mailbox::kAnyRank, kToLeader, nullptr, &worker);
    if (!bytes.ok()) return Fail(bytes.status());
    const ToLeader message = {static_cast<Says>((*bytes)[0]), (*bytes)[1]};
    if (const absl::Status led = Lead(worker, message); !led.ok()) return Fail(led);
  }
}

absl::Status QuorumSums::Lead(int worker, const ToLeader& message) {
  absl::MutexLock lock(&leader_mutex_);
  switch (message.says) {
    case Says::kGradient:
      leader_.OnGradient(worker, message.step);
      break;
    case Says::kOutOfData:
      leader_.OnOutOfData(worker);
      break;
    case Says::kSettle:
    case Says::kSettleForNewEpoch:
      leader_.OnSettle(worker, message.says == Says::kSettleForNewEpoch, message.step);
      break;
  }
  return TellAll();
}

absl::Status QuorumSums::TellAll() {
  for (bool more = true; more;) {
    ToWorker message;
    message.begins = leader_.Next();
    more = message.begins != QuorumLeader::Begins::kNothing;
    const std::vector<int>& released = leader_.released();
    for (int w = 0; w < options_.leader.workers; ++w) {
      message.go_on = std::find(released.begin(), released.end(), w) != released.end();
      if (more || message.go_on) TANDEM_RETURN_IF_ERROR(TellWorker(w, message));
    }
    leader_.ForgetReleased();
  }
  const int slowest = leader_.WaitingFor();
  for (int w = 0; w < options_.leader.workers; ++w) {
    if (!leader_.waits(w) || std::exchange(told_[static_cast<size_t>(w)], slowest) == slowest) {
      continue;
    }
    ToWorker message;
    message.waits_for = slowest;
    TANDEM_RETURN_IF_ERROR(TellWorker(w, message));
  }
  return absl::OkStatus();
}

absl::Status QuorumSums::TellWorker(int worker, const ToWorker& message) {
  if (message.go_on) told_[static_cast<size_t>(worker)] = -1;
  if (worker != 0) {
    return Send({static_cast<int64_t>(message.begins), message.go_on ? 1 : 0, message.waits_for},
                worker, kToWorker);
  }
  absl::MutexLock lock(&mutex_);
  for_me_.push_back(message);
  changed_.SignalAll();
  return absl::OkStatus();
}

// ---- the thread of sums -------------------------------------------------------------------------

absl::StatusOr<QuorumSums::ToWorker> QuorumSums::NextForMe() {
  if (mail_->rank() != 0) {
    TANDEM_ASSIGN_OR_RETURN(const Bytes bytes, Receive(/*from=*/0, kToWorker, idle_, nullptr));
    return ToWorker{static_cast<QuorumLeader::Begins>(bytes[0]), bytes[1] != 0, bytes[2]};
  }
  absl::MutexLock lock(&mutex_);
  while (for_me_.empty() && !closing_ && failure_.ok()) {
    if (!changed_.WaitUntil(&mutex_, MonotonicNow() + kIdle)) continue;
    mutex_.Unlock();
    idle_();
    mutex_.Lock();
  }
  TANDEM_RETURN_IF_ERROR(failure_);
  if (for_me_.empty()) return absl::CancelledError("the worker ends");
  const ToWorker message = for_me_.front();
  for_me_.pop_front();
  return message;
}

void QuorumSums::SumAll() {
  for (;;) {
    const absl::StatusOr<ToWorker> message = NextForMe();
    if (!message.ok()) return Fail(message.status());
    absl::Status summed;
    if (message->begins != QuorumLeader::Begins::kNothing) summed = Sum();
    if (summed.ok() && message->begins == QuorumLeader::Begins::kLastSum) summed = CompareModels();
    if (!summed.ok()) return Fail(summed);
    absl::MutexLock lock(&mutex_);
    if (message->go_on) go_on_ = true;
    activity_ = {};
    if (!message->go_on && message->waits_for >= 0) {
      const auto worker = static_cast<int>(message->waits_for);
      activity_ = {absl::StrCat("a gradient of worker ", worker), EndpointId::Worker(worker)};
    }
    changed_.SignalAll();
  }
}

absl::Status QuorumSums::Sum() {
  const auto count = static_cast<size_t>(dense_.count());
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_since_.empty()) {
      std::fill(summing_.begin(), summing_.end(), 0.0f);
    } else {
      summing_.swap(waiting_);
    }
    for (const uint64_t since : waiting_since_) {
      missed_.push_back(static_cast<int64_t>(sums_ - since));
    }
    waiting_since_.clear();
  }
  DenseReduction::Request request;
  request.count = static_cast<int64_t>(count) + 1;
  request.input = request.output = summing_.data();
  request.algorithm = options_.algorithm;
  TANDEM_RETURN_IF_ERROR(run_(request));
  const double samples = std::exchange(summing_[count], 0.0f);
  absl::MutexLock lock(&mutex_);
  if (samples > 0) {
    model_->Apply(absl::MakeConstSpan(summing_).first(summing_.size() - 1),
                  optim::FoldFactor(samples));
  }
  ++sums_;
  return absl::OkStatus();
}

absl::Status QuorumSums::CompareModels() {
  std::vector<uint64_t> digests(static_cast<size_t>(mail_->ranks()));
  const std::vector<int64_t> shares(digests.size(), 1);
  const auto rank = static_cast<size_t>(mail_->rank());
  int64_t step = 0;
  {
    absl::MutexLock lock(&mutex_);
    digests[rank] = model_->Digest();
    step = settle_step_;
  }
  DenseReduction::Request request;
  request.primitive = collectives::Primitive::kAllGather;
  request.type = collectives::DataType::kI64;
  request.counts = shares;
  request.input = &digests[rank];
  request.output = digests.data();
  TANDEM_RETURN_IF_ERROR(run_(request));
  return CompareReplicas(digests, mail_->rank(), step);
}

}  // namespace tandem::worker
