// Facts about a host, a job and the paths between hosts, for `tandem doctor`. They are plain
// values, so that tests of doctor.h need no real host. doctor_gather.h and doctor_peer.h fill
// them in.
#ifndef TANDEM_TOOLS_DOCTOR_DOCTOR_FACTS_H_
#define TANDEM_TOOLS_DOCTOR_DOCTOR_FACTS_H_

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
  std::string gid, type, network_device;  // type in the kernel's words: "RoCE v2", "IB/RoCE v1"
};

struct RdmaPortFact {
  std::string device;
  int port = 1;
  bool active = false;
  bool ethernet = false;  // RoCE; otherwise InfiniBand
  bool iwarp = false;
  int mtu_bytes = 0, max_mtu_bytes = 0;
  std::vector<RdmaGidFact> gids;  // only GIDs in use
};

struct RdmaFacts {
  std::string unavailable;  // why devices cannot be listed; empty: `ports` is complete
  std::vector<RdmaPortFact> ports;
  std::string endpoint;        // device of an endpoint that was created as a test; empty: failed
  std::string endpoint_error;  // the reason, if that failed
};

struct ProgramFact {
  std::string name;
  bool there = false;
  std::vector<std::string> missing_libraries;
  std::vector<std::string> libraries;  // important ones, e.g. "libtorch.so.1.13"
};

// The interpreter itself ("python"), a module, or the library below the package ("libtandem.so").
struct PythonPart {
  std::string name;
  std::string place;  // its version, or the file
  std::string error;  // empty: it is there
};

inline constexpr char kNoInterpreter[] = "not found";

struct PythonFact {
  std::string interpreter;  // as it is called
  std::string error;        // why it does not start; kNoInterpreter: there is none
  bool timed_out = false;   // `error` says only that it took too long, as on a busy machine
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
  std::string name;
  std::string boot_id;  // two processes with the same boot_id are on one host
  std::string version;  // of Tandem; must be equal in all processes of a job
  std::string kernel;
  std::vector<VersionFact> versions;
  std::vector<ProgramFact> programs;
  bool simulator = true;                    // its program is there
  int cores = 1;                            // usable by this process
  uint64_t memory_free_bytes = kUnlimited;  // of the machine or the container, whichever is less
  uint64_t locked_memory_limit = kUnlimited;
  bool may_lock_all = false;  // privileged: the limit does not apply
  uint64_t open_files_soft = kUnlimited, open_files_hard = kUnlimited;
  uint64_t threads_left = kUnlimited;  // threads that may still be started
  std::string shared_memory_error;     // from creating and sealing a segment; empty: it works
  RdmaFacts rdma;
};

// What the processes of a job need on one host.
struct JobNeeds {
  int servers = 0, workers = 0;  // on this host
  int processes = 0, busy_threads = 0, all_threads = 0;
  int min_threads = 0;                 // scheduler, servers and workers cannot start with fewer
  double startup_timeout_seconds = 0;  // all processes must register within this time
  uint64_t table_bytes = 0, held_bytes = 0, process_bytes = 0;
  uint64_t server_bytes = 0;     // the part of process_bytes that is of processes that serve rows
  uint64_t servers_may_use = 0;  // the limits of the servers together; 0: not set, or rows give way
  std::string largest_table;     // the table that needs most of table_bytes
  int64_t largest_rows = 0;      // expected_rows of largest_table
  uint64_t checkpoint_bytes = 0;  // of one checkpoint, all servers
  uint64_t files_of_process = 0;  // of the process that needs most
  uint64_t locked_bytes_of_process = 0;
  bool dense_over_rdma = false;  // only dense parameters use RDMA
  bool script = false;           // workers are scripts
};

struct DataFact {
  std::string error;  // empty: the files exist and their first rows can be read
};

struct FolderFact {
  std::string path;
  std::string error;  // from writing to the folder; empty: it works
  uint64_t free_bytes = 0;
};

struct PortFact {
  std::string address;
  std::string error;   // empty: the port can be bound
  bool taken = false;  // another program uses the port
  std::string holder;  // that program, if it can be seen
};

// One direction of a pair of hosts: the host that asked, and the result.
struct PairFacts {
  enum class Answer { kDoctor, kRole, kUnreachable, kRefused, kSilent, kGarbage, kNoDoctor };
  std::string from, to;
  Answer answer = Answer::kUnreachable;
  std::string detail;      // of any other answer than kDoctor
  bool is_doctor = false;  // its first bytes are those of a doctor

  // kDoctor only.
  std::string version, job_hash;  // of the other side; job_hash empty: it has no job
  int rdma_mtu_bytes = 0;         // of its first active port; 0: none
  bool rdma_active = false;
  std::string way, why, way_error;  // the transport of frames, why it was chosen, its error
  double round_trip_us = 0;
  bool has_clock = false;
  double clock_offset_s = 0, clock_error_s = 0;  // its clock minus ours, and the possible error
};

}  // namespace tandem::doctor

#endif  // TANDEM_TOOLS_DOCTOR_DOCTOR_FACTS_H_
