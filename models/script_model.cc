// The model of a job with model { script { file } }: a PyTorch module from a TorchScript file.
//
//   forward(dense [batch, numeric], sparse: Dict[str, Tensor]) -> logits [batch]
//
// sparse[table] is [batch, fields, dim]. The loss is the sum of the binary cross-entropies, or the
// result of the module's method loss(outputs, labels), where outputs is the result of forward. A
// module with a loss of its own may also have score(outputs) -> [batch], whose result evaluations
// use as logits; without score the outputs must be the logits.
//
// Parameters that require a gradient are trained. Their tensors are views of the caller's flat
// buffer. Everything else belongs to the module: values in buffers stay with this worker and form
// State(). A batch is one block, since batch normalisation needs all of it. Autograd computes the
// gradients, and the interpreter runs the graph as it is written, so the bits equal those of the
// same module in Python.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <omp.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/script.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/diverged.h"
#include "base/exhaustion.h"
#include "base/status_macros.h"
#include "models/models.h"
#include "models/script_file.h"

namespace tandem::models {
namespace {

constexpr size_t kMaxMessage = 400;  // bytes of a message of LibTorch
constexpr char kSignature[] =
    "forward(self, dense: torch.Tensor, sparse: Dict[str, torch.Tensor]) -> torch.Tensor";

// A message of LibTorch in one line: the text after the trace, and the place of the innermost call
// in the user's source.
std::string OneLine(absl::string_view what) {
  std::vector<std::string> lines = absl::StrSplit(what, '\n');
  std::string where, message;
  bool trace = false;
  for (const std::string& raw : lines) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty()) continue;
    if (absl::StartsWith(line, "Traceback of TorchScript")) trace = true;
    if (trace && absl::StartsWith(line, "File \"")) where = std::string(line);
    // The message after the trace is not indented: "RuntimeError: ...", "builtins.ValueError: ...".
    const bool ends_trace = trace && raw[0] != ' ' && !absl::StartsWith(line, "Traceback") &&
                            absl::StrContains(line, ": ");
    if (message.empty() && (!trace || ends_trace)) message = std::string(line);
    if (ends_trace) {
      message = std::string(line);
      break;
    }
  }
  if (absl::StrContains(message, "failed in the TorchScript interpreter") && !lines.empty()) {
    message = std::string(absl::StripAsciiWhitespace(lines.back()));
  }
  if (message.size() > kMaxMessage) message = message.substr(0, kMaxMessage) + "...";
  return where.empty() ? message : absl::StrCat(message, " (", where, ")");
}

// Calls the function and turns exceptions of LibTorch into a Status.
template <typename Function>
absl::Status AtBorder(absl::StatusCode code, const std::string& name, const Function& function) {
  try {
    return function();
  } catch (const c10::Error& error) {
    const absl::Status why = ExceptionStatus();
    if (absl::IsResourceExhausted(why)) {
      return absl::Status(why.code(), absl::StrCat(name, ": ", why.message()));
    }
    return absl::Status(code, absl::StrCat(name, ": ", OneLine(error.what_without_backtrace())));
  } catch (...) {
    return absl::Status(code, absl::StrCat(name, ": ", OneLine(ExceptionStatus().message())));
  }
}

std::string ShapeOf(const at::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "]");
}

at::Tensor View(const float* data, at::IntArrayRef shape) {
  return at::from_blob(const_cast<float*>(data), shape, at::kFloat);
}

// Whether two tensors share memory. Such parameters would have two places in the flat buffer and
// then differ.
bool Overlap(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const char* const first = static_cast<const char*>(a.data_ptr());
  const char* const second = static_cast<const char*>(b.data_ptr());
  return first < second + b.nbytes() && second < first + a.nbytes();
}

class ScriptModel final : public DenseModel {
 public:
  ScriptModel(ScriptFile file, const ModelInputs& inputs, int threads)
      : name_(absl::StrCat("model.script.file: ", file.path)),
        contents_(std::move(file.contents)),
        inputs_(inputs),
        threads_(std::max(threads, 1)) {
    at::set_num_threads(threads_);
  }

