#include "tools/bench/pushpull_bench.h"

#include <zmq.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/process.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/client.h"
#include "server/rows/row_table.h"
#include "tools/bench/endpoints.h"
#include "tools/bench/lone_shard.h"
#include "tools/bench/machine.h"
#include "transport/zmq_transport.h"
#include "xxhash.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

template <typename Work>
double Microseconds(Work work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double QuantileOf(std::vector<double> all, double q) {
  std::sort(all.begin(), all.end());
  return all[static_cast<size_t>(q * static_cast<double>(all.size() - 1) + 0.5)];
}

// ZeroMQ as in a job without a token, and with security.encrypt: CONTROL and ALL; shared memory.
constexpr absl::string_view kTransports[] = {"zmq", "zmq-authenticated", "zmq-encrypted", "shm"};

absl::Status CheckOptions(const PushPullBenchOptions& o) {
  const bool counts = o.rows >= 1 && o.dim >= 1 && o.repetitions >= 1 && o.trips >= 1 &&
                      o.frame_bytes >= 1 && o.in_flight >= 1;
  for (const std::string& transport : o.transports) {
    if (std::count(std::begin(kTransports), std::end(kTransports), transport) == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "bench pushpull: transport ", transport, ", expected ", absl::StrJoin(kTransports, ", ")));
  }
  if (o.transports.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bench pushpull: no transport, expected ", absl::StrJoin(kTransports, ", ")));
  }
  for (const int64_t keys : o.keys) {
    if (!counts || keys < 1 || keys > o.rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("bench pushpull: ", keys, " distinct keys of ", o.rows, " rows of ", o.dim,
                       " floats, ", o.repetitions, " repetitions of ", o.trips, " trips, ",
                       o.in_flight, " in flight: each 1 or more, keys at most rows"));
    }
  }
  return absl::OkStatus();
}

// Memory for rows, aligned as a tensor library aligns it: at a multiple of a cache line.
class Rows {
 public:
  void Resize(size_t floats) {
    HeapBufferSource heap;  // its buffers outlive it
    buffer_ = heap.Alloc(floats * sizeof(float));
    std::fill_n(begin(), floats, 0.0f);
  }
  float* begin() { return buffer_.MutableAs<float>().data(); }
  absl::Span<float> span() { return buffer_.MutableAs<float>(); }
  absl::Span<const float> span() const { return buffer_.As<float>(); }

 private:
  Buffer buffer_;
};

// Starts an answering side. The threads that it starts inherit the processors of the thread that
// starts them.
template <typename Start>
void StartAnswering(bool pin, Start start) {
  std::thread([&] {
    if (pin) TANDEM_CHECK_OK(StayOnProcessors(/*first=*/1, 1));
    start();
  }).join();
}

// ---- bare ZeroMQ ----

using Parts = std::vector<size_t>;  // bytes of each

// A message whose memory is sent again and again.
class Message {
 public:
  explicit Message(const Parts& sizes) {
    HeapBufferSource heap;  // its buffers outlive it
    for (const size_t bytes : sizes) {
      parts_.push_back(heap.Alloc(bytes));
      std::fill_n(parts_.back().mutable_data(), bytes, uint8_t{7});
    }
  }
  void Send(void* socket) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      zmq_msg_t message;
      zmq_msg_init_data(
          &message, parts_[i].mutable_data(), parts_[i].size(), [](void*, void*) {}, nullptr);
      TANDEM_CHECK(zmq_msg_send(&message, socket, i + 1 < parts_.size() ? ZMQ_SNDMORE : 0) >= 0);
    }
  }

 private:
  std::vector<Buffer> parts_;
};

// Reads one message and returns the bytes of its parts.
size_t Receive(void* socket, zmq_msg_t* routing_id) {
  size_t bytes = 0;
  if (routing_id != nullptr) TANDEM_CHECK(zmq_msg_recv(routing_id, socket, 0) >= 0);
  zmq_msg_t part;
  do {
    zmq_msg_init(&part);
    const int size = zmq_msg_recv(&part, socket, 0);
    TANDEM_CHECK(size >= 0);
    bytes += static_cast<size_t>(size);
    const bool more = zmq_msg_more(&part) != 0;
    zmq_msg_close(&part);
    if (!more) return bytes;
  } while (true);
}

