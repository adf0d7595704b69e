"""What a script has to say: numbers of its own, and that it wants a checkpoint. `notes.py`: two
workers, ten steps. It could be a notebook, too, with a job of its own."""
import torch
from torch import nn

import tandem

# Which `tandem run` has the say about.
job = tandem.init("of/a/notebook", set=["train.epochs=7"], out="nowhere")
rows, model = tandem.EmbeddingBagCollection(), nn.Linear(16, 1)
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
loader = tandem.DataLoader([torch.arange(8).reshape(4, 2) + i for i in range(10)])


def refused(text, call, *arguments, **values):
    try:
        call(*arguments, **values)
    except (tandem.Error, TypeError, ValueError) as error:
        assert text in str(error) and "\n" not in str(error), (text, str(error))
        return
    raise AssertionError(text)


class Odd(nn.Module):
    def get_extra_state(self):
        return open  # no checkpoint can hold it


refused("job.keep(odd=...): its state['_extra_state'] is a builtin_function_or_method", job.keep,
        odd=Odd())
for epoch in job.epochs():
    for ids in loader:
        optimizer.zero_grad()
        model(rows(ids).values()).square().mean().backward()
        optimizer.step()
        if epoch == 0 and job.step in (2, 6):  # both workers: one checkpoint each time
            job.checkpoint()
        if job.step == 4:
            job.report(both=10 + job.rank, **{f"only/{job.rank}": .5})
    job.report(epochs=epoch + 1 + job.rank)
    own = 10. + job.rank
    assert job.report(mean=own, reduce="mean", weight=1 + 3 * job.rank) == {"mean": 54 / 5}
    assert job.report(a=own, b=-own, reduce="sum") == {"a": 21, "b": -21}
    assert job.report(least=own, reduce="min") == {"least": 10}
    assert job.report(most=own, reduce="max") == {"most": 11}
    # A worker of weight 0 has no value.
    assert job.report(most=own, reduce="max", weight=1 - job.rank) == {"most": 10}
    if epoch == 0:
        refused("expected one of 'mean', 'sum', 'min', 'max'", job.report, x=1, reduce="median")
        refused("where is the weight? Say weight=N", job.report, x=1, reduce="mean")
        refused("weight= belongs to reduce=", job.report, x=1, weight=3)
        refused("weight -1 of reported values; expected 0 or more", job.report, x=1, reduce="sum",
                weight=-1)
        refused("64 visible ASCII characters", job.report, reduce="sum", **{"é": 1})
        refused("expected 1 to 100", job.report)
        job.report(undefined=float("nan"))
        refused("job.report: could not convert string", job.report, x="much")
        refused("64 visible ASCII characters", job.report, **{"with space": 1})
        refused("64 visible ASCII characters", job.report, **{"é": 1})
        for i in range(2000):  # more than may be without an answer
            job.report(many=i)
assert not job.stopped
refused("job has ended", job.report, x=1)
refused("job has ended", job.checkpoint)
print("all said")
