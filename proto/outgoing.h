// A frame that a core wants to send: the shell finds the peer and gives the frame to its transport.
#ifndef TANDEM_PROTO_OUTGOING_H_
#define TANDEM_PROTO_OUTGOING_H_

#include "proto/endpoint.h"
#include "proto/frame.h"

namespace tandem {

struct Outgoing {
  EndpointId to;
  Frame frame;
};

}  // namespace tandem

#endif  // TANDEM_PROTO_OUTGOING_H_