// Sends a request and waits for the reply. There are two kinds, a pull and a push.
class BareTrips {
 public:
  struct Kind {
    Parts request, reply;
  };
  BareTrips(const Kind& pull, const Kind& push, bool pin) : kinds_{pull, push} {
    for (const Kind& kind : kinds_) {
      requests_.emplace_back(kind.request);
      replies_.emplace_back(kind.reply);
    }
    char address[256];
    StartAnswering(pin, [&] {
      router_ = zmq_socket(there_.handle(), ZMQ_ROUTER);
      TANDEM_CHECK(zmq_bind(router_, "tcp://127.0.0.1:*") == 0);
      size_t size = sizeof address;
      TANDEM_CHECK(zmq_getsockopt(router_, ZMQ_LAST_ENDPOINT, address, &size) == 0);
      thread_ = std::thread([this] { Answer(); });
    });
    dealer_ = zmq_socket(here_.handle(), ZMQ_DEALER);
    TANDEM_CHECK(zmq_connect(dealer_, address) == 0);
  }
  ~BareTrips() {
    zmq_send(dealer_, "", 0, 0);  // an empty message ends the thread
    thread_.join();
    zmq_close(dealer_);
    zmq_close(router_);
  }
  double Trip(size_t kind) {
    return Microseconds([&] {
      requests_[kind].Send(dealer_);
      TANDEM_CHECK(Receive(dealer_, nullptr) == Total(kinds_[kind].reply));
    });
  }

 private:
  static size_t Total(const Parts& parts) {
    size_t total = 0;
    for (const size_t bytes : parts) total += bytes;
    return total;
  }
  void Answer() {
    for (;;) {
      zmq_msg_t routing_id;
      zmq_msg_init(&routing_id);
      const size_t bytes = Receive(router_, &routing_id);
      if (bytes == 0) {
        zmq_msg_close(&routing_id);
        return;
      }
      const size_t kind = bytes == Total(kinds_[0].request) ? 0 : 1;
      TANDEM_CHECK(zmq_msg_send(&routing_id, router_, ZMQ_SNDMORE) >= 0);
      replies_[kind].Send(router_);
    }
  }

  const std::vector<Kind> kinds_;
  std::vector<Message> requests_, replies_;
  transport::ZmqContext here_{1}, there_{1};
  void *router_, *dealer_;
  std::thread thread_;
};

// ---- the client and its shard ----

std::unique_ptr<transport::Transport> NewEndpoint(const std::string& transport, EndpointId self) {
  if (transport == "shm") return NewShmEndpoint();
  if (transport == "zmq") return NewZmqEndpoint(self);
  auto keys = transport::JobKeys::FromToken(std::string(2 * transport::JobKeys::kTokenBytes, '7'));
  TANDEM_CHECK_OK(keys.status());
  return NewZmqEndpoint(self, std::make_shared<transport::JobKeys>(*std::move(keys)),
                        transport == "zmq-encrypted");
}

job::ResolvedJob MakePlan(const PushPullBenchOptions& options) {
  return LoneShardPlan(
      absl::StrCat("table { name: \"ids\" dim: ", options.dim, " expected_rows: ", options.rows,
                   " row_dtype: ", Table::Dtype_Name(options.row_dtype), " optimizer { kind: ",
                   Optimizer::Kind_Name(options.optimizer), " learning_rate: 0.01 } }\n"),
      "kind: BSP", 1);
}

