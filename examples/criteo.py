# %% [markdown]
# Will an advertisement be clicked? This example trains a small DLRM on the Criteo Kaggle display
# advertising set, which pandas reads. Put rows of its `train.txt` into
# `$TANDEM_DATA/criteo-kaggle/first8000.tsv`. A row has a label, 13 numbers and 26 categories in
# hexadecimal, separated by tabs; an empty cell is a missing value. Run it cell by cell in a
# notebook, or from the root of the tree:
#
#     PYTHONPATH=build/python python3 examples/criteo.py                                 # a worker
#     build/bin/tandem run examples/criteo.textproto --python examples/criteo.py         # two

# %%
import json
import os

import numpy
import pandas
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tandem

NUMBERS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]
job = tandem.init("examples/criteo.textproto")
torch.manual_seed(job.seed + job.rank)

# %% [markdown]
# Counts span five orders of magnitude, so the network gets their logarithm. Categories stay text,
# and `tandem.hash_columns` makes ids of them; nobody has to know how many there are. Rows are in
# the order of time. So the last eighth is the future and serves as the test set. Each worker has a
# share of both parts.

# %%
FOLDER = os.path.join(os.environ.get("TANDEM_DATA", "."), "criteo-kaggle")
frame = pandas.read_csv(f"{FOLDER}/first8000.tsv", sep="\t", header=None,
                        names=["label", *NUMBERS, *CATEGORIES],
                        dtype={name: str for name in CATEGORIES})
print(f"{len(frame)} rows, {frame.label.mean():.1%} clicked, "
      f"{frame.isna().to_numpy().mean():.1%} of the cells empty")


def dataset(rows):
    numbers = numpy.log1p(rows[NUMBERS].clip(lower=0).fillna(0)).to_numpy(numpy.float32)
    numbers = numpy.concatenate([numbers, rows[NUMBERS].isna()], 1, dtype=numpy.float32)
    return TensorDataset(torch.from_numpy(numbers), tandem.hash_columns(rows[CATEGORIES]),
                         torch.tensor(rows.label.to_numpy(numpy.float32)))


known = len(frame) * 7 // 8
train, test = (dataset(part.iloc[job.rank::job.world_size])
               for part in (frame[:known], frame[known:]))


# %% [markdown]
# The interactions of DLRM (Naumov et al., 2019): the products of each pair among the 26 embeddings
# and the vector that a first network computes from the numbers.

# %%
class DLRM(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.rows = tandem.EmbeddingBagCollection()
        self.bottom = nn.Sequential(nn.Linear(2 * len(NUMBERS), 32), nn.ReLU(), nn.Linear(32, dim),
                                    nn.ReLU())
        vectors = 1 + len(CATEGORIES)
        self.pairs = torch.triu_indices(vectors, vectors, 1)
        self.top = nn.Sequential(nn.Linear(dim + self.pairs.shape[1], 32), nn.ReLU(),
                                 nn.Linear(32, 1))

    def forward(self, numbers, ids):
        below = self.bottom(numbers)
        vectors = torch.cat([below.unsqueeze(1), self.rows(ids).table("ids")], 1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([below, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)


model, loss_of = DLRM(), nn.BCEWithLogitsLoss()
optimizer = tandem.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=.001), model)
loader = tandem.DataLoader(DataLoader(train, batch_size=job.batch_size, shuffle=True), features=1)
tester = tandem.DataLoader(DataLoader(test, batch_size=1000), features=1)

# %% [markdown]
# AUC, logloss and accuracy of an evaluation are computed over the rows of all workers.

# %%
for epoch in job.epochs():
    for numbers, ids, label in loader:
        optimizer.zero_grad()
        loss = loss_of(model(numbers, ids), label)
        loss.backward()
        optimizer.step(loss=loss)
    for numbers, ids, label in job.evaluate(tester):
        with torch.no_grad():
            job.score(model(numbers, ids), label)

# %%
if job.out:  # otherwise only `tandem run` knows the result
    with open(f"{job.out}/summary.json", encoding="utf-8") as file:
        result = json.load(file)["eval"]
    print(f"{job.out}: AUC {result['auc']:.4f}, logloss {result['logloss']:.4f} "
          f"on {result['samples']} rows")
