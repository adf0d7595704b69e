#include "server/checkpoint/segment_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "xxhash.h"

namespace tandem::server {
namespace {

constexpr char kSegmentSuffix[] = ".segment";
constexpr uint32_t kSegmentMagic = 0x47534454;  // "TDSG"
constexpr uint32_t kSegmentFormat = 1;
constexpr uint64_t kNameAlign = 8;
constexpr uint64_t kMaxBytes = uint64_t{1}
                               << 62;  // the longest segment; sums of two do not overflow

// An entry of the index as it is in the file. The name of the table follows, padded to kNameAlign.
struct Entry {
  uint64_t offset;
  uint64_t bytes;
  uint64_t begin;
  uint64_t end;
  uint64_t rows;
  uint64_t checksum;
  uint64_t name_bytes;
};
static_assert(sizeof(Entry) == 56);

// The end of the file.
struct Trailer {
  uint32_t magic;
  uint32_t format;
  uint64_t parts;
  uint64_t index_bytes;
  uint64_t file_bytes;
  uint64_t checksum;  // covers the index and the fields above
};
static_assert(sizeof(Trailer) == 40);

uint64_t Padded(uint64_t bytes, uint64_t align) { return (bytes + align - 1) / align * align; }
std::string Zeros(uint64_t bytes, uint64_t align) {
  return std::string(Padded(bytes, align) - bytes, '\0');
}

uint64_t ChecksumOf(absl::string_view index, const Trailer& trailer) {
  const uint64_t of_index = XXH3_64bits(index.data(), index.size());
  return XXH3_64bits_withSeed(&trailer, offsetof(Trailer, checksum), of_index);
}

std::string EncodeIndex(const std::vector<CheckpointFile>& parts, uint64_t parts_bytes) {
  std::string index;
  for (const CheckpointFile& part : parts) {
    const Entry entry = {
        part.offset,   part.bytes,       part.begin, part.end, static_cast<uint64_t>(part.rows),
        part.checksum, part.table.size()};
    absl::StrAppend(&index, absl::string_view(reinterpret_cast<const char*>(&entry), sizeof entry),
                    part.table, Zeros(part.table.size(), kNameAlign));
  }
  Trailer trailer = {kSegmentMagic,
                     kSegmentFormat,
                     parts.size(),
                     index.size(),
                     parts_bytes + index.size() + sizeof(Trailer),
                     0};
  trailer.checksum = ChecksumOf(index, trailer);
  absl::StrAppend(&index,
                  absl::string_view(reinterpret_cast<const char*>(&trailer), sizeof trailer));
  return index;
}

// Reads the entries of an index whose checksum is right. False if they do not follow each other
// from the beginning of the file to `parts_bytes`, where the index begins.
bool DecodeIndex(absl::string_view index, uint64_t count, uint64_t parts_bytes,
                 std::vector<CheckpointFile>* parts) {
  uint64_t at = 0;  // in the file
  for (uint64_t i = 0; i < count; ++i) {
    Entry entry;
    if (index.size() < sizeof entry) return false;
    std::memcpy(&entry, index.data(), sizeof entry);
    index.remove_prefix(sizeof entry);
    if (entry.name_bytes > kMaxNameBytes || entry.bytes > kMaxBytes || entry.rows > kMaxBytes) {
      return false;
    }
    const uint64_t name_bytes = Padded(entry.name_bytes, kNameAlign);
    if (index.size() < name_bytes || entry.offset != at) return false;
    const absl::string_view zeros = index.substr(entry.name_bytes, name_bytes - entry.name_bytes);
    if (zeros.find_first_not_of('\0') != zeros.npos) return false;
    CheckpointFile& part = parts->emplace_back();
    part.table = std::string(index.substr(0, entry.name_bytes));
    part.begin = entry.begin;
    part.end = entry.end;
    part.bytes = entry.bytes;
    part.rows = static_cast<int64_t>(entry.rows);
    part.checksum = entry.checksum;
    part.offset = entry.offset;
    index.remove_prefix(name_bytes);
    at = Padded(at + entry.bytes, kSegmentAlign);
    if (at > parts_bytes) return false;
  }
  return index.empty() && at == parts_bytes;
}

}  // namespace

bool IsSegment(absl::string_view name) { return absl::EndsWith(name, kSegmentSuffix); }

absl::Status SegmentWriter::Add(const RangeImage& head, uint64_t rows,
                                const std::function<absl::Status(ByteSink)>& contents) {
  if (file_.has_value() && bytes_ >= full_bytes_) TANDEM_RETURN_IF_ERROR(EndSegment());
  if (!file_.has_value()) {
    TANDEM_RETURN_IF_ERROR(MakeFolder(folder_));
    TANDEM_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(absl::StrCat(folder_, "/", name_, "-",
                                                                       segments_, kSegmentSuffix)));
    file_.emplace(std::move(file));
  }
  CheckpointFile part;
  part.table = head.table;
  part.begin = head.begin;
  part.end = head.end;
  part.rows = static_cast<int64_t>(rows);
  part.offset = bytes_;
  std::string tail;  // the last bytes, which are the checksum of the range file
  TANDEM_RETURN_IF_ERROR(contents([&](absl::string_view bytes) {
    absl::StrAppend(&tail, bytes.substr(bytes.size() - std::min(bytes.size(), sizeof(uint64_t))));
    tail.erase(0, tail.size() - std::min(tail.size(), sizeof(uint64_t)));
    return Append(bytes);
  }));
  TANDEM_CHECK(tail.size() == sizeof part.checksum);
  tail.copy(reinterpret_cast<char*>(&part.checksum), sizeof part.checksum);
  part.bytes = bytes_ - part.offset;
  parts_.push_back(std::move(part));
  return Append(Zeros(bytes_, kSegmentAlign));
}

