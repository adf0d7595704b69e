#include "tests/unit/collectives/proof/checker.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/schedules/build.h"
#include "tests/unit/collectives/proof/replay.h"
#include "tests/unit/collectives/proof/symbols.h"

namespace tandem {
namespace {

using CountsByRank = absl::Span<const std::vector<int64_t>>;

// ---- Promises of the primitives ----

constexpr int kEverybody = -1;

// Output element x is made of input element x + shift, of `rank` or of every rank.
struct Want {
  collectives::Piece output;
  int rank = kEverybody;
  int64_t shift = 0;
};

Want Block(int64_t at, int rank, collectives::Piece input) {
  return {{at, input.count}, rank, input.begin - at};
}

std::vector<Want> Wants(collectives::Primitive primitive, const collectives::CollectiveShape& shape,
                        CountsByRank counts_by_rank) {
  const collectives::Piece all{0, OutputElements(primitive, shape)};
  std::vector<Want> wants;
  switch (primitive) {
    case collectives::Primitive::kAllReduce:
    case collectives::Primitive::kReduce:
      return {{all, kEverybody, 0}};
    case collectives::Primitive::kBroadcast:
      return {{all, shape.root, 0}};
    case collectives::Primitive::kReduceScatter:
      return {{all, kEverybody, shape.BlockOf(shape.rank).begin}};
    case collectives::Primitive::kScatter:
      return {{all, shape.root, shape.BlockOf(shape.rank).begin}};
    case collectives::Primitive::kGather:
      if (shape.rank != shape.root) return {};
      [[fallthrough]];
    case collectives::Primitive::kAllGather:
      for (int r = 0; r < shape.ranks; ++r) {
        const collectives::Piece block = shape.BlockOf(r);
        wants.push_back(Block(block.begin, r, {0, block.count}));
      }
      return wants;
    case collectives::Primitive::kAllToAll:
      for (int r = 0; r < shape.ranks; ++r) {
        const collectives::CollectiveShape sender = ShapeOf(shape, r, counts_by_rank);
        wants.push_back(Block(ReceiveBlock(shape, r).begin, r, SendBlock(sender, shape.rank)));
      }
      return wants;
    case collectives::Primitive::kBarrier:
    case collectives::Primitive::kPointToPoint:
      return {};
  }
  return {};
}

// ---- Symbolic run ----

class SymbolicRun : public ReplayVisitor {
 public:
  SymbolicRun(absl::Span<const collectives::Schedule> schedules, const ReplayOptions& options)
      : schedules_(schedules), options_(options), memory_(schedules.size()) {
    for (const collectives::Schedule& s : schedules) {
      const Segments input = {{0, s.input, sums_.Leaf(s.rank), 0}};
      if (s.input > 0) Write(s.rank, collectives::In({0, s.input}), input);
    }
  }

  void OnSend(const ReplayMessage& m) override {
    payloads_.push_back(Read(m.from, m.step, "send", m.piece));
  }

  void OnApply(int rank, int step, const collectives::Op& op,
               absl::Span<const ReplayMessage* const> messages) override {
    Segments result;
    if (op.kind == collectives::OpKind::kReceive) {
      result = TakePayload(*messages[0]);
    } else if (op.kind == collectives::OpKind::kFold) {
      result = Fold(rank, step, op, messages);
    } else {
      result = Read(rank, step, OpKindName(op.kind), op.operand);
      if (op.kind == collectives::OpKind::kReduce) result = Add(result, TakePayload(*messages[0]));
      if (op.kind == collectives::OpKind::kCombine) {
        result = Add(Read(rank, step, OpKindName(op.kind), op.piece), result);
      }
    }
    Write(rank, op.piece, std::move(result));
  }

  // The first read before a write; OK if there was none.
  const absl::Status& status() const { return status_; }

  absl::Status Check(int rank, const Want& want, bool rank_order) {
    const collectives::Piece& piece = want.output;
    const Segments segments =
        OfRegion(rank, collectives::Region::kOutput).Read(piece.begin, piece.end());
    int64_t at = piece.begin;
    for (const Segment& segment : segments) {
      TANDEM_RETURN_IF_ERROR(CheckSegment(rank, segment, want, rank_order));
      at = segment.end;
    }
    if (at == piece.end()) return absl::OkStatus();
    return Fault(rank, at, piece.end(), "nothing was ever written there");
  }

