"""Two workers with batches of different sizes, one with half the data; the reference is one process
on the joined batches. `joined.py` is the worker, `joined.py apart` one that treats its parameters
as if they were not on the host, `joined.py new` one that has a new layer after a few steps,
`joined.py clip` one that shortens gradients; `joined.py OUT` and `joined.py OUT clip` compare what
the run has left."""
import os
import sys

import numpy
import torch
from torch import nn

import tandem
import tandem.optim

DIM, ITEMS, STEPS, EPOCHS = 4, 30, 50, 2
SIZES = (12, 5)            # samples of a batch, by rank
BATCHES = (STEPS, STEPS // 2)
WAY = sys.argv[1] if sys.argv[1:] in (["new"], ["apart"], ["clip"]) else None
RATE, MAX_NORM = 0.1, 0.05


def batches(rank):
    random = numpy.random.default_rng(17 + rank)
    for _ in range(BATCHES[rank]):
        ids = random.integers(0, ITEMS, (SIZES[rank], 2))
        dense = random.normal(size=(SIZES[rank], 3)).astype(numpy.float32)
        label = (random.random(SIZES[rank]) < .5).astype(numpy.float32)
        yield torch.from_numpy(dense), torch.from_numpy(ids), torch.from_numpy(label)


class Refilled:
    """The batches of a rank in the same memory, one after the other."""

    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        memory = None
        for batch in batches(self.rank):
            memory = memory or tuple(torch.empty_like(part) for part in batch)
            for to, part in zip(memory, batch):
                to.copy_(part)
            yield memory


class Model(nn.Module):
    def __init__(self, embeddings):
        super().__init__()
        torch.manual_seed(3)
        self.embeddings = embeddings
        self.layers = nn.Sequential(nn.Linear(3 + 2 * DIM, 7), nn.Tanh(), nn.Linear(7, 1))

    def forward(self, dense, ids):
        rows = self.embeddings(ids)
        rows *= 1.5
        rows[:, 0] = dense[:, 0]
        return self.layers(torch.cat([dense, rows], 1)).squeeze(1)


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.collection = tandem.EmbeddingBagCollection()

    def forward(self, ids):
        return self.collection(ids).values()


class PlainRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(ITEMS, DIM)
        self.rows.weight.data.fill_(0.1)   # as the job's initializer

    def forward(self, ids):
        return self.rows(ids).flatten(1)


def train():
    job = tandem.init()
    assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == (str(job.rank), "2")
    assert job.device() == torch.device("cpu") or torch.cuda.is_available()
    if job.rank == 1:
        torch.manual_seed(99)
    model, loss_of = Model(Rows()), nn.BCEWithLogitsLoss()
    if job.rank == 1:  # initial values are those of rank 0
        for p in model.parameters():
            p.data.fill_(5)
    if WAY == "apart":
        tandem.optim._on_host = lambda p: False
        model.to("cpu")
    if job._worker.program_optimizer:
        optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=RATE), model,
                                                max_norm=MAX_NORM if WAY == "clip" else None)
    else:
        optimizer = tandem.DistributedOptimizer(model)
        try:
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
        except tandem.Error as error:
            assert "For a schedule of torch say dense" in str(error), error
        else:
            raise AssertionError("a schedule without effect")
    loader = tandem.DataLoader(Refilled(job.rank), features=1)
    steps = 0
    for _ in job.epochs():
        for dense, ids, label in loader:
            loss = loss_of(model(dense, ids), label)
            loss.backward()
            optimizer.step(loss=loss)
            optimizer.zero_grad()  # nothing may come in between here and the next epoch
            steps += 1
            if steps == 20 and WAY == "new":
                model.layers[2] = nn.Linear(7, 1)
    assert steps == EPOCHS * BATCHES[job.rank], steps


def compare(out, clip):
    model = Model(PlainRows())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loss_of, clipped = nn.BCEWithLogitsLoss(), 0
    for step in EPOCHS * list(zip(*[list(batches(r)) + [None] * (STEPS - BATCHES[r])
                                    for r in (0, 1)])):
        joined = [torch.cat(part) for part in zip(*[b for b in step if b is not None])]
        optimizer.zero_grad()
        loss_of(model(joined[0], joined[1]), joined[2]).backward()
        if clip:
            clipped += nn.utils.clip_grad_norm_(model.layers.parameters(), MAX_NORM) > MAX_NORM
        optimizer.step()
    assert not clip or 50 < clipped, clipped
    saved = tandem.load(out + "/model")
    state = saved.state_dict()
    pairs = [(p, state[name]) for name, p in model.named_parameters() if name in state]
    assert len(pairs) == 4, list(state)
    table = saved.tables["items"]
    assert sorted(table.keys.tolist()) == list(range(ITEMS)), table.keys
    pairs.append((model.embeddings.rows.weight[table.keys.astype(numpy.int64)],
                  torch.from_numpy(numpy.array(table.weights))))
    worst = max(float((a.detach() - b).abs().max() / a.detach().abs().max()) for a, b in pairs)
    moved = float((model.embeddings.rows.weight.detach() - .1).abs().max())
    print(f"relative difference {worst:.1e}, rows moved by {moved:.2f}")
    sys.exit(0 if worst < 2e-6 and moved > .005 else 1)


if len(sys.argv) > 1 and WAY is None:
    compare(sys.argv[1], sys.argv[2:] == ["clip"])
else:
    train()
