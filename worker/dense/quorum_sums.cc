#include "worker/dense/quorum_sums.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/mailbox.h"

namespace tandem::worker {
namespace {

constexpr int64_t kToLeader = 1, kToWorker = 2;            // message tags
constexpr absl::Duration kLook = absl::Milliseconds(100);  // between two looks at the watch
constexpr absl::Duration kIdle = absl::Seconds(1);
constexpr int64_t kAddressBytes = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<collectives::AsyncGroup>> OpenQuorumMail(
    collectives::Group& group, const std::string& host, absl::Duration deadline,
    AbortableWatch& watch, const collectives::GroupSecurity& security) {
  collectives::AsyncGroupOptions options;
  options.rank = group.rank();
  options.ranks = group.ranks();
  options.host = host;
  // The messages are short, and TCP needs no thread that polls.
  options.links =
      security.encrypts() ? collectives::LinkChoice::kZmq : collectives::LinkChoice::kTcp;
  options.security = security;
  options.deadline = deadline;
  TANDEM_ASSIGN_OR_RETURN(auto mail, collectives::AsyncGroup::Open(std::move(options)));
  // Addresses travel in fields of one size (length, then text), because an all-gather needs equal
  // sizes.
  const size_t length = mail->address().size();
  if (length + sizeof length > kAddressBytes)
    return absl::InternalError("the address for quorum messages is too long");
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
    TANDEM_RETURN_IF_ERROR(watch.Verdict());
  }
}

QuorumSums::QuorumSums(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
                       std::unique_ptr<collectives::AsyncGroup> mail, GroupRunner& runner,
                       const Options& options)
    : mail_(std::move(mail)),
      runner_(runner),
      options_(options),
      caller_(options.leader),
      member_(dense, std::move(model), {mail_->rank(), mail_->ranks(), options.algorithm}) {
  summer_ = std::thread([this] { SumAll(); });
  if (mail_->rank() != 0) return;
  leading_ = std::thread([this] { Lead(); });
  if (options_.leader.grace > absl::ZeroDuration()) graces_ = std::thread([this] { EndGraces(); });
}

QuorumSums::~QuorumSums() {
  runner_.Abort("the worker ends");
  // Wake all threads before joining them: the thread of sums waits on changed_ or for a message,
  // the grace thread on called_, and the leading thread for a message.
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  {
    absl::MutexLock lock(&caller_mutex_);
    calls_end_ = true;
    called_.SignalAll();
  }
  mail_->Close();
  summer_.join();
  if (leading_.joinable()) leading_.join();
  if (graces_.joinable()) graces_.join();
}

void QuorumSums::Fail(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (!closing_) failure_.Update(why);
  changed_.SignalAll();
}

// ---- the worker's thread ------------------------------------------------------------------------

void QuorumSums::BeforeStep() {
  absl::MutexLock lock(&mutex_);
  member_.BeforeStep();
}

absl::Status QuorumSums::Finish(absl::Span<float> gradient, const Step& step, StepResult* result) {
  // The gradient is added before rank 0 is told: rank 0 may begin the sum at once, and the sum must
  // contain the gradient.
  if (!gradient.empty()) Add(gradient, step);
  step_ = step.number + 1;
  TANDEM_RETURN_IF_ERROR(Tell({QuorumNews::Says::kGradient, step.number}));
  return AwaitContinue(&result->missed);
}

void QuorumSums::Add(absl::Span<float> gradient, const Step& step) {
  absl::MutexLock lock(&mutex_);
  member_.Add(gradient, step);
}

absl::Status QuorumSums::SetModel() {
  absl::MutexLock lock(&mutex_);
  return member_.SetModel();
}

absl::Status QuorumSums::OutOfData() { return Tell({QuorumNews::Says::kOutOfData, 0}); }

absl::Status QuorumSums::Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) {
  {
    absl::MutexLock lock(&mutex_);
    settle_step_ = new_epoch ? step : step_;
  }
  const auto says = new_epoch ? QuorumNews::Says::kSettleForNewEpoch : QuorumNews::Says::kSettle;
  TANDEM_RETURN_IF_ERROR(Tell({says, step}));
  TANDEM_RETURN_IF_ERROR(AwaitContinue(missed));
  absl::MutexLock lock(&mutex_);
  return member_.BecomeModel();
}

absl::Status QuorumSums::Tell(const QuorumNews& news) {
  if (mail_->rank() == 0) return Lead(0, news);
  return Send({static_cast<int64_t>(news.says), news.step, 0}, /*to=*/0, kToLeader);
}

absl::Status QuorumSums::AwaitContinue(std::vector<int64_t>* missed) {
  absl::MutexLock lock(&mutex_);
  while (!go_on_ && failure_.ok()) {
    if (!changed_.WaitUntil(&mutex_, MonotonicNow() + kLook)) continue;
    TANDEM_RETURN_IF_ERROR(runner_.Verdict());
  }
  TANDEM_RETURN_IF_ERROR(failure_);
  go_on_ = false;
  activity_ = {};
  member_.TakeMissed(missed);
  return absl::OkStatus();
}

uint64_t QuorumSums::sums() const {
  absl::MutexLock lock(&mutex_);
  return member_.sums();
}

Activity QuorumSums::WaitingFor() const {
  absl::MutexLock lock(&mutex_);
  return activity_;
}

// ---- messages -----------------------------------------------------------------------------------

