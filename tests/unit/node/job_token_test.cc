// Where the token of a job comes from, and what is refused without one.
#include "node/job_token.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using transport::JobKeys;

class JobTokenTest : public ::testing::Test {
 protected:
  JobTokenTest() {
    std::string folder = ::testing::TempDir() + "tandem-token-XXXXXX";
    TANDEM_CHECK(mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    Unset();
  }
  ~JobTokenTest() override {
    Unset();
    std::remove((folder_ + "/token").c_str());
    std::remove((folder_ + "/other").c_str());
    rmdir(folder_.c_str());
  }
  static void Unset() {
    unsetenv(node::kTokenVariable);
    unsetenv(node::kTokenFileVariable);
  }
  std::string Write(const char* name, const std::string& text, mode_t mode = 0600) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path) << text;
    TANDEM_CHECK(chmod(path.c_str(), mode) == 0);
    return path;
  }
  // The public key that the process finds; empty: none.
  std::string Found(const std::string& folder) {
    const auto keys = node::FindKeys(folder);
    EXPECT_TRUE(keys.ok()) << keys.status();
    return keys.ok() && *keys != nullptr ? (*keys)->curve_public() : "";
  }
  static std::string PublicKey(const std::string& token) {
    return JobKeys::FromToken(token)->curve_public();
  }
  std::string folder_;
  Job job_;
};

TEST_F(JobTokenTest, SourcesHaveAnOrder) {
  const std::string one = JobKeys::NewToken(), two = JobKeys::NewToken(),
                    three = JobKeys::NewToken();
  EXPECT_EQ(Found(folder_), "");
  Write("token", one + "\n");
  EXPECT_EQ(Found(folder_), PublicKey(one));
  EXPECT_EQ(Found(""), "");
  setenv(node::kTokenFileVariable, Write("other", two).c_str(), 1);
  EXPECT_EQ(Found(folder_), PublicKey(two));
  setenv(node::kTokenVariable, three.c_str(), 1);
  EXPECT_EQ(Found(folder_), PublicKey(three));
}

TEST_F(JobTokenTest, ErrorsNameTheSource) {
  setenv(node::kTokenVariable, "", 1);
  EXPECT_THAT(node::FindKeys("").status().message(), HasSubstr("TANDEM_TOKEN: a token of 0"));
  unsetenv(node::kTokenVariable);
  setenv(node::kTokenFileVariable, (folder_ + "/missing").c_str(), 1);
  EXPECT_THAT(node::FindKeys("").status().message(),
              HasSubstr("TANDEM_TOKEN_FILE: " + folder_ + "/missing: No such file"));
  setenv(node::kTokenFileVariable, folder_.c_str(), 1);
  EXPECT_THAT(node::FindKeys("").status().message(), HasSubstr("expected a file"));
  unsetenv(node::kTokenFileVariable);
  Write("token", "swordfish");
  EXPECT_THAT(node::FindKeys(folder_).status().message(), HasSubstr("/token: a token of 9"));
}

TEST_F(JobTokenTest, AFileThatOthersCanReadIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602}) {
    const std::string path = Write("token", JobKeys::NewToken(), mode);
    const absl::Status status = node::FindKeys(folder_).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrFormat("(mode %03o)", mode)));
  }
}

TEST_F(JobTokenTest, TheProcessThatStartsAJobMakesAToken) {
  ASSERT_TRUE(node::ProvideToken(job_, folder_).ok());
  ASSERT_TRUE(node::PublishToken(job_, folder_).ok());
  const std::string made = Found("");
  EXPECT_NE(made, "") << "roles inherit it";
  unsetenv(node::kTokenVariable);
  EXPECT_EQ(Found(folder_), made) << "readers find it";
  struct stat facts = {};
  ASSERT_EQ(stat((folder_ + "/token").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600u);

  ASSERT_TRUE(node::ProvideToken(job_, folder_).ok());
  EXPECT_EQ(Found(""), made) << "a resumed run keeps it";

  Write("token", "one that others may read", 0644);
  const std::string given = JobKeys::NewToken();
  setenv(node::kTokenVariable, given.c_str(), 1);
  ASSERT_TRUE(node::ProvideToken(job_, folder_).ok());
  ASSERT_TRUE(node::PublishToken(job_, folder_).ok());
  unsetenv(node::kTokenVariable);
  EXPECT_EQ(Found(folder_), PublicKey(given));
}

TEST_F(JobTokenTest, AJobWithoutSecurityUsesNoToken) {
  job_.mutable_security()->set_encrypt(Security::NONE);
  ASSERT_TRUE(node::ProvideToken(job_, folder_).ok());
  ASSERT_TRUE(node::PublishToken(job_, folder_).ok());
  EXPECT_EQ(Found(folder_), "");
  setenv(node::kTokenVariable, JobKeys::NewToken().c_str(), 1);
  node::RoleFlags flags;
  ASSERT_TRUE(node::LoadKeys(job_, &flags).ok());
  EXPECT_EQ(flags.keys, nullptr);
}

TEST_F(JobTokenTest, EncryptionOfAllNeedsAToken) {
  job_.mutable_security()->set_encrypt(Security::ALL);
  node::RoleFlags flags;
  EXPECT_THAT(node::LoadKeys(job_, &flags).message(),
              HasSubstr("encrypt: ALL needs a token; hint"));
  setenv(node::kTokenVariable, JobKeys::NewToken().c_str(), 1);
  ASSERT_TRUE(node::LoadKeys(job_, &flags).ok());
  EXPECT_TRUE(flags.encrypt_all);
}

TEST_F(JobTokenTest, OnlyLoopbackNeedsNoToken) {
  const auto check = [this](const std::string& bind, const std::string& token) {
    if (!token.empty()) setenv(node::kTokenVariable, token.c_str(), 1);
    node::RoleFlags flags;
    flags.bind = bind;
    EXPECT_TRUE(node::LoadKeys(job_, &flags).ok());
    unsetenv(node::kTokenVariable);
    return node::CheckNotExposed(job_, flags);
  };
  for (const char* const bind : {"tcp://127.0.0.1:*", "tcp://127.1.2.3:7000", "tcp://localhost:*",
                                 "tcp://lo:*", "tcp://[::1]:*", "ipc:///tmp/x"}) {
    EXPECT_TRUE(check(bind, "").ok()) << bind;
  }
  for (const char* const bind : {"tcp://*:*", "tcp://0.0.0.0:7000", "tcp://10.1.2.3:*"}) {
    EXPECT_THAT(check(bind, "").message(), HasSubstr("the job has no token; hint: export TANDEM"));
    EXPECT_TRUE(check(bind, JobKeys::NewToken()).ok()) << bind;
  }
  job_.mutable_security()->set_encrypt(Security::NONE);
  EXPECT_THAT(check("tcp://*:*", JobKeys::NewToken()).message(), HasSubstr("encrypt: NONE"));
}

}  // namespace
}  // namespace tandem
