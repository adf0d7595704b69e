#include "server/checkpoint_load.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/exhaustion.h"
#include "base/memory_full.h"
#include "base/status_macros.h"
#include "job/job_budget.h"
#include "job/message_text.h"
#include "optim/optimizer.h"
#include "server/checkpoint/checkpoint_check.h"
#include "server/checkpoint/range_file.h"

namespace tandem::server {
namespace {

constexpr int kHeldPerShard = 2;
// A shard that reads a file and fills ranges with it takes at most so many times the bytes of the
// decoded file: these bytes twice, or once with the rows, whose index may be there twice.
constexpr size_t kTimesInMemory = 4;
constexpr absl::Duration kLookForRoom = absl::Milliseconds(20);
constexpr size_t kDone = std::numeric_limits<size_t>::max();

// Keeps the mark of the status.
absl::Status InFile(const std::string& path, const absl::Status& status) {
  const std::string text = absl::StrCat(path, ": ", status.message());
  return IsMemoryFull(status) ? MemoryFullError(text) : absl::Status(status.code(), text);
}

// A range refuses to join the open batches of two files (UpdateOrder::OtherProgress). With as many
// ranges as the run had, or a multiple of that number, each range needs one file only.
absl::Status WithNumberOfRanges(const CheckpointReader& saved, const std::string& table,
                                const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status)) return status;
  const std::vector<CheckpointFile>& files = saved.manifest().files;
  const auto ranges = std::count_if(files.begin(), files.end(), [&](const CheckpointFile& file) {
    return file.table == table && !IsWorkerPart(file);
  });
  return absl::FailedPreconditionError(
      absl::StrCat(status.message(), "; expected the ", ranges,
                   " key ranges of the checkpoint; hint: resume with cluster.servers x "
                   "shards_per_server x ranges_per_shard = ",
                   ranges, ", or a multiple of it"));
}

// The last position of [begin, end). End 0 means 2^64; unsigned subtraction gets that right.
uint64_t Last(uint64_t end) { return end - 1; }

// The least bytes of a row in a RowIndex: a bucket has 64 bytes for 5 rows, and at most 65 % of the
// places have a row.
constexpr size_t kMinIndexBytes = 19;

bool IsAtBudget(const job::TablePlan& table) {
  return table.eviction.kind() == Eviction::AT_BUDGET;
}

// The number of positions in [begin, end).
double Width(uint64_t begin, uint64_t end) { return static_cast<double>(Last(end) - begin) + 1; }

// A file in memory that the budget counts.
struct CountedImage {
  explicit CountedImage(MemoryBudget* budget) : bytes(budget, /*copies=*/true) {}

  MemoryBudget::Part bytes;  // declared first: counts until `image` is freed
  RangeImage image;
};

size_t MemoryOf(const RangeImage& image) {
  return image.keys.capacity() * sizeof(uint64_t) +
         (image.weights.capacity() + image.slots.capacity()) * sizeof(float) +
         image.ages.capacity() * sizeof(uint32_t) +
         image.heads.capacity() * sizeof(optim::RowHead) +
         image.candidates.capacity() * sizeof(Candidate) + image.held.capacity();
}

// If another optimizer wrote the image, replaces the slots by initial values, because slots have a
// meaning only for their own optimizer.
void StartSlotsAfresh(const optim::RowOptimizer& optimizer, RangeImage* image) {
  if (image->optimizer == optimizer.name()) return;
  image->optimizer = optimizer.name();
  image->step_base = image->stamp;
  image->slots_per_row = optimizer.slots_per_row(image->dim);
  const auto slots = static_cast<size_t>(image->slots_per_row);
  image->slots.assign(image->keys.size() * slots, 0.0f);
  for (size_t i = 0; i < image->keys.size(); ++i) {
    optimizer.InitSlots(image->dim, absl::MakeSpan(image->slots).subspan(i * slots, slots));
  }
}

