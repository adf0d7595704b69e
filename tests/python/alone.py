"""tandem.init("job.textproto") where nothing has been started, as in a notebook. `alone.py JOB
FOLDER` runs itself in every way of ending; nothing is left behind by any."""
import json
import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

JOB, FOLDER, WAY = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""


def train(out, seed, way=""):
    import atexit
    atexit.register(lambda: print("what the script registered"))
    import torch
    import tandem
    job = tandem.init(JOB, set=[f"seed={seed}", "cluster.servers=2"], out=out)
    assert (job.rank, job.world_size, job.seed, job.out) == (0, 1, seed, out)
    # The token is that of this job. A group of this process with others has another one, or none.
    assert "TANDEM_TOKEN" not in os.environ
    rows, model = tandem.EmbeddingBagCollection(), torch.nn.Linear(16, 1)
    optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
    if way == "unsaved":
        job.keep(broken=Broken())
    loader = tandem.DataLoader([torch.arange(8).reshape(4, 2) + i for i in range(10)])
    for _ in job.epochs():
        for ids in loader:
            optimizer.zero_grad()
            model(rows(ids).values()).square().mean().backward()
            optimizer.step()
            if way and job.step == 3:
                print("step 3", flush=True)
                Broken.broken = True
                if way in ("exception", "thread"):
                    raise ValueError("no such city")
                if way == "wait":
                    time.sleep(600)
                if way == "status":
                    raise SystemExit(3)
                sys.exit(0)
    with open(out + "/summary.json", encoding="utf-8") as file:
        assert json.load(file)["samples"] == 2 * 40
    assert tandem.load(out).tables["ids"].rows == 17  # as that of out/model


class Broken:
    """Cannot be in a checkpoint any more once it is broken."""
    broken = False

    def state_dict(self):
        if self.broken:
            raise ValueError("no state")
        return {}

    def load_state_dict(self, state):
        pass


def left(out):
    """Processes of a run, by their command lines."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if out in words and os.path.basename(words[0]).startswith("tandem-"):
            found.append(words)
    return found


def nothing_left(out, seconds):
    deadline = time.monotonic() + seconds
    while left(out) and time.monotonic() < deadline:
        time.sleep(.02)
    assert not left(out), left(out)


def start(way):
    return subprocess.Popen([sys.executable, __file__, JOB, FOLDER, way], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def log(way):
    with open(f"{FOLDER}/{way}/logs/scheduler.log", encoding="utf-8") as file:
        return file.read()


def closed():
    """In one interpreter, as in a notebook: a job that is closed, or has failed, gives way to the
    next."""
    import tandem
    out = FOLDER + "/closed"
    job = tandem.init(JOB, out=out)
    try:
        tandem.init(JOB, out=out + "-other")
    except tandem.Error as error:
        assert "job.close() ends it" in str(error)
    else:
        raise AssertionError("two jobs at once")
    job.close()
    nothing_left(out, 0)
    job.close()
    assert "closed at step 0, before the job had ended" in log("closed")
    try:
        with tandem.init(JOB, out=out + "-with") as job:
            raise ValueError("no such city")
    except ValueError:
        pass
    nothing_left(out + "-with", 0)
    assert "ValueError: no such city (alone.py:" in log("closed-with")
    # The thread that begins the job ends before the job.
    jobs = []
    thread = threading.Thread(target=lambda: jobs.append(tandem.init(JOB, out=out + "-thread")))
    thread.start()
    thread.join()
    assert len(left(out + "-thread")) == 3, left(out + "-thread")
    jobs[0].barrier()
    jobs[0].close()
    nothing_left(out + "-thread", 0)
    # A server dies: the cell ends with an error, and the next one begins.
    job = tandem.init(JOB, out=out + "-failed")
    job._worker.cluster._processes["server-0"].kill()
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            job.barrier()
    except tandem.Error as error:
        assert "server 0" in str(error), str(error)
    else:
        raise AssertionError("it goes on without a server")
    job.close()
    nothing_left(out + "-failed", 0)
    assert sys.excepthook is sys.__excepthook__
    train(out + "-again", 1)
    nothing_left(out + "-again", 0)


def linked():
    """Another user makes a link where the log was a moment ago. Nothing goes through it."""
    import tandem
    out, target = FOLDER + "/linked", FOLDER + "/precious"
    with open(target, "w", encoding="ascii") as file:
        file.write("content")
    with mock.patch.object(os, "remove", lambda path: os.symlink(target, path)):
        try:
            tandem.init(JOB, out=out)
        except FileExistsError as error:
            assert out + ".log" in str(error), str(error)
        else:
            raise AssertionError("it writes through a link")
    with open(target, encoding="ascii") as file:
        assert file.read() == "content"


def main():
    linked()
    closed()
    for seed, out in ((1, FOLDER + "/first"), (2, FOLDER + "/second")):  # one after the other
        train(out, seed)
        nothing_left(out, 0)
    for way, said, status in (("exception", "ValueError: no such city (alone.py:", 1),
                              ("thread", "ValueError: no such city (alone.py:", 1),
                              ("unsaved", "closed at step 3, before the job had ended", 1),
                              ("status", "ended at step 3, before the job had", 3),
                              ("early", '"checkpointed_step":4,', 0)):  # by sys.exit(0)
        child = start(way)
        printed, _ = child.communicate(timeout=60)
        nothing_left(f"{FOLDER}/{way}", 0)
        assert said in log(way), log(way)
        assert child.returncode == status, (way, child.returncode, printed)
        assert printed.count("what the script registered") == 1, printed
        assert way != "unsaved" or "tandem: no checkpoint was written: " in printed, printed
    child = start("wait")
    assert "step 3" in child.stdout.readline()
    assert len(left(FOLDER + "/wait")) == 3
    child.send_signal(signal.SIGKILL)
    child.wait()
    nothing_left(FOLDER + "/wait", 10)
    import tandem
    with open(FOLDER + "/bad.textproto", "w", encoding="utf-8") as file:
        file.write("cluster { workers: 1 servers: 1 }\nmodle {}\n")
    for text, call in (("bad.textproto:2:",
                        lambda: tandem.init(FOLDER + "/bad.textproto", out=FOLDER + "/bad")),
                       ("out= needs a job that this process starts",
                        lambda: tandem.init(JOB, "tcp://127.0.0.1:1", out=FOLDER + "/bad")),
                       ("an earlier run has left summary.json there",
                        lambda: tandem.init(JOB, out=FOLDER + "/first")),
                       ("index 3 of a job with this worker alone",
                        lambda: tandem.init(JOB, index=3)),
                       ("tandem.init(\"job.textproto\") for a job of this process alone",
                        tandem.init)):
        try:
            call()
        except tandem.Error as error:
            assert text in str(error) and "\n" not in str(error), str(error)
        else:
            raise AssertionError(text)
    nothing_left(FOLDER + "/bad", 0)
    nothing_left(FOLDER + "/first", 0)


if WAY == "thread":
    trainer = threading.Thread(target=train, args=(f"{FOLDER}/{WAY}", 1, WAY))
    trainer.start()
    trainer.join()
elif WAY:
    train(f"{FOLDER}/{WAY}", 1, WAY)
else:
    main()
