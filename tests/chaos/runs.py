"""Runs of `tandem run` for the tests that disturb them: start, look, disturb, end.

A Lab makes them in one folder, and ends all that are left. Nothing here outlives the lab.
"""
import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

LIMIT = 600  # seconds for any wait; a run that passes needs a small part of it

JOB = """
name: "punished"
seed: 7
reproducible: true
cluster {{ workers: {size} servers: {size} max_restarts: 1000 }}
data {{ format: CRITEO train: "{train}" }}
table {{ name: "ids" dim: 8 optimizer {{ kind: ADAGRAD learning_rate: 0.05 }} expected_rows: 20000 }}
policy {{ kind: BSP }}
dense {{ optimizer {{ kind: ADAM learning_rate: 0.002 }} }}
model {{ dlrm {{ bottom: [16, 8] top: [16, 8] }} }}
train {{ batch_size: 32 epochs: 100000 max_steps: {steps} }}
limits {{ report_interval_seconds: 0.1 startup_timeout_seconds: 300 }}
checkpoint {{ every_seconds: {period} }}
"""
BATCH = 32
START = 19  # in /proc/PID/stat behind the name: when the process began
ENDLESS = 100_000_000  # steps

# By policy: its settings, and whether a disturbed run must end with the bits of an undisturbed one.
POLICIES = {
    "bsp": ([], True),
    "delay": (["policy={kind: FIXED_DELAY delay: 4}"], True),
    # Dense parameters on servers: a worker that dies is replaced, and the others continue.
    "asp": (["reproducible=false", "dense.synchroniser=SERVERS", "policy={kind: ASP}"], False),
    "ssp": (["reproducible=false", "dense.synchroniser=SERVERS", "policy={kind: SSP bound: 4}"], False),
    "gba": (["reproducible=false", "dense.synchroniser=SERVERS", "policy={kind: GBA}"], False),
    "ringmaster": (["reproducible=false", "dense.synchroniser=SERVERS", "policy={kind: RINGMASTER}"], False),
    "ringleader": (["reproducible=false", "dense.synchroniser=SERVERS", "policy={kind: RINGLEADER}"], False),
    "rennala": (["reproducible=false", "dense.synchroniser=SERVERS", "policy={kind: RENNALA}"], False),
    # Dense parameters in an allreduce.
    "hybrid": (["reproducible=false", "policy={kind: ASP}"], False),
}


class Lab:
    """A folder for runs, and all that run in it. size: workers of a run, and servers."""

    def __init__(self, folder, build, seed, size):
        self.folder, self.build, self.seed, self.size = pathlib.Path(folder), build, seed, size
        self.tandem = build / "bin" / "tandem"
        self._runs = []

    def job(self, steps, period, rows=6000):
        """Writes the job. rows: of the data; an epoch has as many."""
        train = self.folder / f"train-{rows}" / "train.tsv"
        if not train.exists():
            self.call("datagen", "--out", train.parent, "--train-rows", rows, "--test-rows", 1, "--seed", 3)
        job = self.folder / "job.textproto"
        job.write_text(JOB.format(train=train, steps=steps, period=period, size=self.size))
        return job

    def run(self, name, job, settings=(), flags=()):
        self._runs.append(Run(self, name, job, settings, flags))
        return self._runs[-1]

    def call(self, *words):
        """A command of tandem that must succeed."""
        done = self.attempt(*words)
        if done.returncode != 0:
            raise AssertionError(f"tandem {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}")

    def attempt(self, *words):
        return subprocess.run([self.tandem, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, timeout=LIMIT, stdin=subprocess.DEVNULL,
                              env=dict(os.environ, TANDEM_PYTHON=sys.executable))

    def close(self):
        for run in self._runs:
            run.end()


class Run:
    """`tandem run` with its roles."""

    def __init__(self, lab, name, job, settings, flags):
        self.lab, self.out = lab, lab.folder / name
        command = [lab.tandem, "run", job, "--out", self.out, *flags]
        for setting in settings:
            command += ["--set", setting]
        self.output = lab.folder / (name.replace("/", "-") + ".txt")
        self.began = time.monotonic()
        with open(self.output, "ab") as log:  # in a session of its own: Ctrl-C is for this program
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            start_new_session=True)
        self._head, self._read, self._events = b"", 0, {}
        self._seen = set()  # processes of the run: pid, and when it began

    def roles(self):
        """The processes of the run by name: scheduler, server-0, worker-1 and so on."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
                words = pathlib.Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if int(stat[1]) != self.process.pid or stat[0] == "Z":
                continue
            self._seen.add((int(entry), stat[START]))
            name = os.path.basename(words[0])
            if not name.startswith("tandem-"):  # between fork and exec
                continue
            name = name.replace("tandem-", "")
            if "--index" in words:
                name += "-" + words[words.index("--index") + 1]
            found[name] = int(entry)
        return found

    def role(self, name):
        """The process of a role, as soon as it runs."""
        return self.wait(name + " running", lambda: self.roles().get(name))

    def events(self, kind):
        """The events of that kind in metrics.jsonl so far, also those before the run began again without a checkpoint."""
        path = self.out / "metrics.jsonl"
        if path.exists():
            with open(path, "rb") as file:
                head = file.readline()
                if head != self._head:  # another file
                    self._head, self._read = head, 0
                file.seek(self._read)
                text = file.read()
            whole = text[:text.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                try:
                    event = json.loads(line)
                    self._events.setdefault(event["event"], []).append(event)
                except (ValueError, KeyError):
                    pass  # the last line of a process that was killed
        return self._events.get(kind, [])

    def wait(self, what, truth, pause=0.02):
        """Waits until truth() is true, and returns its value."""
        end = time.monotonic() + LIMIT
        while True:
            running = self.process.poll() is None
            found = truth()
            if found:
                return found
            if not running or time.monotonic() > end:
                raise AssertionError(f"{self.out.name}: {what} did not happen; the run said:\n{self.text()}")
            time.sleep(pause)

    def text(self):
        return self.output.read_text(errors="replace")

    def step(self):
        """The step of the worker that is furthest behind."""
        progress = self.events("progress")
        return progress[-1].get("min_step", 0) if progress else 0

    def finish(self, code=0):
        """Waits for the end, which must be as expected and leave no process, and returns the summary."""
        self.roles()
        try:
            ended = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.out.name} has not ended; the run said:\n{self.text()}") from None
        if ended != code:
            raise AssertionError(f"{self.out.name} ended with {ended}; the run said:\n{self.text()}")
        left = [pid for pid, began in self._seen if runs(pid, began)]
        if left:
            raise AssertionError(f"{self.out.name} has left processes {left}; the run said:\n{self.text()}")
        return json.loads((self.out / "summary.json").read_text())

    def stop(self):
        """Asks the run to end with a checkpoint, and returns the summary."""
        self.process.send_signal(signal.SIGTERM)
        return self.finish(-signal.SIGTERM)

    def model(self):
        """The bits of the model: the exported arrays."""
        import numpy  # pylint: disable=import-outside-toplevel
        to = self.out / "export"
        self.lab.call("export", self.out / "model", "--to", to, "--format", "npz")
        bits = {}
        for file in sorted(to.glob("*.npz")):
            with numpy.load(file) as arrays:
                for key in arrays:
                    bits[file.name, key] = arrays[key].tobytes()
        if not bits:
            raise AssertionError(f"{to}: no arrays")
        return bits

    def end(self):
        """Kills all processes of the run. It may have ended."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGSTOP)  # it starts no more processes
            for pid in self.roles().values():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.kill()
        self.process.wait()


