// Random jobs for the simulator, and random worlds for them to run in.
#ifndef TANDEM_TESTS_SIM_RANDOM_JOB_H_
#define TANDEM_TESTS_SIM_RANDOM_JOB_H_

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "tests/sim/plugins.h"
#include "tests/sim/proof/checked_world.h"
#include "tests/sim/sim_job.h"

namespace tandem {

// Often with a cache that is too small.
inline std::string Essp(int bound, Random* random) {
  const uint64_t rows = random->Bernoulli(0.5) ? 0 : 1 + random->Uniform(40);
  return absl::StrCat("kind: ESSP bound: ", bound, " cache_rows: ", rows);
}

// A random policy; without `lockstep` none in which workers take each step together. The
// compensations of DC_ASGD are tiny, because the judge knows no gradients. They still exercise the
// code that remembers rows as they were read.
inline std::string RandomPolicy(int depth, bool lockstep, Random* random) {
  const int bound = depth + static_cast<int>(random->Uniform(4));
  switch (lockstep ? random->Uniform(21) : 2 + random->Uniform(19)) {
    case 0:
      return "kind: BSP";
    case 1:
      return absl::StrCat("kind: FIXED_DELAY delay: ", random->Uniform(4));
    case 2:
      return "kind: ASP";
    case 3:
      return "kind: ASP async_scale: INVERSE_WORKERS";
    case 4:
      return absl::StrCat("kind: SSP bound: ", bound, " async_scale: INVERSE_WORKERS");
    case 5:
      return "kind: STALENESS_AWARE";
    case 6:
      return absl::StrCat("kind: K_BATCH_ASYNC batches: ", 1 + random->Uniform(5));
    case 7:
      return absl::StrCat("kind: GBA token_gap: ", random->Uniform(3));
    case 8:
      return absl::StrCat("kind: GBA batches: ", 1 + random->Uniform(5), " token_gap: 0");
    case 9:
      return "kind: DC_ASGD compensation: 1e-10";
    case 10:
      return "kind: DC_ASGD compensation: 1e-12 mean_square_decay: 0.9";
    case 11:
      return absl::StrCat("kind: DSSP bound: ", bound,
                          " upper_bound: ", bound + static_cast<int>(random->Uniform(4)));
    case 12:
      return absl::StrCat("kind: COSINE_GATE age_decay: 0.1 age_cutoff: ", 1 + random->Uniform(8));
    case 13:  // it takes its first steps together, too
      return absl::StrCat("kind: SYNC_SWITCH switch_step: ", lockstep ? random->Uniform(10) : 0,
                          random->Bernoulli(0.3) ? " async_scale: INVERSE_WORKERS" : "");
    case 14:
      return Essp(bound, random);
    case 15:
      return absl::StrCat("kind: RINGMASTER max_delay: ", 1 + random->Uniform(8));
    case 16:
      return "kind: RINGLEADER";
    case 17:
      return absl::StrCat("kind: DELAY_ADAPTIVE full_rate_delay: ", 1 + random->Uniform(4));
    case 18:
      return absl::StrCat("kind: RENNALA batches: ", 1 + random->Uniform(5));
    case 19:
      return RandomPlugin(bound, random);
    default:
      return absl::StrCat("kind: SSP bound: ", bound);
  }
}

inline std::string BackupWorkers(int workers, Random* random) {
  return absl::StrCat("kind: BACKUP_WORKERS backups: ",
                      random->Uniform(static_cast<uint64_t>(std::min(workers, 3))));
}

// Sometimes with backup workers, and then without anything that takes every step together.
inline void RandomPolicies(SimJob* job, Random* random) {
  const bool backups = random->Bernoulli(0.25);
  job->dense_on_servers = backups || random->Bernoulli(0.6);
  job->policy = RandomPolicy(job->depth, !backups, random);
  if (random->Bernoulli(0.5)) {
    job->second_policy = RandomPolicy(job->depth, !backups, random);
  }
  if (random->Bernoulli(0.5)) {
    job->dense_policy = RandomPolicy(job->depth, !backups, random);
  }
  if (!backups) return;
  const std::string policy = BackupWorkers(job->workers, random);
  std::string* const places[] = {&job->policy, &job->second_policy, &job->dense_policy};
  *places[random->Uniform(3)] = policy;
  if (random->Bernoulli(0.5)) *places[random->Uniform(3)] = policy;
}

// Each distribution, at times with a worker that is always slow.
inline std::string RandomStepTime(int workers, Random* random) {
  const char* const kinds[] = {"", "distribution: EXPONENTIAL", "distribution: LOGNORMAL",
                               "slow_share: 0.05"};
  const char* const kind = kinds[random->Uniform(4)];
  std::string text = absl::StrCat("slow_workers { ", kind, " mean_seconds: 0.01 } ");
  if (!random->Bernoulli(0.2)) return text;
  // Of one worker alone, no entry may hold for all.
  if (workers == 1) text.clear();
  const uint64_t rank = random->Uniform(static_cast<uint64_t>(workers));
  return absl::StrCat(text, "slow_workers { worker: ", rank, " ", kind, " mean_seconds: 0.04 } ");
}

inline SimJob RandomJob(Random* random) {
  SimJob job;
  job.workers = 1 + static_cast<int>(random->Uniform(4));
  job.servers = 1 + static_cast<int>(random->Uniform(3));
  job.shards_per_server = 1 + static_cast<int>(random->Uniform(2));
  job.ranges_per_shard = 1 + static_cast<int>(random->Uniform(3));
  job.depth = static_cast<int>(random->Uniform(4));
  job.epochs = 1 + static_cast<int>(random->Uniform(3));
  job.max_steps = random->Bernoulli(0.2) ? 1 + static_cast<int>(random->Uniform(12)) : 0;
  job.max_inflight_pushes = 1 + static_cast<int>(random->Uniform(4));
  job.evaluate_every = static_cast<int>(random->Uniform(2));
  job.second_table = random->Bernoulli(0.7);
  job.second_frozen = random->Bernoulli(0.2);
  RandomPolicies(&job, random);
  job.algorithm = random->Bernoulli(0.5) ? "RING" : "DIRECT";
  job.slow_workers = RandomStepTime(job.workers, random);
  return job;
}

// WorldOptions::no_room: of every third run some of the first `writes`.
inline std::set<int64_t> RandomFullDisk(uint64_t seed, uint64_t writes) {
  Random random(HashCombine(seed, 91));
  std::set<int64_t> full;
  if (random.Uniform(3) > 0) return full;
  const uint64_t count = 1 + random.Uniform(4);
  while (full.size() < count) full.insert(static_cast<int64_t>(random.Uniform(writes)));
  return full;
}

// One in three runs has a network without faults, so that what fails there is not their doing.
inline CheckedWorldOptions RandomWorld(const SimJob& job, uint64_t seed, Random* random) {
  CheckedWorldOptions options;
  options.seed = options.model.seed = seed;
  options.trace_lines = 400;
  for (int rank = 0; rank < job.workers; ++rank) {  // uneven, some nothing at all
    options.model.batches.push_back(static_cast<int>(random->Uniform(8)));
  }
  if (random->Bernoulli(0.67)) {
    options.network.drop = 0.03 * random->NextDouble();
    options.network.duplicate = 0.1 * random->NextDouble();
    options.network.reorder = random->Bernoulli(0.5);
    options.barrier_drop = 0.1 * random->NextDouble();
    if (random->Bernoulli(0.3)) options.network.cuts_per_second = 2;
    options.network.jitter *= 1 + 10 * random->NextDouble();
  }
  if (random->Bernoulli(0.67)) options.moves_per_second = 40 * random->NextDouble();
  if (random->Bernoulli(0.2))
    options.checkpoints.push_back(absl::Seconds(0.3 * random->NextDouble()));
  options.checkpoint_at_end = random->Bernoulli(0.2);
  options.evaluate = random->Bernoulli(0.8);
  // More requests, which arrive while a checkpoint is in progress. Breaks of connections (below)
  // keep some workers from hearing of it.
  if (!options.checkpoints.empty() && random->Bernoulli(0.7)) {
    const int more = 1 + static_cast<int>(random->Uniform(3));
    for (int i = 0; i < more; ++i) {
      options.checkpoints.push_back(options.checkpoints[0] +
                                    absl::Milliseconds(30 * random->NextDouble()));
    }
  }
  if (random->Bernoulli(0.2)) options.breaks_per_second = 20 * random->NextDouble();
  return options;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_RANDOM_JOB_H_
