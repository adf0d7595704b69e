"""Cells of a notebook that are left in the middle and run again: `notebook.py FOLDER`. A cell is a function here, and what
it leaves behind is what a cell does: no iterator that anybody still has."""
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import types
import warnings

import torch
from torch import nn

import tandem

FOLDER = sys.argv[1]
JOB = FOLDER + "/notebook.textproto"
EPOCHS, BATCHES = 3, 7
with open(JOB, "w", encoding="utf-8") as job_file:
    job_file.write(f"""
cluster {{ workers: 2 servers: 1 }}
data {{ format: PROGRAM }}
table {{ name: "ids" dim: 4 field: "city" field: "offer" optimizer {{ kind: ADAGRAD learning_rate: 0.1 }} }}
table {{ name: "words" dim: 3 field: "word" ids_per_field: 4 optimizer {{ kind: SGD learning_rate: 0.1 }} }}
dense {{ optimizer {{ kind: PROGRAM }} }}
policy {{ kind: BSP }}
reproducible: true
model {{ program {{}} }}
train {{ batch: 16 epochs: {EPOCHS} depth: 2 }}
evaluation {{ every_epochs: 1 }}
""")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.words = tandem.EmbeddingBagCollection(["ids"]), tandem.EmbeddingBag("word", mode="mean")
        self.layers = nn.Sequential(nn.Linear(11, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids):
        return self.layers(torch.cat([self.rows(ids).values(), self.words(*ids["word"])], 1)).squeeze(1)


def data():
    drawn = torch.Generator().manual_seed(3)
    return [({"city": torch.randint(0, 9, (1,), generator=drawn), "offer": torch.randint(0, 5, (1,), generator=drawn),
              "word": torch.randint(0, 30, (k % 4,), generator=drawn)}, float(k % 3 == 0)) for k in range(8 * BATCHES)]


def together(samples):
    lengths = torch.tensor([0] + [len(ids["word"]) for ids, _ in samples])
    ids = {f: torch.cat([s[f] for s, _ in samples]) for f in ("city", "offer", "word")}
    return {**ids, "word": (ids["word"], lengths.cumsum(0)[:-1])}, torch.tensor([y for _, y in samples])


def new_loader(batch_size=8):
    return tandem.DataLoader(torch.utils.data.DataLoader(data(), batch_size=batch_size, shuffle=True, collate_fn=together),
                             features=0)


class Notebook:
    """Its variables."""

    def __init__(self, name, **how):
        self.out = f"{FOLDER}/{name}"
        torch.manual_seed(5)
        self.job = tandem.init(JOB, **(how or {"out": self.out}))
        self.model = Model()
        self.optimizer = tandem.DistributedOptimizer(torch.optim.Adam(self.model.parameters(), lr=.01), self.model)
        self.train, self.test, self.losses, self.scored = new_loader(), new_loader(), [], []

    def cell(self, at=lambda step: None, scoring=lambda batch: None):
        """What one runs, and runs again."""
        for epoch in self.job.epochs():
            self.model.train()
            for ids, label in self.train:
                self.optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(self.model(ids), label)
                at(len(self.losses))
                loss.backward()
                self.optimizer.step(loss=loss)
                self.losses.append((epoch, loss.item()))
            self.model.eval()
            for ids, label in self.job.evaluate(self.test):
                with torch.no_grad():
                    out = self.model(ids)
                scoring(len(self.scored))
                self.job.score(out, label)
                self.scored.append(epoch)

    def whole(self):
        """What there is in the end."""
        saved = tandem.load(self.out)
        rows = {name: dict(zip(t.keys.tolist(), t.weights.tolist())) for name, t in saved.tables.items()}
        return rows, {name: values.tolist() for name, values in saved.dense.items()}


def raising(*places):
    """Raises once at each of these."""
    left = set(places)

    def at(place):
        if place in left:
            left.remove(place)
            raise KeyboardInterrupt
    return at


def interrupted(call):
    try:
        call()
    except KeyboardInterrupt:
        return True
    return False


def same(name, other, losses=True):
    first, second = PLAIN.whole(), other.whole()
    assert first == second, name
    if losses:
        assert other.losses == PLAIN.losses, (name, other.losses, PLAIN.losses)


def cells_go_on():
    """In the body of either loop, before a step or behind it, by a break or in another loop: the run is the one that
    nothing has happened to."""
    n = Notebook("again")
    ids, label = next(iter(n.train))
    assert n.model(ids).shape == label.shape
    del ids, label
    at, scoring = raising(0, 3, 4, 11, 20), raising(0, 5, 12, 20)
    cells = 0
    while interrupted(lambda: n.cell(at, scoring)):
        cells += 1
    assert cells == 9 and n.job._ended, cells
    assert n.scored == PLAIN.scored
    same("again", n)
    n = Notebook("break")
    for size in 2, 1, 4, 2:
        for epoch in n.job.epochs():
            for taken, (ids, label) in enumerate(n.train):
                n.optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(n.model(ids), label)
                loss.backward()
                n.optimizer.step(loss=loss)
                n.losses.append((epoch, loss.item()))
                if taken == size:
                    break
            break
    n.cell()
    same("break", n)


def signals_are_heard():
    """A Ctrl-C at any moment."""
    n = Notebook("signals")
    cells, seconds = 0, .004
    while True:
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()  # which may itself be interrupted
            again = interrupted(n.cell)
            timer.cancel()
            timer.join()
        except KeyboardInterrupt:
            again = not n.job._ended
        if not again:
            break
        cells, seconds = cells + 1, seconds * 1.1
    assert cells >= 1, cells
    # A loss is noted behind its step: that of one that was interrupted there may be missing, and is never there twice.
    assert len(n.losses) == len({loss for _, loss in n.losses}) <= EPOCHS * BATCHES
    same("signals", n, losses=False)


def loaders_are_made_again():
    """In the cell that is run again: one with the same batches goes on, one with others begins."""
    n = Notebook("remade")
    assert interrupted(lambda: n.cell(raising(4)))
    n.train = new_loader()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert interrupted(lambda: n.cell(raising(9)))
        n.train = new_loader()
        n.cell()
    same("remade", n)
    n = Notebook("other")
    assert interrupted(lambda: n.cell(raising(2)))
    n.train = new_loader(batch_size=16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        n.cell()
    assert "goes on with the first batch of another loader" in str(caught[0].message), caught
    ahead = [loss for epoch, loss in n.losses if epoch == 0]
    assert 2 + 4 <= len(ahead) <= 2 + 4 + 4 and len(n.losses) == len(ahead) + 2 * 4, n.losses
    # A loader that raises is read again.
    n = Notebook("raises")

    class Once(list):
        broken = True

        def __getitem__(self, index):
            if Once.broken and index == 17:
                Once.broken = False
                raise OSError("a file is not there")
            return super().__getitem__(index)
    n.train = tandem.DataLoader(torch.utils.data.DataLoader(Once(data()), batch_size=8, shuffle=True, collate_fn=together),
                                features=0)
    try:
        n.cell()
    except OSError:
        n.cell()
    same("raises", n)


def looks():
    """model(x) where there is no batch at hand, or one that was left."""
    n = Notebook("looks")
    n.model.eval()
    one = together(data()[:3])[0]
    first = n.model(one)
    unknown = n.model({"city": torch.tensor([77]), "offer": torch.tensor([-1]), "word": (torch.tensor([99]), torch.tensor([0]))})
    assert first.shape == (3,) and unknown.shape == (1,)
    seen = []

    def look(step):
        if step != 5:
            return
        try:
            n.model(one)
        except ValueError as error:
            assert "call it under torch.no_grad()" in str(error)
        else:
            raise AssertionError("rows that no step would train")
        with torch.no_grad():
            seen.append(n.model(one))
        raise KeyboardInterrupt
    assert interrupted(lambda: n.cell(look))
    n.model.eval()
    now = n.model(one)
    assert not torch.equal(now, first) and len(seen) == 1
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        n.job.close()
    step = int(said.getvalue().partition(f"checkpoint in {n.out}/model (step ")[2].partition(");")[0])
    assert step >= 5 and f"resume={n.out!r})" in said.getvalue(), said.getvalue()
    serving = tandem.load(n.out).serving(n.model)
    assert torch.allclose(serve(serving, one), now, rtol=1e-6)
    try:
        n.model(one)
    except RuntimeError as error:
        assert "there is no batch at hand" in str(error)
    else:
        raise AssertionError("rows of a job that has ended")


def serve(model, ids):
    pairs = model.rows({"city": ids["city"], "offer": ids["offer"]}).values()
    return model.layers(torch.cat([pairs, model.words(*ids["word"])], 1)).squeeze(1)


def runs_are_resumed():
    """A job that is closed in the middle, of an epoch, of an evaluation or of nothing, goes on as if it had not been."""
    for name, at, scoring in (("closed", raising(4), raising()), ("closed-test", raising(), raising(9)),
                              ("closed-first", raising(0), raising())):
        n = Notebook(name)
        assert interrupted(lambda: n.cell(at, scoring))
        losses = n.losses
        with contextlib.redirect_stdout(io.StringIO()) as said:
            n.job.close()
        assert "checkpoint in" in said.getvalue(), (name, said.getvalue())
        n = Notebook(name, resume=n.out)
        n.out = f"{FOLDER}/{name}"
        assert n.job.out == n.out
        n.losses = losses
        n.cell()
        same(name, n)
    with Notebook("with").job:
        pass
    with open(f"{FOLDER}/with/summary.json", encoding="utf-8") as file:
        assert "saved_step" in json.load(file)["stopped"]


def prompts_go_on():
    """Python's own prompt shows an exception by the hook that ends a script's job."""
    typed = f"""
import sys
sys.argv[1:], sys.path[:0] = [{FOLDER!r}], [{os.path.dirname(os.path.abspath(__file__))!r}]
from notebook import Notebook, raising
n = Notebook("prompt")
n.cell(raising(4))
n.cell(raising(12))
n.job.close()
n = Notebook("prompt", resume=n.out)
n.cell()
"""
    run = subprocess.run([sys.executable, "-i"], input=typed, text=True, capture_output=True, timeout=300, check=False)
    assert run.stderr.count("\nKeyboardInterrupt\n") == 2 and "Error" not in run.stderr, run.stderr
    assert "checkpoint in" in run.stdout, run.stdout
    first, second = PLAIN.whole(), Notebook.whole(types.SimpleNamespace(out=f"{FOLDER}/prompt"))
    assert first == second


if __name__ == "__main__":
    PLAIN = Notebook("plain")
    PLAIN.cell()
    assert len(PLAIN.losses) == EPOCHS * BATCHES and PLAIN.scored == [e for e in range(EPOCHS) for _ in range(BATCHES)]
    for part in sys.argv[2:] or ["cells_go_on", "signals_are_heard", "loaders_are_made_again", "looks", "runs_are_resumed",
                                 "prompts_go_on"]:
        globals()[part]()
    print("the same in all ways")
