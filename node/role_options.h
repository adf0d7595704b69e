// The flags of the roles for CLI11, in one place, so that all programs spell them alike.
#ifndef TANDEM_NODE_ROLE_OPTIONS_H_
#define TANDEM_NODE_ROLE_OPTIONS_H_

#include <stdlib.h>

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "node/log.h"
#include "node/role_flags.h"

namespace tandem::node {

// Allows one value for each flag, so that `--set a=1 job.textproto` does not take the job as a
// second value.
inline void AddSetFlag(CLI::App* app, std::vector<std::string>* set) {
  app->add_option("--set", *set, "Change a field of the job: path=value (repeatable)")
      ->allow_extra_args(false);
}

inline void AddJobFlags(CLI::App* app, RoleFlags* flags) {
  app->add_option("--job", flags->job, "Job file (protobuf text)")->required();
  AddSetFlag(app, &flags->set);
}

// Adds an output folder, and a flag that allows overwriting its contents.
inline void AddOutFlags(CLI::App* app, const char* what, std::string* out, bool* overwrite) {
  app->add_option("--out", *out, what)->check([](const std::string& name) {
    return name.empty() ? std::string("an empty name; leave it out, or name a folder") : "";
  });
  app->add_flag("--overwrite", *overwrite, "Allow losing what an earlier run left in --out");
}

// Checks an address for CLI11: "" if `text` is tcp://HOST:PORT or ipc://PATH, otherwise what is
// wrong with it.
std::string CheckAddress(const std::string& text);
// The same for the address of a live page, HOST:PORT.
std::string CheckHttpAddress(const std::string& text);
// The same for numbers.
std::string CheckNotNegative(const std::string& text);
std::string CheckAboveZero(const std::string& text);

// Takes effect when the flag is parsed, before anything is logged.
inline void AddLogFlag(CLI::App* app) {
  app->add_option_function<std::string>(
         "--log-format",
         [](const std::string& format) { setenv(kLogFormatVariable, format.c_str(), 1); },
         "Format of the log: text or json")
      ->check(CLI::IsMember({"text", "json"}));
}

inline void AddNetworkFlags(CLI::App* app, RoleFlags* flags) {
  app->add_option("--bind", flags->bind, "Where to listen; port * = any free one")
      ->check(CheckAddress)
      ->capture_default_str();
  app->add_option("--advertise", flags->advertise,
                  "Host by which others reach this one, if --bind names all addresses");
  app->add_option("--io-threads", flags->io_threads, "ZeroMQ I/O threads")->capture_default_str();
}

// Refuses a flag that belongs to the whole job and not to one of its nodes. On one node it would
// load only a part of the model.
inline void RefuseJobsFlag(CLI::App* app, const char* flag, const char* why) {
  const auto refuse = [flag, why](const std::string&) {
    throw CLI::ValidationError(
        flag, absl::StrCat("belongs to the job; give it to tandem-scheduler: ", why));
  };
  app->add_option_function<std::string>(flag, refuse)->group("");  // not in --help
}

inline void AddMemberFlags(CLI::App* app, RoleFlags* flags) {
  app->add_option("--scheduler", flags->scheduler, "Address of the scheduler, tcp://HOST:PORT")
      ->check(CheckAddress)
      ->required();
  app->add_option("--index", flags->index,
                  "Server index or worker rank to ask for; -1 = any free one")
      ->capture_default_str();
  RefuseJobsFlag(app, "--init-from", "it tells all nodes");
}

// Parses the flags. Prints one line on an error, or the help for --help. Returns true if the
// program should continue.
bool ParseFlags(CLI::App* app, int argc, char** argv, int* exit_code);

}  // namespace tandem::node

#endif  // TANDEM_NODE_ROLE_OPTIONS_H_
