// A small job for tests of the scheduler, and the messages its nodes send.
#ifndef TANDEM_TESTS_UNIT_SCHEDULER_SCHEDULER_TEST_JOB_H_
#define TANDEM_TESTS_UNIT_SCHEDULER_SCHEDULER_TEST_JOB_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "job/job.h"
#include "scheduler/scheduler_core.h"

namespace tandem {

inline constexpr uint64_t kTestJobHash = 0x1234;

inline job::TablePlan TestTable(const std::string& name, int64_t expected_rows,
                                bool dense = false) {
  job::TablePlan table;
  table.name = name;
  table.dim = dense ? job::kDenseBlockFloats : 8;
  table.dense = dense;
  table.salt = 77;
  table.expected_rows = expected_rows;
  return table;
}

// Tables "emb" (BSP) and, with dense_blocks > 0, "dense". Two ranges a shard keep traces short.
inline job::ResolvedJob TestPlan(int workers, int servers, int shards_per_server = 1,
                                 int64_t dense_blocks = 0) {
  job::ResolvedJob plan;
  plan.job.set_name("test");
  plan.job.set_seed(5);
  plan.job.mutable_cluster()->set_workers(workers);
  plan.job.mutable_cluster()->set_servers(servers);
  plan.job.mutable_cluster()->set_shards_per_server(shards_per_server);
  plan.job.mutable_cluster()->set_ranges_per_shard(2);
  plan.job.mutable_train()->set_epochs(2);
  plan.job.mutable_limits()->set_report_interval_seconds(1);
  plan.job.mutable_limits()->set_startup_timeout_seconds(60);
  plan.job.mutable_limits()->set_stall_timeout_seconds(600);
  plan.hash = kTestJobHash;
  plan.tables.push_back(TestTable("emb", 1000000));
  if (dense_blocks > 0) {
    plan.dense_table = 1;
    plan.tables.push_back(TestTable(job::kDenseTableName, dense_blocks, true));
    plan.tables.back().id = 1;
  }
  job::GroupPlan& group = plan.groups.emplace_back();
  group.policy.set_kind(Policy::BSP);
  for (const job::TablePlan& table : plan.tables) group.tables.push_back(table.id);
  return plan;
}

inline scheduler::SchedulerEvent FromNode(uint64_t connection, uint64_t incarnation,
                                          Control control) {
  scheduler::SchedulerEvent event;
  event.kind = scheduler::SchedulerEvent::Kind::kControl;
  event.connection = connection;
  event.incarnation = incarnation;
  event.control = std::move(control);
  return event;
}

inline Control RegisterMessage(Register::Role role, int index, uint64_t incarnation, int endpoints,
                               uint64_t hash = kTestJobHash) {
  Control control;
  Register& request = *control.mutable_register_();
  request.set_role(role);
  request.set_index(index);
  request.set_incarnation(incarnation);
  for (int i = 0; i < endpoints; ++i) {
    request.add_endpoint(absl::StrCat("tcp://10.0.0.1:", 1000 + incarnation * 10 + i));
  }
  request.set_host("h1");
  request.set_pid(static_cast<int64_t>(100 + incarnation));
  request.set_job_hash(hash);
  return control;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SCHEDULER_SCHEDULER_TEST_JOB_H_
