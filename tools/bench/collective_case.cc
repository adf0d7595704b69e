#include "tools/bench/collective_case.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::bench {
namespace {
constexpr double kFactor = 0.5;  // of premulsum; exact
}

absl::string_view BenchName(collectives::Primitive primitive) {
  return primitive == collectives::Primitive::kPointToPoint ? "sendrecv"
                                                            : collectives::PrimitiveName(primitive);
}

bool InBlocks(collectives::Primitive primitive) {
  switch (primitive) {
    case collectives::Primitive::kReduceScatter:
    case collectives::Primitive::kAllGather:
    case collectives::Primitive::kGather:
    case collectives::Primitive::kScatter:
    case collectives::Primitive::kAllToAll:
      return true;
    default:
      return false;
  }
}

int64_t CountOf(const CollectiveBenchOptions& options, int64_t bytes, int ranks) {
  if (options.primitive == collectives::Primitive::kBarrier) return 0;
  const auto element =
      static_cast<int64_t>(collectives::SizeOf(*collectives::ParseDataType(options.type)));
  const int64_t block = InBlocks(options.primitive) ? element * ranks : element;
  return std::max<int64_t>(1, bytes / block);
}

int64_t SizeOfCount(const CollectiveBenchOptions& options, int64_t count, int ranks) {
  const auto element =
      static_cast<int64_t>(collectives::SizeOf(*collectives::ParseDataType(options.type)));
  return count * element * (InBlocks(options.primitive) ? ranks : 1);
}

std::vector<int64_t> BenchSizes(const CollectiveBenchOptions& options) {
  if (options.primitive == collectives::Primitive::kBarrier) return {0};
  if (!options.sizes.empty()) return options.sizes;
  std::vector<int64_t> sizes;
  for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    sizes.push_back(bytes);
  }
  return sizes;
}

bool OverKernel(const CollectiveBenchOptions& options) {
  return options.link == "tcp" || options.link == "zmq";
}

std::vector<std::string> AlgorithmNames(const CollectiveBenchOptions& options) {
  if (options.primitive == collectives::Primitive::kPointToPoint) return {"auto"};
  std::vector<std::string> names;
  for (const std::string& name : options.algorithms) {
    if (name != "all") {
      names.push_back(name);
      continue;
    }
    for (const collectives::Algorithm a : collectives::AlgorithmsFor(options.primitive))
      names.emplace_back(collectives::AlgorithmName(a));
  }
  return names;
}

std::string ChoiceName(const collectives::AlgorithmChoice& choice) {
  const std::string name(collectives::AlgorithmName(choice.algorithm));
  if (choice.segment_bytes == 0) return name;
  return absl::StrCat(name, "/", choice.segment_bytes >> 10, "K");
}

absl::Status ReduceNumbers(collectives::Group& group, collectives::ReduceOp op,
                           std::vector<double>* numbers) {
  return group.Wait(group.AllReduce(numbers->data(), numbers->data(),
                                    static_cast<int64_t>(numbers->size()),
                                    collectives::DataType::kF64, op));
}

BenchCase::BenchCase(const CollectiveBenchOptions& options, collectives::Group& group,
                     int64_t count, const collectives::AlgorithmChoice& choice, bool in_place)
    : options_(options),
      group_(group),
      rank_(group.rank()),
      ranks_(group.ranks()),
      type_(*collectives::ParseDataType(options.type)),
      op_(*collectives::ParseReduceOp(options.op)),
      count_(count),
      in_place_(in_place),
      memory_(Bytes(count * ranks_)),
      second_(in_place ? 0 : Bytes(count * ranks_)),
      own_(ExactPattern::OfRank(op_, type_, rank_)) {
  call_.factor = kFactor;
  set_choice(choice);
  PlaceBuffers();
}

void BenchCase::set_choice(const collectives::AlgorithmChoice& choice) {
  if (options_.primitive != collectives::Primitive::kPointToPoint) call_.choice = choice;
}

void BenchCase::Fill() {
  const collectives::Primitive p = options_.primitive;
  const bool whole = p == collectives::Primitive::kReduceScatter ||
                     p == collectives::Primitive::kScatter ||
                     p == collectives::Primitive::kAllToAll;
  own_.Fill(0, whole ? count_ * ranks_ : count_, in_);
}

absl::Status BenchCase::Run() { return group_.Wait(Start()); }

