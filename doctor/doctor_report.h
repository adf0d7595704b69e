// What `tandem doctor` prints: lines for people, or one JSON object.
//
// Thread safety: free functions without state.
#ifndef TANDEM_DOCTOR_DOCTOR_REPORT_H_
#define TANDEM_DOCTOR_DOCTOR_REPORT_H_

#include <string>
#include <vector>

#include "doctor/doctor.h"
#include "doctor/doctor_peer.h"

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
// A section a host and a pair; no line is longer than the columns unless a word is.
std::string ReportText(const DoctorReport& report, const ReportStyle& style);
std::string ReportJson(const DoctorReport& report);

}  // namespace tandem::doctor

#endif  // TANDEM_DOCTOR_DOCTOR_REPORT_H_
