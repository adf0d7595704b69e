#include "policies/plugin.h"

#include <dlfcn.h>
#include <xxhash.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "policies/tandem_policy.h"

namespace tandem::policies {
namespace {

// The workers of a range are passed on as they are.
static_assert(sizeof(tandem_policy_worker) == sizeof(WorkerProgress));
static_assert(offsetof(tandem_policy_worker, process) == offsetof(WorkerProgress, incarnation));
static_assert(offsetof(tandem_policy_worker, admitted) == offsetof(WorkerProgress, admitted));
static_assert(offsetof(tandem_policy_worker, applied) == offsetof(WorkerProgress, applied));
static_assert(offsetof(tandem_policy_worker, finished) == offsetof(WorkerProgress, finished));

constexpr char kChecked[] = ".checked";
constexpr char kFirstWord[] = "tandem_policy_v1 ";

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::abort();
}

std::string CheckedText(uint64_t hash) { return absl::StrFormat("%s%016x\n", kFirstWord, hash); }

// The library in memory, until the last policy of it is gone.
struct Library {
  explicit Library(void* its_handle) : handle(its_handle) {}
  ~Library() { dlclose(handle); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  void* const handle;
};

class Plugin final : public UpdatePolicy {
 public:
  Plugin(std::unique_ptr<Library> library, std::string path, const tandem_policy_v1& functions,
         const tandem_policy_properties& described)
      : library_(std::move(library)),
        path_(std::move(path)),
        functions_(functions),
        described_(described) {}

  std::string name() const override { return described_.name; }
  Properties properties() const override {
    Properties p;
    p.lockstep = described_.lockstep != 0;
    p.order_free = described_.order_free != 0;
    p.holds = described_.holds != 0;
    p.skips = p.drops = described_.skips != 0;
    p.counts_reads = described_.counts_reads != 0;
    p.rows_as_read = described_.rows_as_read != 0;
    p.batch = described_.batch;
    p.delay = described_.delay;
    p.clock_bound = described_.clock_bound;
    p.read_bound = described_.read_bound;
    p.state_bytes = described_.state_bytes;
    p.asks_again = true;
    return p;
  }

  bool MayStart(int64_t step, int64_t min_clock) const override {
    return Bool("start", functions_.start(&described_, step, min_clock));
  }
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    const tandem_policy_range range = RangeOf(progress);
    return Bool("serve", functions_.serve(&described_, &range, rank, step, depth));
  }
  Arrival OnArrival(const RangeProgress& progress, const Update& update) const override {
    alignas(std::max_align_t) unsigned char copy[TANDEM_POLICY_MAX_STATE];
    if (!progress.state.empty()) {
      std::memcpy(copy, progress.state.data(), progress.state.size());
    }
    return Arrive(progress, update, copy);
  }
  void Remember(const RangeProgress& progress, const Update& update,
                absl::Span<uint8_t> state) const override {
    Arrive(progress, update, state.data());
  }
  Transform OnApply(const RangeProgress& progress, const Update& update,
                    const Group& group) const override {
    const tandem_policy_range range = RangeOf(progress);
    const tandem_policy_update its = UpdateOf(update);
    const tandem_policy_group of = {group.size(), group.samples()};
    tandem_policy_transform t = {1, 1, 0};
    functions_.apply(&described_, &range, &its, &of, &t);
    if (!std::isfinite(t.factor) || !std::isfinite(t.rate) || !std::isfinite(t.compensation) ||
        t.rate < 0) {
      Refuse("apply", absl::StrCat("factor ", t.factor, ", rate ", t.rate, " and compensation ",
                                   t.compensation,
                                   ", expected finite numbers and a rate of 0 or "
                                   "more"));
    }
    if (t.compensation != 0 && described_.rows_as_read == 0) {
      Refuse("apply", "a compensation, and describe does not ask for rows_as_read");
    }
    // A range sees only the updates with rows in it, so the rate of a fold would depend on how the
    // table is cut.
    if (t.rate != 1 && described_.holds != 0) {
      Refuse("apply", absl::StrCat("rate ", t.rate,
                                   ", expected 1 from a policy that holds updates; "
                                   "change the factor"));
    }
    return {.factor = t.factor, .compensation = t.compensation, .rate = t.rate};
  }
  int64_t Ticks(const RangeProgress& progress, const Buffered& buffered,
                const Pushed& pushed) const override {
    const tandem_policy_range range = RangeOf(progress);
    const tandem_policy_held held = {buffered.groups, buffered.oldest};
    const tandem_policy_pushed last = {pushed.steps, pushed.applied};
    const int64_t ticks = functions_.tick(&described_, &range, &held, &last);
    // Without an end the range would be asked for ever.
    constexpr int64_t kMaxTicks = int64_t{1} << 20;
    const bool nothing = pushed.steps == 0 && buffered.groups == 0;
    if (ticks < 0 || ticks > kMaxTicks || (nothing && ticks > 0)) {
      Refuse("tick", absl::StrCat(ticks, nothing ? ", expected 0 without a push and a held group"
                                                 : ", expected 0 to 1048576"));
    }
    return ticks;
  }

