#include "server/checkpoint/manifest.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "xxhash.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFormat = 3;
// Earlier versions wrote a file for each range. Format 1 did not say what the numbers mean, and is
// not read.
constexpr int64_t kFormatOfSingleFiles = 2;
constexpr char kChecksumField[] = "xxh3";

// 64-bit numbers are written as text, since programs that read JSON numbers as doubles would round
// them.
std::string Hex(uint64_t value) { return absl::StrFormat("0x%016x", value); }

std::string Text(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

std::string ChecksumOf(const Json& json) {
  const std::string text = Text(json);
  return Hex(XXH3_64bits(text.data(), text.size()));
}

// Reads fields from JSON that may contain anything. `status` gets an error for the first field that
// is missing or has another type. Such a field reads as an empty value.
class Fields {
 public:
  explicit Fields(absl::Status* status) : status_(*status) {}

  std::string String(const Json& from, const char* name) {
    const Json* const field = Find(from, name);
    if (field != nullptr && field->is_string()) return field->get<std::string>();
    Refuse(name, "a text");
    return "";
  }
  std::string String(const Json& field) {
    if (field.is_string()) return field.get<std::string>();
    Refuse("list", "of texts");
    return "";
  }
  // A file name in the folder of the checkpoint, not a path that leads out of it.
  std::string FileName(const Json& from, const char* name) {
    std::string text = String(from, name);
    if (absl::StrContains(text, '/')) Refuse(name, "the name of a file");
    return text;
  }
  uint64_t HexNumber(const Json& from, const char* name) {
    const std::string text = String(from, name);
    uint64_t value = 0;
    if (absl::StartsWith(text, "0x") && absl::SimpleHexAtoi(text, &value)) return value;
    Refuse(name, "a number in hexadecimal");
    return 0;
  }
  int64_t Number(const Json& from, const char* name) {
    const Json* const field = Find(from, name);
    if (field != nullptr) return Number(*field);
    Refuse(name, "a number");
    return 0;
  }
  int64_t Number(const Json& field) {
    if (field.is_number_unsigned() && field.get<uint64_t>() <= uint64_t{1} << 62) {
      return field.get<int64_t>();
    }
    Refuse("number", "not negative");
    return 0;
  }
  Json List(const Json& from, const char* name) {
    const Json* const field = Find(from, name);
    if (field != nullptr && field->is_array()) return *field;
    Refuse(name, "a list");
    return Json::array();
  }

 private:
  static const Json* Find(const Json& from, const char* name) {
    if (!from.is_object()) return nullptr;
    const auto it = from.find(name);
    return it == from.end() ? nullptr : &*it;
  }
  void Refuse(const char* name, const char* want) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat("manifest: field ", name, " is not ", want));
  }

  absl::Status& status_;
};

Manifest Read(const Json& json, int64_t format, absl::Status* status) {
  Fields fields(status);
  Manifest manifest;
  manifest.run = fields.HexNumber(json, "run");
  manifest.job = fields.String(json, "job");
  manifest.job_hash = fields.HexNumber(json, "job_hash");
  manifest.step = fields.Number(json, "step");
  if (json.contains("attempt")) manifest.attempt = fields.Number(json, "attempt");
  if (json.contains("best")) manifest.best = fields.Number(json, "best") != 0;
  manifest.seed = fields.HexNumber(json, "seed");
  manifest.model = fields.String(json, "model");
  manifest.optimizer = fields.String(json, "optimizer");
  manifest.data = fields.String(json, "data");
  manifest.hashing = fields.String(json, "hashing");
  for (const Json& table : fields.List(json, "tables")) {
    CheckpointTable& t = manifest.tables.emplace_back();
    t.name = fields.String(table, "name");
    t.salt = fields.HexNumber(table, "salt");
    t.dim = fields.Number(table, "dim");
    for (const Json& field : fields.List(table, "fields")) t.fields.push_back(fields.String(field));
    t.initializer = fields.String(table, "initializer");
    t.optimizer = fields.String(table, "optimizer");
    if (table.contains("catch_up")) t.catch_up = fields.String(table, "catch_up");
    if (table.contains("row_dtype")) t.row_dtype = fields.String(table, "row_dtype");
    if (table.contains("state_dtype")) t.state_dtype = fields.String(table, "state_dtype");
    if (table.contains("hot_dtype")) t.hot_dtype = fields.String(table, "hot_dtype");
  }
  for (const Json& parameter : fields.List(json, "dense")) {
    CheckpointParameter& p = manifest.dense.emplace_back();
    p.name = fields.String(parameter, "name");
    for (const Json& n : fields.List(parameter, "shape")) p.shape.push_back(fields.Number(n));
  }
  for (const Json& file : fields.List(json, "files")) {
    CheckpointFile& f = manifest.files.emplace_back();
    const bool single = format == kFormatOfSingleFiles;
    f.name = fields.FileName(file, single ? "name" : "file");
    f.table = fields.String(file, "table");
    f.begin = fields.HexNumber(file, "begin");
    f.end = fields.HexNumber(file, "end");
    if (!single) f.offset = static_cast<uint64_t>(fields.Number(file, "offset"));
    f.bytes = static_cast<uint64_t>(fields.Number(file, single ? "bytes" : "length"));
    if (file.contains("rows")) f.rows = fields.Number(file, "rows");
    f.checksum = fields.HexNumber(file, kChecksumField);
  }
  SortFiles(&manifest.files);
  return manifest;
}

}  // namespace

