#include "scheduler/observe/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <boost/crc.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "proto/histogram.h"
#include "proto/serialize.h"

namespace tandem::scheduler {
namespace {

using nlohmann::json;

void PutLittleEndian(uint64_t number, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

tensorboard::Event EventAt(absl::Time now, int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  event.set_step(step);
  return event;
}

// Adds the member of `object`; nothing if it has none.
void AddScalar(const json& object, const char* member, const std::string& tag,
               tensorboard::Event* event) {
  const auto it = object.find(member);
  if (it == object.end() || !it->is_number()) return;
  tensorboard::Summary::Value& value = *event->mutable_summary()->add_value();
  value.set_tag(tag);
  value.set_simple_value(it->get<float>());
}

// The largest value of the bucket that begins at `low`, or `max` if it is in that bucket.
double LastOf(uint64_t low, double max) {
  const size_t bucket = HistogramBucket(low);
  if (bucket + 1 == kHistogramBuckets) return max;
  return std::min(max, static_cast<double>(HistogramLow(bucket + 1) - 1));
}

// `distribution`: DistributionJson (summary.h), of whole numbers.
void AddHistogram(const json& distribution, const std::string& tag, tensorboard::Event* event) {
  if (distribution.value("count", uint64_t{0}) == 0) return;
  tensorboard::Summary::Value& value = *event->mutable_summary()->add_value();
  value.set_tag(tag);
  tensorboard::HistogramProto& histo = *value.mutable_histo();
  const double count = distribution["count"].get<double>();
  const double max = distribution.value("max", 0.0);
  histo.set_num(count);
  histo.set_sum(distribution.value("mean", 0.0) * count);
  histo.set_max(max);
  double squares = 0, filled_to = -1;  // the last limit
  for (const json& bucket : distribution["histogram"]) {
    const double low = bucket[0].get<double>(), values = bucket[1].get<double>();
    if (histo.bucket_size() == 0) histo.set_min(low);
    if (low - 1 > filled_to) {  // no values between the buckets
      histo.add_bucket_limit(low - 1);
      histo.add_bucket(0);
    }
    filled_to = std::max(low, LastOf(static_cast<uint64_t>(low), max));
    histo.add_bucket_limit(filled_to);
    histo.add_bucket(values);
    squares += values * low * low;
  }
  histo.set_sum_squares(squares);
}

}  // namespace

uint32_t MaskedCrc32c(absl::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const uint32_t sum = static_cast<uint32_t>(crc.checksum());
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8u;
}

absl::StatusOr<std::unique_ptr<TensorBoardFile>> TensorBoardFile::Create(const std::string& folder,
                                                                         absl::Time now,
                                                                         int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tensorboard ", folder, ": cannot be made: ", WhyNoFolder(folder, error)));
  }
  char host[256] = "";
  (void)gethostname(host, sizeof host - 1);
  // TensorBoard looks for `tfevents` in the name, and reads files in the order of their names. The
  // microseconds keep two attempts of the same second in order.
  const std::string path = absl::StrFormat("%s/events.out.tfevents.%d.%06d.%s.%d.tandem", folder,
                                           absl::ToUnixSeconds(now),
                                           absl::ToUnixMicros(now) % 1'000'000, host, getpid());
  OwnedFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tensorboard ", path, ": cannot be written: ", std::strerror(errno)));
  }
  std::unique_ptr<TensorBoardFile> made(new TensorBoardFile(std::move(file), path));
  tensorboard::Event version = EventAt(now, 0);
  version.set_file_version("brain.Event:2");
  TANDEM_RETURN_IF_ERROR(made->Write(version));
  tensorboard::Event start = EventAt(now, first_step);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  TANDEM_RETURN_IF_ERROR(made->Write(start));
  return made;
}

absl::Status TensorBoardFile::AddProgress(absl::Time now, const json& progress) {
  tensorboard::Event event = EventAt(now, progress.value("max_step", int64_t{0}));
  AddScalar(progress, "loss", "training/loss", &event);
  AddScalar(progress, "auc", "training/auc", &event);
  AddScalar(progress, "samples_per_second", "speed/samples_per_second", &event);
  AddScalar(progress, "staleness_mean", "staleness/mean", &event);
  AddScalar(progress, "staleness_max", "staleness/max", &event);
  AddScalar(progress, "data_applied_share", "staleness/data_applied_share", &event);
  AddScalar(progress, "epoch", "progress/epoch", &event);
  AddScalar(progress, "samples", "progress/samples", &event);
  return Write(event);
}

absl::Status TensorBoardFile::AddEvaluation(absl::Time now, const json& evaluation) {
  tensorboard::Event event = EventAt(now, evaluation.value("step", int64_t{0}));
  const std::string data = evaluation.value("data", "test");
  for (const char* measure : {"auc", "logloss", "accuracy", "hr_at_10", "ndcg_at_10"}) {
    AddScalar(evaluation, measure, absl::StrCat("evaluation/", data, "/", measure), &event);
  }
  return event.has_summary() ? Write(event) : absl::OkStatus();
}

absl::Status TensorBoardFile::AddReported(absl::Time now, int64_t step, const json& values) {
  tensorboard::Event event = EventAt(now, step);
  for (const auto& [name, value] : values.items()) {
    AddScalar(values, name.c_str(), "reported/" + name, &event);
  }
  return event.has_summary() ? Write(event) : absl::OkStatus();
}

absl::Status TensorBoardFile::AddTables(absl::Time now, int64_t step, const json& tables) {
  tensorboard::Event event = EventAt(now, step);
  for (const auto& [name, table] : tables.items()) {
    for (const char* kind : {"version_staleness", "clock_gap"}) {
      if (table.contains(kind)) AddHistogram(table[kind], absl::StrCat(kind, "/", name), &event);
    }
    AddScalar(table, "rows", "rows/" + name, &event);
    AddScalar(table, "hot_rows", "hot_rows/" + name, &event);
    const auto counts = table.find("row_counts");
    if (counts == table.end()) continue;
    for (const char* count : {"candidates", "admitted", "evicted", "refused", "to_fresh_rows",
                              "found_share", "came_back_share"}) {
      AddScalar(*counts, count, absl::StrCat(count, "/", name), &event);
    }
  }
  return event.has_summary() ? Write(event) : absl::OkStatus();
}

absl::Status TensorBoardFile::Write(const tensorboard::Event& event) {
  const std::string data = Serialize(event);
  std::string record;
  PutLittleEndian(data.size(), 8, &record);
  PutLittleEndian(MaskedCrc32c(record), 4, &record);
  record += data;
  PutLittleEndian(MaskedCrc32c(data), 4, &record);
  const auto size = static_cast<ssize_t>(record.size());
  const ssize_t written = pwrite(file_.get(), record.data(), record.size(), size_);
  if (written == size) {
    size_ += size;
    return absl::OkStatus();
  }
  const absl::Status why = absl::ResourceExhaustedError(absl::StrCat(
      path_, ": cannot be written: ", written < 0 ? std::strerror(errno) : "the disk is full"));
  // TensorBoard reads nothing behind a part of a record.
  (void)!ftruncate(file_.get(), size_);
  return why;
}

}  // namespace tandem::scheduler