 private:
  // Nonsense ends the process, because the model can no longer be what the policy promised.
  [[noreturn]] void Refuse(absl::string_view function, absl::string_view what) const {
    Die(absl::StrCat("policy ", name(), " (", path_, "): ", function, " returned ", what));
  }
  bool Bool(absl::string_view function, int value) const {
    if (value != 0 && value != 1) {
      Refuse(function, absl::StrCat(value, ", expected 0 or 1"));
    }
    return value == 1;
  }
  Arrival Arrive(const RangeProgress& progress, const Update& update, void* state) const {
    tandem_policy_range range = RangeOf(progress);
    range.state = state;
    const tandem_policy_update its = UpdateOf(update);
    const int arrival = functions_.arrive(&described_, &range, &its, state);
    switch (arrival) {
      case TANDEM_POLICY_APPLY:
        return Arrival::kApply;
      case TANDEM_POLICY_HOLD:
        if (described_.holds == 0) Refuse("arrive", "HOLD, and describe does not say `holds`");
        return Arrival::kHold;
      case TANDEM_POLICY_DROP:
        if (described_.skips == 0) Refuse("arrive", "DROP, and describe does not say `skips`");
        return Arrival::kDrop;
      default:
        Refuse("arrive", absl::StrCat(arrival, ", expected APPLY, HOLD or DROP"));
    }
  }
  static tandem_policy_range RangeOf(const RangeProgress& progress) {
    tandem_policy_range range = {};
    range.version = progress.version;
    range.workers = static_cast<int32_t>(progress.workers.size());
    range.live = progress.Live();
    range.worker = reinterpret_cast<const tandem_policy_worker*>(progress.workers.data());
    range.min_clock = progress.MinClock();
    range.min_applied = progress.MinApplied();
    range.min_admitted = progress.MinAdmitted();
    range.min_admitted_live = progress.MinAdmittedLive();
    range.admitted = progress.Admitted();
    range.state = progress.state.data();
    return range;
  }
  static tandem_policy_update UpdateOf(const Update& update) {
    return {update.rank,    update.skipped ? 1 : 0, update.step,
            update.samples, update.version_read,    update.read_number};
  }