absl::Status QuorumSums::Send(const Bytes& bytes, int to, int64_t tag) {
  absl::MutexLock lock(&sent_mutex_);
  // First free the memory of messages that have been sent.
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

absl::StatusOr<QuorumSums::Bytes> QuorumSums::Receive(int from, int64_t tag, bool idles, int* who) {
  Bytes bytes = {};
  const absl::Span<uint8_t> room(reinterpret_cast<uint8_t*>(bytes.data()), sizeof bytes);
  TANDEM_ASSIGN_OR_RETURN(const auto ticket,
                          mail_->Receive(room, from, tag, absl::InfiniteDuration()));
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(
        const bool ended,
        mail_->Wait(ticket, idles ? MonotonicNow() + kIdle : absl::InfiniteFuture(), who));
    if (ended) return bytes;
    runner_.Idle();
  }
}

// ---- at rank 0 ----------------------------------------------------------------------------------

void QuorumSums::Lead() {
  for (;;) {
    int worker = -1;
    const auto bytes = Receive(collectives::Mailbox::kAnyRank, kToLeader, /*idles=*/false, &worker);
    if (!bytes.ok()) return Fail(bytes.status());
    const QuorumNews news = {static_cast<QuorumNews::Says>((*bytes)[0]), (*bytes)[1]};
    if (const absl::Status led = Lead(worker, news); !led.ok()) return Fail(led);
  }
}

absl::Status QuorumSums::Lead(int worker, const QuorumNews& news) {
  absl::MutexLock lock(&caller_mutex_);
  calls_.clear();
  caller_.Hear(worker, news, &calls_, MonotonicNow());
  return CallAll();
}

absl::Status QuorumSums::CallAll() {
  for (const auto& [to, call] : calls_) TANDEM_RETURN_IF_ERROR(Call(to, call));
  called_.SignalAll();
  return absl::OkStatus();
}

void QuorumSums::EndGraces() {
  absl::MutexLock lock(&caller_mutex_);
  while (!calls_end_) {
    called_.WaitUntil(&caller_mutex_, std::min(caller_.wake(), MonotonicNow() + kIdle));
    if (calls_end_ || MonotonicNow() < caller_.wake()) continue;
    calls_.clear();
    caller_.Wake(MonotonicNow(), &calls_);
    if (const absl::Status called = CallAll(); !called.ok()) return Fail(called);
  }
}

absl::Status QuorumSums::Call(int worker, const QuorumCall& call) {
  if (worker != 0) {
    return Send({static_cast<int64_t>(call.begins), call.go_on ? 1 : 0, call.waits_for}, worker,
                kToWorker);
  }
  absl::MutexLock lock(&mutex_);
  for_me_.push_back(call);
  changed_.SignalAll();
  return absl::OkStatus();
}

// ---- the thread of sums -------------------------------------------------------------------------

absl::StatusOr<QuorumCall> QuorumSums::NextForMe() {
  if (mail_->rank() != 0) {
    TANDEM_ASSIGN_OR_RETURN(const Bytes bytes,
                            Receive(/*from=*/0, kToWorker, /*idles=*/true, nullptr));
    return QuorumCall{static_cast<QuorumLeader::Begins>(bytes[0]), bytes[1] != 0, bytes[2]};
  }
  absl::MutexLock lock(&mutex_);
  while (for_me_.empty() && !closing_ && failure_.ok()) {
    if (!changed_.WaitUntil(&mutex_, MonotonicNow() + kIdle)) continue;
    mutex_.Unlock();
    runner_.Idle();
    mutex_.Lock();
  }
  TANDEM_RETURN_IF_ERROR(failure_);
  if (for_me_.empty()) return absl::CancelledError("the worker ends");
  const QuorumCall call = for_me_.front();
  for_me_.pop_front();
  return call;
}

void QuorumSums::SumAll() {
  for (;;) {
    const absl::StatusOr<QuorumCall> call = NextForMe();
    if (!call.ok()) return Fail(call.status());
    absl::Status summed;
    if (call->begins != QuorumLeader::Begins::kNothing) summed = Sum();
    if (summed.ok() && call->begins == QuorumLeader::Begins::kLastSum) summed = CompareModels();
    if (!summed.ok()) return Fail(summed);
    absl::MutexLock lock(&mutex_);
    if (call->go_on) go_on_ = true;
    activity_ = {};
    if (!call->go_on && call->waits_for >= 0) {
      const auto worker = static_cast<int>(call->waits_for);
      activity_ = {absl::StrCat("a gradient of worker ", worker), EndpointId::Worker(worker)};
    }
    changed_.SignalAll();
  }
}

absl::Status QuorumSums::Sum() {
  // The lock is not held while the sum runs, so that the worker can add gradients and copy the
  // model.
  DenseReduction::Request request;
  {
    absl::MutexLock lock(&mutex_);
    request = member_.BeginSum();
  }
  TANDEM_RETURN_IF_ERROR(runner_.Run(request));
  absl::MutexLock lock(&mutex_);
  member_.EndSum();
  return absl::OkStatus();
}

absl::Status QuorumSums::CompareModels() {
  DenseReduction::Request request;
  {
    absl::MutexLock lock(&mutex_);
    request = member_.BeginCompare();
  }
  TANDEM_RETURN_IF_ERROR(runner_.Run(request));
  absl::MutexLock lock(&mutex_);
  return member_.EndCompare(settle_step_);
}

}  // namespace tandem::worker
