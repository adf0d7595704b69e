# %% [markdown]
# SASRec (Kang and McAuley, ICDM 2018) on MovieLens-100K: which film does a user rate next? Put
# `u.data` of the data set, or RecBole's `ml-100k.inter`, into `$TANDEM_DATA/ml-100k`. Run it cell
# by cell in a notebook, or from the root of the tree:
#
#     PYTHONPATH=build/python python3 examples/sasrec.py                           # a worker
#     build/bin/tandem run examples/sasrec.textproto --python examples/sasrec.py   # two

# %%
import os

import numpy
import torch
from torch import nn
from torch.nn import functional

import tandem

LENGTH, DIM, OTHERS = 20, 32, 100

# %% [markdown]
# The last film of a user is for the test, and the films before it train. Items begin at 1, because
# 0 is padding.


# %%
def histories():
    """The films of each user in the order of time, and which users have rated which films, bool
    [users, films + 1]."""
    folder = os.path.join(os.environ.get("TANDEM_DATA", "."), "ml-100k")
    names = [name for name in ("u.data", "ml-100k.inter") if os.path.exists(f"{folder}/{name}")]
    if not names:
        raise SystemExit(f"no u.data or ml-100k.inter in {folder}: put it there, set TANDEM_DATA")
    ratings = numpy.loadtxt(f"{folder}/{names[0]}", dtype=numpy.int64, usecols=(0, 1, 3),
                            skiprows=int(names[0] != "u.data"))
    ratings = ratings[numpy.lexsort((ratings[:, 2], ratings[:, 0]))]  # ties as in the file
    films = numpy.split(ratings[:, 1], numpy.flatnonzero(numpy.diff(ratings[:, 0])) + 1)
    rated = numpy.zeros((len(films), ratings[:, 1].max() + 1), bool)
    for user, own in enumerate(films):
        rated[user, own] = True
    return films, rated


def padded(films):
    """The last LENGTH of these, behind zeros."""
    out = numpy.zeros(LENGTH, numpy.int64)
    out[LENGTH - len(films[-LENGTH:]):] = films[-LENGTH:]
    return out


def unrated(random, users, rated, count):
    """[users, count]: films that these users have not rated."""
    of, drawn = users[:, None], random.integers(1, rated.shape[1], (len(users), count))
    while (again := rated[of, drawn]).any():
        drawn[again] = random.integers(1, rated.shape[1], again.sum())
    return drawn


class Sequences:
    """Batches of an epoch: `seq`, the next film `pos` at each place, and one that the user has not
    rated, `neg`: int64 [users, LENGTH] each. All depends on seed and epoch. A worker has every
    world_size-th user of a batch of all workers."""

    def __init__(self, films, rated, batch, seed=0, rank=0, world_size=1):
        self.seq, self.pos = (numpy.stack([padded(own[:-1][part]) for own in films])
                              for part in (slice(None, -1), slice(1, None)))
        self.rated, self.batch, self.seed, self.epoch = rated, batch, seed, 0
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        random = numpy.random.default_rng((self.seed, self.epoch))
        order = random.permutation(len(self.seq))
        neg = unrated(random, order, self.rated, LENGTH) * (self.pos[order] > 0)
        for begin in range(0, len(order), self.batch):
            part = slice(begin + self.rank, min(begin + self.batch, len(order)), self.world_size)
            users = order[part]
            yield {name: torch.from_numpy(ids) for name, ids in
                   (("seq", self.seq[users]), ("pos", self.pos[users]), ("neg", neg[part]))}


def questions(films, rated, at_once=100):
    """Test batches: `seq`, and `candidate` [users, 1 + OTHERS], whose first one is right."""
    users = numpy.arange(len(films))
    seq = numpy.stack([padded(own[:-1]) for own in films])
    candidate = numpy.concatenate([[own[-1:] for own in films], unrated(
        numpy.random.default_rng(0), users, rated, OTHERS)], 1)
    for part in torch.from_numpy(users).split(at_once):
        yield {"seq": torch.from_numpy(seq)[part], "candidate": torch.from_numpy(candidate)[part]}