  // Loads the module, checks it, and tries it on two samples of zeros.
  absl::Status Load(const std::string& bytes) {
    TANDEM_RETURN_IF_ERROR(AtBorder(absl::StatusCode::kInvalidArgument, name_, [&] {
      // May be called once in a process. Nothing here runs two operators at the same time.
      if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
      std::istringstream stream(bytes);
      module_ = torch::jit::load(stream, at::Device(at::kCPU));
      return absl::OkStatus();
    }));
    TANDEM_RETURN_IF_ERROR(AtBorder(absl::StatusCode::kInvalidArgument, name_, [&] {
      TANDEM_RETURN_IF_ERROR(CheckMethods());
      return FindParameters();
    }));
    return Try();
  }

  const std::vector<ParameterInfo>& parameters() const override { return parameters_; }
  int64_t parameter_count() const override { return static_cast<int64_t>(initial_values_.size()); }
  void InitialValues(uint64_t /*job_seed*/, absl::Span<float> flat) const override {
    std::copy(initial_values_.begin(), initial_values_.end(), flat.begin());
  }

  absl::Status Forward(const data::Batch& batch, absl::Span<const float> flat,
                       absl::Span<const PooledRows> pooled, absl::Span<float> logits) override {
    if (batch.samples == 0) return absl::OkStatus();
    return AtBorder(absl::StatusCode::kInternal, name_, [&]() -> absl::Status {
      const c10::AutoGradMode no_autograd(false);
      Enter(/*training=*/false, flat);
      SetSeed(0);  // the same evaluation gives the same result
      std::vector<at::Tensor> cells;
      TANDEM_ASSIGN_OR_RETURN(const Outputs outputs, Run(batch, pooled, &cells));
      return Fill(outputs, logits);
    });
  }

  absl::Status ForwardBackward(const data::Batch& batch, absl::Span<const float> flat,
                               absl::Span<const PooledRows> pooled, absl::Span<float> logits,
                               double* loss_sum, absl::Span<float> flat_gradient,
                               absl::Span<const absl::Span<float>> pooled_gradients) override {
    *loss_sum = 0;
    std::fill(flat_gradient.begin(), flat_gradient.end(), 0.0f);
    if (batch.samples == 0) return absl::OkStatus();
    return AtBorder(absl::StatusCode::kInternal, name_, [&]() -> absl::Status {
      const c10::AutoGradMode autograd(true);
      Enter(/*training=*/true, flat);
      SetSeed(seed_);
      std::vector<at::Tensor> cells;
      TANDEM_ASSIGN_OR_RETURN(const Outputs outputs, Run(batch, pooled, &cells));
      TANDEM_ASSIGN_OR_RETURN(const at::Tensor loss, Loss(batch, outputs));
      TANDEM_RETURN_IF_ERROR(Fill(outputs, logits));
      *loss_sum = loss.item<double>();
      return Gradients(loss, cells, flat_gradient, pooled_gradients);
    });
  }

  std::string Contents() const override { return contents_; }
  void Seed(uint64_t seed) override { seed_ = seed; }

  absl::StatusOr<std::string> State() override {
    std::string state;
    TANDEM_RETURN_IF_ERROR(AtBorder(absl::StatusCode::kInternal, name_, [&] {
      c10::Dict<std::string, at::Tensor> buffers;
      for (const auto& buffer : module_.named_buffers()) {
        buffers.insert(buffer.name, buffer.value.detach());
      }
      if (buffers.empty()) return absl::OkStatus();
      const std::vector<char> bytes = torch::jit::pickle_save(buffers);
      state.assign(bytes.begin(), bytes.end());
      return absl::OkStatus();
    }));
    return state;
  }

  absl::Status SetState(const std::string& state) override {
    return AtBorder(absl::StatusCode::kInvalidArgument, absl::StrCat(name_, ": saved buffers"),
                    [&] { return SetBuffers(state); });
  }

  absl::StatusOr<float*> DeviceGradient(bool /*zero*/) override {
    return absl::FailedPreconditionError(absl::StrCat(name_, ": a module is on no device"));
  }
  void LeaveGradientOnDevice() override {}

 private:
  struct Outputs {
    c10::IValue value;  // result of forward
    at::Tensor logits;  // [B]
  };

