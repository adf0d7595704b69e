#include "job/row_shape.h"

#include "absl/strings/str_cat.h"

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
      shape.numbers = data.columns().numeric_size();
      shape.fields.assign(data.columns().categorical().begin(), data.columns().categorical().end());
      break;
    case Data::NCF:
      shape.fields = {"user", "item"};
      break;
    default:
      break;
  }
  return shape;
}

}  // namespace tandem::job
