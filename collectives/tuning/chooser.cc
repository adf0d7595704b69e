#include "collectives/tuning/chooser.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::collectives {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
// An algorithm counts as faster than another only if its prediction is better by more than this
// share. Among algorithms that are equally fast, those that add in rank order come first, because
// cutting and fusing do not change their bits. Ranks that share cores wait for each other's turns,
// which no model of messages can predict, so the noise is larger there.
constexpr double kNoise = 0.05, kNoiseOfSharedCores = 0.25;
constexpr double kLatencyShare = 0.1;  // share of a bucket's time, at most
constexpr int64_t kMinBuckets = 4, kMaxBucket = 64 << 20;

// Reads rules from left to right. Errors contain the position.
class RuleReader {
 public:
  explicit RuleReader(absl::string_view text) : text_(text) {}

  absl::StatusOr<ChooserRules> Read() {
    ChooserRules rules;
    for (Skip(); at_ < text_.size(); Skip()) {
      TANDEM_ASSIGN_OR_RETURN(const Primitive primitive, ReadPrimitive());
      TANDEM_ASSIGN_OR_RETURN(std::vector<ChooserCase> cases, ReadCases(primitive));
      if (rules.Find(primitive, 0) != nullptr) return Error("one rule for each primitive");
      rules.Set(primitive, std::move(cases));
      if (at_ < text_.size() && !Take(';')) return Error("',' or ';'");
    }
    return rules;
  }

 private:
  void Skip() {
    while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) {
      ++at_;
    }
  }
  bool Take(char c) {
    Skip();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  absl::string_view Word() {
    Skip();
    begin_ = at_;
    while (at_ < text_.size() &&
           (absl::ascii_isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) {
      ++at_;
    }
    return text_.substr(begin_, at_ - begin_);
  }
  absl::Status Error(absl::string_view want) {
    Skip();
    return ErrorAt(at_, text_.substr(at_, 1), want);
  }
  absl::Status ErrorAtWord(absl::string_view want) {
    return ErrorAt(begin_, text_.substr(begin_, std::max<size_t>(at_ - begin_, 1)), want);
  }
  absl::Status ErrorAt(size_t where, absl::string_view have, absl::string_view want) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rules: at ", where, " (", have.empty() ? "the end" : absl::StrCat("'", have, "'"),
        "): expected ", want));
  }

  absl::StatusOr<Primitive> ReadPrimitive() {
    const absl::StatusOr<Primitive> primitive = ParsePrimitive(Word());
    if (!primitive.ok() || AlgorithmsFor(*primitive).empty()) {
      const auto name = [](std::string* out, Primitive p) {
        absl::StrAppend(out, PrimitiveName(p));
      };
      return ErrorAtWord(absl::StrCat("a primitive: ", absl::StrJoin(kPrimitives, ", ", name)));
    }
    if (!Take(':')) return Error("':'");
    return primitive;
  }

  // Reads the cases of one rule. The size is checked before the algorithm, in the order of the
  // text, so that an error names the first fault. A case without "<=" must be the last one: the
  // cases behind it would never be used.
  absl::StatusOr<std::vector<ChooserCase>> ReadCases(Primitive primitive) {
    std::vector<ChooserCase> cases;
    do {
      if (!cases.empty() && cases.back().max_bytes == kAny) {
        return Error("';': no case after the one without '<='");
      }
      ChooserCase& c = cases.emplace_back();
      c.max_bytes = kAny;
      if (Take('<')) {
        if (!Take('=')) return Error("'='");
        TANDEM_ASSIGN_OR_RETURN(c.max_bytes, ReadSize());
        TANDEM_RETURN_IF_ERROR(CheckAscending(cases));
        if (!Take('=')) return Error("'=' and an algorithm");
      }
      TANDEM_ASSIGN_OR_RETURN(c.choice.algorithm, ReadAlgorithm(primitive));
      if (Take('/')) {
        TANDEM_ASSIGN_OR_RETURN(c.choice.segment_bytes, ReadSize());
      }
    } while (Take(','));
    if (cases.back().max_bytes != kAny) return Error("',' and a case without '<=' at the end");
    return cases;
  }

  absl::Status CheckAscending(const std::vector<ChooserCase>& cases) {
    if (cases.size() < 2 || cases[cases.size() - 2].max_bytes < cases.back().max_bytes) {
      return absl::OkStatus();
    }
    return ErrorAtWord("a size above that of the case before");
  }

  absl::StatusOr<int64_t> ReadSize() {
    const absl::string_view word = Word();
    absl::string_view digits = word;
    const char unit =
        word.empty() ? ' ' : absl::ascii_toupper(static_cast<unsigned char>(word.back()));
    const int shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
    if (shift > 0) digits.remove_suffix(1);
    int64_t size = 0;
    if (!absl::SimpleAtoi(digits, &size) || size < 1 || size > (int64_t{1} << 30)) {
      return ErrorAtWord("a size such as 4096, 128K or 4M");
    }
    return size << shift;
  }

  absl::StatusOr<Algorithm> ReadAlgorithm(Primitive primitive) {
    const absl::StatusOr<Algorithm> algorithm = ParseAlgorithm(Word());
    if (algorithm.ok() && Supports(primitive, *algorithm)) return algorithm;
    const auto name = [](std::string* out, Algorithm a) { absl::StrAppend(out, AlgorithmName(a)); };
    return ErrorAtWord(absl::StrCat("an algorithm of ", PrimitiveName(primitive), ": ",
                                    absl::StrJoin(AlgorithmsFor(primitive), ", ", name)));
  }

  const absl::string_view text_;
  size_t at_ = 0, begin_ = 0;
};

