// MPI_Allreduce of floats, sum, out of place, timed as peer_timing.h says. Build with mpicxx, run
// with mpirun; collectives_vs_peers.sh does both.
#include <mpi.h>

#include <cstdio>

#include "tests/bench/peer_timing.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const tandem::PeerTiming timing(argc, argv);
  for (const size_t bytes : timing.sizes) {
    const size_t count = bytes / sizeof(float);
    std::vector<float> in(count, 1), out(count);
    const double us = timing.Microseconds(
        [&] {
          MPI_Allreduce(in.data(), out.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                        MPI_COMM_WORLD);
        },
        [](double mine) {
          double most = 0;
          MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
          return most;
        },
        [] { MPI_Barrier(MPI_COMM_WORLD); });
    if (rank == 0) std::printf("mpi %zu %.4f\n", bytes, us);
  }
  return MPI_Finalize();
}
