#include "models/model.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "capi/returns.h"
#include "capi/tandem_models.h"
#include "google/protobuf/text_format.h"

struct tandem_model {
  std::unique_ptr<tandem::models::DenseModel> model;
  std::vector<int64_t> pooled_floats;  // cells of a sample in floats, by table
  int numbers = 0;
  // For the current call; these members keep their memory.
  tandem::data::Batch batch;
  std::vector<float> logits;
  std::vector<tandem::models::PooledRows> cells;
  std::vector<absl::Span<float>> pooled_gradients;

  size_t floats() const { return static_cast<size_t>(model->parameter_count()); }
};

namespace tandem::capi {
namespace {

absl::Status New(const char* config, models::ModelInputs inputs, int threads,
                 tandem_model** model) {
  Model wanted;
  if (!google::protobuf::TextFormat::ParseFromString(config, &wanted)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model '", config, "': want what a job has in `model`, such as mlp { hidden: 16 }"));
  }
  if (wanted.has_script() || wanted.has_program()) {
    return absl::InvalidArgumentError(
        "model: a module of your own needs no compiled model; want one of "
        "logistic_regression, mlp, dlrm, gmf, neumf");
  }
  auto made = std::make_unique<tandem_model>();
  TANDEM_ASSIGN_OR_RETURN(made->model, models::NewDenseModel(wanted, inputs, threads));
  made->numbers = inputs.numeric;
  for (const auto& table : inputs.tables) {
    made->pooled_floats.push_back(int64_t{table.fields} * table.dim);
  }
  *model = made.release();
  return absl::OkStatus();
}

// Copies numbers of a batch and points to its cells.
void TakeBatch(tandem_model& m, int64_t samples, const float* inputs, const float* const* cells) {
  m.batch.samples = samples;
  m.batch.numeric = m.numbers;
  m.batch.numbers.assign(inputs, inputs + samples * m.numbers);
  m.logits.resize(static_cast<size_t>(samples));
  m.cells.clear();
  for (size_t t = 0; t < m.pooled_floats.size(); ++t) {
    m.cells.emplace_back(cells[t], static_cast<size_t>(samples * m.pooled_floats[t]));
  }
}

}  // namespace
}  // namespace tandem::capi

int tandem_model_new(const char* config, int32_t numbers, int32_t tables, const char* const* names,
                     const int32_t* fields, const int32_t* dim, int32_t threads,
                     tandem_model** model) {
  return tandem::capi::Call([&]() -> absl::Status {
    if (config == nullptr || model == nullptr ||
        (tables > 0 && (names == nullptr || fields == nullptr || dim == nullptr))) {
      return tandem::capi::Missing("config, names, fields, dim and model");
    }
    if (threads < 1) return absl::InvalidArgumentError("threads: want 1 or more");
    tandem::models::ModelInputs inputs;
    inputs.numeric = numbers;
    for (int32_t t = 0; t < tables; ++t) inputs.tables.push_back({names[t], fields[t], dim[t]});
    return tandem::capi::New(config, std::move(inputs), threads, model);
  });
}

int64_t tandem_model_floats(const tandem_model* model) { return model->model->parameter_count(); }

int32_t tandem_model_parameters(const tandem_model* model) {
  return static_cast<int32_t>(model->model->parameters().size());
}

const char* tandem_model_parameter(const tandem_model* model, int32_t i, int32_t* dims,
                                   const int64_t** shape, int64_t* offset) {
  const auto& parameters = model->model->parameters();
  if (i < 0 || static_cast<size_t>(i) >= parameters.size()) return nullptr;
  const auto& info = parameters[static_cast<size_t>(i)];
  *dims = static_cast<int32_t>(info.shape.size());
  *shape = info.shape.data();
  *offset = info.offset;
  return info.name.c_str();
}

int tandem_model_initial_values(const tandem_model* model, uint64_t seed, float* parameters) {
  return tandem::capi::Call([&]() -> absl::Status {
    if (parameters == nullptr) return tandem::capi::Missing("parameters");
    model->model->InitialValues(seed, absl::MakeSpan(parameters, model->floats()));
    return absl::OkStatus();
  });
}

int tandem_model_forward(tandem_model* model, int64_t samples, const float* inputs,
                         const float* const* cells, const float* parameters, float* logits) {
  return tandem::capi::Call([&]() -> absl::Status {
    if (samples < 0) return absl::InvalidArgumentError("samples: want 0 or more");
    tandem::capi::TakeBatch(*model, samples, inputs, cells);
    return model->model->Forward(model->batch, absl::MakeConstSpan(parameters, model->floats()),
                                 model->cells,
                                 absl::MakeSpan(logits, static_cast<size_t>(samples)));
  });
}

int tandem_model_backward(tandem_model* model, int64_t samples, const float* inputs,
                          const float* labels, const float* const* cells, const float* parameters,
                          double* loss, float* parameter_gradients,
                          float* const* pooled_gradients) {
  return tandem::capi::Call([&]() -> absl::Status {
    if (samples < 0) return absl::InvalidArgumentError("samples: want 0 or more");
    tandem_model& m = *model;
    tandem::capi::TakeBatch(m, samples, inputs, cells);
    m.batch.labels.assign(labels, labels + samples);
    m.pooled_gradients.clear();
    for (size_t t = 0; t < m.pooled_floats.size(); ++t) {
      m.pooled_gradients.emplace_back(pooled_gradients[t],
                                      static_cast<size_t>(samples * m.pooled_floats[t]));
    }
    return m.model->ForwardBackward(
        m.batch, absl::MakeConstSpan(parameters, m.floats()), m.cells, absl::MakeSpan(m.logits),
        loss, absl::MakeSpan(parameter_gradients, m.floats()), m.pooled_gradients);
  });
}

void tandem_model_free(tandem_model* model) { delete model; }
