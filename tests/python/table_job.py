"""Trains on a table with __arrow_c_stream__, or on the same rows as batches of a list.
`table_job.py FOLDER WAY`. WAY `list`, `table`; `function`: makes a table for each epoch; `once`: a
table that can be read once; `dies`: as table, and the process ends once the newest checkpoint of
the run in FOLDER is in the middle of an epoch. The file FOLDER/batches then has the number of
batches of the next process."""
import glob
import json
import os
import sys
import time

import numpy
import torch
from torch import nn

import tandem
from arrow_streams import Column, Table

ROWS, BATCH, FOLDER, WAY = 104, 10, sys.argv[1], sys.argv[2]
random = numpy.random.default_rng(5)
CITIES = [None if n == 0 else f"city {n}" for n in random.integers(0, 20, ROWS).tolist()]
USERS = random.integers(0, 30, ROWS).tolist()
TAGS = [[f"tag {n}" for n in random.integers(0, 9, count)] for count in random.integers(0, 4, ROWS)]
PRICES = random.normal(size=ROWS).astype(numpy.float32).tolist()
CLICKS = (random.random(ROWS) < .5).tolist()


class Once(Table):
    """As a pyarrow.RecordBatchReader."""

    def __next__(self):
        raise NotImplementedError


def table_of(kind=Table):
    return kind([Column("city", "u", CITIES), Column("user", "l", USERS),
                 Column("tags", "+l", TAGS, items=Column("item", "u", [])),
                 Column("price", "f", PRICES), Column("click", "b", CLICKS),
                 Column("note", "u", CITIES)], rows=17)


def batches():
    for begin in range(0, ROWS, BATCH):
        rows = slice(begin, begin + BATCH)
        tags = [names or [""] for names in TAGS[rows]]
        starts = numpy.cumsum([0] + [len(names) for names in tags])
        yield {"ids": {"city": tandem.hash_ids(CITIES[rows], "city"), "user": USERS[rows],
                       "tags": (tandem.hash_ids(sum(tags, []), "tags"), starts)},
               "price": torch.tensor(PRICES[rows]), "click": torch.tensor(CLICKS[rows]).float()}


def loader_of(way):
    if way == "list":
        return tandem.DataLoader(list(batches()), features="ids", include_last_offset=True)
    source = {"function": lambda: table_of(), "once": table_of(Once)}.get(way, table_of())
    return tandem.DataLoader(source, columns=["city", "user", "tags", "price", "click"],
                             ids={"user": "raw"})


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.ModuleList(tandem.EmbeddingBag(name) for name in ("city", "user", "tags"))
        self.top = nn.Linear(13, 1)

    def forward(self, price):
        rows = [bag() for bag in self.rows]
        return self.top(torch.cat([price.unsqueeze(1), *rows], 1)).squeeze(1)


def in_the_middle(manifests):
    """Whether the newest checkpoint is inside an epoch. An empty step ends an epoch."""
    steps = []
    for manifest in manifests:
        with open(manifest, encoding="utf-8") as file:
            steps.append(json.load(file)["step"])
    batches_done = max(steps, default=0) % (-(-ROWS // BATCH) + 1)
    return 0 < batches_done < -(-ROWS // BATCH)


job = tandem.init()
torch.manual_seed(3)
model = Model()
optimizer = tandem.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=.01), model)
loader, count = loader_of(WAY), 0
died = os.path.join(FOLDER, "died")
for epoch in job.epochs():
    for batch in loader:
        count += 1
        if WAY == "dies" and not os.path.exists(died):
            # Time for the checkpoint of about step 16, and more if that is not there yet.
            time.sleep(.02 if count < 20 else .5)
            if in_the_middle(glob.glob(os.path.join(FOLDER, "model", "step-*", "MANIFEST"))):
                with open(died, "w", encoding="utf-8") as file:
                    file.write("once")
                os._exit(1)
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch["price"]), batch["click"])
        loss.backward()
        optimizer.step(loss=loss)
    for batch in job.evaluate(loader):
        with torch.no_grad():
            job.score(model(batch["price"]), batch["click"])
with open(os.path.join(FOLDER, "batches"), "w", encoding="utf-8") as file:
    file.write(str(count))
