"""ADAM of a table beside torch.optim.SparseAdam on the same gradients, which depend on the batch
alone: rows of all frequencies, usual gradients in half of the columns and tiny ones in the others.
The rate of the table follows a schedule of the job, as ExponentialLR does. With `dense` the table
has catch_up, torch has its dense Adam without a schedule, and the gradients depend on the rows.
`sparse_adam.py MODE` is the worker, `sparse_adam.py MODE OUT` compares what the run has left."""
import sys

import numpy
import torch
from torch import nn

import tandem

DIM, ITEMS, STEPS, SAMPLES = 4, 40, 150, 8
DENSE = sys.argv[1] == "dense"
RATE, DECAY = .01, 1 if DENSE else .99      # a step; of the rate


def loss_of(rows, factors):
    loss = (rows * factors).sum(1).mean()
    return loss + .3 * (rows[:, 0] - .2).square().mean() if DENSE else loss


def batches():
    random = numpy.random.default_rng(29)
    size = numpy.array([1, 1, 3e-6, 3e-8], numpy.float32)
    for _ in range(STEPS):
        ids = numpy.minimum(random.geometric(.12, (SAMPLES, 1)) - 1, ITEMS - 1)
        factors = random.normal(size=(SAMPLES, DIM)).astype(numpy.float32) * size
        yield torch.from_numpy(ids), torch.from_numpy(factors)


def train():
    job = tandem.init()
    layer, rows = nn.Linear(1, 1), tandem.EmbeddingBag("item", mode="sum")
    model = nn.ModuleList([layer, rows])
    optimizer = tandem.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=RATE), model)
    loader = tandem.DataLoader(list(batches()), features=0)
    for _ in job.epochs():
        for ids, factors in loader:
            rate = RATE * DECAY ** job.step
            assert abs(job.rates["item"] / rate - 1) < 1e-5, (job.step, job.rates, rate)
            loss = loss_of(rows(ids), factors) + layer(factors[:, :1]).mean()
            loss.backward()
            optimizer.step(loss=loss)
            optimizer.zero_grad()


def compare(out):
    rows = nn.Embedding(ITEMS, DIM, sparse=not DENSE)
    rows.weight.data.fill_(0)   # as the job's initializer
    kind = torch.optim.Adam if DENSE else torch.optim.SparseAdam
    optimizer = kind(list(rows.parameters()), lr=RATE)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)
    steps_of = numpy.zeros(ITEMS, int)
    for ids, factors in batches():
        optimizer.zero_grad()
        loss_of(rows(ids).squeeze(1), factors).backward()
        optimizer.step()
        schedule.step()
        steps_of[numpy.unique(ids)] += 1
    table = tandem.load(out + "/model").tables["item"]
    keys = table.keys.astype(int)
    assert sorted(keys) == sorted(numpy.flatnonzero(steps_of)), keys
    rare, frequent = int((steps_of[keys] < 5).sum()), int((steps_of[keys] > 50).sum())
    worst = float(numpy.abs(rows.weight.detach().numpy()[keys] - table.weights).max())
    tiny = float(numpy.abs(table.weights[:, 2]).max())
    print(f"{len(keys)} rows, {rare} of them rare and {frequent} frequent: "
          f"difference {worst:.1e}, moved by {numpy.abs(table.weights).max():.2f}, "
          f"with tiny gradients by {tiny:.2f}")
    sys.exit(0 if worst < 1e-6 and rare > 3 and frequent > 3 and tiny > .01 else 1)


if len(sys.argv) > 2:
    compare(sys.argv[2])
else:
    train()
