#!/usr/bin/env python3
"""Pull and push of random rows by PyTorch RPC, beside `tandem bench pushpull`.

Two processes of one host joined by TensorPipe, which then uses shared memory. One holds a dense table
and an accumulator a row; row ids index it, so there is no hash table. A pull is index_select; a push
is row-wise Adagrad by hand, in place. The same ids serve both; they are distinct. Prints, for each
size, "pull KEYS US" and "push KEYS US": the median of all trips.
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing

LEARNING_RATE, EPSILON = 0.01, 1e-8
state = {}  # of the process that holds the table


def make_table(rows, dim, threads):
    torch.set_num_threads(threads)
    state["table"] = torch.empty(rows, dim).uniform_(-0.25, 0.25)
    state["sums"] = torch.zeros(rows)


def pull(ids):
    return state["table"].index_select(0, ids)


def push(ids, gradients):
    # The ids are distinct, so gather, compute and put back: several times faster than index_add_.
    table, sums = state["table"], state["sums"]
    sum_ = sums.index_select(0, ids).add_(gradients.square().mean(1))
    sums[ids] = sum_
    rows = table.index_select(0, ids)
    table[ids] = rows.addcdiv_(gradients, sum_.sqrt_().add_(EPSILON).unsqueeze_(1), value=-LEARNING_RATE)


def options():
    return rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=60)


def serve(port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, USE_LIBUV="0")
    rpc.init_rpc("server", rank=1, world_size=2, rpc_backend_options=options())
    rpc.shutdown()


def measure(keys, flags, kind):
    """Microseconds of each trip but those that warm up."""
    generator = torch.Generator().manual_seed(keys)
    gradients = torch.randn(keys, flags.dim, generator=generator)
    trips = []
    for trip in range(flags.warmup + flags.trips):
        ids = torch.randperm(flags.rows, generator=generator)[:keys].contiguous()
        start = time.perf_counter()
        if kind == "pull":
            rows = rpc.rpc_sync("server", pull, args=(ids,))
            assert rows.shape == (keys, flags.dim)
        else:
            rpc.rpc_sync("server", push, args=(ids, gradients))
        trips.append((time.perf_counter() - start) * 1e6)
    return trips[flags.warmup:]


def check(flags):
    """That pushes are applied, and pulls read them."""
    ids = torch.arange(min(10, flags.rows))
    before = rpc.rpc_sync("server", pull, args=(ids,))
    rpc.rpc_sync("server", push, args=(ids, torch.ones(len(ids), flags.dim)))
    after = rpc.rpc_sync("server", pull, args=(ids,))
    assert torch.allclose(after, before - LEARNING_RATE, atol=1e-6), (before, after)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--trips", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--port", default="29577")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(flags.port,))
    server.start()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=flags.port, USE_LIBUV="0")
    rpc.init_rpc("worker", rank=0, world_size=2, rpc_backend_options=options())
    rpc.rpc_sync("server", make_table, args=(flags.rows, flags.dim, flags.threads))
    check(flags)
    for keys in flags.keys:
        for kind in ("pull", "push"):
            print(kind, keys, f"{statistics.median(measure(keys, flags, kind)):.1f}", flush=True)
    rpc.shutdown()
    server.join()


if __name__ == "__main__":
    main()
