#include "server/checkpoint/inspect.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/range_copy.h"
#include "server/checkpoint/range_file.h"
#include "server/checkpoint/segment_file.h"
#include "server/record/measure.h"
#include "server/record/order_file.h"
#include "server/record/record_cut.h"
#include "server/record/update_record.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

absl::Status NamedBy(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

std::string Floats(absl::Span<const float> values) {
  return absl::StrJoin(values, " ", [](std::string* out, float value) {
    absl::StrAppend(out, absl::StrFormat("%.6g", value));
  });
}

// How many of `count` items are printed. SayRest prints how many are not.
size_t Shown(size_t count, const InspectOptions& options) {
  return options.limit == 0 ? count : std::min(count, static_cast<size_t>(options.limit));
}
void SayRest(size_t count, size_t shown, absl::string_view what, std::ostream& out) {
  if (shown < count) {
    out << "  ... and " << count - shown << " " << what << " more (--limit 0 writes all)\n";
  }
}

// ---- range files ------------------------------------------------------------------------------

void WriteHeld(absl::string_view what, const HeldQueue& steps, std::ostream& out) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const HeldStep& step = steps[i];
    out << "  " << what << " " << step.step << ": " << step.contributions << " updates of "
        << step.samples << " samples\n";
    for (const HeldUpdate& u : step.updates) {
      out << "    worker " << u.rank << " step " << u.step << ", n " << u.samples << ", "
          << u.rows() << " rows";
      if (u.version_read != kReadByAnotherRun) out << ", read at version " << u.version_read;
      if (u.read_number >= 0) out << " as read " << u.read_number;
      out << "\n";
    }
  }
}

absl::Status WriteHeld(const RangeImage& image, std::ostream& out) {
  if (image.held.size() < kHeldHeadBytes) return absl::OkStatus();
  uint64_t numbers[2];
  image.held.copy(reinterpret_cast<char*>(numbers), sizeof numbers);
  const absl::string_view rest = absl::string_view(image.held).substr(kHeldHeadBytes);
  if (numbers[1] > rest.size()) {
    return absl::DataLossError(absl::StrCat("held updates of ", numbers[1], " bytes, but only ",
                                            rest.size(), " bytes follow"));
  }
  HeapBufferSource source;
  HeldQueue open, delayed;
  bool in_batches = false;
  TANDEM_RETURN_IF_ERROR(
      DecodeHeld(rest.substr(0, numbers[1]), image.dim, source, &open, &delayed, &in_batches));
  WriteHeld("closed, not applied: step", delayed, out);
  WriteHeld(in_batches ? "open: batch" : "open: step", open, out);
  if (rest.size() > numbers[1]) {
    out << "  remembered for the policy: " << rest.size() - numbers[1] << " bytes\n";
  }
  return absl::OkStatus();
}

void WriteCandidates(const RangeImage& image, const InspectOptions& options, std::ostream& out) {
  if (image.candidates.empty()) return;
  out << "  " << image.candidates.size() << " candidates for rows\n";
  const size_t shown = Shown(image.candidates.size(), options);
  for (const Candidate& candidate : absl::MakeConstSpan(image.candidates).first(shown)) {
    out << "    key " << absl::StrFormat("%#x", candidate.key) << ": " << candidate.count
        << " updates, the last " << candidate.age << " versions ago\n";
  }
  SayRest(image.candidates.size(), shown, "candidates", out);
}

// " of BF16"; empty for F32, which is usual.
std::string OfType(Table::Dtype type) {
  return type > Table::F32 ? absl::StrCat(" of ", Table::Dtype_Name(type)) : "";
}

// ", 3 hot rows of F32"; empty if no row becomes hot.
std::string HotText(const RangeImage& image) {
  if (image.types.hot_updates == 0) return "";
  const auto hot = std::count_if(image.heads.begin(), image.heads.end(),
                                 [](optim::RowHead head) { return head.hot(); });
  return absl::StrCat(", ", hot, " hot rows of ", Table::Dtype_Name(image.types.hot));
}

