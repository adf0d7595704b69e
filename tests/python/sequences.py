"""A tied table: a sequence with padding, positives, negatives, a bag, and a softmax over all items.
`sequences.py HOW FOLDER` is a worker, where HOW is what reads the table: `modules` (one of a field,
one of the table) or `collection`. It leaves its test scores in FOLDER.
`sequences.py HOW FOLDER OUT WORKERS` compares what the run has left in OUT with torch.nn.Embedding
on the joined batches."""
import sys
from typing import Dict

import numpy
import torch
from torch import nn
from torch.nn import functional

import tandem

HOW, FOLDER = sys.argv[1:3]
DIM, ITEMS, LENGTH, SAMPLES, STEPS, RATE = 4, 30, 5, 6, 20, .1


def batch(seed):
    random = numpy.random.default_rng(seed)
    draw = lambda low, *shape: torch.from_numpy(random.integers(low, ITEMS, (SAMPLES, *shape)))
    seq, bag = draw(1, LENGTH), draw(1, 3)
    seq[torch.arange(LENGTH) < draw(1, 1) % LENGTH] = 0  # from none to all but one
    bag[:, 0] = 0
    bag[0] = 0  # a sample of padding alone
    return {"seq": seq, "pos": draw(1), "neg": draw(1), "bag": bag}


def tests():
    return [batch(1000), batch(1001)]


class Modules(nn.Module):
    def __init__(self, seq=None, item=None):
        super().__init__()
        self.seq = seq or tandem.Embedding("seq", padding_idx=0)
        self.item = item or tandem.Embedding("item")  # of any field

    def forward(self, ids: Dict[str, torch.Tensor]):
        shape = ids["pos"].shape
        return self.seq(ids["seq"]), self.item(ids["pos"].view(2, -1)).view(shape[0], -1), \
            self.item(ids["neg"])


class Collection(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = tandem.EmbeddingCollection(["item"], padding_idx=0)

    def forward(self, ids: Dict[str, torch.Tensor]):
        rows = self.item(ids)
        seq = rows["seq"].values()
        return seq.view(-1, ids["seq"].shape[1], 4), rows["pos"].values(), rows["neg"].values()


class Plain(nn.Module):
    """A row of zeros for padding, as nn.Embedding has it, and no padding among all items."""

    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS, DIM, padding_idx=0)
        with torch.no_grad():
            self.item.weight[1:] = .1  # as the job's initializer

    def __call__(self):
        return self.item.weight[1:]


class Net(nn.Module):
    def __init__(self, read, items, bag):
        super().__init__()
        self.read, self.items, self.bag = read, items, bag
        torch.manual_seed(3)
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, ids: Dict[str, torch.Tensor]) -> torch.Tensor:
        seq, pos, neg = self.read(ids)
        factor = torch.arange(1, 6).unsqueeze(1).to(seq.dtype)
        state = self.layer((seq * factor).sum(1) + self.bag(ids["bag"]))
        logits = state.matmul(self.items().t())
        return torch.cat([logits, (state * (pos - neg)).sum(1, keepdim=True)], 1)


def loss_of(out, ids):
    return functional.cross_entropy(out[:, :-1], ids["pos"] - 1) - \
        functional.logsigmoid(out[:, -1]).mean()


def net():
    return Net(Modules() if HOW == "modules" else Collection(),
               tandem.Embedding("all", ids=torch.arange(1, ITEMS)),
               tandem.EmbeddingBag("bag", mode="mean", padding_idx=0))


def train():
    job = tandem.init()
    model = net()
    optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=RATE), model)
    loader = tandem.DataLoader([batch(job.world_size * step + job.rank) for step in range(STEPS)],
                               lambda b: b)
    tester = tandem.DataLoader(tests(), lambda b: b)
    for _ in job.epochs():
        for ids in loader:
            optimizer.zero_grad()
            loss = loss_of(model(ids), ids)
            loss.backward()
            optimizer.step(loss=loss)
        rows, scores = job.rows("item", torch.arange(ITEMS + 1)), []
        # Zeros for padding, which not all fields have if there are several modules.
        assert rows[0].eq(.1 if HOW == "modules" else 0).all(), rows[0]
        assert job.rows("seq", [0, 0]).eq(0).all()
        for ids in job.evaluate(tester):
            with torch.no_grad():
                assert torch.equal(model.items(), rows[1:ITEMS])  # of all workers' steps
                out = model(ids)
            job.score(out[:, -1], torch.ones(SAMPLES))
            scores.append(out)
    assert float(rows[ITEMS].sub(.1).abs().max()) < 1e-7, rows[ITEMS]
    if job.rank == 0:
        torch.save((rows, torch.cat(scores)), f"{FOLDER}/{HOW}")


def compare(out, workers):
    plain = Plain()
    model = Net(Modules(plain.item, plain.item), plain,
                lambda ids: functional.embedding_bag(ids, plain.item.weight, mode="mean",
                                                     padding_idx=0))
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=RATE)
    of_rows = torch.optim.Adagrad(plain.item.parameters(), lr=RATE)
    for step in range(STEPS):
        parts = [batch(workers * step + rank) for rank in range(workers)]
        ids = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        loss = loss_of(model(ids), ids)
        model.zero_grad()
        plain.item.zero_grad()
        loss.backward()
        optimizer.step()
        of_rows.step()
    saved = tandem.load(out + "/model")
    table = saved.tables["item"]
    assert sorted(table.keys) == list(range(1, ITEMS)), sorted(table.keys)  # no row for padding
    rows, scores = torch.load(f"{FOLDER}/{HOW}")
    assert numpy.array_equal(rows[table.keys].numpy(), table.weights)
    served = saved.serving(net)
    assert served.bag(torch.zeros(2, 3, dtype=torch.int64)).abs().max() == 0
    assert served.read({n: ids * 0 for n, ids in tests()[0].items()})[0].abs().max() == 0
    scripted = torch.jit.script(served)
    with torch.no_grad():
        worst = [float((rows[1:ITEMS] - plain.item.weight[1:]).abs().max())]
        for model_of in model, served, scripted:
            worst.append(float((torch.cat([model_of(b) for b in tests()]) - scores).abs().max()))
        moved = float((plain.item.weight[1:] - .1).abs().max())
    print(f"{HOW}, {workers} workers: differences {worst}, moved by {moved:.2f}")
    sys.exit(0 if worst[0] < 1e-5 and max(worst) < 5e-5 and moved > .1 else 1)


if len(sys.argv) > 3:
    compare(sys.argv[3], int(sys.argv[4]))
else:
    train()
