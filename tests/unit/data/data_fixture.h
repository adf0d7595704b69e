// What tests of the readers share: files in a directory of their own, and small plans.
#ifndef TANDEM_TESTS_UNIT_DATA_DATA_FIXTURE_H_
#define TANDEM_TESTS_UNIT_DATA_DATA_FIXTURE_H_

#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "data/batch_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job.h"

namespace tandem {

// A directory that goes with the test.
class TempDir {
 public:
  TempDir() {
    std::string name = ::testing::TempDir() + "/tandem_data_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string Path(const std::string& name) const { return path_ + "/" + name; }

  std::string Write(const std::string& name, absl::string_view text) const {
    std::ofstream(Path(name), std::ios::binary).write(text.data(), text.size());
    return Path(name);
  }

  std::string WriteGzip(const std::string& name, const std::string& text) const {
    gzFile file = gzopen(Path(name).c_str(), "wb");
    EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
              static_cast<int>(text.size()));
    EXPECT_EQ(gzclose(file), Z_OK);
    return Path(name);
  }

  // One frame of zstd.
  std::string WriteZstd(const std::string& name, const std::string& text) const {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    const size_t size = ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1);
    EXPECT_FALSE(ZSTD_isError(size)) << ZSTD_getErrorName(size);
    return Write(name, packed.substr(0, size));
  }

 private:
  std::string path_;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// One table that reads every field.
inline job::ResolvedJob MakePlan(Data::Format format, const std::vector<std::string>& train,
                                 int workers, int batch) {
  job::ResolvedJob plan;
  plan.job.set_seed(1);
  plan.job.mutable_cluster()->set_workers(workers);
  plan.job.mutable_train()->set_batch_size(batch);
  plan.job.mutable_data()->set_format(format);
  for (const std::string& file : train) plan.job.mutable_data()->add_train(file);
  job::TablePlan table;
  table.name = "ids";
  table.dim = 4;
  plan.tables.push_back(table);
  return plan;
}

// A plan of files with rows of label, number and id.
inline job::ResolvedJob NumberedPlan(const std::vector<std::string>& train, int workers,
                                     int batch) {
  job::ResolvedJob plan = MakePlan(Data::DELIMITED, train, workers, batch);
  Columns* const columns = plan.job.mutable_data()->mutable_columns();
  columns->set_delimiter(",");
  columns->set_label("0");
  columns->add_numeric("1");
  columns->add_categorical("2");
  columns->set_scale(Column::NONE);
  return plan;
}

// All batches of one epoch.
inline std::vector<data::Batch> ReadEpoch(data::BatchSource* source, int64_t epoch) {
  std::vector<data::Batch> batches;
  EXPECT_TRUE(source->StartEpoch(epoch).ok());
  for (;;) {
    data::Batch batch;
    const absl::Status status = source->Next(&batch);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok() || batch.samples == 0) return batches;
    batches.push_back(batch);
  }
}

// One line that has all of `parts`.
inline void ExpectOneLine(const absl::Status& status, const std::vector<std::string>& parts) {
  ASSERT_FALSE(status.ok());
  const std::string message(status.message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string& part : parts) EXPECT_THAT(message, ::testing::HasSubstr(part));
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_DATA_DATA_FIXTURE_H_
