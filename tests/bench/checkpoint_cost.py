#!/usr/bin/python3
"""What checkpoints cost: the same job with and without them, in turns.

checkpoint_cost.py [--build build] [--pairs 10] [--steps 600] [--every 10] [--data FOLDER] [--tiny] [SETTING...]

SETTING: fields of configs/dlrm_bench.textproto, as for --set. Prints, for each side, the median and the
range of: CPU seconds of all processes for each million samples, samples per second; and how many steps of a
worker took longer than 2 x their median + 50 ms. Both sides make the checkpoint at the end.
`tandem datagen` makes the data if it is missing. --tiny uses a small model and little data: it only tests the script,
and its numbers mean nothing.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

JOB = pathlib.Path(__file__).resolve().parents[2] / "configs" / "dlrm_bench.textproto"


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def late_steps(traces):
    """(late steps, steps): intervals between the ends of the computations of a worker."""
    late = total = 0
    for trace in traces:
        events = json.loads(trace.read_text())
        events = events["traceEvents"] if isinstance(events, dict) else events
        ends = sorted(e["ts"] + e["dur"] for e in events
                      if e.get("ph") == "X" and e["name"].startswith("compute "))[20:]
        steps = [(b - a) / 1000 for a, b in zip(ends, ends[1:])]
        limit = 2 * statistics.median(steps) + 50
        late += sum(step > limit for step in steps)
        total += len(steps)
    return late, total


class Sides:
    def __init__(self, args, out):
        self.args, self.out = args, pathlib.Path(out)

    def run(self, every):
        shutil.rmtree(self.out, ignore_errors=True)
        before = cpu_seconds()
        command = [f"{self.args.build}/bin/tandem", "run", str(JOB), "--out", str(self.out), "--trace",
                   str(self.args.steps), "--set", f'data.train=["{self.args.data}/train.tsv"]', "--set", "train.epochs=1000",
                   "--set", f"train.max_steps={self.args.steps}", "--set", f"checkpoint={{{every}}}"]
        for setting in self.args.settings:
            command += ["--set", setting]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if ran.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{ran.stdout[-3000:]}")
        summary = json.loads((self.out / "summary.json").read_text())
        events = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        return {"cpu": (cpu_seconds() - before) / summary["samples"] * 1e6,
                "rate": summary["samples_per_second"],
                "late": late_steps(sorted(self.out.glob("trace-[0-9]*.json"))),
                "checkpoints": sum(event.get("event") == "saved" for event in events)}


def spread(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=float, default=10)
    parser.add_argument("--data", default="out/data/dlrm_bench")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.tiny:
            args.pairs, args.steps, args.every, args.data = 1, 40, 0.1, folder + "/data"
            args.settings += ["train.batch_size=64", "model={dlrm {bottom: [16] top: [16]}}"]
        if not os.path.exists(f"{args.data}/train.tsv"):
            size = ["--train-rows", "2000", "--test-rows", "1"] if args.tiny else []
            subprocess.run([f"{args.build}/bin/tandem", "datagen", "--out", args.data, *size], check=True)
        compare(Sides(args, folder + "/run"), args)


def compare(sides, args):
    results = {"with": [], "without": []}
    for pair in range(args.pairs):
        for side in ("with", "without") if pair % 2 else ("without", "with"):
            results[side].append(sides.run(f"every_seconds: {args.every}" if side == "with" else "every_steps: 1000000000"))
        print(f"pair {pair + 1}: CPU {results['with'][-1]['cpu'] / results['without'][-1]['cpu']:.3f} x, rate "
              f"{results['with'][-1]['rate'] / results['without'][-1]['rate']:.3f} x", flush=True)
    for side, runs in results.items():
        late, steps = (sum(run["late"][i] for run in runs) for i in (0, 1))
        print(f"{side} checkpoints ({sum(run['checkpoints'] for run in runs)} of them): CPU s a million samples "
              f"{spread([run['cpu'] for run in runs])}; samples/s {spread([run['rate'] for run in runs])}; "
              f"late steps {late} of {steps}")
    ratios = {key: [a[key] / b[key] for a, b in zip(results["with"], results["without"])] for key in ("cpu", "rate")}
    print(f"with / without: CPU {statistics.median(ratios['cpu']):.3f} x ({min(ratios['cpu']):.3f} to "
          f"{max(ratios['cpu']):.3f}); samples/s {statistics.median(ratios['rate']):.3f} x "
          f"({min(ratios['rate']):.3f} to {max(ratios['rate']):.3f})")


if __name__ == "__main__":
    main()
