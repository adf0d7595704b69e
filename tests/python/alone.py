"""tandem.init("job.textproto") where nothing has been started, as in a notebook. `alone.py JOB
FOLDER` runs itself in every way of ending; nothing is left behind by any."""
import json
import os
import signal
import subprocess
import sys
import time

JOB, FOLDER, WAY = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""


def train(out, seed, way=""):
    import torch
    import tandem
    job = tandem.init(JOB, set=[f"seed={seed}", "cluster.servers=2"], out=out)
    assert (job.rank, job.world_size, job.seed, job.out) == (0, 1, seed, out)
    rows, model = tandem.EmbeddingBagCollection(), torch.nn.Linear(16, 1)
    optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
    loader = tandem.DataLoader([torch.arange(8).reshape(4, 2) + i for i in range(10)])
    for _ in job.epochs():
        for ids in loader:
            optimizer.zero_grad()
            model(rows(ids).values()).square().mean().backward()
            optimizer.step()
            if way and job.step == 3:
                print("step 3", flush=True)
                if way == "exception":
                    raise ValueError("no such city")
                if way == "wait":
                    time.sleep(600)
                sys.exit(0)
    with open(out + "/summary.json", encoding="utf-8") as file:
        assert json.load(file)["samples"] == 2 * 40
    assert tandem.load(out).tables["ids"].rows == 17  # as that of out/model


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


def main():
    closed()
    for seed, out in ((1, FOLDER + "/first"), (2, FOLDER + "/second")):  # one after the other
        train(out, seed)
        nothing_left(out, 0)
    for way, said in (("exception", "ValueError: no such city (alone.py:"),
                      ("early", "alone.py ended at step 3, before the job had")):
        child = start(way)
        child.communicate(timeout=60)
        nothing_left(f"{FOLDER}/{way}", 0)
        assert said in log(way), log(way)
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


if WAY:
    train(f"{FOLDER}/{WAY}", 1, WAY)
else:
    main()