// The rows missed steps under the settings of the run that wrote them. If this job has other
// settings, the rows make up for these steps now.
absl::Status CatchUpUnderOtherSettings(const CheckpointTable& saved, const job::TablePlan& table,
                                       RangeImage* image) {
  if (saved.catch_up.empty() || saved.catch_up == CatchUpText(table.optimizer)) {
    return absl::OkStatus();
  }
  Optimizer settings;
  google::protobuf::TextFormat::ParseInfoTree tree;
  TANDEM_RETURN_IF_ERROR(
      job::ParseMessageText(saved.catch_up, "catch_up of the manifest", &settings, &tree));
  TANDEM_ASSIGN_OR_RETURN(const auto optimizer, optim::NewRowOptimizer(settings));
  const auto dim = static_cast<size_t>(image->dim);
  const auto slots = static_cast<size_t>(image->slots_per_row);
  if (optimizer->name() != image->optimizer ||
      optimizer->slots_per_row(image->dim) != image->slots_per_row) {
    return absl::DataLossError(absl::StrCat("table ", saved.name, ": rows of the optimizer ",
                                            image->optimizer, ", and the manifest has ",
                                            saved.catch_up));
  }
  for (size_t i = 0; i < image->keys.size(); ++i) {
    float* const weights = image->weights.data() + i * dim;
    float* const state = image->slots.data() + i * slots;
    optimizer->CatchUp(image->dim, image->stamp - image->step_base, weights, state, weights, state);
  }
  for (optim::RowHead& head : image->heads) head.exponent = optim::RowHead::kNoExponent;
  return absl::OkStatus();
}

}  // namespace

CheckpointLoad::CheckpointLoad(Opener open, Options options, std::vector<Wanted> wanted)
    : open_(std::move(open)),
      options_(std::move(options)),
      wanted_(std::move(wanted)),
      at_(static_cast<size_t>(options_.shards)) {
  if (options_.budget != nullptr) options_.budget->set_loading(true);
}

CheckpointLoad::~CheckpointLoad() {
  if (options_.budget != nullptr) options_.budget->set_loading(false);
}

absl::Status CheckpointLoad::Load(int shard, const std::vector<Range*>& ranges,
                                  BufferSource& source) {
  const absl::Status loaded = CatchExceptions([&] { return LoadFiles(shard, ranges, source); });
  if (!loaded.ok()) Cancel(loaded);
  absl::MutexLock lock(&mutex_);
  at_[static_cast<size_t>(shard)] = {kDone, /*loads=*/false};
  changed_.SignalAll();
  return loaded;
}

absl::StatusOr<std::string> CheckpointLoad::Record() {
  TANDEM_RETURN_IF_ERROR(Prepare());
  absl::MutexLock lock(&mutex_);
  if (!record_.has_value()) record_ = saved_->ReadRecord();
  return *record_;
}

void CheckpointLoad::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  status_.Update(why);
  changed_.SignalAll();
}

// ---- which files ------------------------------------------------------------------------------

absl::Status CheckpointLoad::Prepare() {
  absl::MutexLock lock(&mutex_);
  if (!prepared_ && status_.ok()) status_ = FindFiles();
  prepared_ = true;
  return status_;
}

bool CheckpointLoad::Loads(const job::TablePlan& table) const {
  if (options_.resume) return true;
  const std::vector<std::string>& only = options_.only;
  if (!only.empty() && std::count(only.begin(), only.end(), table.name) == 0) return false;
  return !table.dense || saved_->HasTable(table.name);  // else no update of it was held back
}

absl::Status CheckpointLoad::FindFiles() {
  TANDEM_ASSIGN_OR_RETURN(saved_, open_());
  dense_ = saved_->dense_part();
  OrderFiles();
  needed_by_.resize(ordered_.size());
  std::map<std::string, std::vector<size_t>> of_table;  // in order of position
  for (size_t i = 0; i < ordered_.size(); ++i) {
    if (ordered_[i] != dense_) of_table[ordered_[i]->table].push_back(i);
  }
  for (auto& [table, files] : of_table) {
    std::sort(files.begin(), files.end(),
              [this](size_t a, size_t b) { return ordered_[a]->begin < ordered_[b]->begin; });
  }
  std::set<const job::TablePlan*> covered;
  for (const Wanted& wanted : wanted_) {
    const job::TablePlan& table = *wanted.table;
    if (!Loads(table)) continue;
    TANDEM_ASSIGN_OR_RETURN(const uint64_t salt, saved_->SaltOf(table.name));
    const std::vector<size_t>& files = of_table[table.name];
    if (options_.resume) {
      if (salt != table.salt) {
        return absl::FailedPreconditionError(
            absl::StrCat(saved_->folder(), ": table ", table.name,
                         ": its salt is not that of this job; hint: use the seed of the run"));
      }
      if (covered.insert(&table).second) {
        TANDEM_RETURN_IF_ERROR(saved_->CheckCover(table.name));
      }
      // Earlier versions wrote the rows of dense tables into the dense part only.
      if (table.dense && dense_ != nullptr) {
        const auto at = std::find(ordered_.begin(), ordered_.end(), dense_);
        Need(static_cast<size_t>(at - ordered_.begin()), wanted);
      }
    }
    if (salt == table.salt) {
      NeedOverlapping(wanted, files);
    } else {  // the job has another seed
      tables_[&table].another_salt = true;
      for (const size_t file : files) Need(file, wanted);
    }
  }
  files_.resize(ordered_.size());
  for (size_t i = 0; i < ordered_.size(); ++i) {
    files_[i].waiting = needed_by_[i].size();
  }
  return absl::OkStatus();
}

