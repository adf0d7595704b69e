#include "tests/sim/proof/lives.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "scheduler/deal_ranges.h"
#include "server/shard_checkpoint.h"
#include "worker/dense/dense_parameters.h"
#include "worker/resume_position.h"

namespace tandem {
namespace {

constexpr const char* kNames[] = {"crash", "reset", "vanish", "stop", "hold up", "hold down"};
constexpr const char* kMoments[] = {"file", "before MANIFEST", "before LATEST",
                                    "half a file of commit", "a wrong byte of commit"};

// Silence of this length alone must not end a job (SchedulerTimes).
constexpr absl::Duration kHarmless = absl::Seconds(6);

// The ranges with which an attempt begins.
absl::StatusOr<std::shared_ptr<const RangeMap>> FirstRanges(const job::ResolvedJob& plan) {
  View view;
  for (const RangeInfo& range : scheduler::DealRanges(plan)) *view.add_range() = range;
  return RangeMap::FromView(view, plan.sizes());
}

// The range of a row of the ledger. The ledger has one row for dense parameters on servers, in the
// range of their first block. Dense parameters on workers have no range: returns `table`.
uint32_t RangeOf(const job::ResolvedJob& plan, const RangeMap& map, uint32_t table, uint64_t key) {
  if (table >= plan.tables.size()) return table;
  const uint64_t known = key == ToyModel::kDenseKey ? 0 : key;
  return map.Find(table, Position(plan.tables[table].salt, known));
}

}  // namespace

std::string Accident::DebugString() const {
  const std::string when = moment.has_value()
                               ? absl::StrCat(kMoments[static_cast<size_t>(*moment)], " ", number)
                               : absl::StrCat(process.DebugString(), " at event ", event);
  return absl::StrCat(kNames[static_cast<size_t>(kind)], " of ", when,
                      length > absl::ZeroDuration() ? " for " : "",
                      length > absl::ZeroDuration() ? absl::FormatDuration(length) : "");
}

Lives::Lives(const job::ResolvedJob& plan, Options options)
    : plan_(plan),
      options_(std::move(options)),
      disk_(options_.folder + "/model"),
      ledger_(std::make_shared<Ledger>(ToyModel(plan, options_.world.model))),
      random_(HashCombine(options_.world.seed, 21)) {}

absl::Status Lives::Run() {
  for (;; ++attempt_) {
    TANDEM_RETURN_IF_ERROR(BeginAttempt());
    TANDEM_ASSIGN_OR_RETURN(const bool finished, RunAttempt());
    if (finished) return absl::OkStatus();
  }
}

// ---- the beginning of an attempt --------------------------------------------------------------

const job::ResolvedJob& Lives::Plan() const {
  const auto attempt = static_cast<size_t>(attempt_);
  const std::vector<job::ResolvedJob>& later = options_.later;
  return attempt == 0 || later.empty() ? plan_ : later[std::min(attempt, later.size()) - 1];
}

absl::Status Lives::BeginAttempt() {
  CheckedWorldOptions options = options_.world;
  options.seed = HashCombine(options_.world.seed, static_cast<uint64_t>(attempt_));
  options.attempt = attempt_;
  options.files = &disk_;
  options.ledger = ledger_;
  std::vector<int64_t> reached;  // by the attempt before
  for (int rank = 0; attempt_ > 0 && rank < plan_.workers(); ++rank) {
    reached.push_back(world_->steps(rank));
  }
  if (attempt_ > 0) TANDEM_RETURN_IF_ERROR(Resume(&options));
  first_steps_.resize(static_cast<size_t>(plan_.workers()));
  for (size_t rank = 0; rank < reached.size(); ++rank) {
    steps_again_ += reached[rank] - first_steps_[rank];
  }
  TANDEM_RETURN_IF_ERROR(disk_.Begin(
      Plan(), attempt_,
      options.resume.has_value() ? std::filesystem::path(options.resume->folder).filename().string()
                                 : ""));
  TANDEM_ASSIGN_OR_RETURN(world_, CheckedWorld::New(Plan(), options));
  return absl::OkStatus();
}

// Finds the checkpoint as `tandem run --resume` does.
absl::Status Lives::Resume(CheckedWorldOptions* options) {
  std::string damaged;
  const auto saved = server::CheckpointReader::OpenNewest(disk_.folder(), /*run=*/0, {}, &damaged);
  absl::optional<SimDisk::Newest> found;
  if (saved.ok()) found = {saved->manifest().attempt, saved->manifest().step};
  if (found != disk_.newest()) {
    const auto text = [](const absl::optional<SimDisk::Newest>& one) {
      return one.has_value() ? absl::StrCat("of step ", one->step, " of attempt ", one->attempt)
                             : std::string("none");
    };
    return absl::InternalError(absl::StrCat("the newest whole checkpoint is ", text(disk_.newest()),
                                            ", found is ", text(found), " (",
                                            saved.status().ToString(), ")"));
  }
  if (disk_.damaged() && saved.ok() && damaged.empty()) {
    return absl::InternalError("OpenNewest does not report that a newer checkpoint is damaged");
  }
  first_steps_.assign(static_cast<size_t>(plan_.workers()), 0);
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const RangeMap> map, FirstRanges(Plan()));
  if (!saved.ok()) {
    return ledger_->ReturnTo(first_steps_, {}, [&](uint32_t table, uint64_t key) {
      return RangeOf(plan_, *map, table, key);
    });
  }
  ++resumes_;
  sim::ResumeFrom& from = options->resume.emplace();
  from.folder = saved->folder();
  from.step = saved->manifest().step;
  if (options_.world.replacements > 0) {
    TANDEM_ASSIGN_OR_RETURN(kept_, server::KeepCheckpoint(saved->folder()));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string record, saved->ReadRecord());
  if (!from.record.ParseFromString(record)) return absl::DataLossError("damaged run record");
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(
        const TrainPosition start,
        worker::ResumePosition(from.record, rank, plan_.workers(), plan_.job.train().max_steps()));
    first_steps_[static_cast<size_t>(rank)] = start.step();
  }
  TANDEM_RETURN_IF_ERROR(ReturnTo(*saved, *map, &from));
  recuts_ += from.other_ranges ? 1 : 0;
  return absl::OkStatus();
}

