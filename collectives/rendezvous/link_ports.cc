#include "collectives/rendezvous/link_ports.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "rdma/rdma_transport.h"
#include "transport/zmq_transport.h"

namespace tandem::collectives {
namespace {

struct ChoiceName {
  LinkChoice choice;
  absl::string_view kind, name;
};
constexpr ChoiceName kChoices[] = {{LinkChoice::kAuto, "auto", "any link"},
                                   {LinkChoice::kTcp, "tcp", "TCP"},
                                   {LinkChoice::kShm, "shm", "shared memory"},
                                   {LinkChoice::kRdma, "rdma", "RDMA"},
                                   {LinkChoice::kZmq, "zmq", "ZeroMQ"}};

// How long to try a peer before the next kind of link is tried. If there is no other kind, the
// deadline of the caller applies.
constexpr absl::Duration kPatience = absl::Seconds(5), kAnyPatience = absl::Hours(1);
// When links are destroyed all important messages have been answered, and their peers may be gone.
// So there is little to wait for.
constexpr absl::Duration kLinger = absl::Seconds(1), kGoodbye = absl::Milliseconds(200);

std::string RandomName() {
  char bytes[12];
  TANDEM_CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
  return absl::StrCat("tandem-links-", absl::BytesToHexString({bytes, sizeof bytes}));
}

// The options of an RDMA endpoint. Its ring has room for all frames of a link in flight, whatever
// their sizes.
rdma::RdmaOptions RingFor(std::shared_ptr<rdma::RdmaContext> context, absl::Duration patience) {
  constexpr size_t kHeads = 512;  // headers of the message and the frame
  rdma::RdmaOptions options;
  options.context = std::move(context);
  options.connect_deadline = patience;
  options.linger = kLinger;
  options.spin = transport::SpinMode::kNever;  // the thread that waits for a group spins itself
  options.small_slots = options.large_slots = static_cast<int>(TransportLink::kWindowFrames);
  options.small_slot_bytes = 16 << 10;
  options.large_slot_bytes = TransportLink::kFrameBytes + kHeads;
  // Frames are never offered to be read: reads need the sender's help, and the sender may be
  // computing.
  options.rendezvous_bytes = options.large_slot_bytes;
  options.lend_all = true;
  return options;
}

absl::StatusOr<std::shared_ptr<TransportHub>> RdmaHub(absl::string_view host,
                                                      absl::Duration patience) {
  TANDEM_ASSIGN_OR_RETURN(auto context, rdma::RdmaContext::New());
  rdma::RdmaOptions options = RingFor(std::move(context), patience);
  options.bind = absl::StrCat("rdma://", host, ":*");
  auto transport = rdma::NewRdmaTransport(options);
  // The device may have an address of its own: try any device.
  if (!transport.ok()) {
    options.bind = "rdma://*:*";
    transport = rdma::NewRdmaTransport(options);
  }
  if (!transport.ok()) return transport.status();
  return TransportHub::New(*std::move(transport), "rdma");
}

absl::StatusOr<std::shared_ptr<TransportHub>> ZmqHub(absl::string_view host,
                                                     absl::Duration patience,
                                                     const GroupSecurity& security) {
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(1);
  options.bind = absl::StrCat("tcp://", host, ":*");
  options.keys = security.keys;
  options.encrypted = security.encrypted;
  options.connect_deadline = patience;
  options.linger = kLinger;
  options.goodbye_wait = kGoodbye;
  TANDEM_ASSIGN_OR_RETURN(auto transport, transport::NewZmqTransport(options));
  return TransportHub::New(std::move(transport), "zmq");
}

}  // namespace

absl::string_view NameOf(LinkChoice choice) {
  return std::find_if(std::begin(kChoices), std::end(kChoices),
                      [=](const ChoiceName& c) { return c.choice == choice; })
      ->name;
}

absl::StatusOr<LinkChoice> LinkChoiceOf(absl::string_view kind) {
  for (const ChoiceName& choice : kChoices) {
    if (choice.kind == kind) return choice.choice;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("link '", kind, "': expected shm, rdma, tcp, zmq or auto"));
}

absl::StatusOr<LinkPorts> LinkPorts::Open(absl::string_view host, LinkChoice choice,
                                          const GroupSecurity& security) {
  const bool encrypted = security.encrypts();
  if (encrypted && (choice == LinkChoice::kTcp || choice == LinkChoice::kRdma)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "links over ", NameOf(choice), " cannot be encrypted; expected ", NameOf(LinkChoice::kZmq),
        ", ", NameOf(LinkChoice::kShm), " or ", NameOf(LinkChoice::kAuto)));
  }
  LinkPorts ports;
  ports.security_ = security;
  TANDEM_ASSIGN_OR_RETURN(ports.tcp_, TcpListener::Bind(absl::StrCat(host, ":0")));
  ports.local_name_ = RandomName();
  TANDEM_ASSIGN_OR_RETURN(ports.local_, transport::UnixListener::Bind(ports.local_name_));
  if (choice == LinkChoice::kZmq || (encrypted && choice == LinkChoice::kAuto)) {
    TANDEM_ASSIGN_OR_RETURN(ports.zmq_, ZmqHub(host, kAnyPatience, security));
  }
  if (encrypted || (choice != LinkChoice::kAuto && choice != LinkChoice::kRdma)) return ports;
  auto rdma = RdmaHub(host, choice == LinkChoice::kAuto ? kPatience : kAnyPatience);
  ports.rdma_missing_ = rdma.status();
  if (rdma.ok()) ports.rdma_ = *std::move(rdma);
  if (choice == LinkChoice::kRdma) TANDEM_RETURN_IF_ERROR(ports.rdma_missing_);
  return ports;
}

GroupMember LinkPorts::member() const {
  GroupMember member;
  member.host = HostIdentity();
  member.tcp_address = tcp_.address();
  member.unix_name = local_name_;
  member.about = AboutThisProcess();
  if (rdma_ != nullptr) member.rdma_address = rdma_->address();
  if (zmq_ != nullptr) member.zmq_address = zmq_->address();
  return member;
}

}  // namespace tandem::collectives
