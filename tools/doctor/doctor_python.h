// The Python interpreter that runs scripts (ScriptInterpreter), and the modules that they import.
//
// `programs` is the folder of Tandem's programs. Thread safety: free functions; any thread.
#ifndef TANDEM_TOOLS_DOCTOR_DOCTOR_PYTHON_H_
#define TANDEM_TOOLS_DOCTOR_DOCTOR_PYTHON_H_

#include <string>
#include <vector>

#include "tools/doctor/doctor_facts.h"

namespace tandem::doctor {

// The modules that every script imports, beside the package.
std::vector<std::string> ScriptModules();

// The package's folder beside the programs, in a build folder or in an installation; empty: it has
// none.
std::string OwnPackage(const std::string& programs);

// PYTHONPATH with the package's folder in front, if there is one; else as it is.
std::string PythonPath(const std::string& programs);

// Starts the interpreter once. `load`: import the modules, which takes seconds for torch; otherwise
// only look whether they are there.
PythonFact GatherPython(const std::vector<std::string>& modules, bool load,
                        const std::string& programs);

}  // namespace tandem::doctor

#endif  // TANDEM_TOOLS_DOCTOR_DOCTOR_PYTHON_H_