  absl::Status Bad(absl::string_view what, absl::string_view hint) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": ", what, "; hint: ", hint));
  }

  // ---- contents of the file ----

  absl::Status CheckMethods() {
    const auto forward = module_.find_method("forward");
    if (!forward.has_value()) {
      return Bad("the module has no method forward", absl::StrCat("Tandem calls ", kSignature));
    }
    const auto& arguments = forward->function().getSchema().arguments();
    const bool fits = arguments.size() == 3 &&
                      arguments[1].type()->kind() == c10::TypeKind::TensorType &&
                      *arguments[2].type() ==
                          *c10::DictType::create(c10::StringType::get(), c10::TensorType::get());
    if (!fits) {
      std::vector<std::string> have;
      for (size_t i = 1; i < arguments.size(); ++i) {
        have.push_back(absl::StrCat(arguments[i].name(), ": ", arguments[i].type()->repr_str()));
      }
      return Bad(absl::StrCat("forward takes (", absl::StrJoin(have, ", "), ")"),
                 absl::StrCat("Tandem calls ", kSignature));
    }
    loss_ = module_.find_method("loss");
    score_ = module_.find_method("score");
    if (loss_.has_value() && loss_->function().getSchema().arguments().size() != 3) {
      return Bad("loss takes other arguments than (outputs, labels)",
                 "loss(self, outputs: what forward returns, labels: torch.Tensor) -> torch.Tensor");
    }
    if (score_.has_value() && score_->function().getSchema().arguments().size() != 2) {
      return Bad("score takes other arguments than (outputs)",
                 "score(self, outputs: what forward returns) -> torch.Tensor");
    }
    if (score_.has_value() && !loss_.has_value()) {
      return Bad(
          "has a method score, and none called loss",
          "without a loss of its own it is trained on what forward returns, as logits: leave "
          "score out");
    }
    return absl::OkStatus();
  }

  // Collects the parameters that require a gradient. A parameter with several names is taken once,
  // under its first name.
  absl::Status FindParameters() {
    for (const auto& named : module_.named_parameters()) {
      const at::Tensor& tensor = named.value;
      if (!tensor.requires_grad()) continue;
      if (tensor.scalar_type() != at::kFloat || tensor.layout() != at::kStrided) {
        return Bad(
            absl::StrCat("parameter ", named.name, " is of type ",
                         at::toString(tensor.scalar_type()), tensor.is_sparse() ? ", sparse" : ""),
            "Tandem trains dense float32: module.float() before it is saved");
      }
      const auto same = [&](const at::Tensor& other) { return other.is_same(tensor); };
      if (std::any_of(tensors_.begin(), tensors_.end(), same)) continue;
      for (size_t i = 0; i < tensors_.size(); ++i) {
        if (!Overlap(tensors_[i], tensor)) continue;
        return Bad(absl::StrCat("parameters ", parameters_[i].name, " and ", named.name,
                                " share memory and are two tensors"),
                   "make them one parameter, or clone() one of them");
      }
      ParameterInfo info;
      info.name = named.name;
      info.offset = parameter_count();
      info.size = tensor.numel();
      info.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
      parameters_.push_back(std::move(info));
      tensors_.push_back(tensor);
      const at::Tensor values = tensor.detach().contiguous();
      initial_values_.insert(initial_values_.end(), values.data_ptr<float>(),
                             values.data_ptr<float>() + values.numel());
    }
    return absl::OkStatus();
  }

  // Finds, before the job starts, errors that would otherwise come in the first step.
  absl::Status Try() {
    data::Batch batch;
    batch.samples = 2;
    batch.numeric = inputs_.numeric;
    batch.numbers.assign(static_cast<size_t>(2 * inputs_.numeric), 0.0f);
    batch.labels = {0, 1};
    std::vector<std::vector<float>> rows;
    for (const ModelInputs::TableInput& table : inputs_.tables) {
      rows.emplace_back(static_cast<size_t>(int64_t{2} * table.fields * table.dim), 0.0f);
    }
    const std::vector<PooledRows> pooled(rows.begin(), rows.end());
    const std::string trial = absl::StrCat(name_, ": tried on 2 samples");
    return AtBorder(absl::StatusCode::kInvalidArgument, trial, [&]() -> absl::Status {
      const c10::AutoGradMode autograd(true);
      Enter(/*training=*/false, initial_values_);
      SetSeed(0);
      std::vector<at::Tensor> cells;
      TANDEM_ASSIGN_OR_RETURN(const Outputs outputs, Run(batch, pooled, &cells));
      return Loss(batch, outputs).status();
    });
  }

  absl::Status SetBuffers(const std::string& state) {
    c10::Dict<std::string, at::Tensor> saved;
    if (!state.empty()) {
      saved = c10::impl::toTypedDict<std::string, at::Tensor>(
          torch::jit::pickle_load({state.begin(), state.end()}).toGenericDict());
    }
    const c10::AutoGradMode no_autograd(false);
    size_t found = 0;
    for (const auto& buffer : module_.named_buffers()) {
      const auto at = saved.find(buffer.name);
      const bool fits = at != saved.end() && at->value().sizes() == buffer.value.sizes() &&
                        at->value().scalar_type() == buffer.value.scalar_type();
      if (!fits) {
        return absl::InvalidArgumentError(
            absl::StrCat(name_, ": buffer ", buffer.name, " ", ShapeOf(buffer.value),
                         at == saved.end() ? " is not in the checkpoint"
                                           : " has another shape or type in the checkpoint",
                         ": is it of another module?"));
      }
      buffer.value.copy_(at->value());
      ++found;
    }
    if (found == saved.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name_, ": the checkpoint has ", saved.size(),
                                                   " buffers, the module ", found,
                                                   ": is it of another?"));
  }

  // ---- a call ----

  void Enter(bool training, absl::Span<const float> flat) {
    omp_set_num_threads(threads_);  // belongs to the calling thread, which may have changed
    if (training != training_) module_.train(training);
    training_ = training;
    if (flat.data() == bound_) return;
    bound_ = flat.data();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].set_data(View(bound_ + parameters_[i].offset, parameters_[i].shape));
    }
  }

  static void SetSeed(uint64_t seed) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }

  absl::StatusOr<Outputs> Run(const data::Batch& batch, absl::Span<const PooledRows> pooled,
                              std::vector<at::Tensor>* cells) {
    const torch::jit::GraphOptimizerEnabledGuard as_written(false);
    const int64_t samples = batch.samples;
    // A copy, since modules may change their inputs.
    const at::Tensor dense = at::empty({samples, inputs_.numeric}, at::kFloat);
    std::copy(batch.numbers.begin(), batch.numbers.end(), dense.data_ptr<float>());
    c10::Dict<std::string, at::Tensor> sparse;
    for (size_t t = 0; t < inputs_.tables.size(); ++t) {
      const ModelInputs::TableInput& table = inputs_.tables[t];
      cells->push_back(View(pooled[t].data(), {samples, table.fields, table.dim}));
      if (c10::GradMode::is_enabled()) cells->back().requires_grad_(true);
      sparse.insert(table.name, cells->back());
    }
    const std::vector<int64_t> before = Versions();
    Outputs outputs;
    outputs.value = module_.forward({dense, sparse});
    TANDEM_RETURN_IF_ERROR(CheckUntouched(before));
    TANDEM_ASSIGN_OR_RETURN(outputs.logits, LogitsOf(outputs.value, samples));
    return outputs;
  }

  std::vector<int64_t> Versions() const {
    std::vector<int64_t> versions;
    for (const at::Tensor& tensor : tensors_) versions.push_back(tensor._version());
    return versions;
  }

  // Only the optimizer may change parameters; otherwise replicas would differ.
  absl::Status CheckUntouched(const std::vector<int64_t>& before) const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i]._version() == before[i]) continue;
      return Bad(absl::StrCat("forward changes parameter ", parameters_[i].name, " in place"),
                 "compute with a changed copy, or make it a buffer");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<at::Tensor> LogitsOf(const c10::IValue& outputs, int64_t samples) {
    c10::IValue value = outputs;
    if (score_.has_value()) value = (*score_)({outputs});
    const std::string method = score_.has_value() ? "score" : "forward";
    if (!value.isTensor()) {
      return Bad(
          absl::StrCat(method, " returned a ", value.tagKind(), ", expected a tensor [", samples,
                       "]"),
          loss_.has_value() && !score_.has_value()
              ? "a method score(self, outputs) -> torch.Tensor, exported, says what is scored"
              : "return one logit a sample");
    }
    const at::Tensor& logits = value.toTensor();
    if (logits.dim() != 1 || logits.size(0) != samples ||
        !at::isFloatingType(logits.scalar_type())) {
      return Bad(
          absl::StrCat(method, " returned ", at::toString(logits.scalar_type()), " ",
                       ShapeOf(logits), ", expected Float [", samples, "]"),
          logits.dim() == 2 ? "one logit a sample, as squeeze(1) makes it" : "one logit a sample");
    }
    return logits;
  }

  // The loss, a sum over the samples.
  absl::StatusOr<at::Tensor> Loss(const data::Batch& batch, const Outputs& outputs) {
    const torch::jit::GraphOptimizerEnabledGuard as_written(false);
    const at::Tensor labels = View(batch.labels.data(), {batch.samples}).clone();
    at::Tensor loss;
    if (loss_.has_value()) {
      const c10::IValue value = (*loss_)({outputs.value, labels});
      if (!value.isTensor() || value.toTensor().numel() != 1 ||
          !at::isFloatingType(value.toTensor().scalar_type())) {
        return Bad(value.isTensor()
                       ? absl::StrCat("loss returned a tensor ", ShapeOf(value.toTensor()))
                       : absl::StrCat("loss returned a ", value.tagKind()),
                   "one floating-point number, the sum over the samples");
      }
      loss = value.toTensor();
    } else {
      loss = at::binary_cross_entropy_with_logits(outputs.logits, labels.to(outputs.logits.dtype()),
                                                  {}, {}, at::Reduction::Sum);
    }
    if (loss.requires_grad()) return loss;
    return Bad("the loss depends on no parameter and no row",
               "is there a detach() or torch.no_grad() on the way?");
  }

  absl::Status Fill(const Outputs& outputs, absl::Span<float> logits) const {
    const auto samples = static_cast<int64_t>(logits.size());
    View(logits.data(), {samples}).copy_(outputs.logits.detach());
    const auto bad =
        std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
    if (bad == logits.end()) return absl::OkStatus();
    return DivergedError(absl::StrCat(
        name_, ": the logit of sample ", bad - logits.begin(), " of ", samples, " is ", *bad,
        "; hint: lower the learning rate, clip, or look for a division or a logarithm in forward"));
  }

  absl::Status Gradients(const at::Tensor& loss, const std::vector<at::Tensor>& cells,
                         absl::Span<float> flat_gradient,
                         absl::Span<const absl::Span<float>> pooled_gradients) {
    std::vector<at::Tensor> leaves = tensors_;
    leaves.insert(leaves.end(), cells.begin(), cells.end());
    const std::vector<at::Tensor> gradients =
        torch::autograd::grad({loss}, leaves, /*grad_outputs=*/{}, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    const auto write = [](const at::Tensor& gradient, float* to, const at::Tensor& leaf) {
      const at::Tensor out = View(to, leaf.sizes());
      if (!gradient.defined()) {
        out.zero_();
      } else {
        out.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
      }
    };
    const c10::AutoGradMode no_autograd(false);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      write(gradients[i], flat_gradient.data() + parameters_[i].offset, tensors_[i]);
    }
    for (size_t t = 0; t < cells.size(); ++t) {
      write(gradients[tensors_.size() + t], pooled_gradients[t].data(), cells[t]);
    }
    return absl::OkStatus();
  }

  const std::string name_;  // in messages
  const std::string contents_;
  const ModelInputs inputs_;
  const int threads_;
  torch::jit::Module module_;
  // An optional: c10's own class in LibTorch 1.13, that of the standard library in LibTorch 2.
  decltype(module_.find_method("")) loss_, score_;
  std::vector<ParameterInfo> parameters_;
  std::vector<at::Tensor> tensors_;  // one for each parameter; their data belong to the caller
  std::vector<float> initial_values_;
  const float* bound_ = nullptr;  // the flat buffer that tensors_ are views of
  bool training_ = true;          // a saved module is in training mode; set before the first call
  uint64_t seed_ = 0;
};

}  // namespace

NewModelResult NewScriptModel(const Script& config, const ModelInputs& inputs, int threads) {
  TANDEM_ASSIGN_OR_RETURN(ScriptFile file, ReadScriptFile(config));
  const std::string bytes = std::move(file.bytes);
  auto model = std::make_unique<ScriptModel>(std::move(file), inputs, threads);
  TANDEM_RETURN_IF_ERROR(model->Load(bytes));
  return {std::move(model)};
}

}  // namespace tandem::models
