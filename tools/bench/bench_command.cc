#include "tools/bench/bench_command.h"

#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collectives/dump.h"
#include "node/role_flags.h"
#include "node/role_options.h"
#include "tools/bench/collective_bench.h"
#include "tools/bench/joined_bench.h"
#include "tools/bench/pushpull_bench.h"
#include "tools/bench/read_bench.h"
#include "tools/bench/store_bench.h"

namespace tandem::bench {

struct BenchCommand::Flags {
  bool tiny = false;
  StoreBenchOptions store;
  PushPullBenchOptions pushpull;
  ReadBenchOptions read;
  CollectiveBenchOptions collective;
  JoinedBenchOptions joined;
  CLI::App *store_app = nullptr, *pushpull_app = nullptr, *read_app = nullptr, *dump_app = nullptr;
  std::string dump_folder;
  std::vector<std::pair<collectives::Primitive, CLI::App*>> collective_apps;

  // Makes the benchmarks small enough for any machine and for sanitizers. The results say nothing
  // about speed.
  void Shrink() {
    store.rows = 2'000;
    store.batch_keys = 100;
    store.repetitions = store.batches = 2;
    store.max_rows = 500;
    store.stream_batches = 50;
    pushpull.rows = 2'000;
    pushpull.keys = {10, 500};
    pushpull.repetitions = pushpull.trips = 2;
    read.repetitions = 1;
    collective.max_bytes = 16 << 10;
    collective.warmup = 1;
    collective.repetitions = 2;
    collective.max_operations = 2;
  }
};

void AddCollectiveFlags(CLI::App* app, CollectiveBenchOptions* o) {
  const CLI::AsSizeValue size(/*kb_is_1000=*/false);
  app->add_option("--link", o->link, "shm, rdma, tcp, zmq or auto")->capture_default_str();
  app->add_option("--ranks", o->ranks, "Processes to fork")->capture_default_str();
  app->add_option("--min", o->min_bytes, "Smallest size")->transform(size)->capture_default_str();
  app->add_option("--max", o->max_bytes, "Largest size")->transform(size)->capture_default_str();
  app->add_option("--factor", o->factor, "Factor from size to size")->capture_default_str();
  app->add_option("--sizes", o->sizes, "These sizes instead, in bytes")
      ->delimiter(',')
      ->transform(size);
  app->add_option("--type", o->type, "f32, f64, f16, bf16, i32, i64, u8")->capture_default_str();
  app->add_option("--op", o->op, "sum, product, min, max, average, premulsum, ...")
      ->capture_default_str();
  app->add_option("--root", o->root)->capture_default_str();
  app->add_option("--algorithm", o->algorithms, "Names, 'all', or 'auto': the group's choice")
      ->delimiter(',');
  app->add_option("--segment", o->segment_bytes, "Most bytes of a message, 0 = whole pieces")
      ->transform(size);
  app->add_flag_callback("--only-out-of-place", [o] { o->in_place = false; });
  app->add_option("--warmup", o->warmup, "Operations before the measured ones")
      ->capture_default_str();
  app->add_option("--repetitions", o->repetitions)->capture_default_str();
  app->add_option("--seconds", o->seconds, "Approximate seconds for each line")
      ->capture_default_str();
  app->add_flag("--calibrate", o->calibrate, "Measure the links first, and choose by their costs");
  app->add_option("--calibration", o->calibration,
                  "File of costs: read, or written by --calibrate");
  app->add_option("--rules", o->rules,
                  "Which algorithm for which size: 'allreduce:<=32K=one_shot,ring/256K; ...'");
  app->add_flag("--explain", o->explain,
                "Print the predicted time of each algorithm, and the choice");
  app->add_option("--json", o->json, "Also write a file with one object per line");
}

namespace {

// Prints what the dumps of each group in a folder show together.
int CollectivesDump(const std::string& folder) {
  const auto dumps = collectives::ReadDumps(folder);
  if (!dumps.ok()) {
    std::cerr << "tandem bench collectives-dump: " << dumps.status().message() << "\n";
    return node::kExitBadInput;
  }
  for (size_t begin = 0, end = 0; begin < dumps->size(); begin = end) {
    while (end < dumps->size() && (*dumps)[end].group == (*dumps)[begin].group) ++end;
    std::cout << (*dumps)[begin].group << ": " << end - begin << " of " << (*dumps)[begin].ranks
              << " ranks\n";
    const auto group = absl::MakeConstSpan(*dumps).subspan(begin, end - begin);
    for (const std::string& finding : collectives::CompareDumps(group))
      std::cout << "  " << finding << "\n";
  }
  return node::kExitOk;
}

CLI::App* AddBench(CLI::App* bench, const char* name, const char* what, bool* tiny) {
  CLI::App* const app = bench->add_subcommand(name, what);
  app->add_flag("--tiny", *tiny, "Tiny sizes: only show that it works");
  return app;
}

void AddRowDtype(CLI::App* app, Table::Dtype* type) {
  app->add_option("--row-dtype", *type, "F32 (the default), BF16, F16 or INT8")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Table::Dtype>{
          {"F32", Table::F32}, {"BF16", Table::BF16}, {"F16", Table::F16}, {"INT8", Table::INT8}}));
}

