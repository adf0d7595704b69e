"""Code that the scripts of this folder share: processes with their memory, rounds in turns, medians, tables.

Rounds are few, so an interval goes from the least to the greatest value. The true median (of very many rounds) lies in it with
probability 1 - 2^(1 - N), for N rounds: 94 % for 5 rounds, 75 % for 3.
"""
import argparse
import collections
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(ROOT / "tests" / "chaos"), str(ROOT / "tests")]
SAMPLED_EVERY = 1.  # seconds between two samples of the memory
# Settings of the BLAS of PyTorch's wheel. On processors of other makers than Intel, MKL does not choose its fastest kernels.
BLAS = [{}, {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, {"MKL_ENABLE_INSTRUCTIONS": "AVX512"}]


def parser(doc, **defaults):
    """The flags of all scripts."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    made.add_argument("--tiny", action="store_true", help="small sizes: shows that the script works, measures nothing")
    made.set_defaults(**defaults)
    return made


def need(*modules):
    """Ends the script with status 77 (skipped) if a package is missing."""
    missing = [name for name in modules if not importlib.util.find_spec(name)]
    if missing:
        print(f"SKIPPED ENTIRELY: {', '.join(missing)} missing in {sys.executable}: use the interpreter that "
              "tests/python/torch_environment.sh peers prints")
        sys.exit(77)


def tree(root):
    """The process and all processes below it."""
    children = collections.defaultdict(list)
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            children[int(stat.read_text().rsplit(")", 1)[1].split()[1])].append(int(stat.parent.name))
        except OSError:
            pass  # it has ended
    found, left = [], [root]
    while left:
        found.append(left.pop())
        left += children[found[-1]]
    return found


def resident(root):
    """Bytes in memory of the process and all below it (PSS: a page of several processes counts once)."""
    total = 0
    for pid in tree(root):
        try:
            text = pathlib.Path("/proc", str(pid), "smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total


Ran = collections.namedtuple("Ran", "out seconds peak")


def call(command, env=None):
    """Runs a command that must succeed. Returns its output, its seconds, and its peak of resident()."""
    began, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=errors, cwd=ROOT,
                                   env={**os.environ, **(env or {})})
        while process.poll() is None:
            try:
                process.wait(SAMPLED_EVERY)
            except subprocess.TimeoutExpired:
                peak = max(peak, resident(process.pid))
        out.seek(0), errors.seek(0)
        if process.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}\n{out.read()}{errors.read()}")
        return Ran(out.read(), time.monotonic() - began, peak)


def last_json(text):
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


def python_environment(flags):
    """The environment of scripts that import tandem."""
    return {"TANDEM_PYTHON": sys.executable, "PYTHONPATH": str(flags.build / "python"),
            "TANDEM_LIBRARY": str(flags.build / "lib" / "libtandem.so")}


def best_blas():
    """The settings of BLAS with the fastest matrix product of PyTorch; others than the first must be 5 % faster."""
    best, most = {}, 0.
    for settings in BLAS:
        speed = float(call([sys.executable, HERE.parent / "dlrm_torch.py", "--mode", "probe"], settings).out)
        print(f"MKL {settings or 'of its own choice'}: {speed:.0f} GFLOP/s of one thread")
        if speed > 1.05 * most:
            best, most = settings, speed
    return best


def run_job(flags, folder, job, *more, env=None):
    """`tandem run`. Returns its summary, and what call() returns."""
    out = tempfile.mkdtemp(dir=folder)
    ran = call([flags.build / "bin" / "tandem", "run", job, "--out", out, "--overwrite", "--no-checkpoint", "--http", "none",
                *more], env)
    return json.loads(pathlib.Path(out, "summary.json").read_text()), ran


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown processor")
    print(f"machine: {os.cpu_count()} cores, {name}", flush=True)


def in_turns(sides, rounds, prepare=lambda number: None):
    """sides: name -> a function that returns a dict of figures. Each round runs prepare and then all sides. The first side of a
    round is the second one of the round before. Returns name -> figure -> values."""
    found = {name: collections.defaultdict(list) for name in sides}
    names = list(sides)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
        prepare(number)
        for name in names[number % len(names):] + names[:number % len(names)]:
            figures = sides[name]()
            for figure, value in figures.items():
                found[name][figure].append(value)
            print(f"  {name}: " + ", ".join(f"{k} {v:,.6g}" for k, v in figures.items()), flush=True)
    return found


def spread(values, digits=6):
    """Median (least to greatest)."""
    text = [f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.{digits}g}" for value in
            (statistics.median(values), min(values), max(values))]
    return f"{text[0]} ({text[1]} to {text[2]})"


def report(title, found, beside=None, ratio_of=None):
    """Prints a table, with the ratio of the figure ratio_of of each side to that of the side `beside`, round by round."""
    print(f"\n{title}: median (least to greatest round)")
    for name, figures in found.items():
        line = "; ".join(f"{figure} {spread(values, 4)}" for figure, values in figures.items())
        if beside in found and name != beside and ratio_of in figures:
            ratios = [a / b for a, b in zip(figures[ratio_of], found[beside][ratio_of])]
            line += f"; {ratio_of} / {beside}: {spread(ratios, 3)}"
        print(f"  {name:24} {line}", flush=True)
