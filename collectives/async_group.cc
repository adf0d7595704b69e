#include "collectives/async_group.h"

#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <linux/close_range.h>
#endif

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exhaustion.h"
#include "base/status_macros.h"
#include "collectives/errors.h"
#include "collectives/rendezvous/connect_links.h"
#include "proto/collectives.pb.h"

namespace tandem::collectives {
namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kTokenBytes = 16;
constexpr int kMaxNamed = 8;                               // ranks named in one error
constexpr absl::Duration kLook = absl::Milliseconds(100);  // longest sleep between two looks
// The time in which the mailbox learns who is lost.
constexpr absl::Duration kFirstHand = absl::Milliseconds(500);
constexpr absl::Duration kGoodbyeTime = absl::Milliseconds(500);  // for the last messages to leave

std::string NewToken() {
  std::string token(kTokenBytes, '\0');
  TANDEM_CHECK(getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()));
  return token;
}

// The membership as ConnectLinks wants it. `mail`: the membership of the second set of links, which
// carries the mailbox.
GroupMembership MembershipOf(int rank, const std::vector<rendezvous::GroupAddress>& addresses,
                             bool mail) {
  GroupMembership out;
  out.rank = rank;
  out.token = absl::StrCat(addresses[0].token(), mail ? "mail" : "");
  for (const rendezvous::GroupAddress& address : addresses) {
    out.members.push_back(MemberFrom(mail ? address.mail() : address.member()));
  }
  return out;
}

// Gives the calling thread, and the threads that it starts later, a descriptor table of their own.
// The table has only the standard streams and `kept`. A process that the program forks therefore
// inherits none of the group's descriptors. If the system cannot make such a table, nothing is
// closed, because the descriptors would be the program's own.
void OwnDescriptors(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  if (close_range(static_cast<unsigned>(kept.back()) + 1, ~0u, CLOSE_RANGE_UNSHARE) != 0) return;
  int next = STDERR_FILENO + 1;
  for (const int fd : kept) {
    if (fd > next) {
      (void)close_range(static_cast<unsigned>(next), static_cast<unsigned>(fd) - 1, 0);
    }
    next = std::max(next, fd + 1);
  }
}

}  // namespace

// Tells the thread of collectives about failures that the mailbox's thread has seen.
class AsyncGroup::Watch final : public GroupWatch {
 public:
  explicit Watch(AsyncGroup* group) : group_(group) {}
  absl::Status Verdict() override {
    if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
    absl::MutexLock lock(&group_->mutex_);
    return group_->failure_;
  }
  int fd() const override { return group_->news_.fd(); }
  absl::Status Agree(const absl::Status& seen) override { return group_->Agree(seen); }

  void Wake() {
    failed_.store(true, std::memory_order_release);
    group_->news_.Wake();
  }

 private:
  AsyncGroup* const group_;
  std::atomic<bool> failed_{false};
};

// The ports and links of the group. The group's own thread makes them, so their descriptors are in
// its table.
struct AsyncGroup::Links {
  LinkPorts ports, mail_ports;
  std::vector<std::unique_ptr<Link>> links, mail;
  std::vector<int> host_of_rank;
};

// Fails in a forked child, which has none of the threads. Call it before taking mutex_: at the fork
// another thread may have held the lock, and that thread does not exist in the child to release it.
absl::Status AsyncGroup::CheckProcess() const {
  if (process_ == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this group belongs to process ", process_,
                   " and cannot be used after fork(); create a group in the child"));
}

// ---- Opening and joining ------------------------------------------------------

AsyncGroup::AsyncGroup(AsyncGroupOptions options)
    : options_(std::move(options)),
      process_(static_cast<int>(getpid())),
      left_(static_cast<size_t>(options_.ranks)) {}

absl::StatusOr<std::unique_ptr<AsyncGroup>> AsyncGroup::Open(AsyncGroupOptions options) {
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " in a group of ",
                                                   options.ranks,
                                                   " ranks: ranks are numbered from 0"));
  }
  std::unique_ptr<AsyncGroup> group(new AsyncGroup(std::move(options)));
  group->thread_ = std::thread([self = group.get()] { self->Run(); });
  absl::MutexLock lock(&group->mutex_);
  while (!group->opened_) group->changed_.Wait(&group->mutex_);
  if (!group->failure_.ok()) return group->failure_;
  return group;
}