// `path`: for messages. `bytes`: a range file.
absl::Status InspectRange(const std::string& path, const std::string& bytes,
                          const InspectOptions& options, std::ostream& out) {
  const absl::StatusOr<RangeImage> image =
      DecodeRange({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  if (!image.ok()) return NamedBy(path, image.status());
  if (absl::StartsWith(image->table, "(")) {  // not a table: the state that a run needs to resume
    out << path << ": " << image->table << " of a run, " << image->held.size() << " bytes\n";
    return absl::OkStatus();
  }
  out << path << ": table " << image->table << ", positions "
      << PositionsText(image->begin, image->end) << ", " << image->keys.size() << " rows of "
      << image->dim << " floats" << OfType(image->types.row) << " and " << image->slots_per_row
      << " slots" << OfType(image->types.state) << " (" << image->optimizer << "), version "
      << image->progress.version << ", stamp " << image->stamp << HotText(*image) << "\n";
  for (size_t rank = 0; rank < image->progress.workers.size(); ++rank) {
    const policies::WorkerProgress& worker = image->progress.workers[rank];
    out << "  worker " << rank << ": " << worker.admitted << " steps admitted, " << worker.applied
        << " applied" << (worker.finished ? ", no data left" : "") << "\n";
  }
  if (const absl::Status held = WriteHeld(*image, out); !held.ok()) return NamedBy(path, held);
  WriteCandidates(*image, options, out);
  const size_t shown = Shown(image->keys.size(), options);
  const size_t dim = static_cast<size_t>(image->dim);
  const size_t slots = static_cast<size_t>(image->slots_per_row);
  for (size_t i = 0; i < shown; ++i) {
    const auto weights = absl::MakeConstSpan(image->weights).subspan(i * dim, dim);
    out << "  key " << absl::StrFormat("%#x", image->keys[i]) << ": " << Floats(weights);
    if (slots > 0) {
      out << " | " << Floats(absl::MakeConstSpan(image->slots).subspan(i * slots, slots));
    }
    if (image->limited) out << ", updated " << image->ages[i] << " versions ago";
    if (!image->heads.empty() && image->heads[i].hot()) out << ", hot";
    out << "\n";
  }
  SayRest(image->keys.size(), shown, "rows", out);
  return absl::OkStatus();
}

absl::Status InspectSegment(const std::string& path, const InspectOptions& options,
                            std::ostream& out) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CheckpointFile> parts, ReadSegmentIndex(path));
  out << path << ": a segment of " << parts.size() << " ranges\n";
  for (const CheckpointFile& part : parts) {
    TANDEM_ASSIGN_OR_RETURN(const std::string bytes, ReadSegmentPart(path, part));
    TANDEM_RETURN_IF_ERROR(
        InspectRange(absl::StrCat(path, " at offset ", part.offset), bytes, options, out));
  }
  return absl::OkStatus();
}

// ---- checkpoints ------------------------------------------------------------------------------

absl::Status InspectCheckpoint(const std::string& path, std::ostream& out) {
  TANDEM_ASSIGN_OR_RETURN(const CheckpointReader model, CheckpointReader::Open(path));
  const Manifest& manifest = model.manifest();
  out << model.folder() << ": checkpoint of job " << manifest.job << " before step "
      << manifest.step
      << absl::StrFormat(", run %#x, job hash %#x", manifest.run, manifest.job_hash) << ", seed "
      << manifest.seed << "\n  model " << manifest.model << "\n";
  for (const CheckpointTable& table : manifest.tables) {
    out << "  table " << table.name << ": dim " << table.dim;
    if (table.row_dtype != "F32") out << " of " << table.row_dtype;
    if (!table.hot_dtype.empty()) out << ", hot rows of " << table.hot_dtype;
    out << ", " << table.optimizer;
    if (table.state_dtype != "F32") out << " with state of " << table.state_dtype;
    if (!table.fields.empty()) out << ", fields " << absl::StrJoin(table.fields, " ");
    out << "\n";
  }
  for (const CheckpointParameter& parameter : manifest.dense) {
    out << "  dense " << DebugString(parameter) << "\n";
  }
  for (const CheckpointFile& file : manifest.files) {
    out << "  file " << file.name;
    if (IsSegment(file.name)) out << " at offset " << file.offset << ", table " << file.table;
    out << ": " << file.bytes << " bytes";
    if (file.begin != file.end || file.end != 0) {
      out << ", positions " << PositionsText(file.begin, file.end);
    }
    out << absl::StrFormat(", XXH3 %016x\n", file.checksum);
  }
  return absl::OkStatus();
}

