"""A checkpoint that is cut around a barrier: as it is made worker 0 stands behind the barrier and
behind its epoch, worker 1 behind the barrier and in the epoch, which it does again. `cut.py
FOLDER`: the run that begins waits to be killed, once it has made that checkpoint."""
import os
import sys
import time

import torch
from torch import nn

import tandem

job = tandem.init()
begun = f"{sys.argv[1]}/begun-{job.rank}"
begins = not os.path.exists(begun)
job.barrier()  # before the loop over epochs workers meet each time
with open(begun, "w", encoding="utf-8"):
    pass
rows, model = tandem.EmbeddingBagCollection(), nn.Linear(16, 1)
# Is in no checkpoint.
model.register_buffer("scratch", torch.zeros(3 if begins else 5), persistent=False)
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
loader = tandem.DataLoader([torch.arange(8).reshape(4, 2) + i for i in range(3)])
first = job.step, job.epoch
for epoch in job.epochs():
    job.barrier()
    for ids in loader:
        if begins and epoch == 1:
            time.sleep(100)
        optimizer.zero_grad()
        model(rows(ids).values()).square().mean().backward()
        optimizer.step()
    if begins and epoch == 0:
        job.checkpoint()
        time.sleep(1)  # all have met for the checkpoint, and it is the script that is waited for
    print(f"epoch {epoch}: at the barrier", flush=True)
    job.barrier()
    if begins and epoch == 0 and job.rank == 1:
        for _ in job.evaluate(loader):
            raise AssertionError("nothing is evaluated")
print(f"began behind step {first[0]} of epoch {first[1]}")
