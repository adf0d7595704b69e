"""DLRM in PyTorch: what the same machine does without a parameter server.

Shape: 13 numbers, 26 tables x 100,000 rows x 16 (--rows), bottom 512-256-64-16, top 512-256-1, batch 2048 a
process, Zipf(1.05) ids made before the clock starts.

  --mode single   one process, --threads threads, nn.EmbeddingBag with sparse gradients;
                  --device cuda: model, tables and prepared batches on the GPU;
                  --compile: by torch.compile, and the line of JSON has the count of graph breaks
  --mode ddp_mlp  --processes processes with one thread each, DistributedDataParallel over --backend (gloo,
                  or tandem) on the two MLPs alone: no embeddings, no interaction (the ceiling of a
                  synchronous dense part)
  --mode probe    speed of a matrix product, to find out what the BLAS in use is worth

Prints one JSON line for each repetition: {"name", "repetition", "samples_per_second"}.
"""

import argparse
import functools
import json
import os
import tempfile
import time

import torch
from torch import nn

NUMBERS, TABLES, ROWS, DIM = 13, 26, 100_000, 16
BOTTOM, TOP = [512, 256, 64, 16], [512, 256, 1]
PAIRS = (TABLES + 1) * TABLES // 2
PREPARED_BATCHES = 16


def mlp(width, widths, relu_last):
    layers = []
    for i, out in enumerate(widths):
        layers.append(nn.Linear(width, out))
        if i + 1 < len(widths) or relu_last:
            layers.append(nn.ReLU(inplace=True))
        width = out
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    def __init__(self, rows=ROWS):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True) for _ in range(TABLES))
        self.bottom = mlp(NUMBERS, BOTTOM, relu_last=True)
        self.top = mlp(DIM + PAIRS, TOP, relu_last=False)
        lower = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        self.register_buffer("rows", lower[0])
        self.register_buffer("columns", lower[1])

    def forward(self, numbers, ids, offsets):
        bottom = self.bottom(numbers)
        cells = [table(ids[t], offsets) for t, table in enumerate(self.tables)]
        vectors = torch.stack([bottom] + cells, dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat([bottom, products[:, self.rows, self.columns]], dim=1)).squeeze(1)


class Mlps(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = mlp(NUMBERS, BOTTOM, relu_last=True)
        self.top = mlp(DIM + PAIRS, TOP, relu_last=False)

    def forward(self, numbers, pairs):
        return self.top(torch.cat([self.bottom(numbers), pairs], dim=1)).squeeze(1)


@functools.lru_cache(maxsize=1)
def zipf(rows):
    weights = torch.arange(1, rows + 1, dtype=torch.float64).pow(-1.05)
    return torch.cumsum(weights / weights.sum(), 0)


def zipf_ids(shape, generator, rows=ROWS):
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    return torch.searchsorted(zipf(rows), drawn).clamp_(max=rows - 1)


def prepare(args, rank, mlps_only):
    """Inputs of each prepared batch, and its labels."""
    generator = torch.Generator().manual_seed(args.seed + rank)
    offsets = torch.arange(args.batch)
    batches = []
    for _ in range(args.batches):
        numbers = torch.randn(args.batch, NUMBERS, generator=generator)
        labels = (torch.rand(args.batch, generator=generator) < 0.25).float()
        if mlps_only:
            inputs = (numbers, torch.randn(args.batch, PAIRS, generator=generator))
        else:
            inputs = (numbers, zipf_ids((TABLES, args.batch), generator, args.rows), offsets)
        batches.append((tuple(x.to(args.device) for x in inputs), labels.to(args.device)))
    return batches


def new_optimizer(name, parameters):
    return {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[name](parameters, lr=0.01)


def measure(args, model, batches, processes, report, parameters=None):
    """Trains and reports samples per second of all processes together. parameters: default those of the model."""
    optimizer = new_optimizer(args.optimizer, model.parameters() if parameters is None else parameters)
    loss_of = nn.BCEWithLogitsLoss()

    def train(steps):
        start = time.perf_counter()
        for step in range(steps):
            inputs, labels = batches[step % len(batches)]
            optimizer.zero_grad(set_to_none=True)
            loss_of(model(*inputs), labels).backward()
            optimizer.step()
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    train(args.warmup)
    for repetition in range(args.repetitions):
        seconds = train(args.steps)
        report(repetition, processes * args.steps * args.batch / seconds)


def printer(name, **more):
    def report(repetition, rate):
        print(json.dumps({"name": name, "repetition": repetition,
                          "samples_per_second": round(rate, 1), **more}), flush=True)
    return report


def run_single(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    where = "cuda" if args.device == "cuda" else f"{args.threads}_threads"
    model, batches = Dlrm(args.rows).to(args.device), prepare(args, 0, mlps_only=False)
    more = {}
    if args.compile:
        explained = torch._dynamo.explain(model)(*batches[0][0])  # pylint: disable=protected-access
        more = {"graph_breaks": explained.graph_break_count}
        torch._dynamo.reset()  # pylint: disable=protected-access
        model = torch.compile(model)
    measure(args, model, batches, 1, printer(f"torch_single_{where}_{args.optimizer}", **more))


def run_ddp_rank(rank, args, rendezvous):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.backend == "tandem":
        import tandem.distributed  # pylint: disable=import-outside-toplevel,unused-import
    torch.distributed.init_process_group(
        args.backend, init_method=f"file://{rendezvous}", rank=rank, world_size=args.processes)
    model = nn.parallel.DistributedDataParallel(Mlps())
    over = "" if args.backend == "gloo" else f"_{args.backend}"
    name = f"torch_ddp_{args.processes}_mlps_only_{args.optimizer}{over}"
    report = printer(name) if rank == 0 else lambda repetition, rate: None
    measure(args, model, prepare(args, rank, mlps_only=True), args.processes, report)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_ddp(args):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_ddp_rank, (args, os.path.join(folder, "rendezvous")),
                                    nprocs=args.processes)


def run_probe(_):
    torch.set_num_threads(1)
    a, b = torch.randn(1024, 512), torch.randn(512, 512)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    print(f"{2 * 1024 * 512 * 512 / best / 1e9:.1f}")


def main():
    modes = {"single": run_single, "ddp_mlp": run_ddp, "probe": run_probe}
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=modes, default="single")
    parser.add_argument("--backend", choices=["gloo", "tandem"], default="gloo")
    parser.add_argument("--optimizer", choices=["sgd", "adagrad"], default="adagrad")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of --mode single")
    parser.add_argument("--compile", action="store_true", help="of --mode single")
    parser.add_argument("--rows", type=int, default=ROWS, help="of a table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--batches", type=int, default=PREPARED_BATCHES, help="prepared, taken round and round")
    parser.add_argument("--steps", type=int, default=100, help="of each repetition")
    parser.add_argument("--warmup", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    modes[args.mode](args)


if __name__ == "__main__":
    main()