# %% [markdown]
# The module knows nothing of Tandem. `item` is `nn.Embedding(items + 1, DIM, padding_idx=0)` in a
# plain program.


# %%
class SASRec(nn.Module):
    def __init__(self, item, blocks=2, heads=1, dropout=.2):
        super().__init__()
        self.item, self.position = item, nn.Embedding(LENGTH, DIM)
        self.dropout, self.last_norm = nn.Dropout(dropout), nn.LayerNorm(DIM)
        self.blocks = nn.ModuleList(nn.ModuleDict({
            "norm": nn.LayerNorm(DIM), "attention": nn.MultiheadAttention(DIM, heads, dropout,
                                                                          batch_first=True),
            "layers_norm": nn.LayerNorm(DIM),
            "layers": nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(dropout), nn.ReLU(),
                                     nn.Linear(DIM, DIM), nn.Dropout(dropout))})
                                    for _ in range(blocks))
        for weights in self.parameters():
            if weights.dim() > 1:
                nn.init.xavier_normal_(weights)

    def states(self, seq):
        real = (seq != 0).unsqueeze(-1)
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        x = self.dropout(self.item(seq) * DIM ** .5 + self.position.weight) * real
        for block in self.blocks:
            query = block["norm"](x)
            x = query + block["attention"](query, x, x, attn_mask=later, need_weights=False)[0]
            x = block["layers_norm"](x)
            x = (x + block["layers"](x)) * real
        return self.last_norm(x)

    def forward(self, seq, pos, neg):
        """Mean loss over the places with a film."""
        states = self.states(seq)
        of = lambda item: (states * self.item(item)).sum(-1)[pos != 0]
        return functional.softplus(-of(pos)).mean() + functional.softplus(of(neg)).mean()

    def scores(self, seq, candidate):
        return (self.states(seq)[:, -1:] * self.item(candidate)).sum(-1)


def metrics(scores):
    """Mean NDCG@10 and HR@10 of users; the first candidate is right, and a tie counts as lost."""
    place = (scores[:, 1:] >= scores[:, :1]).sum(1).double()
    hit = (place < 10).double()
    return (hit / torch.log2(place + 2)).mean().item(), hit.mean().item()


# %% [markdown]
# Rows of `item` are on the servers. `seq`, `pos`, `neg` and `candidate` are fields of its table, so
# that a film has one row, and padding has none. Rank 0 ranks for all.


# %%
def main():
    job = tandem.init("examples/sasrec.textproto")
    torch.manual_seed(job.seed + job.rank)
    films, rated = histories()
    samples = Sequences(films, rated, job.batch_size * job.world_size, job.seed, job.rank,
                        job.world_size)
    loader = tandem.DataLoader(samples, features=lambda batch: batch)
    tester = tandem.DataLoader(list(questions(films, rated)) if job.rank == 0 else [],
                               features=lambda batch: batch)
    model = SASRec(tandem.Embedding("item", padding_idx=0))
    optimizer = tandem.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=.001, betas=(.9, .98)), model)
    for epoch in job.epochs():
        samples.epoch, losses, scores = epoch, [], []
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch)
            loss.backward()
            optimizer.step(loss=loss)
            losses.append(loss.item())
        model.eval()
        for batch in job.evaluate(tester):
            with torch.no_grad():
                scores.append(model.scores(**batch))
        if scores:
            ndcg, hr = metrics(torch.cat(scores))
            job.report(ndcg=ndcg, hr=hr, train_loss=numpy.mean(losses))
            print(f"epoch {epoch + 1}: NDCG@10 {ndcg:.4f}, HR@10 {hr:.4f}, training loss "
                  f"{numpy.mean(losses):.4f}", flush=True)


if __name__ == "__main__":
    main()
