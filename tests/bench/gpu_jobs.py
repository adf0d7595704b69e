"""Whole jobs with their dense layers on a GPU, beside the same jobs on the processor.

    python3 tests/bench/gpu_jobs.py [--build build] [--out FOLDER] [--only losses|speed] [--quick]

First the same jobs with dense.device CPU and CUDA, with 1, 2 and 4 workers: their losses must differ by
less than .002. NCF needs $TANDEM_DATA (docs/DATA.md). Then samples per second of the DLRM of
configs/dlrm_bench.textproto on the GPU, with PyTorch on the same GPU (dlrm_torch.py --device cuda)
before and after.

Prints a line of JSON for each run. Exits with 1 if a run failed or a loss differed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT = 120  # seconds of a run


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/gpu_jobs")
    parser.add_argument("--only", choices=["losses", "speed"], help="one of the two parts")
    parser.add_argument("--quick", action="store_true", help="fewer rows and fewer numbers of workers")
    return parser.parse_args()


class Jobs:
    def __init__(self, args):
        self.args, self.failed = args, 0
        args.out.mkdir(parents=True, exist_ok=True)
        self.results = open(args.out / "gpu_jobs.jsonl", "a", encoding="utf-8")

    def say(self, **line):
        text = json.dumps(line)
        print(text, flush=True)
        print(text, file=self.results, flush=True)

    def call(self, name, command):
        """Output of a command, or None after a failure that it reports."""
        log = self.args.out / f"{name}.log"
        try:
            with open(log, "w", encoding="utf-8") as file:
                code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=LIMIT, cwd=ROOT,
                                      check=False).returncode
        except subprocess.TimeoutExpired:
            code = f"not finished after {LIMIT} s"
        text = log.read_text(encoding="utf-8", errors="replace")
        if code == 0:
            return text
        self.failed += 1
        self.say(name=name, failed=code, output=text[-1500:])
        return None

    def run(self, name, job, *settings):
        """summary.json of a job, or None."""
        out = self.args.out / name
        command = [str(self.args.build / "bin/tandem"), "run", f"configs/{job}.textproto", "--no-checkpoint",
                   "--out", str(out)]
        for setting in settings:
            command += ["--set", setting]
        if self.call(name, command) is None:
            return None
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        mean = {key: round(1000 * sum(worker[f"{key}_seconds"] / max(worker["steps"], 1)
                                      for worker in summary["by_worker"]) / len(summary["by_worker"]), 3)
                for key in ("computed", "fetched", "paused")}
        self.say(name=name, samples_per_second=round(summary["samples_per_second"]),
                 end_loss=round(summary["end_loss"], 5), milliseconds_a_step=mean)
        return summary

    def data(self, name, rows):
        folder = self.args.out / "data" / name
        if not (folder / "train.tsv").exists():
            self.call(f"datagen_{name}", [str(self.args.build / "bin/tandem"), "datagen", "--out", str(folder),
                                          "--train-rows", str(rows), "--test-rows", str(rows // 10)])
        return folder

    def same_loss(self, name, job, workers, *settings):
        settings = (*settings, f"cluster.workers={workers}")
        pair = [self.run(f"{name}_{workers}_{device.lower()}", job, f"dense.device={device}", *settings)
                for device in ("CPU", "CUDA")]
        if None in pair:
            return
        gap = abs(pair[0]["end_loss"] - pair[1]["end_loss"])
        self.say(name=f"{name}_{workers}", loss_gap=gap, good=gap < .002)
        self.failed += gap >= .002

    def torch(self, batch, steps):
        text = self.call(f"torch_{batch}", [sys.executable, str(HERE / "dlrm_torch.py"), "--device", "cuda", "--batch",
                                            str(batch), "--steps", str(steps)])
        for line in (text or "").splitlines():
            if line.startswith("{"):
                self.say(batch=batch, **json.loads(line))


def main():
    args = parse()
    jobs = Jobs(args)
    if args.only != "speed":
        losses(args, jobs)
    if args.only != "losses":
        speed(args, jobs)
    sys.exit(1 if jobs.failed else 0)


def losses(args, jobs):
    clicks = jobs.data("quickstart", 100_000 if args.quick else 400_000)
    files = [f'data.train=["{clicks}/train.tsv"]', f'data.test=["{clicks}/test.tsv"]']
    for workers in (1, 2) if args.quick else (1, 2, 4):
        jobs.same_loss("quickstart", "quickstart", workers, *files)
        jobs.same_loss("bsp", "quickstart", workers, *files, "policy={kind: BSP}")
        if "TANDEM_DATA" in os.environ:
            jobs.same_loss("ncf", "ncf_mlp8", workers, f"train.batch_size={2048 // workers}", "train.epochs=2")


def speed(args, jobs):
    bench = jobs.data("dlrm_bench", 600_000 if args.quick else 2_400_000)
    for batch in (2048, 8192):
        jobs.torch(batch, 200)
        for workers, servers in ((1, 4), (2, 4)) if args.quick else ((1, 4), (1, 8), (2, 4), (2, 8), (4, 8)):
            jobs.run(f"dlrm_{batch}_{workers}x{servers}", "dlrm_bench", f'data.train=["{bench}/train.tsv"]',
                     f"cluster.workers={workers}", f"cluster.servers={servers}", f"train.batch_size={batch}",
                     "policy={kind: ASP}", "train.prefetch_steps=1", "dense.device=CUDA")
        jobs.torch(batch, 200)


if __name__ == "__main__":
    main()
