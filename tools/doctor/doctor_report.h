// The output of `tandem doctor`: lines for people, or one JSON object.
//
// Thread safety: free functions without state.
#ifndef TANDEM_TOOLS_DOCTOR_DOCTOR_REPORT_H_
#define TANDEM_TOOLS_DOCTOR_DOCTOR_REPORT_H_

#include <string>
#include <vector>

#include "tools/doctor/doctor.h"
#include "tools/doctor/doctor_peer.h"

namespace tandem::doctor {

struct DoctorReport {
  std::vector<HostReport> hosts;  // this one first
  std::vector<PairReport> pairs;
};

struct ReportStyle {
  int columns = 100;
  bool colour = false;
};

int CountOf(const DoctorReport& report, Severity level);
// One section for each host and each pair. Lines are wrapped at `columns`; only a longer word
// exceeds it.
std::string ReportText(const DoctorReport& report, const ReportStyle& style);
std::string ReportJson(const DoctorReport& report);

}  // namespace tandem::doctor

#endif  // TANDEM_TOOLS_DOCTOR_DOCTOR_REPORT_H_
