// A file system with little room, for tests of full disks.
#ifndef TANDEM_TESTS_INTEGRATION_SMALL_DISK_H_
#define TANDEM_TESTS_INTEGRATION_SMALL_DISK_H_

#include <sys/mount.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace tandem {

// A file system of so many KiB at the folder `path`, until the end of this object.
class SmallDisk {
 public:
  SmallDisk(const std::string& path, int kibibytes) : path_(path) {
    const std::string options = absl::StrCat("size=", kibibytes, "k");
    mounted_ = mount("tandem-test", path.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }  // false: mounting needs root

 private:
  const std::string path_;
  bool mounted_ = false;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_SMALL_DISK_H_
