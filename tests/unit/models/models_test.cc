// The dense models against LibTorch's autograd in double precision, against finite differences, and
// against what the border promises: views, sums, sizes, errors, the same bits again.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

Model ParseModel(const std::string& text) {
  Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model)) << text;
  return model;
}

// A batch with random contents and room for every output.
struct Example {
  Example(const models::ModelInputs& inputs, int64_t samples, int64_t parameters, uint64_t seed) {
    Random random(seed);
    const auto fill = [&random](int64_t n, double deviation, std::vector<float>* out) {
      for (int64_t i = 0; i < n; ++i) out->push_back(float(deviation * random.Normal()));
    };
    batch.samples = samples;
    batch.numeric = inputs.numeric;
    fill(samples * inputs.numeric, 1.0, &batch.numbers);
    for (int64_t s = 0; s < samples; ++s) batch.labels.push_back(random.Bernoulli(0.4) ? 1 : 0);
    fill(parameters, 0.4, &flat);
    flat_gradient.assign(flat.size(), NAN);  // whatever is not written shows
    logits.assign(samples, NAN);
    for (const auto& table : inputs.tables) {
      rows.emplace_back();
      fill(samples * table.fields * table.dim, 0.7, &rows.back());
      row_gradients.emplace_back(rows.back().size(), NAN);
    }
  }

  std::vector<models::PooledRows> Pooled() const { return {rows.begin(), rows.end()}; }
  absl::Status Forward(models::DenseModel* model) {
    return model->Forward(batch, flat, Pooled(), absl::MakeSpan(logits));
  }
  absl::Status ForwardBackward(models::DenseModel* model) {
    std::vector<absl::Span<float>> gradients;
    for (auto& g : row_gradients) gradients.push_back(absl::MakeSpan(g));
    return model->ForwardBackward(batch, flat, Pooled(), absl::MakeSpan(logits), &loss,
                                  absl::MakeSpan(flat_gradient), gradients);
  }

  data::Batch batch;
  std::vector<float> flat, flat_gradient, logits;
  std::vector<std::vector<float>> rows, row_gradients;
  double loss = NAN;
};

// What the reference formulas read: leaves of an autograd graph in double precision.
struct Leaves {
  std::map<std::string, at::Tensor> parameters;
  std::vector<at::Tensor> cells;  // [B, fields, dim]
  at::Tensor numbers;             // [B, D]
};

at::Tensor Leaf(const std::vector<float>& data, int64_t offset, const std::vector<int64_t>& shape,
                bool gradient) {
  const at::Tensor view =
      at::from_blob(const_cast<float*>(data.data()) + offset, shape, at::kFloat);
  return view.to(at::kDouble).clone().requires_grad_(gradient);
}

Leaves MakeLeaves(const Example& example, const models::ModelInputs& inputs,
                  const models::DenseModel& model) {
  Leaves leaves;
  for (const models::ParameterInfo& p : model.parameters()) {
    leaves.parameters[p.name] = Leaf(example.flat, p.offset, p.shape, true);
  }
  const int64_t samples = example.batch.samples;
  for (size_t t = 0; t < inputs.tables.size(); ++t) {
    leaves.cells.push_back(
        Leaf(example.rows[t], 0, {samples, inputs.tables[t].fields, inputs.tables[t].dim}, true));
  }
  leaves.numbers = Leaf(example.batch.numbers, 0, {samples, inputs.numeric}, false);
  return leaves;
}

// Reference formulas, written from the papers with whole-tensor operations.
at::Tensor ReferenceStack(const Leaves& in, const std::string& name, at::Tensor x, int layers,
                          bool relu_last) {
  for (int l = 0; l < layers; ++l) {
    const std::string prefix = name + "." + std::to_string(l);
    x = at::linear(x, in.parameters.at(prefix + ".weight"), in.parameters.at(prefix + ".bias"));
    if (l + 1 < layers || relu_last) x = at::relu(x);
  }
  return x;
}

