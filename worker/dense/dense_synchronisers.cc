// The table of dense synchronisers, and of the reductions that replicas use.
#include "base/check.h"
#include "worker/dense/allreduce_gradients.h"
#include "worker/dense/dense_on_servers.h"
#include "worker/dense/dense_reduction.h"
#include "worker/dense/dense_replicas.h"
#include "worker/dense/dense_synchroniser.h"
#include "worker/dense/elastic_averaging.h"
#include "worker/dense/local_sgd.h"

namespace tandem::worker {
namespace {

using MakeSynchroniser = std::unique_ptr<DenseSynchroniser> (*)(TrainerContext& context,
                                                                DenseParameters& dense);
using MakeReduction = std::unique_ptr<DenseReduction> (*)(const job::ResolvedJob& plan, int rank,
                                                          int64_t bucket_bytes,
                                                          DenseParameters& dense);
struct Row {
  Dense::Synchroniser kind;
  MakeSynchroniser synchroniser;
  MakeReduction reduction;  // for replicas; otherwise null
};

constexpr Row kSynchronisers[] = {
    {Dense::SERVERS, &DenseOnServers::New, nullptr},
    {Dense::ALLREDUCE, &DenseReplicas::New, &AllReduceGradients::New},
    {Dense::LOCAL_SGD, &DenseReplicas::NewLocal, &LocalSgd::New},
    {Dense::EASGD, &DenseReplicas::NewLocal, &ElasticAveraging::New},
};

const Row& RowOf(const job::ResolvedJob& plan) {
  for (const Row& row : kSynchronisers) {
    if (row.kind == plan.job.dense().synchroniser()) return row;
  }
  TANDEM_CHECK(false);  // jobs are checked before they run
  return kSynchronisers[0];
}

}  // namespace

std::unique_ptr<DenseSynchroniser> NewDenseSynchroniser(TrainerContext& context,
                                                        DenseParameters& dense) {
  return RowOf(context.plan).synchroniser(context, dense);
}

std::unique_ptr<DenseReduction> NewDenseReduction(const job::ResolvedJob& plan, int rank,
                                                  int64_t bucket_bytes, DenseParameters& dense) {
  const MakeReduction make = RowOf(plan).reduction;
  return make == nullptr ? nullptr : make(plan, rank, bucket_bytes, dense);
}

}  // namespace tandem::worker
