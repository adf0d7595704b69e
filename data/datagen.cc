#include "data/datagen.h"

#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "data/metrics.h"
#include "data/planted.h"

namespace tandem::data {
namespace {

absl::Status FileError(absl::string_view doing, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(
      "cannot ", doing, " ", path, ": ", errno == 0 ? "write failed" : std::strerror(errno),
      "; hint: does the directory exist, is the disk full?"));
}

// A file that is written under a temporary name until Commit gives it its own name. Without Commit
// no file remains. A path that exists and is no regular file (a pipe, say) is written into
// directly.
class AtomicFile {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path) {
    const OutputPlace place = FindOutput(path);
    const std::string temporary =
        place.replaced ? absl::StrCat(place.path, ".tmp", getpid()) : place.path;
    if (place.replaced) unlink(temporary.c_str());  // a crash can have left one
    errno = 0;
    // Mode "T": zlib writes plain files, too. Mode "x": never through a link of another user.
    const std::string mode =
        absl::StrCat(absl::EndsWith(path, ".gz") ? "wbe1" : "wbeT", place.replaced ? "x" : "");
    gzFile file = gzopen(temporary.c_str(), mode.c_str());
    if (file == nullptr) return FileError("create", path);
    gzbuffer(file, 1 << 18);
    return std::unique_ptr<AtomicFile>(new AtomicFile(place.path, temporary, file));
  }
  ~AtomicFile() {
    if (file_ != nullptr) gzclose(file_);
    if (!committed_ && temporary_ != path_) unlink(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Write(absl::string_view text) {
    errno = 0;
    const int wrote = gzwrite(file_, text.data(), static_cast<unsigned>(text.size()));
    return wrote == static_cast<int>(text.size()) ? absl::OkStatus() : FileError("write", path_);
  }

  absl::Status Commit() {
    errno = 0;
    if (gzclose(std::exchange(file_, nullptr)) != Z_OK) return FileError("finish", path_);
    committed_ = true;  // or the file is gone
    return temporary_ == path_ ? absl::OkStatus() : PutInPlace(temporary_, path_);
  }

 private:
  AtomicFile(std::string path, std::string temporary, gzFile file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}

  const std::string path_, temporary_;
  gzFile file_;
  bool committed_ = false;
};

void AppendInteger(int32_t value, std::string* text) {
  char digits[12];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  text->append(digits, end - digits);
}

void AppendHex(uint32_t value, std::string* text) {
  char digits[8];
  for (int i = 7; i >= 0; --i, value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  text->append(digits, sizeof(digits));
}

// Formats one line: the label, 13 integers, 26 values; missing cells are empty.
void FormatRow(const PlantedSample& sample, bool positive, std::string* text) {
  text->assign(positive ? "1" : "0");
  for (int j = 0; j < kPlantedNumbers; ++j) {
    text->push_back('\t');
    if (!sample.number_missing[j]) AppendInteger(sample.numbers[j], text);
  }
  for (int f = 0; f < kPlantedFields; ++f) {
    text->push_back('\t');
    if (sample.ids[f] == PlantedModel::Cardinality(f)) continue;
    AppendHex(PlantedModel::ValueOf(f, sample.ids[f]), text);
  }
  text->push_back('\n');
}

// Writes `rows` rows of the part named `part` and calls visit(sample, label, logit) for each. Each
// row has a random stream of its own, so it does not depend on other rows.
template <typename Visit>
absl::Status WriteRows(const PlantedModel& model, uint64_t seed, absl::string_view part,
                       int64_t rows, AtomicFile* file, Visit visit) {
  const uint64_t stream = HashCombine(seed, HashName(part));
  PlantedSample sample;
  std::string text;
  for (int64_t r = 0; r < rows; ++r) {
    Random random(HashCombine(stream, static_cast<uint64_t>(r)));
    model.Draw(&random, &sample);
    const double logit = model.Logit(sample);
    const bool positive = random.Bernoulli(1.0 / (1.0 + std::exp(-logit)));
    FormatRow(sample, positive, &text);
    TANDEM_RETURN_IF_ERROR(file->Write(text));
    visit(sample, positive, logit);
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const DatagenOptions& options) {
  if (options.train.empty() || options.test.empty() || options.train == options.test) {
    return absl::InvalidArgumentError("datagen needs two different file names, for train and test");
  }
  if (options.train_rows < 1 || options.test_rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat("datagen was asked for ", options.train_rows,
                                                   " training and ", options.test_rows,
                                                   " test rows, expected at least 1 of each"));
  }
  if (!(options.skew >= 0 && options.skew <= kMaxSkew)) {
    return absl::InvalidArgumentError(
        absl::StrCat("datagen was asked for a skew of ", options.skew,
                     ", expected an exponent of Zipf's law from 0 (all ids alike) to ", kMaxSkew));
  }
  return absl::OkStatus();
}

std::string ReportJson(const DatagenReport& report) {
  return absl::StrFormat(
      "{\"planted_auc\": %.6f, \"attainable_auc\": %.6f, \"seed\": %d, \"skew\": %g, "
      "\"train_rows\": %d, "
      "\"test_rows\": %d, \"positive_share\": %.6f, \"knowable_sightings\": %d}\n",
      report.planted_auc, report.attainable_auc, report.seed, report.skew, report.train_rows,
      report.test_rows, report.positive_share, kKnowableSightings);
}

absl::Status WriteReport(const std::string& path, const DatagenReport& report) {
  TANDEM_ASSIGN_OR_RETURN(auto file, AtomicFile::Create(path));
  TANDEM_RETURN_IF_ERROR(file->Write(ReportJson(report)));
  return file->Commit();
}

}  // namespace

// Training rows come first: the attainable AUC of the test rows depends on the ids in them. No file
// gets its name before all rows are written, so that an error leaves earlier files as they were.
absl::StatusOr<DatagenReport> MakeCriteo(const DatagenOptions& options, std::ostream& log) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  TANDEM_ASSIGN_OR_RETURN(auto train, AtomicFile::Create(options.train));
  TANDEM_ASSIGN_OR_RETURN(auto test, AtomicFile::Create(options.test));
  const PlantedModel model(options.seed, options.skew);
  DatagenReport report{.train_rows = options.train_rows,
                       .test_rows = options.test_rows,
                       .seed = options.seed,
                       .skew = options.skew};
  Sightings seen;
  int64_t positives = 0;
  TANDEM_RETURN_IF_ERROR(WriteRows(model, options.seed, "train", options.train_rows, train.get(),
                                   [&](const PlantedSample& sample, bool positive, double) {
                                     seen.Add(sample);
                                     positives += positive ? 1 : 0;
                                   }));
  ScoreSample planted, attainable;
  TANDEM_RETURN_IF_ERROR(WriteRows(model, options.seed, "test", options.test_rows, test.get(),
                                   [&](const PlantedSample& sample, bool positive, double logit) {
                                     const float label = positive ? 1.0f : 0.0f;
                                     const float all = static_cast<float>(logit);
                                     const float known = static_cast<float>(
                                         model.KnowableLogit(sample, seen, kKnowableSightings));
                                     planted.Add({&all, 1}, {&label, 1});
                                     attainable.Add({&known, 1}, {&label, 1});
                                   }));
  report.positive_share = static_cast<double>(positives) / static_cast<double>(options.train_rows);
  report.planted_auc = planted.ComputeAuc().value;
  report.attainable_auc = attainable.ComputeAuc().value;
  TANDEM_RETURN_IF_ERROR(train->Commit());
  TANDEM_RETURN_IF_ERROR(test->Commit());
  TANDEM_RETURN_IF_ERROR(
      WriteReport(options.report.empty() ? options.train + ".json" : options.report, report));
  log << absl::StrFormat(
      "wrote %d training rows (%.1f%% positive) and %d test rows, seed %d\n"
      "AUC of the planted model on the test rows: %.4f\n"
      "attainable AUC (effects seen fewer than %d times in training set to zero): %.4f\n",
      report.train_rows, 100 * report.positive_share, report.test_rows, report.seed,
      report.planted_auc, kKnowableSightings, report.attainable_auc);
  return report;
}

absl::Status GenerateCriteo(const DatagenOptions& options, std::ostream& log) {
  return MakeCriteo(options, log).status();
}

}  // namespace tandem::data
