"""Rows of a KEY_VALUE table in a run that is killed and goes on: each step of a worker assigns
four. `store_resumed.py FOLDER`."""
import time

import numpy
import torch
from torch import nn

import tandem

EPOCHS, BATCHES = 5, 12

job = tandem.init()
torch.manual_seed(1)
rows, model = tandem.EmbeddingBagCollection(), nn.Linear(16, 1)
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
loader = tandem.DataLoader([torch.arange(8).reshape(4, 2) + i for i in range(BATCHES)])
store = tandem.Store("cache")


def rows_of(steps):
    """Keys and rows of these steps: [4 n], [4 n, 5]."""
    keys = (100000 * job.rank + 4 * numpy.asarray(steps, dtype=numpy.int64)[:, None]
            + numpy.arange(4)).reshape(-1)
    return keys, (keys[:, None] + numpy.arange(5)[None, :] / 8).astype(numpy.float32)


def check(last):
    """What this worker wrote in the steps before `last`. One step between two epochs has no
    batch."""
    keys, want = rows_of([step for step in range(last) if step % (BATCHES + 1) != BATCHES])
    found, there = store.read(keys)
    assert there.all(), f"{(~there).sum()} of {len(keys)} rows are lost"
    assert (found == want).all()
    return len(keys)


begun = False
for epoch in job.epochs():
    for ids in loader:
        if not begun:
            print(f"began at step {job.step}, {check(job.step)} rows were there", flush=True)
            begun = True
        store.assign(*rows_of([job.step]))
        optimizer.zero_grad()
        model(rows(ids).values()).square().mean().backward()
        optimizer.step()
        time.sleep(.01)
    check(job.step + 1)
print("all rows are there")
