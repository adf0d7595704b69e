#!/usr/bin/env python3
"""What a training loop in Python costs: rows of pairs, in turns, so that both sides see the same moods of the machine.

    tests/bench/python_speed.py [--rounds N] [--steps N] [--only WORD] [--build DIR] [--tiny]

DLRM of configs/dlrm_bench.textproto (13 numbers, 26 fields x 100,000 ids x 16, batch 2048), two workers and two
servers, asynchronous tables, synchronous dense part; ids and batches are drawn before the clock starts, but those of the
C++ worker, which reads a file. Samples per second of the job as its summary has them, first steps included; of what
is no job: by a clock of its own after five steps.

    bare         an eager module, beside its bare forward and backward passes in two processes
    ddp          the same, beside DistributedDataParallel with sparse embeddings over gloo
    rpc          the same, beside PyTorch's RPC parameter servers (two of them, dense part by gloo)
    script       TorchScript in the C++ worker, beside the eager module
    groups       DistributedDataParallel over tandem, beside gloo: the MLPs alone
    step         what a step of batch 64 costs its thread beyond the module: milliseconds, to be at most .2

--only: names with that in them. --tiny makes everything small: it shows that the script works, and measures nothing. Prints a
line for each measurement, and a table at the end: medians, and the ratio of each round's two sides.
"""
import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "python")]
NUMBERS, FIELDS, IDS, DIM = 13, 26, 100_000, 16
BOTTOM, TOP = [512, 256, 64, 16], [512, 256]
BATCHES = 16  # prepared; taken round and round
WARM_UP = 5   # steps before a clock of ours starts
WANTED = {"bare": .85, "ddp": 1.2, "rpc": 2, "script": 1, "groups": 1, "step": .2}
JOB = """
cluster {{ workers: {workers} servers: {servers} }}
{data}
table {{ name: "ids" dim: 16 optimizer {{ kind: ADAGRAD learning_rate: 0.01 }} expected_rows: 2600000 {fields} }}
policy {{ kind: ASP }}
dense {{ optimizer {{ kind: ADAGRAD learning_rate: 0.01 }} }}
train {{ batch_size: {batch} epochs: 1 prefetch_steps: 1 max_steps: {steps} }}
limits {{ report_interval_seconds: 0.2 }}
"""


def prepared(batch, seed):
    """Numbers, ids of all fields in one space, and labels."""
    import torch  # pylint: disable=import-outside-toplevel
    from dlrm_torch import zipf_ids  # pylint: disable=import-outside-toplevel
    generator = torch.Generator().manual_seed(seed)
    of_field = torch.arange(FIELDS) * IDS
    return [(torch.randn(batch, NUMBERS, generator=generator), zipf_ids((batch, FIELDS), generator) + of_field,
             (torch.rand(batch, generator=generator) < .25).float()) for _ in range(BATCHES)]


def module():
    from models import Dlrm  # pylint: disable=import-outside-toplevel
    return Dlrm(NUMBERS, FIELDS, DIM, BOTTOM, TOP)


# ---- the workers: each is a script of `tandem run --python`, or a process of its own ----


def job_worker(flags):
    """A worker of a job with the eager module."""
    import torch  # pylint: disable=import-outside-toplevel
    import tandem  # pylint: disable=import-outside-toplevel
    job = tandem.init()
    rows = tandem.EmbeddingBagCollection()
    batches = prepared(flags.batch, job.rank)
    loader = tandem.DataLoader([batches[i % BATCHES] for i in range(flags.steps)], features=1)
    loss_of = torch.nn.BCEWithLogitsLoss(reduction="sum")
    model = module()
    optimizer = tandem.DistributedOptimizer(model, loss="sum")
    for _ in job.epochs():
        for numbers, ids, label in loader:
            optimizer.zero_grad()
            loss_of(model(numbers, rows(ids).table("ids")), label).backward()
            optimizer.step()


