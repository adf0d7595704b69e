"""What a long job takes of the process. `steady.py memory STEPS`: steps with batches of random
jagged sizes; from a tenth of them on memory grows by less than 5 MB. `steady.py thread`: another
thread of worker 0 runs at 90 % of its free speed or more while step() waits for a slow worker 1, on
a busy machine, too. By hand:

    build/bin/tandem run tests/testdata/program.textproto --python tests/python/steady.py \\
      --set train.epochs=1 --out out/steady -- thread
"""
import sys
import threading
import time

import numpy
import torch
from torch import nn

import tandem

job = tandem.init()
random = numpy.random.default_rng(3 + job.rank)


def resident():
    """Bytes."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * 4096


def jagged(samples):
    lengths = random.integers(0, 3, samples)
    ids = torch.from_numpy(random.integers(0, 500, int(lengths.sum())))
    return ids, torch.from_numpy(numpy.concatenate([[0], numpy.cumsum(lengths)]))


def batches(steps):
    for _ in range(steps):
        samples = int(random.integers(1, 65))
        yield {"city": jagged(samples), "offer": jagged(samples)}, torch.ones(samples)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.layers = tandem.EmbeddingBagCollection(), nn.Linear(16, 1)

    def forward(self, ids):
        return self.layers(self.rows(ids).values()).squeeze(1)


def train(steps, after_step):
    model = Model()
    optimizer = tandem.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=.001), model)
    loader = tandem.DataLoader(batches(steps), features=0)
    for _ in job.epochs():
        for step, (ids, label) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(ids), label)
            loss.backward()
            optimizer.step(loss=loss)
            after_step(step)


def memory(steps):
    seen = {}

    def look(step):
        if step in (steps // 10, steps - 1):
            seen[step] = resident()
    train(steps, look)
    grown = seen[steps - 1] - seen[steps // 10]
    print(f"memory has grown by {grown / 1e6:.2f} MB in {steps - steps // 10} steps")
    assert grown < 5e6, grown


class Counter(threading.Thread):
    """Counts. Where it does not it waits for the interpreter, or for a processor, which is not for
    want of ours: the kernel knows which."""

    def __init__(self):
        super().__init__(daemon=True)
        self.count = 0
        self.start()

    def run(self):
        while True:
            self.count += 1

    def _ran(self):
        """Seconds on a processor or in the queue for one."""
        with open(f"/proc/self/task/{self.native_id}/schedstat", encoding="utf-8") as file:
            return sum(int(ns) for ns in file.read().split()[:2]) / 1e9

    def during(self, wait):
        """The share of the time in which nothing but processors held it up, and seconds."""
        ran, begun = self._ran(), time.monotonic()
        wait()
        took = time.monotonic() - begun
        return (self._ran() - ran) / took, took


def thread():
    counter = Counter() if job.rank == 0 else None
    shares = []

    def slow(_):
        if job.rank == 1:
            time.sleep(1)
    step = tandem.DistributedOptimizer.step

    def counted(*arguments, **named):
        if counter is None:
            return step(*arguments, **named)
        share, took = counter.during(lambda: step(*arguments, **named))
        if took > .5:
            shares.append(share)
        return None
    tandem.DistributedOptimizer.step = counted
    train(5, slow)
    if counter is not None:
        share, count = float(numpy.median(shares)), counter.count
        free, _ = counter.during(lambda: time.sleep(1))
        print(f"another thread runs at {share / free:.1%} of its free speed in {len(shares)} waits "
              "of step()")
        assert share >= .9 * free and counter.count > count, (shares, free)


if sys.argv[1] == "memory":
    memory(int(sys.argv[2]))
else:
    thread()
