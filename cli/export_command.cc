#include "cli/export_command.h"

#include <CLI/CLI.hpp>

#include "cli/launch/script.h"
#include "node/role_options.h"

namespace tandem::cli {

void AddExport(CLI::App* app, ExportFlags* flags) {
  CLI::App* const command = app->add_subcommand(
      "export", "A checkpoint as safetensors, npz, Parquet, TorchScript, torch.export");
  command
      ->add_option("checkpoint", flags->checkpoint,
                   "Folder of a run, its model/, or one checkpoint in that")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("--to", flags->to, "Folder for what is written")->required();
  command
      ->add_option("--format", flags->formats,
                   "safetensors (all in one file; without --format), npz (likewise), parquet (a "
                   "file a table; needs pyarrow)")
      ->delimiter(',')
      ->check(CLI::IsMember({"safetensors", "npz", "parquet"}));
  command->add_option("--serve", flags->serve,
                      "SCRIPT:CLASS of the module that was trained; writes serve.pt, which serves "
                      "without Tandem (docs/PYTHON.md)");
  command->add_option("--inputs", flags->inputs,
                      "Function of that script that returns the inputs of the module for a few "
                      "samples; writes serve.pt2 of torch.export in the place of serve.pt");
}

int ExportCommand(const ExportFlags& flags, const std::string& programs) {
  std::vector<std::string> arguments = {flags.checkpoint, "--to", flags.to};
  for (const std::string& format : flags.formats) {
    arguments.insert(arguments.end(), {"--format", format});
  }
  if (!flags.serve.empty()) arguments.insert(arguments.end(), {"--serve", flags.serve});
  if (!flags.inputs.empty()) arguments.insert(arguments.end(), {"--inputs", flags.inputs});
  std::vector<std::string> modules = {"numpy"};
  if (!flags.serve.empty()) modules.push_back("torch");
  node::Finish("tandem export", RunPackage("tandem.export", arguments, modules, programs));
  return node::kExitBadInput;
}

}  // namespace tandem::cli