def step_worker(flags):
    """Writes what a step costs this thread beyond what it costs without a job, in milliseconds."""
    import torch  # pylint: disable=import-outside-toplevel
    import tandem  # pylint: disable=import-outside-toplevel
    job = tandem.init()
    rows, layer = tandem.EmbeddingBagCollection(), torch.nn.Linear(FIELDS * DIM, 1)
    batches = prepared(flags.batch, 1)
    loss_of = torch.nn.BCEWithLogitsLoss(reduction="sum")

    def compute(cells, label):
        loss_of(layer(cells.flatten(1)).squeeze(1), label).backward()

    def bare(steps):
        own = torch.optim.Adagrad(layer.parameters(), lr=.01)
        begin = time.thread_time()
        for i in range(steps):
            own.zero_grad()
            compute(torch.zeros(flags.batch, FIELDS, DIM).requires_grad_(), batches[i % BATCHES][2])
            own.step()
        return (time.thread_time() - begin) / steps

    bare(20)
    alone = bare(flags.steps)
    layer.zero_grad()
    optimizer = tandem.DistributedOptimizer(layer, loss="sum")
    loader = tandem.DataLoader([batches[i % BATCHES] for i in range(flags.steps + 20)], features=1)
    for _ in job.epochs():
        for number, (_, ids, label) in enumerate(loader):
            if number == 20:
                begin = time.thread_time()
            optimizer.zero_grad()
            compute(rows(ids).table("ids"), label)
            optimizer.step()
        spent = (time.thread_time() - begin) / flags.steps
    with open(flags.meet, "w", encoding="utf-8") as file:
        json.dump(1e3 * (spent - alone), file)


def timed(flags, step):
    """Samples per second of one process."""
    for i in range(WARM_UP):
        step(i)
    begin = time.perf_counter()
    for i in range(flags.steps):
        step(i)
    return flags.steps * flags.batch / (time.perf_counter() - begin)


def bare_process(flags):
    import torch  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    model, batches = module(), prepared(flags.batch, flags.rank)
    loss_of = torch.nn.BCEWithLogitsLoss(reduction="sum")

    def step(i):
        numbers, _, label = batches[i % BATCHES]
        model.zero_grad()
        cells = torch.zeros(flags.batch, FIELDS, DIM).requires_grad_()
        loss_of(model(numbers, cells), label).backward()

    print(timed(flags, step))


def ddp_process(flags):
    import torch  # pylint: disable=import-outside-toplevel
    from torch import distributed, nn  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method="file://" + flags.meet, rank=flags.rank, world_size=2)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.EmbeddingBag(FIELDS * IDS, DIM, mode="sum", sparse=True)
            self.model = module()

        def forward(self, numbers, ids):
            cells = self.rows(ids.reshape(-1, 1)).view(-1, FIELDS, DIM)
            return self.model(numbers, cells)

    torch.manual_seed(1)
    model, batches = nn.parallel.DistributedDataParallel(Whole()), prepared(flags.batch, flags.rank)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=.01)
    loss_of = nn.BCEWithLogitsLoss()

    def step(i):
        numbers, ids, label = batches[i % BATCHES]
        optimizer.zero_grad()
        loss_of(model(numbers, ids), label).backward()
        optimizer.step()

    print(timed(flags, step))
    distributed.destroy_process_group()


def rpc_process(flags):
    """Ranks 0 and 1 train; 2 and 3 have half of the fields each, as PyTorch's tutorials put it: remote modules,
    distributed autograd, a distributed optimizer; the dense part by gloo."""
    import torch  # pylint: disable=import-outside-toplevel
    from torch import distributed, nn  # pylint: disable=import-outside-toplevel
    from torch.distributed import autograd, rpc  # pylint: disable=import-outside-toplevel
    from torch.distributed.nn import RemoteModule  # pylint: disable=import-outside-toplevel
    from torch.distributed.optim import DistributedOptimizer  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    rpc.init_rpc(f"node{flags.rank}", rank=flags.rank, world_size=4, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
        init_method="file://" + flags.meet, rpc_timeout=120))
    if flags.rank < 2:
        distributed.init_process_group("gloo", init_method=f"file://{flags.meet}.dense", rank=flags.rank, world_size=2)
        half = FIELDS // 2
        remote = [RemoteModule(f"node{2 + s}", nn.EmbeddingBag, args=(half * IDS, DIM),
                               kwargs={"mode": "sum", "sparse": True}) for s in range(2)]
        torch.manual_seed(1)
        model = nn.parallel.DistributedDataParallel(module())
        parameters = [p for r in remote for p in r.remote_parameters()]
        optimizer = DistributedOptimizer(torch.optim.Adagrad, parameters + [rpc.RRef(p) for p in model.parameters()], lr=.01)
        batches = prepared(flags.batch, flags.rank)
        loss_of = nn.BCEWithLogitsLoss()

        def step(i):
            numbers, ids, label = batches[i % BATCHES]
            with autograd.context() as context:
                asked = [r.forward_async((ids[:, s * half:(s + 1) * half] - s * half * IDS).reshape(-1, 1))
                         for s, r in enumerate(remote)]
                cells = torch.cat([a.wait().view(-1, half, DIM) for a in asked], 1)
                autograd.backward(context, [loss_of(model(numbers, cells), label)])
                optimizer.step(context)

        print(timed(flags, step))
    rpc.shutdown()


