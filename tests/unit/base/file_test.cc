// Whole files: what was there before stays until the new one is in place, and errors name the file.
#include "base/file.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/owned_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {
std::atomic<int> write_error{0};  // if it is not 0, the next write fails with it
}  // namespace

// In the place of the C library's, which the library under test would call.
extern "C" ssize_t write(int fd, const void* from, size_t bytes) {
  const int error = write_error.exchange(0);
  if (error == 0) return static_cast<ssize_t>(syscall(SYS_write, fd, from, bytes));
  errno = error;
  return -1;
}

namespace tandem {
namespace {

using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(MakeFolder(folder_), absl::OkStatus()); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  const std::string root_ = absl::StrCat(::testing::TempDir(), "/file_test.", getpid());
  const std::string folder_ = root_ + "/a/folder";
};

TEST_F(FileTest, WritesAndReads) {
  ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(Path("f"), "new"), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("f")), "new");
  EXPECT_FALSE(std::filesystem::exists(Path("f.tmp"))) << "no leftover";
}

TEST_F(FileTest, PutsAFileInPlace) {
  ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(Path("pieces"), "new"), absl::OkStatus());
  ASSERT_EQ(PutInPlace(Path("pieces"), Path("f")), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("f")), "new");
  EXPECT_FALSE(std::filesystem::exists(Path("pieces")));
}

TEST_F(FileTest, ErrorsNameTheFile) {
  EXPECT_EQ(ReadWholeFile(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadWholeFile(Path("none")).status().message()), HasSubstr(Path("none")));
  EXPECT_FALSE(ReadWholeFile("/dev/null").ok()) << "a device is not a file of ours";
  const absl::Status nowhere = WriteFileAtomically(Path("no/such"), "x");
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr(Path("no/such")));
  ASSERT_EQ(WriteFileAtomically(Path("f"), "x"), absl::OkStatus());
  EXPECT_THAT(std::string(MakeFolder(Path("f/g")).message()), HasSubstr(Path("f/g")));
  EXPECT_THAT(std::string(MakeFolder(Path("f/g")).message()), HasSubstr("/a/folder/f is a file"));
  ASSERT_EQ(symlink("nowhere", Path("link").c_str()), 0);
  EXPECT_THAT(std::string(MakeFolder(Path("link")).message()),
              HasSubstr("/a/folder/link is a link to nowhere, which does not exist"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadWholeFile(Path("pipe")).status().message()),
              HasSubstr("not a regular file"))
      << "and is not waited for";
}

// The error says so, and what was there before stays.
TEST_F(FileTest, AFullDiskLeavesTheOldFile) {
  ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
  write_error = ENOSPC;
  const absl::Status status = WriteFileAtomically(Path("f"), "new");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_FALSE(std::filesystem::exists(Path("f.tmp")));
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("f.tmp")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("offset 0"));
  EXPECT_EQ(*ReadWholeFile(Path("f")), "old");
}