absl::Status AsyncGroup::OpenPorts(Links* links) {
  TANDEM_ASSIGN_OR_RETURN(links->ports,
                          LinkPorts::Open(options_.host, options_.links, options_.security));
  // Two sets of ports, one for each set of links. A fast member may connect its second set of links
  // while a slow member still accepts the first set; with one set of ports the slow member would
  // mix them up.
  const LinkChoice mail = options_.security.encrypts() ? LinkChoice::kAuto : LinkChoice::kTcp;
  TANDEM_ASSIGN_OR_RETURN(links->mail_ports,
                          LinkPorts::Open(options_.host, mail, options_.security));
  rendezvous::GroupAddress address;
  address.set_version(kVersion);
  address.set_rank(options_.rank);
  address.set_ranks(options_.ranks);
  address.set_token(NewToken());
  WriteMember(links->ports.member(), address.mutable_member());
  WriteMember(links->mail_ports.member(), address.mutable_mail());
  address_ = address.SerializeAsString();
  return absl::OkStatus();
}

absl::Status AsyncGroup::Connect(absl::Span<const std::string> addresses, absl::Time deadline) {
  if (addresses.size() != static_cast<size_t>(ranks())) {
    return absl::InvalidArgumentError(absl::StrCat(addresses.size(), " addresses for a group of ",
                                                   ranks(),
                                                   " ranks: expected one address for each rank"));
  }
  for (size_t r = 0; r < addresses.size(); ++r) {
    rendezvous::GroupAddress address;
    if (!address.ParseFromString(addresses[r]) || address.version() != kVersion ||
        address.token().size() != kTokenBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the address of rank ", r,
          " is invalid or from another version: pass the bytes of that rank's address unchanged"));
    }
    if (address.rank() != static_cast<int>(r) || address.ranks() != ranks()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the address of rank ", r, " belongs to rank ", address.rank(),
                       " in a group of ", address.ranks(), "; this group has ", ranks(), " ranks"));
    }
  }
  TANDEM_RETURN_IF_ERROR(CheckProcess());
  absl::MutexLock lock(&mutex_);
  TANDEM_RETURN_IF_ERROR(failure_);
  if (connecting_) return absl::FailedPreconditionError("the group is connected already");
  addresses_.assign(addresses.begin(), addresses.end());
  connect_by_ = deadline;
  connecting_ = true;
  called_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<bool> AsyncGroup::WaitConnected(absl::Time at_most) {
  TANDEM_RETURN_IF_ERROR(CheckProcess());
  absl::MutexLock lock(&mutex_);
  while (!connected_ && failure_.ok()) {
    if (changed_.WaitUntil(&mutex_, at_most)) break;
  }
  TANDEM_RETURN_IF_ERROR(failure_);
  return connected_;
}

