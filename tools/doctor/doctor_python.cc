#include "tools/doctor/doctor_python.h"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tandem::doctor {
namespace {

namespace fs = std::filesystem;

constexpr int kProbeSeconds = 30;
// Exit statuses of timeout(1).
constexpr int kTimedOut = 124, kKilled = 137, kNotFound = 127;
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

int Run(const std::string& command, std::vector<std::string>* lines) {
  std::FILE* const pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return -1;
  char piece[1024];
  std::string text;
  while (std::fgets(piece, sizeof piece, pipe) != nullptr) text += piece;
  const int status = pclose(pipe);
  *lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// `last`: the last line that the interpreter or timeout(1) printed.
std::string WhyItFailed(int status, const std::string& last) {
  if (status == kTimedOut || status == kKilled) {
    return absl::StrCat("no answer within ", kProbeSeconds, " s");
  }
  const bool started = !absl::StartsWith(last, "timeout: ");
  if (status == kNotFound && !started) return kNoInterpreter;
  if (!started) return last.substr(last.rfind(": ") + 2);
  return last.empty() ? absl::StrCat("exit status ", status, ", and no output") : last;
}

}  // namespace

std::string Interpreter() {
  const char* const told = std::getenv("TANDEM_PYTHON");
  return told == nullptr || *told == '\0' ? "python3" : told;
}

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

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

bool LinesOf(const std::string& command, std::vector<std::string>* lines) {
  return Run(command, lines) == 0;
}

PythonFact GatherPython(const std::vector<std::string>& modules, bool load,
                        const std::string& programs) {
  PythonFact fact;
  fact.interpreter = Interpreter();
  std::vector<std::string> lines;
  const int status =
      Run(absl::StrCat("PYTHONPATH=", Quoted(PythonPath(programs)), " timeout -k 1 ", kProbeSeconds,
                       " ", Quoted(fact.interpreter), " -c ", Quoted(kProbe),
                       load ? " load " : " look ", absl::StrJoin(modules, " "), " 2>&1 </dev/null"),
          &lines);
  std::string last;
  for (const absl::string_view line : lines) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, kMark)) {
      last = std::string(line);
      continue;
    }
    const std::vector<std::string> words = absl::StrSplit(rest, '\t');
    if (words.size() == 3) fact.parts.push_back({words[0], words[1], words[2]});
  }
  if (status == 0 && !fact.parts.empty()) return fact;
  fact.error = WhyItFailed(status, last);
  fact.timed_out = status == kTimedOut || status == kKilled;
  return fact;
}

}  // namespace tandem::doctor
