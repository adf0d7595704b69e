#include "cli/launch/host_list.h"

#include <arpa/inet.h>

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

constexpr int kMaxRanks = 4096;

// `host`: perhaps with a zone, as in "fe80::1%eth0".
bool IsIpv6(absl::string_view host) {
  in6_addr bytes;
  return inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &bytes) == 1;
}

// The host as ssh accepts it: without brackets, "user@::1" for "user@[::1]". Empty if the text can
// be neither a host nor an alias.
std::string HostForSsh(absl::string_view host) {
  const size_t at = host.rfind('@');
  absl::string_view name = at == absl::string_view::npos ? host : host.substr(at + 1);
  const bool bracketed = absl::ConsumePrefix(&name, "[");
  if (bracketed && !absl::ConsumeSuffix(&name, "]")) return "";
  // ssh would take a word that begins with - for one of its options.
  if (host[0] == '-' || name.empty()) return "";
  if ((bracketed || absl::StrContains(name, ':')) && !IsIpv6(name)) return "";
  return absl::StrCat(host.substr(0, at == absl::string_view::npos ? 0 : at + 1), name);
}

// Collects hosts and refuses what contradicts the earlier ones.
class Hosts {
 public:
  // `where`: for errors. `slots`: as text.
  absl::Status Add(const std::string& where, const std::string& text, const std::string& slots) {
    const auto refused = [&where](const std::string& why) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", why));
    };
    const std::string host = text.empty() ? "" : HostForSsh(text);
    if (host.empty()) return refused(absl::StrCat("'", text, "' is not the name of a host"));
    int number = 0;
    if (!absl::SimpleAtoi(slots, &number) || number < 1 || number > kMaxRanks) {
      return refused(absl::StrCat("host ", host, " has '", slots, "' slots, expected 1 to ",
                                  kMaxRanks, "; hint: leave out a host that must not be used"));
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
    const size_t bracket = item.find(']');  // of an IPv6 address
    const size_t colon = item.find(':', bracket == absl::string_view::npos ? 0 : bracket);
    const absl::string_view host = item.substr(0, colon);
    const bool counted = colon != absl::string_view::npos;
    const absl::string_view slots = counted ? item.substr(colon + 1) : "1";
    if (absl::StrContains(slots, ':')) {  // the last number may be slots or part of an address
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": '", item,
                       "', expected HOST:SLOTS; hint: an IPv6 address is in brackets, "
                       "[::1]:2"));
    }
    TANDEM_RETURN_IF_ERROR(hosts.Add(where, std::string(host), std::string(slots)));
  }
  return hosts.Take(where);
}

}  // namespace tandem::cli
