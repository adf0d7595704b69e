#include "server/checkpoint/checkpoint_check.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "data/batch_source.h"
#include "data/cells.h"
#include "data/statistics.h"
#include "google/protobuf/text_format.h"
#include "optim/optimizer.h"
#include "optim/row_format.h"

namespace tandem::server {
namespace {

std::string OneLineText(const google::protobuf::Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  TANDEM_CHECK(printer.PrintToString(message, &text));
  return std::string(absl::StripTrailingAsciiWhitespace(text));
}

std::string OptimizerName(const Optimizer& optimizer, int program_slots = 0) {
  const auto made = optim::NewRowOptimizer(optimizer, program_slots);
  return made.ok() ? (*made)->name() : Optimizer::Kind_Name(optimizer.kind());
}

const CheckpointTable* Find(const std::vector<CheckpointTable>& tables, const std::string& name) {
  const auto at = std::find_if(tables.begin(), tables.end(),
                               [&](const CheckpointTable& table) { return table.name == name; });
  return at == tables.end() ? nullptr : &*at;
}

std::string Names(const std::vector<CheckpointTable>& tables) {
  std::vector<std::string> names;
  for (const CheckpointTable& table : tables) {
    if (table.name != job::kDenseTableName) names.push_back(table.name);
  }
  return absl::StrJoin(names, ", ");
}

std::string Shown(const std::vector<std::string>& fields) {
  return absl::StrCat("[", absl::StrJoin(fields, ", "), "]");
}

// A reader of the checkpoint gives these values to an id without a row.
Initializer ValuesOfAbsentRow(const job::TablePlan& table) {
  if (table.admission.unadmitted() != Admission::ZERO) return table.initializer;
  Initializer zero;
  zero.set_kind(Initializer::ZERO);
  return zero;
}

// True if the table has kind KEY_VALUE. The state of its rows then belongs to programs
// (optim/program.cc).
bool IsOfPrograms(const CheckpointTable& table) {
  return absl::StartsWith(table.optimizer, "program");
}

// True if initial values depend on the seed. Dense tables have ZERO, and tables of kind KEY_VALUE
// have no initializer.
bool IsDrawn(const CheckpointTable& table) {
  return absl::StrContains(table.initializer, Initializer::Kind_Name(Initializer::UNIFORM)) ||
         absl::StrContains(table.initializer, Initializer::Kind_Name(Initializer::NORMAL));
}

// The model without the path of its module. The path has no meaning for the numbers; the module's
// parameters are compared by name and shape.
Model MeaningOf(Model model) {
  if (model.has_script()) model.mutable_script()->clear_file();
  return model;
}

class Comparison {
 public:
  // `evaluates`: the job takes no steps, so it needs the whole model.
  Comparison(const Manifest& saved, const Manifest& job, const std::vector<std::string>& only,
             absl::FunctionRef<bool(const std::string&)> has_rows, bool evaluates)
      : saved_(saved), job_(job), only_(only), has_rows_(has_rows), evaluates_(evaluates) {}

  CheckpointFit Compare(const Data& data) {
    Refuse("the hashing of ids", saved_.hashing, job_.hashing,
           "another version of the program wrote the checkpoint; train a new model");
    if (only_.empty()) CompareWhole(data);
    CompareTables();
    if (saved_.seed != job_.seed) CompareRowsOfSeed();
    return std::move(fit_);
  }

 private:
  void Refuse(absl::string_view what, absl::string_view was, absl::string_view is,
              absl::string_view hint) {
    if (was == is) return;
    fit_.refused.push_back(
        absl::StrCat(what, " is ", is, " in the job, ", was, " in the checkpoint; hint: ", hint));
  }
  // An evaluation takes no step.
  void SayIfAfresh(absl::string_view whose, absl::string_view was, absl::string_view is) {
    if (was == is || evaluates_) return;
    fit_.said.push_back(absl::StrCat("the optimizer of ", whose, " is ", is,
                                     ", the checkpoint's is ", was,
                                     ": the optimizer state starts afresh"));
  }

  // Compares the dense part and the data that it reads.
  void CompareWhole(const Data& data) {
    Refuse("model", saved_.model, job_.model,
           evaluates_ ? "make them the same"
                      : "make them the same, or load only the embeddings with --only-tables");
    SayIfAfresh("the dense parameters", saved_.optimizer, job_.optimizer);
    const auto differences = data::CompareData(saved_.data, data);
    if (!differences.ok()) {
      fit_.refused.emplace_back(differences.status().message());
      return;
    }
    fit_.refused.insert(fit_.refused.end(), differences->refused.begin(),
                        differences->refused.end());
    fit_.said.insert(fit_.said.end(), differences->said.begin(), differences->said.end());
  }

