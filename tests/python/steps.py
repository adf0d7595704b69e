"""What a script may do with the gradients of a step: accumulate several batches, shorten, scale,
and compile the module. The reference is plain PyTorch in one process, with the rows of a step
merged.
`steps.py train WAY` is a worker, `steps.py compare OUT WORKERS WAY` the reference.

WAY: accumulate, clip, scaler, compile, or several of them joined by "+"; "job": the optimizer is
the job's."""
import sys

import numpy
import torch
from torch import nn

import tandem

DIM, ITEMS, EPOCHS, TOGETHER, NORM = 4, 30, 2, 3, .02
SIZES, BATCHES = (12, 5), (20, 10)   # samples of a batch, and batches of an epoch, by rank
# Steps of a rank, counted from 0, whose gradient overflows: in rows, in the dense part, in both.
OVERFLOWS = {0: {4: "both", 9: "rows"}, 1: {2: "rows", 3: "dense", 4: "both"}}


def batches(rank):
    random = numpy.random.default_rng(17 + rank)
    size = SIZES[rank]
    for _ in range(BATCHES[rank]):
        lengths = random.integers(0, 4, size)
        ids = {"a": random.integers(0, ITEMS, size), "b": random.integers(0, ITEMS, size),
               "t": (random.integers(0, ITEMS, lengths.sum()),
                     numpy.concatenate([[0], lengths.cumsum()[:-1]])),
               "u": random.integers(0, ITEMS, size)}
        dense = random.normal(size=(size, 3)).astype(numpy.float32)
        label = (random.random(size) < .5).astype(numpy.float32)
        yield torch.from_numpy(dense), ids, torch.from_numpy(label)


class Layers(nn.Module):
    """The dense part: of the numbers, the pooled rows and the rows of tokens by sample."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(3 + 4 * DIM, 7), nn.Linear(7, 1)

    def forward(self, dense, pooled, tokens):
        x = torch.cat([dense, pooled, tokens], 1)
        return self.last(torch.tanh(self.first(x))).squeeze(1)


def by_sample(rows, bounds):
    sample = torch.repeat_interleave(torch.arange(len(bounds) - 1), bounds.diff())
    return torch.zeros(len(bounds) - 1, DIM).index_add(0, sample, torch.tanh(3 * rows))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.tokens = tandem.EmbeddingBagCollection(["items"]), \
            tandem.EmbeddingCollection(["tokens"])
        self.layers = Layers()
        self.overflows = False   # the gradient of rows

    def forward(self, dense, ids):
        tokens = self.tokens(ids)
        if self.overflows:
            tokens["u"].values().register_hook(lambda gradient: gradient + float("inf"))
        return self.layers(dense, self.items(ids).values(), torch.cat(
            [by_sample(tokens[name].values(), tokens[name].offsets()) for name in ("t", "u")], 1))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.tokens = nn.Embedding(ITEMS, DIM), nn.Embedding(ITEMS, DIM)
        for table in self.items, self.tokens:
            table.weight.data.fill_(.1)   # as the job's initializer
        self.layers = Layers()

    def forward(self, dense, ids):
        size = len(dense)
        values, offsets = ids["t"]
        bounds = torch.from_numpy(numpy.append(offsets, len(values)))
        a, b, u = (self.items(torch.from_numpy(ids["a"])), self.items(torch.from_numpy(ids["b"])),
                   self.tokens(torch.from_numpy(ids["u"])))
        return self.layers(dense, torch.cat([a, b], 1), torch.cat(
            [by_sample(self.tokens(torch.from_numpy(values)), bounds),
             by_sample(u, torch.arange(size + 1))], 1))


def train(way):
    job = tandem.init()
    model = Model()
    compute = torch.compile(model, backend="aot_eager") if "compile" in way else model
    options = {"clip_norm": NORM} if "clip" in way else {}
    if "job" in way:
        optimizer = tandem.DistributedOptimizer(model, **options)
    else:
        optimizer = tandem.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=.01), model,
                                                **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10) if "scaler" in way else None
    together = TOGETHER if "accumulate" in way else 1
    loader = tandem.DataLoader(list(batches(job.rank)), features=1, accumulate=together)
    overflows, loss_of, steps = OVERFLOWS[job.rank], nn.BCEWithLogitsLoss(), 0
    if scaler is not None:
        job.keep(scaler=scaler)
    for _ in job.epochs():
        for i, (dense, ids, label) in enumerate(loader):
            kind = overflows.get(steps) if scaler is not None else None
            model.overflows = kind in ("rows", "both")
            loss = loss_of(compute(dense, ids), label) / together
            (loss if scaler is None else scaler.scale(loss)).backward()
            if kind in ("dense", "both"):
                model.layers.last.weight.grad[0, 2] = float("inf")
            ends = (i + 1) % together == 0 or i + 1 == len(loader)
            assert loader.step_ends == ends
            if not ends:
                try:
                    optimizer.step()
                except tandem.Error as error:
                    assert f"after batch {i % together + 1} of " in str(error), error
                    continue
                raise AssertionError("a step before its last batch")
            if scaler is None:
                optimizer.step(loss=loss)
            else:
                if steps % 2 == 1:   # both ways are usual
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            steps += 1
    assert steps == EPOCHS * -(-BATCHES[job.rank] // together), steps
    if scaler is not None:
        assert scaler.get_scale() == 2.0 ** (10 - len(overflows)), scaler.get_scale()


def gradient_of(model, batch, together, clip):
    """(samples, gradients) of a worker's step in plain PyTorch."""
    model.zero_grad()
    for dense, ids, label in batch:
        (nn.BCEWithLogitsLoss()(model(dense, ids), label) / together).backward()
    parameters = list(model.parameters())
    norm = nn.utils.clip_grad_norm_(parameters, NORM) if clip else 0
    return sum(len(b[2]) for b in batch), [p.grad.clone() for p in parameters], float(norm) > NORM


