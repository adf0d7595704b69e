#!/usr/bin/python3
"""Disturbs running jobs and checks that they recover.

Each case starts `tandem run`, disturbs its roles at random moments (kill -9, SIGSTOP, a cut link, a full disk), and checks
how the run ends: it finishes, nothing is left behind, and, if the job is reproducible, its model has the bits of an
undisturbed run. Prints a line for each case, with the times from faults to the next step of all workers.

  punish.py --build build bits --runs 20                    # kill -9 of a worker, a server, the scheduler, and of the three
  punish.py --build build bits --policies asp,ssp,delay,gba,hybrid
  punish.py --build build place --policies asp,ssp          # workers are replaced; each update counts once (records.py)
  punish.py --build build faults --every 5 --count 300      # kill -9 of any role every 5 s
  punish.py --build build faults --every 30 --seconds 600 --kinds kill,stop,link --apart
  punish.py --build build checkpoints --kills 200           # kill -9 in the middle of checkpoints; damaged files
  punish.py --build build suspend --seconds 60              # all processes of a job sleep
  punish.py --build build disk --seconds 20                 # the disk is full during checkpoints; for so long at the last one; a
                                                            # small part of room
  punish.py --build build room --kills 100                  # kill -9 in the middle of checkpoints; the disk has room for keep + 1
  punish.py --build build straggler --pairs 10              # the price of checkpoints beside a slow worker, under ASP
  punish.py --build build ncf --every 5                     # trains NCF (needs TANDEM_DATA), kills workers, checks HR@10
  punish.py --build build short                             # a small part of bits, place, checkpoints and suspend

--seed chooses the moments. Cutting links needs root; disk needs `unshare --mount`. After a failure the folder of the runs
is left, and the last line names it.
"""
import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import checkpoints
import draw
import records
from runs import BATCH, ENDLESS, POLICIES, Lab, Punisher, check_counts

SKIPPED = 77  # exit code: this machine cannot do it
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The MLP of He et al. (2017) with batches of 4,096 in all. A plain trainer reaches HR@10 .657 there.
NCF = ["train.batch_size=2048", "dense.optimizer.learning_rate=0.004", "cluster.max_restarts=1000",
       "checkpoint.every_seconds=5"]
NCF_LEAST_HR = 0.650
SIZES = {"checkpoints": 2, "disk": 2, "room": 2, "short": 2}  # of runs; 3 otherwise
OWN_DISK = ("disk", "room")  # commands that mount one


def spread(values, unit=""):
    return f"{statistics.median(values):.2f}{unit} (median), {max(values):.2f}{unit} (worst)"


# ---- bits -------------------------------------------------------------------------------------


def start_seconds(lab, job, settings, starts):
    """From `tandem run` to the first step of all workers, of undisturbed runs."""
    seconds = []
    for i in range(starts):
        run = lab.run(f"start-{i}", job, settings)
        run.wait("a step", lambda run=run: run.step() > 0)
        seconds.append(time.monotonic() - run.began)
        run.end()
        shutil.rmtree(run.out)
    return seconds


