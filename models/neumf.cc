// The model "neumf": neural matrix factorisation (He et al. 2017). A GMF part and an MLP part have
// embeddings of their own and are joined before the last layer.
//
//   logit = w . [ user_gmf * item_gmf ; relu-MLP([user_mlp ; item_mlp]) ] + b
//
// The model reads four tables of one field each, named user_gmf, item_gmf, user_mlp and item_mlp.
// If one of the names is missing, it takes the four tables in that order.
#include <ATen/ATen.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/concatenation.h"
#include "models/linear_stack.h"
#include "models/models.h"
#include "models/torch_model.h"

namespace tandem::models {
namespace {

enum Role { kUserGmf, kItemGmf, kUserMlp, kItemMlp, kRoles };
constexpr const char* kRoleNames[kRoles] = {"user_gmf", "item_gmf", "user_mlp", "item_mlp"};

using TableOfRole = std::array<int, kRoles>;

class NeuMfModel final : public TorchModel {
 public:
  NeuMfModel(const ModelInputs& inputs, const TableOfRole& table,
             const std::vector<int64_t>& hidden, int threads)
      : TorchModel("neumf", inputs, threads),
        table_(table),
        factors_(inputs.tables[table[kUserGmf]].dim),
        mlp_("mlp", inputs.tables[table[kUserMlp]].dim + inputs.tables[table[kItemMlp]].dim, hidden,
             /*relu_last=*/true, HiddenInitializers, layout()),
        output_("output", factors_ + mlp_.out(), {1}, /*relu_last=*/false, NcfInitializers,
                layout()) {}

 private:
  void Logits(const float* flat, const Block& block, const at::Tensor& logits) override {
    const at::Tensor x = Kept(block, mlp_.in(), &x_);
    const at::Tensor joined = Kept(block, output_.in(), &joined_);
    at::Tensor product = joined.narrow(1, 0, factors_);
    at::mul_out(product, block.cells[table_[kUserGmf]], block.cells[table_[kItemGmf]]);
    CopyToColumns({block.cells[table_[kUserMlp]], block.cells[table_[kItemMlp]]}, 0, x);
    mlp_.Forward(flat, x, joined.narrow(1, factors_, mlp_.out()));
    output_.Forward(flat, joined, logits);
  }

  void Gradients(const float* flat, const Block& block, const at::Tensor& logits,
                 const at::Tensor& d_logits, float* flat_gradient) override {
    const at::Tensor joined = Kept(block, output_.in(), &joined_);
    const at::Tensor d_joined = Kept(block, output_.in(), &d_joined_);
    output_.Backward(flat, joined, logits, d_logits, flat_gradient, d_joined, {});
    const at::Tensor d_product = d_joined.narrow(1, 0, factors_);
    at::Tensor d_user = block.pooled_gradients[table_[kUserGmf]];
    at::Tensor d_item = block.pooled_gradients[table_[kItemGmf]];
    at::mul_out(d_user, d_product, block.cells[table_[kItemGmf]]);
    at::mul_out(d_item, d_product, block.cells[table_[kUserGmf]]);
    const at::Tensor x = Kept(block, mlp_.in(), &x_);
    const at::Tensor dx = Kept(block, mlp_.in(), &dx_);
    mlp_.Backward(flat, x, joined.narrow(1, factors_, mlp_.out()),
                  d_joined.narrow(1, factors_, mlp_.out()), flat_gradient, dx, {});
    CopyFromColumns(
        dx, 0,
        {block.pooled_gradients[table_[kUserMlp]], block.pooled_gradients[table_[kItemMlp]]});
  }

  const TableOfRole table_;
  const int64_t factors_;
  LinearStack mlp_, output_;
  at::Tensor x_, dx_, joined_, d_joined_;
};

// By name if all four names exist, else by order.
TableOfRole AssignTables(const ModelInputs& inputs) {
  TableOfRole by_name = {-1, -1, -1, -1};
  for (int t = 0; t < kRoles; ++t) {
    for (int role = 0; role < kRoles; ++role) {
      if (inputs.tables[t].name == kRoleNames[role]) by_name[role] = t;
    }
  }
  for (const int table : by_name) {
    if (table < 0) return {kUserGmf, kItemGmf, kUserMlp, kItemMlp};
  }
  return by_name;
}

absl::Status CheckTables(const ModelInputs& inputs) {
  bool one_field_each = true;
  for (const ModelInputs::TableInput& table : inputs.tables) one_field_each &= table.fields == 1;
  if (inputs.tables.size() == kRoles && one_field_each && inputs.numeric == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("neumf needs four tables of one field each (user_gmf, item_gmf, user_mlp, "
                   "item_mlp) and no numbers, but has ",
                   inputs.tables.size(), " tables, ", inputs.numeric, " numbers",
                   one_field_each ? "" : ", and a table with several fields"));
}

}  // namespace

NewModelResult NewNeuMf(const NeuMf& config, const ModelInputs& inputs, int threads) {
  TANDEM_RETURN_IF_ERROR(CheckTables(inputs));
  TANDEM_RETURN_IF_ERROR(CheckWidths("neumf.hidden", config.hidden()));
  if (config.hidden().empty()) {
    return absl::InvalidArgumentError(
        "neumf: its MLP part needs at least one hidden layer; without one, use gmf");
  }
  const TableOfRole table = AssignTables(inputs);
  const ModelInputs::TableInput& user = inputs.tables[table[kUserGmf]];
  const ModelInputs::TableInput& item = inputs.tables[table[kItemGmf]];
  if (user.dim != item.dim) {
    return absl::InvalidArgumentError(
        absl::StrCat("neumf multiplies the rows of tables ", user.name, " and ", item.name,
                     ", but their dims are ", user.dim, " and ", item.dim, "; make them equal"));
  }
  const std::vector<int64_t> hidden(config.hidden().begin(), config.hidden().end());
  return {std::make_unique<NeuMfModel>(inputs, table, hidden, threads)};
}

}  // namespace tandem::models