at::Tensor ReferenceLogisticRegression(const Leaves& in) {
  at::Tensor z = ReferenceStack(in, "numbers", in.numbers, 1, false).squeeze(1);
  for (const at::Tensor& cells : in.cells) z = z + cells.sum({1, 2});
  return z;
}

at::Tensor ReferenceMlp(const Leaves& in) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& cells : in.cells) parts.push_back(cells.flatten(1));
  parts.push_back(in.numbers);
  const int layers = static_cast<int>(in.parameters.size()) / 2;
  return ReferenceStack(in, "mlp", at::cat(parts, 1), layers, false).squeeze(1);
}

at::Tensor ReferenceDlrm(const Leaves& in) {
  const at::Tensor bottom = ReferenceStack(in, "bottom", in.numbers, 2, true);
  std::vector<at::Tensor> vectors = {bottom.unsqueeze(1)};
  vectors.insert(vectors.end(), in.cells.begin(), in.cells.end());
  const at::Tensor t = at::cat(vectors, 1);
  const at::Tensor dots = at::bmm(t, t.transpose(1, 2));
  const at::Tensor where = at::tril_indices(t.size(1), t.size(1), -1);
  const at::Tensor pairs = dots.index({at::indexing::Slice(), where[0], where[1]});
  return ReferenceStack(in, "top", at::cat({bottom, pairs}, 1), 3, false).squeeze(1);
}

at::Tensor ReferenceGmf(const Leaves& in) {
  const at::Tensor product = (in.cells[0] * in.cells[1]).squeeze(1);
  return ReferenceStack(in, "output", product, 1, false).squeeze(1);
}

// Tables in the order user_gmf, item_gmf, user_mlp, item_mlp.
at::Tensor ReferenceNeuMf(const Leaves& in) {
  const at::Tensor product = (in.cells[0] * in.cells[1]).squeeze(1);
  const at::Tensor x = at::cat({in.cells[2].squeeze(1), in.cells[3].squeeze(1)}, 1);
  const at::Tensor joined = at::cat({product, ReferenceStack(in, "mlp", x, 2, true)}, 1);
  return ReferenceStack(in, "output", joined, 1, false).squeeze(1);
}

struct Case {
  std::string name;
  std::string config;
  models::ModelInputs inputs;
  at::Tensor (*reference)(const Leaves&);
};

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

std::vector<Case> Cases() {
  const models::ModelInputs ncf = {{{"user", 1, 6}, {"item", 1, 6}}, 0};
  const models::ModelInputs four = {
      {{"user_gmf", 1, 4}, {"item_gmf", 1, 4}, {"user_mlp", 1, 6}, {"item_mlp", 1, 5}}, 0};
  return {
      {"LogisticRegression",
       "logistic_regression {}",
       {{{"a", 3, 1}, {"b", 1, 1}}, 4},
       ReferenceLogisticRegression},
      {"LogisticRegressionNoNumbers",
       "logistic_regression {}",
       {{{"a", 3, 1}}, 0},
       ReferenceLogisticRegression},
      {"Mlp", "mlp { hidden: 9 hidden: 5 }", {{{"a", 2, 3}, {"b", 1, 4}}, 5}, ReferenceMlp},
      {"MlpNoHidden", "mlp {}", {{{"a", 2, 3}}, 5}, ReferenceMlp},
      {"MlpNumbersOnly", "mlp { hidden: 4 }", {{}, 5}, ReferenceMlp},
      {"NcfMlp", "mlp { hidden: 8 hidden: 4 }", ncf, ReferenceMlp},
      {"Dlrm",
       "dlrm { bottom: 7 bottom: 4 top: 9 top: 5 }",
       {{{"a", 1, 4}, {"b", 3, 4}}, 5},
       ReferenceDlrm},
      {"DlrmNoTables", "dlrm { bottom: 7 bottom: 4 top: 9 top: 5 }", {{}, 5}, ReferenceDlrm},
      {"Gmf", "gmf {}", ncf, ReferenceGmf},
      {"NeuMf", "neumf { hidden: 8 hidden: 4 }", four, ReferenceNeuMf},
  };
}

class ModelsTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto model =
        models::NewDenseModel(ParseModel(GetParam().config), GetParam().inputs, /*threads=*/1);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  Example MakeExample(int64_t samples, uint64_t seed = TestSeed()) const {
    return Example(GetParam().inputs, samples, model_->parameter_count(), seed);
  }

  std::unique_ptr<models::DenseModel> model_;
};

// |have - want| within `tolerance` of the largest entry, or of 1.
void ExpectClose(absl::Span<const float> have, const at::Tensor& want, double tolerance,
                 const std::string& what) {
  const at::Tensor flat = want.detach().to(at::kDouble).flatten().contiguous();
  ASSERT_EQ(have.size(), static_cast<size_t>(flat.numel())) << what;
  double largest = 1.0;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    largest = std::max(largest, std::fabs(flat.data_ptr<double>()[i]));
  }
  for (size_t i = 0; i < have.size(); ++i) {
    ASSERT_NEAR(have[i], flat.data_ptr<double>()[i], tolerance * largest)
        << what << " [" << i << "]";
  }
}

// Logits, loss and every gradient are those of autograd in double precision on the formula of the
// paper. 600 samples: more than one block, and not a whole number of them.
TEST_P(ModelsTest, AgreesWithAutogradInDouble) {
  Example example = MakeExample(600);
  ASSERT_EQ(example.ForwardBackward(model_.get()), absl::OkStatus());
  const Leaves leaves = MakeLeaves(example, GetParam().inputs, *model_);
  const at::Tensor logits = GetParam().reference(leaves);
  const at::Tensor labels = Leaf(example.batch.labels, 0, {600}, false);
  const at::Tensor loss =
      at::binary_cross_entropy_with_logits(logits, labels, {}, {}, at::Reduction::Sum);
  loss.backward();

  ExpectClose(example.logits, logits, 1e-5, "logits");
  EXPECT_NEAR(example.loss, loss.item<double>(), 1e-5 * loss.item<double>());
  for (const models::ParameterInfo& p : model_->parameters()) {
    ExpectClose(absl::MakeSpan(example.flat_gradient).subspan(p.offset, p.size),
                leaves.parameters.at(p.name).grad(), 1e-5, p.name);
  }
  for (size_t t = 0; t < leaves.cells.size(); ++t) {
    ExpectClose(example.row_gradients[t], leaves.cells[t].grad(), 1e-5,
                "table " + std::to_string(t));
  }
}

// The slope that the gradients of `example` claim along a random direction (first) and the one
// measured by moving parameters and rows a little both ways (second).
std::pair<double, double> Slopes(const Example& example, models::DenseModel* model,
                                 Random* random) {
  constexpr double kStep = 1e-4;
  Example ahead = example, behind = example;
  double claimed = 0.0;
  const auto move = [&](const std::vector<float>& gradient, std::vector<float>* plus,
                        std::vector<float>* minus) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double direction = random->Normal();
      (*plus)[i] += static_cast<float>(kStep * direction);
      (*minus)[i] -= static_cast<float>(kStep * direction);
      claimed += gradient[i] * (double{(*plus)[i]} - (*minus)[i]) / (2 * kStep);
    }
  };
  move(example.flat_gradient, &ahead.flat, &behind.flat);
  for (size_t t = 0; t < example.rows.size(); ++t) {
    move(example.row_gradients[t], &ahead.rows[t], &behind.rows[t]);
  }
  EXPECT_EQ(ahead.ForwardBackward(model), absl::OkStatus());
  EXPECT_EQ(behind.ForwardBackward(model), absl::OkStatus());
  return {claimed, (ahead.loss - behind.loss) / (2 * kStep)};
}

double SquaredNorm(const std::vector<float>& v) {
  double sum = 0.0;
  for (const float x : v) sum += double{x} * x;
  return sum;
}

