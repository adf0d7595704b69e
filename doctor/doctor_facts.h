// What `tandem doctor` has found out about a host, a job and ways between hosts: plain values, so
// that doctor.h can judge them without a system. doctor_gather.h and doctor_peer.h fill them in.
#ifndef TANDEM_DOCTOR_DOCTOR_FACTS_H_
#define TANDEM_DOCTOR_DOCTOR_FACTS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace tandem::doctor {

inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

struct RdmaGidFact {
  int index = 0;
  std::string gid, type, network_device;  // type as the kernel says it: "RoCE v2", "IB/RoCE v1"
};

struct RdmaPortFact {
  std::string device;
  int port = 1;
  bool active = false;
  bool ethernet = false;  // RoCE; otherwise InfiniBand
  bool iwarp = false;
  int mtu_bytes = 0, max_mtu_bytes = 0;
  std::vector<RdmaGidFact> gids;  // those in use
};

struct RdmaFacts {
  std::string unavailable;  // why devices cannot be listed; empty: `ports` is all there is
  std::vector<RdmaPortFact> ports;
  std::string endpoint;        // device of an endpoint that could be made; empty: none could
  std::string endpoint_error;  // then why
};

struct ProgramFact {
  std::string name;
  bool there = false;
  std::vector<std::string> missing_libraries;
  std::vector<std::string> libraries;  // the ones worth knowing, e.g. "libtorch.so.1.13"
};

// The interpreter itself ("python"), a module, or the library below the package ("libtandem.so").
struct PythonPart {
  std::string name;
  std::string place;  // its version, or the file
  std::string error;  // empty: it is there
};

struct PythonFact {
  std::string interpreter;  // as it is called
  std::string error;        // why it does not start; then there are no parts
  std::vector<PythonPart> parts;
};

struct DeviceFact {
  bool models_compute_there = false;  // in this build
  std::string error;                  // why no device can be used; empty: one can
};

struct VersionFact {
  std::string name, built_with, running;  // `running` empty: only known from the build
};

struct HostFacts {
  std::string name;     // of the host
  std::string boot_id;  // which boot of which host: two processes with the same are on one host
  std::string version;  // of Tandem: what must be equal in all processes of a job
  std::string kernel;
  std::vector<VersionFact> versions;
  std::vector<ProgramFact> programs;
  bool simulator = true;                    // its program is there
  int cores = 1;                            // that this process may use
  uint64_t memory_free_bytes = kUnlimited;  // of the machine or the container, whichever is less
  uint64_t locked_memory_limit = kUnlimited;
  bool may_lock_all = false;  // privileged: the limit does not hold
  uint64_t open_files_soft = kUnlimited, open_files_hard = kUnlimited;
  uint64_t threads_left = kUnlimited;  // that may still be started
  uint64_t max_mappings = kUnlimited;  // of a process, vm.max_map_count
  std::string shared_memory_error;     // of making and sealing some; empty: it works
  RdmaFacts rdma;
};

// What the processes of a job need on one host.
struct JobNeeds {
  int servers = 0, workers = 0;  // on this host
  int processes = 0, busy_threads = 0, all_threads = 0;
  int least_threads = 0;  // without which nothing starts: of scheduler, servers and workers
  uint64_t mappings_of_process = 0;  // large ones, of a server with all expected rows
  double start_seconds = 0;          // in which all must have registered
  uint64_t table_bytes = 0, held_bytes = 0, process_bytes = 0;
  uint64_t save_bytes = 0;        // of one saved model, all servers
  uint64_t files_of_process = 0;  // the one that needs most
  uint64_t locked_bytes_of_process = 0;
  bool dense_over_rdma = false;  // and nothing else
  bool script = false;           // workers are scripts
};

struct DataFact {
  std::string error;  // empty: files are there and their first rows can be read
};

struct FolderFact {
  std::string path;
  std::string error;  // of writing there; empty: it works
  uint64_t free_bytes = 0;
};

struct PortFact {
  std::string address;
  std::string error;   // empty: it can be bound
  bool taken = false;  // by another program
  std::string holder;  // who has it, if that can be seen
};

// One direction of a pair of hosts: who asked, and what it met.
struct PairFacts {
  enum class Answer { kDoctor, kRole, kUnreachable, kRefused, kSilent, kGarbage };
  std::string from, to;
  Answer answer = Answer::kUnreachable;
  std::string detail;  // of what is not kDoctor

  // kDoctor only.
  std::string version, job_hash;  // of the other side; job_hash empty: it has no job
  int rdma_mtu_bytes = 0;         // of its first active port; 0: none
  bool rdma_active = false;
  std::string way, why, way_error;  // what frames travel by
  double round_trip_us = 0;
  bool has_clock = false;
  double clock_offset_s = 0, clock_error_s = 0;  // its clock less ours, right within the error
};

}  // namespace tandem::doctor

#endif  // TANDEM_DOCTOR_DOCTOR_FACTS_H_