def bits(lab, runs, steps, period, policy="bsp", victims=("worker", "server", "scheduler", "all"), starts=5, slow=(),
         recorded=False):
    """kill -9 of a worker, of a server, of the scheduler, and of the three one after the other. slow: settings that may
    differ from those of the undisturbed run. recorded: the records of updates are checked, too."""
    job = lab.job(steps, period, rows=60_000)  # epochs are long: workers at a barrier are not replaced
    settings, known = POLICIES[policy]
    if recorded:
        settings = [*settings, "staleness.record_updates=true", "cluster.ranges_per_shard=2"]
    if starts:
        seconds = start_seconds(lab, job, settings, starts)
        print(f"{policy}: from the start of a run to the first step: {spread(seconds, ' s')}", flush=True)
    whole = lab.run(policy + "-whole", job, settings)
    undisturbed = whole.finish()
    expected = whole.model() if known else None
    print(f"{policy}: undisturbed: {steps} steps in {undisturbed['seconds']:.1f} s", flush=True)
    for victim in victims:
        all_faults, again = [], []
        for i in range(runs):
            run = lab.run(f"{policy}-{victim}-{i}", job, [*settings, *slow])
            punisher = Punisher(run, lab.seed * 1000 + i)
            names = ["worker", "server", "scheduler"] if victim == "all" else [victim]
            for number, name in enumerate(names):
                role = name if name == "scheduler" else f"{name}-{punisher.random.randrange(lab.size)}"
                # Inside the part of the run in which the kill of this number may come.
                share = (number + punisher.random.uniform(0.1, 0.8)) / len(names)
                run.wait("a step", lambda share=share, run=run: run.step() >= share * 0.9 * steps)
                punisher.disturb("kill", role)
            summary = run.finish()
            check_counts(summary)
            if len(summary["restarts"]) != len(names):
                raise AssertionError(f"{run.out}: restarts: {summary['restarts']}")
            if summary["samples"] != undisturbed["samples"]:
                raise AssertionError(f"{run.out}: {summary['samples']} samples, undisturbed {undisturbed['samples']}")
            if recorded:
                records.check(records.Run(run.out))
            if known and run.model() != expected:
                raise AssertionError(f"{run.out}: other bits than undisturbed")
            again += [restart["steps_again"] for restart in summary["restarts"]]
            all_faults += punisher.faults
            shutil.rmtree(run.out)
        print(f"{policy}: kill -9 of {victim}: {runs} runs, {'the same bits' if known else 'all ended well'}; steps done "
              f"again: {statistics.median(again):.0f} (median), {max(again)} (worst)")
        report(f"{policy}: {victim}", all_faults)


def report(title, all_faults):
    """A line for each kind of fault and of answer."""
    by_kind = {}
    for fault in all_faults:
        by_kind.setdefault((fault.kind, fault.answer), []).append(fault.seconds)
    for (kind, answer), seconds in sorted(by_kind.items()):
        print(f"{title}: {len(seconds)} x {kind}, {answer}: training again after {spread(seconds, ' s')}", flush=True)


# ---- place ------------------------------------------------------------------------------------


def place(lab, policy, kills, forgeries):
    """kill -9 of workers, rank 0 among them, in a job with dense parameters on servers. Each is replaced, and each
    (worker, step, range) is applied once. forgeries: tries to deceive the checker of the records."""
    # No epoch ends and no checkpoint is made before the last kill: workers at a barrier are not replaced.
    # GBA and RENNALA hold a part of a batch when a run is stopped, so such a run ends by itself.
    ends = policy in ("gba", "rennala")
    job = lab.job(100 * kills if ends else ENDLESS, 10_000, rows=50_000 + 30_000 * kills)
    run = lab.run("place-" + policy, job, [*POLICIES[policy][0], "staleness.record_updates=true", "cluster.ranges_per_shard=2",
                                           "fault_injection.slow_workers={mean_seconds: 0.05}"])
    punisher = Punisher(run, lab.seed)
    ranks = [i % lab.size for i in range(kills)]
    punisher.random.shuffle(ranks)
    for rank in ranks:
        step = run.step() + punisher.random.randrange(5, 30)
        run.wait("steps", lambda step=step: run.step() >= step)
        # A server sleeps meanwhile. So it lacks pushes of the worker that the others have.
        server = run.role(f"server-{punisher.random.randrange(lab.size)}")
        os.kill(server, signal.SIGSTOP)
        time.sleep(punisher.random.uniform(0, 0.1))
        waker = threading.Timer(0.1, os.kill, (server, signal.SIGCONT))
        waker.start()
        punisher.disturb("kill", f"worker-{rank}")
        waker.join()
    step = run.step()
    run.wait("steps", lambda: run.step() > step + 5)
    summary = run.finish() if ends else run.stop()
    replaced = [restart.get("replaced") for restart in summary["restarts"]]
    if "resumed" in summary or replaced != [f"worker {rank}" for rank in ranks]:
        raise AssertionError(f"{run.out}: workers {ranks} were killed, restarts: {summary['restarts']}")
    steps = sum(worker["steps"] for worker in summary["by_worker"])
    if summary["samples"] != steps * BATCH:
        raise AssertionError(f"{run.out}: {summary['samples']} samples, expected {BATCH} in each of {steps} steps")
    recorded = records.Run(run.out)
    count = records.check(recorded)
    found = sum(records.forge(recorded, lab.seed * 1000 + i) for i in range(forgeries))
    again = [restart["steps_again"] for restart in summary["restarts"]]
    print(f"place {policy}: {kills} workers were killed and replaced; {count} records, each update once: sent "
          f"{summary['updates']['sent']} = applied + merged + dropped; {found} forgeries found; steps done again: "
          f"{statistics.median(again):.0f} (median), {max(again)} (worst)")
    report("place " + policy, punisher.faults)


