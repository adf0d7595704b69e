"""What the tests of launchers share: a small reproducible job, its model as `tandem run` trains it, and the processes
of a run."""
import hashlib
import json
import os
import pathlib
import signal
import struct
import subprocess
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
QUICKSTART = str(SOURCE / "configs/quickstart.textproto")   # its data are in out/data/quickstart
PYTHON = "/usr/bin/python3"
SECONDS = 200
GONE = 30   # several times what an end takes
ENDLESS = ["--set", "train.epochs=1000000"]
LONG = ["--set", "train.epochs=60"]   # long enough to be interrupted

JOB = """
name: "launched"
seed: 7
reproducible: true
cluster { workers: 2 servers: 2 max_restarts: 0 }
data { format: CRITEO train: "FOLDER/data/train.tsv" test: "FOLDER/data/test.tsv" }
table { name: "ids" dim: 8 optimizer { kind: ADAGRAD learning_rate: 0.05 } expected_rows: 20000 }
policy { kind: BSP }
dense { optimizer { kind: ADAM learning_rate: 0.002 } }
model { dlrm { bottom: [24, 8] top: [32, 16] } }
train { batch_size: 32 }
"""


class Failed(Exception):
    """What was expected and has not happened."""


class Skipped(Exception):
    """This machine lacks something; the message says what."""


class World:
    """A folder with the job, and the models that `tandem run` makes of it."""

    def __init__(self, folder, build):
        self.folder = pathlib.Path(folder)
        self.build = build
        self.tandem = str(build / "bin/tandem")
        self.job = str(self.folder / "job.textproto")
        self.expected = {}   # hash of the model, by flags
        self.auc = None      # of the quickstart
        subprocess.run([self.tandem, "datagen", "--out", self.folder / "data", "--train-rows", "1500", "--test-rows", "300"],
                       check=True, stdout=subprocess.DEVNULL)
        subprocess.run([self.tandem, "datagen", "--out", self.folder / "out/data/quickstart"], check=True,
                       stdout=subprocess.DEVNULL)
        pathlib.Path(self.job).write_text(JOB.replace("FOLDER", folder), encoding="utf-8")

    def out(self, name):
        return str(self.folder / name)

    def run(self, command, code=0, **environment):
        done = subprocess.run([str(word) for word in command], cwd=self.folder, timeout=SECONDS, text=True, check=False,
                              env=dict(os.environ, OMP_NUM_THREADS="1", **environment), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != code:
            raise Failed(f"{command[0]} ended with {done.returncode}, expected {code}:\n{done.stdout}")
        return done.stdout

    def start(self, name, command, **environment):
        """Starts a command and returns its process. What it says is in the file `name`.txt."""
        with open(self.out(name + ".txt"), "a", encoding="utf-8") as log:
            return subprocess.Popen([str(word) for word in command], cwd=self.folder, stdin=subprocess.DEVNULL,
                                    env=dict(os.environ, OMP_NUM_THREADS="1", **environment), stdout=log, stderr=log)

    def said(self, name):
        return read(self.out(name + ".txt"))

    def model(self, name):
        """A hash of the trained tables and dense parameters."""
        folder = self.out(name + "-export")
        self.run([self.tandem, "export", self.out(name) + "/model", "--to", folder], TANDEM_PYTHON=PYTHON)
        data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        tensors = json.loads(data[8:8 + size])
        tensors.pop("__metadata__", None)   # names the run
        return hashlib.sha256(json.dumps(tensors, sort_keys=True).encode() + data[8 + size:]).hexdigest()

    def expect_bits(self, name, said, flags=()):
        """The model of a run must be that of `tandem run` with these flags."""
        flags = tuple(flags)
        if flags not in self.expected:
            run = f"run-{len(self.expected)}"
            self.run([self.tandem, "run", self.job, "--out", self.out(run), *flags])
            self.expected[flags] = self.model(run)
        if self.model(name) != self.expected[flags]:
            raise Failed(f"{name}: the model differs from that of tandem run:\n{said}")

    def trains(self, name, command, **environment):
        said = self.run(command, **environment)
        self.expect_bits(name, said)
        return said

    def quickstart(self, name, command, **environment):
        """The job of the quickstart: AUC within .001 of that of `tandem run`. `command` stands before the job."""
        self.run([*command, QUICKSTART, "--out", self.out(name)], **environment)
        self.expect_auc(name)

    def expect_auc(self, name):
        if self.auc is None:
            self.run([self.tandem, "run", QUICKSTART, "--out", self.out("run-quickstart")])
            self.auc = self.auc_of("run-quickstart")
        if abs(self.auc_of(name) - self.auc) > .001:
            raise Failed(f"{name}: AUC {self.auc_of(name):.4f}, expected {self.auc:.4f}, that of tandem run")
        print(f"  {name}: AUC {self.auc_of(name):.4f}, of tandem run {self.auc:.4f}", flush=True)

    def auc_of(self, name):
        return json.loads(read(self.out(name) + "/summary.json"))["eval"]["auc"]

    def killed(self, name, command, **environment):
        """Kills the launcher of a running job: nothing may be left."""
        launcher = self.start(name, command, **environment)
        try:
            self.wait_for_training(name)
        finally:
            launcher.send_signal(signal.SIGKILL)
            launcher.wait()
        self.gone(name, "its launcher was killed")

    def metrics(self, name):
        return read(self.out(name) + "/metrics.jsonl")

    def wait_for_training(self, name):
        self.wait(lambda: "progress" in self.metrics(name), SECONDS, "the job does not train", name)

    def gone(self, name, event, seconds=GONE, start=None):
        """Waits until no process of a run is left, and prints how long they lived on after the event, which was at `start`
        or is now."""
        start = start or time.monotonic()
        self.wait(lambda: not processes(self.out(name)), seconds, f"{event}: processes are left", name)
        print(f"  {event}: all processes were gone after {time.monotonic() - start:.1f} s", flush=True)

    def wait(self, done, seconds, what, name):
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                raise Failed(f"{what}: {processes(self.out(name))}\n{self.said(name)}")
            time.sleep(.05)


def read(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def processes(*texts):
    """The command lines of tandem's processes that contain all of the texts, by number."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        program = line.split(" ")[0]
        if all(text in line for text in texts) and "/bin/tandem" in line and "ssh" not in program and "mpi" not in program:
            found[int(folder.name)] = line
    return found


def expect(text, said):
    if text not in said:
        raise Failed(f"expected {text!r} in:\n{said}")