absl::Status AsyncGroup::Interrupted() {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

absl::Status AsyncGroup::ConnectTo(Links* links) {
  std::vector<rendezvous::GroupAddress> addresses;
  absl::Time deadline;
  {
    absl::MutexLock lock(&mutex_);
    while (!connecting_ && !closing_) called_.Wait(&mutex_);
    if (closing_) return failure_;
    for (const std::string& bytes : addresses_) addresses.emplace_back().ParseFromString(bytes);
    deadline = connect_by_;
  }
  ConnectOptions connect;
  connect.interrupted = [this] { return Interrupted(); };
  connect.links = options_.links;
  const GroupMembership members = MembershipOf(rank(), addresses, false);
  auto joined = ConnectLinks(members, links->ports, connect, deadline);
  if (absl::IsDeadlineExceeded(joined.status())) {
    std::string tried;
    for (int r = 0; r < std::min(ranks(), kMaxNamed); ++r) {
      if (r == rank()) continue;
      absl::StrAppend(&tried, tried.empty() ? "" : ", ", "rank ", r, " at ",
                      members.members[static_cast<size_t>(r)].tcp_address);
    }
    return absl::DeadlineExceededError(
        absl::StrCat(joined.status().message(), " (tried: ", tried, ")"));
  }
  TANDEM_RETURN_IF_ERROR(joined.status());
  links->links = *std::move(joined);
  // The mailbox uses shared memory or TCP, even if the collectives use another link. If the caller
  // has asked for one of the two, the mailbox uses that one only.
  if (connect.links != LinkChoice::kShm && connect.links != LinkChoice::kTcp) {
    connect.links = LinkChoice::kAuto;
  }
  connect.shm_capacity = ShmLink::kDefaultCapacity / 4;
  TANDEM_ASSIGN_OR_RETURN(links->mail, ConnectLinks(MembershipOf(rank(), addresses, true),
                                                    links->mail_ports, connect, deadline));
  links->host_of_rank = members.HostOfRank();
  links->ports = LinkPorts();
  links->mail_ports = LinkPorts();
  return absl::OkStatus();
}

// The order matters. The descriptor table is split first, so every descriptor opened below is in
// the group's own table. The mailbox's thread starts before connected_ is set, because Post may
// queue messages from then on. The mailbox says goodbye and its thread ends before the links of the
// group end: the other ranks then see that this rank has left, and not that its connection broke.
void AsyncGroup::Run() {
  OwnDescriptors({wake_.fd(), news_.fd()});
  Watch watch(this);
  Links links;
  const absl::Status opened = CatchExceptions([&] { return OpenPorts(&links); });
  {
    absl::MutexLock lock(&mutex_);
    watch_ = &watch;
    opened_ = true;
    if (!opened.ok()) Fail(opened);
    changed_.SignalAll();
  }
  absl::Status joined = opened;
  if (opened.ok()) joined = CatchExceptions([&] { return ConnectTo(&links); });
  std::thread mail;
  std::optional<Mailbox> mailbox;
  if (joined.ok()) {
    mailbox.emplace(rank(), std::move(links.mail), Mailbox::Options());
    joined = CatchExceptions([&] {
      mail = std::thread([&] { RunMail(*mailbox); });
      return absl::OkStatus();
    });
  }
  {
    absl::MutexLock lock(&mutex_);
    connected_ = joined.ok();
    if (!joined.ok()) Fail(joined);
    changed_.SignalAll();
  }
  if (joined.ok()) {
    GroupOptions options;
    options.deadline = options_.deadline;
    options.reproducible = options_.reproducible;
    options.host_of_rank = links.host_of_rank;
    options.watch = &watch;
    options.agree = true;
    // The program computes meanwhile, so this thread must not spin on its cores.
    options.cores = 1;
    Group group(rank(), std::move(links.links), std::move(options));
    RunCollectives(group);
    // The mailbox has said goodbye before the links of the group end.
    mail.join();
  }
  absl::MutexLock lock(&mutex_);
  watch_ = nullptr;
  for (auto& [ticket, outcome] : outcomes_) {
    if (!std::exchange(outcome->ended, true)) outcome->status = failure_;
  }
  changed_.SignalAll();
}

// ---- Starting and waiting -----------------------------------------------------

absl::StatusOr<AsyncGroup::Ticket> AsyncGroup::NewTicket() {
  TANDEM_RETURN_IF_ERROR(failure_);
  if (!connected_) return absl::FailedPreconditionError("the group is not connected yet");
  outcomes_.emplace(next_, std::make_shared<Outcome>());
  return next_++;
}

absl::StatusOr<AsyncGroup::Ticket> AsyncGroup::Start(
    std::function<absl::StatusOr<Work>(Group&)> call) {
  TANDEM_RETURN_IF_ERROR(CheckProcess());
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const Ticket ticket, NewTicket());
  queued_.push_back({ticket, std::move(call)});
  called_.SignalAll();
  return ticket;
}

absl::StatusOr<AsyncGroup::Ticket> AsyncGroup::Post(Posted posted) {
  const int least = posted.send ? 0 : Mailbox::kAnyRank;
  if (posted.peer < least || posted.peer >= ranks() || posted.peer == rank()) {
    return WrongPeer(posted.send, posted.peer, rank(), ranks());
  }
  if (ranks() == 1) {
    return absl::InvalidArgumentError("receive from any rank: the group has only one rank");
  }
  TANDEM_RETURN_IF_ERROR(CheckProcess());
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const Ticket ticket, NewTicket());
  posted.ticket = ticket;
  posted_.push_back(posted);
  wake_.Wake();
  return ticket;
}

absl::StatusOr<AsyncGroup::Ticket> AsyncGroup::Send(absl::Span<const uint8_t> data, int to,
                                                    int64_t tag, absl::Duration deadline,
                                                    uint16_t elements) {
  Posted posted;
  posted.peer = to;
  posted.send = true;
  posted.elements = elements;
  posted.tag = tag;
  posted.data = data;
  posted.deadline = MonotonicNow() + deadline;
  return Post(posted);
}

