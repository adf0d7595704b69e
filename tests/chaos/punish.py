"""Disturbs running jobs and checks that they recover.

Each case starts `tandem run`, disturbs its roles at random moments (kill -9, SIGSTOP, a cut link, a full disk), and checks
how the run ends: it finishes, nothing is left behind, and, if the job is reproducible, its model has the bits of an
undisturbed run. Prints a line for each run, and at the end the times from faults to the next step of all workers.

  punish.py --build build bits --runs 20                 # kill -9 of a worker, a server, the scheduler, and all three in turn
  punish.py --build build faults --seconds 600 --every 30 --kinds kill,stop,link
  punish.py --build build suspend --seconds 60           # all processes of a job sleep
  punish.py --build build disk                           # the disk is full during checkpoints
  punish.py --build build short                          # a small part of bits, suspend and disk (disk only as root)

--seed chooses the moments. Cutting links and filling a disk need root.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 600  # seconds for any wait; a run that passes needs a small part of it

JOB = """
name: "punished"
seed: 7
reproducible: true
cluster {{ workers: 3 servers: 3 max_restarts: 1000 }}
data {{ format: CRITEO train: "{data}/train.tsv" test: "{data}/test.tsv" }}
table {{ name: "ids" dim: 8 optimizer {{ kind: ADAGRAD learning_rate: 0.05 }} expected_rows: 20000 }}
policy {{ kind: BSP }}
dense {{ optimizer {{ kind: ADAM learning_rate: 0.002 }} }}
model {{ dlrm {{ bottom: [16, 8] top: [16, 8] }} }}
train {{ batch_size: 32 epochs: 100000 max_steps: {steps} }}
limits {{ report_interval_seconds: 0.1 }}
checkpoint {{ every_seconds: {period} }}
"""

# Policies that must survive: changes of the job, and whether its bits are known.
POLICIES = {
    "bsp": ([], True),
    "asp": (["reproducible=false", "policy={kind: ASP}"], False),
    "ssp": (["reproducible=false", "policy={kind: SSP bound: 4}"], False),
    "delay": (["policy={kind: FIXED_DELAY delay: 4}"], True),
    "gba": (["reproducible=false", "policy={kind: GBA}"], False),
    "hybrid": (["reproducible=false", "policy={kind: ASP}", "dense.policy={kind: BSP}"], False),
}


@dataclasses.dataclass
class Fault:
    """A disturbance and what it has cost. seconds: until all workers had finished a step again."""
    kind: str
    role: str
    seconds: float = -1
    again: int = 0


class Run:
    """`tandem run` with its roles."""

    def __init__(self, folder, job, name, settings, flags=()):
        self.out = folder / name
        self.tandem = ARGUMENTS.build / "bin" / "tandem"
        command = [self.tandem, "run", job, "--out", self.out, *flags]
        for setting in settings:
            command += ["--set", setting]
        self.output = folder / (name + ".txt")
        with open(self.output, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self._read = 0
        self.metrics = []

    def roles(self):
        """The processes of the run, by name."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
                words = pathlib.Path("/proc", entry, "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            parent = int(stat.rsplit(")", 1)[1].split()[1])
            if parent != self.process.pid or stat.rsplit(")", 1)[1].split()[0] == "Z":
                continue
            name = os.path.basename(words[0]).replace("tandem-", "")
            if "--index" in words:
                name += "-" + words[words.index("--index") + 1]
            found[name] = int(entry)
        return found

    def events(self, kind):
        """The events of that kind in metrics.jsonl so far."""
        path = self.out / "metrics.jsonl"
        if path.exists():
            if path.stat().st_size < self._read:  # the run has begun again without a checkpoint
                self._read, self.metrics = 0, []
            with open(path, "rb") as file:
                file.seek(self._read)
                text = file.read()
            whole = text[:text.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                try:
                    self.metrics.append(json.loads(line))
                except ValueError:
                    pass  # the last line of a process that was killed
        return [event for event in self.metrics if event.get("event") == kind]

    def wait(self, what, truth, limit=LIMIT):
        end = time.monotonic() + limit
        while True:
            found = truth()
            if found:
                return found
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{what} did not happen; the run said:\n{self.text()}")
            time.sleep(0.02)

    def text(self):
        return self.output.read_text(errors="replace")

    def step(self):
        progress = self.events("progress")
        return progress[-1].get("min_step", 0) if progress else 0

    def finish(self):
        """Waits for a good end, and returns the summary."""
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the run has not ended:\n{self.text()}") from None
        if code != 0:
            raise AssertionError(f"the run ended with {code}:\n{self.text()}")
        if self.roles():
            raise AssertionError(f"left behind: {self.roles()}")
        return json.loads((self.out / "summary.json").read_text())

    def model(self):
        """The bits of the model: the exported arrays."""
        to = self.out / "export"
        subprocess.run([self.tandem, "export", self.out / "model", "--to", to, "--format", "npz"], check=True,
                       stdout=subprocess.DEVNULL, env=dict(os.environ, TANDEM_PYTHON=sys.executable))
        import numpy  # pylint: disable=import-outside-toplevel
        bits = {}
        for file in sorted(to.glob("*.npz")):
            with numpy.load(file) as arrays:
                for key in arrays:
                    bits[file.name, key] = arrays[key].tobytes()
        if not bits:
            raise AssertionError(f"{to}: no arrays")
        return bits

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def in_network_of(pid, *command):
    subprocess.run(["nsenter", "-t", str(pid), "-n", *command], check=True)


class Punisher:
    """Disturbs a run, and measures how long it takes to recover."""

    def __init__(self, run, seed):
        self.run, self.random, self.faults = run, random.Random(seed), []

    def disturb(self, kind, role=None):
        roles = self.run.wait("all roles running", lambda: (found := self.run.roles()) and
                              "scheduler" in found and found)
        role = role or self.random.choice(sorted(roles))
        if role not in roles:
            roles = self.run.wait(role, lambda: role in (found := self.run.roles()) and found)
        pid, before, fault = roles[role], len(self.run.events("recovered")), Fault(kind, role)
        begin = time.monotonic()
        if kind == "kill":
            os.kill(pid, signal.SIGKILL)
        elif kind == "stop":  # for longer than any patience; the run must end it
            os.kill(pid, signal.SIGSTOP)
        elif kind == "link":
            in_network_of(pid, "ip", "link", "set", "eth0", "down")
        self.faults.append(fault)
        try:
            self.run.wait("recovery after " + kind + " of " + role,
                          lambda: len(self.run.events("recovered")) > before)
        finally:
            if kind == "link":  # the namespace outlives the process
                self.mend(pid)
        fault.seconds = time.monotonic() - begin
        return fault

    def mend(self, pid):
        for other in [pid, *self.run.roles().values()]:
            try:
                in_network_of(other, "ip", "link", "set", "eth0", "up")
            except subprocess.CalledProcessError:
                continue


def report(title, faults):
    by_kind = {}
    for fault in faults:
        by_kind.setdefault(fault.kind, []).append(fault.seconds)
    for kind, seconds in sorted(by_kind.items()):
        print(f"{title}: {len(seconds)} x {kind}: training again after {statistics.median(seconds):.1f} s (median), "
              f"{max(seconds):.1f} s (worst)", flush=True)


def write_job(folder, steps, period):
    data = folder / "data"
    data.mkdir(exist_ok=True)
    if not (data / "train.tsv").exists():
        subprocess.run([ARGUMENTS.build / "bin" / "tandem", "datagen", "--out", data, "--train-rows", "6000", "--test-rows",
                        "200", "--seed", "3"], check=True, stdout=subprocess.DEVNULL)
    job = folder / "job.textproto"
    job.write_text(JOB.format(data=data, steps=steps, period=period))
    return job


def check_counts(summary):
    """Updates that arrived = applied (alone or folded with others) + dropped, for each table."""
    for name, table in summary["tables"].items():
        updates = table["updates"]
        if updates["arrived"] == 0 or updates["arrived"] != updates["applied"] + updates["dropped"]:
            raise AssertionError(f"table {name}: {updates} do not add up")


def bits(folder, runs, steps, period, policy="bsp", victims=("worker", "server", "scheduler", "all")):
    """kill -9 of a worker, of a server, of the scheduler, and of the three one after the other."""
    job = write_job(folder, steps, period)
    settings, known = POLICIES[policy]
    begin = time.monotonic()
    whole = Run(folder, job, policy + "-whole", settings)
    whole.finish()
    seconds = time.monotonic() - begin
    expected = whole.model() if known else None
    print(f"{policy}: undisturbed: {steps} steps in {seconds:.1f} s", flush=True)
    for victim in victims:
        faults, again = [], []
        for i in range(runs):
            run = Run(folder, job, f"{policy}-{victim}-{i}", settings)
            punisher = Punisher(run, ARGUMENTS.seed * 1000 + i)
            try:
                names = ["worker", "server", "scheduler"] if victim == "all" else [victim]
                for number, name in enumerate(names):
                    role = name if name == "scheduler" else f"{name}-{punisher.random.randrange(3)}"
                    # Inside the part of the run in which the kill of this number may come.
                    share = (number + punisher.random.uniform(0.1, 0.8)) / len(names)
                    run.wait("a step", lambda share=share: run.step() >= share * 0.9 * steps)
                    punisher.disturb("kill", role)
                summary = run.finish()
            finally:
                run.end()
            check_counts(summary)
            if len(summary["restarts"]) != len(names):
                raise AssertionError(f"restarts: {summary['restarts']}")
            if known and run.model() != expected:
                raise AssertionError(f"{run.out}: other bits than undisturbed, --seed {ARGUMENTS.seed}")
            again += [restart["steps_again"] for restart in summary["restarts"]]
            faults += punisher.faults
            shutil.rmtree(run.out)
        print(f"{policy}: kill -9 of {victim}: {runs} runs, {'the same bits' if known else 'all ended well'}; steps done "
              f"again: {statistics.median(again):.0f} (median), {max(again)} (worst)")
        report(f"{policy}: {victim}", faults)


def faults(folder, seconds, every, kinds, period, policy="bsp"):
    """A fault of a random kind at a random role every so many seconds, for so many seconds."""
    links = "link" in kinds
    flags = ["--link-bytes-per-second", "1.25e9"] if links else []
    job = write_job(folder, 100_000_000, period)
    settings = POLICIES[policy][0]
    # The speed without faults, on the same machine in the same minute.
    run = Run(folder, job, "calm", settings, flags)
    try:
        run.wait("a step", lambda: run.step() > 0)
        first, begin = run.step(), time.monotonic()
        time.sleep(min(20, seconds / 5))
        speed = (run.step() - first) / (time.monotonic() - begin)
    finally:
        run.end()
    run = Run(folder, job, "faults", settings, flags)
    punisher = Punisher(run, ARGUMENTS.seed)
    try:
        run.wait("a step", lambda: run.step() > 0)
        first, begin = run.step(), time.monotonic()
        due = begin + every
        while time.monotonic() < begin + seconds:
            time.sleep(max(0, due - time.monotonic()))
            due = max(due + every, time.monotonic())
            punisher.disturb(punisher.random.choice(kinds))
        done, took = run.step() - first, time.monotonic() - begin
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(LIMIT)
        summary = json.loads((run.out / "summary.json").read_text())
    finally:
        run.end()
    check_counts(summary)
    if len(summary["restarts"]) < len(punisher.faults):
        raise AssertionError(f"{len(punisher.faults)} faults, restarts: {summary['restarts']}")
    print(f"faults: {len(punisher.faults)} in {took:.0f} s; {done / took:.1f} steps/s, {speed:.1f} without faults: goodput "
          f"{done / took / speed:.2f}; {(took - done / speed) * 3 / len(punisher.faults):.1f} replica-seconds lost a fault")
    report("faults", punisher.faults)


def suspend(folder, seconds):
    """All processes of a job sleep, and wake together."""
    job = write_job(folder, 100_000_000, 5)
    run = Run(folder, job, "suspended", [])
    try:
        run.wait("a step", lambda: run.step() > 0)
        pids = [run.process.pid, *run.roles().values()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        step = run.step()
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        run.wait("a step after the sleep", lambda: run.step() > step + 10, 60)
        if run.events("recovered"):
            raise AssertionError("the run was restarted:\n" + run.text())
        if pids != [run.process.pid, *run.roles().values()]:
            raise AssertionError("other processes run:\n" + run.text())
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(LIMIT)
    finally:
        run.end()
    print(f"suspend: all processes slept {seconds} s, and the run went on")


def disk(folder):
    """The disk is full for a while: checkpoints fail and are said, training goes on."""
    mount = folder / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tandem-chaos", mount], check=True)
    run = None
    try:
        run = Run(mount, write_job(folder, 100_000_000, 1), "full", [])
        run.wait("a checkpoint", lambda: len(run.events("saved")) >= 2)
        before = (run.out / "model" / "LATEST").read_text()
        with open(mount / "filler", "wb") as filler:
            try:
                while True:
                    filler.write(b"x" * 65536)
                    filler.flush()
            except OSError:
                pass
        run.wait("a message of the full disk", lambda: "training continues" in run.text())
        step = run.step()
        (mount / "filler").unlink()
        run.wait("steps", lambda: run.step() > step + 20)
        run.wait("a checkpoint after it", lambda: (run.out / "model" / "LATEST").read_text() != before)
        if run.events("recovered"):
            raise AssertionError("the run was restarted:\n" + run.text())
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(LIMIT)
    finally:
        if run is not None:
            run.end()
        subprocess.run(["umount", "-l", mount], check=True)
    print("disk: a full disk was said, training went on, and a later checkpoint was made")


def short(folder):
    """A small part of bits, suspend and disk."""
    bits(folder, 1, 400, 1, victims=("all",))
    suspend(folder, 12)
    if os.geteuid() == 0:
        disk(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("bits")
    command.add_argument("--runs", type=int, default=20)
    command.add_argument("--steps", type=int, default=2000)
    command.add_argument("--period", type=float, default=2)
    command.add_argument("--policies", default="bsp")
    command = commands.add_parser("faults")
    command.add_argument("--seconds", type=float, default=600)
    command.add_argument("--every", type=float, default=30)
    command.add_argument("--period", type=float, default=5)
    command.add_argument("--kinds", default="kill")
    command.add_argument("--policy", default="bsp")
    command = commands.add_parser("suspend")
    command.add_argument("--seconds", type=float, default=60)
    commands.add_parser("disk")
    commands.add_parser("short")
    global ARGUMENTS  # pylint: disable=global-statement
    ARGUMENTS = parser.parse_args()
    ARGUMENTS.build = ARGUMENTS.build.resolve()
    with tempfile.TemporaryDirectory(prefix="tandem-punish-") as name:
        folder, given = pathlib.Path(name), ARGUMENTS
        try:
            if given.command == "bits":
                for policy in given.policies.split(","):
                    bits(folder, given.runs, given.steps, given.period, policy)
            elif given.command == "faults":
                faults(folder, given.seconds, given.every, given.kinds.split(","), given.period, given.policy)
            elif given.command == "suspend":
                suspend(folder, given.seconds)
            elif given.command == "disk":
                disk(folder)
            else:
                short(folder)
        except AssertionError as error:
            sys.exit(f"FAILED (--seed {given.seed}): {error}")


if __name__ == "__main__":
    main()