// The shard's ranges and the RowTable beside it hold the same rows at all times.
class Ours {
 public:
  Ours(const PushPullBenchOptions& options, const std::string& transport)
      : transport_(transport),
        options_(options),
        plan_(MakePlan(options)),
        optimizer_(optim::NewRowOptimizer(plan_.tables[0].optimizer).value()),
        store_(StoreOptions()) {
    StartAnswering(options.pin, [&] {
      shard_ = std::make_unique<LoneShard>(plan_, NewEndpoint(transport, EndpointId::Shard(0, 0)));
    });
    client::Client::Options client;
    client.incarnation = 2;
    client.max_in_flight = options.in_flight;
    client.core.frame_bytes = options.frame_bytes;
    client_ =
        client::Client::New(plan_, NewEndpoint(transport, EndpointId::Worker(0)), client).value();
    TANDEM_CHECK_OK(client_->SetView(shard_->view()));
  }

  absl::Status Fill() {
    constexpr int64_t kFillKeys = 32'768;
    std::vector<uint64_t> keys;
    Rows rows;
    for (int64_t row = 0; row < options_.rows; row += kFillKeys) {
      keys.clear();
      for (int64_t r = row; r < std::min(options_.rows, row + kFillKeys); ++r) {
        keys.push_back(KeyOfRow(r));
      }
      rows.Resize(keys.size() * static_cast<size_t>(options_.dim));
      // Gradients of 0 create the rows.
      TANDEM_RETURN_IF_ERROR(store_.Push(keys, rows.span(), kScale, NextStep()));
      TANDEM_RETURN_IF_ERROR(Push(keys, rows.span(), client::Client::Ids::kUnique).status());
    }
    return absl::OkStatus();
  }

  uint64_t KeyOfRow(int64_t row) const {
    return HashCombine(options_.seed, static_cast<uint64_t>(row));
  }
  client::Future Pull(absl::Span<const uint64_t> ids, absl::Span<float> rows,
                      client::Client::Ids what) {
    const client::TableKeys keys = {0, ids};
    return client_->Pull(0, step_, {&keys, 1}, {&rows, 1}, what);
  }
  client::Future Push(absl::Span<const uint64_t> ids, absl::Span<const float> gradients,
                      client::Client::Ids what) {
    const client::TableKeys keys = {0, ids};
    return client_->Push(0, step_++, kSamples, {&keys, 1}, {&gradients, 1}, what);
  }
  // Pull and push without a copy.
  client::Future Pull(absl::Span<const uint64_t> ids, client::PulledRows* rows) {
    const client::TableKeys keys = {0, ids};
    return client_->PullInPlace(0, step_, {&keys, 1}, {&rows, 1});
  }
  void Prepare(absl::Span<const uint64_t> ids, client::Client::PreparedPush* push) {
    const client::TableKeys keys = {0, ids};
    TANDEM_CHECK_OK(client_->PreparePush(0, {&keys, 1}, push));
  }
  client::Future Push(client::Client::PreparedPush* push) {
    return client_->Push(step_++, kSamples, push);
  }
  // The shard multiplies the sum once by 1 / samples.
  static constexpr uint64_t kSamples = 2;
  static constexpr float kScale = 0.5f;
  // The step of the store that the shard's ranges have at their next push.
  optim::OptimizerStep NextStep() { return {.number = 1, .stamp = ++stamp_}; }

  const std::string& transport() const { return transport_; }
  int slices() const { return plan_.job.cluster().ranges_per_shard(); }
  server::RowTable& store() { return store_; }

 private:
  server::RowTable::Options StoreOptions() const {
    server::RowTable::Options store;
    store.dim = options_.dim;
    store.salt = plan_.tables[0].salt;
    store.seed = plan_.tables[0].seed;
    store.initializer = plan_.tables[0].initializer;
    store.optimizer = optimizer_.get();
    store.types = plan_.tables[0].types;
    return store;
  }

  const std::string transport_;
  const PushPullBenchOptions& options_;
  const job::ResolvedJob plan_;
  const std::unique_ptr<optim::RowOptimizer> optimizer_;
  server::RowTable store_;
  int64_t stamp_ = 0;
  std::unique_ptr<LoneShard> shard_;
  std::unique_ptr<client::Client> client_;
  int64_t step_ = 0;
};

