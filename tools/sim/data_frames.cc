#include "tools/sim/data_frames.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::sim {

void DataFrames::Send(const Outgoing& out) {
  const absl::StatusOr<ParsedFrame> frame = DecodeFrame(out.frame);
  if (!frame.ok()) {
    return context_.Fail(absl::StrCat("a core sent a bad frame: ", frame.status().ToString()));
  }
  const FrameHeader& h = frame->header;
  if (h.kind == FrameKind::kPush && (h.flags & kFlagAssign) == 0) {
    context_.observer.OnPush(h.sender.index, h.step);
  }
  if (context_.options.replacements > 0 && h.sender.role == Role::kWorker &&
      out.to.role == Role::kServer) {
    std::deque<Outgoing>& last = last_[static_cast<size_t>(h.sender.index)];
    last.push_back(out);
    if (last.size() > kLast) last.pop_front();
  }
  std::vector<absl::Time> arrivals;
  const size_t bytes = out.frame.TotalBytes();
  if (h.kind == FrameKind::kSegment) {
    arrivals = {network_.RouteOnConnection(context_.agenda.now(), h.sender, out.to, bytes)};
  } else {
    network_.Route(context_.agenda.now(), h.sender, out.to, bytes, &arrivals);
  }
  context_.trace.Frame(context_.agenda.now(), arrivals.empty() ? "lost" : "sent", out.to, h);
  for (const absl::Time at : arrivals) {
    const absl::Time sent = context_.agenda.now();
    context_.processes.At(out.to, at, [this, to = out.to, bytes = out.frame, sent] {
      if (sent >= context_.processes.connected_at(to)) Deliver(to, bytes);
    });
  }
}

void DataFrames::SendLetter(int from, int to, size_t bytes, std::function<void()> arrives) {
  constexpr int kLetters = 1;  // number of the connection; collectives use 0
  const absl::Time now = context_.agenda.now();
  const absl::Time at = network_.RouteOnConnection(now, EndpointId::Worker(from),
                                                   EndpointId::Worker(to), bytes, kLetters);
  context_.processes.At(EndpointId::Worker(to), at, std::move(arrives));
}

void DataFrames::Deliver(EndpointId to, const Frame& bytes) {
  const absl::StatusOr<ParsedFrame> frame = DecodeFrame(bytes);
  TANDEM_CHECK(frame.ok());
  context_.trace.Frame(context_.agenda.now(), "arrives", to, frame->header);
  arrive_(to, *frame);
}

void DataFrames::ArriveAgain(int rank) {
  for (const Outgoing& out : std::exchange(last_[static_cast<size_t>(rank)], {})) {
    context_.processes.After(out.to, kLatest * context_.random.NextDouble(),
                             [this, out] { Deliver(out.to, out.frame); });
  }
}

void DataFrames::StartCuts() {
  if (network_.options().cuts_per_second > 0) CutSomebodyOff();
}

EndpointId DataFrames::Anybody() {
  const job::ResolvedJob& plan = context_.plan;
  const int n = static_cast<int>(
      context_.random.Uniform(static_cast<uint64_t>(plan.shards() + plan.workers())));
  if (n >= plan.shards()) return EndpointId::Worker(n - plan.shards());
  return EndpointId::Shard(n / plan.shards_per_server(), n % plan.shards_per_server());
}

void DataFrames::CutSomebodyOff() {
  context_.agenda.After(network_.UntilNextCut(), [this] {
    const EndpointId a = Anybody();
    const EndpointId b = Anybody();
    const absl::Duration length = network_.LengthOfCut();
    context_.Log(absl::StrCat("cut between ", a.DebugString(), " and ", b.DebugString(), " for ",
                              absl::FormatDuration(length)));
    network_.Cut(a, b, context_.agenda.now() + length);
    CutSomebodyOff();
  });
}

}  // namespace tandem::sim
