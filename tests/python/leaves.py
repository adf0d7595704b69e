"""A script that ends its job long before the last epoch. `leaves.py break`: all workers leave the
loop over epochs in the middle of one; `leaves.py close`: worker 0 closes the job between two;
`leaves.py status`: it ends with a status, which is an error; `leaves.py whole`: the last epoch ends
it; `leaves.py after FILE`: so it does, and then worker 0 works for a while and writes the file, and
worker 1 fails."""
import pathlib
import sys
import time

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
assert sys.argv[1] in ("whole", "after") or epoch < 999, epoch
print("left in epoch", epoch)
if sys.argv[1] == "after" and job.rank == 0:
    time.sleep(8)
    pathlib.Path(sys.argv[2]).write_text("done", encoding="utf-8")
elif sys.argv[1] == "after":
    raise RuntimeError("no room")
