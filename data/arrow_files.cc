#include "data/arrow_files.h"

#include <dlfcn.h>
#include <fnmatch.h>
#include <glob.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/process.h"
#include "base/run_program.h"
#include "base/status_macros.h"
#include "data/arrow/module.h"

namespace tandem::data {
namespace {

constexpr char kModule[] = "libtandem_arrow.so";
constexpr char kInstall[] = "pip install pyarrow, or say in TANDEM_PYARROW where its folder is";

// ---- opening the module -----------------------------------------------------------------------

std::vector<std::string> Glob(const std::string& pattern) {
  glob_t found;
  std::vector<std::string> names;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    names.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return names;
}

// Asks the interpreter for the folder of pyarrow; "" if it has none.
std::string AskInterpreter() {
  const ProgramResult found =
      RunProgram({{ScriptInterpreter(), "-c",
                   "import importlib.util as u; s = u.find_spec('pyarrow'); "
                   "print(s.submodule_search_locations[0] if s else '')"}});
  return std::string(absl::StripSuffix(found.output, "\n"));
}

// Loads Arrow's libraries from pyarrow's folder, so that the module finds them by their names.
// Returns the folder; "" without a pyarrow. The system may have the libraries then.
std::string LoadLibraries() {
  const char* const told = std::getenv("TANDEM_PYARROW");
  const std::string folder = told != nullptr && *told != '\0' ? told : AskInterpreter();
  if (folder.empty()) return folder;
  for (const char* const name : {"libarrow", "libparquet"}) {
    for (const std::string& file : Glob(absl::StrCat(folder, "/", name, ".so.*"))) {
      dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
  return folder;
}

absl::Status CannotLoad(const std::string& why, const std::string& folder) {
  const std::string library = why.substr(0, why.find(':'));
  if (!absl::StrContains(why, "cannot open shared object file")) {
    return absl::FailedPreconditionError(absl::StrCat("cannot use ", kModule, ": ", why,
                                                      "; hint: build it again with this pyarrow"));
  }
  if (absl::StrContains(library, kModule)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Parquet needs ", kModule, ", which is not beside the programs; hint: ", kInstall,
        ", then build again; where Tandem is a wheel, tandem.DataLoader reads Parquet files"));
  }
  const std::vector<std::string> others = Glob(folder + "/libparquet.so.*");
  if (folder.empty() || others.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Parquet needs ", library, " of pyarrow, and there is no pyarrow",
                     folder.empty() ? "" : " in " + folder, "; hint: ", kInstall));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      kModule, " was built with the pyarrow that has ", library, ", and ", others[0],
      " is of another version; hint: install that pyarrow, or build Tandem again with this one"));
}

absl::StatusOr<const tandem_arrow_module*> Load() {
  const std::string programs = ProgramFolder();
  const std::string places[] = {absl::StrCat(programs, "/", kModule),
                                absl::StrCat(programs, "/../lib/", kModule)};
  const bool loaded = std::any_of(std::begin(places), std::end(places), [](const auto& file) {
    return dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
  });
  const std::string folder = loaded ? "" : LoadLibraries();
  std::string why;
  for (const std::string& file : places) {
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const std::string error = dlerror();
      if (why.empty() || !absl::StartsWith(error, file)) why = error;
      continue;
    }
    const auto entry = reinterpret_cast<decltype(&tandem_arrow)>(dlsym(library, "tandem_arrow"));
    const tandem_arrow_module* const module = entry != nullptr ? entry() : nullptr;
    if (module != nullptr && module->version == TANDEM_ARROW_MODULE) return module;
    return absl::FailedPreconditionError(
        absl::StrCat(file, " is of another version of Tandem; hint: build or install both again"));
  }
  return CannotLoad(why, folder);
}

// ---- errors -----------------------------------------------------------------------------------