 private:
  SymbolicMemory& OfRegion(int rank, collectives::Region region) {
    return memory_[static_cast<size_t>(rank)].region[static_cast<size_t>(region)];
  }

  // Reads a piece. The result counts from the begin of the piece.
  Segments Read(int rank, int step, absl::string_view what, const collectives::Piece& piece) {
    if (piece.count == 0) return {};
    const Extent extent = ExtentOf(piece, rank, options_);
    Segments segments = OfRegion(rank, extent.region).Read(extent.begin, extent.end);
    if (status_.ok() && (segments.empty() || segments.back().end != extent.end)) {
      status_ = absl::InvalidArgumentError(absl::StrCat("rank ", rank, ", step ", step, ", ", what,
                                                        " reads ", piece.DebugString(),
                                                        " before all of it was written"));
    }
    Move(&segments, -extent.begin);
    return segments;
  }

  void Write(int rank, const collectives::Piece& piece, Segments segments) {
    const Extent extent = ExtentOf(piece, rank, options_);
    Move(&segments, extent.begin);
    OfRegion(rank, extent.region).Write(segments);
  }

  // The payload of a message; taken once, because a message is received once.
  Segments TakePayload(const ReplayMessage& m) {
    return std::move(payloads_[static_cast<size_t>(m.id)]);
  }

  Segments Add(const Segments& x, const Segments& y) {
    return status_.ok() ? AddSegments(x, y, &sums_) : x;
  }

  Segments Fold(int rank, int step, const collectives::Op& op,
                absl::Span<const ReplayMessage* const> messages) {
    Segments sum;
    size_t next = 0;
    const collectives::Schedule& s = schedules_[static_cast<size_t>(rank)];
    for (const int from : s.folds[static_cast<size_t>(op.peer)]) {
      Segments one = from == rank ? Read(rank, step, OpKindName(op.kind), op.operand)
                                  : TakePayload(*messages[next++]);
      sum = sum.empty() ? std::move(one) : Add(sum, one);
    }
    return sum;
  }

  // ---- Result of the run ----

  static absl::Status Fault(int rank, int64_t begin, int64_t end, absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, ", elements ",
                     collectives::Piece{begin, end - begin}.DebugString(), ": ", what));
  }

  absl::Status CheckSegment(int rank, const Segment& segment, const Want& want, bool rank_order) {
    const bool good =
        want.rank == kEverybody ? Complete(segment.sum) : sums_.IsLeaf(segment.sum, want.rank);
    if (!good || -segment.base != want.shift) {
      return Fault(rank, segment.begin, segment.end, Difference(segment, want));
    }
    if (rank_order && want.rank == kEverybody && !RankOrder(segment.sum)) {
      return Fault(
          rank, segment.begin, segment.end,
          absl::StrCat("not added in rank order, but as ", sums_.DebugString(segment.sum)));
    }
    return absl::OkStatus();
  }

  // Whether a sum has the contribution of every rank exactly once, all of the same element. The
  // answer is remembered, because many segments share a sum.
  bool Complete(int sum) {
    return Remember(&complete_, sum, [&] {
      std::vector<bool> seen(schedules_.size());
      const auto contributions = sums_.Contributions(sum);
      for (const Sums::Contribution& c : contributions) {
        if (c.offset != 0 || seen[static_cast<size_t>(c.rank)]) return false;
        seen[static_cast<size_t>(c.rank)] = true;
      }
      return contributions.size() == schedules_.size();
    });
  }
  bool RankOrder(int sum) {
    return Remember(&in_order_, sum,
                    [&] { return sums_.InRankOrder(sum, static_cast<int>(schedules_.size())); });
  }
  template <typename Function>
  static bool Remember(std::vector<int8_t>* known, int sum, Function compute) {
    const size_t at = static_cast<size_t>(sum);
    if (known->size() <= at) known->resize(at + 1, -1);
    if ((*known)[at] < 0) (*known)[at] = compute() ? 1 : 0;
    return (*known)[at] == 1;
  }