std::string SizeName(int64_t bytes) {
  for (const auto& [shift, unit] : {std::pair{30, "G"}, {20, "M"}, {10, "K"}}) {
    if (bytes % (int64_t{1} << shift) == 0) return absl::StrCat(bytes >> shift, unit);
  }
  return absl::StrCat(bytes);
}

}  // namespace

// ---- Rules ----

absl::StatusOr<ChooserRules> ChooserRules::Parse(absl::string_view text) {
  return RuleReader(text).Read();
}

std::string ChooserRules::ToString() const {
  std::string out;
  for (const auto& [primitive, cases] : cases_) {
    absl::StrAppend(&out, out.empty() ? "" : "; ", PrimitiveName(primitive), ":");
    for (const ChooserCase& c : cases) {
      if (&c != &cases.front()) out += ',';
      if (c.max_bytes != kAny) absl::StrAppend(&out, "<=", SizeName(c.max_bytes), "=");
      absl::StrAppend(&out, AlgorithmName(c.choice.algorithm));
      if (c.choice.segment_bytes > 0) absl::StrAppend(&out, "/", SizeName(c.choice.segment_bytes));
    }
  }
  return out;
}

void ChooserRules::Set(Primitive primitive, std::vector<ChooserCase> cases) {
  TANDEM_CHECK(!cases.empty());
  cases.back().max_bytes = kAny;
  cases_[primitive] = std::move(cases);
}

void ChooserRules::Override(const ChooserRules& other) {
  for (const auto& [primitive, cases] : other.cases_) cases_[primitive] = cases;
}

const AlgorithmChoice* ChooserRules::Find(Primitive primitive, int64_t bytes) const {
  const auto found = cases_.find(primitive);
  if (found == cases_.end()) return nullptr;
  for (const ChooserCase& c : found->second) {
    if (bytes <= c.max_bytes) return &c.choice;
  }
  return nullptr;
}

Chooser ChooserFrom(std::shared_ptr<const ChooserRules> rules, int ranks, bool tcp) {
  return [rules = std::move(rules), otherwise = DefaultChooser(ranks, tcp)](Primitive primitive,
                                                                            int64_t bytes) {
    const AlgorithmChoice* const choice = rules->Find(primitive, bytes);
    return choice != nullptr ? *choice : otherwise(primitive, bytes);
  };
}

