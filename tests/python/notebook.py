"""Cells of a notebook that are left in the middle and run again: `notebook.py FOLDER`. A cell is a
function here, and what it leaves behind is what a cell does: no iterator that anybody still has."""
import contextlib
import gc
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref

import numpy
import torch
from torch import nn

import tandem
from tandem.local import LocalCluster

FOLDER = sys.argv[1]
JOB = FOLDER + "/notebook.textproto"
EPOCHS, BATCHES = 3, 7
with open(JOB, "w", encoding="utf-8") as job_file:
    job_file.write(f"""
cluster {{ workers: 2 servers: 1 }}
data {{ format: PROGRAM }}
table {{
  name: "ids" dim: 4 field: "city" field: "offer"
  optimizer {{ kind: ADAGRAD learning_rate: 0.1 }}
}}
table {{
  name: "words" dim: 3 field: "word" ids_per_field: 4
  optimizer {{ kind: SGD learning_rate: 0.1 }}
}}
dense {{ optimizer {{ kind: PROGRAM }} }}
policy {{ kind: BSP }}
reproducible: true
model {{ program {{}} }}
train {{ batch_size: 16 epochs: {EPOCHS} prefetch_steps: 2 }}
evaluation {{ every_epochs: 1 }}
""")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = tandem.EmbeddingBagCollection(["ids"])
        self.words = tandem.EmbeddingBag("word", mode="mean")
        self.layers = nn.Sequential(nn.Linear(11, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids):
        return self.layers(torch.cat([self.rows(ids).values(), self.words(*ids["word"])],
                                     1)).squeeze(1)


def data():
    drawn = torch.Generator().manual_seed(3)
    return [({"city": torch.randint(0, 9, (1,), generator=drawn),
              "offer": torch.randint(0, 5, (1,), generator=drawn),
              "word": torch.randint(0, 30, (k % 4,), generator=drawn)}, float(k % 3 == 0))
            for k in range(8 * BATCHES)]


def together(samples):
    lengths = torch.tensor([0] + [len(ids["word"]) for ids, _ in samples])
    ids = {f: torch.cat([s[f] for s, _ in samples]) for f in ("city", "offer", "word")}
    return {**ids, "word": (ids["word"], lengths.cumsum(0)[:-1])}, torch.tensor(
        [y for _, y in samples])


def new_loader(batch_size=8, samples=None):
    return tandem.DataLoader(torch.utils.data.DataLoader(samples or data(), batch_size=batch_size,
                                                         shuffle=True,
                                                         collate_fn=together), features=0)


class Notebook:
    """Its variables."""

    def __init__(self, name, **how):
        self.out = f"{FOLDER}/{name}"
        torch.manual_seed(5)
        self.job = tandem.init(JOB, **(how or {"out": self.out}))
        self.model = Model()
        self.optimizer = tandem.DistributedOptimizer(torch.optim.Adam(self.model.parameters(),
                                                                      lr=.01), self.model)
        self.train, self.test, self.losses, self.scored = new_loader(), new_loader(), [], []

    def cell(self, at=lambda step: None, scoring=lambda batch: None):
        """What one runs, and runs again."""
        for epoch in self.job.epochs():
            self.body(epoch, at, scoring)

    def body(self, epoch, at=lambda step: None, scoring=lambda batch: None):
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
        rows = {name: dict(zip(t.keys.tolist(), t.weights.tolist()))
                for name, t in saved.tables.items()}
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


def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def close(notebook):
    """What closing its job says."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        notebook.job.close()
    return said.getvalue()


def same(name, other, losses=True, plain=None):
    plain = plain or PLAIN
    first, second = plain.whole(), other.whole()
    assert first == second, name
    if losses:
        assert other.losses == plain.losses, (name, other.losses, plain.losses)


def cells_go_on():
    """In the body of either loop, before a step or behind it, by a break or in another loop: the
    run is the one that nothing has happened to."""
    n = Notebook("again")
    ids, label = next(iter(n.train))
    assert n.model(ids).shape == label.shape
    del ids, label
    at, scoring = raising(0, 3, 4, 11, 20), raising(0, 5, 12, 20)
    cells = 0
    while interrupted(lambda: n.cell(at, scoring)):
        cells += 1
    assert cells == 9 and n.job._worker.ended, cells
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
            again = not n.job._worker.ended
        if not again:
            break
        cells, seconds = cells + 1, seconds * 1.1
    assert cells >= 1, cells
    # A loss is noted behind its step: that of one that was interrupted there may be missing, and is
    # never there twice.
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


class Raising(list):
    """Raises KeyboardInterrupt at its reading of this number."""

    def __init__(self, samples, number):
        super().__init__(samples)
        self.left = number

    def __getitem__(self, index):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().__getitem__(index)


class Stream:
    """An iterator over all batches of a job with one epoch, which raises KeyboardInterrupt before
    this one. Told: its place can be saved and set."""

    def __init__(self, number=None):
        self.at, self.number = 0, number

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.number:
            self.number = None
            raise KeyboardInterrupt
        if self.at == 2 * BATCHES:
            raise StopIteration
        self.at += 1
        first = 8 * (self.at % BATCHES)
        return together(data()[first:first + 8])


class Told(Stream):
    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def reading_is_interrupted():
    """A loader that raises is read again; where that cannot be, somebody is told."""
    n = Notebook("raises")
    n.train = new_loader(samples=Raising(data(), 17))
    assert interrupted(n.cell)
    n.cell()
    same("raises", n)
    # ... also while a resumed run looks where it stands, and while it passes over batches.
    n = Notebook("passes")
    assert interrupted(lambda: n.cell(raising(11)))
    losses = n.losses
    close(n)
    n = Notebook("passes", resume=n.out)
    n.out, n.losses = f"{FOLDER}/passes", losses
    n.train, wait = new_loader(samples=Raising(data(), 20)), n.job._worker.next

    def interrupts(**_):
        n.job._worker.next = wait
        raise KeyboardInterrupt
    n.job._worker.next = interrupts
    assert interrupted(n.cell) and n.job._worker.next == wait and interrupted(n.cell) \
        and n.losses == losses
    n.cell()
    same("passes", n)
    # An iterator goes on with what it has left, an ended generator with nothing.
    once = {"set": ["train.epochs=1", "train.prefetch_steps=0"]}
    n = Notebook("stream", out=f"{FOLDER}/stream", **once)
    n.train = tandem.DataLoader(Stream(), features=0)
    n.cell()
    plain = n
    for name, iterable, resumed, warned in (("iterator", Stream(4), Stream(3), 2),
                                            ("told", Told(4), Told(6), 0)):
        n = Notebook(name, out=f"{FOLDER}/{name}", **once)
        n.train = tandem.DataLoader(iterable, features=0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert interrupted(n.cell) and interrupted(lambda: n.cell(raising(5)))
            losses = n.losses
            close(n)
            n = Notebook(name, resume=n.out, **once)
            n.out, n.losses, n.train = f"{FOLDER}/{name}", losses, tandem.DataLoader(resumed,
                                                                                     features=0)
            assert interrupted(n.cell)
            n.cell()
        same(name, n, plain=plain)
        assert len(caught) == warned and all(f"over an iterator ({type(iterable).__name__}): a "
                                             "batch may be lost"
                                             in str(w.message) for w in caught), [str(w.message)
                                                                                  for w in caught]
    n = Notebook("generator", out=f"{FOLDER}/generator", **once)
    n.train = tandem.DataLoader((batch for batch in Stream(4)), features=0)
    assert interrupted(n.cell)
    for _ in range(2):
        refused(tandem.Error, "has ended it, since it is a generator, and the rest of its batches "
                              "is lost", n.cell)
    n.train = tandem.DataLoader((batch for batch in Stream()), features=0)
    n.cell()
    same("generator", n, plain=plain)


def looks():
    """model(x) where there is no batch at hand, or one that was left."""
    n = Notebook("looks")
    n.model.eval()
    one = together(data()[:3])[0]
    first = n.model(one)
    unknown = n.model({"city": torch.tensor([77]), "offer": torch.tensor([-1]),
                       "word": (torch.tensor([99]), torch.tensor([0]))})
    assert first.shape == (3,) and unknown.shape == (1,)
    # Offsets of a look are read as those of the loader's batches: these have one for each sample,
    # others the end, too.
    values, offsets = one["word"]
    ended = torch.cat([offsets, torch.tensor([len(values)])])
    assert n.model.words(values, offsets).shape == (3, 3)
    assert n.model.words(values, ended).shape == (4, 3)
    for tell in (lambda: tandem.DataLoader([], features=0, include_last_offset=True),
                 lambda: tandem.DataLoader([], features=0)._ids(({"word": (values, ended)},
                                                                 torch.ones(3)))):
        n.job._worker.tables.seen_offsets.clear()
        tell()
        for form in offsets, ended:
            assert torch.equal(n.model.words(values, form), n.model.words(values, offsets))
        rows = tandem.EmbeddingBagCollection(["words"])
        assert torch.equal(rows({"word": (values, ended)}).values(),
                           rows({"word": (values, offsets)}).values())
    kept = iter(n.train)
    next(kept)
    refused(ValueError, "or leave the loop over epoch 0 first (an iterator that a variable keeps "
                        "ends by its close())",
            lambda: n.model(one))
    kept.close()
    assert torch.equal(n.model(one), first)
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
    look_is_left(n, one)
    said = close(n)
    step = int(said.partition(f"checkpoint in {n.out}/model (step ")[2].partition(");")[0])
    assert step >= 5 and f"resume={n.out!r})" in said, said
    serving = tandem.load(n.out).serving(n.model)
    assert torch.allclose(serve(serving, one), now, rtol=1e-6)
    try:
        n.model(one)
    except RuntimeError as error:
        assert "there is no batch at hand" in str(error)
    else:
        raise AssertionError("rows of a job that has ended")


def look_is_left(n, ids):
    """A Ctrl-C ends a look, and the rows that come later find their memory."""
    empty, server = torch.empty, n.job._worker.cluster._processes["server-0"]

    def still_there(seconds):
        """Whether the room for rows is, behind a Ctrl-C so many seconds after it was made."""
        rows = []

        def watched(*shape):
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
            room = numpy.empty(shape, dtype=numpy.float32)
            rows.append(weakref.ref(room))
            return torch.from_numpy(room)
        torch.empty = watched
        try:
            assert interrupted(lambda: n.model(ids))
        finally:
            torch.empty = empty
        gc.collect()
        assert len(rows) == 1, len(rows)
        return rows[0]() is not None
    gc.collect()
    gc.disable()  # Python ignores a Ctrl-C that reaches a __del__
    server.send_signal(signal.SIGSTOP)
    try:  # a busy machine may hear the first ones before it has asked for the rows
        assert any(still_there(seconds) for seconds in (.1, 1, 5))
    finally:
        server.send_signal(signal.SIGCONT)
        gc.enable()
    assert n.model(ids).shape == (3,)


def serve(model, ids):
    pairs = model.rows({"city": ids["city"], "offer": ids["offer"]}).values()
    return model.layers(torch.cat([pairs, model.words(*ids["word"])], 1)).squeeze(1)


def runs_are_resumed():
    """A job that is closed in the middle, of an epoch, of an evaluation or of nothing, goes on as
    if it had not been."""
    def at_end(n):  # of the body
        for epoch in n.job.epochs():
            n.body(epoch)
            if epoch == 1:
                raise KeyboardInterrupt
    # A look at batches before the loop over epochs loses nothing: of the loader, of an evaluation,
    # or of none.
    for name, cell, train, test in (
            ("closed", lambda n: n.cell(raising(4)), True, 0),
            ("closed-test", lambda n: n.cell(scoring=raising(9)), None, 0),
            ("closed-look", lambda n: n.cell(scoring=raising(9)), None, 1),
            ("closed-own", lambda n: n.cell(scoring=raising(7)), None, 9),
            ("closed-end", at_end, False, 0),
            ("closed-first", lambda n: n.cell(raising(0)), None, 0)):
        n = Notebook(name)
        assert interrupted(lambda: cell(n))  # pylint: disable=cell-var-from-loop
        losses = n.losses
        said = close(n)
        assert "checkpoint in" in said, (name, said)
        n = Notebook(name, resume=n.out)
        n.out = f"{FOLDER}/{name}"
        assert n.job.out == n.out
        n.losses = losses
        if train is not None:
            assert (next(iter(n.train), None) is not None) == train, name
        if test:
            looked = len(list(itertools.islice(n.job.evaluate(n.test), test)))
            assert looked == min(test, BATCHES), (name, looked)
            n.job.report(mine=looked)
        n.cell()
        same(name, n)
    with Notebook("with").job:
        pass
    with open(f"{FOLDER}/with/summary.json", encoding="utf-8") as file:
        assert "checkpointed_step" in json.load(file)["stopped"]


def loops_stand_alone():
    """A run that trains outside of job.epochs() resumes from a checkpoint in the middle of the
    epoch."""
    out, every = f"{FOLDER}/alone", ["checkpoint.every_steps=3"]

    def at(step):
        time.sleep(.3)  # so that the checkpoint comes in this epoch
        if step > 0 and os.path.exists(out + "/model/LATEST"):
            raise KeyboardInterrupt
    n = Notebook("alone", out=out, set=every)
    assert interrupted(lambda: n.body(0, at))
    losses = n.losses[:tandem.load(out).step]
    assert 0 < len(losses) < BATCHES, losses
    n.job._worker.fail("no further checkpoint")
    n.job._worker.close()
    n.job.close()
    n = Notebook("alone", resume=out, set=every)
    n.out, n.losses = out, losses
    n.body(0)
    n.body(1)
    n.cell()
    same("alone", n)


def closing_is_interrupted():
    """A Ctrl-C while the checkpoint is written, here by a server that does not answer: job.close()
    again waits for it."""
    n = Notebook("closing")
    step = n.optimizer.step

    def steps(**how):
        step(**how)
        raise KeyboardInterrupt  # the worker wants another batch, also while the job is closed
    n.optimizer.step = steps
    assert interrupted(n.cell)
    server = n.job._worker.cluster._processes["server-0"]
    server.send_signal(signal.SIGSTOP)
    for _ in range(2):
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert interrupted(n.job.close) and not n.job._worker.ended
    server.send_signal(signal.SIGCONT)
    said = close(n)
    assert f"checkpoint in {n.out}/model (step " in said, said
    # ... or while the script gives its part of it.
    n = Notebook("closing", resume=n.out)
    assert interrupted(lambda: n.cell(raising(12)))
    checkpoint = n.job._worker.progress.checkpoint

    def interrupts():
        n.job._worker.progress.checkpoint = checkpoint
        os.kill(os.getpid(), signal.SIGINT)
        checkpoint()
    n.job._worker.progress.checkpoint = interrupts
    assert interrupted(n.job.close) and n.job._worker.progress.checkpoint == checkpoint
    assert "checkpoint in" in close(n)
    n = Notebook("closing", resume=n.out)
    n.out = f"{FOLDER}/closing"
    n.cell()
    same("closing", n, losses=False)


def jobs_end():
    """A job ends whatever the script has given it, and one that did not begin leaves nothing."""
    hook, start = sys.excepthook, LocalCluster.start_servers

    def interrupts(*_):
        raise KeyboardInterrupt
    LocalCluster.start_servers = interrupts
    try:
        assert interrupted(lambda: Notebook("not-begun"))
    finally:
        LocalCluster.start_servers = start
    assert sys.excepthook is hook
    n = Notebook("unpacked")
    next(iter(n.train))
    n.optimizer.param_groups[0]["tag"] = object()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        n.job.close()
    assert "['tag'] is a object, which no checkpoint can hold" in said.getvalue() \
        and n.job._worker.ended, said.getvalue()
    # A log line in JSON is not an event.
    os.environ["TANDEM_LOG_FORMAT"] = "json"
    n = Notebook("json")
    next(iter(n.train))
    said = close(n)
    del os.environ["TANDEM_LOG_FORMAT"]
    assert f"checkpoint in {n.out}/model (step " in said, said
    # The logs of a resumed run have both, and messages are about what tandem.init() has.
    n = Notebook("logged")
    n.job.close()
    names = [f"{n.out}/logs/{name}.log" for name in ("scheduler", "server-0")]
    logs = [open(name, encoding="utf-8").read() for name in names]
    refused(tandem.Error, f"out={n.out}: an earlier run has left summary.json there; hint: name "
                          "another folder, or remove this "
            "one", lambda: Notebook("logged"))
    refused(tandem.Error, "no field named \"epohs\"",
            lambda: tandem.init(JOB, resume=n.out, set=["train.epohs=1"]))
    assert logs == [open(name, encoding="utf-8").read() for name in names] \
        and not os.path.exists(n.out + ".log")
    m = Notebook("logged", resume=n.out)
    m.job.close()
    for name, log in zip(names, logs):
        with open(name, encoding="utf-8") as file:
            both = file.read()
        assert both.startswith(log) and len(both) > len(log) > 0, name


def steps_are_interrupted():
    """A Ctrl-C while the last step of an epoch waits: the evaluation is there without the loop over
    epochs."""
    n = Notebook("stepping")
    wait = n.job._worker.next

    def interrupts(**how):
        if n.job._worker.stepping and len(n.losses) == BATCHES - 1:
            n.job._worker.next = wait
            raise KeyboardInterrupt
        return wait(**how)
    n.job._worker.next = interrupts
    assert interrupted(n.cell) and n.job._worker.stepping
    assert next(iter(n.job.evaluate(n.test)), None) is not None and not n.job._worker.stepping
    n.cell()
    same("stepping", n, losses=False)


def evaluations_are_left():
    """A break behind a score ends the cell with an error, whether batches were read ahead or not.
    The cell that is run again scores the rest."""
    for depth in 0, 2:
        n = Notebook(f"left-{depth}", out=f"{FOLDER}/left-{depth}",
                     set=[f"train.prefetch_steps={depth}"])

        def cell():
            for epoch in n.job.epochs():  # pylint: disable=cell-var-from-loop
                for ids, label in n.train:
                    n.optimizer.zero_grad()
                    nn.functional.binary_cross_entropy_with_logits(n.model(ids), label).backward()
                    n.optimizer.step()
                for ids, label in n.job.evaluate(n.test):
                    with torch.no_grad():
                        n.job.score(n.model(ids), label)
                    n.scored.append(epoch)
                    if n.scored.count(epoch) in (2, 5):
                        break
        for epoch in range(EPOCHS):
            for scored in 2, 5:
                refused(tandem.Error, f"the loop over job.evaluate() in epoch {epoch} was left "
                                      "before the last batch", cell)
                assert n.scored == PLAIN.scored[:BATCHES * epoch + scored], n.scored
        cell()
        assert n.job._worker.ended and n.scored == PLAIN.scored, n.scored
        same(f"left-{depth}", n, losses=False)
        evaluations = []
        for out in PLAIN.out, n.out:
            with open(f"{out}/summary.json", encoding="utf-8") as file:
                evaluations.append([{**e, "time": None} for e in json.load(file)["evaluations"]])
        assert evaluations[0] == evaluations[1] and evaluations[0][0]["samples"] == 8 * BATCHES, \
            evaluations


def own_metrics_are_whole():
    """An evaluation without scores gives all batches again, unless they can be read once alone."""
    n = Notebook("own", out=f"{FOLDER}/own", set=["train.epochs=2"])
    calls, whole = itertools.count(), together(data())[0]

    def cell(at):
        for _ in n.job.epochs():
            for ids, label in n.train:
                n.optimizer.zero_grad()
                nn.functional.binary_cross_entropy_with_logits(n.model(ids), label).backward()
                n.optimizer.step()
            found = []
            for ids, _ in n.job.evaluate(n.test):
                with torch.no_grad():
                    found.append(n.model(ids))
                at(next(calls))
            n.job.report(mine=len(found))
            return torch.cat(found).sort().values, n.model(whole).sort().values

    at, left = raising(2, 4, 9), 0
    while interrupted(lambda: n.scored.append(cell(at))):
        left += 1
    found, wanted = n.scored.pop()
    assert left == 3 and found.shape == wanted.shape and torch.allclose(found, wanted), \
        (left, found, wanted)
    n.test = tandem.DataLoader(iter(list(n.test._iterable)), features=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert interrupted(lambda: cell(raising(next(calls) + 2))) \
            and cell(at)[0].numel() == 8 * (BATCHES - 1)
    assert len(caught) == 1 and "own is without the first 1 batches" in str(caught[0].message), \
        caught
    n.cell()


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
    run = subprocess.run([sys.executable, "-i"], input=typed, text=True, capture_output=True,
                         timeout=300, check=False)
    assert run.stderr.count("\nKeyboardInterrupt\n") == 2 and "Error" not in run.stderr, run.stderr
    assert "checkpoint in" in run.stdout, run.stdout
    first, second = PLAIN.whole(), Notebook.whole(types.SimpleNamespace(out=f"{FOLDER}/prompt"))
    assert first == second


if __name__ == "__main__":
    PLAIN = Notebook("plain")
    PLAIN.cell()
    assert len(PLAIN.losses) == EPOCHS * BATCHES and PLAIN.scored == [e for e in range(EPOCHS)
                                                                      for _ in range(BATCHES)]
    for part in sys.argv[2:] or [
            "cells_go_on", "signals_are_heard", "loaders_are_made_again", "reading_is_interrupted",
            "looks", "runs_are_resumed", "loops_stand_alone", "steps_are_interrupted",
            "evaluations_are_left", "own_metrics_are_whole", "closing_is_interrupted", "jobs_end",
            "prompts_go_on"]:
        globals()[part]()
    print("the same in all ways")
