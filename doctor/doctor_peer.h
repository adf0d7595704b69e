// The part of `tandem doctor` that needs two: one listens, others look at it, or ask it to look at
// third ones, so that one of them can report on every pair.
//
//   {"ask": "host", "hosts": N}       -> its findings, version, job, and the address of an endpoint
//                                        that sends frames back; N hosts share the job
//   {"ask": "time"}                   -> {"in": s, "out": s}: its clock when the question came and
//                                        when the answer left
//   {"ask": "pairs", "peers": [...]}  -> its pairs with these
//
// Thread safety: Probe and AskForPairs may be called from any thread; a DoctorServer has threads of
// its own.
#ifndef TANDEM_DOCTOR_DOCTOR_PEER_H_
#define TANDEM_DOCTOR_DOCTOR_PEER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "doctor/doctor.h"
#include "doctor/doctor_link.h"
#include "node/role_flags.h"

namespace tandem::doctor {

inline constexpr size_t kMostDoctorPeers = 64;

// A pair as it is shown, and its findings.
struct PairReport {
  PairFacts facts;
  std::vector<Finding> findings;
};

// What another host has said of itself.
struct HostReport {
  std::string name;  // as it was called: HOST:PORT
  std::string host;  // as it calls itself
  std::vector<Finding> findings;
};

// What a doctor is by itself: what it says to others, and what it compares with.
struct DoctorSelf {
  std::string name;  // of this end of a pair
  std::string host_name;
  OurSide ours;
  // Endpoints as a role would make them, with the choices that they have logged.
  std::string bind_host;        // where endpoints listen
  std::string advertised_host;  // what others are told, if that is all hosts
  std::function<std::vector<Finding>(int hosts)> examine;  // this host, sharing the job with others
};

// Looks at `to` from here. `host`, if not null, gets what it says of itself. Ends within two
// minutes whatever it meets, within seconds if nobody answers.
PairReport Probe(const DoctorSelf& self, const std::string& to, int hosts, HostReport* host);
// Has `peer` look at others.
absl::StatusOr<std::vector<PairReport>> AskForPairs(const std::string& peer,
                                                    const std::vector<std::string>& others);

// Answers until it is destroyed.
class DoctorServer {
 public:
  // UNAVAILABLE: the address is taken, or no endpoint can be made.
  static absl::StatusOr<std::unique_ptr<DoctorServer>> New(const DoctorSelf& self,
                                                           const std::string& address);
  ~DoctorServer();
  int port() const;

 private:
  struct State;  // outlives it while a question is being answered
  explicit DoctorServer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
  std::thread accepts_, echoes_;
};

nlohmann::json ToJson(const Finding& finding);
nlohmann::json ToJson(const PairReport& pair);

}  // namespace tandem::doctor

#endif  // TANDEM_DOCTOR_DOCTOR_PEER_H_