// Another user puts a link, or a file of their own, where the temporary file will be.
TEST_F(FileTest, NothingIsWrittenThroughALinkOrIntoAFileOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files to another user";
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(WriteFileAtomically(Path("precious"), "content"), absl::OkStatus());
  ASSERT_EQ(symlink("precious", Path("f.tmp").c_str()), 0);
  ASSERT_EQ(lchown(Path("f.tmp").c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(WriteFileAtomically(Path("f"), "new"), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("precious")), "content");
  EXPECT_EQ(*ReadWholeFile(Path("f")), "new");

  const OwnedFd theirs(open(Path("g.tmp").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  ASSERT_EQ(fchown(theirs.get(), kNobody, kNobody), 0);
  ASSERT_EQ(WriteFileAtomically(Path("g"), "new"), absl::OkStatus());
  ASSERT_EQ(write(theirs.get(), "old", 3), 3);  // they have kept it open
  EXPECT_EQ(*ReadWholeFile(Path("g")), "new");
}

TEST_F(FileTest, APrivateFolderIsOfThisUserAlone) {
  EXPECT_EQ(CheckPrivateFolder(Path("none")).code(), absl::StatusCode::kNotFound);
  const absl::StatusOr<std::string> folder = MakeTemporaryFolder("file-test");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(CheckPrivateFolder(*folder), absl::OkStatus());
  ASSERT_EQ(symlink(folder->c_str(), Path("link").c_str()), 0);
  ASSERT_EQ(WriteFileAtomically(Path("file"), ""), absl::OkStatus());
  for (const auto& [path, why] :
       {std::pair(Path("link"), "is a link"), std::pair(Path("file"), "is no folder"),
        std::pair(folder_, "other users have access to it")}) {
    const absl::Status status = CheckPrivateFolder(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(path, ": ", why)));
  }
  std::filesystem::remove(*folder);
}

// Contents that come in pieces replace the file as a whole, or not at all.
TEST_F(FileTest, WritesPieces) {
  const auto write = [&](const absl::Status& end) {
    return WriteFileAtomically(Path("f"), [&](const ByteSink& sink) {
      for (const char* const piece : {"a", "", "bc"}) {
        if (const absl::Status status = sink(piece); !status.ok()) return status;
      }
      EXPECT_EQ(*ReadWholeFile(Path("f.tmp")), "abc");
      return end;
    });
  };
  ASSERT_EQ(write(absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("f")), "abc");
  ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
  EXPECT_EQ(write(absl::CancelledError("no more")), absl::CancelledError("no more"));
  EXPECT_EQ(*ReadWholeFile(Path("f")), "old");
  EXPECT_FALSE(std::filesystem::exists(Path("f.tmp"))) << "no leftover";
}

// The file is at its path when it is finished, and nowhere if it never is.
TEST_F(FileTest, ANewFileIsThereWhenItIsFinished) {
  for (const bool finishes : {false, true}) {
    absl::StatusOr<NewFile> file = NewFile::Create(Path("f"));
    ASSERT_TRUE(file.ok()) << file.status();
    NewFile moved = *std::move(file);
    ASSERT_EQ(moved.Append("a"), absl::OkStatus());
    ASSERT_EQ(moved.Append("bc"), absl::OkStatus());
    EXPECT_EQ(*ReadWholeFile(Path("f.tmp")), "abc");
    EXPECT_FALSE(std::filesystem::exists(Path("f")));
    if (finishes) {
      EXPECT_EQ(moved.Finish(), absl::OkStatus());
    }
  }
  EXPECT_EQ(*ReadWholeFile(Path("f")), "abc");
  EXPECT_FALSE(std::filesystem::exists(Path("f.tmp")));
  ASSERT_EQ(FlushFolder(Path("")), absl::OkStatus());
  const absl::Status nowhere = NewFile::Create(Path("no/such")).status();
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr(Path("no/such")));
}

TEST_F(FileTest, ReadsAPartOfAFile) {
  ASSERT_EQ(WriteFileAtomically(Path("f"), "abcdef"), absl::OkStatus());
  EXPECT_EQ(*ReadFilePart(Path("f"), 0, 6), "abcdef");
  EXPECT_EQ(*ReadFilePart(Path("f"), 2, 3), "cde");
  EXPECT_EQ(*ReadFilePart(Path("f"), 6, 0), "");
  for (const auto& [offset, bytes] : {std::pair<uint64_t, uint64_t>{0, 7},
                                      {4, 3},
                                      {7, 0},
                                      {1, ~uint64_t{0}},
                                      {~uint64_t{0}, 2}}) {
    const absl::Status status = ReadFilePart(Path("f"), offset, bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << offset << " " << bytes;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("f")));
  }
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0 ? info.st_mode : 0;
}

