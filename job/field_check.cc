#include "job/field_check.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "job/refuse.h"

namespace tandem::job {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A bound with all its digits.
std::string NumberText(double number) {
  return number == std::floor(number) ? absl::StrCat(static_cast<int64_t>(number))
                                      : absl::StrCat(number);
}

bool IsWithin(double value, const Bounds& bounds) {
  return (!bounds.has_min() || value >= bounds.min()) &&
         (!bounds.has_max() || value <= bounds.max()) &&
         (!bounds.has_above() || value > bounds.above()) &&
         (!bounds.has_below() || value < bounds.below());
}

template <typename Number>
absl::Status CheckNumber(const FieldDescriptor& field, const std::string& path, Number value) {
  const auto number = static_cast<double>(value);
  if (!std::isfinite(number)) return Refuse(path, value, ", must be a finite number");
  const Bounds& bounds = field.options().GetExtension(must_be);
  if (IsWithin(number, bounds)) return absl::OkStatus();
  return Refuse(path, value, ", must be ", BoundsText(bounds), bounds.hint().empty() ? "" : "; ",
                bounds.hint());
}

absl::Status CheckEnum(const FieldDescriptor& field, const std::string& path, int value) {
  if (field.enum_type()->FindValueByNumber(value) != nullptr) return absl::OkStatus();
  return Refuse(path, value, ", must be one of ",
                absl::StrJoin(ValueNames(*field.enum_type()), ", "));
}

// Checks the value of a field that is set, or entry `i` of a list. The lists of a job are of
// messages, texts and numbers of 32 bits.
absl::Status CheckValue(const Message& message, const FieldDescriptor& field, int i,
                        const std::string& path) {
  const auto& get = *message.GetReflection();
  const bool list = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return CheckFieldValues(
          list ? get.GetRepeatedMessage(message, &field, i) : get.GetMessage(message, &field),
          path + ".");
    case FieldDescriptor::CPPTYPE_INT32:
      return CheckNumber(
          field, path,
          list ? get.GetRepeatedInt32(message, &field, i) : get.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return CheckNumber(field, path, get.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CheckNumber(field, path, get.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return CheckEnum(field, path, get.GetEnumValue(message, &field));
    default:
      return absl::OkStatus();
  }
}

}  // namespace

std::string BoundsText(const Bounds& bounds) {
  if (bounds.has_min() && bounds.has_max() && !bounds.has_above() && !bounds.has_below()) {
    return absl::StrCat(NumberText(bounds.min()), " to ", NumberText(bounds.max()));
  }
  std::vector<std::string> parts;
  if (bounds.has_min()) parts.push_back("at least " + NumberText(bounds.min()));
  if (bounds.has_above()) parts.push_back("above " + NumberText(bounds.above()));
  if (bounds.has_max()) parts.push_back("at most " + NumberText(bounds.max()));
  if (bounds.has_below()) parts.push_back("below " + NumberText(bounds.below()));
  return absl::StrJoin(parts, " and ");
}

absl::Status CheckFieldValues(const Message& message, const std::string& path) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool list = field->is_repeated();
    const int count = list ? message.GetReflection()->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      TANDEM_RETURN_IF_ERROR(
          CheckValue(message, *field, i,
                     absl::StrCat(path, field->name(), list ? absl::StrCat("[", i, "]") : "")));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::job