# ---- faults -----------------------------------------------------------------------------------


def goodput(lab, policy, period, seconds, every, count, kinds):
    """A fault of one of the kinds at a random role every so many seconds, for so many seconds or faults."""
    flags = ["--link-bytes-per-second", "1.25e9"] if "link" in kinds else []
    job = lab.job(ENDLESS, period)
    settings = POLICIES[policy][0]
    name = "-".join(kinds)
    # The speed without faults, on the same machine in the same minute.
    run = lab.run(name + "-calm", job, settings, flags)
    run.wait("a step", lambda: run.step() > 0)
    first, begin = run.step(), time.monotonic()
    time.sleep(min(20, seconds / 5))
    speed = (run.step() - first) / (time.monotonic() - begin)
    run.end()
    faulty = lab.run(name, job, settings, flags)
    punisher = Punisher(faulty, lab.seed)
    faulty.wait("a step", lambda: faulty.step() > 0)
    first, begin = faulty.step(), time.monotonic()
    due = begin + every
    while len(punisher.faults) < count if count else time.monotonic() < begin + seconds:
        time.sleep(max(0, due - time.monotonic()))
        due = max(due + every, time.monotonic())
        punisher.disturb(punisher.random.choice(kinds))
    done, took = faulty.step() - first, time.monotonic() - begin
    summary = faulty.stop()
    check_counts(summary)
    faults = punisher.faults
    if len(summary["restarts"]) < len(faults):
        raise AssertionError(f"{len(faults)} faults, restarts: {summary['restarts']}")
    again = [restart["steps_again"] for restart in summary["restarts"]]
    print(f"faults {name}: {len(faults)} in {took:.0f} s, training continued after each; {done / took:.1f} steps/s, {speed:.1f} "
          f"without faults: goodput {done / took / speed:.2f}; {(took - done / speed) * lab.size / len(faults):.1f} "
          f"replica-seconds lost a fault; steps done again: {statistics.median(again):.0f} (median), {max(again)} (worst)")
    report("faults " + name, faults)


# ---- suspend, disk ----------------------------------------------------------------------------


