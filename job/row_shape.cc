#include "job/row_shape.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tandem::job {

RowShape RowShapeOf(const Data& data) {
  RowShape shape;
  switch (data.format()) {
    case Data::CRITEO:
      shape.numbers = kCriteoNumbers;
      for (int f = 1; f <= kCriteoFields; ++f) shape.fields.push_back(absl::StrCat("C", f));
      break;
    case Data::LIBSVM:
      shape.fields = {"features"};
      break;
    case Data::DELIMITED:
    case Data::PARQUET:
      shape.numbers = data.columns().numeric_size();
      shape.fields.assign(data.columns().categorical().begin(), data.columns().categorical().end());
      break;
    case Data::NCF:
      shape.fields = {"user", "item"};
      break;
    default:
      break;
  }
  shape.bags.resize(shape.fields.size());
  if (data.format() == Data::LIBSVM) shape.bags[0] = {true, data.max_ids(), true};
  for (const Column& column : data.columns().column()) {
    const auto at = std::find(shape.fields.begin(), shape.fields.end(), column.name());
    if (at == shape.fields.end() || !HasManyIds(column)) continue;
    shape.bags[static_cast<size_t>(at - shape.fields.begin())] = {true, column.max_ids(),
                                                                  column.pooling() == Column::MEAN};
  }
  // A row has weights for all of its ids or for none of them.
  const bool weighted = std::any_of(shape.bags.begin(), shape.bags.end(),
                                    [](const BagShape& bag) { return bag.weighted; });
  for (BagShape& bag : shape.bags) bag.weighted = weighted;
  return shape;
}

std::string DateForm(const Column& column) {
  return absl::StrReplaceAll(column.date(), {{"%%", "%%"}, {"%Y", "%E4Y"}});
}

void FillLabels(Columns* columns) {
  const auto has = [](const auto& list, const char* text) {
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  const auto add = [&](std::initializer_list<const char*> texts, auto* to) {
    for (const char* text : texts) {
      if (!has(columns->missing(), text) && !has(columns->negative(), text)) *to->Add() = text;
    }
  };
  const bool positive = !columns->positive().empty();
  if (!positive) add({"1", "True", "true", "TRUE"}, columns->mutable_positive());
  if (!positive && columns->negative().empty()) {
    add({"0", "False", "false", "FALSE"}, columns->mutable_negative());
  }
}

}  // namespace tandem::job
