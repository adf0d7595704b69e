// tandem export: a saved model in the formats of other programs. The Python package does it
// (python/tandem/export.py), so that there is one writer of each format.
#ifndef TANDEM_CLI_EXPORT_COMMAND_H_
#define TANDEM_CLI_EXPORT_COMMAND_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tandem::cli {

struct ExportFlags {
  std::string save;                  // a model folder, or one save
  std::string to;                    // folder
  std::vector<std::string> formats;  // none: safetensors
  std::string serve;                 // SCRIPT:CLASS of the module for serve.pt; may be empty
};

void AddExport(CLI::App* app, ExportFlags* flags);

// Ends with the package's exit code; returns only if it cannot be run. `programs`: the folder of
// tandem itself.
int ExportCommand(const ExportFlags& flags, const std::string& programs);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_EXPORT_COMMAND_H_
