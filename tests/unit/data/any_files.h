// Random files of each text format with a job that reads them, and all that a reader gives of them
// as text. For tests that compare two ways to read the same rows.
#ifndef TANDEM_TESTS_UNIT_DATA_ANY_FILES_H_
#define TANDEM_TESTS_UNIT_DATA_ANY_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "data/batch_source.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {

// A batch as text, or the error in its stead.
inline std::string Text(const absl::Status& status, const data::Batch& batch) {
  if (!status.ok()) return status.ToString();
  std::string text = absl::StrCat(batch.samples, " rows:");
  for (const float x : batch.labels) absl::StrAppend(&text, " ", x);
  for (const float x : batch.numbers) absl::StrAppend(&text, " ", x);
  for (const data::SparseInput& input : batch.sparse) {
    absl::StrAppend(&text, " | ");
    for (const uint64_t key : input.keys) absl::StrAppend(&text, " ", key);
    for (const uint32_t i : input.index) absl::StrAppend(&text, " ", i);
    for (const uint32_t i : input.offsets) absl::StrAppend(&text, " ", i);
    for (const float x : input.weights) absl::StrAppend(&text, " ", x);
  }
  return text;
}

struct Taken {
  std::string batch;  // empty: the epoch is over
  int64_t rows = 0;   // up to its end
  absl::optional<ReadPlace> place;
};

// The batches from here to the end of the epoch or to an error.
inline std::vector<Taken> TakeAll(data::BatchSource* source, int64_t rows) {
  std::vector<Taken> taken;
  data::Batch batch;
  for (;;) {
    const absl::Status status = source->Next(&batch);
    rows += status.ok() ? batch.samples : 0;
    taken.push_back({Text(status, batch), rows, source->Place()});
    if (!status.ok() || batch.samples == 0) return taken;
  }
}

inline void ExpectTheSame(const Taken& is, const Taken& expected) {
  EXPECT_EQ(is.batch, expected.batch);
  ASSERT_EQ(is.place.has_value(), expected.place.has_value());
  if (is.place.has_value()) {
    EXPECT_EQ(is.place->SerializeAsString(), expected.place->SerializeAsString());
  }
}

inline std::unique_ptr<data::BatchSource> Started(const job::ResolvedJob& plan, int rank) {
  auto source = data::NewTrainSource(plan, rank);
  EXPECT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE(!source.ok() || (*source)->StartEpoch(3).ok());
  return *std::move(source);
}

class AnyFiles {
 public:
  // `max_rows`: of each file.
  explicit AnyFiles(uint64_t seed, uint64_t max_rows = 80) : random_(seed), max_rows_(max_rows) {
    constexpr Data::Format kFormats[] = {Data::CRITEO, Data::LIBSVM, Data::DELIMITED};
    format_ = kFormats[random_.Uniform(3)];
    header_ = format_ == Data::DELIMITED && random_.Bernoulli(0.5);
    bad_ = random_.Bernoulli(0.5) ? 0.08 : 0;
    respelled_ = random_.Bernoulli(0.5);
    line_end_ = random_.Bernoulli(0.3) ? "\r\n" : "\n";
    std::vector<std::string> files;
    const size_t count = 1 + random_.Uniform(4);
    for (size_t i = 0; i < count; ++i) files.push_back(WriteFile(i));
    workers_ = 1 + static_cast<int>(random_.Uniform(4));
    plan_ = MakePlan(format_, files, workers_, 1 + static_cast<int>(random_.Uniform(6)));
    Describe(plan_.job.mutable_data());
  }

  const job::ResolvedJob& plan() const { return plan_; }
  const TempDir& dir() const { return dir_; }
  int workers() const { return workers_; }
  Random& random() { return random_; }

 private:
  std::string WriteFile(size_t i) {
    std::string text = random_.Bernoulli(0.2) ? "\xef\xbb\xbf" : "";
    if (header_) absl::StrAppend(&text, "\"the\nlabel\",n,c", line_end_);
    const size_t rows = random_.Uniform(5) == 0 ? 1 : 1 + random_.Uniform(max_rows_);
    for (size_t row = 0; row < rows; ++row) {
      if (random_.Bernoulli(0.1)) absl::StrAppend(&text, line_end_);
      if (format_ == Data::LIBSVM && random_.Bernoulli(0.1)) {
        absl::StrAppend(&text, "# a comment", line_end_);
      }
      text += AnyRow();
      if (row + 1 < rows || random_.Bernoulli(0.7)) text += line_end_;
    }
    const std::string name = absl::StrCat("f", i);
    return random_.Uniform(8) == 0 ? dir_.WriteGzip(name + ".gz", text) : dir_.Write(name, text);
  }

  std::string AnyRow() {
    const bool bad = random_.Bernoulli(bad_);
    const uint64_t number = random_.Uniform(50);
    switch (format_) {
      case Data::CRITEO: {
        std::string row = bad ? "x" : absl::StrCat(number % 2);
        for (int i = 0; i < 13; ++i) absl::StrAppend(&row, "\t", i == 2 ? "" : "7");
        for (int i = 0; i < 26; ++i) absl::StrAppend(&row, "\t", i % 3 == 0 ? number + 1 : i);
        return row;
      }
      case Data::LIBSVM:  // the first of the labels that count as 0 makes the other one a bad row
        return absl::StrCat(bad               ? (respelled_ ? "False" : "2")
                            : number % 2 == 0 ? "0"
                                              : "1",
                            " 3:0.5 ", number, ":1");
      default:
        return absl::StrCat(bad               ? "never"
                            : number % 2 == 0 ? "no"
                                              : "yes",
                            ",", number, ",",
                            random_.Bernoulli(0.2) ? "\"of\n\n\"\"two\"\" lines\"" : "plain");
    }
  }

  void Describe(Data* data) {
    data->set_deal(random_.Bernoulli(0.5) ? Data::BLOCKS : Data::ROWS);
    data->set_max_bad_rows(bad_ == 0 ? 0 : random_.Bernoulli(0.7) ? 1000 : 3);
    if (random_.Bernoulli(0.3)) data->mutable_validation()->set_fraction(0.4);
    if (random_.Bernoulli(0.3)) data->set_test_fraction(0.3);
    if (random_.Bernoulli(0.2)) data->set_max_rows(60);
    if (format_ != Data::DELIMITED) return;
    Columns* const columns = data->mutable_columns();
    columns->set_delimiter(",");
    columns->set_header(header_);
    columns->set_scale(random_.Bernoulli(0.5) ? Column::NONE : Column::STANDARDISE);
    columns->add_positive("yes");
    columns->set_label(header_ ? "the\nlabel" : "0");
    columns->add_numeric(header_ ? "n" : "1");
    columns->add_categorical(header_ ? "c" : "2");
    if (random_.Bernoulli(0.5)) return;
    Column* const many = columns->add_column();
    many->set_name(header_ ? "c" : "2");
    many->set_separator(" ");
    many->set_pooling(random_.Bernoulli(0.5) ? Column::SUM : Column::MEAN);
  }

  const TempDir dir_;
  Random random_;
  Data::Format format_ = Data::CRITEO;
  bool header_ = false;
  const uint64_t max_rows_;
  double bad_ = 0;          // share of bad rows
  bool respelled_ = false;  // LIBSVM: they have another label that may count as 0
  std::string line_end_;
  int workers_ = 1;
  job::ResolvedJob plan_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_DATA_ANY_FILES_H_