// ---- staleness records ------------------------------------------------------------------------

const char* FateName(uint16_t fate) {
  switch (fate) {
    case kFateApplied:
      return "applied";
    case kFateMerged:
      return "merged";
    case kFateDropped:
      return "dropped";
    default:
      return "unknown";
  }
}

// Totals over all records of a file.
struct RecordTotals {
  uint64_t count = 0, dropped = 0;
  uint64_t rows = 0;
  double row_staleness = 0;  // sum over the rows
  uint32_t row_staleness_max = 0;
  Measure staleness, clock_gap, age;
  void Add(const UpdateRecord& record) {
    ++count;
    clock_gap.Add(record.clock_gap);
    if (record.fate == kFateDropped) {
      ++dropped;
      return;
    }
    staleness.Add(record.version_applied - record.version_read);
    if (record.age >= 0) age.Add(record.age);
    rows += record.rows_measured;
    row_staleness += static_cast<double>(record.row_staleness_sum);
    row_staleness_max = std::max(row_staleness_max, record.row_staleness_max);
  }
};

double MeanOf(double sum, uint64_t count) {
  return count == 0 ? 0.0 : sum / static_cast<double>(count);
}
std::string MeanAndLargest(const Measure& m, double unit = 1) {
  return absl::StrFormat("mean %.4g, largest %.4g", MeanOf(m.sum, m.count) * unit, m.max * unit);
}

void WriteRecord(const UpdateRecord& r, std::ostream& out) {
  out << "  worker " << r.worker << " step " << r.step << " table " << r.table << " range "
      << r.range << ": " << r.rows << " rows, n " << r.samples << " of " << r.divided_by << ", "
      << FateName(r.fate) << ", read at version " << r.version_read << ", applied at "
      << r.version_applied << ", clock gap " << r.clock_gap << ", in flight " << r.in_flight
      << ", admitted at " << r.admitted_at << " us";
  if (r.age >= 0) out << ", age " << r.age << " us";
  if (r.rows_measured > 0) {
    out << absl::StrFormat(", row staleness mean %.4g, largest %d",
                           MeanOf(static_cast<double>(r.row_staleness_sum), r.rows_measured),
                           r.row_staleness_max);
  }
  out << "\n";
}

// The number of records behind the head of the file. `other` is appended to the message about a
// wrong head.
template <typename Record, typename Head>
absl::StatusOr<size_t> CountRecords(const std::string& path, absl::string_view what,
                                    absl::string_view other, std::ifstream& file) {
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  const auto all = static_cast<uint64_t>(file.tellg());
  file.seekg(0);
  Head head;
  if (!file.read(reinterpret_cast<char*>(&head), sizeof head) || !head.IsOurs()) {
    return absl::DataLossError(absl::StrCat(path, ": does not begin like a file of ", what, other));
  }
  const uint64_t bytes = all - sizeof head;
  if (bytes % sizeof(Record) == 0) return bytes / sizeof(Record);
  return absl::DataLossError(
      absl::StrCat(path, ": ", bytes, " bytes are not a whole number of ", sizeof(Record),
                   "-byte records: is the file cut short, or is the job still running?"));
}

absl::Status InspectRecords(const std::string& path, const InspectOptions& options,
                            std::ostream& out) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const absl::StatusOr<size_t> records = CountRecords<UpdateRecord, RecordFileHead>(
      path, "staleness records",
      "; a file without this beginning is of an earlier version of Tandem, which can read it",
      file);
  TANDEM_ASSIGN_OR_RETURN(const size_t count, records);
  const size_t shown = Shown(count, options);
  out << path << ": " << count << " updates\n";
  RecordTotals totals;
  UpdateRecord record;
  while (file.read(reinterpret_cast<char*>(&record), sizeof record)) {
    if (record.fate > kFateDropped) {
      return absl::DataLossError(absl::StrCat(path, ": record ", totals.count, " has fate ",
                                              record.fate, ", expected 0 to ", kFateDropped,
                                              ": is it a file of staleness records?"));
    }
    if (totals.count < shown) WriteRecord(record, out);
    totals.Add(record);
  }
  SayRest(count, shown, "updates", out);
  out << "  in all: " << totals.dropped << " dropped; version staleness "
      << MeanAndLargest(totals.staleness) << "; clock gap " << MeanAndLargest(totals.clock_gap)
      << "; age " << MeanAndLargest(totals.age, 1e-6) << " s";
  if (totals.rows > 0) {
    out << absl::StrFormat("; row staleness mean %.4g, largest %d",
                           MeanOf(totals.row_staleness, totals.rows), totals.row_staleness_max);
  }
  out << "\n";
  return absl::OkStatus();
}