// ---- the comparison ----

// One kind of trip: the microseconds of all trips, and a ratio for each repetition.
struct Series {
  std::vector<double> ours, bare, store, ratios;

  void Add(double our_trip, double bare_trip, double store_time) {
    ours.push_back(our_trip);
    bare.push_back(bare_trip);
    store.push_back(store_time);
  }
  void EndRepetition(size_t trips) {
    const auto median = [&](const std::vector<double>& all) {
      return QuantileOf({all.end() - static_cast<std::ptrdiff_t>(trips), all.end()}, 0.5);
    };
    ratios.push_back(median(ours) / (median(bare) + median(store)));
  }
  void Print(const char* name, const char* how, const std::string& transport, int64_t keys,
             std::ostream& out) const {
    const double us = QuantileOf(ours, 0.5);
    out << absl::StrFormat(
        "%s %-8s %s %7d %9.1f %9.1f %9.1f %9.2f %8.3f   %6.3f (%.3f to %.3f, %d repetitions)\n",
        name, how, transport, keys, us, QuantileOf(bare, 0.5), QuantileOf(store, 0.5),
        static_cast<double>(keys) / us, QuantileOf(store, 0.5) / us, QuantileOf(ratios, 0.5),
        QuantileOf(ratios, 0), QuantileOf(ratios, 1), ratios.size());
  }
};

using AllOurs = std::vector<std::unique_ptr<Ours>>;  // one for each transport

// The mode of a request.
enum class Way {
  kInPlace,  // distinct ids; rows and gradients stay in the frames
  kCopied,   // distinct ids; rows and gradients copied to and from the caller's arrays
  kMerged,   // the same, for ids that may repeat
};

const char* Name(Way way) {
  return way == Way::kInPlace ? "in-place" : way == Way::kCopied ? "copied" : "merged";
}

class Comparison {
 public:
  Comparison(const PushPullBenchOptions& options, int64_t keys, Way way, const AllOurs& ours)
      : options_(options),
        way_(way),
        ours_(ours),
        count_(static_cast<size_t>(keys)),
        bare_(PullSizes(), PushSizes(), options.pin),
        random_(HashCombine(options.seed, static_cast<uint64_t>(keys))),
        used_(static_cast<size_t>(options.rows)),
        rows_(count_),
        // A single request takes turns with the others trip by trip. With several in flight, all
        // trips of a repetition follow each other.
        keys_(static_cast<size_t>(options.in_flight > 1 ? options.trips : 1)),
        pulled_(static_cast<size_t>(options.in_flight)),
        pulled_in_place_(pulled_.size()),
        pushes_(keys_.size()) {
    for (Rows& rows : pulled_) rows.Resize(Floats());
    wanted_.Resize(Floats());
    gradients_.Resize(Floats());
    for (float& g : gradients_.span()) g = static_cast<float>(random_.Normal());
  }

  absl::Status Run(std::ostream& out, uint64_t* checksum) {
    for (int r = -1; r < options_.repetitions; ++r) {  // the first repetition is a warm-up
      if (r <= 0) pull_ = push_ = std::vector<Series>(ours_.size());
      for (size_t t = 0; t < Trips(); t += keys_.size()) {
        TANDEM_RETURN_IF_ERROR(Pull(checksum));
        TANDEM_RETURN_IF_ERROR(Push());
      }
      for (std::vector<Series>* const all : {&pull_, &push_}) {
        for (Series& series : *all) series.EndRepetition(Trips());
      }
    }
    for (size_t i = 0; i < ours_.size(); ++i) {
      const auto keys = static_cast<int64_t>(count_);
      pull_[i].Print("pull", Name(way_), ours_[i]->transport(), keys, out);
      push_[i].Print("push", Name(way_), ours_[i]->transport(), keys, out);
    }
    return absl::OkStatus();
  }

