// Gloo's all-reduce of floats, sum, by each of its algorithms, over TCP on loopback, timed as
// peer_timing.h says. Forks its ranks: gloo_allreduce SIZES SECONDS RANKS [ALGORITHM].
// Build with -lgloo; collectives_vs_peers.sh does.
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "tests/bench/peer_timing.h"

namespace {

using Context = std::shared_ptr<gloo::Context>;
using Run = std::function<void()>;

void AllReduce(const Context& context, gloo::AllreduceOptions::Algorithm algorithm, double* in,
               double* out) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(algorithm);
  options.setInput(in, 1);
  options.setOutput(out, 1);
  options.setReduceFunction(
      [](void* a, const void* b, const void* c, size_t n) { gloo::max<double>(a, b, c, n); });
  gloo::allreduce(options);
}

Run NewStyle(const Context& context, gloo::AllreduceOptions::Algorithm algorithm,
             std::vector<float>* in, std::vector<float>* out) {
  return [=] {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(algorithm);
    options.setInput(in->data(), in->size());
    options.setOutput(out->data(), out->size());
    options.setReduceFunction(
        [](void* a, const void* b, const void* c, size_t n) { gloo::sum<float>(a, b, c, n); });
    gloo::allreduce(options);
  };
}

template <class A>
Run OldStyle(const Context& context, std::vector<float>* data) {
  auto algorithm = std::make_shared<A>(context, std::vector<float*>{data->data()},
                                       static_cast<int>(data->size()));
  return [algorithm] { algorithm->run(); };
}

Run Make(const std::string& name, const Context& context, std::vector<float>* in,
         std::vector<float>* out) {
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  if (name == "new_ring") return NewStyle(context, Algorithm::RING, in, out);
  if (name == "new_bcube") return NewStyle(context, Algorithm::BCUBE, in, out);
  if (name == "ring") return OldStyle<gloo::AllreduceRing<float>>(context, in);
  if (name == "ring_chunked") return OldStyle<gloo::AllreduceRingChunked<float>>(context, in);
  if (name == "halving_doubling") {
    return OldStyle<gloo::AllreduceHalvingDoubling<float>>(context, in);
  }
  return OldStyle<gloo::AllreduceBcube<float>>(context, in);
}

void RunRank(int rank, int ranks, const std::string& store_folder, const tandem::PeerTiming& timing,
             const std::vector<std::string>& names) {
  gloo::rendezvous::FileStore store(store_folder);
  gloo::transport::tcp::attr where;
  where.hostname = "127.0.0.1";
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(where);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);
  const auto largest = [&](double mine) {
    double most = 0;
    AllReduce(context, gloo::AllreduceOptions::Algorithm::RING, &mine, &most);
    return most;
  };
  const auto meet = [&] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  };
  for (const std::string& name : names) {
    for (const size_t bytes : timing.sizes) {
      std::vector<float> in(bytes / sizeof(float), 0), out(in.size());
      const double us = timing.Microseconds(Make(name, context, &in, &out), largest, meet);
      if (rank == 0) std::printf("%s %zu %.4f\n", name.c_str(), bytes, us);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const tandem::PeerTiming timing(argc, argv);
  const int ranks = argc > 3 ? std::atoi(argv[3]) : 2;
  std::vector<std::string> names = {"new_ring",     "new_bcube",        "ring",
                                    "ring_chunked", "halving_doubling", "bcube"};
  if (argc > 4) names = {argv[4]};
  std::string folder = "/tmp/gloo_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  std::vector<pid_t> children;
  for (int rank = 1; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      RunRank(rank, ranks, folder, timing, names);
      _exit(0);
    }
    children.push_back(child);
  }
  RunRank(0, ranks, folder, timing, names);
  std::fflush(stdout);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  std::filesystem::remove_all(folder);
}
