"""Workers with different numbers of batches that meet: before anything is trained, between epochs,
and many times at the end. `barrier.py FOLDER [late]`; late: worker 1 does not come, and leaves with
an exception."""
import os
import sys
import time

import torch
from torch import nn

import tandem

job = tandem.init()
folder, late = sys.argv[1], "late" in sys.argv


def meet(what):
    """What worker 0 writes before a barrier is there for the others after it."""
    if job.rank == 0:
        time.sleep(.2)
        with open(f"{folder}/{what}", "w", encoding="utf-8"):
            pass
    else:
        assert not os.path.exists(f"{folder}/{what}"), what
    job.barrier()
    assert os.path.exists(f"{folder}/{what}"), what
    job.barrier()  # before worker 0 comes to the next one


meet("begin")
if late and job.rank == 1:
    raise ValueError("no such city")
if late:
    job.barrier()
rows, model = tandem.EmbeddingBagCollection(), nn.Linear(16, 1)
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
loader = tandem.DataLoader([torch.arange(8).reshape(4, 2) + i for i in range(6 - 2 * job.rank)])
for epoch in job.epochs():
    for ids in loader:
        optimizer.zero_grad()
        model(rows(ids).values()).square().mean().backward()
        if job.step == 1:
            try:
                job.barrier()
            except tandem.Error as error:
                assert "job.barrier() in the middle of a step" in str(error)
            else:
                raise AssertionError("not refused")
        optimizer.step()
    meet(f"epoch-{epoch}")
print("all met")
