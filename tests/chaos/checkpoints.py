"""kill -9 in the middle of checkpoints, and checkpoints with a damaged file.

Kills: a run writes checkpoints all the time. As soon as the folder of a new one appears, one of its roles dies, or all
processes of the run do. The run must resume from the newest whole checkpoint. This file finds that one by itself. In the end
the model has the bits of a run that was never disturbed.

Damage: a file of the checkpoint has a flipped bit, is missing, or is that of another run. The message of --resume must name
the file. The run resumes from the checkpoint before it, if there is one.
"""
import json
import os
import random
import shutil
import signal
import statistics
import time

from runs import ENDLESS

VICTIMS = ("all", "worker-0", "worker-1", "server-0", "scheduler")
SLOW = ["fault_injection.slow_workers={mean_seconds: 0.01}"]


def order(folder, manifest):
    """Of two checkpoints of a run the newer one is greater. The last number of a name is that of the request; the checkpoint
    at the end of a run has none."""
    parts = folder.name.split(".")
    return manifest["attempt"], manifest["step"], int(parts[2]) if len(parts) == 3 else 1 << 62


def newest_whole(model):
    """The step of the newest checkpoint that has its manifest, and each range of it in its file; -1: there is none."""
    found = []
    for folder in model.glob("step-*"):
        try:
            manifest = json.loads((folder / "MANIFEST").read_text())
            # A segment ends with an index of its ranges.
            if all((folder / file["file"]).stat().st_size >= file["offset"] + file["length"] for file in manifest["files"]):
                found.append((order(folder, manifest), manifest["step"]))
        except FileNotFoundError:
            pass
    return max(found)[1] if found else -1


def unfinished(model, finished):
    """A checkpoint that is being written. finished: names of others."""
    for name in os.listdir(model):
        if not name.startswith("step-") or name in finished:
            continue
        if not (model / name / "MANIFEST").exists():
            return name
        finished.add(name)
    return None


def pids_of(run, victim):
    """The processes to kill. If all are killed at once, none of them can see another one die."""
    return [run.process.pid, *run.roles().values()] if victim == "all" else [run.role(victim)]


def start(lab, settings=SLOW):
    """A run that writes checkpoints all the time. SLOW: its steps take their time, so that an undisturbed run has not too many."""
    job = lab.job(ENDLESS, 0.1)
    run = lab.run("killed", job, settings)
    run.wait("a checkpoint", lambda: run.events("saved"))
    return run, job


def kills(lab, run, job, count):
    """Kills that hit a checkpoint before it is whole, `count` of them. Returns the run that goes on."""
    rng, model = random.Random(lab.seed), run.out / "model"
    finished, writes, seconds = set(), [0.01], []
    hits = tries = 0
    while hits < count:
        tries += 1
        if tries > 10 * count + 20:
            raise AssertionError(f"{run.out}: {hits} of {tries} kills were before a checkpoint was whole")
        begin = time.monotonic()
        victim = rng.choice(VICTIMS)
        pids = pids_of(run, victim)  # looking for them takes longer than a checkpoint
        resumed, before = len(run.events("resumed")), newest_whole(model)
        written = run.wait("a checkpoint being written", lambda: unfinished(model, finished), pause=0.0005)
        seen = time.time()
        time.sleep(rng.uniform(0, statistics.median(writes)))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        if victim == "all":
            run.process.wait()
        try:
            took = (model / written / "MANIFEST").stat().st_mtime - seen
            writes.append(min(max(took, 0), 1))
        except FileNotFoundError:
            hits += 1
        if victim == "all":
            before = newest_whole(model)
            run = lab.run("killed", job, SLOW, ["--resume", run.out])
        run.wait(f"resuming after kill of {victim}", lambda: len(run.events("resumed")) > resumed)
        finished.update(os.listdir(model))  # what was being written never becomes whole now
        step = run.events("resumed")[-1]["step"]
        # If one role was killed, the others may have completed the checkpoint.
        if step < before or (victim == "all" and step > before):
            raise AssertionError(f"{run.out}: resumed from step {step} after kill of {victim}, but the newest whole "
                                 f"checkpoint was of step {before}; the run said:\n{run.text()}")
        reports = len(run.events("progress"))
        run.wait("a step after it", lambda: len(run.events("progress")) > reports and run.step() > step)
        seconds.append(time.monotonic() - begin)
    print(f"checkpoints: {hits} kills (of {tries}) before the checkpoint was whole, {statistics.median(seconds):.1f} s each: "
          f"the run resumed from the newest whole one each time", flush=True)
    return run


