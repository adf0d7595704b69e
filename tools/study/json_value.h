// Reads members of JSON that other programs may have written. A member of an unexpected type counts
// as absent.
#ifndef TANDEM_TOOLS_STUDY_JSON_VALUE_H_
#define TANDEM_TOOLS_STUDY_JSON_VALUE_H_

#include <string>

#include <nlohmann/json.hpp>

namespace tandem::study {

inline double NumberIn(const nlohmann::json& object, const char* name, double otherwise) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number() ? it->get<double>() : otherwise;
}

inline std::string TextIn(const nlohmann::json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

inline bool BoolIn(const nlohmann::json& object, const char* name, bool otherwise) {
  const auto it = object.find(name);
  return it != object.end() && it->is_boolean() ? it->get<bool>() : otherwise;
}

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_JSON_VALUE_H_
