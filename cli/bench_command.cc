#include "cli/bench_command.h"

#include <iostream>
#include <string>
#include <vector>

#include "cli/role_flags.h"
#include "tests/bench/allreduce_bench.h"
#include "tests/bench/pushpull_bench.h"
#include "tests/bench/store_bench.h"

namespace tandem {

struct BenchCommand::Flags {
  bool tiny = false;
  StoreBenchOptions store;
  PushPullBenchOptions pushpull;
  AllReduceBenchOptions allreduce;
  CLI::App *store_app = nullptr, *pushpull_app = nullptr, *allreduce_app = nullptr;

  // Small enough for any machine and a sanitizer; measures nothing.
  void Shrink() {
    store.rows = 2'000;
    store.batch_keys = 100;
    store.repetitions = store.batches = 2;
    store.memory_rows = {5'000};
    pushpull.rows = 2'000;
    pushpull.keys = {10, 500};
    pushpull.repetitions = pushpull.trips = 2;
    allreduce.max_bytes = 16 << 10;
    allreduce.warmup = 1;
    allreduce.repetitions = 2;
  }
};

namespace {

CLI::App* AddBench(CLI::App* bench, const char* name, const char* what, bool* tiny) {
  CLI::App* const app = bench->add_subcommand(name, what);
  app->add_flag("--tiny", *tiny, "Sizes that show that it works, and measure nothing");
  return app;
}

void AddStore(CLI::App* app, StoreBenchOptions* o) {
  app->add_option("--rows", o->rows, "Of the speed part; 0 = none")->capture_default_str();
  app->add_option("--dim", o->dim)->capture_default_str();
  app->add_option("--batch-keys", o->batch_keys)->capture_default_str();
  app->add_option("--repetitions", o->repetitions)->capture_default_str();
  app->add_option("--batches", o->batches, "Of each kind, a repetition")->capture_default_str();
  app->add_option("--memory-rows", o->memory_rows, "Sizes of the memory part");
  app->add_flag_callback("--no-memory", [o] { o->memory_rows.clear(); });
  app->add_option("--seed", o->seed)->capture_default_str();
}

void AddPushPull(CLI::App* app, PushPullBenchOptions* o) {
  app->add_option("--rows", o->rows)->capture_default_str();
  app->add_option("--dim", o->dim)->capture_default_str();
  app->add_option("--keys", o->keys, "Distinct keys of a request (several allowed)")
      ->capture_default_str();
  app->add_option("--repetitions", o->repetitions)->capture_default_str();
  app->add_option("--trips", o->trips, "Of each kind, a repetition")->capture_default_str();
  app->add_option("--seed", o->seed)->capture_default_str();
}

void AddAllReduce(CLI::App* app, AllReduceBenchOptions* o) {
  app->add_option("--transport", o->transport, "inproc or zmq")->capture_default_str();
  app->add_option("--ranks", o->ranks)->capture_default_str();
  app->add_option("--min-bytes", o->min_bytes)->capture_default_str();
  app->add_option("--max-bytes", o->max_bytes)->capture_default_str();
  app->add_option("--repetitions", o->repetitions)->capture_default_str();
  app->add_option("--seed", o->seed)->capture_default_str();
}

}  // namespace

BenchCommand::BenchCommand(CLI::App* app) : flags_(std::make_unique<Flags>()) {
  CLI::App* const bench = app->add_subcommand("bench", "Measure parts of the system");
  bench->require_subcommand(1);
  Flags& f = *flags_;
  f.store_app = AddBench(bench, "store", "Rows of a table against a plain gather", &f.tiny);
  f.pushpull_app =
      AddBench(bench, "pushpull", "Push and pull against bare ZeroMQ and the store", &f.tiny);
  f.allreduce_app = AddBench(bench, "allreduce", "All-reduce over a transport", &f.tiny);
  AddStore(f.store_app, &f.store);
  AddPushPull(f.pushpull_app, &f.pushpull);
  AddAllReduce(f.allreduce_app, &f.allreduce);
}

BenchCommand::~BenchCommand() = default;

int BenchCommand::Run() const {
  Flags& f = *flags_;
  if (f.tiny) f.Shrink();
  if (f.store_app->parsed()) return Finish("tandem bench store", RunStoreBench(f.store, std::cout));
  if (f.pushpull_app->parsed()) {
    return Finish("tandem bench pushpull", RunPushPullBench(f.pushpull, std::cout));
  }
  return Finish("tandem bench allreduce", RunAllReduceBench(f.allreduce, std::cout));
}

}  // namespace tandem
