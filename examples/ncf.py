# %% [markdown]
# Neural Collaborative Filtering (He et al., WWW 2017) on MovieLens-1M: which film does a user rate
# next? The authors publish the data with the paper. Put `ml-1m.train.rating`, `ml-1m.test.rating`
# and `ml-1m.test.negative` into `$TANDEM_DATA/ncf-ml-1m`. Run it cell by cell in a notebook, or
# from the root of the tree:
#
#     PYTHONPATH=build/python python3 examples/ncf.py                              # a worker
#     build/bin/tandem run examples/ncf.textproto --python examples/ncf.py         # two

# %%
import json
import os

import numpy
import pandas
import torch
from torch import nn

import tandem

FOLDER = os.path.join(os.environ.get("TANDEM_DATA", "."), "ncf-ml-1m")
job = tandem.init("examples/ncf.textproto")
torch.manual_seed(job.seed + job.rank)

# %% [markdown]
# A row of the training data is a film that a user has rated. About the other films only one fact is
# known: the user has not rated them. Each epoch draws four of them anew for each row.

# %%
ratings = pandas.read_csv(f"{FOLDER}/ml-1m.train.rating", sep="\t", header=None,
                          usecols=[0, 1]).to_numpy()
tests = pandas.read_csv(f"{FOLDER}/ml-1m.test.rating", sep="\t", header=None,
                        usecols=[0, 1]).to_numpy()
others = pandas.read_csv(f"{FOLDER}/ml-1m.test.negative", sep="\t",
                         header=None).iloc[:, 1:].to_numpy()
users, items = ratings[:, 0].max() + 1, ratings[:, 1].max() + 1
rated = torch.zeros(users, items, dtype=torch.bool)
rated[ratings[:, 0], ratings[:, 1]] = True


class Samples:
    """Batches of ([samples, 2] users and items, labels) from this worker's share of the ratings."""

    def __init__(self, ratings, batch, negatives=4):
        self.user, self.item = torch.from_numpy(ratings).T
        self.batch, self.negatives = batch, negatives

    def __iter__(self):
        user = self.user.repeat(self.negatives)
        item = torch.randint(items, user.shape)
        while len(again := rated[user, item].nonzero().squeeze(1)):
            item[again] = torch.randint(items, again.shape)
        ids = torch.stack([torch.cat([self.user, user]), torch.cat([self.item, item])], 1)
        label = torch.zeros(len(ids))
        label[:len(self.user)] = 1
        for part in torch.randperm(len(ids)).split(self.batch):
            yield ids[part], label[part]


# %% [markdown]
# The test ranks one held-out film of each user among 99 other films: is it among the first ten?
# Each worker ranks for a part of the users. For some users the other films contain that film, too.
# Then it counts once.

# %%
films = torch.from_numpy(numpy.concatenate([tests[:, 1:], others], 1))
asked = torch.from_numpy(tests[:, :1]).expand_as(films)
CANDIDATES = films.shape[1]


def questions(at_once=200):
    for user, film in zip(asked.split(at_once), films.split(at_once)):
        label = torch.zeros(film.shape)
        label[:, 0] = 1
        yield torch.stack([user, film], 2).reshape(-1, 2), label.reshape(-1)


def places(scores, ids):
    """The place of each user's film among its candidates, from 0. A tie counts as lost."""
    scores, film = scores.reshape(-1, CANDIDATES), ids[:, 1].reshape(-1, CANDIDATES)
    return ((scores >= scores[:, :1]) & (film != film[:, :1])).sum(1)


# %% [markdown]
# The model is a module like any other. Its embedding rows are on the servers, where Adam updates
# the rows of each batch.

# %%
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = tandem.EmbeddingBagCollection()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(),
                                    nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids):
        return self.layers(self.rows(ids).values()).squeeze(1)


model, loss_of = MLP(), nn.BCEWithLogitsLoss()
optimizer = tandem.DistributedOptimizer(model)
loader = tandem.DataLoader(Samples(ratings[job.rank::job.world_size], job.batch_size), features=0)
tester = tandem.DataLoader(list(questions())[job.rank::job.world_size], features=0)

# %%
for epoch in job.epochs():
    for ids, label in loader:
        optimizer.zero_grad()
        loss = loss_of(model(ids), label)
        loss.backward()
        optimizer.step(loss=loss)
    hits, gains, users = 0., 0., 0
    for ids, label in job.evaluate(tester):
        with torch.no_grad():
            scores = model(ids)
        job.score(scores, label)
        place = places(scores, ids).double()
        hit = (place < 10).double()
        hits, users = hits + hit.sum().item(), users + len(place)
        gains += (hit * numpy.log(2) / torch.log(place + 2)).sum().item()
    all_users = job.report(hr=hits / max(users, 1), ndcg=gains / max(users, 1), reduce="mean",
                           weight=users)
    if job.rank == 0:
        print(f"epoch {epoch + 1}: HR@10 {all_users['hr']:.4f}, NDCG@10 {all_users['ndcg']:.4f}",
              flush=True)

# %% [markdown]
# The run leaves `summary.json`, `metrics.jsonl` with a line for each `job.report`, logs, and the
# model.

# %%
if job.out:  # otherwise only `tandem run` knows the result
    with open(f"{job.out}/summary.json", encoding="utf-8") as file:
        print(job.out, json.load(file)["reported"])
    rows = tandem.load(f"{job.out}/model").tables["item"]
    print(f"{len(rows.keys)} films; the first two:", rows.weights[:2, :4])