absl::StatusOr<AsyncGroup::Ticket> AsyncGroup::Receive(absl::Span<uint8_t> room, int from,
                                                       int64_t tag, absl::Duration deadline,
                                                       uint16_t elements) {
  Posted posted;
  posted.peer = from;
  posted.elements = elements;
  posted.tag = tag;
  posted.room = room;
  posted.deadline = MonotonicNow() + deadline;
  return Post(posted);
}

absl::StatusOr<bool> AsyncGroup::Wait(Ticket ticket, absl::Time at_most, int* from) {
  TANDEM_RETURN_IF_ERROR(CheckProcess());
  absl::MutexLock lock(&mutex_);
  const auto it = outcomes_.find(ticket);
  if (it == outcomes_.end() || it->second->forgotten) {
    return absl::InvalidArgumentError(
        absl::StrCat("operation ", ticket,
                     " is unknown: it never began, was forgotten, or somebody has waited for it "
                     "already"));
  }
  // Other threads may wait for the operation too, or forget it. The outcome stays for all of them.
  const std::shared_ptr<Outcome> outcome = it->second;
  while (!outcome->ended) {
    if (changed_.WaitUntil(&mutex_, at_most) && !outcome->ended) return false;
  }
  outcomes_.erase(ticket);
  TANDEM_RETURN_IF_ERROR(outcome->status);
  if (from != nullptr) *from = outcome->from;
  return true;
}

void AsyncGroup::Forget(Ticket ticket) {
  if (!CheckProcess().ok()) return;
  absl::MutexLock lock(&mutex_);
  const auto it = outcomes_.find(ticket);
  if (it == outcomes_.end()) return;
  it->second->forgotten = true;
  if (it->second->ended) outcomes_.erase(it);
}

void AsyncGroup::End(Ticket ticket, const absl::Status& status, int from) {
  const auto it = outcomes_.find(ticket);
  if (it == outcomes_.end()) return;
  Outcome& outcome = *it->second;
  outcome.ended = true;
  outcome.status = status;
  outcome.from = from;
  if (outcome.forgotten) outcomes_.erase(it);  // threads that wait for it still have it
  changed_.SignalAll();
}

// ---- Failing and closing ------------------------------------------------------

// Makes `why` the failure of the group. Nothing can be started from now on. Operations that have
// not begun end here; operations that are running end in the threads that run them.
void AsyncGroup::Fail(const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  if (watch_ != nullptr) watch_->Wake();
  for (const Queued& queued : std::exchange(queued_, {})) End(queued.ticket, why, -1);
  for (const Posted& posted : std::exchange(posted_, {})) End(posted.ticket, why, -1);
  changed_.SignalAll();
  called_.SignalAll();
  wake_.Wake();
}

// Returns the failure that all ranks agree on. The rank that this thread saw leaving may be
// innocent: maybe it left because a third rank was lost. The mailbox soon hears which rank is
// really lost, so this thread waits a short time for that news before it returns what it saw.
absl::Status AsyncGroup::Agree(const absl::Status& seen) {
  const absl::optional<int> lost = LostPeer(seen);
  const absl::Time by = MonotonicNow() + kFirstHand;
  absl::MutexLock lock(&mutex_);
  absl::Status why = seen;
  if (absl::IsUnavailable(seen) && lost.has_value()) {
    const auto rank = static_cast<size_t>(*lost);
    while (failure_.ok() && !left_[rank] && !changed_.WaitUntil(&mutex_, by)) {
    }
    if (left_[rank]) why = PeerLostError(*lost, "it has closed the group");
  }
  Fail(why);
  // Wait until the mailbox has told the other ranks. A rank that ends because of this failure must
  // not become known as lost before they know the failure itself.
  const absl::Time told_by = MonotonicNow() + kGoodbyeTime;
  while (!told_ && !changed_.WaitUntil(&mutex_, told_by)) {
  }
  return failure_;
}

AsyncGroup::~AsyncGroup() { Close(); }

void AsyncGroup::Close() {
  if (process_ != getpid()) {
    // The thread belongs to the parent process, so this process cannot join it. Leak the object.
    (void)new std::thread(std::move(thread_));
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) told_ = true;  // the goodbye tells the others
    closing_ = true;
    Fail(absl::CancelledError("the group was closed"));
    called_.SignalAll();
    wake_.Wake();
  }
  if (thread_.joinable()) thread_.join();
}

