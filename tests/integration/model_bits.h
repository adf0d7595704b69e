// A trained model as plain data, to be compared bit for bit whoever trained it.
#ifndef TANDEM_TESTS_INTEGRATION_MODEL_BITS_H_
#define TANDEM_TESTS_INTEGRATION_MODEL_BITS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"

namespace tandem {

// By table, then by key: a row's weights followed by its optimizer slots. The dense parameters are
// the table "dense", keyed by block.
using ModelBits = std::map<std::string, std::map<uint64_t, std::vector<float>>>;

// All range files of a checkpoint, and its dense part. A key that two files hold is an error.
absl::StatusOr<ModelBits> ReadCheckpoint(const std::string& checkpoint);

// Runs a job and returns its model; empty after a failure, which is reported.
inline ModelBits TrainModel(const RunArguments& arguments) {
  const RunResult run = RunJob(arguments);
  EXPECT_TRUE(run.ok()) << run.DebugString();
  if (!run.ok()) return {};
  const absl::StatusOr<ModelBits> model = ReadCheckpoint(arguments.out + "/model");
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : ModelBits();
}

// "" if both are the same bit for bit, else the first difference and how many rows differ.
std::string Difference(const ModelBits& expected, const ModelBits& actual);

// Of the dense parameters of two models with the same blocks: the Euclidean distance.
double DenseDistance(const ModelBits& a, const ModelBits& b);

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_MODEL_BITS_H_