def runs(pid, began):
    """Whether the process that began then still runs."""
    try:
        stat = pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return False
    return stat[0] != "Z" and stat[START] == began


@dataclasses.dataclass
class Fault:
    """A disturbance and its cost. answer: recovered (all roles started again) or replaced (one worker did). seconds:
    until all workers had finished a step again, or this worker had."""
    kind: str
    role: str
    answer: str
    seconds: float


class Punisher:
    """Disturbs a run, and measures how long it takes to recover."""

    def __init__(self, run, seed):
        self.run, self.random, self.faults = run, random.Random(seed), []

    def disturb(self, kind, role=None):
        """kind: kill, stop or link. role: default any. Waits until the run has recovered."""
        run = self.run
        roles = run.wait("all roles running", lambda: (found := run.roles()) and "scheduler" in found and found)
        role = role or self.random.choice(sorted(roles))
        answers = ("recovered", "replaced")
        pid, before = run.role(role), [len(run.events(answer)) for answer in answers]
        begin = time.monotonic()
        if kind == "kill":
            os.kill(pid, signal.SIGKILL)
        elif kind == "stop":  # for longer than any patience; the run must end it
            os.kill(pid, signal.SIGSTOP)
        else:  # until the attempt ends: the next one needs the host
            with open(f"/proc/{pid}/ns/net", "rb") as network:
                set_link(network, "down")
                run.wait(f"the end of {role}, whose link is cut", lambda: run.roles().get(role) != pid)
                set_link(network, "up")
        answer = run.wait(f"recovery after {kind} of {role}", lambda: next(
            (a for a, n in zip(answers, before) if len(run.events(a)) > n), None))
        self.faults.append(Fault(kind, role, answer, time.monotonic() - begin))


def set_link(network, state):
    """Cuts or mends the link of a host of --link-bytes-per-second. network: of its processes, open."""
    done = subprocess.run(["nsenter", f"--net=/proc/{os.getpid()}/fd/{network.fileno()}", "ip", "link", "set", "eth0", state],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"the link of a host cannot be set {state} (root?): {done.stderr}")


def check_counts(summary):
    """Updates that arrived = applied (alone or merged with others) + dropped, for each table."""
    for name, table in summary["tables"].items():
        updates = table["updates"]
        if updates["arrived"] == 0 or updates["arrived"] != updates["applied"] + updates["dropped"]:
            raise AssertionError(f"table {name}: {updates} do not add up")
