// read_rows SCHEDULER TABLE ID: reads a row of a running job again and again until the job ends,
// and prints how often it could, and the row as it was at first and at last.
#include <cstdio>
#include <cstdlib>

#include "client/session.h"

int main(int, char** argv) {
  const auto session = tandem::client::Session::Open(argv[1]);
  if (!session.ok()) return std::puts(session.status().ToString().c_str()), 1;
  const uint64_t id = std::strtoull(argv[3], nullptr, 0);
  std::vector<float> row((*session)->RowFloats(argv[2])), first, last;
  int reads = 0;
  for (; (*session)->Read(argv[2], {&id, 1}, absl::MakeSpan(row)).ok(); ++reads) {
    (first.empty() ? first : last) = row;
  }
  std::printf("%d", reads);
  for (const auto& values : {first, last}) {
    for (const float value : values) std::printf(" %.9g", value);
  }
  return std::puts((" " + (*session)->status().ToString()).c_str()), 0;
}
