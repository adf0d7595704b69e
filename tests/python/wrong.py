"""Wrong calls, each refused in one line that says the fix, and the job goes on to its end. With an
argument, the one way of ending the job that it names: exception, fault, surrogate, early, break,
second, no_step, no_backward, once, os_exit, os_exit_0, unscored, range; or own_metric and
probabilities, which are good ones."""
import os
import random
import sys
import unittest.mock
import warnings

import torch
from torch import nn

import tandem
from tandem._abi import check, library

WAY = sys.argv[1] if len(sys.argv) > 1 else ""


def refused(text, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except (ValueError, RuntimeError, tandem.Error) as error:
        assert text in str(error) and "\n" not in str(error), (text, str(error))
        return
    raise AssertionError(f"not refused: {text}")


try:
    tandem.EmbeddingBagCollection()
except tandem.Error as error:
    assert "call tandem.init() first" in str(error)
job = tandem.init()
refused("called before", tandem.init)
if job.world_size > 1:
    refused(f"the job has {job.world_size} workers",
            lambda: check(library().tandem_rest(job._worker.handle)))
refused("no table or field 'town'", tandem.EmbeddingBag, "town")
refused("mode 'max', expected 'sum' or 'mean'", tandem.EmbeddingBag, "city", mode="max")
refused('table { name: "ids" dim: 9 field: "city" }', tandem.EmbeddingBagCollection,
        [tandem.EmbeddingBagConfig("ids", 9, ["city"])])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = tandem.EmbeddingBagCollection()
        self.out = nn.Linear(16, 1)
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, ids):
        return self.out(self.rows(ids).values()).squeeze(1)


model = Model()
ids = torch.arange(12).reshape(2, 6).t()  # its columns lie one behind the other
assert not ids.is_contiguous() and ids.shape == (6, 2)
label = torch.tensor([0., 1, 0, 1, 1, 0])
refused("there is no batch at hand", model, ids)


def ids_of(batch):
    """Draws, as reading does: not what the script draws from."""
    random.random()
    return batch[0]


random.seed(7)
loader = tandem.DataLoader([(ids,)] * 8, features=ids_of)
if WAY == "once":
    loader = tandem.DataLoader(((ids,) for _ in range(8)), features=ids_of)
refused("make the optimizer first", lambda: next(iter(loader)))
refused("dense.optimizer PROGRAM", tandem.DistributedOptimizer, model)
refused("expected 'mean' or 'sum'", tandem.DistributedOptimizer,
        torch.optim.SGD(model.parameters(), .1),
        model, loss="max")
refused("a parameter that is none of the module's", tandem.DistributedOptimizer,
        torch.optim.SGD([nn.Parameter(torch.ones(3))], .1), model)
refused("torch.float64 on cpu, expected torch.float32", tandem.DistributedOptimizer,
        torch.optim.SGD(model.parameters(), .1), nn.Linear(2, 2).double())
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # lazy layers are new, torch says
    lazy = nn.Sequential(nn.LazyLinear(2))
refused("parameter 0.weight has no shape yet: call its layer once", tandem.DistributedOptimizer,
        torch.optim.SGD(model.parameters(), .1), lazy)
refused("max_norm 0, expected a number above 0", tandem.DistributedOptimizer,
        torch.optim.SGD(model.parameters(), .1), model, max_norm=0)
refused("clip_norm inf, expected a number above 0", tandem.DistributedOptimizer, model,
        clip_norm=float("inf"))
refused("accumulate=0, expected 1 or more", tandem.DataLoader, [], accumulate=0)
refused("max_norm is for an optimizer of torch", tandem.DistributedOptimizer, model, max_norm=1)
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
assert tandem.job() is job
assert torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=.5).get_last_lr() == [.1]
refused("add groups to the optimizer of torch", optimizer.add_param_group, {"params": []})
refused("there is a DistributedOptimizer already", tandem.DistributedOptimizer,
        torch.optim.SGD(model.parameters(), .1), model)
refused("without a batch", optimizer.step)
if hasattr(torch.amp, "GradScaler"):
    scaler = torch.amp.GradScaler("cpu")
else:
    with unittest.mock.patch("torch.cuda.amp.grad_scaler.amp_definitely_not_available",
                             return_value=False):
        scaler = torch.cuda.amp.GradScaler()
scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
refused("without a batch" if hasattr(torch.amp, "GradScaler") else
        "GradScaler needs PyTorch 2.3 or later, and this is 1.13", scaler.step, optimizer)
rows_alone = nn.ModuleDict({"city": tandem.EmbeddingBag("city"), "offer": model.rows})
for calls, text in {
        (lambda: list(model.parameters()), model.zero_grad, rows_alone.zero_grad,
         lambda: list(rows_alone.buffers()), rows_alone.eval): None,
        (lambda: list(model.rows.parameters()), lambda: list(rows_alone.parameters()),
         lambda: list(rows_alone.named_parameters())): ".parameters() is empty, because rows are",
        (model.state_dict, rows_alone.state_dict, model.rows.state_dict):
            "state_dict() has no rows of EmbeddingBag",
}.items():
    for call in calls:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            call()
        said = [str(warning.message) for warning in told]
        assert said == [] if text is None else text in said[0], (text, said)