// The same without trusting any formula: the loss changes along a direction as the gradients say.
// Along a random direction the slope is about the gradient's norm; now and then a step crosses a
// kink of a ReLU, so the median of several directions counts.
TEST_P(ModelsTest, AgreesWithFiniteDifferences) {
  Example example = MakeExample(200);
  ASSERT_EQ(example.ForwardBackward(model_.get()), absl::OkStatus());
  double squares = SquaredNorm(example.flat_gradient);
  for (const auto& rows : example.row_gradients) squares += SquaredNorm(rows);
  Random random(TestSeed() + 1);
  std::vector<double> errors;
  for (int i = 0; i < 7; ++i) {
    const auto [claimed, measured] = Slopes(example, model_.get(), &random);
    errors.push_back(std::fabs(claimed - measured) / std::sqrt(squares));
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.1);
}

// Forward alone gives the bits of the logits that ForwardBackward gives.
TEST_P(ModelsTest, ForwardGivesTheSameLogits) {
  Example both = MakeExample(600), forward = both;
  ASSERT_EQ(both.ForwardBackward(model_.get()), absl::OkStatus());
  ASSERT_EQ(forward.Forward(model_.get()), absl::OkStatus());
  EXPECT_THAT(forward.logits, ElementsAreArray(both.logits));
}

// The same inputs give the same bits: again, after other batches of other sizes, in a second
// instance, and on another thread.
TEST_P(ModelsTest, SameInputsSameBits) {
  Example first = MakeExample(300), again = first, elsewhere = first;
  Example other = MakeExample(777, TestSeed() + 5);
  ASSERT_EQ(first.ForwardBackward(model_.get()), absl::OkStatus());
  ASSERT_EQ(other.ForwardBackward(model_.get()), absl::OkStatus());
  ASSERT_EQ(again.ForwardBackward(model_.get()), absl::OkStatus());
  auto twin =
      models::NewDenseModel(ParseModel(GetParam().config), GetParam().inputs, /*threads=*/1);
  ASSERT_TRUE(twin.ok());
  std::thread([&] { ASSERT_EQ(elsewhere.ForwardBackward(twin->get()), absl::OkStatus()); }).join();
  for (const Example* repeat : {&again, &elsewhere}) {
    EXPECT_EQ(repeat->loss, first.loss);
    EXPECT_THAT(repeat->logits, ElementsAreArray(first.logits));
    EXPECT_THAT(repeat->flat_gradient, ElementsAreArray(first.flat_gradient));
    for (size_t t = 0; t < first.rows.size(); ++t) {
      EXPECT_THAT(repeat->row_gradients[t], ElementsAreArray(first.row_gradients[t]));
    }
  }
}