// "PATH: WHAT", where WHAT is the module's `text`. Frees `text`.
absl::Status ErrorOf(const std::string& path, char* text) {
  const std::string what = text;
  std::free(text);
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Escapes the name of a file (%20) for an address.
std::string EscapedName(absl::string_view name) {
  std::string escaped;
  for (const char c : name) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                       absl::StrContains("-._~!$&'()*+,;=:@", absl::string_view(&c, 1));
    if (plain) {
      escaped += c;
    } else {
      absl::StrAppendFormat(&escaped, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

class OpenFile final : public ArrowFile {
 public:
  OpenFile(const tandem_arrow_module* module, std::string path)
      : ArrowFile(std::move(path)), module_(module) {}
  ~OpenFile() override {
    if (file_ != nullptr) module_->close(file_);
  }

  absl::Status Init() {
    char* error = nullptr;
    ArrowSchema schema = {};
    const auto add = [](void* rows, int64_t count) {
      static_cast<std::vector<int64_t>*>(rows)->push_back(count);
    };
    if (module_->open(path_.c_str(), &file_, &schema, add, &block_rows_, &error) != 0) {
      return ErrorOf(path_, error);
    }
    for (int64_t i = 0; i < schema.n_children; ++i) {
      columns_.emplace_back(schema.children[i]->name);
      types_.push_back(ReadArrowType(*schema.children[i]));
    }
    schema.release(&schema);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ArrowStream>> Read(size_t block,
                                                    const std::vector<size_t>& columns) override {
    char* error = nullptr;
    ArrowArrayStream stream = {};
    const std::vector<int32_t> numbers(columns.begin(), columns.end());
    const int read = module_->read(file_, static_cast<int64_t>(block), numbers.data(),
                                   static_cast<int32_t>(numbers.size()), &stream, &error);
    if (read != 0) return ErrorOf(path_, error);
    return ArrowStream::Take(path_, &stream);
  }

 private:
  const tandem_arrow_module* const module_;
  void* file_ = nullptr;
};

}  // namespace

absl::StatusOr<const ArrowType*> ArrowFile::TypeOf(size_t column) const {
  if (types_[column].ok()) return &*types_[column];
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": column '", columns_[column], "' ", types_[column].status().message()));
}

bool IsAddress(absl::string_view name) { return absl::StrContains(name, "://"); }

absl::Status CheckParquet() { return Load().status(); }

absl::StatusOr<std::unique_ptr<ArrowFile>> ArrowFile::Open(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const tandem_arrow_module* const module, Load());
  auto file = std::make_unique<OpenFile>(module, path);
  TANDEM_RETURN_IF_ERROR(file->Init());
  return file;
}

absl::StatusOr<AddressInfo> InfoOfAddress(const std::string& address) {
  TANDEM_ASSIGN_OR_RETURN(const tandem_arrow_module* const module, Load());
  AddressInfo info;
  char* error = nullptr;
  if (module->stat(address.c_str(), &info.bytes, &info.changed_ns, &error) != 0) {
    return ErrorOf(address, error);
  }
  return info;
}

absl::StatusOr<std::vector<std::string>> ExpandAddress(const std::string& address) {
  const size_t query = std::min(address.find('?'), address.size());
  const size_t slash = address.rfind('/', query);
  const std::string folder = address.substr(0, slash), tail = address.substr(query);
  const std::string pattern = address.substr(slash + 1, query - slash - 1);
  if (pattern.find_first_of("*[") == std::string::npos) return std::vector<std::string>{address};
  TANDEM_ASSIGN_OR_RETURN(const tandem_arrow_module* const module, Load());
  std::vector<std::string> names, found;
  char* error = nullptr;
  const auto add = [](void* context, const char* name) {
    static_cast<std::vector<std::string>*>(context)->emplace_back(name);
  };
  if (module->list((folder + tail).c_str(), add, &names, &error) != 0) {
    return ErrorOf(address, error);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
    if (name[0] == '_' && pattern[0] != '_') continue;
    found.push_back(absl::StrCat(folder, "/", EscapedName(name), tail));
  }
  return found;
}

absl::Status WriteParquet(const std::string& path, ArrowArrayStream* stream,
                          int64_t rows_per_group) {
  const absl::StatusOr<const tandem_arrow_module*> module = Load();
  if (!module.ok()) {
    stream->release(stream);
    return module.status();
  }
  char* error = nullptr;
  if ((*module)->write(path.c_str(), stream, rows_per_group, &error) != 0) {
    return ErrorOf(path, error);
  }
  return absl::OkStatus();
}

}  // namespace tandem::data
