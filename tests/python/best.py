"""A script that learns its few rows by heart, of which the best epoch is kept. Worker 0 alone has
rows for validation and for tests, whose ids are in part those that nobody trains. `best.py FOLDER
[WAY]`: the logits of the last test rows that were scored are left in FOLDER. WAY: "unlabelled", the
scores of tests have no labels; "no tests"; "no validation"; "tests first"; "apart", worker 1 alone
changes a parameter in epoch 1; "clamped", both clamp theirs behind each step, worker 1 later;
"scores nothing"; "optimizer of the job"; "own", a metric of the script decides, of which each
worker has a part: what the workers know of it is left in FOLDER, `own-RANK`, and the records of the
job in `records`; "own unreported", that metric is missing. `best.py FOLDER check MODEL` holds the
model that serves to these logits."""
import json
import sys
import time

import numpy
import torch
from torch import nn

import tandem

FOLDER, WAY = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = tandem.EmbeddingBagCollection()
        self.layers = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids):
        return self.layers(self.embeddings(ids).values()).squeeze(1)


def rows(seed, count, known):
    """A third of the labels is noise."""
    random = numpy.random.default_rng(seed)
    ids = random.integers(0, known, (count, 2))
    label = numpy.where(random.random(count) < .33, random.integers(0, 2, count), ids[:, 0] % 2)
    return [(torch.from_numpy(ids[i:i + 20]),
             torch.from_numpy(label[i:i + 20].astype(numpy.float32)))
            for i in range(0, count, 20)]


def judge(job, model, batches):
    """The mean loss, over the workers and without job.score(). Returns what this worker knows."""
    loss_of, total, count = nn.BCEWithLogitsLoss(reduction="sum"), 0., 0
    for ids, label in job.evaluate(batches, data="validation"):
        with torch.no_grad():
            total, count = total + loss_of(model(ids), label).item(), count + len(label)
    if WAY == "own unreported":
        return []
    both = job.report(own=total / max(count, 1), reduce="mean", weight=count)
    return [both, job.report(rows=count, reduce="sum"), job.evaluation()]


def main():
    job = tandem.init()
    records, known = [], []
    job.on_record(records.append)
    torch.manual_seed(3)
    model, loss_of = Ranker(), nn.BCEWithLogitsLoss()
    own = None if WAY == "optimizer of the job" else torch.optim.Adam(model.parameters(), lr=.02)
    optimizer = tandem.DistributedOptimizer(own, model)
    loader = tandem.DataLoader(rows(job.rank, 240 + (0 if WAY == "clamped" else 40 * job.rank), 60))
    held_out = job.rank == 0
    validation = tandem.DataLoader(rows(10, 200, 60) if held_out else [])
    tests = tandem.DataLoader(rows(11, 210, 90) if held_out else [])
    if WAY.startswith("own"):
        validation = tandem.DataLoader(rows(10, 200, 60)[:7] if held_out else rows(10, 200, 60)[7:])
    for epoch in job.epochs():
        model.train()
        for ids, label in loader:
            optimizer.zero_grad()
            loss = loss_of(model(ids), label)
            loss.backward()
            optimizer.step(loss=loss)
            time.sleep(.005)
            if WAY == "clamped":
                time.sleep(.03 * job.rank)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.clamp_(-.05, .05)
        if WAY == "apart" and job.rank == 1 and epoch == 1:
            with torch.no_grad():
                model.layers[0].bias[3] += 1e-6
        model.eval()
        if WAY.startswith("own"):
            known.append(judge(job, model, validation))
        elif WAY not in ("no validation", "tests first"):
            for ids, label in job.evaluate(validation, data="validation"):
                with torch.no_grad():
                    job.score(model(ids), label)
        if WAY in ("no tests", "no validation", "scores nothing"):
            continue
        scores = []
        for ids, label in job.evaluate(tests):
            with torch.no_grad():
                scores.append(model(ids))
            job.score(scores[-1], *([] if WAY == "unlabelled" else [label]))
        if scores:
            torch.cat(scores).numpy().tofile(f"{FOLDER}/logits")
        known.append([job.evaluation()])
    with open(f"{FOLDER}/own-{job.rank}", "w", encoding="utf-8") as file:
        json.dump(known, file)
    if job.rank == 0:
        with open(f"{FOLDER}/records", "w", encoding="utf-8") as file:
            json.dump(records, file)


def check(model):
    """Buffers of worker 0 and initial values of unknown ids included."""
    serve = torch.jit.script(tandem.load(model).serving(Ranker))
    with torch.no_grad():
        logits = torch.cat([serve(ids) for ids, _ in rows(11, 210, 90)]).numpy()
    worst = numpy.abs(logits - numpy.fromfile(f"{FOLDER}/logits", dtype="f4")).max()
    assert logits.shape == (210,) and worst < 1e-6, worst


if __name__ == "__main__":
    if WAY == "check":
        check(sys.argv[3])
    else:
        main()