TEST_F(FileTest, OutputKeepsTheModeAndTheNamesOfAFile) {
  ASSERT_EQ(WriteFileAtomically(Path("f"), "a long old text"), absl::OkStatus());
  ASSERT_EQ(chmod(Path("f").c_str(), 0640), 0);
  ASSERT_EQ(symlink("f", Path("link").c_str()), 0);
  ASSERT_EQ(symlink(Path("link").c_str(), Path("to-link").c_str()), 0);
  ASSERT_EQ(WriteOutput(Path("to-link"), "new"), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("f")), "new");
  EXPECT_EQ(ModeOf(Path("f")), mode_t{S_IFREG | 0640});
  EXPECT_TRUE(S_ISLNK(ModeOf(Path("link"))) && S_ISLNK(ModeOf(Path("to-link"))));

  ASSERT_EQ(link(Path("f").c_str(), Path("other-name").c_str()), 0);
  ASSERT_EQ(WriteOutput(Path("f"), "newer"), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("other-name")), "newer");

  ASSERT_EQ(symlink("nothing-yet", Path("dangling").c_str()), 0);
  ASSERT_EQ(WriteOutput(Path("dangling"), "first"), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("nothing-yet")), "first");

  const std::string long_name(250, 'n');  // no room for the name of a temporary file
  ASSERT_EQ(WriteOutput(Path(long_name), "old"), absl::OkStatus());
  ASSERT_EQ(WriteOutput(Path(long_name), "new"), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path(long_name)), "new");
  const auto folder = std::filesystem::directory_iterator(folder_);
  EXPECT_EQ(std::distance(begin(folder), end(folder)), 7) << "a temporary file is left";
}

// The call with which the C library renames. aarch64 has no SYS_rename.
#if defined(SYS_rename)
constexpr long kRename = SYS_rename;
#elif defined(SYS_renameat)
constexpr long kRename = SYS_renameat;
#else
constexpr long kRename = SYS_renameat2;
#endif

// Whether WriteOutput succeeds in a process in which the kernel refuses a system call; nullopt:
// this kernel has no such filters.
std::optional<bool> WritesWithout(long call, int error, const std::string& path,
                                  const std::string& text) {
  constexpr int kWritten = 0, kRefused = 1, kNoFilter = 2;
  const pid_t child = fork();
  if (child == 0) {
    sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter = {std::size(steps), steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      _exit(kNoFilter);
    }
    _exit(WriteOutput(path, text).ok() ? kWritten : kRefused);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilter) return std::nullopt;
  return WIFEXITED(status) && WEXITSTATUS(status) == kWritten;
}

TEST_F(FileTest, OutputIsOverwrittenOnlyWhereNoFileCanTakeItsPlace) {
  ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
  const auto busy = WritesWithout(kRename, EBUSY, Path("f"), "by hand");
  if (!busy.has_value()) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_TRUE(*busy) << "a mount point";
  EXPECT_EQ(*ReadWholeFile(Path("f")), "by hand");
  EXPECT_FALSE(*WritesWithout(kRename, EIO, Path("f"), "new")) << "a broken disk";
  EXPECT_EQ(*ReadWholeFile(Path("f")), "by hand");
  EXPECT_FALSE(*WritesWithout(SYS_fsync, EIO, Path("f"), "new"));
  EXPECT_EQ(*ReadWholeFile(Path("f")), "by hand");
  ASSERT_EQ(link(Path("f").c_str(), Path("other-name").c_str()), 0);  // it cannot be replaced
  EXPECT_FALSE(*WritesWithout(SYS_fsync, EIO, Path("f"), "newest"));
  const auto folder = std::filesystem::directory_iterator(folder_);
  EXPECT_EQ(std::distance(begin(folder), end(folder)), 2) << "a temporary file is left";
}