absl::Status InspectOrder(const std::string& path, const InspectOptions& options,
                          std::ostream& out) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const absl::StatusOr<size_t> entries =
      CountRecords<OrderEntry, OrderFileHead>(path, "the order of updates", "", file);
  TANDEM_ASSIGN_OR_RETURN(const size_t count, entries);
  const size_t shown = Shown(count, options);
  out << path << ": the order of " << count << " updates\n";
  OrderEntry e;
  for (size_t i = 0; i < shown && file.read(reinterpret_cast<char*>(&e), sizeof e); ++i) {
    out << "  range " << e.range << " at version " << e.version << ": worker " << e.worker
        << " step " << e.step;
    if (e.steps > 1) out << " and the " << e.steps - 1 << " before";
    if (e.rows > 0) out << ", " << e.rows << " rows read at version " << e.version_read;
    out << ", n " << e.samples;
    if (e.read_number >= 0) out << ", read number " << e.read_number;
    if (e.finished != 0) out << ", the last of its epoch";
    out << "\n";
  }
  SayRest(count, shown, "updates", out);
  return absl::OkStatus();
}

// ---- the kind of a file -----------------------------------------------------------------------

bool IsRecords(const std::string& name) { return absl::EndsWith(name, kRecordSuffix); }
bool IsOrder(const std::string& name) { return absl::EndsWith(name, kOrderSuffix); }

absl::Status InspectFile(const std::string& path, const InspectOptions& options,
                         std::ostream& out) {
  const fs::path name = fs::path(path).filename();
  if (IsRecords(name.string())) return InspectRecords(path, options, out);
  if (IsOrder(name.string())) return InspectOrder(path, options, out);
  if (name == "MANIFEST" || name == "LATEST") {
    const std::string folder = fs::path(path).parent_path().string();
    return InspectCheckpoint(folder.empty() ? "." : folder, out);
  }
  if (IsSegment(name.string())) return InspectSegment(path, options, out);
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path));
  return InspectRange(path, bytes, options, out);
}

// Prints the checkpoint in a folder, or else each file of a run's folder: its model and its
// records.
absl::Status InspectFolder(const std::string& path, const InspectOptions& options,
                           std::ostream& out) {
  std::error_code error;
  if (fs::exists(path + "/LATEST", error) || fs::exists(path + "/MANIFEST", error)) {
    return InspectCheckpoint(path, out);
  }
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    if (IsRecords(name) || IsOrder(name) || IsSegment(name) || absl::EndsWith(name, ".range") ||
        name == "dense.part" || (name == "model" && fs::exists(entry.path() / "LATEST"))) {
      found.push_back(entry.path().string());
    }
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat(
        path,
        ": contains no checkpoint (LATEST, MANIFEST), file of one (*.segment, *.range, "
        "dense.part), ",
        "staleness records (*.updates) or order of updates (*.order); hint: give the folder of a ",
        "run, or one of these"));
  }
  std::sort(found.begin(), found.end());
  for (const std::string& file : found) {
    TANDEM_RETURN_IF_ERROR(fs::is_directory(file, error) ? InspectCheckpoint(file, out)
                                                         : InspectFile(file, options, out));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Inspect(const std::string& path, const InspectOptions& options, std::ostream& out) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or folder"));
  }
  return fs::is_directory(path, error) ? InspectFolder(path, options, out)
                                       : InspectFile(path, options, out);
}

}  // namespace tandem::server
