#include "client/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace tandem::client {
namespace {

// A Client keeps no rows in the cache: between requests nobody may be there to process refreshes.
ClientCore::Options NothingKept(ClientCore::Options options) {
  options.keep_rows = false;
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::New(const job::ResolvedJob& plan,
                                                    std::unique_ptr<transport::Transport> transport,
                                                    const Options& options) {
  const EndpointId self = options.self;
  const bool known =
      self.role == Role::kReader || (self.role == Role::kWorker && self.index < plan.workers());
  if (!known || options.incarnation == 0 || options.max_in_flight < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "client options: ", self.DebugString(), " in a job of ", plan.workers(),
        " workers, incarnation ", options.incarnation, " (must not be 0), max_in_flight ",
        options.max_in_flight, " (must be 1 or more)"));
  }
  return std::unique_ptr<Client>(new Client(plan, std::move(transport), options));
}

Client::Client(const job::ResolvedJob& plan, std::unique_ptr<transport::Transport> transport,
               const Options& options)
    : plan_(plan),
      reader_(options.self.role == Role::kReader),
      deadline_(options.deadline),
      engine_(std::make_shared<ClientEngine>(
          plan, std::move(transport),
          ClientEngine::Options{.self = options.self,
                                .incarnation = options.incarnation,
                                .max_in_flight = options.max_in_flight,
                                .refuse_when_full = options.refuse_when_full,
                                .core = NothingKept(options.core)})) {}

Client::~Client() { engine_->Shutdown(); }

void Client::Fail(const absl::Status& why) { engine_->Fail(why); }

absl::Status Client::SetView(const View& view) { return engine_->SetView(view); }

ClientCore::Counters Client::counters() const { return engine_->counters(); }

std::string Client::Waiting() const { return engine_->Waiting(); }

Future Client::Read(uint32_t table, absl::Span<const uint64_t> ids, absl::Span<float> rows,
                    absl::Duration deadline) {
  auto call = std::make_shared<ClientCall>();
  call->info.group = table < plan_.tables.size() ? plan_.tables[table].group : 0;
  call->info.flags = kFlagEvaluate;
  call->keys = {{table, ids, /*may_repeat=*/true}};
  call->rows = {rows};
  call->deadline = MonotonicNow() + deadline;
  return Start(std::move(call));
}

Future Client::Pull(uint32_t group, int64_t step, absl::Span<const TableKeys> keys,
                    absl::Span<const absl::Span<float>> rows, Ids ids) {
  auto call = std::make_shared<ClientCall>();
  call->info.group = group;
  call->info.first_step = call->info.step = step;
  call->keys.assign(keys.begin(), keys.end());
  for (TableKeys& table : call->keys) table.may_repeat = ids == Ids::kMayRepeat;
  call->rows.assign(rows.begin(), rows.end());
  return Start(std::move(call));
}

Future Client::Push(uint32_t group, int64_t step, uint64_t samples,
                    absl::Span<const TableKeys> keys,
                    absl::Span<const absl::Span<const float>> gradients, Ids ids) {
  auto call = std::make_shared<ClientCall>();
  call->push = true;
  call->info.group = group;
  call->info.first_step = call->info.step = step;
  call->info.samples = samples;
  call->keys.assign(keys.begin(), keys.end());
  for (TableKeys& table : call->keys) table.may_repeat = ids == Ids::kMayRepeat;
  call->gradients.assign(gradients.begin(), gradients.end());
  return Start(std::move(call));
}

Future Client::PullInPlace(uint32_t group, int64_t step, absl::Span<const TableKeys> keys,
                           absl::Span<PulledRows* const> rows) {
  auto call = std::make_shared<ClientCall>();
  call->info.group = group;
  call->info.first_step = call->info.step = step;
  call->keys.assign(keys.begin(), keys.end());
  call->kept_rows.assign(rows.begin(), rows.end());
  return Start(std::move(call));
}

absl::Status Client::PreparePush(uint32_t group, absl::Span<const TableKeys> keys,
                                 PreparedPush* push) {
  TANDEM_RETURN_IF_ERROR(CheckTables("push", group, keys));
  TANDEM_RETURN_IF_ERROR(CheckDistinct("push", keys));
  return engine_->PreparePush(group, keys, push);
}

Future Client::Push(int64_t step, uint64_t samples, PreparedPush* push) {
  auto call = std::make_shared<ClientCall>();
  call->push = true;
  call->info.group = push->group();
  call->info.first_step = call->info.step = step;
  call->info.samples = samples;
  call->prepared = push;
  return Start(std::move(call));
}

