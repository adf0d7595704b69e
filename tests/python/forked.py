"""A worker whose torch DataLoader has forked two processes. Each of them, and the worker itself,
writes to FOLDER which TCP sockets it holds: none, those of the job are in the worker's threads."""
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import tandem


def tcp_sockets():
    ours = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")}
    with open("/proc/net/tcp", encoding="utf-8") as file:
        return [line.split()[9] for line in list(file)[1:] if f"socket:[{line.split()[9]}]" in ours]


def leave_word(name):
    with open(f"{sys.argv[1]}/{name}.tmp", "w", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {len(tcp_sockets())}")
    os.rename(f"{sys.argv[1]}/{name}.tmp", f"{sys.argv[1]}/{name}")


class Rows(Dataset):
    def __len__(self):
        return 64 * 1000

    def __getitem__(self, at):
        time.sleep(.001)
        return at % 7, at % 5


job = tandem.init()
rows = tandem.EmbeddingBagCollection()
model = nn.Linear(16, 1)
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
batches = DataLoader(Rows(), batch_size=64, num_workers=2,
                     worker_init_fn=lambda w: leave_word(f"child-{job.rank}-{w}"),
                     collate_fn=lambda pairs: torch.tensor(pairs))
for _ in job.epochs():
    for ids in tandem.DataLoader(batches):
        optimizer.zero_grad()
        model(rows(ids).values()).square().mean().backward()
        optimizer.step()
        if job.step == 3:
            leave_word(f"parent-{job.rank}")
