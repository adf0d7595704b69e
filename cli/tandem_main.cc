// tandem: the command line of the project. One subcommand a file.
#include <filesystem>
#include <iostream>

#include "cli/role_options.h"
#include "cli/run_command.h"
#include "worker/data/datagen.h"
#ifdef TANDEM_BENCH
#include "cli/bench_command.h"
#endif

namespace tandem {
namespace {

struct DatagenFlags {
  std::string out;
  DatagenOptions options;
  bool gzip = false;
};

int Datagen(const DatagenFlags& flags) {
  DatagenOptions options = flags.options;
  const char* const suffix = flags.gzip ? ".tsv.gz" : ".tsv";
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  if (error) {
    std::cerr << "tandem datagen: --out " << flags.out << ": " << error.message() << "\n";
    return kExitBadInput;
  }
  options.train = flags.out + "/train" + suffix;
  options.test = flags.out + "/test" + suffix;
  options.report = flags.out + "/planted.json";
  return Finish("tandem datagen", GenerateCriteo(options, std::cout));
}

void AddRun(CLI::App* app, RunFlags* flags) {
  CLI::App* run = app->add_subcommand("run", "Train: start a local cluster for a job");
  run->add_option("job", flags->job, "Job file (protobuf text), e.g. configs/quickstart.textproto")
      ->required();
  run->add_option("--set", flags->set, "Change a field of the job: path=value (repeatable)");
  run->add_option("--out", flags->out, "Folder for summary.json, metrics.jsonl, model/ and logs/")
      ->required();
  run->add_option("--init-from", flags->init_from, "Saved model to start from (a model/ folder)");
  run->add_flag("!--no-save", flags->save, "Do not write OUT/model");
}

void AddDatagen(CLI::App* app, DatagenFlags* flags) {
  CLI::App* datagen = app->add_subcommand("datagen", "Make click logs in the shape of Criteo's");
  datagen->add_option("--out", flags->out, "Folder for train.tsv, test.tsv, planted.json")
      ->required();
  datagen->add_option("--train-rows", flags->options.train_rows)->capture_default_str();
  datagen->add_option("--test-rows", flags->options.test_rows)->capture_default_str();
  datagen->add_option("--seed", flags->options.seed)->capture_default_str();
  datagen->add_flag("--gzip", flags->gzip, "Write .tsv.gz");
}

int Main(int argc, char** argv) {
  CLI::App app("Tandem trains recommendation models with embeddings on parameter servers.",
               "tandem");
  app.require_subcommand(1);
  RunFlags run;
  DatagenFlags datagen;
  AddRun(&app, &run);
  AddDatagen(&app, &datagen);
#ifdef TANDEM_BENCH
  const BenchCommand bench(&app);
#endif
  int code = kExitOk;
  if (!ParseFlags(&app, argc, argv, &code)) return code;
#ifdef TANDEM_BENCH
  if (app.got_subcommand("bench")) return bench.Run();
#endif
  if (app.got_subcommand("run")) return RunCommand(run);
  return Datagen(datagen);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::Main(argc, argv); }
