// Links tandem::client, and asks for a session where there is none.
#include <cstdio>

#include "client/session.h"

int main() {
  const auto session = tandem::client::Session::Open("no address");
  std::puts(session.status().ToString().c_str());
  return session.ok() ? 1 : 0;
}
