#include "tools/doctor/doctor_python.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/run_program.h"

namespace tandem::doctor {
namespace {

namespace fs = std::filesystem;

constexpr int kProbeSeconds = 30;
constexpr char kMark[] = "tandem-probe\t";

// Prints a line for the interpreter, for each module and for the library: name, place, error. The
// package needs numpy.
constexpr char kProbe[] = R"(
import sys
sys.path = [p for p in sys.path if p]
import importlib, importlib.util
def say(name, place, error=''):
    words = (name, str(place), str(error))
    print('tandem-probe', *(' '.join(w.split()) for w in words), sep='\t', flush=True)
def look(name, load):
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            return say(name, '', 'there is no module ' + name)
        module = importlib.import_module(name) if load else None
        return say(name, getattr(module, '__version__', spec.origin)) or True
    except BaseException as error:
        say(name, '', type(error).__name__ + ': ' + str(error))
say('python', sys.version.split()[0] + ', ' + sys.executable)
found = {name: look(name, sys.argv[1] == 'load') for name in sys.argv[2:]}
if look('tandem', found['numpy']) and found['numpy']:
    try:
        import tandem._abi
        say('libtandem.so', tandem._abi.library()._name)
    except ImportError as error: say('libtandem.so', '', error)
    except BaseException as error: say('libtandem.so', '', type(error).__name__ + ': ' + str(error))
)";

// `last`: the last line that the interpreter printed.
std::string WhyItFailed(const ProgramResult& result, const std::string& last) {
  if (result.timed_out) return absl::StrCat("no answer within ", kProbeSeconds, " s");
  if (result.not_started == ENOENT) return kNoInterpreter;
  if (result.not_started != 0) return std::strerror(result.not_started);
  return last.empty() ? absl::StrCat("exit status ", result.status, ", and no output") : last;
}

}  // namespace

std::vector<std::string> ScriptModules() { return {"torch", "numpy"}; }

std::string OwnPackage(const std::string& programs) {
  const std::string root = fs::path(programs).parent_path().string();
  std::error_code error;
  for (const char* below : {"/python", "/share/tandem/python"}) {
    if (fs::exists(absl::StrCat(root, below, "/tandem/__init__.py"), error)) return root + below;
  }
  return "";
}

std::string PythonPath(const std::string& programs) {
  const char* const there = std::getenv("PYTHONPATH");
  const std::string rest = there == nullptr ? "" : there;
  const std::string own = OwnPackage(programs);
  return own.empty() || rest.empty() ? own + rest : absl::StrCat(own, ":", rest);
}

PythonFact GatherPython(const std::vector<std::string>& modules, bool load,
                        const std::string& programs) {
  PythonFact fact;
  fact.interpreter = ScriptInterpreter();
  ProgramCall call = {{fact.interpreter, "-c", kProbe, load ? "load" : "look"}};
  call.argv.insert(call.argv.end(), modules.begin(), modules.end());
  call.environment = {{"PYTHONPATH", PythonPath(programs)}};
  call.with_errors = true;
  call.limit = absl::Seconds(kProbeSeconds);
  const ProgramResult result = RunProgram(call);
  std::string last;
  for (const absl::string_view line : absl::StrSplit(result.output, '\n', absl::SkipEmpty())) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, kMark)) {
      last = std::string(line);
      continue;
    }
    const std::vector<std::string> words = absl::StrSplit(rest, '\t');
    if (words.size() == 3) fact.parts.push_back({words[0], words[1], words[2]});
  }
  if (result.ok() && !fact.parts.empty()) return fact;
  fact.error = WhyItFailed(result, last);
  fact.timed_out = result.timed_out;
  return fact;
}

}  // namespace tandem::doctor