  const std::unique_ptr<Library> library_;
  const std::string path_;
  const tandem_policy_v1 functions_;
  const tandem_policy_properties described_;
};

absl::Status CheckDescribed(const tandem_policy_properties& p) {
  const auto flag = [](int32_t value) { return value == 0 || value == 1; };
  if (std::memchr(p.name, 0, sizeof p.name) == nullptr || p.name[0] == 0) {
    return absl::InvalidArgumentError("describe gave no name of at most 63 characters");
  }
  if (!flag(p.lockstep) || !flag(p.order_free) || !flag(p.holds) || !flag(p.skips) ||
      !flag(p.counts_reads) || !flag(p.rows_as_read)) {
    return absl::InvalidArgumentError("describe gave a property other than 0 or 1");
  }
  if (p.batch < 0 || p.batch > 65536 || p.delay < 0 || p.delay > 1024 || p.clock_bound < 0 ||
      p.read_bound < 0) {
    return absl::InvalidArgumentError(
        "describe gave a batch, delay or bound out of range, expected batch 0 to 65536, delay 0 to "
        "1024, and bounds of 0 or more");
  }
  if ((p.batch > 0 || p.delay > 0 || p.lockstep != 0) && p.holds == 0) {
    return absl::InvalidArgumentError(
        "describe gave lockstep, a batch or a delay without `holds`, which they need");
  }
  if (p.skips != 0 && (p.holds == 0 || p.batch > 0)) {
    return absl::InvalidArgumentError(
        "describe gave `skips` without held steps: a late worker continues at the step that is the "
        "version; to drop an update, return factor 0 from apply");
  }
  if (p.state_bytes > TANDEM_POLICY_MAX_STATE) {
    return absl::InvalidArgumentError(absl::StrCat("describe asked for ", p.state_bytes,
                                                   " bytes of state, expected at most ",
                                                   TANDEM_POLICY_MAX_STATE));
  }
  return absl::OkStatus();
}

absl::Status Named(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<uint64_t> HashOfLibrary(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path));
  const uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
  return hash == 0 ? 1 : hash;
}

absl::Status MarkChecked(const std::string& path, uint64_t hash) {
  return WriteFileAtomically(path + kChecked, CheckedText(hash));
}

void FillLibraryHash(Policy* config) {
  if (config->kind() != Policy::PLUGIN || config->library_hash() != 0) return;
  const absl::StatusOr<uint64_t> hash = HashOfLibrary(config->library());
  if (hash.ok()) config->set_library_hash(*hash);
}

absl::StatusOr<std::unique_ptr<UpdatePolicy>> NewPlugin(const Policy& config, int workers) {
  const std::string& path = config.library();
  TANDEM_ASSIGN_OR_RETURN(const uint64_t hash, HashOfLibrary(path));
  if (config.library_hash() != 0 && config.library_hash() != hash) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     ": this is another library than the job was made with; copy that one "
                     "here, or start a new run"));
  }
  const absl::StatusOr<std::string> checked = ReadWholeFile(path + kChecked);
  if (!checked.ok() || *checked != CheckedText(hash)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, checked.ok() ? " has changed since it was checked" : " was not checked",
        "; hint: tandem policy check ", path, config.options().empty() ? "" : " --options '",
        config.options(), config.options().empty() ? "" : "'"));
  }
  return LoadPlugin(config, workers);
}

absl::StatusOr<std::unique_ptr<UpdatePolicy>> LoadPlugin(const Policy& config, int workers) {
  std::string path = config.library();
  // Without a slash dlopen would look in the folders of the system.
  const std::string file = absl::StrContains(path, "/") ? path : "./" + path;
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const error = dlerror();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot be loaded: ", error == nullptr ? "" : error));
  }
  auto library = std::make_unique<Library>(handle);
  void* const symbol = dlsym(handle, "tandem_policy");
  if (symbol == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": has no function tandem_policy; policies/tandem_policy.h says what a "
                     "policy exports"));
  }
  const tandem_policy_v1* const table = reinterpret_cast<const tandem_policy_v1* (*)()>(symbol)();
  if (table == nullptr || table->version != TANDEM_POLICY_VERSION ||
      table->size != sizeof(tandem_policy_v1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": built for version ", table == nullptr ? 0 : table->version,
                     " of tandem_policy.h, expected ", TANDEM_POLICY_VERSION,
                     "; compile it with policies/tandem_policy.h of this build"));
  }
  if (table->describe == nullptr || table->start == nullptr || table->serve == nullptr ||
      table->arrive == nullptr || table->apply == nullptr || table->tick == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a function of its table is null"));
  }
  const tandem_policy_job job = {workers, config.options().c_str()};
  tandem_policy_properties described = {};
  described.clock_bound = described.read_bound = TANDEM_POLICY_UNBOUNDED;
  if (const char* const refused = table->describe(&job, &described); refused != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": refuses options \"", config.options(), "\": ", refused));
  }
  TANDEM_RETURN_IF_ERROR(Named(path, CheckDescribed(described)));
  return std::make_unique<Plugin>(std::move(library), std::move(path), *table, described);
}

}  // namespace tandem::policies
