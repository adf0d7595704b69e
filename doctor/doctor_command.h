// tandem doctor: what stands in the way of a job on this host, and between hosts, and what to do
// about it.
#ifndef TANDEM_DOCTOR_DOCTOR_COMMAND_H_
#define TANDEM_DOCTOR_DOCTOR_COMMAND_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tandem::doctor {

struct DoctorFlags {
  std::string job;  // empty: this host alone
  std::vector<std::string> set;
  std::string out;
  std::vector<std::string> binds;  // addresses of roles on this host
  int servers = -1, workers = -1;  // of the job, here; -1: an even share
  std::vector<std::string> peers;
  std::string listen, advertise;
  int seconds = 600;  // of listening
  bool json = false;
};

void AddDoctor(CLI::App* app, DoctorFlags* flags);

// Returns the exit code: 0, 1 (there is a problem) or 2 (bad job or flags).
int DoctorCommand(const DoctorFlags& flags);

}  // namespace tandem::doctor

#endif  // TANDEM_DOCTOR_DOCTOR_COMMAND_H_
