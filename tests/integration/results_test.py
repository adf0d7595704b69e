"""docs/RESULTS.md names every key of summary.json and metrics.jsonl, and no other.

Run: results_test.py SOURCE_DIR BUILD_DIR
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
SECONDS = 120  # for one run
ROW = re.compile(r"^\| `([\w.]+)` \|", re.M)
WORKER = "\nAn entry of `by_worker`:\n"
# Written in cases that the runs below do not have.
RARE = {"script", "auc_error_bound", "scores_not_finite", "groups", "hr_at_K", "ndcg_at_K", "resumed", "restarts",
        "stopped.checkpointed_step", "stopped.failure", "failed.node", "failed.reason", "failed.code", "failed.diverged",
        "reported.NAME", "replay_of", "simulated", "warnings", "unlabelled", "bytes.within_worker", "bytes.refresh",
        "network.bytes_per_second", "network.hosts", "left_out", "tables.TABLE.row_counts.came_back_share", "skipped_steps", "reported",
        "data_applied_share", "evaluating"}
# Objects that the page describes as a whole.
WHOLE = {"best", "eval", "paths", "collectives", "build", "data_applied", "tables.TABLE.updates", "tables.TABLE.data_applied"} | {
    f"staleness.TABLE.{kind}" for kind in ("clock_gap", "version_staleness", "row_staleness", "age", "in_flight_depth",
                                            "gradients")}
BY_TABLE = {"policy", "staleness", "tables"}

JOB = """
cluster { workers: 2 servers: 1 }
data {
  format: DELIMITED train: "configs/data/example_train.csv" test: "configs/data/example_test.csv"
  validation { last_fraction: 0.2 }
  columns { delimiter: "," header: true label: "taken" positive: "yes" missing: "?"
            numeric: ["age", "visits"] categorical: ["city", "offer"] }
}
table { name: "ids" dim: 4 optimizer { kind: ADAGRAD learning_rate: 0.1 } admission { kind: COUNT threshold: 2 }
        row_dtype: INT8 hot_rows { min_updates: 3 } }
dense { optimizer { kind: ADAM learning_rate: 0.01 } }
model { mlp { hidden: [8] } }
train { batch_size: 16 epochs: 100 keep_best {} }
staleness { gradients: true row_share: 1 }
limits { report_interval_seconds: 0.1 }
"""


def keys_of(value, at=""):
    """The keys of an object, nested ones with dots; names of tables are TABLE."""
    if not isinstance(value, dict) or at in WHOLE:
        return {at}
    found = set()
    for key, inner in value.items():
        name = "TABLE" if at in BY_TABLE else key
        found |= keys_of(inner, f"{at}.{name}" if at else name)
    return found


def run(folder, *flags):
    """summary.json, and the lines of metrics.jsonl, of a run of JOB."""
    job, out = pathlib.Path(folder, "job.textproto"), pathlib.Path(folder, "out")
    job.write_text(JOB, encoding="utf-8")
    subprocess.run([BUILD / "bin" / "tandem", "run", job, "--out", out, "--overwrite", *flags], cwd=SOURCE, check=True,
                   capture_output=True, timeout=SECONDS)
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads((out / "summary.json").read_text(encoding="utf-8")), [json.loads(line) for line in lines]


class ResultsTest(unittest.TestCase):
    def setUp(self):
        text = (SOURCE / "docs" / "RESULTS.md").read_text(encoding="utf-8")
        summary, metrics = text.split("\n## metrics.jsonl\n")
        summary, worker = summary.split("\n## summary.json\n")[1].split(WORKER)
        self.summary, self.worker = set(ROW.findall(summary)), set(ROW.findall(worker))
        self.lines = {}
        for part in re.split(r"^\*\*(?=`)", metrics, flags=re.M)[1:]:
            self.lines[part[1:part.index("`", 1)]] = set(ROW.findall(part)) | {"event", "time"}

    def test_page_and_runs_agree(self):
        written, events = set(), {}
        with tempfile.TemporaryDirectory() as folder:
            for flags in ((), ("--set", "dense.synchroniser=SERVERS", "--set", "policy={kind: SSP bound: 2}")):
                summary, lines = run(folder, *flags)
                self.assertLessEqual(keys_of(summary), self.summary)
                written |= keys_of(summary)
                self.check_rows(summary["tables"])
                self.assertEqual(len(summary["by_worker"]), 2)
                for worker in summary["by_worker"]:
                    self.assertEqual(worker.keys(), self.worker - RARE)
                quality = summary["eval"]
                self.assertEqual(quality.keys() - self.lines["evaluation"], set())
                self.assertAlmostEqual(quality["normalised_entropy"] * quality["base_logloss"], quality["logloss"])
                self.assertTrue(0 < quality["calibration"] < 3, quality)
                for line in lines:
                    events.setdefault(line["event"], set()).update(line)
            self.assertEqual(summary["exit"], 0)
            self.assertIn("run", summary["command"].split())
        self.assertEqual(self.summary - written - RARE, set(), "not written by any run")
        self.assertEqual(events.keys() - self.lines.keys(), set(), "lines that the page does not have")
        for event, keys in events.items():
            self.assertEqual(keys - self.lines[event], set(), event)
            self.assertEqual(self.lines[event] - keys - RARE, set(), f"{event}: not written by any run")

    def check_rows(self, tables):
        """No row of JOB is evicted, and the first update of each id is refused."""
        counts = tables["ids"]["row_counts"]
        self.assertGreater(counts["admitted"], 0)
        self.assertEqual(counts["admitted"], tables["ids"]["rows"])
        self.assertEqual(counts["refused"], counts["admitted"] + counts["candidates"])
        self.assertTrue(0 < counts["found"] < counts["looked_up"], counts)
        self.assertEqual([name for name, table in tables.items() if "row_counts" in table], ["ids"])

    def test_what_differs_is_seen(self):
        self.assertEqual(keys_of({"a": 1, "tables": {"x": {"rows": 1}}, "eval": {"auc": 1}}),
                         {"a", "tables.TABLE.rows", "eval"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