absl::StatusOr<std::string> TextOfRank0(Group& group, std::string text) {
  int64_t length = static_cast<int64_t>(text.size());
  TANDEM_RETURN_IF_ERROR(group.Wait(group.Broadcast(&length, &length, 1, DataType::kI64, 0)));
  if (length < 0 || length > 1 << 20) {
    return absl::DataLossError(
        absl::StrCat("rank 0 sent a text of ", length, " characters, at most 1 MiB is allowed"));
  }
  text.resize(static_cast<size_t>(length));
  TANDEM_RETURN_IF_ERROR(
      group.Wait(group.Broadcast(text.data(), text.data(), length, DataType::kU8, 0)));
  return text;
}

// ---- From costs to rules ----

absl::StatusOr<std::vector<Prediction>> Predict(Primitive primitive, int64_t bytes, int ranks,
                                                absl::Span<const int> host_of_rank,
                                                const Calibration& calibration) {
  CollectiveShape shape;
  shape.ranks = ranks;
  shape.host_of_rank.assign(host_of_rank.begin(), host_of_rank.end());
  std::vector<Prediction> all;
  for (const Algorithm algorithm : AlgorithmsFor(primitive)) {
    const bool one_host = std::count(host_of_rank.begin(), host_of_rank.end(),
                                     host_of_rank.empty() ? 0 : host_of_rank[0]) ==
                          static_cast<int64_t>(host_of_rank.size());
    if (algorithm == Algorithm::kHierarchical && one_host) continue;
    // Do not cut a vector whose part for each rank fits one segment.
    const int64_t segment =
        bytes / ranks > calibration.segment_bytes ? calibration.segment_bytes : 0;
    const absl::StatusOr<double> seconds = PredictEngineSeconds(
        primitive, algorithm, shape, bytes, segment, calibration.costs, calibration.cores);
    // The algorithm does not support this number of ranks.
    if (absl::IsUnimplemented(seconds.status())) continue;
    TANDEM_RETURN_IF_ERROR(seconds.status());
    all.push_back({{algorithm, segment}, *seconds});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Prediction& a, const Prediction& b) { return a.seconds < b.seconds; });
  return all;
}

absl::StatusOr<std::vector<Prediction>> Rank(Primitive primitive, int64_t bytes, int ranks,
                                             absl::Span<const int> host_of_rank,
                                             const Calibration& calibration) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<Prediction> all,
                          Predict(primitive, bytes, ranks, host_of_rank, calibration));
  int64_t size = kMinSize;
  while (size < bytes) size *= 2;
  for (const Trial& t : calibration.trials) {
    if (t.primitive != primitive || t.bytes != size) continue;
    for (Prediction& p : all) {
      if (p.choice.algorithm == t.choice.algorithm) p = {t.choice, t.seconds, true};
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Prediction& a, const Prediction& b) {
    return a.tried != b.tried ? a.tried : a.seconds < b.seconds;
  });
  return all;
}

bool SharesCores(int ranks, absl::Span<const int> host_of_rank, int cores) {
  if (host_of_rank.empty()) return ranks > cores;
  return std::any_of(host_of_rank.begin(), host_of_rank.end(), [&](int host) {
    return std::count(host_of_rank.begin(), host_of_rank.end(), host) > cores;
  });
}

namespace {

// The algorithm to take: the fastest; among algorithms that are as fast within the noise, one that
// adds in rank order. A trial is only compared with trials, since predictions are less exact.
// Requires at least one prediction.
AlgorithmChoice Preferred(absl::Span<const Prediction> fastest_first, double noise_of_predictions) {
  const Prediction& fastest = fastest_first.front();
  const double noise = fastest.tried ? kNoise : noise_of_predictions;
  for (const Algorithm algorithm : Algorithms()) {
    if (!AddsInRankOrder(algorithm)) continue;
    for (const Prediction& p : fastest_first) {
      if (p.choice.algorithm == algorithm && p.tried == fastest.tried &&
          fastest.seconds >= (1 - noise) * p.seconds) {
        return p.choice;
      }
    }
  }
  return fastest.choice;
}

}  // namespace

