#!/usr/bin/env python3
"""kill -9 of a process in training: Tandem beside torchft on the CPU (gloo, 2 replica groups), in turns.

    $(tests/python/torch_environment.sh peers) tests/bench/peers/killed.py [--rounds N] [--build DIR] [--tiny]

Each measurement starts a job of two workers, lets it train, and kills one process. Figures are the seconds until all workers
finish a step again, and the steps that are lost or done again (`work lost`: the time that they took before the kill).

    torchft           kills one of two replica groups; also the seconds until the other one finishes a step (`alone`)
    tandem_worker     kills a worker of `tandem run`: dense layers by allreduce, BSP, a checkpoint a second; all roles restart
    tandem_replaced   kills a worker: dense layers on the servers, ASP; the worker is replaced and the other one continues
    tandem_server     kills one of two servers of the job of tandem_worker
    tandem_python     as tandem_worker, but the worker is a script that imports PyTorch

Better in the peer: The replica that lives goes on alone after `alone` seconds, with half of the batch. It needs no
checkpoint and loses only the current step; the new replica takes its state from the other one. After most deaths Tandem
restarts all roles from the newest checkpoint. torchft is made for many replica groups of GPUs, where one of a hundred is no loss.

Differences: A replica of torchft has the whole model, here the MLPs of dlrm_torch.py without tables: it has no answer for
tables that do not fit a process. Tandem has tables on two servers. The layers of both are small, so that the steps are short
and the figures are of the mechanism. torchft starts no processes: this script starts the replica again at once, as a perfect
launcher would. `tandem run` is the parent of its roles and sees a death at once. The lighthouse of torchft waits for
heartbeats, here for .5 s (default 5 s) with a tick of .05 s (default .1 s); its managers give up a sum after 5 s (60 s).
One replica of torchft imports PyTorch again; both workers of tandem_python do, at once on the same cores; the compiled worker of
Tandem does not.
"""
# pylint: disable=import-outside-toplevel  # after the check that the packages are there
import datetime
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import common
import runs

JOB = """
seed: 1
cluster { workers: 2 servers: 2 max_restarts: 10 }
data { format: PROGRAM }
table { name: "ids" dim: 8 field: "C1" expected_rows: 20000 optimizer { kind: ADAGRAD learning_rate: 0.01 } }
policy { kind: BSP }
dense { optimizer { kind: PROGRAM } }
model { program {} }
train { batch_size: 64 epochs: 100000 }
limits { report_interval_seconds: 0.1 }
checkpoint { every_seconds: 1 }
"""
BATCH = 64
WARM_UP = 2.  # seconds of training before the kill, and up to one more
PATIENCE = 120


# ---- workers ----


def torchft_replica(flags):
    """One replica group, of one process. A line for each step: time, step, replicas, whether it counts."""
    import torch
    import dlrm_torch
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, patience = dlrm_torch.Mlps(), datetime.timedelta(seconds=5)
    adagrad = torch.optim.Adagrad(model.parameters(), lr=.01)
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def load(state):
        model.load_state_dict(state["model"])
        adagrad.load_state_dict(state["optimizer"])

    manager = Manager(ProcessGroupGloo(timeout=patience), load,
                      lambda: {"model": model.state_dict(), "optimizer": adagrad.state_dict()}, min_replica_size=1,
                      timeout=patience, quorum_timeout=datetime.timedelta(seconds=PATIENCE), rank=0, world_size=1,
                      store_addr="localhost", store_port=store.port, lighthouse_addr=flags.meet,
                      replica_id=f"replica_{flags.rank}", hostname="localhost")
    whole, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, adagrad)
    loss_of = torch.nn.BCEWithLogitsLoss()
    numbers, pairs = torch.randn(BATCH, dlrm_torch.NUMBERS), torch.randn(BATCH, dlrm_torch.PAIRS)
    labels = (torch.rand(BATCH) < .25).float()
    while True:
        optimizer.zero_grad()
        loss_of(whole(numbers, pairs), labels).backward()
        before = manager.current_step()
        optimizer.step()
        replicas, counts = manager.num_participants(), manager.current_step() > before
        print(json.dumps([time.monotonic(), manager.current_step(), replicas, counts]), flush=True)


def lighthouse(_):
    """Prints its address, and serves until its input ends."""
    from torchft.coordination import LighthouseServer
    house = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, quorum_tick_ms=50,
                             heartbeat_timeout_ms=500)
    print(house.address(), flush=True)
    sys.stdin.read()
    house.shutdown()


def tandem_worker():
    import torch
    import tandem
    import dlrm_torch
    job = tandem.init()
    torch.manual_seed(job.rank)  # the same batches after a restart
    rows, model = tandem.EmbeddingBag("ids"), dlrm_torch.Mlps()
    numbers, pairs = torch.randn(BATCH, dlrm_torch.NUMBERS), torch.randn(BATCH, dlrm_torch.PAIRS)
    labels, ids = (torch.rand(BATCH) < .25).float(), torch.randint(0, 20_000, (500, BATCH, 1))
    optimizer = tandem.DistributedOptimizer(torch.optim.Adagrad(model.parameters(), lr=.01), model)
    loader, loss_of = tandem.DataLoader(list(ids), features=lambda batch: batch), torch.nn.BCEWithLogitsLoss()
    for _ in job.epochs():
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model(numbers, pairs) + rows(batch).sum(-1).flatten(), labels).backward()
            optimizer.step()