Future Client::Store(const StoreRequest& request, absl::Duration deadline) {
  auto call = std::make_shared<ClientCall>();
  call->store = request;
  call->deadline = MonotonicNow() + deadline;
  return Start(std::move(call));
}

absl::Status Client::CheckStore(const StoreRequest& request) const {
  if (request.table >= plan_.tables.size() || !plan_.tables[request.table].store) {
    return absl::InvalidArgumentError(
        absl::StrCat("table ", request.table, " does not exist or is not of kind KEY_VALUE"));
  }
  const job::TablePlan& table = plan_.tables[request.table];
  const size_t width = static_cast<size_t>(table.dim + table.extra_floats);
  if (request.action == StoreAction::kScan) {
    if (request.page != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("table ", table.name, ": a scan needs a page for its rows"));
  }
  const size_t keys = request.keys.size();
  const size_t values = HasStoreValues(request.action) ? keys * width : 0;
  const size_t rows = request.action == StoreAction::kRead ? keys * width : 0;
  if (keys <= kMaxStoreRows && request.values.size() == values && request.rows.size() == rows &&
      (request.found.empty() || request.found.size() == keys)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("table ", table.name, ": ", keys, " keys (at most ", kMaxStoreRows, ") with ",
                   request.values.size(), " floats to write and room for ", request.rows.size(),
                   " to read and ", request.found.size(), " marks; expected ", values, " floats, ",
                   rows, " floats, and no marks or one for each key"));
}

// Checks everything that the core requires of its callers.
absl::Status Client::Check(const ClientCall& call) const {
  if (call.store.has_value()) return CheckStore(*call.store);
  const char* const what = call.push ? "push" : "pull";
  if (reader_ && call.info.flags != kFlagEvaluate) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": a reader has no rank; it may call only Read and Store"));
  }
  const bool in_frames = call.prepared != nullptr || !call.kept_rows.empty();
  const size_t values = in_frames   ? call.kept_rows.size()
                        : call.push ? call.gradients.size()
                                    : call.rows.size();
  if (call.info.step < 0 || values != call.keys.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": step ", call.info.step, ", ", call.keys.size(), " tables with ", values,
        " arrays of values; expected step 0 or more, and an "
        "array for each table"));
  }
  if (call.prepared != nullptr && !call.prepared->ready()) {
    return absl::InvalidArgumentError(
        "push: it is not prepared or was sent already; call PreparePush first");
  }
  TANDEM_RETURN_IF_ERROR(CheckTables(what, call.info.group, call.keys));
  if (in_frames) return CheckDistinct(what, call.keys);
  for (size_t i = 0; i < call.keys.size(); ++i) {
    const job::TablePlan& table = plan_.tables[call.keys[i].table];
    const size_t floats = call.push ? call.gradients[i].size() : call.rows[i].size();
    const size_t want = call.keys[i].keys.size() * static_cast<size_t>(table.dim);
    if (floats != want) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", call.keys[i].keys.size(),
                                                     " ids of table ", table.name, " with ", floats,
                                                     " floats, expected ", want));
    }
  }
  return absl::OkStatus();
}

absl::Status Client::CheckDistinct(const char* what, absl::Span<const TableKeys> keys) const {
  for (const TableKeys& table : keys) {
    if (!table.may_repeat) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": keys of table ", plan_.tables[table.table].name,
                     " may repeat; requests in place need distinct keys"));
  }
  return absl::OkStatus();
}

absl::Status Client::CheckTables(const char* what, uint32_t group,
                                 absl::Span<const TableKeys> keys) const {
  if (group >= plan_.groups.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": no group ", group, ", the job has ", plan_.groups.size()));
  }
  if (plan_.groups[group].properties.store) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": a KEY_VALUE table has no steps; use Store"));
  }
  std::vector<bool> seen(plan_.tables.size(), false);
  for (const TableKeys& table : keys) {
    if (table.table >= plan_.tables.size() || plan_.tables[table.table].group != group ||
        seen[table.table]) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": table ", table.table,
                                                     " does not belong to group ", group,
                                                     ", or is named twice"));
    }
    seen[table.table] = true;
  }
  return absl::OkStatus();
}

Future Client::Start(std::shared_ptr<ClientCall> call) {
  const Future future(call, engine_);
  absl::Status status = Check(*call);
  if (status.ok()) {
    call->deadline = std::min(call->deadline, MonotonicNow() + deadline_);
    status = engine_->Start(std::move(call));
  }
  if (!status.ok()) future.call_->Finish(std::move(status));
  return future;
}

}  // namespace tandem::client
