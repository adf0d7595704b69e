"""Rows of a KEY_VALUE table that both workers write while they train. `store.py [again]`; again:
the job begins with the checkpoint of the first run, and so does the table."""
import sys

import numpy
import torch
from torch import nn

import tandem

again = "again" in sys.argv
job = tandem.init()
MINE = numpy.arange(job.rank, 5000, job.world_size)


def rows_of(keys):
    return (keys[:, None] + numpy.arange(5)[None, :] / 8).astype(numpy.float32)


def refused(text, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except (ValueError, tandem.Error) as error:
        assert text in str(error) and "\n" not in str(error), (text, str(error))
        return
    raise AssertionError(f"not refused: {text}")


refused("open the store after it", tandem.Store, "cache")
rows, model = tandem.EmbeddingBagCollection(), nn.Linear(16, 1)
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
loader = tandem.DataLoader([torch.arange(8).reshape(4, 2) + i for i in range(6)])
store = tandem.Store("cache")
assert (store.dim, store.extra_floats, store.row_floats) == (3, 2, 5)
refused("rows of table 'cache': shape [2, 3], expected [2, 5]", store.assign, [1, 2],
        numpy.zeros((2, 3)))
refused("keys of table 'cache': float64, expected integers", store.read, [1.5])
refused("no table 'cash'", tandem.Store, "cash")
refused("is trained by the job", tandem.Store, "ids")
if again:
    assert store.read(MINE)[1].tolist() == (MINE % 3 != 0).tolist()
    seen = dict(zip(*[numpy.concatenate(part) for part in zip(*store.scan(1000))]))
    keys = numpy.arange(5000)
    keys = keys[keys % 3 != 0]
    assert sorted(seen) == keys.tolist()
    assert all((seen[key] == row).all() for key, row in zip(keys, rows_of(keys)))
for epoch in job.epochs():
    for ids in loader:
        optimizer.zero_grad()
        model(rows(ids).values()).square().mean().backward()
        optimizer.step()
        if again or epoch:
            continue
        some = MINE[job.step % 6::6]
        assert store.insert(some, rows_of(some)).all()
        assert not store.insert(some, -rows_of(some)).any()
        read, found = store.read(numpy.concatenate([some, some + 100000]))
        assert found.tolist() == [True] * len(some) + [False] * len(some)
        assert (read[:len(some)] == rows_of(some)).all() and not read[len(some):].any()
    if not again and not epoch:
        store.assign(MINE, -rows_of(MINE))
        store.assign(torch.from_numpy(MINE), torch.from_numpy(rows_of(MINE)))
        assert store.erase(MINE[MINE % 3 == 0]).all() and \
            not store.erase(MINE[MINE % 3 == 0][:2]).any()
store.close()
refused("is closed", store.read, [1])
print("all written")