// For each primitive: finds the best algorithm for sizes that double (times 8 for many ranks,
// because a prediction then takes long), and joins neighbouring sizes with the same choice into one
// case. The longest size is included; the last case then counts for all longer vectors.
absl::StatusOr<ChooserRules> MakeRules(int ranks, absl::Span<const int> host_of_rank,
                                       const Calibration& calibration, const RuleScope& scope) {
  ChooserRules rules;
  const int64_t factor = ranks <= 32 ? 2 : 8;
  const double noise =
      SharesCores(ranks, host_of_rank, calibration.cores) ? kNoiseOfSharedCores : kNoise;
  for (const Primitive primitive : kPrimitives) {
    if (AlgorithmsFor(primitive).size() < 2 || ranks == 1) continue;
    if (!scope.primitives.empty() &&
        std::count(scope.primitives.begin(), scope.primitives.end(), primitive) == 0) {
      continue;
    }
    std::vector<ChooserCase> cases;
    for (int64_t bytes = kMinSize; bytes < factor * scope.max_bytes; bytes *= factor) {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<Prediction> all,
                              Rank(primitive, bytes, ranks, host_of_rank, calibration));
      if (all.empty()) break;
      const AlgorithmChoice choice = Preferred(all, noise);
      if (!cases.empty() && cases.back().choice.algorithm == choice.algorithm &&
          cases.back().choice.segment_bytes == choice.segment_bytes) {
        cases.back().max_bytes = bytes;
      } else {
        cases.push_back({bytes, choice});
      }
    }
    if (!cases.empty()) rules.Set(primitive, std::move(cases));
  }
  return rules;
}

// ---- Buckets ----

namespace {

bool HasSpareCores(int ranks, absl::Span<const int> host_of_rank, int cores) {
  const bool one_host = std::all_of(host_of_rank.begin(), host_of_rank.end(),
                                    [&](int host) { return host == host_of_rank[0]; });
  return !one_host || ranks < cores;
}

}  // namespace

// Reasons against buckets that need no prediction come first. Then bucket sizes double until
// latency is a small part of the time. If four such buckets would be larger than the gradient, the
// gradient is not cut.
absl::StatusOr<BucketChoice> ChooseBucket(int64_t gradient_bytes, int ranks,
                                          absl::Span<const int> host_of_rank,
                                          absl::optional<Algorithm> algorithm,
                                          const Calibration& calibration) {
  if (ranks == 1) return BucketChoice{0, "one rank has no other rank to wait for"};
  if (!HasSpareCores(ranks, host_of_rank, calibration.cores)) {
    return BucketChoice{0, absl::StrCat(ranks, " ranks on ", calibration.cores,
                                        " cores leave no core free to send during computation")};
  }
  const auto seconds = [&](int64_t bytes) -> absl::StatusOr<double> {
    TANDEM_ASSIGN_OR_RETURN(
        const std::vector<Prediction> all,
        Predict(Primitive::kAllReduce, bytes, ranks, host_of_rank, calibration));
    for (const Prediction& p : all) {
      if (p.choice.algorithm == algorithm.value_or(p.choice.algorithm)) return p.seconds;
    }
    // The algorithm does not support this number of ranks: take the best one.
    return all.front().seconds;
  };
  TANDEM_ASSIGN_OR_RETURN(const double latency, seconds(sizeof(float)));
  for (int64_t bytes = kMinBucketedBytes / kMinBuckets; bytes <= kMaxBucket; bytes *= 2) {
    if (kMinBuckets * bytes > gradient_bytes) {
      return BucketChoice{0, absl::StrCat(gradient_bytes, " bytes are fewer than ", kMinBuckets,
                                          " buckets of ", SizeName(bytes))};
    }
    TANDEM_ASSIGN_OR_RETURN(const double whole, seconds(bytes));
    if (latency > kLatencyShare * whole) continue;
    return BucketChoice{bytes, absl::StrFormat("an all-reduce of %s spends %.0f%% on latency",
                                               SizeName(bytes), 100 * latency / whole)};
  }
  return BucketChoice{0, "latency is more than a tenth of any bucket"};
}

// ---- Costs as text ----

