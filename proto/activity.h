// Activity says what a main loop is doing or waits for, as the heartbeats of its process report it.
#ifndef TANDEM_PROTO_ACTIVITY_H_
#define TANDEM_PROTO_ACTIVITY_H_

#include <string>

#include "proto/endpoint.h"

namespace tandem {

struct Activity {
  std::string text;  // for people: "pull of step 7 since 3 s; server 1 shard 0 is waited for"
  // For the scheduler, which follows it to the node that holds up all others; kNone: nobody.
  EndpointId waits_for;
};

}  // namespace tandem

#endif  // TANDEM_PROTO_ACTIVITY_H_