 private:
  size_t Floats() const { return count_ * static_cast<size_t>(options_.dim); }
  size_t HeadBytes(int entries) const {
    return kFrameHeaderBytes + static_cast<size_t>(entries) * kSliceEntryBytes;
  }
  BareTrips::Kind PullSizes() const {
    return {{HeadBytes(ours_[0]->slices()), count_ * sizeof(uint64_t)},
            {HeadBytes(ours_[0]->slices()), Floats() * sizeof(float)}};
  }
  BareTrips::Kind PushSizes() const {
    return {{HeadBytes(ours_[0]->slices()), count_ * sizeof(uint64_t), Floats() * sizeof(float)},
            {HeadBytes(0)}};
  }

  size_t Trips() const { return static_cast<size_t>(options_.trips); }

  void NewKeys() {
    for (std::vector<uint64_t>& keys : keys_) {
      for (const size_t row : rows_) used_[row] = false;
      rows_.clear();
      keys.clear();
      while (keys.size() < count_) {
        const size_t row = random_.Uniform(used_.size());
        if (used_[row]) continue;
        used_[row] = true;
        rows_.push_back(row);
        keys.push_back(ours_[0]->KeyOfRow(static_cast<int64_t>(row)));
      }
    }
  }

  // Microseconds of bare trips and of the store, one value for each of keys_.
  struct Beside {
    std::vector<double> bare, store;
  };
  template <typename Work>
  Beside TimeBeside(size_t kind, Work store) {
    Beside times;
    for (const std::vector<uint64_t>& keys : keys_) {
      times.bare.push_back(bare_.Trip(kind));
      times.store.push_back(Microseconds([&] { store(keys); }));
    }
    return times;
  }

  // Issues a request for each of keys_, at most in_flight at a time, and waits for all. Returns the
  // microseconds.
  template <typename Issue>
  double TimeOurs(Issue issue, absl::Status* status) {
    return Microseconds([&] {
      std::vector<client::Future> under_way;
      for (size_t i = 0; i < keys_.size(); ++i) {
        if (i >= pulled_.size()) status->Update(under_way[i - pulled_.size()].status());
        under_way.push_back(issue(i));
      }
      for (const client::Future& future : under_way) status->Update(future.status());
    });
  }
  void Record(const Beside& beside, double all, Series* series) const {
    for (size_t i = 0; i < keys_.size(); ++i) {
      series->Add(all / static_cast<double>(keys_.size()), beside.bare[i], beside.store[i]);
    }
  }
  client::Client::Ids ids() const {
    return way_ == Way::kMerged ? client::Client::Ids::kMayRepeat : client::Client::Ids::kUnique;
  }

  // Draws new keys, then measures each side.
  absl::Status Pull(uint64_t* checksum) {
    NewKeys();
    server::RowTable& store = ours_[0]->store();
    const Beside beside =
        TimeBeside(0, [&](const auto& keys) { store.Pull(keys, wanted_.span()); });
    for (size_t i = 0; i < ours_.size(); ++i) {
      absl::Status status;
      const double all = TimeOurs(
          [&](size_t k) {
            const size_t slot = k % pulled_.size();
            return way_ == Way::kInPlace ? ours_[i]->Pull(keys_[k], &pulled_in_place_[slot])
                                         : ours_[i]->Pull(keys_[k], pulled_[slot].span(), ids());
          },
          &status);
      TANDEM_RETURN_IF_ERROR(status);
      Record(beside, all, &pull_[i]);
      if (!AsWanted((keys_.size() - 1) % pulled_.size())) {
        return absl::InternalError("bench pushpull: a pull and the store disagree");
      }
    }
    *checksum = XXH3_64bits_withSeed(wanted_.begin(), Floats() * sizeof(float), *checksum);
    return absl::OkStatus();
  }
  bool AsWanted(size_t slot) {
    if (way_ != Way::kInPlace) return pulled_[slot].span() == wanted_.span();
    const size_t dim = static_cast<size_t>(options_.dim);
    const absl::Span<const float* const> rows = pulled_in_place_[slot].at();
    bool same = rows.size() == count_;
    for (size_t k = 0; same && k < count_; ++k) {
      same = std::equal(rows[k], rows[k] + dim, wanted_.begin() + k * dim);
    }
    pulled_in_place_[slot].Clear();
    return same;
  }