  // Describes the fault of a segment that is not as wanted.
  std::string Difference(const Segment& segment, const Want& want) const {
    const auto contributions = sums_.Contributions(segment.sum);
    for (int rank = 0; rank < static_cast<int>(schedules_.size()); ++rank) {
      const int64_t wanted = want.rank == kEverybody || want.rank == rank ? 1 : 0;
      const int64_t times = std::count_if(contributions.begin(), contributions.end(),
                                          [&](const auto& c) { return c.rank == rank; });
      if (times == wanted) continue;
      const std::string whose = absl::StrCat("the contribution of rank ", rank);
      if (times == 0) return absl::StrCat(whose, " is missing");
      if (times > 1) return absl::StrCat(whose, " is added ", times, " times");
      return absl::StrCat(whose, " does not belong there");
    }
    for (const Sums::Contribution& c : contributions) {
      const int64_t shift = c.offset - segment.base;
      if (shift == want.shift) continue;
      const collectives::Piece piece{segment.begin, segment.end - segment.begin,
                                     collectives::Region::kInput};
      collectives::Piece has = piece, should = piece;
      has.begin += shift;
      should.begin += want.shift;
      return absl::StrCat("holds ", has.DebugString(), " of rank ", c.rank, " where ",
                          should.DebugString(), " belongs");
    }
    TANDEM_CHECK(false);
  }

  struct Memory {
    SymbolicMemory region[collectives::kRegions];
  };

  const absl::Span<const collectives::Schedule> schedules_;
  const ReplayOptions& options_;
  Sums sums_;
  std::vector<Memory> memory_;  // by rank
  // By message id, counted from the begin of the message.
  std::vector<Segments> payloads_;
  std::vector<int8_t> complete_, in_order_;  // by sum; -1: not known yet
  absl::Status status_;
};

// Records who has heard of whose arrival. A barrier is right if every rank has heard of every rank.
class ArrivalRun : public ReplayVisitor {
 public:
  explicit ArrivalRun(size_t ranks) : heard_(ranks, std::vector<bool>(ranks)) {
    for (size_t r = 0; r < ranks; ++r) heard_[r][r] = true;
  }
  void OnSend(const ReplayMessage& m) override {
    told_.push_back(heard_[static_cast<size_t>(m.from)]);
  }
  void OnApply(int rank, int /*step*/, const collectives::Op& /*op*/,
               absl::Span<const ReplayMessage* const> messages) override {
    std::vector<bool>& mine = heard_[static_cast<size_t>(rank)];
    for (const ReplayMessage* m : messages) {
      const std::vector<bool>& told = told_[static_cast<size_t>(m->id)];
      for (size_t r = 0; r < mine.size(); ++r) mine[r] = mine[r] || told[r];
    }
  }
  absl::Status Check() const {
    for (size_t rank = 0; rank < heard_.size(); ++rank) {
      for (size_t other = 0; other < heard_.size(); ++other) {
        if (heard_[rank][other]) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", rank, " passes the barrier before rank ", other, " has come"));
      }
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::vector<bool>> heard_, told_;  // [rank][rank] and [message id][rank]
};

absl::Status CheckSizes(collectives::Primitive primitive, const collectives::CollectiveShape& shape,
                        CountsByRank counts_by_rank,
                        absl::Span<const collectives::Schedule> schedules) {
  if (schedules.size() != static_cast<size_t>(shape.ranks)) {
    return absl::InvalidArgumentError(
        absl::StrCat(schedules.size(), " schedules for ", shape.ranks, " ranks"));
  }
  for (const collectives::Schedule& s : schedules) {
    const collectives::CollectiveShape of_rank = ShapeOf(shape, s.rank, counts_by_rank);
    const int64_t input = InputElements(primitive, of_rank);
    const int64_t output = OutputElements(primitive, of_rank);
    if (s.input == input && s.output == output) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", s.rank, " has ", s.input, " elements of input and ", s.output,
                     " of output instead of ", input, " and ", output));
  }
  return absl::OkStatus();
}

