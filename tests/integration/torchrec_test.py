"""Models of torchrec with their tables on servers have the losses and the rows of the plain models. Skipped without
torchrec.

    torchrec_test.py SOURCE BUILD
"""
import json
import os
import subprocess
import sys
import tempfile

SOURCE, BUILD = sys.argv[1:3]
SKIPPED = 77
LIMIT = 200          # seconds of one run
STEPS, CLOSE = 100, 1e-5


def run(script, *arguments, folder=None):
    environment = dict(os.environ, PYTHONPATH=os.path.join(BUILD, "python"), OMP_NUM_THREADS="1",
                       TANDEM_PYTHON=sys.executable)
    command = [sys.executable, os.path.join(SOURCE, "tests", "python", script), *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, timeout=LIMIT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def losses_of(out, workers):
    """The mean over the workers, which have as many samples each."""
    of_workers = []
    for rank in range(workers):
        with open(f"{out}.{rank}.json", encoding="utf-8") as file:
            of_workers.append(json.load(file))
    return [sum(losses) / workers for losses in zip(*of_workers)]


def differences(plain, out):
    """The largest difference of a row from that of the plain model, and the largest change by training."""
    tables = tandem.load(out + "/model").tables
    assert sorted(tables) == sorted(plain["rows"]), (sorted(tables), sorted(plain["rows"]))
    worst = moved = 0.
    for name, weight in plain["rows"].items():
        keys = torch.from_numpy(numpy.array(tables[name].keys))
        assert torch.equal(keys.sort().values, torch.arange(len(weight))), f"{out}: not all rows of {name}"
        worst = max(worst, float((torch.from_numpy(numpy.array(tables[name].weights)) - weight[keys]).abs().max()))
        moved = max(moved, float((weight - plain["first"][name]).abs().max()))
    return worst, moved


def compare_page(folder):
    """The script of docs/TORCHREC.md before and after, whose difference has the lines that the page says."""
    with open(os.path.join(SOURCE, "docs", "TORCHREC.md"), encoding="utf-8") as file:
        page = file.read()
    lines = page.split("```diff\n")[1].split("```")[0].splitlines()
    new, gone = [sum(line[0] == sign for line in lines) for sign in "+-"]
    assert f"{new - gone} lines are new, and {gone} are changed." in page, (new, gone)
    said = []
    for name, sign in (("before", "-"), ("after", "+")):
        script = os.path.join(folder, name + ".py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("\n".join(line[1:] for line in lines if line[0] in " " + sign) + "\n")
        said.append(run(script, folder=folder))
    (out,) = [name for name in os.listdir(os.path.join(folder, "out")) if not name.endswith(".start")]
    of_workers = []
    for rank in "01":
        with open(os.path.join(folder, "out", out, "logs", f"worker-{rank}.log"), encoding="utf-8") as file:
            of_workers.append(file.read())
    before, *after = [[float(line.split()[-1]) for line in text.splitlines() if line.startswith("epoch ")]
                      for text in (said[0], *of_workers)]
    print(f"docs/TORCHREC.md: losses of epochs {before}, of two workers {after}")
    assert len(before) == len(after[0]) == 3
    assert all(abs(plain - (a + b) / 2) < CLOSE for plain, a, b in zip(before, *after))


def compare(folder, name):
    file = os.path.join(folder, name + ".plain")
    run("torchrec_models.py", name, file, "plain")
    plain = torch.load(file)
    for workers in (1, 2):
        out = os.path.join(folder, f"{name}.{workers}")
        run("torchrec_models.py", name, out, str(workers))
        losses = losses_of(out, workers)
        assert len(losses) == len(plain["losses"]) == STEPS, len(losses)
        worst = max(abs(a - b) for a, b in zip(losses, plain["losses"]))
        of_rows, moved = differences(plain, out)
        print(f"{name}, {workers} worker{'s' * (workers > 1)}: losses at steps 1, 50, 100 " + ", ".join(
            f"{losses[i]:.7f} (plain {plain['losses'][i]:.7f})" for i in (0, 49, 99))
            + f"; largest difference {worst:.1e}, of rows {of_rows:.1e}; rows moved by up to {moved:.2f}")
        assert worst <= CLOSE and of_rows <= CLOSE and moved > .1
    return plain["losses"]


if __name__ == "__main__":
    try:
        import numpy
        import torch
        import torchrec  # noqa: F401
    except ImportError as error:
        print("skipped:", error)
        sys.exit(SKIPPED)
    os.environ["TANDEM_LIBRARY"] = os.path.join(BUILD, "lib", "libtandem.so")
    sys.path.insert(0, os.path.join(BUILD, "python"))
    import tandem
    with tempfile.TemporaryDirectory() as here:
        compare_page(here)
        of_dlrm = compare(here, "dlrm")
        compare(here, "deepfm")
        compare(here, "mixed")
        for count in (1, 2):
            resumed = os.path.join(here, f"resumed.{count}")
            run("torchrec_models.py", "dlrm", resumed, str(count), "40")
            assert len(losses_of(resumed, count)) == 40
            run("torchrec_models.py", "dlrm", resumed, str(count), "resume")
            rest = losses_of(resumed, count)
            assert len(rest) == 60 and max(abs(a - b) for a, b in zip(rest, of_dlrm[40:])) <= CLOSE, rest
        assert "refused" in run("torchrec_refused.py", here)
