#!/usr/bin/env python3
"""DLRM of configs/dlrm_bench.textproto: Tandem beside TorchRec on the CPU and beside PyTorch 2, in turns.

    $(tests/python/torch_environment.sh peers) tests/bench/peers/dlrm.py [--only WORD] [--rounds N] [--steps N]
        [--rows ROWS_IN_ALL] [--build DIR] [--tiny]

13 numbers, 26 tables with --rows rows in all x 16, bottom 512-256-64-16, top 512-256-1, one id a field, Zipf(1.05), Adagrad
(.01) for rows and layers, batch 2048 a process, float32, two cores. --only: sides whose names contain WORD.

    tandem_bsp       `tandem run`, 2 workers and 2 servers, compiled model, tables and dense layers in step
    tandem_hybrid    the same, asynchronous tables, rows of the next step prefetched
    tandem_torchrec  torchrec's DLRM through tandem.torchrec.shard, 2 workers and 2 servers, in step
    torch_eager      PyTorch, one process, two threads, nn.EmbeddingBag(sparse=True)
    torch_compile    the same through torch.compile
    torchrec_1       torchrec's DLRM in DistributedModelParallel over gloo, one process, two threads
    torchrec_2       two processes, one thread each, gloo

Figures: samples per second of all processes together, and peak memory (PSS of all processes, sampled once a second).

Better in the peers: TorchRec is made for GPUs, with fused kernels of FBGEMM, and is proven there; the CPU over gloo is not
its home. Its tables take 2 x 16 floats a row (values and Adagrad), without keys and index. PyTorch needs one process, no job
and no servers.

Differences: The batches of the peers (steps x 2048 samples a process, all different) are in memory before the clock starts,
after ten steps to warm up. tandem_bsp and tandem_hybrid parse and hash a text file with the same ids during the run, and their
first steps count. Their rows exist from the first update of an id: their memory has fewer rows than the tables of the peers,
and each new row costs an insertion. tandem_torchrec has all rows from the start, its batches are prepared, and its clock is
that of the peers. tandem_bsp and tandem_hybrid compute with the LibTorch and OpenBLAS of the build, the others with the MKL of
PyTorch's wheel, whose best setting a probe finds. A step of torch_* and torchrec_1 has 2048 samples, a step of the others
2 x 2048.
TorchRec's tables are whole on one process or the other (table-wise, kernel FUSED), because its planner divides rows among GPUs
only. A probe takes the faster one of the plain loop and TrainPipelineSparseDist for torchrec_2. TrainPipelineSemiSync, whose
lookups are one batch late, needs CUDA streams.
"""
# pylint: disable=import-outside-toplevel  # after the check that the packages are there
import itertools
import os
import pathlib
import sys
import tempfile
import time

import common
from common import call, last_json

KEYS = [f"C{i}" for i in range(1, 27)]
BOTTOM, TOP, DIM, NUMBERS = [512, 256, 64, 16], [512, 256, 1], 16, 13


def batch_flags(flags):
    """The flags of dlrm_torch.prepare and measure."""
    flags.batches, flags.optimizer, flags.device, flags.repetitions, flags.seed = flags.steps, "adagrad", "cpu", 1, 1
    return flags


def torchrec_batches(flags, rank):
    import torch
    from dlrm_torch import prepare
    from torchrec import KeyedJaggedTensor
    ones = torch.ones(len(KEYS) * flags.batch, dtype=torch.int32)
    return [((numbers, KeyedJaggedTensor(KEYS, ids.reshape(-1), lengths=ones)), labels)
            for (numbers, ids, _), labels in prepare(batch_flags(flags), rank, mlps_only=False)]


def torchrec_dlrm(rows):
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.models.dlrm import DLRM
    tables = [EmbeddingBagConfig(name="t_" + key, embedding_dim=DIM, num_embeddings=rows, feature_names=[key])
              for key in KEYS]
    return DLRM(EmbeddingBagCollection(tables, device=torch.device("meta")), NUMBERS, BOTTOM, TOP)


# ---- workers: processes of this script ----


