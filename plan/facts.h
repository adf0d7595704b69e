// What a job's costs follow from: how many rows a step touches, how large things are, how long steps
// compute, what links carry. Counted and measured, not configured.
//
// Pure data; any thread.
#ifndef TANDEM_PLAN_FACTS_H_
#define TANDEM_PLAN_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::plan {

enum class Place {
  kServers,     // parameter servers, processes of their own
  kSharded,     // tables: dealt over the workers
  kReplicated,  // tables: a copy on each worker; dense parameters: a copy, and an allreduce
};

struct TableFacts {
  std::string name;
  int dim = 0;
  double rows_a_step = 0;  // distinct rows that a step of one worker touches, in the mean
  double ids_a_step = 0;   // the same with repetitions
  double rows = 0;         // of the whole table, sooner or later
  double bytes_a_row = 0;  // in memory, with the optimizer's slots and the index
  // In the job as it is.
  Place place = Place::kServers;
};

struct Facts {
  int workers = 1;
  int servers = 1;
  int batch = 1;  // rows a step of a worker
  int depth = 0;  // steps that a worker reads ahead
  std::vector<TableFacts> tables;
  double dense_parameters = 0;
  double dense_bytes_a_parameter = 4;  // with the optimizer's slots
  bool dense_slots_dealt = false;      // each worker keeps the slots of its share (ZeRO stage 1)
  // Of replicas: bytes that an element takes on a link, and where a codec sends only a part of them,
  // to everybody, how many bytes of each gradient; 0: the whole one, by an allreduce.
  double dense_wire_bytes = 4;
  double dense_codec_bytes = 0;
  // By worker: what each of some steps computes, in seconds; all of them as many steps.
  std::vector<std::vector<double>> step_seconds;
  double latency_seconds = 0;   // from sending to receiving a frame
  double bytes_per_second = 0;  // that a process can send, and likewise receive; 0 = no limit
};

}  // namespace tandem::plan

#endif  // TANDEM_PLAN_FACTS_H_
