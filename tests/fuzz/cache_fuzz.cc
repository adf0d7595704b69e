// Fuzzing the reader of caches: any bytes give rows or one line of error. Input: a byte that picks
// the job, then the file. Its checksums are made right first, since a fuzzer could not.
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/owned_fd.h"
#include "data/batch_builder.h"
#include "data/cache_file.h"
#include "data/cache_rows.h"

namespace tandem {
namespace {

using data::CacheBlock;
using data::CacheTail;

// Writes the checksums of the blocks, as far as they fit, and that of the tail.
void Seal(std::string* file) {
  constexpr size_t kMagic = sizeof data::kCacheMagic - 1;
  if (file->size() < kMagic + sizeof(CacheTail)) return;
  std::memcpy(file->data(), data::kCacheMagic, kMagic);
  const size_t end = file->size() - sizeof(CacheTail);
  CacheTail tail;
  std::memcpy(&tail, file->data() + end, sizeof tail);
  tail.version = data::kCacheVersion;
  tail.blocks = std::min<uint64_t>(tail.blocks, (end - kMagic) / sizeof(CacheBlock));
  const size_t index_bytes = tail.blocks * sizeof(CacheBlock);
  tail.meta_bytes = std::min<uint64_t>(tail.meta_bytes, end - kMagic - index_bytes);
  const size_t index = end - index_bytes - tail.meta_bytes;
  size_t at = kMagic;
  for (size_t i = 0; i < tail.blocks; ++i) {
    CacheBlock block;
    std::memcpy(&block, file->data() + index + i * sizeof block, sizeof block);
    block.stored = std::min<uint64_t>(block.stored, index - at);
    if (i + 1 == tail.blocks) block.stored = index - at;
    block.checksum = XXH3_64bits(file->data() + at, block.stored);
    at += block.stored;
    std::memcpy(file->data() + index + i * sizeof block, &block, sizeof block);
  }
  tail.checksum = XXH3_64bits_withSeed(&tail, offsetof(CacheTail, checksum),
                                       XXH3_64bits(file->data() + index, end - index));
  std::memcpy(file->data() + end, &tail, sizeof tail);
}

Data DataOf(int kind) {
  Data data;
  data.set_format(kind == 0 ? Data::LIBSVM : Data::DELIMITED);
  if (kind == 0) return data;
  Columns* const columns = data.mutable_columns();
  columns->set_label("0");
  columns->add_numeric("1");
  columns->add_categorical("2");
  columns->add_categorical("3");
  columns->set_scale(kind == 1 ? Column::NONE : Column::STANDARDISE);
  if (kind != 3) return data;
  Column* const many = columns->add_column();
  many->set_name("3");
  many->set_separator("|");
  many->set_pooling(Column::MEAN);
  return data;
}

void CheckError(const absl::Status& status) {
  TANDEM_CHECK(status.message().find('\n') == absl::string_view::npos);
}

void ReadAll(std::unique_ptr<data::CacheFile> file, int kind) {
  const Data data = DataOf(kind);
  auto source = kind == 0 ? data::NewLibsvmParser(0) : *data::NewDelimitedParser(data.columns());
  const auto parser = *data::NewCacheParser(data, std::move(source), nullptr);
  const auto rows = data::NewCacheRows(std::move(file), "fuzz", parser.get());
  data::TableLayout layout;
  layout.fields = kind == 0 ? std::vector<int>{0} : std::vector<int>{0, 1};
  layout.bags = layout.weighted = kind == 0 || kind == 3;
  data::BatchBuilder builder(kind == 0 ? 0 : 1, {layout});
  data::Batch batch;
  builder.Start(&batch);
  data::Row row;
  for (absl::string_view line;;) {
    const absl::StatusOr<bool> more = rows->Next(&line);
    if (!more.ok()) return CheckError(more.status());
    if (!*more) break;
    if (parser->Parse(line, &row).ok()) builder.Append(row, &batch);
  }
  builder.Finish(&batch);
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 4) == 0) tandem::Seal(&bytes);
  const tandem::OwnedFd fd(memfd_create("fuzz", MFD_CLOEXEC));
  TANDEM_CHECK(write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  auto file = tandem::data::CacheFile::Open(absl::StrCat("/proc/self/fd/", fd.get()));
  if (file.ok()) {
    tandem::ReadAll(*std::move(file), data[0] & 3);
  } else {
    tandem::CheckError(file.status());
  }
  return 0;
}