def same_bits(lab, run, job):
    """Ends the killed run, and compares it with one that was never disturbed. Returns it, and its number of steps."""
    run.stop()
    steps = run.step() + 100
    last = [f"train.max_steps={steps}"]
    run = lab.run("killed", job, last, ["--resume", run.out])
    run.finish()
    whole = lab.run("whole", job, [*last, "checkpoint.every_seconds=10000"])
    whole.finish()
    if run.model() != whole.model():
        raise AssertionError(f"{run.out}: the model differs from that of the undisturbed run after {steps} steps")
    print(f"checkpoints: after {steps} steps the model has the bits of a run that was never killed", flush=True)
    return run, steps


def damaged(lab, run, job, settings, foreign, most):
    """Each file of the newest checkpoint in turn: a flipped bit, missing, that of the run in folder `foreign`."""
    rng, copy = random.Random(lab.seed), lab.folder / "damaged"
    whole, foreign = newest_folder(run.out), newest_folder(foreign)
    cases = [(file, damage) for file in sorted(path.name for path in whole.iterdir()) for damage in (flip, remove, replace)
             if damage is not replace or (foreign / file).exists()]
    rng.shuffle(cases)
    for file, damage in cases[:most]:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy / "model" / whole.name)
        shutil.copy(run.out / "run", copy / "run")
        shutil.copy(run.out / "job.textproto", copy / "job.textproto")
        path = copy / "model" / whole.name / file
        damage(path, foreign / file, rng)
        done = lab.attempt("run", job, "--resume", copy, *(word for setting in settings for word in ("--set", setting)))
        if done.returncode == 0 or str(path) not in done.stdout:
            raise AssertionError(f"{damage.__name__} of {file}: tandem run --resume ended with {done.returncode}, and did "
                                 f"not name the file:\n{done.stdout}")
    print(f"checkpoints: {len(cases[:most])} of {len(cases)} damages of single files, each refused with the name of the file",
          flush=True)


def passed_over(lab, run, job, settings):
    """With an older checkpoint beside it, the run passes over the damaged one."""
    rng, newest = random.Random(lab.seed), newest_folder(run.out)
    path = rng.choice(sorted(newest.iterdir()))
    flip(path, None, rng)
    older = newest_whole_but(newest)
    run = lab.run("killed", job, settings, ["--resume", run.out])
    run.finish()
    if f"passed over: {path}" not in run.text() or run.events("resumed")[-1]["step"] != older:
        raise AssertionError(f"{path} is damaged, expected to resume from step {older}; the run said:\n{run.text()}")
    print("checkpoints: a damaged checkpoint was named and passed over")


def newest_folder(out):
    model = out / "model"
    return model / (model / "LATEST").read_text().strip()


def newest_whole_but(folder):
    """The step of the newest whole checkpoint but this one."""
    aside = folder.with_name("aside-" + folder.name)
    folder.rename(aside)
    try:
        return newest_whole(folder.parent)
    finally:
        aside.rename(folder)


def flip(path, _, rng):
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def remove(path, _, __):
    path.unlink()


def replace(path, foreign, _):
    shutil.copy(foreign, path)


def punish(lab, count, damages):
    run, job = start(lab)
    run = kills(lab, run, job, count)
    run, steps = same_bits(lab, run, job)
    other = lab.run("other", job, [f"train.max_steps={steps}", "seed=8"])
    other.finish()
    longer = [f"train.max_steps={steps + 5}"]
    damaged(lab, run, job, longer, other.out, damages)
    passed_over(lab, run, job, longer)