def torchrec_rank(flags):
    """One process of DistributedModelParallel."""
    import torch
    from dlrm_torch import measure, printer
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.models.dlrm import DLRMTrain
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.optimizers import in_backward_optimizer_filter
    torch.set_num_threads(flags.threads)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo", init_method="file://" + flags.meet, rank=flags.rank,
                                         world_size=flags.processes)
    model = torchrec_dlrm(flags.rows)
    apply_optimizer_in_backward(torch.optim.Adagrad, model.sparse_arch.parameters(), {"lr": .01, "eps": 1e-10})
    if flags.pipeline:
        model = DLRMTrain(model)
    sharder = EmbeddingBagCollectionSharder()
    only = {"t_" + key: ParameterConstraints(sharding_types=["table_wise"]) for key in KEYS}
    planner = EmbeddingShardingPlanner(constraints=only, topology=Topology(
        world_size=flags.processes, local_world_size=flags.processes, compute_device="cpu"))
    plan = planner.collective_plan(model, [sharder], torch.distributed.GroupMember.WORLD)
    model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=[sharder])
    dense = [parameter for _, parameter in in_backward_optimizer_filter(model.named_parameters())]
    say = printer("torchrec") if flags.rank == 0 else lambda *_: None
    batches = torchrec_batches(flags, flags.rank)
    if flags.pipeline:
        pipelined(flags, model, dense, batches, say)
    else:
        measure(flags, lambda *inputs: model(*inputs).squeeze(1), batches, flags.processes, say, dense)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def pipelined(flags, model, parameters, batches, report):
    """As dlrm_torch.measure, with torchrec's own loop."""
    import torch
    from dlrm_torch import new_optimizer
    from torchrec.datasets.utils import Batch
    from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
    pipeline = TrainPipelineSparseDist(model, new_optimizer("adagrad", parameters), torch.device("cpu"))
    ahead = itertools.cycle([Batch(numbers, ids, labels) for (numbers, ids), labels in batches])

    def train(steps):
        began = time.perf_counter()
        for _ in range(steps):
            pipeline.progress(ahead)
        return time.perf_counter() - began

    train(flags.warmup)
    report(0, flags.processes * flags.steps * flags.batch / train(flags.steps))


def shard_worker(flags):
    """The same model with its tables on servers."""
    import torch
    import tandem.torchrec
    from dlrm_torch import printer
    torch.manual_seed(1)
    model = tandem.torchrec.shard(torchrec_dlrm(flags.rows), optimizer="kind: ADAGRAD learning_rate: 0.01",
                                  batch_size=flags.batch, workers=2, servers=2, out=flags.meet, set=["train.prefetch_steps=1"])
    torch.set_num_threads(1)
    job = tandem.job()
    batches = torchrec_batches(flags, job.rank)
    warm = batches[:flags.warmup]
    optimizer = tandem.DistributedOptimizer(torch.optim.Adagrad(model.parameters(), lr=.01), model)
    loss_of = torch.nn.BCEWithLogitsLoss()
    loader = tandem.DataLoader([(*inputs, labels) for inputs, labels in warm + batches], features=1)
    for _ in job.epochs():
        for number, (numbers, ids, labels) in enumerate(loader):
            if number == len(warm):
                began = time.perf_counter()
            optimizer.zero_grad()
            loss_of(model(numbers, ids).squeeze(1), labels).backward()
            optimizer.step()
        rate = 2 * len(batches) * flags.batch / (time.perf_counter() - began)
    if job.rank == 0:
        with open(flags.meet + ".rate", "w", encoding="utf-8") as file:
            sys.stdout = file
            printer("shard")(0, rate)


WORKERS = {"torchrec": torchrec_rank, "shard": shard_worker}


# ---- sides ----