absl::Status BenchCase::CheckedRun(int64_t* wrong) {
  Fill();
  TANDEM_RETURN_IF_ERROR(Run());
  std::vector<double> all = {static_cast<double>(CountWrong())};
  TANDEM_RETURN_IF_ERROR(ReduceNumbers(group_, collectives::ReduceOp::kSum, &all));
  *wrong += static_cast<int64_t>(all[0]);
  return absl::OkStatus();
}

int64_t BenchCase::CountWrong() const {
  const int root = options_.root, before = (rank_ + ranks_ - 1) % ranks_;
  switch (options_.primitive) {
    case collectives::Primitive::kAllReduce:
      return WrongReduced(0);
    case collectives::Primitive::kReduce:
      return rank_ == root ? WrongReduced(0) : 0;
    case collectives::Primitive::kReduceScatter:
      return WrongReduced(rank_ * count_);
    case collectives::Primitive::kBroadcast:
      return WrongBlock(root, 0, 0);
    case collectives::Primitive::kScatter:
      return WrongBlock(root, rank_ * count_, 0);
    case collectives::Primitive::kAllGather:
      return WrongBlocks(0);
    case collectives::Primitive::kGather:
      return rank_ == root ? WrongBlocks(0) : 0;
    case collectives::Primitive::kAllToAll:
      return WrongBlocks(rank_ * count_);
    case collectives::Primitive::kPointToPoint:
      return WrongBlock(before, 0, 0);
    case collectives::Primitive::kBarrier:
      return 0;
  }
  return 0;
}

void BenchCase::PlaceBuffers() {
  in_ = memory_.data();
  out_ = in_place_ ? in_ : second_.data();
  if (!in_place_) return;
  const collectives::Primitive p = options_.primitive;
  const int64_t own = Bytes(rank_ * count_);
  if (p == collectives::Primitive::kAllGather || p == collectives::Primitive::kGather) in_ += own;
  if (p == collectives::Primitive::kReduceScatter || p == collectives::Primitive::kScatter)
    out_ += own;
}

absl::StatusOr<collectives::Work> BenchCase::Start() {
  const int root = options_.root;
  switch (options_.primitive) {
    case collectives::Primitive::kAllReduce:
      return group_.AllReduce(in_, out_, count_, type_, op_, call_);
    case collectives::Primitive::kReduce:
      return group_.Reduce(in_, out_, count_, type_, op_, root, call_);
    case collectives::Primitive::kBroadcast:
      return group_.Broadcast(in_, out_, count_, type_, root, call_);
    case collectives::Primitive::kReduceScatter:
      return group_.ReduceScatter(in_, out_, count_, type_, op_, call_);
    case collectives::Primitive::kAllGather:
      return group_.AllGather(in_, out_, count_, type_, call_);
    case collectives::Primitive::kGather:
      return group_.Gather(in_, out_, count_, type_, root, call_);
    case collectives::Primitive::kScatter:
      return group_.Scatter(in_, out_, count_, type_, root, call_);
    case collectives::Primitive::kAllToAll:
      return group_.AllToAll(in_, out_, count_, type_, call_);
    case collectives::Primitive::kBarrier:
      return group_.Barrier(call_);
    case collectives::Primitive::kPointToPoint:
      return StartSendReceive();
  }
  return absl::InternalError("no such primitive");
}

absl::StatusOr<collectives::Work> BenchCase::StartSendReceive() {
  group_.GroupStart();
  const auto sent = group_.Send(in_, count_, type_, (rank_ + 1) % ranks_);
  const auto received = group_.Receive(out_, count_, type_, (rank_ + ranks_ - 1) % ranks_);
  absl::StatusOr<collectives::Work> work = group_.GroupEnd();
  TANDEM_RETURN_IF_ERROR(sent.status());
  TANDEM_RETURN_IF_ERROR(received.status());
  return work;
}

int64_t BenchCase::WrongReduced(int64_t from) const {
  return ExactPattern::Reduced(op_, type_, ranks_, kFactor).CountWrong(from, count_, out_);
}

int64_t BenchCase::WrongBlock(int r, int64_t from, int at) const {
  const uint8_t* const have = out_ + Bytes(at * count_);
  return ExactPattern::OfRank(op_, type_, r).CountWrong(from, count_, have);
}

int64_t BenchCase::WrongBlocks(int64_t from) const {
  int64_t wrong = 0;
  for (int r = 0; r < ranks_; ++r) wrong += WrongBlock(r, from, r);
  return wrong;
}

}  // namespace tandem::bench
