// Numbers as people read them, for what the command line prints.
#ifndef TANDEM_CLI_NUMBERS_H_
#define TANDEM_CLI_NUMBERS_H_

#include <cstdint>
#include <string>

namespace tandem::cli {

// "1,234,567".
std::string WithCommas(int64_t number);
// "82.1 MB"; "-" for 0.
std::string BytesText(double bytes);
// "0:42", "2:03:59", "3 days".
std::string ClockTime(double seconds);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_NUMBERS_H_