// Checks the rules of build.h for all algorithms.
absl::Status CheckForm(collectives::Primitive primitive, collectives::Algorithm algorithm,
                       const collectives::CollectiveShape& shape,
                       absl::Span<const collectives::Schedule> schedules) {
  for (const collectives::Schedule& s : schedules) {
    if (s.steps.size() != schedules[0].steps.size()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", s.rank, " has ", s.steps.size(),
                                                     " steps, rank 0 ", schedules[0].steps.size()));
    }
    if (!CutsMessages(primitive, algorithm) || shape.segment == 0) continue;
    for (const collectives::Step& step : s.steps) {
      for (const collectives::Op& op : step.ops) {
        if (op.kind != collectives::OpKind::kSend || op.piece.count <= shape.segment) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", s.rank, " sends ", op.piece.DebugString(), " in segments of ", shape.segment));
      }
    }
  }
  return absl::OkStatus();
}

// The traffic of a schedule, counted op by op.
collectives::Traffic TrafficOf(const collectives::Schedule& schedule) {
  collectives::Traffic traffic;
  for (const collectives::Step& step : schedule.steps) {
    for (const collectives::Op& op : step.ops) {
      if (op.kind == collectives::OpKind::kSend)
        traffic = traffic + collectives::Traffic{1, op.piece.count};
    }
  }
  return traffic;
}

}  // namespace

absl::Status CheckSchedules(collectives::Primitive primitive,
                            const collectives::CollectiveShape& shape, CountsByRank counts_by_rank,
                            absl::Span<const collectives::Schedule> schedules,
                            const CheckOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckSizes(primitive, shape, counts_by_rank, schedules));
  ReplayOptions replay{options.channel, shape.in_place, {}};
  for (int rank = 0; rank < shape.ranks; ++rank) {
    replay.in_place_offset.push_back(
        InPlaceOffset(primitive, ShapeOf(shape, rank, counts_by_rank)));
  }
  if (primitive == collectives::Primitive::kBarrier) {
    ArrivalRun run(schedules.size());
    TANDEM_RETURN_IF_ERROR(Replay(schedules, replay, run));
    return run.Check();
  }
  SymbolicRun run(schedules, replay);
  TANDEM_RETURN_IF_ERROR(Replay(schedules, replay, run));
  TANDEM_RETURN_IF_ERROR(run.status());
  for (int rank = 0; rank < shape.ranks; ++rank) {
    for (const Want& want :
         Wants(primitive, ShapeOf(shape, rank, counts_by_rank), counts_by_rank)) {
      TANDEM_RETURN_IF_ERROR(run.Check(rank, want, options.rank_order));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTraffic(collectives::Primitive primitive, collectives::Algorithm algorithm,
                          const collectives::CollectiveShape& shape, CountsByRank counts_by_rank,
                          absl::Span<const collectives::Schedule> schedules) {
  for (const collectives::Schedule& s : schedules) {
    const collectives::Traffic want =
        AlgorithmTraffic(primitive, algorithm, ShapeOf(shape, s.rank, counts_by_rank));
    const collectives::Traffic have = TrafficOf(s);
    if (have == want) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", s.rank, " of ", s.ranks, " sends ", have.elements, " elements in ", have.messages,
        " messages; ", PrimitiveName(primitive), " by ", AlgorithmName(algorithm), " should send ",
        want.elements, " in ", want.messages));
  }
  return absl::OkStatus();
}

// Cheap checks come first, and their messages are simpler: the form of the schedules, then the
// traffic. The full proof then needs the links of ChannelNeeded, no more: a schedule that only
// finishes over larger links could deadlock in practice.
absl::Status CheckAlgorithm(collectives::Primitive primitive, collectives::Algorithm algorithm,
                            const collectives::CollectiveShape& shape,
                            CountsByRank counts_by_rank) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<collectives::Schedule> schedules,
                          MakeSchedules(primitive, algorithm, shape, counts_by_rank));
  TANDEM_RETURN_IF_ERROR(CheckForm(primitive, algorithm, shape, schedules));
  TANDEM_RETURN_IF_ERROR(CheckTraffic(primitive, algorithm, shape, counts_by_rank, schedules));
  return CheckSchedules(primitive, shape, counts_by_rank, schedules,
                        {.channel = ChannelNeeded(primitive, algorithm, shape),
                         .rank_order = AddsInRankOrder(algorithm)});
}

}  // namespace tandem