class Bench:
    def __init__(self, flags, folder):
        self.flags, self.folder, self.blas = flags, folder, {} if flags.tiny else common.best_blas()
        self.breaks, self.pipeline = None, 0

    def sides(self):
        made = {"tandem_bsp": lambda: self.compiled(), "tandem_torchrec": self.sharded,
                "tandem_hybrid": lambda: self.compiled("--set", "policy.kind=ASP", "--set", "train.prefetch_steps=1"),
                "torch_eager": self.torch, "torch_compile": lambda: self.torch("--compile"),
                "torchrec_1": lambda: self.torchrec(1), "torchrec_2": lambda: self.torchrec(2, self.pipeline)}
        return {name: side for name, side in made.items() if self.flags.only in name}

    def own(self, worker, **more):
        f = self.flags
        words = {"worker": worker, "rows": f.rows, "steps": f.steps, "batch": f.batch, "warmup": f.warmup, **more}
        return [sys.executable, os.path.abspath(__file__), *[x for k, v in words.items() for x in ("--" + k, v)]]

    def figures(self, ran, rate):
        return {"samples/s": rate, "GB": ran.peak / 1e9}

    def data(self):
        """The ids that the peers draw, as a file."""
        file = pathlib.Path(self.folder, f"{self.flags.rows}.tsv")
        if not file.exists():
            from dlrm_torch import prepare
            with open(file, "w", encoding="ascii") as out:
                for rank in range(2):
                    for (numbers, ids, _), labels in prepare(batch_flags(self.flags), rank, mlps_only=False):
                        for of_row in zip(labels.int().tolist(), (100 * numbers.abs()).int().tolist(), ids.t().tolist()):
                            cells = [of_row[0], *of_row[1], *(f"{x:08x}" for x in of_row[2])]
                            out.write("\t".join(map(str, cells)) + "\n")
        return file

    def compiled(self, *more):
        f = self.flags
        summary, ran = common.run_job(f, self.folder, "configs/dlrm_bench.textproto", "--set", f'data.train=["{self.data()}"]',
                                      "--set", f"table[0].expected_rows={26 * f.rows}", "--set", f"train.batch_size={f.batch}",
                                      *more)
        return self.figures(ran, summary["samples_per_second"])

    def sharded(self):
        meet = tempfile.mktemp(dir=self.folder)
        ran = call(self.own("shard", meet=meet), {**self.blas, **common.python_environment(self.flags)})
        rate = last_json(pathlib.Path(meet + ".rate").read_text())["samples_per_second"]
        call(["rm", "-r", meet, meet + ".start"])
        return self.figures(ran, rate)

    def torch(self, *more):
        f = self.flags
        ran = call([sys.executable, common.HERE.parent / "dlrm_torch.py", "--rows", f.rows, "--batch", f.batch, "--steps",
                    f.steps, "--batches", f.steps, "--warmup", f.warmup, "--repetitions", 1, *more], self.blas)
        said = last_json(ran.out)
        self.breaks = said.get("graph_breaks", self.breaks)
        return self.figures(ran, said["samples_per_second"])

    def torchrec(self, processes, pipeline=0):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [" ".join(map(str, self.own("torchrec", rank=r, processes=processes, threads=2 // processes,
                                                pipeline=pipeline, meet=folder + "/meet"))) for r in range(processes)]
            # One shell, so that the memory of all is that of one tree.
            words = [f"{rank} & p{i}=$!" for i, rank in enumerate(ranks)] + [f"wait $p{i} || exit 1" for i in range(processes)]
            ran = call(["bash", "-c", "; ".join(words)], self.blas)
        return self.figures(ran, last_json(ran.out)["samples_per_second"])

    def probe(self):
        """The faster loop of torchrec_2."""
        if self.flags.only in "torchrec_2":
            speeds = [self.torchrec(2, pipeline)["samples/s"] for pipeline in (0, 1)]
            self.pipeline = int(speeds[1] > speeds[0])
            print(f"TorchRec, two processes: {speeds[0]:,.0f} samples/s with the plain loop, {speeds[1]:,.0f} with "
                  "TrainPipelineSparseDist; the faster one from now on", flush=True)


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--steps", type=int, default=60, help="of a run, on each process")
    parser.add_argument("--rows", type=int, default=2_600_000, help="of all tables")
    parser.add_argument("--only", default="")
    for hidden, kind, default in (("worker", str, None), ("batch", int, 2048), ("warmup", int, 10), ("rank", int, 0),
                                  ("meet", str, None), ("processes", int, 1), ("threads", int, 1), ("pipeline", int, 0)):
        parser.add_argument("--" + hidden, type=kind, default=default, help=common.argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        WORKERS[flags.worker](batch_flags(flags))
        return
    common.need("torch", "torchrec", "fbgemm_gpu")
    if flags.tiny:
        flags.rounds, flags.steps, flags.batch, flags.warmup, flags.rows = 1, 3, 64, 1, 26_000
    common.machine()
    rows, flags.rows = flags.rows, flags.rows // 26
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(flags, folder)
        bench.probe()
        found = common.in_turns(bench.sides(), flags.rounds)
    common.report(f"DLRM, {rows:,} rows in all x 16", found, "tandem_bsp", "samples/s")
    if bench.breaks is not None:
        print(f"  torch.compile: {bench.breaks} graph breaks")


if __name__ == "__main__":
    main()
