"""A script that ends its job long before the last epoch. `leaves.py break`: all workers leave the
loop over epochs in the middle of one; `leaves.py close`: worker 0 closes the job between two;
`leaves.py status`: it ends with a status, which is an error; `leaves.py whole`: the last epoch ends
it."""
import sys

import torch
from torch import nn

import tandem

job = tandem.init()
assert tandem.job() is job
rows, model = tandem.EmbeddingBagCollection(), nn.Linear(16, 1)
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
loader = tandem.DataLoader([torch.arange(8).reshape(4, 2) + i for i in range(10)])
loop = job.epochs()  # a variable that keeps the iterator, as progress bars do
for epoch in loop:
    for step, ids in enumerate(loader):
        optimizer.zero_grad()
        model(rows(ids).values()).square().mean().backward()
        optimizer.step()
        if (epoch, step) == (1, 3) and sys.argv[1] == "break":
            break
        if (epoch, step) == (1, 3) and sys.argv[1] == "status":
            raise SystemExit(3)
    if epoch == 1 and sys.argv[1] == "break":
        break
    if epoch == 1 and sys.argv[1] == "close" and job.rank == 0:
        job.close()
        assert job.stopped
        break
assert sys.argv[1] == "whole" or epoch < 999, epoch
print("left in epoch", epoch)