TEST_F(FileTest, OutputNeedsNoRenameAndNoFsyncOfTheFileSystem) {
  ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
  if (!WritesWithout(kRename, ENOSYS, Path("f"), "old").has_value()) {
    GTEST_SKIP() << "no filters of system calls here";
  }
  for (const int error : {ENOSYS, EOPNOTSUPP, EINVAL}) {
    EXPECT_TRUE(*WritesWithout(kRename, error, Path("f"), absl::StrCat("renamed ", error)));
    EXPECT_EQ(*ReadWholeFile(Path("f")), absl::StrCat("renamed ", error));
  }
  ASSERT_EQ(WriteFileAtomically(Path("linked"), "old"), absl::OkStatus());
  ASSERT_EQ(link(Path("linked").c_str(), Path("other-name").c_str()), 0);
  for (const int error : {ENOSYS, EINVAL}) {
    for (const char* name : {"f", "linked"}) {
      EXPECT_TRUE(*WritesWithout(SYS_fsync, error, Path(name), absl::StrCat("flushed ", error)));
      EXPECT_EQ(*ReadWholeFile(Path(name)), absl::StrCat("flushed ", error));
    }
  }
  const auto folder = std::filesystem::directory_iterator(folder_);
  EXPECT_EQ(std::distance(begin(folder), end(folder)), 3) << "a temporary file is left";
}

// Root may read every file, so a child writes as a user without rights.
TEST_F(FileTest, OutputMayBeAFileThatItsOwnerCannotRead) {
  constexpr uid_t kNobody = 65534;
  const bool root = geteuid() == 0;
  for (const mode_t mode : {0200, 0222}) {
    ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
    ASSERT_EQ(chmod(Path("f").c_str(), mode), 0);
    if (root) {
      ASSERT_EQ(chown(Path("f").c_str(), kNobody, kNobody), 0);
      ASSERT_EQ(chown(folder_.c_str(), kNobody, kNobody), 0);
    }
    const pid_t child = fork();
    if (child == 0) {
      if (root && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(2);
      _exit(WriteOutput(Path("f"), "new").ok() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "mode " << mode << ": " << status;
    EXPECT_EQ(ModeOf(Path("f")), S_IFREG | mode);
    ASSERT_EQ(chmod(Path("f").c_str(), 0600), 0);
    EXPECT_EQ(*ReadWholeFile(Path("f")), "new");
    ASSERT_EQ(unlink(Path("f").c_str()), 0);
  }
}

TEST_F(FileTest, OutputIsWrittenIntoWhatIsNoFile) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  std::string read_back;
  std::thread reader([&] {
    char bytes[16];
    const OwnedFd fd(open(Path("fifo").c_str(), O_RDONLY));
    for (ssize_t n; (n = read(fd.get(), bytes, sizeof bytes)) > 0;) {
      read_back.append(bytes, static_cast<size_t>(n));
    }
  });
  EXPECT_EQ(WriteOutput(Path("fifo"), "through the pipe"), absl::OkStatus());
  reader.join();
  EXPECT_EQ(read_back, "through the pipe");
  EXPECT_TRUE(S_ISFIFO(ModeOf(Path("fifo"))));

  // A descriptor goes on where it stands.
  OwnedFd fd(open(Path("f").c_str(), O_WRONLY | O_CREAT, 0644));
  ASSERT_EQ(write(fd.get(), "1 ", 2), 2);
  ASSERT_EQ(symlink(absl::StrCat("/proc/self/fd/", fd.get()).c_str(), Path("out").c_str()), 0);
  EXPECT_EQ(FindOutput(Path("out")).fd, fd.get());
  EXPECT_EQ(WriteOutput(Path("out"), "2 "), absl::OkStatus());
  EXPECT_EQ(WriteOutput(absl::StrCat("/dev/fd/", fd.get()), "3"), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("f")), "1 2 3");
  EXPECT_FALSE(WriteOutput(folder_, "x").ok()) << "a folder";
}

// A node of its own, since the machine's would be lost if this went wrong.
TEST_F(FileTest, WritingToAFullDeviceFailsAndKeepsTheDevice) {
  if (mknod(Path("full").c_str(), S_IFCHR | 0666, makedev(1, 7)) != 0) {
    GTEST_SKIP() << "no rights to make a device";
  }
  if (!OwnedFd(open(Path("full").c_str(), O_WRONLY)).valid()) GTEST_SKIP() << "no devices here";
  EXPECT_EQ(WriteOutput(Path("full"), "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(S_ISCHR(ModeOf(Path("full"))));
}

}  // namespace
}  // namespace tandem
