#!/usr/bin/env python3
"""Dense layers and allreduce: Tandem beside DistributedDataParallel of PyTorch 2 over gloo, two processes, in turns.

    $(tests/python/torch_environment.sh peers) tests/bench/peers/ddp.py [--rounds N] [--steps N] [--build DIR] [--tiny]

Layers: the two MLPs of the DLRM of configs/dlrm_bench.textproto in DistributedDataParallel, one thread a process, batch 2048
a process, Adagrad (dlrm_torch.py --mode ddp_mlp). No embeddings, no interaction.

    ddp_gloo      over gloo
    ddp_tandem    the same script with init_process_group("tandem"), which uses shared memory
    tandem_bsp    `tandem run`, the whole DLRM with its embeddings on two servers: more work on the same two cores

Allreduce: sums of float32 in place, 4 KB to 64 MB. Figures are microseconds for one operation on the slower rank.

    gloo          torch.distributed.all_reduce over gloo, called from Python
    tandem        the same call over tandem, shared memory
    tandem_tcp    the same call over tandem, TANDEM_GROUP_LINK=tcp
    bench_shm     `tandem bench allreduce`, without Python
    bench_tcp     the same over TCP

Better in the peer: Gloo needs nothing but PyTorch, works on every system of PyTorch, and is proven by years of
production.

Differences: Gloo uses TCP over the loopback device even between processes of one host. Tandem uses shared memory there, and
only tandem_tcp and bench_tcp use the same transport as gloo. The bench_ lines have no cost of the interpreter: compare them
with collectives_vs_peers.sh, which calls gloo from C++. ddp_gloo and ddp_tandem run PyTorch's wheel with MKL; tandem_bsp runs the
LibTorch and OpenBLAS of the build, and reads a text file.
"""
# pylint: disable=import-outside-toplevel  # after the check that the packages are there
import json
import os
import pathlib
import sys
import tempfile
import time

import common
import dlrm
from common import call, last_json


def allreduce_rank(rank, flags, meet):
    """Prints microseconds of an operation by its bytes, as peer_timing.h: back to back, as many as fill the time."""
    import torch
    from torch import distributed
    if flags.worker == "tandem":
        import tandem.distributed  # pylint: disable=unused-import
    torch.set_num_threads(1)
    distributed.init_process_group(flags.worker, init_method="file://" + meet, rank=rank, world_size=2)
    times = {}
    for size in map(int, flags.sizes.split(",")):
        values = torch.ones(size // 4)

        def mean(operations, values=values):
            distributed.barrier()
            began = time.perf_counter()
            for _ in range(operations):
                distributed.all_reduce(values)
            seconds = torch.tensor([(time.perf_counter() - began) / operations], dtype=torch.float64)
            distributed.all_reduce(seconds, op=distributed.ReduceOp.MAX)
            values.fill_(1)  # sums grow
            return float(seconds)

        count = max(3, min(10_000, int(flags.seconds / max(mean(3), 1e-9))))
        times[size] = 1e6 * sorted(mean(count) for _ in range(3))[1]
        values.fill_(rank + 1)
        distributed.all_reduce(values)
        assert values[0] == values[-1] == 3, f"{size} bytes: sum {values[0]}, expected 3"
    if rank == 0:
        print(json.dumps(times))
    distributed.destroy_process_group()


def of_torch(flags, backend, **more):
    words = [os.path.abspath(__file__), "--worker", backend, "--sizes", flags.sizes, "--seconds", flags.seconds]
    times = last_json(call([sys.executable, *words], {**common.python_environment(flags), **more}).out)
    return {f"{int(size) >> 10} KB": us for size, us in times.items()}


def of_bench(flags, folder, link):
    lines = pathlib.Path(folder, "lines.json")
    call([flags.build / "bin" / "tandem", "bench", "allreduce", "--link", link, "--ranks", 2, "--sizes", flags.sizes,
          "--seconds", flags.seconds, "--repetitions", 3, "--json", lines])
    found = map(json.loads, lines.read_text().splitlines())
    return {f"{line['bytes'] >> 10} KB": line["mean_us"] for line in found if line["in_place"]}


def layers(flags, backend, blas):
    ran = call([sys.executable, common.HERE.parent / "dlrm_torch.py", "--mode", "ddp_mlp", "--backend", backend, "--batch",
                flags.batch, "--steps", flags.steps, "--repetitions", 1], {**common.python_environment(flags), **blas})
    return {"samples/s": last_json(ran.out)["samples_per_second"]}


def main():
    parser = common.parser(__doc__, rows=100_000, batch=2048, warmup=10, only="")
    parser.add_argument("--steps", type=int, default=60, help="of a run, on each process")
    for hidden, kind, default in (("worker", str, None), ("seconds", float, .05),
                                  ("sizes", str, ",".join(str(4096 << 2 * i) for i in range(8)))):
        parser.add_argument("--" + hidden, type=kind, default=default, help=common.argparse.SUPPRESS)
    flags = parser.parse_args()
    common.need("torch", "torchrec")  # the environment with PyTorch 2
    if flags.worker:
        import torch
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(allreduce_rank, (flags, folder + "/meet"), nprocs=2)
        return
    if flags.tiny:
        flags.rounds, flags.steps, flags.batch, flags.rows, flags.seconds, flags.sizes = 1, 3, 64, 1000, .01, "4096,65536"
    common.machine()
    with tempfile.TemporaryDirectory() as folder:
        bench = dlrm.Bench(flags, folder)
        found = common.in_turns({"ddp_gloo": lambda: layers(flags, "gloo", bench.blas),
                                 "ddp_tandem": lambda: layers(flags, "tandem", bench.blas),
                                 "tandem_bsp": lambda: {"samples/s": bench.compiled()["samples/s"]}}, flags.rounds)
        sums = common.in_turns({"gloo": lambda: of_torch(flags, "gloo"), "tandem": lambda: of_torch(flags, "tandem"),
                                "tandem_tcp": lambda: of_torch(flags, "tandem", TANDEM_GROUP_LINK="tcp"),
                                "bench_shm": lambda: of_bench(flags, folder, "shm"),
                                "bench_tcp": lambda: of_bench(flags, folder, "tcp")}, flags.rounds)
    common.report("Dense layers", found, "ddp_gloo", "samples/s")
    common.report("Allreduce, µs", {size: {
        **{name: figures[size] for name, figures in sums.items()},
        **{f"gloo / {name}": [a / b for a, b in zip(sums["gloo"][size], sums[name][size])]
           for name in ("tandem", "tandem_tcp")}} for size in sums["gloo"]})


if __name__ == "__main__":
    main()
