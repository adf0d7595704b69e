"""A script whose run is killed and goes on: batch normalisation, dropout, torch's Adam with a
schedule of learning rates for each step, another one that the script steps, random numbers of
torch, numpy and random in the script and in what reads. Worker 0 has a shuffled DataLoader of
torch, worker 1 an iterable that knows its place. `resumed.py FOLDER [WAY]`: at the end each worker
leaves there what is in no parameter or table, `end-RANK`. WAY `together`: a step has three batches,
and gradients have a scale that grows, where this PyTorch has a GradScaler for processors."""
import hashlib
import random
import sys
import time

import numpy
import torch
from torch import nn

import tandem
from tandem.packing import pack

ROWS, BATCH = (310, 190), 20   # of a worker, so they run out at different steps
FOLDER, WAY = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""


class Rows(torch.utils.data.Dataset):
    """Their dense numbers are made anew each time they are read."""

    def __init__(self, count, seed):
        self.ids = torch.from_numpy(numpy.random.default_rng(seed).integers(0, 60, (count, 2)))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, row):
        noise = .3 * numpy.random.normal() + .1 * random.random() + .1 * float(torch.rand(1))
        ids = self.ids[row]
        return torch.tensor([noise, float(ids[0] % 7)]), ids, float(ids.sum() % 3 == 0)


class KnowsItsPlace:
    """Goes through the rows in steps, without regard to epochs; told its place it goes on there."""

    def __init__(self, rows):
        self.rows, self.at, self.left = rows, 0, None  # left: in this epoch; None: it is over

    def state_dict(self):
        return {"at": self.at, "left": self.left}

    def load_state_dict(self, state):
        self.at, self.left = state["at"], state["left"]

    def __iter__(self):
        if self.left is None:
            self.left = len(self.rows) // BATCH
        while self.left > 0:
            self.left -= 1
            picked = [self.rows[(self.at + 7 * i) % len(self.rows)] for i in range(BATCH)]
            self.at += 13
            yield [torch.utils.data.default_collate([r[i] for r in picked]) for i in range(3)]
        self.left = None


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = tandem.EmbeddingBagCollection()
        self.layers = nn.Sequential(nn.Linear(18, 12), nn.BatchNorm1d(12), nn.ReLU(),
                                    nn.Dropout(.2), nn.Linear(12, 1))

    def forward(self, dense, ids):
        return self.layers(torch.cat([dense, self.embeddings(ids).values()], 1)).squeeze(1)


def drawing(batch):
    """The ids, found by what draws: as reading does, not as the script."""
    torch.rand(1)
    return batch[1]


def loader_of(job):
    if WAY == "other data":
        return tandem.DataLoader([(torch.zeros(4, 2), torch.arange(8).reshape(4, 2), torch.ones(4))]
                                 * 30, features=1)
    if WAY == "not repeatable":
        return tandem.DataLoader([(torch.zeros(4, 2), torch.arange(8).reshape(4, 2)
                                   + random.randrange(9),
                                   torch.ones(4)) for _ in range(30)], features=1, repeatable=False)
    rows = Rows(ROWS[job.rank % 2], job.rank)
    together = 3 if WAY == "together" else 1
    if job.rank % 2:
        return tandem.DataLoader(KnowsItsPlace(rows), features=1, accumulate=together)
    return tandem.DataLoader(torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True),
                             features=drawing, accumulate=together)


def main():
    job = tandem.init()
    torch.manual_seed(3 + job.rank)
    numpy.random.seed(4 + job.rank)
    random.seed(5 + job.rank)
    loader, model, loss_of = loader_of(job), Ranker(), nn.BCEWithLogitsLoss()
    tests = tandem.DataLoader([(torch.zeros(10, 2), torch.arange(20).reshape(10, 2),
                                torch.arange(10.) % 2)],
                              features=1)
    adam = torch.optim.Adam(model.parameters(), lr=.02)
    schedules = torch.optim.lr_scheduler
    schedule = schedules.OneCycleLR(adam, .03, total_steps=400)
    optimizer = tandem.DistributedOptimizer(adam, model, schedule=schedule) \
        if job._worker.program_optimizer else tandem.DistributedOptimizer(model)
    own = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=.1)
    decay = schedules.OneCycleLR(own, .1, total_steps=400)
    job.keep(decay=decay)
    scaler = None
    if WAY == "together" and hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cpu", init_scale=8., growth_interval=5)
        job.keep(scaler=scaler)
    for _ in job.epochs():
        model.train()
        for dense, ids, label in loader:
            loss = loss_of(model(dense, ids), label.float()) + 1e-6 * numpy.random.normal()
            (loss if scaler is None else scaler.scale(loss)).backward()
            if loader.step_ends:
                if scaler is None:
                    optimizer.step(loss=loss)
                else:
                    scaler.step(optimizer)
                    scaler.update()
                optimizer.zero_grad()
            if WAY != "fast":
                time.sleep(.01)
            if not WAY:
                ids.zero_()  # a batch is the script's
        model.eval()
        decay.step()
        for dense, ids, label in job.evaluate(tests):
            with torch.no_grad():
                job.score(model(dense, ids), label)
        job.barrier()
    if job.stopped:  # dropped quietly: what else ends the job is no fault of the script
        job.report(end=1)
        job.checkpoint()
        job.barrier()
    with open(f"{FOLDER}/end-{job.rank}", "w", encoding="utf-8") as file:
        file.write(f"stopped {job.stopped}\n")
        for name, value in (("buffers", dict(model.named_buffers())),
                            ("optimizer", optimizer.state_dict()),
                            ("schedule", [schedule.last_epoch, schedule.get_last_lr(),
                                          decay.last_epoch, decay.get_last_lr()]),
                            ("scaler", scaler.state_dict() if scaler is not None else {}),
                            ("torch", torch.get_rng_state()),
                            ("numpy", numpy.random.get_state(legacy=False)),
                            ("random", random.getstate())):
            file.write(f"{name} {hashlib.sha256(pack(value)).hexdigest()}\n")


if __name__ == "__main__":
    main()