refused("belongs into a loop over job.evaluate()", job.score, label, label)
for text, batch in {
        "shape (6, 3), expected [samples, 2]": torch.zeros(6, 3, dtype=torch.int64),
        "dtype torch.float32, expected torch.int64": torch.zeros(6, 2),
        "no table or field 'town'": {"town": ids[:, 0]},
        "fields of different numbers of samples": {"city": ids[:, 0], "offer": ids[:3, 0]},
        "offsets must rise": {"city": (ids[:, 0], torch.tensor([0, 4, 2, 6])), "offer": ids[:3, 0]},
        "a batch of 65 samples, and train.batch_size is 64": torch.zeros(65, 2, dtype=torch.int64),
        "a batch has 300 ids for table ids, but only 256":
            {"city": (torch.zeros(300, dtype=torch.int64), torch.tensor([0, 300]))},
}.items():
    refused(text, lambda: next(iter(tandem.DataLoader([batch], features=lambda b: b))))
refused("the 11 batches of a step (accumulate) have 66 samples together, and train.batch_size is "
        "64", lambda: next(iter(tandem.DataLoader([ids] * 11, accumulate=11))))
refused("job.evaluate takes a tandem.DataLoader", job.evaluate, [ids])
refused("job.evaluate(data='valid'): expected 'test' or 'validation'", job.evaluate, loader,
        data="valid")
refused("which part of a batch are its ids?",
        lambda: next(iter(tandem.DataLoader([(label, label)]))))

for epoch in (range(2) if WAY == "range" else job.epochs()):
    for step, (batch,) in enumerate(loader):
        if WAY == "exception" and step == 3:
            raise ValueError("no such city")
        if WAY == "fault" and step == 3:
            len(step)
        if WAY == "surrogate" and step == 3:
            raise ValueError("no city \udcff here")
        if WAY in ("break", "early") and step == 3:
            break
        if WAY in ("os_exit", "os_exit_0") and step == 3 and job.rank == 1:
            os._exit(3 if WAY == "os_exit" else 0)
        gradient = optimizer._parameters.gradient.fill_(1e38)
        optimizer._check_finite(gradient, [])   # all finite, though their sum is not
        optimizer.zero_grad(set_to_none=step % 2 == 1)
        refused("called with other ids", model, batch + 1)
        refused("called with other ids", model, {"city": batch[:, 1], "offer": batch[:, 0]})
        batch.neg_()
        refused("called with other ids", model, batch)
        batch.neg_()
        refused("takes them with mode 'sum' alone", tandem.EmbeddingBag("city", mode="mean"),
                batch[:, 0], None, label)
        model({"city": batch[:, 0], "offer": batch[:, 1]})
        if WAY != "no_backward":
            refused("without gradients: call loss.backward() first", optimizer.step)
            rows = model(batch) if step != 5 else model.out(torch.ones(6, 16)).squeeze(1)
            if step == 4:
                assert torch.equal(rows, model(batch.contiguous()))
                (rows.sum() * float("nan")).backward()
                refused("step 4: a gradient is infinite or no number" if epoch == 0
                        else "a gradient is infinite", optimizer.step)
                optimizer.zero_grad()   # of rows, too
                refused("without gradients: call loss.backward() first", optimizer.step)
                rows = model(batch)
            loss = nn.functional.binary_cross_entropy_with_logits(rows, label)
            (loss / 2).backward()
            if step != 5:   # which comes to no rows at all
                loss = nn.functional.binary_cross_entropy_with_logits(model(batch), label)
                (loss / 2).backward()   # a second one adds to the same rows
            model.frozen.requires_grad_(True)
            refused("a parameter of shape (3,) is trained that was frozen", optimizer.step)
            model.frozen.requires_grad_(False)
            kept = model.out.weight.data
            model.out.weight.data = kept.clone()
            refused("parameter out.weight: has other memory", optimizer.step)
            model.out.weight.data = kept
            gradient = model.out.weight.grad
            model.out.weight.grad = gradient.to_sparse()
            refused("parameter out.weight has sparse gradients: say sparse=False", optimizer.step)
            model.out.weight.grad = gradient
        if WAY == "no_step" and step == 3:
            continue
        optimizer.step()
        refused("without a batch", optimizer.step)
    if WAY == "early":
        sys.exit(1)
    if WAY == "second":
        for batch in loader:
            pass
    if WAY != "break":
        refused(f"a second loop over a tandem.DataLoader in epoch {epoch}; its batches are used "
                "up", lambda: next(iter(tandem.DataLoader([(ids,)]))))
    for (batch,) in job.evaluate(loader, data="validation"):
        raise AssertionError("the job keeps no best model")
    for (batch,) in job.evaluate(loader):
        if WAY in ("unscored", "own_metric"):
            continue
        refused("5 logits for a batch of 6 samples; give one for each", job.score, label[:5], label)
        refused("7 labels for a batch of 6 samples; give one for each", job.score, label,
                torch.ones(7))
        refused("where are the labels?", job.score, label)
        refused("job.score: labels: ", job.score, label, ["1"] * 6)
        refused("job.score: logits: ", job.score, [None] * 6, label)
        for strange, text in ((label * 2 - 1, "-1"), (label + 1, "2"), (label * .5 + .25, "0.25"),
                              (label / 0, "nan")):
            refused(f"a label is {text}; labels are 0 or 1", job.score, label, strange)
        with torch.no_grad():
            twice = torch.stack([model(batch)] * 2, 1).double()
        assert not twice[:, 0].is_contiguous()
        if WAY == "probabilities":
            twice = torch.sigmoid(twice)
        job.score(twice[:, 0], label.bool())
        refused("once for each batch", job.score, label, label)
    if WAY == "own_metric":
        job.report(mine=.5)
    if epoch == 1:
        refused("a second loop over job.evaluate() in epoch 1", lambda: next(job.evaluate(loader)))
refused("after the job has ended", lambda: next(job.evaluate(loader)))
refused("by `for batch in job.evaluate(loader)`", lambda: next(iter(loader)))
assert random.random() == random.Random(7).random(), "the script draws what reading has drawn from"
print("all refused")