void CheckpointLoad::OrderFiles() {
  std::set<std::string> at_budget;
  for (const Wanted& wanted : wanted_) {
    if (IsAtBudget(*wanted.table)) at_budget.insert(wanted.table->name);
  }
  for (const CheckpointFile& file : saved_->manifest().files) ordered_.push_back(&file);
  std::stable_partition(ordered_.begin(), ordered_.end(), [&](const CheckpointFile* file) {
    return at_budget.count(file->table) == 0;
  });
}

void CheckpointLoad::NeedOverlapping(const Wanted& wanted, const std::vector<size_t>& files) {
  const auto first = std::partition_point(files.begin(), files.end(), [&](size_t file) {
    return Last(ordered_[file]->end) < wanted.begin;
  });
  for (auto at = first; at != files.end() && ordered_[*at]->begin <= Last(wanted.end); ++at) {
    Need(*at, wanted);
  }
}

void CheckpointLoad::Need(size_t file, const Wanted& wanted) {
  if (!IsNeededBy(file, wanted.shard)) needed_by_[file].push_back(wanted.shard);
  TableRows& table = tables_[wanted.table];
  table.bytes_per_row = wanted.bytes_per_row;
  table.to_load += table.Estimate(*ordered_[file], wanted.begin, wanted.end);
}

bool CheckpointLoad::IsNeededBy(size_t file, int shard) const {
  const std::vector<int>& shards = needed_by_[file];
  return std::count(shards.begin(), shards.end(), shard) > 0;
}

double CheckpointLoad::TableRows::Estimate(const CheckpointFile& file, uint64_t begin,
                                           uint64_t end) const {
  auto rows = static_cast<double>(file.rows);
  if (file.rows < 0) {  // from the length, as if the file had only rows, with the slots of this job
    rows = static_cast<double>(file.bytes) / (bytes_per_row - kMinIndexBytes + sizeof(uint64_t));
  }
  const double all = rows * bytes_per_row;
  if (another_salt) return all * std::ldexp(Width(begin, end), -64);
  const uint64_t first = std::max(begin, file.begin), last = std::min(Last(end), Last(file.end));
  return first > last ? 0 : all * Width(first, last + 1) / Width(file.begin, file.end);
}

CheckpointLoad::Loading CheckpointLoad::BeginRows(size_t file, const Range& range) {
  const job::TablePlan* const plan = range.table().plan;
  absl::MutexLock lock(&mutex_);
  TableRows& table = tables_[plan];
  Loading rows = {&table, /*share=*/1, table.Estimate(*ordered_[file], range.begin(), range.end())};
  if (options_.budget != nullptr) {
    double at_budget = 0, others = 0, begun = 0, taken = 0;
    for (const auto& [other, sum] : tables_) {
      (IsAtBudget(*other) ? at_budget : others) += sum.factor() * sum.to_load;
      begun += sum.factor() * sum.begun;
      taken += sum.taken;
    }
    const auto now = static_cast<double>(options_.budget->RoomToGrow());
    room_ = std::max(room_, now + taken);  // RoomToGrow is smaller while large files are in memory
    const double room = std::max(std::min(room_ - taken - begun, now) - others, 0.0);
    if (IsAtBudget(*plan) && room < at_budget) rows.share = room / at_budget;
  }
  table.to_load -= rows.estimate;
  rows.estimate *= rows.share;
  table.begun += rows.estimate;
  return rows;
}

// `bytes`: the memory that the rows take.
void CheckpointLoad::EndRows(const Loading& rows, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  rows.table->begun -= rows.estimate;
  rows.table->loaded += rows.estimate;
  rows.table->taken += static_cast<double>(bytes);
}

// ---- reading ----------------------------------------------------------------------------------