// ---- Threads ------------------------------------------------------------------

void AsyncGroup::RunCollectives(Group& group) {
  for (;;) {
    Queued next;
    {
      absl::MutexLock lock(&mutex_);
      while (queued_.empty() && !closing_) called_.Wait(&mutex_);
      if (closing_) return;
      next = std::move(queued_.front());
      queued_.pop_front();
    }
    const absl::Status status = group.Wait(next.call(group));
    absl::MutexLock lock(&mutex_);
    if (!group.status().ok()) Fail(group.status());
    End(next.ticket, status, -1);
  }
}

// Passes on to the mailbox the sends, receives and failures that other threads have queued since
// the last call.
void AsyncGroup::TakeNews(Mailbox& mailbox) {
  wake_.Clear();
  std::vector<Posted> posted;
  absl::Status failed;
  {
    absl::MutexLock lock(&mutex_);
    posted.swap(posted_);
    if (!told_) failed = failure_;
  }
  for (const Posted& one : posted) {
    if (one.send) {
      mailbox.Send(one.ticket, one.peer, one.tag, one.data, one.deadline, one.elements);
    } else {
      mailbox.Receive(one.ticket, one.peer, one.tag, one.room, one.deadline, one.elements);
    }
  }
  if (!failed.ok()) Tell(mailbox, failed);
}

// Tells the other ranks why the group failed. The others must read this before they see ranks end
// because of the failure.
void AsyncGroup::Tell(Mailbox& mailbox, const absl::Status& why) {
  mailbox.Fail(why);
  (void)mailbox.Progress(MonotonicNow());
  absl::MutexLock lock(&mutex_);
  told_ = true;
  changed_.SignalAll();
}

void AsyncGroup::RunMail(Mailbox& mailbox) {
  bool heard = false;
  for (;;) {
    TakeNews(mailbox);
    const bool moved = mailbox.Progress(MonotonicNow());
    if (const absl::Status failed = mailbox.failure(); !failed.ok() && !heard) {
      heard = true;
      Tell(mailbox, failed);
    }
    const std::vector<Mailbox::Ended> ended = mailbox.TakeEnded();
    {
      absl::MutexLock lock(&mutex_);
      for (const Mailbox::Ended& one : ended) End(one.ticket, one.status, one.from);
      for (size_t r = 0; moved && r < left_.size(); ++r) {
        const bool left = mailbox.HasLeft(static_cast<int>(r));
        if (left && !left_[r]) changed_.SignalAll();
        left_[r] = left;
      }
      if (!mailbox.failure().ok()) Fail(mailbox.failure());
      if (closing_) break;
    }
    if (!moved) SleepOn(mailbox);
  }
  SayGoodbye(mailbox);
}

void AsyncGroup::SayGoodbye(Mailbox& mailbox) {
  mailbox.Leave();
  const absl::Time by = MonotonicNow() + kGoodbyeTime;
  while (!mailbox.AllSent() && MonotonicNow() < by) {
    if (!mailbox.Progress(MonotonicNow())) SleepOn(mailbox);
  }
  absl::MutexLock lock(&mutex_);
  for (const Mailbox::Ended& one : mailbox.TakeEnded()) End(one.ticket, one.status, one.from);
}

void AsyncGroup::SleepOn(const Mailbox& mailbox) {
  std::vector<pollfd> polled = {{wake_.fd(), POLLIN, 0}};
  bool ready = false, all_wake = true;
  for (int r = 0; r < ranks(); ++r) {
    Link* const link = mailbox.Awaited(r);
    if (link == nullptr) continue;
    ready = !link->PrepareToSleep() || ready;
    if (link->fd() < 0) {
      all_wake = false;
      continue;
    }
    polled.push_back(
        {link->fd(), static_cast<short>(POLLIN | (link->WantsWritable() ? POLLOUT : 0)), 0});
  }
  if (!ready) {
    const absl::Duration left =
        std::min(mailbox.NextDeadline() - MonotonicNow(), all_wake ? kLook : absl::Milliseconds(1));
    (void)poll(polled.data(), polled.size(),
               static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left))));
  }
  for (int r = 0; r < ranks(); ++r) {
    if (Link* const link = mailbox.Awaited(r); link != nullptr) link->WakeUp();
  }
}

}  // namespace tandem::collectives
