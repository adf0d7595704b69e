#include "node/job_token.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"
#include "job/job.h"
#include "transport/tcp_address.h"

namespace tandem::node {
namespace {

absl::Status SystemError(absl::string_view path, absl::string_view hint = "") {
  const int error = errno;
  const std::string what = absl::StrCat(path, ": ", std::strerror(error), hint);
  return error == ENOENT ? absl::NotFoundError(what) : absl::PermissionDeniedError(what);
}

// Reads a file that only this user, or root, can have written and only this user can read.
absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts = {};
  if (!file.valid() || fstat(file.get(), &facts) != 0) {
    return SystemError(path, errno == EACCES ? "; hint: only the user of the job can read it" : "");
  }
  if (!S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a file with a token"));
  }
  if (facts.st_uid != geteuid() && facts.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        path, ": the token belongs to user ", facts.st_uid, ", this process to user ", geteuid()));
  }
  if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s: other users have access to the token (mode %03o); hint: chmod 600 and a new token",
        path, facts.st_mode & 0777));
  }
  std::array<char, 1024> text;  // more than any token has
  const ssize_t size = read(file.get(), text.data(), text.size());
  if (size < 0) return SystemError(path);
  return std::string(text.data(), static_cast<size_t>(size));
}

struct Token {
  std::string text;    // empty: there is none
  std::string source;  // variable or file, for errors
};

absl::StatusOr<Token> FindToken(const std::string& folder) {
  if (const char* const text = getenv(kTokenVariable); text != nullptr) {
    return Token{text, kTokenVariable};
  }
  if (const char* const path = getenv(kTokenFileVariable); path != nullptr) {
    absl::StatusOr<std::string> text = ReadSecret(path);
    if (!text.ok()) {
      return absl::Status(text.status().code(),
                          absl::StrCat(kTokenFileVariable, ": ", text.status().message()));
    }
    return Token{*std::move(text), path};
  }
  if (folder.empty()) return Token();
  const std::string path = absl::StrCat(folder, "/", kTokenFile);
  absl::StatusOr<std::string> text = ReadSecret(path);
  if (absl::IsNotFound(text.status())) return Token();
  if (!text.ok()) return text.status();
  return Token{*std::move(text), path};
}

absl::StatusOr<std::shared_ptr<const transport::JobKeys>> KeysOf(const Token& token) {
  absl::StatusOr<transport::JobKeys> keys = transport::JobKeys::FromToken(token.text);
  if (keys.ok()) return std::make_shared<const transport::JobKeys>(*std::move(keys));
  return absl::Status(keys.status().code(),
                      absl::StrCat(token.source, ": ", keys.status().message()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const transport::JobKeys>> FindKeys(const std::string& folder) {
  TANDEM_ASSIGN_OR_RETURN(const Token token, FindToken(folder));
  if (token.source.empty()) return nullptr;
  return KeysOf(token);
}

absl::Status LoadKeys(const Job& job, RoleFlags* flags) {
  flags->silence = job::SilenceTimes(job);
  if (job.security().encrypt() == Security::NONE) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(flags->keys, FindKeys(flags->out));
  flags->encrypt_all = job.security().encrypt() == Security::ALL;
  if (flags->encrypt_all && flags->keys == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("security.encrypt: ALL needs a token; hint: export ", kTokenVariable,
                     "=$(openssl rand -hex 32) for every process"));
  }
  if (flags->keys == nullptr && job::UsesPlugin(job)) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy kind PLUGIN needs a token, since it runs a library; hint: export ",
                     kTokenVariable, "=$(openssl rand -hex 32) for every process"));
  }
  return absl::OkStatus();
}

absl::Status WriteSecret(const std::string& path, absl::string_view text) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return SystemError(path);
  const OwnedFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return SystemError(path);
  if (write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(path, ": ", std::strerror(errno)));
}

absl::Status ProvideToken(const Job& job, const std::string& folder) {
  if (job.security().encrypt() == Security::NONE) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(Token token, FindToken(folder));
  if (token.source.empty()) token = {transport::JobKeys::NewToken(), "a new token"};
  TANDEM_RETURN_IF_ERROR(KeysOf(token).status());
  if (setenv(kTokenVariable, token.text.c_str(), 1) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError("no memory for the environment");
}

absl::Status PublishToken(const Job& job, const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kTokenFile);
  if (job.security().encrypt() == Security::NONE) {
    return unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus() : SystemError(path);
  }
  TANDEM_ASSIGN_OR_RETURN(const Token token, FindToken(folder));
  if (token.source.empty() || token.source == path) return absl::OkStatus();
  return WriteSecret(path, token.text);
}

absl::Status CheckNotExposed(const Job& job, const RoleFlags& flags) {
  const transport::TcpAddress given = transport::SplitTcpAddress(flags.bind);
  if (flags.keys != nullptr || !given.valid()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::string bind, transport::ResolveToBind(flags.bind));
  if (transport::IsLoopbackHost(transport::SplitTcpAddress(bind).host)) return absl::OkStatus();
  const bool none = job.security().encrypt() == Security::NONE;
  return absl::InvalidArgumentError(
      absl::StrCat("--bind ", flags.bind, ": other hosts can connect, and the job ",
                   none ? "uses no token (security.encrypt: NONE)" : "has no token",
                   "; hint: ", none ? "CONTROL, and " : "", "export ", kTokenVariable,
                   "=$(openssl rand -hex 32) for every process, or allow it by --insecure"));
}

}  // namespace tandem::node