// No shard waits for ever: a shard that loads a file finishes it, and while none does, the shard
// that is furthest behind does not wait for room.
absl::StatusOr<std::shared_ptr<const RangeImage>> CheckpointLoad::Take(int shard, size_t file,
                                                                       const TableContext& table) {
  {
    absl::MutexLock lock(&mutex_);
    at_[static_cast<size_t>(shard)] = {file, /*loads=*/false};
    changed_.SignalAll();
    // Memory of the process becomes free without a signal.
    while (status_.ok() && MustWait(shard, file)) {
      changed_.WaitUntil(&mutex_, MonotonicNow() + kLookForRoom);
    }
    TANDEM_RETURN_IF_ERROR(status_);
    at_[static_cast<size_t>(shard)].loads = true;
    if (files_[file].state == State::kRead) return Taken(file);
    files_[file].state = State::kReading;
    if (needed_by_[file].size() > 1) ++held_;
  }
  auto image = CatchExceptions([&] { return Read(file, table); });
  absl::MutexLock lock(&mutex_);
  files_[file].state = State::kRead;
  files_[file].image = std::move(image);
  changed_.SignalAll();
  return Taken(file);
}

bool CheckpointLoad::MustWait(int shard, size_t file) const {
  if (files_[file].state == State::kReading) return true;
  if (files_[file].state == State::kRead) return false;
  std::set<size_t> loads;  // shards share the memory of a file
  for (const At& at : at_) {
    if (at.loads) loads.insert(at.file);
  }
  size_t bytes = DecodedBytes(*ordered_[file]);
  for (const size_t other : loads) bytes += DecodedBytes(*ordered_[other]);
  const MemoryBudget* const budget = options_.budget;
  const bool no_room = budget != nullptr && budget->room() < kTimesInMemory * bytes;
  if (no_room && !loads.empty()) return true;
  const bool shared = needed_by_[file].size() > 1;
  const bool too_many = shared && held_ >= kHeldPerShard * options_.shards;
  if (!too_many && !no_room) return false;
  const size_t here = at_[static_cast<size_t>(shard)].file;
  return std::any_of(at_.begin(), at_.end(), [here](const At& at) { return at.file < here; });
}

absl::StatusOr<std::shared_ptr<const RangeImage>> CheckpointLoad::Taken(size_t file) {
  absl::StatusOr<std::shared_ptr<const RangeImage>> image = files_[file].image;
  if (--files_[file].waiting == 0) {
    files_[file].image = nullptr;
    if (needed_by_[file].size() > 1) --held_;
    changed_.SignalAll();
  }
  return image;
}

// At most the memory of a decoded file, in which all values are floats.
size_t CheckpointLoad::DecodedBytes(const CheckpointFile& file) const {
  for (const CheckpointTable& table : saved_->manifest().tables) {
    if (table.name != file.table) continue;
    if (table.row_dtype == "INT8") return 4 * file.bytes;
    if (table.row_dtype != "F32" || table.state_dtype != "F32") return 2 * file.bytes;
  }
  return file.bytes;
}

absl::StatusOr<std::shared_ptr<const RangeImage>> CheckpointLoad::Read(
    size_t file, const TableContext& table) const {
  const CheckpointFile& facts = *ordered_[file];
  const auto counted = std::make_shared<CountedImage>(options_.budget);
  RangeImage& image = counted->image;
  counted->bytes.Set(facts.bytes + DecodedBytes(facts));  // both are in memory
  TANDEM_ASSIGN_OR_RETURN(image, saved_->Read(facts));
  for (const CheckpointTable& saved : saved_->manifest().tables) {
    if (saved.name != facts.table) continue;
    const absl::Status caught_up = CatchUpUnderOtherSettings(saved, *table.plan, &image);
    if (!caught_up.ok()) return InFile(saved_->PlaceOf(facts), caught_up);
  }
  if (!options_.resume) {
    if (saved_->manifest().best) image.held.clear();
    if (table.plan->dense) {  // a worker assigns the rows
      image.keys.clear();
      image.weights.clear();
      image.slots.clear();
    }
    StartSlotsAfresh(*table.optimizer, &image);
  }
  TANDEM_ASSIGN_OR_RETURN(const uint64_t salt, saved_->SaltOf(table.plan->name));
  if (salt != table.plan->salt) {  // else the rows are in order already
    counted->bytes.Set(2 * MemoryOf(image) + image.keys.size() * kOrderBytes);
  }
  OrderByPosition(table.plan->salt, &image);
  counted->bytes.Set(MemoryOf(image));
  return std::shared_ptr<const RangeImage>(counted, &image);
}

// ---- filling ranges ---------------------------------------------------------------------------

