// Finds out what `tandem doctor` judges: this host, a job's data and folder, ports. Nothing is
// changed and nothing is left behind. Each look is given a bound: what does not end in time (a
// network file system that is gone) is a fact of its own.
//
// Thread safety: free functions; any thread.
#ifndef TANDEM_DOCTOR_DOCTOR_GATHER_H_
#define TANDEM_DOCTOR_DOCTOR_GATHER_H_

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "doctor/doctor_facts.h"
#include "job/job.h"

namespace tandem::doctor {

inline constexpr absl::Duration kDoctorBound = absl::Seconds(10);

// The result of `work`, or nothing if it takes longer than `limit`; then it goes on in a thread of
// its own, and must own all it uses.
template <typename T>
std::optional<T> Within(absl::Duration limit, std::function<T()> work) {
  auto promise = std::make_shared<std::promise<T>>();
  std::future<T> result = promise->get_future();
  std::thread([promise, work = std::move(work)] { promise->set_value(work()); }).detach();
  if (result.wait_for(absl::ToChronoMilliseconds(limit)) != std::future_status::ready) return {};
  return result.get();
}

// What limits processes here: cores, memory, threads, files, mappings, shared memory. Takes about a
// millisecond.
HostFacts GatherLimits();
// All of it; takes part of a second.
HostFacts GatherHost();
// Initialises CUDA where this build has it.
DeviceFact GatherDevice();
// FAILED_PRECONDITION if models are to compute on a GPU and cannot.
absl::Status CheckDenseDevice(const job::JobPlan& plan);
DataFact GatherData(const job::JobPlan& plan);
// `path` need not exist yet: then the nearest folder above it that does.
FolderFact GatherFolder(const std::string& path);
// Whether a role with `--bind ADDRESS --advertise HOST` could listen.
PortFact GatherPort(const std::string& address, const std::string& advertise);

// What all processes of a job must have in common.
std::string TandemVersion();
// Which boot of which host this is.
std::string BootId();

}  // namespace tandem::doctor

#endif  // TANDEM_DOCTOR_DOCTOR_GATHER_H_
