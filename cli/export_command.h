// tandem export: writes a checkpoint in the formats of other programs. The Python package does the
// work (python/tandem/export.py), so that each format has only one writer.
#ifndef TANDEM_CLI_EXPORT_COMMAND_H_
#define TANDEM_CLI_EXPORT_COMMAND_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tandem::cli {

struct ExportFlags {
  std::string checkpoint;            // a model folder, or one checkpoint
  std::string to;                    // folder
  std::vector<std::string> formats;  // empty: safetensors
  std::string serve;                 // SCRIPT:CLASS of the module for serve.pt; may be empty
  std::string inputs;                // a function of that script; may be empty
};

void AddExport(CLI::App* app, ExportFlags* flags);

// Replaces this process by the package; returns only if it cannot be started. `programs`: the
// folder of tandem itself.
int ExportCommand(const ExportFlags& flags, const std::string& programs);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_EXPORT_COMMAND_H_
