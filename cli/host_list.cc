#include "cli/host_list.h"

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr int kMostRanks = 4096;

// Collects hosts and refuses what contradicts the earlier ones.
class Hosts {
 public:
  // `where`: for errors. `slots`: as text.
  absl::Status Add(const std::string& where, const std::string& host, const std::string& slots) {
    const auto refused = [&where](const std::string& why) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", why));
    };
    // ssh would take the word for one of its options.
    if (host.empty() || host[0] == '-') {
      return refused(absl::StrCat("'", host, "' is not the name of a host"));
    }
    int number = 0;
    if (!absl::SimpleAtoi(slots, &number) || number < 1 || number > kMostRanks) {
      return refused(absl::StrCat("host ", host, " has '", slots, "' slots, expected 1 to ",
                                  kMostRanks, "; hint: leave out a host that must not be used"));
    }
    if (!names_.insert(host).second) {
      return refused(absl::StrCat("host ", host,
                                  " is there twice; hint: one line with the sum of "
                                  "its slots"));
    }
    hosts_.push_back({host, number});
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<HostSlots>> Take(const std::string& where) {
    if (hosts_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": there is no host"));
    }
    return std::move(hosts_);
  }

 private:
  std::vector<HostSlots> hosts_;
  std::set<std::string> names_;
};

}  // namespace

absl::StatusOr<std::vector<HostSlots>> ParseHostFile(const std::string& name,
                                                     const std::string& text) {
  Hosts hosts;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const std::string line(absl::StripAsciiWhitespace(raw.substr(0, raw.find('#'))));
    if (line.empty()) continue;
    const std::string where = absl::StrCat(name, ":", number);
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    absl::string_view slots = "slots=1";
    if (words.size() > 1) slots = words[1];
    if (words.size() > 2 || !absl::ConsumePrefix(&slots, "slots=")) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": '", line, "', expected HOST slots=NUMBER"));
    }
    TANDEM_RETURN_IF_ERROR(hosts.Add(where, words[0], std::string(slots)));
  }
  return hosts.Take(name);
}

absl::StatusOr<std::vector<HostSlots>> ParseHostList(const std::string& text) {
  Hosts hosts;
  const std::string where = absl::StrCat("-H ", text);
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(item, absl::MaxSplits(':', 1));
    const bool counted = absl::StrContains(item, ':');
    TANDEM_RETURN_IF_ERROR(hosts.Add(where, parts.first, counted ? parts.second : "1"));
  }
  return hosts.Take(where);
}

}  // namespace tandem::cli
