// Text for people and for shells: numbers with units, and quoted words.
#ifndef TANDEM_BASE_TEXT_H_
#define TANDEM_BASE_TEXT_H_

#include <cstdint>
#include <string>

namespace tandem {

// "1,234,567".
std::string WithCommas(int64_t number);
// "82.1 MB"; "-" for 0.
std::string BytesText(double bytes);
// "0:42", "2:03:59", "3 days".
std::string ClockTime(double seconds);
// The word, in quotes if a shell would not take it literally.
std::string ForShell(const std::string& word);

}  // namespace tandem

#endif  // TANDEM_BASE_TEXT_H_
