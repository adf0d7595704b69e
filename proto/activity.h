// What a main loop is doing or waits for, as the beats of its process say it.
#ifndef TANDEM_PROTO_ACTIVITY_H_
#define TANDEM_PROTO_ACTIVITY_H_

#include <string>

#include "proto/endpoint.h"

namespace tandem {

struct Activity {
  std::string text;  // for people: "pull of step 7 since 3 s; server 1 shard 0 is waited for"
  EndpointId
      waits_for;  // for the scheduler, which follows it to whoever holds all up; kNone: nobody
};

}  // namespace tandem

#endif  // TANDEM_PROTO_ACTIVITY_H_