absl::Status CheckpointLoad::LoadFiles(int shard, const std::vector<Range*>& ranges,
                                       BufferSource& source) {
  TANDEM_RETURN_IF_ERROR(Prepare());
  std::map<std::string, std::vector<Range*>> of_table;  // in order of position
  for (Range* const range : ranges) {
    of_table[range->table().plan->name].push_back(range);
  }
  for (auto& [table, owned] : of_table) {
    std::stable_sort(owned.begin(), owned.end(),
                     [](const Range* a, const Range* b) { return a->begin() < b->begin(); });
  }
  for (size_t file = 0; file < ordered_.size(); ++file) {
    if (!IsNeededBy(file, shard)) continue;
    const bool dense_part = ordered_[file] == dense_;
    const std::vector<Range*>& owned =
        of_table[dense_part ? job::kDenseTableName : ordered_[file]->table];
    if (owned.empty()) continue;  // the shard has no ranges of this table
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const RangeImage> image,
                            Take(shard, file, owned.front()->table()));
    const absl::Status loaded = LoadFile(file, *image, owned, source);
    options_.on_progress();
    if (!loaded.ok()) return InFile(saved_->PlaceOf(*ordered_[file]), loaded);
  }
  if (options_.resume) return absl::OkStatus();
  for (Range* const range : ranges) {
    range->FinishLoad();
    TANDEM_RETURN_IF_ERROR(range->table().failure);
  }
  return absl::OkStatus();
}

// `ranges`: those of the table, in order of position.
absl::Status CheckpointLoad::LoadFile(size_t file, const RangeImage& image,
                                      const std::vector<Range*>& ranges, BufferSource& source) {
  const CheckpointFile& facts = *ordered_[file];
  const bool dense_part = &facts == dense_;
  const job::TablePlan& table = *ranges.front()->table().plan;
  TANDEM_ASSIGN_OR_RETURN(const uint64_t salt, saved_->SaltOf(table.name));
  const bool any = dense_part || salt != table.salt;
  auto at = any ? ranges.begin()
                : std::partition_point(ranges.begin(), ranges.end(), [&](const Range* range) {
                    return Last(range->end()) < facts.begin;
                  });
  for (; at != ranges.end() && (any || (*at)->begin() <= Last(facts.end)); ++at) {
    Range& range = **at;
    const Loading rows = BeginRows(file, range);
    const size_t before = range.store().Memory().arena;
    range.store().settings().load_share = rows.share;
    TANDEM_RETURN_IF_ERROR(
        dense_part ? LoadRows(image, &range)
        : options_.resume
            ? WithNumberOfRanges(*saved_, table.name, range.ResumeCheckpoint(image, source))
            : range.LoadCheckpoint(image, source));
    EndRows(rows, range.store().Memory().arena - before);
  }
  return absl::OkStatus();
}

std::vector<CheckpointLoad::Wanted> RangesToLoad(const job::ResolvedJob& plan, const RangeMap& map,
                                                 int server) {
  std::vector<CheckpointLoad::Wanted> wanted;
  for (const RangeMap::Range& range : map.ranges()) {
    if (range.owner.index != server) continue;
    const job::TablePlan& table = plan.tables[range.table];
    const double row = job::StoredBytesOfRow(plan, table) + kMinIndexBytes;
    wanted.push_back({&table, range.begin, range.end, range.owner.shard, row});
  }
  return wanted;
}

// ---- the ranges of one thread -----------------------------------------------------------------

namespace {

absl::Status LoadAll(const CheckpointReader& saved, CheckpointLoad::Options options,
                     const std::vector<Range*>& ranges, BufferSource& source) {
  std::vector<CheckpointLoad::Wanted> wanted;
  for (const Range* const range : ranges) {
    wanted.push_back({range->table().plan, range->begin(), range->end(), /*shard=*/0});
  }
  const auto open = [&saved]() -> absl::StatusOr<std::shared_ptr<const CheckpointReader>> {
    return std::shared_ptr<const CheckpointReader>(std::shared_ptr<void>(), &saved);  // not owned
  };
  CheckpointLoad load(open, std::move(options), std::move(wanted));
  return load.Load(/*shard=*/0, ranges, source);
}

}  // namespace

absl::Status CheckpointReader::LoadRanges(const std::vector<Range*>& ranges,
                                          const std::vector<std::string>& only,
                                          BufferSource& source) const {
  return LoadAll(*this, {/*resume=*/false, only, /*shards=*/1}, ranges, source);
}

absl::Status CheckpointReader::ResumeRanges(const std::vector<Range*>& ranges,
                                            BufferSource& source) const {
  return LoadAll(*this, {/*resume=*/true, {}, /*shards=*/1}, ranges, source);
}

}  // namespace tandem::server