  absl::Status Push() {
    NewKeys();
    server::RowTable& store = ours_[0]->store();
    absl::Status pushed;
    const Beside beside = TimeBeside(1, [&](const auto& keys) {
      pushed.Update(store.Push(keys, gradients_.span(), Ours::kScale, ours_[0]->NextStep()));
    });
    TANDEM_RETURN_IF_ERROR(pushed);
    for (size_t i = 0; i < ours_.size(); ++i) {
      absl::Status status;
      const double prepared = way_ == Way::kInPlace ? PrepareAll(*ours_[i]) : 0;
      const double all = TimeOurs(
          [&](size_t k) {
            return way_ == Way::kInPlace ? ours_[i]->Push(&pushes_[k])
                                         : ours_[i]->Push(keys_[k], gradients_.span(), ids());
          },
          &status);
      TANDEM_RETURN_IF_ERROR(status);
      Record(beside, prepared + all, &push_[i]);
    }
    return absl::OkStatus();
  }
  // Returns the microseconds for preparing the pushes. Computing gradients does not count.
  double PrepareAll(Ours& ours) {
    const double time = Microseconds([&] {
      for (size_t k = 0; k < keys_.size(); ++k) ours.Prepare(keys_[k], &pushes_[k]);
    });
    const size_t dim = static_cast<size_t>(options_.dim);
    for (const client::Client::PreparedPush& push : pushes_) {
      const float* from = gradients_.begin();
      for (float* const to : push.at(0)) {
        std::copy_n(from, dim, to);
        from += dim;
      }
    }
    return time;
  }

  const PushPullBenchOptions& options_;
  const Way way_;
  const AllOurs& ours_;
  const size_t count_;
  BareTrips bare_;
  Random random_;
  std::vector<bool> used_;
  std::vector<size_t> rows_;
  std::vector<std::vector<uint64_t>> keys_;  // keys of requests that follow each other
  std::vector<Rows> pulled_;                 // one for each request in flight
  std::vector<client::PulledRows> pulled_in_place_;
  std::vector<client::Client::PreparedPush> pushes_;  // by index of keys_
  Rows wanted_, gradients_;
  std::vector<Series> pull_, push_;  // one for each transport
};

}  // namespace

absl::Status RunPushPullBench(const PushPullBenchOptions& options, std::ostream& out) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  out << "machine: " << MachineLine() << "\n"
      << absl::StrFormat(
             "pushpull: rows %d, dim %d of %s, %s, %d repetitions of %d trips, %d in flight, "
             "frames of "
             "%d bytes%s, seed %d\n",
             options.rows, options.dim, Table::Dtype_Name(options.row_dtype),
             Optimizer::Kind_Name(options.optimizer), options.repetitions, options.trips,
             options.in_flight, options.frame_bytes, options.pin ? ", answering sides pinned" : "",
             options.seed)
      << "                     keys   ours us   bare us  store us  M rows/s store/us   ours / "
         "(bare "
         "+ "
         "store)\n";
  AllOurs ours;
  for (const std::string& transport : options.transports) {
    ours.push_back(std::make_unique<Ours>(options, transport));
    TANDEM_RETURN_IF_ERROR(ours.back()->Fill());
  }
  uint64_t checksum = 0;
  for (const int64_t keys : options.keys) {
    for (const Way way : {Way::kInPlace, Way::kCopied, Way::kMerged}) {
      // With several requests in flight, writing gradients in place would overlap with trips.
      if (way == Way::kInPlace && options.in_flight > 1) continue;
      Comparison comparison(options, keys, way, ours);
      TANDEM_RETURN_IF_ERROR(comparison.Run(out, &checksum));
    }
  }
  out << absl::StrFormat("checksum %016x\n", checksum);
  return absl::OkStatus();
}

}  // namespace tandem::bench
