// Gathers the facts for `tandem doctor`: this host, a job's data and folder, ports. Changes nothing
// on the host. Each check has a timeout: a check that does not end in time (for example because a
// network file system is gone) is a fact, too.
//
// Thread safety: free functions; any thread.
#ifndef TANDEM_TOOLS_DOCTOR_DOCTOR_GATHER_H_
#define TANDEM_TOOLS_DOCTOR_DOCTOR_GATHER_H_

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
#include "job/job.h"
#include "tools/doctor/doctor_facts.h"

namespace tandem::doctor {

inline constexpr absl::Duration kDoctorBound = absl::Seconds(10);

// Returns the result of `work`, or nullopt if it takes longer than `limit`. In that case `work`
// continues in its own thread, so it must own everything that it uses.
template <typename T>
std::optional<T> Within(absl::Duration limit, std::function<T()> work) {
  auto promise = std::make_shared<std::promise<T>>();
  std::future<T> result = promise->get_future();
  std::thread([promise, work = std::move(work)] { promise->set_value(work()); }).detach();
  if (result.wait_for(absl::ToChronoMilliseconds(limit)) != std::future_status::ready) return {};
  return result.get();
}

// Only the limits of processes: cores, memory, threads, files, shared memory. Takes about a
// millisecond.
HostFacts GatherLimits();
// All facts of the host. Takes less than a second.
HostFacts GatherHost();
// Initialises CUDA where this build has it.
DeviceFact GatherDevice();
// FAILED_PRECONDITION if models are to compute on a GPU and cannot.
absl::Status CheckDenseDevice(const job::ResolvedJob& plan);
DataFact GatherData(const job::ResolvedJob& plan);
// Checks `path`, or the nearest existing folder above it if `path` does not exist.
FolderFact GatherFolder(const std::string& path);
// Whether a role with `--bind ADDRESS --advertise HOST` could listen.
PortFact GatherPort(const std::string& address, const std::string& advertise);

// The version of Tandem, which must be equal in all processes of a job.
std::string TandemVersion();
// Identifies this boot of this host.
std::string BootId();

}  // namespace tandem::doctor

#endif  // TANDEM_TOOLS_DOCTOR_DOCTOR_GATHER_H_