def suspend(run, seconds):
    """All processes of a job sleep, and wake together."""
    run.wait("a step", lambda: run.step() > 0)
    pids = [run.process.pid, *run.roles().values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    step = run.step()
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    run.wait("a step after the sleep", lambda: run.step() > step + 10)
    if pids != [run.process.pid, *run.roles().values()] or run.events("recovered"):
        raise AssertionError("processes were started again:\n" + run.text())
    print(f"suspend: all processes slept {seconds} s, and training continued", flush=True)


def disk(lab, seconds):
    """The disk is full for a while, or at the last checkpoint, or has room for one checkpoint more than are kept."""
    mount = lab.folder / "disk"

    def full(part):
        with mounted(mount, "64m"):
            part()
        mount.rmdir()
    for case in draw.drawn([lambda: full(lambda: full_for_a_while(lab, mount)),
                            lambda: full(lambda: full_at_the_end(lab, mount, seconds)),
                            lambda: room(lab, 1)]):
        case()


def full_for_a_while(lab, mount):
    """The disk is full for a while: checkpoints fail with a message, and training continues."""
    run = lab.run("disk/full", lab.job(ENDLESS, 1))
    run.wait("two checkpoints", lambda: len(run.events("saved")) >= 2)
    latest = run.out / "model" / "LATEST"
    with open(mount / "filler", "wb", buffering=0) as filler:
        run.wait("a message of the full disk", lambda: fill(filler) and "training continues" in run.text())
    before, step = latest.read_text(), run.step()
    (mount / "filler").unlink()
    run.wait("steps", lambda: run.step() > step + 20)
    run.wait("a checkpoint after it", lambda: latest.read_text() != before)
    if "restarts" in run.stop():
        raise AssertionError("the run was restarted:\n" + run.text())
    print("disk: a message named the full disk, training continued, and a later checkpoint was made", flush=True)


def room(lab, kills):
    """The disk has room for one checkpoint more than are kept. Roles are killed while they write one. None fails."""
    keep = 2
    run, job = checkpoints.start(lab, [])
    run.wait("all rows", lambda: run.step() > 200)  # two epochs
    run.stop()
    model, aside = run.out / "model", lab.folder / "aside"
    newest = checkpoints.newest_folder(run.out)
    size = sum(-(-path.stat().st_size // 4096) for path in newest.iterdir()) * 4096
    model.rename(aside)
    with mounted(model, (keep + 1) * size + size // 8):
        shutil.copytree(aside, model, dirs_exist_ok=True)
        run = lab.run("killed", job, checkpoints.SLOW, ["--resume", run.out])
        run = checkpoints.kills(lab, run, job, kills)
        saved = len(run.events("saved"))
        run.wait("checkpoints after the last kill", lambda: failed_checkpoints(run) or len(run.events("saved")) > saved + keep)
        summary = run.stop()
        if failed_checkpoints(run) or "failure" in summary["stopped"]:
            raise AssertionError(f"{run.out}: checkpoints of {size} bytes failed on a disk with room for {keep} + 1: "
                                 f"{failed_checkpoints(run)[:3]}, {summary['stopped']}")
    print(f"room: {kills} kills in the middle of checkpoints on a disk with room for {keep} + 1: no checkpoint failed",
          flush=True)


def failed_checkpoints(run):
    return [line for line in run.text().splitlines() if "checkpoint" in line and "failed:" in line]


@contextlib.contextmanager
def mounted(folder, size):
    """A disk of that size in a new folder."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tandem-chaos", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def full_at_the_end(lab, mount, seconds):
    """The disk is full at the last checkpoint, and has room after the seconds: nothing is trained twice."""
    slow = "fault_injection.slow_workers={mean_seconds: 0.02}"
    job = lab.job(100, 10_000)
    whole = lab.run("whole", job)
    expected, model = whole.finish(), whole.model()
    run = lab.run("disk/end", job, [slow])
    run.wait("a process", run.roles)
    with open(mount / "filler", "wb", buffering=0) as filler:
        run.wait("a step", lambda: run.step() > 0)
        run.wait("a wait for room", lambda: fill(filler) and "; the job waits up to" in run.text())
        began = time.monotonic()
        run.wait("the time", lambda: fill(filler) and time.monotonic() - began >= seconds)
    (mount / "filler").unlink()
    summary = run.finish()
    waited = time.monotonic() - began
    if "restarts" in summary or summary["samples"] != expected["samples"]:
        raise AssertionError(f"{run.out}: {summary['samples']} samples, undisturbed {expected['samples']}\n{run.text()}")
    if run.model() != model:
        raise AssertionError(f"{run.out}: other bits than undisturbed")
    print(f"disk: the last checkpoint waited {waited:.1f} s for room, and the run ended with the same bits", flush=True)


def fill(file):
    """Takes what is free, also what a removed checkpoint has freed."""
    try:
        while True:
            file.write(b"x" * 65536)
    except OSError:
        return True


def with_mounts_of_its_own():
    """Starts this program again where a mount is nobody else's, and ends with it."""
    inside = "TANDEM_PUNISH_MOUNTS"
    if inside in os.environ:
        return
    unshare = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode != 0:
        print("skipped: a full disk needs `unshare --mount`, which this machine does not allow")
        sys.exit(SKIPPED)
    os.execvpe(unshare[0], [*unshare, sys.executable, *sys.argv], dict(os.environ, **{inside: "1"}))


# ---- straggler --------------------------------------------------------------------------------


def interval(values, rng):
    """The mean, and the interval that has 95 % of the means of 10,000 resamples."""
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(10_000))
    return f"{statistics.fmean(values):.3f} (95 % from {means[250]:.3f} to {means[-251]:.3f})"


def straggler(lab, pairs, seconds, period):
    """One worker is four times as slow, under ASP: with checkpoints and without, in turns. Both write one at the end."""
    slow = "fault_injection.slow_workers=[{mean_seconds: 0.01}, {worker: 2 mean_seconds: 0.04}]"
    rng = random.Random(lab.seed)
    job = lab.job(ENDLESS, period, rows=int(20_000 * seconds))  # no epoch ends, since fast workers would wait there
    speeds, staleness, made = {True: [], False: []}, {True: [], False: []}, 0
    for pair in range(pairs):
        for with_checkpoints in (True, False) if pair % 2 else (False, True):
            every = f"seconds: {period}" if with_checkpoints else "steps: 1000000000"
            settings = [*POLICIES["asp"][0], slow, f"checkpoint={{every_{every}}}"]
            run = lab.run(f"straggler-{pair}-{with_checkpoints}", job, settings)
            run.wait("a step", lambda run=run: run.step() > 0)
            time.sleep(seconds)
            progress = list(run.events("progress"))
            summary = run.stop()
            # Behind the first second, in which workers start, and before the last checkpoint.
            first, last = next(event for event in progress if event["seconds"] >= 1), progress[-1]
            speeds[with_checkpoints].append((last["samples"] - first["samples"]) / (last["seconds"] - first["seconds"]))
            staleness[with_checkpoints].append(summary["staleness"]["ids"]["version_staleness"]["mean"])
            made += len(run.events("saved")) if with_checkpoints else 0
            steps = [worker["steps"] for worker in summary["by_worker"]]
            if steps[2] * 2 > min(steps[:2]):
                raise AssertionError(f"{run.out}: steps of the workers {steps}; expected the slow worker 2 to make at most half "
                                     "as many as each other worker")
            shutil.rmtree(run.out)
        print(f"straggler: pair {pair + 1}: samples/s {speeds[True][-1]:.0f} with checkpoints, {speeds[False][-1]:.0f} "
              f"without; mean staleness {staleness[True][-1]:.3f} and {staleness[False][-1]:.3f}", flush=True)
    for title, measured in (("samples/s", speeds), ("mean staleness of ids", staleness)):
        ratios = [a / b for a, b in zip(measured[True], measured[False])]
        print(f"straggler: {title}: with a checkpoint every {period} s ({made} of them) {interval(measured[True], rng)}, "
              f"without {interval(measured[False], rng)}; with / without, by pairs: {interval(ratios, rng)}")


# ---- ncf --------------------------------------------------------------------------------------


def ncf(lab, policies, every):
    """Trains on MovieLens-1M and kills a worker (SIGKILL) each `every` seconds. HR@10 must reach NCF_LEAST_HR."""
    job = pathlib.Path(__file__).resolve().parents[2] / "configs" / "ncf_mlp8.textproto"
    for policy in policies.split(","):
        run = lab.run("ncf-" + policy, job, [*POLICIES[policy][0], *NCF])
        punisher = Punisher(run, lab.seed)
        run.wait("a step", lambda run=run: run.step() > 0)
        while True:
            due = time.monotonic() + every
            try:
                run.wait("the time of a kill", lambda due=due: time.monotonic() > due)
                punisher.disturb("kill", f"worker-{punisher.random.randrange(2)}")
            except AssertionError:
                if run.process.poll() is None:
                    raise
                break
        summary = run.finish()
        check_counts(summary)
        hr, ndcg = summary["eval"]["hr_at_10"], summary["eval"]["ndcg_at_10"]
        print(f"ncf {policy}: HR@10 {hr:.4f}, NDCG@10 {ndcg:.4f}, {summary['samples']} samples")
        report("ncf " + policy, punisher.faults)
        if hr < NCF_LEAST_HR or not punisher.faults:
            raise AssertionError(f"{run.out}: HR@10 {hr}, expected at least {NCF_LEAST_HR}; "
                                 f"{len(punisher.faults)} kills, expected at least 1")


# ---- the program ------------------------------------------------------------------------------


def short(lab):
    """A small part of bits, place, suspend and checkpoints. Steps take their time, so that no run ends too soon."""
    bits(lab, 1, 300, 0.5, victims=("all",), starts=0, slow=["fault_injection.slow_workers={mean_seconds: 0.01}"])
    place(lab, "ssp", 1, forgeries=2)
    run, job = checkpoints.start(lab)
    suspend(run, 3)
    run = checkpoints.kills(lab, run, job, 1)
    run.stop()
    checkpoints.damaged(lab, run, job, [], lab.folder / "bsp-whole", 6)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("bits")
    command.add_argument("--runs", type=int, default=20)
    command.add_argument("--steps", type=int, default=2000)
    command.add_argument("--period", type=float, default=2, help="seconds between checkpoints")
    command.add_argument("--policies", default="bsp", help="of " + ",".join(POLICIES))
    command.add_argument("--records", action="store_true", help="check the records of updates, too")
    command = commands.add_parser("place")
    command.add_argument("--kills", type=int, default=12)
    command.add_argument("--policies", default="asp,ssp")
    command.add_argument("--forgeries", type=int, default=1, help="rounds of forged records that the checker must find")
    command = commands.add_parser("faults")
    command.add_argument("--seconds", type=float, default=600)
    command.add_argument("--count", type=int, default=0, help="of faults, instead of --seconds")
    command.add_argument("--every", type=float, default=30)
    command.add_argument("--period", type=float, default=2, help="seconds between checkpoints")
    command.add_argument("--kinds", default="kill", help="of kill,stop,link")
    command.add_argument("--apart", action="store_true", help="a run for each kind")
    command.add_argument("--policy", default="bsp")
    command = commands.add_parser("checkpoints")
    command.add_argument("--kills", type=int, default=200)
    command.add_argument("--damages", type=int, default=1000, help="at most, of single files")
    command = commands.add_parser("suspend")
    command.add_argument("--seconds", type=float, default=60)
    command = commands.add_parser("disk")
    command.add_argument("--seconds", type=float, default=0, help="how long the disk is full at the last checkpoint")
    command = commands.add_parser("room")
    command.add_argument("--kills", type=int, default=100)
    command = commands.add_parser("straggler")
    command.add_argument("--pairs", type=int, default=10)
    command.add_argument("--seconds", type=float, default=20, help="of each run")
    command.add_argument("--period", type=float, default=2, help="seconds between checkpoints")
    command = commands.add_parser("ncf")
    command.add_argument("--policies", default="asp,ssp,gba")
    command.add_argument("--every", type=float, default=5, help="seconds between kills")
    commands.add_parser("short")
    return parser.parse_args()


def punish(lab, given):
    if given.command == "bits":
        for policy in given.policies.split(","):
            bits(lab, given.runs, given.steps, given.period, policy, recorded=given.records)
    elif given.command == "place":
        for policy in given.policies.split(","):
            place(lab, policy, given.kills, given.forgeries)
    elif given.command == "faults":
        kinds = given.kinds.split(",")
        for together in [[kind] for kind in kinds] if given.apart else [kinds]:
            goodput(lab, given.policy, given.period, given.seconds, given.every, given.count, together)
    elif given.command == "checkpoints":
        checkpoints.punish(lab, given.kills, given.damages)
    elif given.command == "suspend":
        run = lab.run("suspended", lab.job(ENDLESS, 5))
        suspend(run, given.seconds)
        run.stop()
    elif given.command == "straggler":
        straggler(lab, given.pairs, given.seconds, given.period)
    elif given.command == "ncf":
        ncf(lab, given.policies, given.every)
    elif given.command == "room":
        room(lab, given.kills)
    elif given.command == "disk":
        disk(lab, given.seconds)
    else:
        short(lab)


def interrupt(*_):
    """Ends this program and its runs. A second signal does not disturb that."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main():
    given = parse()
    if given.command in OWN_DISK:
        with_mounts_of_its_own()
    try:
        import numpy  # pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        print("skipped: models are compared with numpy, which this Python lacks")
        sys.exit(SKIPPED)
    for number in STOPS:
        signal.signal(number, interrupt)
    lab = Lab(tempfile.mkdtemp(prefix="tandem-punish-"), given.build.resolve(), given.seed, SIZES.get(given.command, 3))
    keep = False
    try:
        punish(lab, given)
    except AssertionError as error:
        keep = given.command not in OWN_DISK  # the disk goes with this process
        sys.exit(f"FAILED (--seed {given.seed}): {error}\nleft in {lab.folder}" if keep else f"FAILED: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        lab.close()
        if not keep:
            shutil.rmtree(lab.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