// Returns the ledger to the checkpoint, and compares the rows of the checkpoint with it. `map`: the
// ranges of the attempt, which may differ from those of the checkpoint.
absl::Status Lives::ReturnTo(const server::CheckpointReader& saved, const RangeMap& map,
                             sim::ResumeFrom* from) {
  HeapBufferSource buffers;
  const auto range_of = [this, &map](uint32_t table, uint64_t key) {
    return RangeOf(plan_, map, table, key);
  };
  std::set<Ledger::Slice> held;
  Rows rows;
  from->held.resize(plan_.tables.size());
  from->rows.resize(plan_.tables.size());
  Versions versions;
  for (const job::TablePlan& table : plan_.tables) {
    for (const server::CheckpointFile& file : saved.manifest().files) {
      if (file.table != table.name || absl::EndsWith(file.name, ".part")) continue;
      TANDEM_ASSIGN_OR_RETURN(const server::RangeImage image, saved.Read(file));
      const uint32_t first = map.Find(table.id, image.begin);
      const uint32_t last = map.Find(table.id, image.end - 1);  // end 0: 2^64
      for (uint32_t range = first; range <= last; ++range) versions[range] = image.progress.version;
      from->other_ranges |= first != last || map.range(first).begin != image.begin ||
                            map.range(first).end != image.end;
      server::HeldQueue queue;
      TANDEM_RETURN_IF_ERROR(server::DecodeQueue(image, buffers, &queue));
      const auto delay = plan_.groups[table.group].properties.delay;
      from->delayed_finished |=
          static_cast<int64_t>(queue.size()) < std::min<int64_t>(delay, image.progress.version);
      for (size_t i = 0; i < queue.size(); ++i) {
        for (const server::HeldUpdate& update : queue[i].updates) {
          if (update.rows_before_sum >= 0) {  // jobs with such sums keep their ranges
            held.insert({first, update.rank, update.step});
            from->held[table.id] += update.rows_before_sum > 0 ? 1 : 0;
            continue;
          }
          for (const uint64_t key : update.keys.As<uint64_t>()) {
            const uint32_t range = map.Find(table.id, Position(table.salt, key));
            const bool added = held.insert({range, update.rank, update.step}).second;
            from->held[table.id] += added ? 1 : 0;
          }
        }
      }
      from->rows[table.id] += image.keys.size();
      const size_t dim = static_cast<size_t>(image.dim);
      for (size_t i = 0; i < image.keys.size(); ++i) {
        std::vector<float>& row = rows[{table.id, image.keys[i]}];
        if (!row.empty() && row.size() != dim) return absl::InternalError("rows of two lengths");
        if (!row.empty()) {
          return absl::InternalError(absl::StrCat(saved.folder(), ": table ", table.name, " key ",
                                                  image.keys[i], " is there twice"));
        }
        row.assign(image.weights.begin() + static_cast<ptrdiff_t>(i * dim),
                   image.weights.begin() + static_cast<ptrdiff_t>((i + 1) * dim));
      }
    }
  }
  const absl::Status lost = ledger_->ReturnTo(first_steps_, held, range_of);
  if (!options_.world.explain) return absl::OkStatus();  // then nothing is settled
  TANDEM_RETURN_IF_ERROR(lost);
  return CheckRows(saved, versions, &rows);
}

