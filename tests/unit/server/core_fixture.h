// Plans, views and frames for tests of the cores.
#ifndef TANDEM_TESTS_UNIT_SERVER_CORE_FIXTURE_H_
#define TANDEM_TESTS_UNIT_SERVER_CORE_FIXTURE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/hash.h"
#include "gtest/gtest.h"
#include "job/job.h"
#include "proto/frame.h"
#include "proto/range_map.h"

namespace tandem {

// Two tables under `policy`: "a" (dim 2), and "dense" unless `synchroniser` is ALLREDUCE.
inline job::ResolvedJob CorePlan(const std::string& policy, int workers, int servers,
                                 const std::string& more = "",
                                 const std::string& synchroniser = "SERVERS") {
  const absl::StatusOr<Job> job = job::ParseJob(
      absl::StrCat(
          "name: \"core\" seed: 3 cluster { workers: ", workers, " servers: ", servers,
          " ranges_per_shard: 2 } data { format: CRITEO train: \"none\" } ",
          "table { name: \"a\" dim: 2 initializer { kind: CONSTANT scale: 1 } ",
          "optimizer { kind: SGD learning_rate: 1 } expected_rows: 16 } policy { ", policy,
          " } dense { synchroniser: ", synchroniser,
          " optimizer { kind: ADAM learning_rate: 1 } } ", "model { mlp { hidden: [4] } } ",
          more.find("train {") == std::string::npos ? "train { batch_size: 4 } " : "", more),
      "core", {});
  EXPECT_TRUE(job.ok()) << job.status();
  absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// View `number`: two ranges a server and table, dealt round robin, except those in `moved`
// (range id -> server).
inline View CoreViewMessage(const job::ResolvedJob& plan, uint32_t number,
                            const std::map<uint32_t, int>& moved = {}) {
  View view;
  view.set_number(number);
  const int ranges = 2 * plan.servers();
  const std::vector<uint64_t> bounds = job::EqualRanges(ranges);
  for (const job::TablePlan& table : plan.tables) {
    for (int r = 0; r < ranges; ++r) {
      const uint32_t id = static_cast<uint32_t>(view.range_size());
      RangeInfo* const info = view.add_range();
      info->set_table(table.id);
      info->set_begin(bounds[static_cast<size_t>(r)]);
      info->set_end(r + 1 < ranges ? bounds[static_cast<size_t>(r) + 1] : 0);
      const auto other = moved.find(id);
      info->set_server(
          static_cast<uint32_t>(other != moved.end() ? other->second : r % plan.servers()));
    }
  }
  return view;
}

inline std::shared_ptr<const RangeMap> CoreView(const job::ResolvedJob& plan, uint32_t number,
                                                const std::map<uint32_t, int>& moved = {}) {
  absl::StatusOr<std::shared_ptr<const RangeMap>> map =
      RangeMap::FromView(CoreViewMessage(plan, number, moved), plan.sizes());
  EXPECT_TRUE(map.ok()) << map.status();
  return *map;
}

// The first `count` keys of table "a" that live in `range`.
inline std::vector<uint64_t> KeysIn(const RangeMap& map, const job::ResolvedJob& plan,
                                    uint32_t range, size_t count) {
  std::vector<uint64_t> keys;
  const uint32_t table = map.range(range).table;
  for (uint64_t key = 0; keys.size() < count; ++key) {
    if (map.Find(table, Position(plan.tables[table].salt, key)) == range) keys.push_back(key);
  }
  return keys;
}

template <typename T>
Buffer BufferOf(BufferSource& source, const std::vector<T>& values) {
  if (values.empty()) return Buffer();
  return CopyToBuffer(source,
                      {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)});
}

inline ParsedFrame Decoded(const Frame& frame) {
  absl::StatusOr<ParsedFrame> parsed = DecodeFrame(frame);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SERVER_CORE_FIXTURE_H_