// What is done for a GPU, done on the processor: the same logits, loss and gradients but for
// rounding; the gradient is where the others' sum takes it, and stays there if it is to.
TEST_P(ModelsTest, TheCodeForADeviceAgrees) {
  auto device = models::NewDenseModel(ParseModel(GetParam().config), GetParam().inputs,
                                      /*threads=*/1, models::ModelDevice::kCpuAsDevice);
  ASSERT_TRUE(device.ok()) << device.status();
  Example here = MakeExample(600), there = here;
  ASSERT_EQ(here.ForwardBackward(model_.get()), absl::OkStatus());
  ASSERT_EQ(there.ForwardBackward(device->get()), absl::OkStatus());
  const auto close = [](const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 1;
    for (const float x : a) largest = std::max<double>(largest, std::fabs(x));
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5 * largest) << i;
  };
  close(here.logits, there.logits);
  close(here.flat_gradient, there.flat_gradient);
  for (size_t t = 0; t < here.rows.size(); ++t)
    close(here.row_gradients[t], there.row_gradients[t]);
  EXPECT_NEAR(here.loss, there.loss, 1e-5 * here.loss);

  const size_t count = here.flat_gradient.size();
  float* const kept = *(*device)->DeviceGradient(/*zero=*/false);
  EXPECT_EQ(std::vector<float>(kept, kept + count), there.flat_gradient);
  (*device)->LeaveGradientOnDevice();
  std::vector<float> untouched(count, 17);
  std::swap(there.flat_gradient, untouched);
  ASSERT_EQ(there.ForwardBackward(device->get()), absl::OkStatus());
  EXPECT_EQ(there.flat_gradient, std::vector<float>(count, 17));
  EXPECT_EQ(std::vector<float>(kept, kept + count), untouched);
  ASSERT_TRUE((*device)->DeviceGradient(/*zero=*/true).ok());
  EXPECT_EQ(std::vector<float>(kept, kept + count), std::vector<float>(count, 0));
  EXPECT_EQ(model_->DeviceGradient(false).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Loss and gradients are sums over the samples: a batch twice in one batch gives twice each of
// them.
TEST_P(ModelsTest, LossAndGradientsAreSumsOverSamples) {
  Example once = MakeExample(40), twice = once;
  const auto repeat = [](std::vector<float>* v) {
    const std::vector<float> copy = *v;
    v->insert(v->end(), copy.begin(), copy.end());
  };
  twice.batch.samples *= 2;
  for (auto* v : {&twice.batch.numbers, &twice.batch.labels, &twice.logits}) repeat(v);
  for (auto& rows : twice.rows) repeat(&rows);
  for (auto& rows : twice.row_gradients) repeat(&rows);
  ASSERT_EQ(once.ForwardBackward(model_.get()), absl::OkStatus());
  ASSERT_EQ(twice.ForwardBackward(model_.get()), absl::OkStatus());
  EXPECT_NEAR(twice.loss, 2 * once.loss, 1e-6 * twice.loss);
  for (size_t i = 0; i < once.flat.size(); ++i) {
    EXPECT_NEAR(twice.flat_gradient[i], 2 * once.flat_gradient[i],
                1e-4 * (1 + std::fabs(once.flat_gradient[i])));
  }
}

// A worker that has run out of data computes an empty batch: loss 0, every gradient 0, no error.
TEST_P(ModelsTest, EmptyBatchContributesZeros) {
  Example empty = MakeExample(0);
  ASSERT_EQ(empty.ForwardBackward(model_.get()), absl::OkStatus());
  ASSERT_EQ(empty.Forward(model_.get()), absl::OkStatus());
  EXPECT_EQ(empty.loss, 0.0);
  EXPECT_THAT(empty.flat_gradient, ::testing::Each(0.0f));
}

// One sample alone gives what it gives among others.
TEST_P(ModelsTest, OneSampleGivesItsOwnLogit) {
  Example many = MakeExample(3), one = MakeExample(1);
  one.flat = many.flat;
  one.batch.numbers.assign(many.batch.numbers.begin(),
                           many.batch.numbers.begin() + GetParam().inputs.numeric);
  for (size_t t = 0; t < one.rows.size(); ++t) {
    one.rows[t].assign(many.rows[t].begin(), many.rows[t].begin() + one.rows[t].size());
  }
  ASSERT_EQ(many.ForwardBackward(model_.get()), absl::OkStatus());
  ASSERT_EQ(one.ForwardBackward(model_.get()), absl::OkStatus());
  EXPECT_NEAR(one.logits[0], many.logits[0], 1e-4);
  EXPECT_TRUE(std::isfinite(one.loss));
}

// Parameters are views: another buffer, or a changed one, is seen at the next call, and it is not
// written.
TEST_P(ModelsTest, ParametersAreReadFromTheBufferGiven) {
  Example example = MakeExample(10);
  ASSERT_EQ(example.Forward(model_.get()), absl::OkStatus());
  const std::vector<float> before = example.logits;
  const models::ParameterInfo& bias = model_->parameters().back();  // of the output layer
  ASSERT_EQ(bias.size, 1);
  example.flat[bias.offset] += 1.0f;
  const std::vector<float> flat = example.flat;
  ASSERT_EQ(example.ForwardBackward(model_.get()), absl::OkStatus());
  for (size_t s = 0; s < before.size(); ++s) EXPECT_NEAR(example.logits[s], before[s] + 1, 1e-5);
  EXPECT_THAT(example.flat, ElementsAreArray(flat));
}

// The parameters tile the flat buffer, with shapes that fit their sizes and names that differ.
TEST_P(ModelsTest, ParametersTileTheBuffer) {
  int64_t next = 0;
  std::map<std::string, int> names;
  for (const models::ParameterInfo& p : model_->parameters()) {
    EXPECT_EQ(p.offset, next);
    int64_t size = 1;
    for (const int64_t length : p.shape) size *= length;
    EXPECT_EQ(p.size, size);
    EXPECT_EQ(++names[p.name], 1) << p.name;
    EXPECT_NE(p.initializer.kind(), Initializer::INITIALIZER_UNSPECIFIED) << p.name;
    next += p.size;
  }
  EXPECT_EQ(next, model_->parameter_count());
}

// Spans of a wrong size are refused with the numbers, not read.
TEST_P(ModelsTest, RefusesSpansOfAWrongSize) {
  const Example good = MakeExample(4);
  const auto message = [this](Example bad) {
    const absl::Status status = bad.ForwardBackward(model_.get());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  Example bad = good;
  bad.flat.push_back(0);
  EXPECT_THAT(message(bad), HasSubstr("parameters: have"));
  bad = good;
  bad.logits.pop_back();
  EXPECT_THAT(message(bad), HasSubstr("logits: have 3 elements, need 4"));
  bad = good;
  bad.flat_gradient.clear();
  EXPECT_THAT(message(bad), HasSubstr("gradient: have 0"));
  bad = good;
  bad.batch.labels.pop_back();
  EXPECT_THAT(message(bad), HasSubstr("labels: have 3"));
  bad = good;
  bad.batch.numeric += 1;
  EXPECT_THAT(message(bad), HasSubstr("numbers a sample"));
  if (good.rows.empty()) return;
  bad = good;
  bad.rows[0].pop_back();
  EXPECT_THAT(message(bad), HasSubstr("pooled rows of table"));
  bad = good;
  bad.row_gradients[0].pop_back();
  EXPECT_THAT(message(bad), HasSubstr("(gradient): have"));
  bad = good;
  bad.rows.pop_back();
  EXPECT_THAT(message(bad), HasSubstr("tables of pooled rows"));
}

INSTANTIATE_TEST_SUITE_P(All, ModelsTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

// Logits far from 0 give a finite loss and gradients: the cross-entropy does not overflow.
TEST(ModelTest, LossOfExtremeLogitsIsFinite) {
  const models::ModelInputs inputs = {{{"a", 1, 1}}, 0};
  auto model = models::NewDenseModel(ParseModel("logistic_regression {}"), inputs, 1);
  ASSERT_TRUE(model.ok());
  Example example(inputs, 2, (*model)->parameter_count(), 1);
  example.flat.assign(example.flat.size(), 0.0f);
  example.rows[0] = {1000.0f, -1000.0f};
  example.batch.labels = {0.0f, 1.0f};
  ASSERT_EQ(example.ForwardBackward(model->get()), absl::OkStatus());
  EXPECT_DOUBLE_EQ(example.loss, 2000.0);
  EXPECT_THAT(example.row_gradients[0], ElementsAreArray({1.0f, -1.0f}));
}

// A NaN on the way in comes out as a NaN loss, which the trainer looks for.
TEST(ModelTest, NanReachesTheLoss) {
  const models::ModelInputs inputs = {{{"a", 1, 4}}, 3};
  auto model = models::NewDenseModel(ParseModel("mlp { hidden: 8 hidden: 4 }"), inputs, 1);
  ASSERT_TRUE(model.ok());
  Example example(inputs, 5, (*model)->parameter_count(), 1);
  example.rows[0][2] = NAN;
  ASSERT_EQ(example.ForwardBackward(model->get()), absl::OkStatus());
  EXPECT_TRUE(std::isnan(example.loss));
}

// NeuMF finds its tables by name whatever their order, and by order under other names.
TEST(ModelTest, NeuMfFindsItsTables) {
  const Model config = ParseModel("neumf { hidden: 3 }");
  const models::ModelInputs ordered = {
      {{"user_gmf", 1, 4}, {"item_gmf", 1, 4}, {"user_mlp", 1, 2}, {"item_mlp", 1, 3}}, 0};
  models::ModelInputs shuffled = ordered;
  std::swap(shuffled.tables[0], shuffled.tables[3]);
  std::swap(shuffled.tables[1], shuffled.tables[2]);
  models::ModelInputs renamed = ordered;
  for (auto& table : renamed.tables) table.name += "_x";
  auto by_order = models::NewDenseModel(config, ordered, 1);
  auto by_name = models::NewDenseModel(config, shuffled, 1);
  auto by_position = models::NewDenseModel(config, renamed, 1);
  ASSERT_TRUE(by_order.ok() && by_name.ok() && by_position.ok());
  Example a(ordered, 6, (*by_order)->parameter_count(), 1), b = a, c = a;
  std::swap(b.rows[0], b.rows[3]);
  std::swap(b.rows[1], b.rows[2]);
  ASSERT_EQ(a.Forward(by_order->get()), absl::OkStatus());
  ASSERT_EQ(b.Forward(by_name->get()), absl::OkStatus());
  ASSERT_EQ(c.Forward(by_position->get()), absl::OkStatus());
  EXPECT_THAT(b.logits, ElementsAreArray(a.logits));
  EXPECT_THAT(c.logits, ElementsAreArray(a.logits));
}

struct BadCase {
  std::string config;
  models::ModelInputs inputs;
  std::string hint;
};

// Every model that does not fit its inputs is refused, with what to change.
TEST(ModelTest, RefusesWhatDoesNotFit) {
  const models::ModelInputs two = {{{"user", 1, 8}, {"item", 1, 8}}, 0};
  const std::vector<BadCase> cases = {
      {"", two, "names no model"},
      {"mlp { hidden: 8 }", {{}, 0}, "no inputs"},
      {"mlp { hidden: 8 }", {{{"a", 0, 8}}, 2}, "table a"},
      {"mlp { hidden: 8 }", {{}, -1}, "cannot have -1"},
      {"mlp { hidden: 0 }", two, "mlp.hidden: a layer of width 0"},
      {"mlp { hidden: 70000 }", two, "65536"},
      {"logistic_regression {}", {{{"a", 1, 4}}, 2}, "set its dim to 1"},
      {"dlrm { bottom: 8 bottom: 4 top: 8 }", {{{"a", 1, 8}}, 3}, "width of dlrm.bottom is 4"},
      {"dlrm { bottom: 8 top: 8 }", {{{"a", 1, 8}, {"b", 2, 16}}, 3}, "table b has dim 16"},
      {"dlrm { bottom: 8 top: 8 }", {{{"a", 1, 8}}, 0}, "use mlp"},
      {"dlrm { top: 8 }", {{{"a", 1, 8}}, 3}, "bottom layers: 0"},
      {"dlrm { bottom: 8 top: -1 }", {{{"a", 1, 8}}, 3}, "dlrm.top"},
      {"gmf {}", {{{"user", 1, 8}}, 0}, "needs two tables"},
      {"gmf {}", {{{"user", 1, 8}, {"item", 2, 8}}, 0}, "one field each"},
      {"gmf {}", {{{"user", 1, 8}, {"item", 1, 8}}, 1}, "1 numbers"},
      {"gmf {}", {{{"user", 1, 8}, {"item", 1, 4}}, 0}, "make them equal"},
      {"neumf { hidden: 8 }", two, "needs four tables"},
      {"neumf {}",
       {{{"a", 1, 8}, {"b", 1, 8}, {"c", 1, 8}, {"d", 1, 8}}, 0},
       "at least one hidden layer"},
      {"neumf { hidden: 8 }",
       {{{"a", 1, 8}, {"b", 1, 4}, {"c", 1, 8}, {"d", 1, 8}}, 0},
       "make them equal"},
      {"neumf { hidden: 8 }",
       {{{"a", 1, 8}, {"b", 1, 8}, {"c", 1, 8}, {"d", 3, 8}}, 0},
       "several fields"},
  };
  for (const BadCase& c : cases) {
    const auto model = models::NewDenseModel(ParseModel(c.config), c.inputs, 1);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << c.config;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(c.hint)) << c.config;
  }
}

}  // namespace
}  // namespace tandem
