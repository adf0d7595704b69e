#include "tools/study/manifest.h"

#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "data/files.h"
#include "job/timing_plan.h"
#include "node/role_flags.h"
#include "scheduler/observe/summary.h"
#include "tools/bench/machine.h"
#include "tools/study/json_value.h"
#include "xxhash.h"

namespace tandem::study {
namespace {

using nlohmann::json;

constexpr char kFile[] = "/manifest.json";
constexpr size_t kPiece = 1 << 20;

json MachineJson() {
  utsname system = {};
  (void)uname(&system);
  double load = 0;  // average over the last minute
  (void)getloadavg(&load, 1);
  return {{"processors", bench::MachineLine()},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"load", load},
          {"memory", bench::FirstLine("/proc/meminfo", "MemTotal")},
          {"host", system.nodename},
          {"system", absl::StrCat(system.sysname, " ", system.release)}};
}

absl::StatusOr<json> DescribeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  const auto free_state = [](XXH3_state_t* state) { XXH3_freeState(state); };
  const std::unique_ptr<XXH3_state_t, decltype(free_state)> state(XXH3_createState(), free_state);
  XXH3_64bits_reset(state.get());
  std::string piece(kPiece, '\0');
  int64_t bytes = 0;
  while (file.read(&piece[0], static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    XXH3_64bits_update(state.get(), piece.data(), static_cast<size_t>(file.gcount()));
    bytes += file.gcount();
  }
  return json{{"file", path},
              {"bytes", bytes},
              {"xxh3", absl::StrFormat("%016x", XXH3_64bits_digest(state.get()))}};
}

// Adds the file patterns of a job, with the files that each one stands for.
absl::Status AddPatterns(const Job& job, json* patterns) {
  const Data& data = job.data();
  std::vector<std::string> all(data.train().begin(), data.train().end());
  all.insert(all.end(), data.test().begin(), data.test().end());
  all.insert(all.end(), data.validation().files().begin(), data.validation().files().end());
  if (!data.negatives().test_negatives().empty()) all.push_back(data.negatives().test_negatives());
  for (const SlowWorkers& entry : job.fault_injection().slow_workers()) {
    if (!entry.trace().empty()) all.push_back(entry.trace());
  }
  for (const std::string& pattern : all) {
    TANDEM_ASSIGN_OR_RETURN((*patterns)[pattern], data::ExpandFiles("data", pattern));
  }
  for (const std::string& file : {job.model().script().file(), job.dense().calibration()}) {
    if (!file.empty()) (*patterns)[file] = {file};
  }
  return absl::OkStatus();
}

// The first file that is in only one of two lists.
std::string OnlyInOne(const json& a, const json& b) {
  for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
    for (const json& file : one) {
      if (std::find(other.begin(), other.end(), file) == other.end())
        return file.get<std::string>();
    }
  }
  return "";
}

absl::Status DataChanged(const std::string& what) {
  return absl::FailedPreconditionError(
      absl::StrCat("the data have changed since the study began: ", what,
                   "; hint: name another folder, or say --overwrite to lose what is there"));
}

absl::Status CheckData(const json& old, const json& now) {
  const json had = old.value("patterns", json::object());
  const json has = now.value("patterns", json::object());
  for (const auto& [pattern, files] : has.items()) {
    const auto before = had.find(pattern);
    if (before == had.end() || *before == files) continue;
    return DataChanged(
        absl::StrCat(OnlyInOne(files, *before), " of ", pattern, " was added or removed"));
  }
  std::map<std::string, json> data;
  for (const json& file : old.value("data", json::array())) data[TextIn(file, "file")] = file;
  for (const json& file : now.value("data", json::array())) {
    const auto before = data.find(TextIn(file, "file"));
    if (before != data.end() && before->second != file) return DataChanged(before->first);
  }
  return absl::OkStatus();
}

json RunJson(const RunPlan& run) {
  json set = json::array();
  for (const auto& [path, value] : run.set) set.push_back(absl::StrCat(path, "=", value));
  return {{"name", run.name},
          {"variation", run.variation},
          {"part", PartName(run.part)},
          {"value", run.value},
          {"seed", run.seed},
          {"set", set},
          {"job", run.job_text},
          {"job_hash", absl::StrFormat("%016x", run.job_hash)},
          {"colocate_servers", run.colocate_servers}};
}

absl::StatusOr<RunPlan> RunFromJson(const json& value) {
  RunPlan run;
  run.name = value.at("name").get<std::string>();
  run.variation = value.at("variation").get<std::string>();
  TANDEM_ASSIGN_OR_RETURN(run.part, PartOf(value.at("part").get<std::string>()));
  run.value = value.at("value").get<std::string>();
  run.seed = value.at("seed").get<uint64_t>();
  run.job_text = value.at("job").get<std::string>();
  run.colocate_servers = value.value("colocate_servers", false);
  run.job_hash = std::stoull(value.at("job_hash").get<std::string>(), nullptr, 16);
  TANDEM_ASSIGN_OR_RETURN(run.set,
                          node::ParseOverrides(value.at("set").get<std::vector<std::string>>()));
  return run;
}