std::string Calibration::ToString() const {
  std::string out = absl::StrFormat(
      "link %s\nranks %d\ncores %d\nlatency %.4g\nmessage %.4g\noperation %.4g\nturn %.4g\n"
      "segment %d\n",
      link.empty() ? "none" : link, ranks, cores, costs.latency, costs.message, costs.operation,
      costs.turn, segment_bytes);
  for (const ByteCosts& b : costs.bytes) {
    absl::StrAppendFormat(&out, "bytes %d write %.4g read %.4g fold %.4g copy %.4g\n", b.bytes,
                          b.write, b.read, b.fold, b.copy);
  }
  for (const Trial& t : trials) {
    absl::StrAppendFormat(&out, "tried %s %d %s/%d %.4g\n", PrimitiveName(t.primitive), t.bytes,
                          AlgorithmName(t.choice.algorithm), t.choice.segment_bytes, t.seconds);
  }
  return out;
}

namespace {

// Parses the words "tried", primitive, bytes, algorithm/segment, seconds.
bool ParseTrial(absl::Span<const std::string> words, Trial* out) {
  const std::pair<std::string, std::string> choice = absl::StrSplit(words[3], '/');
  const absl::StatusOr<Primitive> primitive = ParsePrimitive(words[1]);
  const absl::StatusOr<Algorithm> algorithm = ParseAlgorithm(choice.first);
  if (!primitive.ok() || !algorithm.ok() || !Supports(*primitive, *algorithm)) return false;
  out->primitive = *primitive;
  out->choice.algorithm = *algorithm;
  return absl::SimpleAtoi(words[2], &out->bytes) && out->bytes > 0 &&
         absl::SimpleAtoi(choice.second, &out->choice.segment_bytes) &&
         out->choice.segment_bytes >= 0 && absl::SimpleAtod(words[4], &out->seconds) &&
         out->seconds >= 0 && out->seconds < 1e6;
}

}  // namespace

// Lines are told apart by their number of words and then by the first word, in the order of
// ToString. Every line must be understood: a typing error must not silently leave a cost at zero.
absl::StatusOr<Calibration> Calibration::Parse(absl::string_view text) {
  Calibration out;
  const std::map<std::string, double*> numbers = {{"latency", &out.costs.latency},
                                                  {"message", &out.costs.message},
                                                  {"operation", &out.costs.operation},
                                                  {"turn", &out.costs.turn}};
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty() || words[0][0] == '#') continue;
    bool good = words.size() == 2;
    const auto seconds = [&](size_t i, double* to) {
      return absl::SimpleAtod(words[i], to) && *to >= 0 && *to < 1e6;
    };
    if (good && words[0] == "link") {
      out.link = words[1];
    } else if (good && (words[0] == "ranks" || words[0] == "cores")) {
      good = absl::SimpleAtoi(words[1], words[0] == "ranks" ? &out.ranks : &out.cores);
    } else if (good && words[0] == "segment") {
      good = absl::SimpleAtoi(words[1], &out.segment_bytes) && out.segment_bytes > 0;
    } else if (good) {
      const auto found = numbers.find(words[0]);
      good = found != numbers.end() && seconds(1, found->second);
    } else if (words.size() == 10 && words[0] == "bytes") {
      ByteCosts& b = out.costs.bytes.emplace_back();
      good = absl::SimpleAtoi(words[1], &b.bytes) && b.bytes > 0 && seconds(3, &b.write) &&
             seconds(5, &b.read) && seconds(7, &b.fold) && seconds(9, &b.copy);
    } else if (words.size() == 5 && words[0] == "tried") {
      good = ParseTrial(words, &out.trials.emplace_back());
    }
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat("calibration, line ", number, ": '", line,
                       "': expected 'NAME NUMBER', 'bytes N write S read S fold S copy S' or "
                       "'tried PRIMITIVE N ALGORITHM/SEGMENT S'"));
    }
  }
  if (out.costs.bytes.empty() || out.segment_bytes == 0) {
    return absl::InvalidArgumentError("calibration: no line 'bytes ...' or no 'segment ...'");
  }
  return out;
}

}  // namespace tandem::collectives
