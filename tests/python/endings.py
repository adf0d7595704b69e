"""How fast a job ends when its script does in every way but the right one, and that nothing is left
then. By hand, COUNT times each; fails where a job is not over within 10 s, names nobody, or leaves
a process behind:

    python3 tests/python/endings.py build/bin/tandem COUNT

As a worker (`endings.py FOLDER WAY`) it trains until WAY, and writes to FOLDER who it is.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

LIMIT = 10        # seconds from the event to the end of `tandem run`
START = 100       # to the first steps
JOB = pathlib.Path(__file__).resolve().parent.parent / "testdata" / "program.textproto"
WAYS = {          # what `tandem run` says
    "exception": r"failed: worker 1: ValueError: no such city \(endings.py:\d+\)",
    "early return": r"failed: worker 1: endings.py ended at step \d+, before the job had",
    "kill -9": r"failed: worker 1\b.*signal 9",
    "kill -9 with two forked loader workers": r"failed: worker 1\b.*signal 9",
    "Ctrl-C": r"failed: stopped by a signal, checkpoint at step \d+",
}


# ---- a worker ----

def leave_word(folder, name):
    """With the time, on a clock that all processes have in common."""
    path = pathlib.Path(folder, name)
    path.with_suffix(".tmp").write_text(f"{os.getpid()} {time.monotonic()}", encoding="utf-8")
    path.with_suffix(".tmp").rename(path)


def work(folder, way):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import tandem

    job = tandem.init()
    rows, model = tandem.EmbeddingBagCollection(), nn.Linear(16, 1)
    optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
    data = TensorDataset(torch.arange(128000).reshape(-1, 2) % 100)
    loader = DataLoader(data, batch_size=16, num_workers=2 if "forked" in way else 0)
    for _ in job.epochs():
        for ids, in tandem.DataLoader(loader, features=0):
            optimizer.zero_grad()
            model(rows(ids).values()).square().mean().backward()
            optimizer.step()
            time.sleep(.01)
            if job.step == 10:
                leave_word(folder, f"worker-{job.rank}")
            if job.step == 20 and job.rank == 1 and way in ("exception", "early return"):
                leave_word(folder, "event")
                if way == "exception":
                    raise ValueError("no such city")
                return


# ---- who starts jobs ----

def wait_for(what, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(.01)
    return what()


def word(path):
    if not path.exists():
        return None
    pid, at = path.read_text(encoding="utf-8").split()
    return int(pid), float(at)


def running(folder):
    """Command lines of processes that belong to the job: all of them, the loader's too, name its
    folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") \
                if entry.name.isdigit() else ""
        except OSError:
            continue
        if str(folder) in line and int(entry.name) != os.getpid():
            found.append(f"{entry.name}: {line}")
    return found


def end_one(tandem, way, folder):
    """Seconds from the event to the end, and from there until nothing was left."""
    output = folder / "said"
    with open(output, "w", encoding="utf-8") as said:
        run = subprocess.Popen([tandem, "run", JOB, "--set", "train.epochs=1000", "--out",
                                folder / "out", "--python", __file__,
                                "--", folder, way], stdout=said, stderr=subprocess.STDOUT,
                               start_new_session=True, env=dict(os.environ,
                                        TANDEM_PYTHON=os.environ.get("TANDEM_PYTHON",
                                                                     sys.executable)))
        try:
            ready = wait_for(lambda: all(word(folder / f"worker-{w}") for w in (0, 1)), START)
            assert ready, f"no training within {START} s:\n{output.read_text(encoding='utf-8')}"
            begun = time.monotonic()
            if "kill" in way:
                os.kill(word(folder / "worker-1")[0], signal.SIGKILL)
            elif way == "Ctrl-C":
                run.send_signal(signal.SIGINT)
            else:
                _, begun = wait_for(lambda: word(folder / "event"), START)
            code = run.wait(LIMIT)
            took = time.monotonic() - begun
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()
    text = output.read_text(encoding="utf-8")
    assert code == (-signal.SIGINT if way == "Ctrl-C" else 1), (code, text)
    assert re.search(WAYS[way], text), text
    ended = time.monotonic()
    # A loader's processes look every five seconds whether their parent is there.
    left = wait_for(lambda: not running(folder), LIMIT)
    assert left, running(folder)
    return took, time.monotonic() - ended, re.search(".*(?:" + WAYS[way] + ").*", text)[0]


def main(tandem, count):
    for way in WAYS:
        took, left, last = [], [], ""
        for _ in range(count):
            with tempfile.TemporaryDirectory() as folder:
                seconds, after, last = end_one(tandem, way, pathlib.Path(folder))
            took.append(seconds)
            left.append(after)
        print(f"{way}: {len(took)} of {count} ended by name, the slowest after {max(took):.1f} s, "
              f"nothing left {max(left):.1f} s later; last: {last}", flush=True)


if sys.argv[1:2] and os.path.isdir(sys.argv[1]):
    work(sys.argv[1], sys.argv[2])
else:
    main(sys.argv[1], int(sys.argv[2]))
