// Speed of the dense models alone: forward, loss and backward on fixed inputs, no servers.
//
//   dlrm      13 numbers, 26 cells x 16, bottom 512-256-64-16, top 512-256-1, batch 2048
//   ncf_mlp   user 32 ++ item 32 -> 32 -> 16 -> 8 -> 1, batch 128 and 256
//   gmf       8 x 8 -> 1, batch 128 and 256
//   neumf     GMF 8 and MLP 32-16-8, batch 128 and 256
//
// Flags: --threads=N (1), --seconds=S of each line (1), --tiny (a few steps of each; for the
// tests). Each line: model, batch, samples/s of the median and the best of nine pieces,
// microseconds a step (median), and a checksum of the gradients that must not change with the
// speed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "google/protobuf/text_format.h"
#include "models/model.h"

namespace tandem {
namespace {

struct Options {
  int threads = 1;
  double seconds = 1.0;
  bool tiny = false;
};

// A model with inputs and room for its outputs.
struct Workload {
  std::unique_ptr<models::DenseModel> model;
  data::Batch batch;
  std::vector<float> flat, flat_gradient, logits;
  std::vector<std::vector<float>> rows, row_gradients;
  std::vector<models::PooledRows> pooled;
  std::vector<absl::Span<float>> pooled_gradients;

  double Step() {
    double loss = 0.0;
    TANDEM_CHECK_OK(model->ForwardBackward(batch, flat, pooled, absl::MakeSpan(logits), &loss,
                                           absl::MakeSpan(flat_gradient), pooled_gradients));
    return loss;
  }
};

std::vector<float> Normals(int64_t n, double deviation, Random* random) {
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(deviation * random->Normal());
  return values;
}

Workload MakeWorkload(const std::string& config, const models::ModelInputs& inputs, int64_t samples,
                      int threads) {
  Model proto;
  TANDEM_CHECK(google::protobuf::TextFormat::ParseFromString(config, &proto));
  auto model = models::NewDenseModel(proto, inputs, threads);
  TANDEM_CHECK_OK(model.status());
  Random random(1);
  Workload w;
  w.model = *std::move(model);
  w.batch.samples = samples;
  w.batch.numeric = inputs.numeric;
  w.batch.numbers = Normals(samples * inputs.numeric, 1.0, &random);
  for (int64_t s = 0; s < samples; ++s) w.batch.labels.push_back(random.Bernoulli(0.25) ? 1 : 0);
  w.flat = Normals(w.model->parameter_count(), 0.05, &random);
  w.flat_gradient.resize(w.flat.size());
  w.logits.resize(samples);
  for (const models::ModelInputs::TableInput& table : inputs.tables) {
    w.rows.push_back(Normals(samples * table.fields * table.dim, 0.1, &random));
    w.row_gradients.emplace_back(w.rows.back().size());
  }
  for (auto& rows : w.rows) w.pooled.push_back(rows);
  for (auto& rows : w.row_gradients) w.pooled_gradients.push_back(absl::MakeSpan(rows));
  return w;
}

double SecondsOf(Workload* w, int64_t steps) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < steps; ++i) w->Step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void Measure(const char* name, Workload w, const Options& options) {
  constexpr int kPieces = 9;
  int64_t steps = 1;
  if (!options.tiny) {
    SecondsOf(&w, 3);  // oneDNN generates its code on first use
    const double one = SecondsOf(&w, 3) / 3;
    steps = std::max<int64_t>(1, static_cast<int64_t>(options.seconds / kPieces / one));
  }
  std::vector<double> seconds;
  const double before = ProcessorSeconds();
  for (int i = 0; i < kPieces; ++i) seconds.push_back(SecondsOf(&w, steps) / steps);
  const double processor = (ProcessorSeconds() - before) / (kPieces * steps);
  std::sort(seconds.begin(), seconds.end());
  double checksum = w.Step();
  for (const float g : w.flat_gradient) checksum += g;
  const double samples = static_cast<double>(w.batch.samples);
  std::printf("%-8s %5d %12.0f %12.0f %12.0f %10.1f  %.6g\n", name, static_cast<int>(samples),
              samples / seconds[kPieces / 2], samples / seconds[0], samples / processor,
              1e6 * seconds[kPieces / 2], checksum);
}

models::ModelInputs TwoTables(int dim) { return {{{"user", 1, dim}, {"item", 1, dim}}, 0}; }

models::ModelInputs NeuMfTables() {
  return {{{"user_gmf", 1, 8}, {"item_gmf", 1, 8}, {"user_mlp", 1, 32}, {"item_mlp", 1, 32}}, 0};
}

models::ModelInputs DlrmInputs() {
  models::ModelInputs inputs;
  for (int t = 0; t < 26; ++t) inputs.tables.push_back({"c" + std::to_string(t), 1, 16});
  inputs.numeric = 13;
  return inputs;
}

void Run(const Options& options) {
  const int t = options.threads;
  std::printf("threads %d\n%-8s %5s %12s %12s %10s  %s\n", t, "model", "batch", "median/s",
              "best/s", "us/step", "checksum");
  const std::string dlrm =
      "dlrm { bottom: 512 bottom: 256 bottom: 64 bottom: 16 top: 512 top: 256 }";
  Measure("dlrm", MakeWorkload(dlrm, DlrmInputs(), options.tiny ? 64 : 2048, t), options);
  const std::string hidden = " { hidden: 32 hidden: 16 hidden: 8 }";
  for (const int batch : {128, 256}) {
    Measure("ncf_mlp", MakeWorkload("mlp" + hidden, TwoTables(32), batch, t), options);
    Measure("gmf", MakeWorkload("gmf {}", TwoTables(8), batch, t), options);
    Measure("neumf", MakeWorkload("neumf" + hidden, NeuMfTables(), batch, t), options);
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--threads=", 10) == 0) {
      options.threads = std::atoi(argv[i] + 10);
    } else if (std::strncmp(argv[i], "--seconds=", 10) == 0) {
      options.seconds = std::atof(argv[i] + 10);
    } else if (std::strcmp(argv[i], "--tiny") == 0) {
      options.tiny = true;
    } else {
      std::fprintf(stderr, "unknown flag %s; known: --threads=N --seconds=S --tiny\n", argv[i]);
      return 2;
    }
  }
  tandem::Run(options);
  return 0;
}