void AddStore(CLI::App* app, StoreBenchOptions* o) {
  app->add_option("--rows", o->rows)->capture_default_str();
  app->add_option("--dim", o->dim)->capture_default_str();
  app->add_option("--batch-keys", o->batch_keys)->capture_default_str();
  app->add_option("--repetitions", o->repetitions)->capture_default_str();
  app->add_option("--batches", o->batches, "Batches of each kind in a repetition")
      ->capture_default_str();
  app->add_option("--seed", o->seed)->capture_default_str();
  app->add_option("--optimizer", o->optimizer, "ROWWISE_ADAGRAD (the default), ADAGRAD or ADAM")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Optimizer::Kind>{{"ROWWISE_ADAGRAD", Optimizer::ROWWISE_ADAGRAD},
                                                 {"ADAGRAD", Optimizer::ADAGRAD},
                                                 {"ADAM", Optimizer::ADAM}}));
  AddRowDtype(app, &o->types.row);
  app->add_option("--state-dtype", o->types.state, "F32 (the default) or BF16")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Table::Dtype>{{"F32", Table::F32}, {"BF16", Table::BF16}}));
  app->add_option("--stream", o->stream,
                  "Run a stream of updates instead, of this many distinct ids (Zipf's law)");
  app->add_option("--skew", o->skew, "Stream: exponent of Zipf's law")->capture_default_str();
  app->add_option("--eviction", o->eviction, "Stream: NONE, AGE or LRU (the default)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Eviction::Kind>{
          {"NONE", Eviction::NONE}, {"AGE", Eviction::AGE}, {"LRU", Eviction::LRU}}));
  app->add_option("--max-rows", o->max_rows, "Stream: rows that LRU keeps")->capture_default_str();
  app->add_option("--versions", o->versions,
                  "Stream: batches without an update after which AGE evicts a row")
      ->capture_default_str();
  app->add_option("--seconds", o->seconds, "Stream: duration in seconds")->capture_default_str();
  app->add_option("--report-seconds", o->report_seconds, "Stream: seconds between two lines")
      ->capture_default_str();
}

void AddPushPull(CLI::App* app, PushPullBenchOptions* o) {
  app->add_option("--rows", o->rows)->capture_default_str();
  app->add_option("--dim", o->dim)->capture_default_str();
  AddRowDtype(app, &o->row_dtype);
  app->add_option("--keys", o->keys, "Distinct keys of a request (several allowed)")
      ->capture_default_str();
  app->add_option("--repetitions", o->repetitions)->capture_default_str();
  app->add_option("--trips", o->trips, "Trips of each kind in a repetition")->capture_default_str();
  app->add_option("--seed", o->seed)->capture_default_str();
  app->add_option("--transport", o->transports,
                  "zmq, zmq-authenticated, zmq-encrypted, shm (several allowed)")
      ->capture_default_str();
  app->add_option("--frame-bytes", o->frame_bytes, "Bytes of rows in a frame of a request")
      ->capture_default_str();
  app->add_option("--in-flight", o->in_flight, "Requests in flight at a time")
      ->capture_default_str();
  app->add_flag("--pin", o->pin, "Answering sides stay on one processor: cluster.pin_servers");
}

void AddRead(CLI::App* app, ReadBenchOptions* o) {
  app->add_option("job", o->job, "Job file (protobuf text)")->required();
  node::AddSetFlag(app, &o->set);
  app->add_option("--repetitions", o->repetitions)->capture_default_str();
}

