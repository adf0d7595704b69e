// The checks of `tandem doctor` between hosts. One doctor listens. Others check their connection
// to it, or ask it to check its connections to more doctors, so that one doctor can report on
// every pair.
//
//   {"ask": "host", "hosts": N}       -> its findings, version, job, and the address of an endpoint
//                                        that echoes frames; N hosts share the job
//   {"ask": "time"}                   -> {"in": s, "out": s}: its clock when the request came and
//                                        when the reply left
//   {"ask": "pairs", "peers": [...]}  -> the reports of its pairs with these peers
//
// Thread safety: Probe and AskForPairs may be called from any thread. A DoctorServer runs its
// own threads.
#ifndef TANDEM_TOOLS_DOCTOR_DOCTOR_PEER_H_
#define TANDEM_TOOLS_DOCTOR_DOCTOR_PEER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "node/role_flags.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/doctor_link.h"

namespace tandem::doctor {

inline constexpr size_t kMaxDoctorPeers = 64;

// The facts of a pair, and their findings.
struct PairReport {
  PairFacts facts;
  std::vector<Finding> findings;
};

// The report of another host about itself.
struct HostReport {
  std::string name;  // HOST:PORT, as the user named it
  std::string host;  // the host's own name
  std::vector<Finding> findings;
};

// This doctor's own side: what it sends to others, and what it compares with theirs.
struct DoctorSelf {
  std::string name;  // this side's name in a pair
  std::string host_name;
  OurSide ours;
  // Endpoints are created as a role would create them.
  std::string bind_host;        // where endpoints listen
  std::string advertised_host;  // the address for others, if endpoints listen at all addresses
  std::function<std::vector<Finding>(int hosts)> examine;  // this host, sharing the job with others
};

// Checks the connection from here to `to`. `host`, if not null, gets the peer's report about
// itself. Ends within two minutes in any case, and within seconds if no process answers.
PairReport Probe(const DoctorSelf& self, const std::string& to, int hosts, HostReport* host);
// Asks `peer` to check its connections to `others`.
absl::StatusOr<std::vector<PairReport>> AskForPairs(const std::string& peer,
                                                    const std::vector<std::string>& others);

// Answers requests of other doctors until it is destroyed.
class DoctorServer {
 public:
  // UNAVAILABLE: the address is taken, or no endpoint can be made.
  static absl::StatusOr<std::unique_ptr<DoctorServer>> New(const DoctorSelf& self,
                                                           const std::string& address);
  ~DoctorServer();
  int port() const;

 private:
  struct State;  // outlives the DoctorServer while it answers a request
  explicit DoctorServer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
  std::thread accepts_, echoes_;
};

nlohmann::json ToJson(const Finding& finding);
nlohmann::json ToJson(const PairReport& pair);

}  // namespace tandem::doctor

#endif  // TANDEM_TOOLS_DOCTOR_DOCTOR_PEER_H_