# ---- sides ----


class Replicas:
    """Two replica groups and their lighthouse."""

    def __init__(self, folder):
        self.folder, self.running = pathlib.Path(tempfile.mkdtemp(dir=folder)), [None, None]
        self.files, self.count = [None, None], 0
        with open(self.folder / "lighthouse.log", "wb") as log:
            self.house = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", "lighthouse"], text=True,
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.address = self.house.stdout.readline().strip()
        for rank in range(2):
            self.start(rank)

    def start(self, rank):
        self.count += 1
        self.files[rank] = self.folder / f"{rank}.{self.count}"
        with open(self.files[rank], "wb") as out, open(self.folder / f"{rank}.{self.count}.log", "wb") as log:
            self.running[rank] = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", "torchft", "--rank",
                                                   str(rank), "--meet", self.address], stdout=out, stderr=log)

    def steps(self, rank, after=0.):
        lines = self.files[rank].read_bytes().split(b"\n")[:-1]
        return [step for step in map(json.loads, lines) if step[0] > after]

    def wait(self, what, truth):
        end = time.monotonic() + PATIENCE
        while not (found := truth()):
            if time.monotonic() > end or any(p.poll() is not None for p in self.running):
                logs = "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))
                raise AssertionError(f"torchft: {what} did not happen; the replicas said:\n{logs}")
            time.sleep(.01)
        return found

    def together(self, rank, after=0.):
        """The first step of both, as this one saw it."""
        return next((step for step in self.steps(rank, after) if step[2] == 2 and step[3]), None)

    def end(self):
        for process in self.running:
            process.kill()
            process.wait()
        self.house.communicate()


def figures(seconds, lost, rate, more=()):
    """rate: steps a second before the kill."""
    return {"s to a step of all": seconds, "steps lost": lost, "work lost s": lost / rate, **dict(more)}


def torchft(folder, moments):
    replicas = Replicas(folder)
    try:
        began = replicas.wait("the first step of both", lambda: all(replicas.together(rank) for rank in range(2)) and
                              replicas.together(0))
        time.sleep(WARM_UP + moments.random())
        victim = moments.randrange(2)
        other, killed = 1 - victim, time.monotonic()
        replicas.running[victim].kill()
        replicas.running[victim].wait()
        done = replicas.steps(other)[-1][1] - began[1]
        replicas.start(victim)
        alone = replicas.wait("a step of the other one", lambda: next((s for s in replicas.steps(other, killed) if s[3]), None))
        all_of_them = replicas.wait("a step of both", lambda: replicas.together(victim, killed))
        lost = [step for step in replicas.steps(other, killed) if not step[3] and step[0] < all_of_them[0]]
        return figures(all_of_them[0] - killed, len(lost) + 1, done / (killed - began[0]), {"alone s": alone[0] - killed})
    finally:
        replicas.end()


def tandem(flags, folder, moments, victim, policy="bsp", python=False):
    lab = runs.Lab(tempfile.mkdtemp(dir=folder), flags.build, 1, 2)
    try:
        if python:
            job = lab.folder / "job.textproto"
            job.write_text(JOB)
            run = runs.Run(lab, "run", job, [], ["--python", os.path.abspath(__file__)])
            lab._runs.append(run)  # pylint: disable=protected-access
        else:
            job = lab.job(runs.ENDLESS, 1, rows=60_000)
            run = lab.run("run", job, runs.POLICIES[policy][0])
        first, began = run.wait("a step", lambda: run.step()), time.monotonic()
        time.sleep(WARM_UP + moments.random())
        rate = (run.step() - first) / (time.monotonic() - began)
        if python:
            pid = moments.choice(sorted(set(common.tree(run.process.pid)[1:]) - set(run.roles().values())))
        else:
            pid = run.role(f"{victim}-{moments.randrange(2)}")
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        run.wait("recovery", lambda: run.events("recovered") or run.events("replaced"))
        seconds = time.monotonic() - begin
        summary = run.stop()
        (restart,) = summary["restarts"]
        return figures(seconds, restart["steps_again"], rate)
    finally:
        lab.close()


def main():
    parser = common.parser(__doc__)
    for hidden, kind in (("worker", str), ("rank", int), ("meet", str)):
        parser.add_argument("--" + hidden, type=kind, help=common.argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        {"torchft": torchft_replica, "lighthouse": lighthouse}[flags.worker](flags)
        return
    if "TANDEM_SCHEDULER" in os.environ:
        tandem_worker()
        return
    common.need("torch", "torchft")
    if flags.tiny:
        flags.rounds = 1
    common.machine()
    os.environ.update(common.python_environment(flags), OMP_NUM_THREADS="1")
    moments = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        sides = {"torchft": lambda: torchft(folder, moments),
                 "tandem_worker": lambda: tandem(flags, folder, moments, "worker"),
                 "tandem_replaced": lambda: tandem(flags, folder, moments, "worker", "asp"),
                 "tandem_server": lambda: tandem(flags, folder, moments, "server"),
                 "tandem_python": lambda: tandem(flags, folder, moments, "worker", python=True)}
        found = common.in_turns(sides, flags.rounds)
    common.report("kill -9", found)


if __name__ == "__main__":
    main()