  void CompareTables() {
    for (const std::string& name : only_) {
      if (Find(job_.tables, name) == nullptr) {
        fit_.refused.push_back(absl::StrCat("--only-tables: the job has no table ", name,
                                            ", it has ", Names(job_.tables)));
      }
    }
    for (const CheckpointTable& table : job_.tables) {
      if (table.name != job::kDenseTableName && Wanted(table.name)) CompareTable(table);
    }
    for (const CheckpointTable& table : saved_.tables) {
      if (!only_.empty() || Find(job_.tables, table.name) != nullptr) continue;
      if (table.name == job::kDenseTableName) continue;  // compared with the dense part
      fit_.refused.push_back(absl::StrCat("the checkpoint has a table ", table.name,
                                          ", the job has only ", Names(job_.tables),
                                          "; hint: add that table to the job", OrSome()));
    }
    if (!only_.empty() || !fit_.refused.empty()) return;
    Refuse("the order of tables", Names(saved_.tables), Names(job_.tables),
           "use the order of the checkpoint, since the model reads the tables in order");
  }

  // The seeds differ.
  void CompareRowsOfSeed() {
    std::vector<std::string> without;  // tables without a row in the checkpoint
    for (const CheckpointTable& table : job_.tables) {
      const CheckpointTable* const saved = Find(saved_.tables, table.name);
      const bool drawn = IsDrawn(table) && saved != nullptr && IsDrawn(*saved);
      if (drawn && Wanted(table.name) && !has_rows_(table.name)) without.push_back(table.name);
    }
    const std::string all = absl::StrJoin(without, ", ");
    if (evaluates_ && !without.empty()) {
      return Refuse("seed", absl::StrCat(saved_.seed), absl::StrCat(job_.seed),
                    absl::StrCat("use the checkpoint's seed, since the checkpoint has no row of ",
                                 all, " and all rows there would get other initial values"));
    }
    fit_.said.push_back(absl::StrCat("seed is ", job_.seed, ", the checkpoint's is ", saved_.seed,
                                     ": rows that the checkpoint lacks get other initial values",
                                     all.empty() ? "" : "; the checkpoint lacks all rows of ",
                                     all));
  }

  void CompareInitializer(const CheckpointTable& saved, const CheckpointTable& job) {
    if (saved.initializer == job.initializer) return;
    const std::string of_table = absl::StrCat("the initializer of table ", job.name);
    const bool all = !has_rows_(job.name);
    if (all && evaluates_) {
      return Refuse(of_table, absl::StrCat("{ ", saved.initializer, " }"),
                    absl::StrCat("{ ", job.initializer, " }"),
                    "use the checkpoint's initializer, since the checkpoint has no row of the "
                    "table and all rows would get other initial values");
    }
    fit_.said.push_back(absl::StrCat(of_table, " is { ", job.initializer, " }, the checkpoint's { ",
                                     saved.initializer, " }: for rows that the checkpoint lacks",
                                     all ? ", which are all rows of the table" : ""));
  }

  void CompareTable(const CheckpointTable& job) {
    const CheckpointTable* const saved = Find(saved_.tables, job.name);
    if (saved == nullptr) {
      fit_.refused.push_back(absl::StrCat(
          "the job has a table ", job.name, ", the checkpoint has only ", Names(saved_.tables),
          "; hint: use the name of the checkpoint's table", OrSome()));
      return;
    }
    const std::string table = absl::StrCat("table ", job.name);
    Refuse(absl::StrCat("dim of ", table), absl::StrCat(saved->dim), absl::StrCat(job.dim),
           "use the checkpoint's dim, since rows keep their length");
    Refuse(absl::StrCat("field of ", table), Shown(saved->fields), Shown(job.fields),
           "use the checkpoint's field, since rows are found by the field of their id");
    // With kind KEY_VALUE the state of a row belongs to programs, so nothing here could start it
    // afresh as optimizer state is.
    if (saved->optimizer != job.optimizer && (IsOfPrograms(*saved) || IsOfPrograms(job))) {
      Refuse(absl::StrCat("extra_floats (kind KEY_VALUE) of ", table), saved->optimizer,
             job.optimizer, "use the checkpoint's extra_floats, since rows keep their length");
    } else {
      SayIfAfresh(table, saved->optimizer, job.optimizer);
    }
    CompareInitializer(*saved, job);
    SayIfRounded("row_dtype", table, saved->row_dtype, job.row_dtype);
    if (saved->row_dtype == job.row_dtype) SayIfHotRowsAreRounded(table, *saved, job);
    if (saved->optimizer == job.optimizer && !evaluates_) {
      SayIfRounded("state_dtype", table, saved->state_dtype, job.state_dtype);
    }
  }

