#include "node/role_options.h"

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace tandem::node {
namespace {

// "tandem run", if this is the command that was given.
std::string CommandName(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() ? app.get_name()
                        : absl::StrCat(app.get_name(), " ", CommandName(*chosen[0]));
}

std::string OneLine(absl::string_view text) {
  std::string line = absl::StrReplaceAll(absl::StripAsciiWhitespace(text), {{"\n", " "}});
  if (line.size() > 1 && absl::ascii_islower(static_cast<unsigned char>(line[1]))) {
    // this text follows a colon
    line[0] = absl::ascii_tolower(static_cast<unsigned char>(line[0]));
  }
  return line;
}

}  // namespace

std::string CheckAddress(const std::string& text) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "ipc://")) return "";
  const bool tcp = absl::ConsumePrefix(&rest, "tcp://");
  const size_t colon = rest.rfind(':');
  const bool complete = colon != absl::string_view::npos && colon > 0 && colon + 1 < rest.size();
  int port = 0;
  if (tcp && complete && rest.substr(colon + 1) != "*" &&
      (!absl::SimpleAtoi(rest.substr(colon + 1), &port) || port < 0 || port > 65535)) {
    return absl::StrCat("'", text, "': a port is a number up to 65535, or * for any free one");
  }
  const absl::string_view host = complete ? rest.substr(0, colon) : "";
  const bool brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (tcp && !brackets && absl::StrContains(host, ':')) {
    return absl::StrCat("'", text, "': an IPv6 address stands in brackets, as in tcp://[::1]:7000");
  }
  if (tcp && absl::StartsWithIgnoreCase(host, "[fe80:") && !absl::StrContains(host, '%')) {
    return absl::StrCat(
        "'", text, "': a link-local address names its network, as in tcp://[fe80::1%eth0]:7000");
  }
  return tcp && complete && host != "[]" ? "" : absl::StrCat("'", text, "' is not tcp://HOST:PORT");
}

std::string CheckHttpAddress(const std::string& text) {
  return absl::StrReplaceAll(CheckAddress(absl::StrCat("tcp://", text)), {{"tcp://", ""}});
}

std::string CheckNotNegative(const std::string& text) {
  double number = 0;
  return absl::SimpleAtod(text, &number) && number >= 0
             ? ""
             : absl::StrCat("'", text, "', expected a number, 0 or more");
}

std::string CheckAboveZero(const std::string& text) {
  double number = 0;
  return absl::SimpleAtod(text, &number) && number > 0
             ? ""
             : absl::StrCat("'", text, "', expected a number above 0");
}

bool ParseFlags(CLI::App* app, int argc, char** argv, int* exit_code) {
  try {
    app->parse(argc, argv);
    return true;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help
      app->exit(error);
      *exit_code = kExitOk;
      return false;
    }
    const std::string name = CommandName(*app);
    std::fprintf(stderr, "%s: %s; hint: %s --help\n", name.c_str(), OneLine(error.what()).c_str(),
                 name.c_str());
    *exit_code = kExitBadInput;
    return false;
  }
}

}  // namespace tandem::node
