// tandem doctor: reports what prevents a job from running on this host or between hosts, and what
// to do about it.
#ifndef TANDEM_TOOLS_DOCTOR_DOCTOR_COMMAND_H_
#define TANDEM_TOOLS_DOCTOR_DOCTOR_COMMAND_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tandem::doctor {

struct DoctorFlags {
  std::string job;  // empty: checks only the host
  std::vector<std::string> set;
  std::string out;
  std::vector<std::string> binds;  // addresses of roles on this host
  int servers = -1, workers = -1;  // of the job, on this host; -1: an even share
  std::vector<std::string> peers;
  std::string listen, advertise;
  int seconds = 600;  // for which it listens
  bool json = false;
};

void AddDoctor(CLI::App* app, DoctorFlags* flags);

// Returns the exit code: 0, 1 (there is a problem) or 2 (bad job or flags).
int DoctorCommand(const DoctorFlags& flags);

}  // namespace tandem::doctor

#endif  // TANDEM_TOOLS_DOCTOR_DOCTOR_COMMAND_H_