// Flags for ranks that somebody starts one by one, instead of processes that are forked here.
void AddJoined(CLI::App* app, JoinedBenchOptions* o) {
  app->add_option("--listen", o->listen,
                  "HOST:PORT where this process and --ranks - 1 others meet");
  app->add_option("--join", o->join, "HOST:PORT of the process that listens");
  app->add_option("--rank", o->rank, "Rank of this process, with --listen or --join; -1 = any")
      ->capture_default_str();
  app->add_option("--start-seconds", o->startup_timeout_seconds,
                  "Seconds until all ranks must have joined")
      ->capture_default_str();
}

CLI::App* AddCollectiveBench(CLI::App* bench, collectives::Primitive primitive,
                             CollectiveBenchOptions* o, bool* tiny) {
  const bool pairs = primitive == collectives::Primitive::kPointToPoint;
  const std::string name(pairs ? "sendrecv" : collectives::PrimitiveName(primitive));
  const std::string what =
      pairs ? "Each rank sends to the next" : "The collective, over a sweep of sizes";
  CLI::App* const app = AddBench(bench, name.c_str(), what.c_str(), tiny);
  AddCollectiveFlags(app, o);
  return app;
}

int EndOf(const char* program, const absl::Status& status) {
  const int code = node::Finish(program, status);
  return absl::IsInvalidArgument(status) ? node::kExitBadInput : code;
}

}  // namespace

BenchCommand::BenchCommand(CLI::App* app) : flags_(std::make_unique<Flags>()) {
  CLI::App* const bench = app->add_subcommand("bench", "Measure parts of the system");
  bench->require_subcommand(1);
  Flags& f = *flags_;
  f.store_app = AddBench(bench, "store", "Rows of a table, compared with a plain gather", &f.tiny);
  f.pushpull_app = AddBench(bench, "pushpull",
                            "Push and pull, compared with bare ZeroMQ and the store", &f.tiny);
  AddStore(f.store_app, &f.store);
  AddPushPull(f.pushpull_app, &f.pushpull);
  f.read_app =
      AddBench(bench, "read", "Reading the training rows of a job, and nothing else", &f.tiny);
  AddRead(f.read_app, &f.read);
  std::vector<collectives::Primitive> primitives(std::begin(collectives::kPrimitives),
                                                 std::end(collectives::kPrimitives));
  primitives.push_back(collectives::Primitive::kPointToPoint);
  for (const collectives::Primitive p : primitives) {
    CLI::App* const one = AddCollectiveBench(bench, p, &f.collective, &f.tiny);
    AddJoined(one, &f.joined);
    f.collective_apps.emplace_back(p, one);
  }
  f.dump_app = bench->add_subcommand("collectives-dump",
                                     "What the dumps of a collective group show together");
  f.dump_app->add_option("folder", f.dump_folder, "Folder with a *.jsonl of each rank")->required();
}

BenchCommand::~BenchCommand() = default;

int BenchCommand::Run() const {
  Flags& f = *flags_;
  if (f.tiny) f.Shrink();
  if (f.store_app->parsed()) return EndOf("tandem bench store", RunStoreBench(f.store, std::cout));
  if (f.pushpull_app->parsed()) {
    return EndOf("tandem bench pushpull", RunPushPullBench(f.pushpull, std::cout));
  }
  if (f.dump_app->parsed()) return CollectivesDump(f.dump_folder);
  if (f.read_app->parsed()) return EndOf("tandem bench read", RunReadBench(f.read, std::cout));
  for (const auto& [primitive, app] : f.collective_apps) {
    if (!app->parsed()) continue;
    f.collective.primitive = primitive;
    const bool joins = !f.joined.listen.empty() || !f.joined.join.empty() || app->count("--rank");
    if (!joins) continue;
    if (app->count("--link") == 0) f.collective.link = "auto";
    // The other ranks may have been given different options, so an error need not be a mistake of
    // this command line.
    return node::Finish("tandem bench",
                        RunJoinedCollectiveBench(f.collective, f.joined, std::cout));
  }
  return EndOf("tandem bench", RunCollectiveBench(f.collective, std::cout));
}

}  // namespace tandem::bench