  void SayIfHotRowsAreRounded(const std::string& table, const CheckpointTable& saved,
                              const CheckpointTable& job) {
    if (saved.hot_dtype.empty() || saved.hot_dtype == job.hot_dtype || job.hot_dtype == "F32") {
      return;
    }
    fit_.said.push_back(absl::StrCat("hot_rows of ", table, ": ",
                                     job.hot_dtype.empty() ? "none" : job.hot_dtype,
                                     " in the job, ", saved.hot_dtype,
                                     " in the checkpoint; its hot rows are rounded to the "
                                     "nearest ",
                                     job.hot_dtype.empty() ? job.row_dtype : job.hot_dtype));
  }

  // `field`: of the table in the job.
  void SayIfRounded(absl::string_view field, const std::string& table, const std::string& was,
                    const std::string& is) {
    if (was == is) return;
    int64_t rows = 0;
    bool counted = true;  // old manifests do not count rows
    for (const CheckpointFile& file : saved_.files) {
      if (absl::StrCat("table ", file.table) != table) continue;
      rows += file.rows;
      counted = counted && file.rows >= 0;
    }
    fit_.said.push_back(
        absl::StrCat(field, " of ", table, " is ", is, ", the checkpoint's is ", was, ": ",
                     counted ? absl::StrCat(rows, " ") : "", "rows ",
                     is == "F32" ? "keep their values" : "are rounded to the nearest values"));
  }

  absl::string_view OrSome() const {
    return evaluates_ ? "" : ", or load some tables only with --only-tables";
  }

  bool Wanted(const std::string& table) const {
    return only_.empty() || std::count(only_.begin(), only_.end(), table) > 0;
  }

  const Manifest &saved_, &job_;
  const std::vector<std::string>& only_;
  const absl::FunctionRef<bool(const std::string&)> has_rows_;
  const bool evaluates_;
  CheckpointFit fit_;
};

}  // namespace

void DescribeMeaning(const job::ResolvedJob& plan, Manifest* manifest) {
  manifest->seed = plan.job.seed();
  manifest->model = OneLineText(MeaningOf(plan.job.model()));
  manifest->optimizer = OptimizerName(plan.job.dense().optimizer());
  manifest->data = data::DescribeData(plan.job.data());
  manifest->hashing = data::kKeyHashing;
  const absl::StatusOr<data::DataShape> shape = data::ShapeOfJob(plan);
  manifest->tables.clear();
  for (const job::TablePlan& table : plan.tables) {
    // Dense tables are listed too. Their files have blocks of parameters as rows, progress and
    // held updates.
    CheckpointTable& saved = manifest->tables.emplace_back();
    saved.name = table.name;
    saved.salt = table.salt;
    saved.dim = table.dim;
    saved.fields = shape.ok() ? shape->table_fields[table.id] : table.fields;
    saved.initializer = OneLineText(ValuesOfAbsentRow(table));
    saved.optimizer = OptimizerName(table.optimizer, table.extra_floats);
    saved.catch_up = CatchUpText(table.optimizer);
    saved.row_dtype = Table::Dtype_Name(std::max(table.types.row, Table::F32));
    if (table.types.hot_updates > 0) saved.hot_dtype = Table::Dtype_Name(table.types.hot);
    const auto optimizer = optim::NewRowOptimizer(table.optimizer, table.extra_floats);
    const bool rounds =
        optimizer.ok() && !optim::RowFormat(table.types, table.dim, **optimizer).f32_slots();
    saved.state_dtype = Table::Dtype_Name(rounds ? table.types.state : Table::F32);
  }
}

std::string CatchUpText(const Optimizer& optimizer) {
  return optimizer.catch_up() ? OneLineText(optimizer) : "";
}

CheckpointFit CompareCheckpoint(const Manifest& saved, const job::ResolvedJob& plan,
                                const std::vector<std::string>& only,
                                absl::FunctionRef<bool(const std::string&)> has_rows) {
  Manifest job;
  DescribeMeaning(plan, &job);
  return Comparison(saved, job, only, has_rows, plan.job.train().evaluate_only())
      .Compare(plan.job.data());
}

}  // namespace tandem::server