absl::Status SegmentWriter::Append(absl::string_view bytes) {
  bytes_ += bytes.size();
  return file_->Append(bytes);
}

absl::Status SegmentWriter::EndSegment() {
  TANDEM_RETURN_IF_ERROR(Append(EncodeIndex(parts_, bytes_)));
  TANDEM_RETURN_IF_ERROR(file_->Finish());
  file_.reset();
  parts_.clear();
  bytes_ = 0;
  ++segments_;
  return absl::OkStatus();
}

absl::Status SegmentWriter::Finish() {
  if (file_.has_value()) TANDEM_RETURN_IF_ERROR(EndSegment());
  return segments_ == 0 ? absl::OkStatus() : FlushFolder(folder_);
}

absl::StatusOr<std::vector<CheckpointFile>> ReadSegmentIndex(const std::string& path) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  const auto cut_short = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat(path, ": ", size, " bytes that ", why,
                                            " a segment of a checkpoint: is it cut short?"));
  };
  if (size < sizeof(Trailer)) return cut_short("are too few for");
  TANDEM_ASSIGN_OR_RETURN(const std::string end,
                          ReadFilePart(path, size - sizeof(Trailer), sizeof(Trailer)));
  Trailer trailer;
  end.copy(reinterpret_cast<char*>(&trailer), sizeof trailer);
  if (trailer.magic != kSegmentMagic) return cut_short("do not end like");
  if (trailer.format != kSegmentFormat) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": segment of format ", trailer.format,
                                                   ", this program reads ", kSegmentFormat));
  }
  if (trailer.file_bytes != size || trailer.index_bytes > size - sizeof(Trailer)) {
    return absl::DataLossError(absl::StrCat(path, ": has ", size, " bytes, its end says ",
                                            trailer.file_bytes, ", ", trailer.index_bytes,
                                            " of them in its index: is it damaged?"));
  }
  const uint64_t index_at = size - sizeof(Trailer) - trailer.index_bytes;
  TANDEM_ASSIGN_OR_RETURN(const std::string index,
                          ReadFilePart(path, index_at, trailer.index_bytes));
  if (const uint64_t computed = ChecksumOf(index, trailer); computed != trailer.checksum) {
    return absl::DataLossError(
        absl::StrFormat("%s: the checksum of its index is %#x, the bytes give %#x", path,
                        trailer.checksum, computed));
  }
  std::vector<CheckpointFile> parts;
  if (!DecodeIndex(index, trailer.parts, index_at, &parts)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": its index does not list ", trailer.parts, " range files that follow each other"));
  }
  const std::string name = std::filesystem::path(path).filename().string();
  for (CheckpointFile& part : parts) part.name = name;
  return parts;
}

absl::StatusOr<std::string> ReadSegmentPart(const std::string& path, const CheckpointFile& part) {
  if (part.bytes > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a part of ", part.bytes, " bytes"));
  }
  TANDEM_ASSIGN_OR_RETURN(std::string bytes,
                          ReadFilePart(path, part.offset, Padded(part.bytes, kSegmentAlign)));
  const size_t padding = bytes.find_first_not_of('\0', part.bytes);
  if (padding != bytes.npos) {
    return absl::DataLossError(
        absl::StrFormat("%s: padding at offset %d is not 0", path, part.offset + padding));
  }
  bytes.resize(part.bytes);
  return bytes;
}

}  // namespace tandem::server
