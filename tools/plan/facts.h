// The inputs of an estimate: rows that a step touches, sizes, compute times, latency and bandwidth.
// Most are counted and measured, not configured.
//
// Pure data; any thread.
#ifndef TANDEM_TOOLS_PLAN_FACTS_H_
#define TANDEM_TOOLS_PLAN_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace tandem::plan {

struct TableFacts {
  std::string name;
  int dim = 0;
  double rows_a_step = 0;  // mean of the distinct rows that a step of one worker touches
  double ids_a_step = 0;   // the same with repetitions
  double rows = 0;         // rows of the whole table at the end
  double bytes_a_row = 0;  // in memory, with optimizer state and the index
  // In the current job.
  Table::Placement place = Table::SERVERS;
  double pulled_share = 1;  // bytes of a pulled row, as a share of those of f32
};

struct Facts {
  int workers = 1;
  int servers = 1;
  int batch = 1;  // rows in a step of one worker
  int depth = 0;  // steps that a worker prefetches
  std::vector<TableFacts> tables;
  double dense_parameters = 0;
  double dense_bytes_a_parameter = 4;  // with optimizer state
  bool dense_slots_dealt = false;      // each worker keeps the state of its share (ZeRO stage 1)
  // For replicas. Bytes of an element on a link. Bytes of a gradient that a codec sends to all
  // other workers; 0: no codec, an allreduce sums whole gradients.
  double dense_wire_bytes = 4;
  double dense_codec_bytes = 0;
  // [worker][step]: compute seconds. All workers have the same number of steps.
  std::vector<std::vector<double>> step_seconds;
  double latency_seconds = 0;   // from sending to receiving a frame
  double bytes_per_second = 0;  // that a process can send, and also receive; 0 = no limit
};

}  // namespace tandem::plan

#endif  // TANDEM_TOOLS_PLAN_FACTS_H_