def compare(out, workers, way):
    model, clipped, skipped, moments = Plain(), 0, 0, []
    dense = [p for p in model.layers.parameters()]
    rows = [model.items.weight, model.tokens.weight]
    optimizer = torch.optim.SGD(rows, lr=1)
    of_dense = torch.optim.SGD(dense, lr=.1) if "job" in way else torch.optim.Adam(dense, lr=.01)
    together = TOGETHER if "accumulate" in way else 1
    of_epoch = [[list(batches(rank))[begin:begin + together]
                 for begin in range(0, BATCHES[rank], together)] for rank in range(workers)]
    count = [0] * workers
    for _ in range(EPOCHS):
        for step in range(max(map(len, of_epoch))):
            parts = []
            for rank in range(workers):
                if step >= len(of_epoch[rank]):
                    continue
                count[rank] += 1
                if "scaler" in way and count[rank] - 1 in OVERFLOWS[rank]:
                    skipped += 1
                    continue
                parts.append(gradient_of(model, of_epoch[rank][step], together, "clip" in way))
                clipped += parts[-1][2]
            if not parts:
                continue
            samples = sum(part[0] for part in parts)
            moments.append(samples)
            for place, p in enumerate(model.parameters()):
                p.grad = sum(part[0] * part[1][place] for part in parts) / samples
            optimizer.step()
            of_dense.step()
    saved = tandem.load(out + "/model")
    state = saved.state_dict()
    pairs = [(p, state["layers." + name]) for name, p in model.layers.named_parameters()]
    for table, weight in (("items", rows[0]), ("tokens", rows[1])):
        keys = saved.tables[table].keys.astype(numpy.int64)
        assert len(keys) > 20, keys
        pairs.append((weight[keys], torch.from_numpy(numpy.array(saved.tables[table].weights))))
    worst = max(float((a.detach() - b).abs().max() / a.detach().abs().max()) for a, b in pairs)
    moved = float((rows[0].detach() - .1).abs().max())
    print(f"relative difference {worst:.1e}, rows moved by {moved:.3f}, {sum(moments)} samples, "
          f"{skipped} skipped, {clipped} clipped")
    assert ("clip" in way) == (clipped > 10)
    sys.exit(0 if worst < 2e-6 and moved > .005 else 1)


if sys.argv[1] == "train":
    train(sys.argv[2])
else:
    compare(sys.argv[2], int(sys.argv[3]), sys.argv[4])