def export(flags):
    """The eager module as TorchScript, for the C++ worker."""
    import torch  # pylint: disable=import-outside-toplevel
    from models import OfTables  # pylint: disable=import-outside-toplevel
    torch.jit.script(OfTables(module(), ["ids"])).save(flags.meet)


WORKERS = {"eager": job_worker, "step": step_worker, "bare": bare_process, "ddp": ddp_process, "rpc": rpc_process,
           "export": export}


# ---- the rounds ----


class Bench:
    def __init__(self, flags, folder):
        self.flags, self.folder, self.runs = flags, folder, 0
        self.environment = {**os.environ, "TANDEM_PYTHON": sys.executable}
        # The same BLAS for everybody: what `tandem run` gives its scripts.
        self.environment = {**self.environment, **self.script_environment()}

    def command(self, worker, **more):
        f = self.flags
        return [sys.executable, os.path.abspath(__file__), "--worker", worker, "--batch", str(f.batch), "--steps",
                str(f.steps), *[x for k, v in more.items() for x in (f"--{k}", str(v))]]

    def script_environment(self):
        script = os.path.join(self.folder, "environment.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import json, os, sys\njson.dump(dict(os.environ), open(sys.argv[1], 'w'))\n"
                       "import tandem\ntandem.init().close()\n")
        job = self.job_file("environment", "data { format: PROGRAM } model { program {} }", 1, 1, fields=True)
        found = os.path.join(self.folder, "environment.json")
        subprocess.run([self.tandem(), "run", job, "--out", os.path.join(self.folder, "environment"), "--no-checkpoint",
                        "--python", script, "--", found], env=self.environment, check=False, capture_output=True)
        with open(found, encoding="utf-8") as file:
            all_of_it = json.load(file)
        return {k: v for k, v in all_of_it.items() if "BLAS" in k or "OMP" in k or k in ("LD_LIBRARY_PATH", "PYTHONPATH")}

    def tandem(self):
        return os.path.join(self.flags.build, "bin", "tandem")

    def job_file(self, name, data, workers=2, servers=2, fields=False, batch=None, steps=0):
        path = os.path.join(self.folder, name + ".textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(JOB.format(data=data, workers=workers, servers=servers, batch=batch or self.flags.batch,
                                  steps=steps or self.flags.steps,
                                  fields=" ".join(f'field: "C{i}"' for i in range(1, FIELDS + 1)) if fields else ""))
        return path

    def run_job(self, job, *more):
        self.runs += 1
        out = os.path.join(self.folder, f"out{self.runs}")
        ran = subprocess.run([self.tandem(), "run", job, "--out", out, "--no-checkpoint", *more], env=self.environment,
                             check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ran.returncode != 0:
            sys.exit(f"{job}: {ran.stdout}")
        with open(os.path.join(out, "summary.json"), encoding="utf-8") as file:
            return json.load(file)

    def program_job(self):
        job = self.job_file("eager", "data { format: PROGRAM } model { program {} }", fields=True)
        return self.run_job(job, "--python", os.path.abspath(__file__), "--",
                            *self.command("eager")[2:])["samples_per_second"]

    def data(self):
        folder = os.path.join(self.folder, "data")
        if not os.path.exists(os.path.join(folder, "train.tsv")):
            rows = 2 * self.flags.batch * self.flags.steps
            subprocess.run([self.tandem(), "datagen", "--out", folder, "--train-rows", str(rows), "--test-rows", "1000"],
                           check=True, stdout=subprocess.DEVNULL)
        return folder

    def processes(self, worker, count):
        """Samples per second of all of them together."""
        with tempfile.TemporaryDirectory() as meet:
            started = [subprocess.Popen(self.command(worker, rank=r, meet=os.path.join(meet, "meet")),
                                        env=self.environment, stdout=subprocess.PIPE, text=True) for r in range(count)]
            said = [p.communicate()[0].split() for p in started]
        if any(p.returncode for p in started):
            sys.exit(f"{worker}: a process has failed")
        return sum(float(s[-1]) for s in said if s)

    def groups(self, backend):
        f = self.flags
        ran = subprocess.run([sys.executable, os.path.join(HERE, "dlrm_torch.py"), "--mode", "ddp_mlp", "--backend", backend,
                              "--batch", str(f.batch), "--steps", str(f.steps), "--repetitions", "1"],
                             env=self.environment, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(ran.stdout.splitlines()[-1])["samples_per_second"]

    def script_job(self):
        file = os.path.join(self.folder, "dlrm.pt")
        if not os.path.exists(file):
            subprocess.run(self.command("export", meet=file), env=self.environment, check=True)
        data = f'data {{ format: CRITEO train: "{self.data()}/train.tsv" }} model {{ script {{ file: "{file}" }} }}'
        return self.run_job(self.job_file("script", data))["samples_per_second"]

    def step_job(self):
        steps = 20 * self.flags.steps
        job = self.job_file("step", "data { format: PROGRAM } model { program {} }", 1, 1, True, 64, steps + 20)
        found = os.path.join(self.folder, "step.json")
        self.run_job(job, "--python", os.path.abspath(__file__), "--", "--worker", "step", "--batch", "64", "--steps",
                     str(steps), "--meet", found)
        with open(found, encoding="utf-8") as file:
            return json.load(file)

    def rows(self):
        """Name: what is measured, and beside what; None: the figure stands for itself."""
        eager = self.program_job
        return {
            "bare": (eager, lambda: self.processes("bare", 2)),
            "ddp": (eager, lambda: self.processes("ddp", 2)),
            "rpc": (eager, lambda: self.processes("rpc", 4)),
            "script": (self.script_job, eager),
            "groups": (lambda: self.groups("tandem"), lambda: self.groups("gloo")),
            "step": (self.step_job, None),
        }

    def measure(self):
        found = {}
        for round_ in range(1, self.flags.rounds + 1):
            print(f"round {round_} of {self.flags.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
            for name, (ours, theirs) in self.rows().items():
                if self.flags.only not in name:
                    continue
                pair = (ours(), theirs() if theirs else None)
                found.setdefault(name, []).append(pair)
                print(name, *[f"{x:.4g}" for x in pair if x is not None], flush=True)
        print(f"\n{'name':10}{'median':>10}{'beside':>10}{'ratio':>8}{'wanted':>8}  rounds")
        for name, pairs in found.items():
            alone = pairs[0][1] is None
            ratios = [a if alone else a / b for a, b in pairs]
            medians = [f"{statistics.median(side):10.4g}" for side in zip(*pairs) if side[0] is not None]
            print(f"{name:10}{medians[0]}{'-' if alone else medians[1]:>10}{statistics.median(ratios):8.2f}"
                  f"{WANTED[name]:8}  {' '.join(f'{r:.2f}' for r in ratios)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="of a run, on each worker")
    parser.add_argument("--only", default="")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--tiny", action="store_true")
    for hidden, kind in (("worker", str), ("batch", int), ("rank", int), ("meet", str)):
        parser.add_argument("--" + hidden, type=kind, default=2048 if hidden == "batch" else None, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        WORKERS[flags.worker](flags)
        return
    if not importlib.util.find_spec("torch"):
        print("SKIPPED ENTIRELY: PyTorch is missing: apt-get install python3-torch")
        sys.exit(77)
    if flags.tiny:
        flags.rounds, flags.steps, flags.batch = 1, 3, 64
    with tempfile.TemporaryDirectory() as folder:
        Bench(flags, folder).measure()


if __name__ == "__main__":
    main()
