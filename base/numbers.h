// Numbers as people read them, in messages, tables and reports. Thread safety: any thread.
#ifndef TANDEM_BASE_NUMBERS_H_
#define TANDEM_BASE_NUMBERS_H_

#include <cstdint>
#include <string>

namespace tandem {

// "1,234,567".
std::string WithCommas(int64_t number);
// "82.1 MB"; "-" for 0.
std::string BytesText(double bytes);
// "0:42", "2:03:59", "3 days".
std::string ClockTime(double seconds);

}  // namespace tandem

#endif  // TANDEM_BASE_NUMBERS_H_