// Every row must show exactly the settled updates of the ledger. A row without such an update must
// be absent: its updates were dropped or are held back, or its table is frozen.
absl::Status Lives::CheckRows(const server::CheckpointReader& saved, const Versions& versions,
                              Rows* rows) {
  TANDEM_ASSIGN_OR_RETURN(const server::RangeImage image, saved.ReadDense({}));
  TANDEM_ASSIGN_OR_RETURN(auto dense, worker::DenseParameters::New(plan_.job.dense().optimizer(),
                                                                   options_.world.model.dense));
  TANDEM_RETURN_IF_ERROR(dense->Load(image));
  for (const auto& [table, key] : ledger_->Rows()) {
    const bool there = rows->count({table, key}) > 0;
    if (table < plan_.tables.size() && ledger_->rules(table).limited) {
      TANDEM_RETURN_IF_ERROR(CheckLives(saved, versions, table, key, (*rows)[{table, key}]));
      rows->erase({table, key});
      continue;
    }
    double all = 0;  // the weight of all workers
    std::vector<float>& row = (*rows)[{table, key}];
    if (key == ToyModel::kDenseKey) row.assign(dense->values().begin(), dense->values().end());
    if (row.empty()) row.resize(plan_.tables[table].dim, ToyModel::kFirstCount);
    TANDEM_ASSIGN_OR_RETURN(const std::vector<double> taken, ledger_->Explain(table, key, row));
    for (int rank = 0; rank < plan_.workers(); ++rank) {
      const double want =
          ledger_->WeightBefore(table, key, rank, std::numeric_limits<int64_t>::max());
      all += want;
      if (std::abs(taken[static_cast<size_t>(rank)] - want) <= Ledger::kTolerance) continue;
      return absl::InternalError(absl::StrCat(saved.folder(), ": table ", table, " key ", key,
                                              " has ", taken[static_cast<size_t>(rank)],
                                              " of worker ", rank, ", expected ", want));
    }
    if (!there || all > 0) rows->erase({table, key});
  }
  for (const auto& [id, row] : *rows) {
    if (static_cast<int>(id.first) == plan_.dense_table) continue;
    return absl::InternalError(absl::StrCat(saved.folder(), ": table ", id.first, " key ",
                                            id.second, " has a row, but no update created it"));
  }
  return absl::OkStatus();
}

// A row that may have been evicted or refused.
absl::Status Lives::CheckLives(const server::CheckpointReader& saved, const Versions& versions,
                               uint32_t table, uint64_t key, absl::Span<const float> row) {
  const RowLives& lives = ledger_->Lives(table, key);
  const auto version = versions.find(lives.range());
  if (version == versions.end()) {
    return absl::InternalError(absl::StrCat(saved.folder(), " has no range ", lives.range()));
  }
  const absl::Status checked =
      lives.Check(row, lives.size(), lives.size(), RowLives::Moment::At(version->second),
                  row.empty() ? RowLives::Want::kAbsent : RowLives::Want::kRow);
  if (checked.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(saved.folder(), ": at version ", version->second,
                                          " table ", table, " key ", key, " ", checked.message()));
}

// ---- an attempt -------------------------------------------------------------------------------

absl::StatusOr<bool> Lives::RunAttempt() {
  struck_ = false;
  leaves_ = false;
  victims_.clear();
  died_ = 0;
  std::vector<Accident> more;
  if (attempt_ == 0) more = options_.more;
  over_at_ = absl::InfiniteDuration();
  const size_t number = static_cast<size_t>(attempt_);
  const Accident* accident =
      number < options_.accidents.size() ? &options_.accidents[number] : nullptr;
  disk_.DieNoMore();
  if (accident != nullptr && accident->moment.has_value()) {
    disk_.DieAt(*accident->moment, accident->number, [this, accident] {
      Strike(*accident, world_->parts().context.processes.running());
    });
    accident = nullptr;
  }
  world_->Begin();
  while (!world_->ended() && world_->elapsed() < over_at_) {
    if (accident != nullptr && world_->event_count() >= accident->event) {
      const Accident& due = *std::exchange(accident, nullptr);
      Strike(due, due.process);
    }
    while (!more.empty() && world_->event_count() >= more.front().event) {
      Strike(more.front(), more.front().process);
      more.erase(more.begin());
    }
    world_->RunNext();
  }
  return EndAttempt();
}