absl::StatusOr<Manifest> FromJson(const json& file) {
  Manifest manifest;
  manifest.study_file = file.at("study_file").get<std::string>();
  TANDEM_ASSIGN_OR_RETURN(manifest.plan,
                          ParseStudy(file.at("study").get<std::string>(), manifest.study_file));
  for (const json& value : file.at("runs")) {
    TANDEM_ASSIGN_OR_RETURN(RunPlan run, RunFromJson(value));
    manifest.runs.push_back(std::move(run));
  }
  manifest.chosen = file.at("chosen").get<std::map<std::string, std::string>>();
  manifest.surroundings = file.at("surroundings").get<json::object_t>();
  // Convert these parts once, so that a later comparison cannot meet an unexpected type.
  (void)manifest.surroundings.value("patterns", json::object())
      .get<std::map<std::string, std::vector<std::string>>>();
  (void)manifest.surroundings.value("data", json::array()).get<std::vector<json::object_t>>();
  return manifest;
}

}  // namespace

absl::StatusOr<json> SurroundingsOf(const StudyRuns& plan, const std::vector<RunPlan>& runs) {
  json patterns = json::object();
  std::set<std::string> seen;
  for (const RunPlan& run : runs) {
    Job job;
    if (plan.study.simulate().timing_only()) {
      TANDEM_ASSIGN_OR_RETURN(const auto timed, job::ParseJobForTiming(run.job_text, run.name, {}));
      job = timed.job;
    } else {
      TANDEM_ASSIGN_OR_RETURN(job, job::ParseJob(run.job_text, run.name, {}));
    }
    if (plan.without_data()) job.clear_data();
    std::string read =
        absl::StrCat(job.data().SerializeAsString(), "\n", job.model().script().file(), "\n",
                     job.dense().calibration(), "\n");
    for (const SlowWorkers& entry : job.fault_injection().slow_workers())
      read += entry.trace() + "\n";
    if (!seen.insert(read).second) continue;
    TANDEM_RETURN_IF_ERROR(AddPatterns(job, &patterns));
  }
  if (!plan.script.empty()) patterns[plan.script] = {plan.script};
  std::set<std::string> files;
  for (const json& some : patterns) files.insert(some.begin(), some.end());
  json data = json::array();
  for (const std::string& path : files) {
    TANDEM_ASSIGN_OR_RETURN(json described, DescribeFile(path));
    data.push_back(std::move(described));
  }
  return json{
      {"build", scheduler::BuildJson()},
      {"machine", MachineJson()},
      {"data", data},
      {"patterns", patterns},
      {"began", absl::FormatTime("%Y-%m-%d %H:%M:%S %Ez", absl::Now(), absl::LocalTimeZone())}};
}

absl::Status WriteManifest(const std::string& folder, const Manifest& manifest) {
  json runs = json::array();
  for (const RunPlan& run : manifest.runs) runs.push_back(RunJson(run));
  const json file = {
      {"study_file", manifest.study_file},     {"study", StudyText(manifest.plan.study)},
      {"job_file", manifest.plan.job_file},    {"chosen", manifest.chosen},
      {"surroundings", manifest.surroundings}, {"runs", runs}};
  return WriteFileAtomically(absl::StrCat(folder, kFile), scheduler::PrettyPrint(file));
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, kFile);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    return FromJson(file);
  } catch (const std::exception& error) {
    return absl::DataLossError(absl::StrCat(path, ": not the manifest of a study: ", error.what()));
  }
}

std::string BuildOf(const std::vector<std::string>& programs) {
  std::string hashes;
  for (const std::string& program : programs) {
    const absl::StatusOr<json> file = DescribeFile(program);
    absl::StrAppend(&hashes, file.ok() ? file->value("xxh3", "") : "", ".");
  }
  return absl::StrFormat("programs: %016x", XXH3_64bits(hashes.data(), hashes.size()));
}

absl::Status CheckGoesOn(const Manifest& old, const Manifest& now) {
  std::map<std::string, uint64_t> hashes;
  for (const RunPlan& run : old.runs) hashes[run.name] = run.job_hash;
  bool common = false;
  for (const RunPlan& run : now.runs) {
    const auto before = hashes.find(run.name);
    if (before == hashes.end()) continue;
    common = true;
    if (before->second == run.job_hash) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the run ", run.name,
                     " in this folder is of another job; hint: name another folder for the changed "
                     "study, or say --overwrite to lose what is there"));
  }
  if (!common) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this folder belongs to another study, ", old.study_file,
        ", which has no run in common with this one; hint: name another folder, or say "
        "--overwrite to lose what is there"));
  }
  return CheckData(old.surroundings, now.surroundings);
}

}  // namespace tandem::study