std::string CheckpointFolder(absl::string_view model_folder, uint64_t run, int64_t step,
                             uint64_t request, int64_t attempt) {
  std::string folder =
      absl::StrFormat("%s/%s%d.%016x", model_folder, kCheckpointFolderPrefix, step, run);
  if (attempt != 0) absl::StrAppend(&folder, "-", attempt);
  if (request != 0) absl::StrAppend(&folder, ".", request);
  return folder;
}

std::string EncodeManifest(const Manifest& manifest) {
  Json json = {{"format", kFormat},
               {"run", Hex(manifest.run)},
               {"job", manifest.job},
               {"job_hash", Hex(manifest.job_hash)},
               {"step", static_cast<uint64_t>(std::max<int64_t>(manifest.step, 0))},
               {"attempt", static_cast<uint64_t>(std::max<int64_t>(manifest.attempt, 0))},
               {"seed", Hex(manifest.seed)},
               {"model", manifest.model},
               {"optimizer", manifest.optimizer},
               {"data", manifest.data},
               {"hashing", manifest.hashing},
               {"tables", Json::array()},
               {"dense", Json::array()},
               {"files", Json::array()}};
  if (manifest.best) json["best"] = 1u;
  for (const CheckpointTable& t : manifest.tables) {
    Json table = {{"name", t.name},
                  {"salt", Hex(t.salt)},
                  {"dim", static_cast<uint64_t>(std::max<int64_t>(t.dim, 0))},
                  {"fields", t.fields},
                  {"initializer", t.initializer},
                  {"optimizer", t.optimizer}};
    if (!t.catch_up.empty()) table["catch_up"] = t.catch_up;
    if (t.row_dtype != "F32") table["row_dtype"] = t.row_dtype;
    if (t.state_dtype != "F32") table["state_dtype"] = t.state_dtype;
    if (!t.hot_dtype.empty()) table["hot_dtype"] = t.hot_dtype;
    json["tables"].push_back(std::move(table));
  }
  for (const CheckpointParameter& p : manifest.dense) {
    Json shape = Json::array();
    for (const int64_t n : p.shape) shape.push_back(static_cast<uint64_t>(n));
    json["dense"].push_back({{"name", p.name}, {"shape", std::move(shape)}});
  }
  for (const CheckpointFile& f : manifest.files) {
    Json file = {{"file", f.name},   {"offset", f.offset},    {"length", f.bytes},
                 {"table", f.table}, {"begin", Hex(f.begin)}, {"end", Hex(f.end)}};
    if (f.rows >= 0) file["rows"] = static_cast<uint64_t>(f.rows);
    file[kChecksumField] = Hex(f.checksum);
    json["files"].push_back(std::move(file));
  }
  json[kChecksumField] = ChecksumOf(json);
  return Text(json) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat(
        "manifest: ", text.size(), " bytes that are not a JSON object: is the file cut short?"));
  }
  absl::Status status;
  Fields fields(&status);
  const int64_t format = fields.Number(json, "format");
  const std::string checksum = fields.String(json, kChecksumField);
  TANDEM_RETURN_IF_ERROR(status);
  if (format != kFormat && format != kFormatOfSingleFiles) {
    return absl::InvalidArgumentError(absl::StrCat("manifest: format ", format,
                                                   ", this program reads ", kFormatOfSingleFiles,
                                                   " and ", kFormat));
  }
  json.erase(kChecksumField);
  if (const std::string computed = ChecksumOf(json); computed != checksum) {
    return absl::DataLossError(
        absl::StrCat("manifest: checksum is ", checksum, ", its fields give ", computed));
  }
  Manifest manifest = Read(json, format, &status);
  TANDEM_RETURN_IF_ERROR(status);
  return manifest;
}

void SortFiles(std::vector<CheckpointFile>* files) {
  std::sort(files->begin(), files->end(), [](const CheckpointFile& a, const CheckpointFile& b) {
    return std::tie(a.table, a.begin, a.name) < std::tie(b.table, b.begin, b.name);
  });
}

std::string PositionsText(uint64_t begin, uint64_t end) {
  return end == 0 ? absl::StrFormat("[0x%x, 2^64)", begin)
                  : absl::StrFormat("[0x%x, 0x%x)", begin, end);
}

std::string DebugString(const CheckpointFile& file) {
  if (IsWorkerPart(file)) return file.name;
  return absl::StrCat("table ", file.table, ", positions ", PositionsText(file.begin, file.end));
}

bool IsWorkerPart(const CheckpointFile& file) {
  return absl::EndsWith(file.name, kWorkerPartSuffix);
}

std::string DebugString(const CheckpointParameter& parameter) {
  return absl::StrCat(parameter.name, " [", absl::StrJoin(parameter.shape, ", "), "]");
}

}  // namespace tandem::server