void Lives::Strike(const Accident& accident, EndpointId process) {
  using Kind = Accident::Kind;
  const sim::World::Parts parts = world_->parts();
  const int servers = parts.context.plan.server_processes();  // perhaps fewer than at first
  if (process.role == Role::kServer && process.index >= servers && servers > 0) {
    process = EndpointId::Shard(process.index % servers, 0);
  }
  if (parts.scheduler.stopping()) return;  // the job is done
  if (!parts.context.processes.alive(process)) return;
  if (parts.scheduler.IsVacant(process)) return;  // it is about to be killed
  parts.context.Log(absl::StrCat("accident: ", accident.DebugString()));
  struck_ = true;
  victims_.push_back(process);
  length_ = accident.length;
  const bool dies = accident.kind < Kind::kStop;
  leaves_ = process.role == Role::kWorker && parts.workers.core(process.index).at_end();
  if (accident.kind == Kind::kStop) parts.context.processes.Stop(process, length_);
  if (accident.kind > Kind::kStop) {
    parts.scheduler.HoldBack(process, accident.kind == Kind::kHoldUp, length_);
  }
  if (!dies) return;
  ++died_;
  parts.context.processes.Kill(process);
  const bool of_scheduler = process == EndpointId::Scheduler();
  if (accident.kind != Kind::kVanish && !of_scheduler) {
    parts.scheduler.Disconnect(process, scheduler::SchedulerEvent::Kind::kLost);
    parts.workers.OnDeath(process);
  }
  // Nobody is left who could name a dead scheduler. The other processes go on until they miss it.
  const absl::Duration most =
      accident.kind == Kind::kCrash ? absl::Milliseconds(20) : absl::Seconds(8);
  // If another process may take the place, the scheduler decides what follows.
  const bool asks = parts.context.options.replacements > 0 && process.role == Role::kWorker &&
                    parts.scheduler.started();
  if (accident.kind == Kind::kCrash && asks) return parts.scheduler.Exits(process);
  const bool by_supervisor = accident.kind == Kind::kCrash || of_scheduler;
  if (by_supervisor) over_at_ = world_->elapsed() + most * random_.NextDouble();
}

// True: the job is at its end.
absl::StatusOr<bool> Lives::EndAttempt() {
  const sim::World::Parts parts = world_->parts();
  const absl::Status result = parts.scheduler.core().result();
  trace_hash_ = HashCombine(trace_hash_, world_->trace_hash());
  replaced_ += parts.scheduler.replaced();
  const bool all_live = died_ <= parts.scheduler.revived();
  // A worker that is silent at the end of the job may miss STOP. It may have come there in silence.
  if (result.ok() && struck_ && victims_.back().role == Role::kWorker) {
    const auto& worker = parts.workers.core(victims_.back().index);
    leaves_ |= died_ == 0 && worker.at_end();
    if (leaves_ && !worker.finished()) return false;  // ended by the supervisor
  }
  if (!parts.context.failure.ok() || (all_live && (result.ok() || !struck_))) {
    TANDEM_RETURN_IF_ERROR(world_->Finish());
    return true;
  }
  if (result.ok()) {
    const bool by_itself = world_->ended() && world_->elapsed() < over_at_;
    leaves_ |= parts.scheduler.HasReported(victims_.back());
    if (!by_itself || leaves_) return false;  // ended by the supervisor
    return absl::InternalError(absl::StrCat("the job ends well without ",
                                            parts.context.processes.NameOf(victims_.back())));
  }
  const bool named = std::any_of(victims_.begin(), victims_.end(), [&](EndpointId victim) {
    const std::string name = parts.context.processes.NameOf(victim);
    return absl::StartsWith(result.message(), absl::StrCat(name, ":"));
  });
  // A scheduler that was stopped may notice too late that a worker is back on a new connection.
  const bool missed = absl::StrContains(result.message(), "connection lost (broken)") &&
                      std::count(victims_.begin(), victims_.end(), EndpointId::Scheduler()) > 0;
  if (!named && !missed) {
    return absl::InternalError(absl::StrCat("the scheduler names another process than ",
                                            parts.context.processes.NameOf(victims_.back()), ": ",
                                            result.message()));
  }
  const bool tried = parts.scheduler.vacated() > parts.scheduler.replaced();
  if (tried && victims_.size() == 1 && !absl::StrContains(result.message(), "; no place at")) {
    return absl::InternalError(absl::StrCat("a worker could not be replaced: ", result.message()));
  }
  // With breaks of connections, a short absence may keep a process from connecting again in time.
  if (died_ == 0 && length_ <= kHarmless && options_.world.breaks_per_second == 0) {
    return absl::InternalError(
        absl::StrCat("the scheduler calls a process dead too soon: ", result.message()));
  }
  ++verdicts_;
  // A process that was only away comes back before the supervisor ends it. Its messages must do no
  // harm, although the job has failed.
  const absl::Duration back = world_->elapsed() + length_ + absl::Seconds(1);
  while (died_ == 0 && world_->elapsed() < back) world_->RunNext();
  return parts.context.failure.ok() ? absl::StatusOr<bool>(false) : world_->Finish();
}

}  // namespace tandem
