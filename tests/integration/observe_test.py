"""What a running job shows (tandem status, HTTP, Prometheus, TensorBoard) and that it all agrees with its
summary; and what a job does at the request of a tool: checkpoint and stop.

Run: observe_test.py SOURCE_DIR BUILD_DIR
"""
import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import draw

SOURCE, BUILD = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
TANDEM = BUILD / "bin" / "tandem"
SECONDS = 120  # for any wait; a test that passes needs a small part of it

JOB = """
cluster { workers: 2 servers: 1 }
data {
  format: DELIMITED train: "configs/data/example_train.csv" test: "configs/data/example_test.csv"
  columns { delimiter: "," header: true label: "taken" positive: "yes" missing: "?"
            numeric: ["age", "visits"] categorical: ["city", "offer"] }
}
table { name: "ids" dim: 4 optimizer { kind: ADAGRAD learning_rate: 0.1 } }
dense { optimizer { kind: ADAM learning_rate: 0.01 } }
model { mlp { hidden: [8] } }
policy { kind: SSP bound: 2 }
train { batch_size: 16 epochs: 1000000 }
limits { report_interval_seconds: 0.2 }
"""


def tandem(*arguments, token=None):
    """Runs a command to its end: (exit code, output, errors). token: a file."""
    environment = dict(os.environ, **({"TANDEM_TOKEN_FILE": str(token)} if token else {}))
    done = subprocess.run([TANDEM, *arguments], cwd=SOURCE, capture_output=True, text=True, timeout=SECONDS, check=False,
                          env=environment)
    return done.returncode, done.stdout, done.stderr


def wait_for(what, truth):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found = truth()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {SECONDS} s")


class Run:
    """A job that trains until it is stopped."""

    def __init__(self, folder, *flags):
        self.out = pathlib.Path(folder, "out")
        job = pathlib.Path(folder, "job.textproto")
        job.write_text(JOB, encoding="utf-8")
        self.output = open(pathlib.Path(folder, "output"), "w+", encoding="utf-8")
        self.process = subprocess.Popen([TANDEM, "run", job, "--out", self.out, *flags], cwd=SOURCE, stdout=self.output,
                                        stderr=subprocess.STDOUT)

    def status(self):
        """The status; None before the job trains."""
        if not (self.out / "address").exists():
            return None
        code, text, _ = tandem("status", self.out, "--json")
        return json.loads(text) if code == 0 else None

    def trains(self):
        def look():
            status = self.status()
            return status if status and status.get("progress", {}).get("min_step", 0) > 0 else None
        return wait_for("training", look)

    def said(self):
        self.output.seek(0)
        return self.output.read()

    def close(self):
        self.process.kill()
        self.process.wait(SECONDS)
        self.output.close()


@contextlib.contextmanager
def running(*flags):
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder, *flags)
        try:
            yield run
        finally:
            run.close()


def get(url):
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        return answer.read().decode()


def metrics_of(text):
    """The values of Prometheus text, by name and labels as written. Refuses lines of another form."""
    values = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"(tandem_[a-z0-9_]+(?:\{(?:[a-z_]+=\"[^\"]*\",?)+\})?) (\S+)", line)
        assert match, line
        assert match[1] not in values, line
        values[match[1]] = float(match[2])
    return values


def crc32c(data):
    """Bit by bit, as the standard defines it; nothing of Tandem's."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records_of(path):
    """The records of an event file, with both checksums of each verified."""
    data, at = path.read_bytes(), 0
    masked = lambda part: (((crc32c(part) >> 15) | (crc32c(part) << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        record = data[at + 12:at + 12 + length]
        record_crc, = struct.unpack_from("<I", data, at + 12 + length)
        assert length_crc == masked(data[at:at + 8]) and record_crc == masked(record), f"{path}: checksum at byte {at}"
        yield record
        at += 16 + length


def decode(record):
    """Nested (field, value) pairs, as protoc reads the bytes without knowing their meaning."""
    text = subprocess.run(["protoc", "--decode_raw"], input=record, capture_output=True, check=True).stdout.decode()
    stack = [[]]
    for line in map(str.strip, text.splitlines()):
        if line == "}":
            stack.pop()
        elif line.endswith("{"):
            inner = []
            stack[-1].append((int(line.split()[0]), inner))
            stack.append(inner)
        else:
            field, value = line.split(": ", 1)
            stack[-1].append((int(field), value))
    return stack[0]


def scalars_of(record):
    """(step, {tag: value}) of a record's simple values."""
    step, values = 0, {}
    for field, value in decode(record):
        if field == 2:
            step = int(value)
        for number, entry in value if field == 5 else ():
            parts = dict(entry) if number == 1 else {}
            if 2 in parts:  # 0x3f000000, or 0 for bits that are all 0
                bits = int(parts[2], 16) if parts[2].startswith("0x") else int(parts[2])
                values[parts[1].strip('"')] = struct.unpack("<f", struct.pack("<I", bits))[0]
    return step, values


def as_float32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


class AgreementTest(unittest.TestCase):
    """One run, watched in every way."""

    def check_http(self, run, url):
        for path, what in (("/healthz", "ok"), ("/readyz", "running"), ("/", "<!doctype html>")):
            self.assertIn(what, get(url + path))
        before = json.loads(get(url + "/status.json"))
        metrics = metrics_of(get(url + "/metrics"))
        after = run.status()
        counters = {"tandem_samples_total": lambda s: s["samples"], "tandem_steps_total": lambda s: s["steps"]}
        for table in before["tables"]:
            counters[f'tandem_updates_arrived_total{{table="{table}"}}'] = (
                lambda s, table=table: s["tables"][table]["updates"]["arrived"])
            for outcome in ("applied", "dropped"):
                counters[f'tandem_updates_total{{table="{table}",outcome="{outcome}"}}'] = (
                    lambda s, table=table, outcome=outcome: s["tables"][table]["updates"][outcome])
            counters[f'tandem_version_staleness_count{{table="{table}"}}'] = (
                lambda s, table=table: s["tables"][table]["version_staleness"]["count"])
            counters[f'tandem_version_staleness_bucket{{table="{table}",le="+Inf"}}'] = (
                lambda s, table=table: s["tables"][table]["version_staleness"]["count"])
        for rank in (0, 1):
            counters[f'tandem_worker_samples_total{{worker="{rank}"}}'] = (
                lambda s, rank=rank: s["by_worker"][rank]["samples"])
        for name, value in counters.items():
            self.assertLessEqual(value(before), metrics[name], name)
            self.assertLessEqual(metrics[name], value(after), name)
        self.assertEqual(sum(shard["rows"] for shard in after["shards"]), sum(t["rows"] for t in after["tables"].values()))
        points = json.loads(get(url + "/history.json"))
        evaluations = points.pop("evaluations")
        self.assertEqual(evaluations[0]["data"], "test")
        self.assertGreater(evaluations[0]["auc"], 0)
        self.assertLessEqual(evaluations[0]["seconds"], after["progress"]["seconds"])
        self.assertEqual(len({len(values) for values in points.values()}), 1)
        self.assertGreater(len(points["seconds"]), 0)
        return after, counters

    def check_tensorboard(self, folder, summary, lines):
        files = list(folder.glob("*tfevents*"))
        self.assertEqual(len(files), 1)
        records = list(records_of(files[0]))
        self.assertIn((3, '"brain.Event:2"'), decode(records[0]))
        self.assertIn((7, [(1, "1")]), decode(records[1]))  # SessionLog START
        found = [scalars_of(record) for record in records[2:]]
        losses = [(step, values["training/loss"]) for step, values in found if "training/loss" in values]
        self.assertEqual(losses, [(line["max_step"], as_float32(line["loss"])) for line in lines
                                  if line["event"] == "progress" and "loss" in line])
        aucs = [values["evaluation/test/auc"] for _, values in found if "evaluation/test/auc" in values]
        self.assertEqual(aucs[-1], as_float32(summary["eval"]["auc"]))
        _, last = found[-1]
        self.assertEqual({name[5:]: rows for name, rows in last.items() if name.startswith("rows/")},
                         {name: table["rows"] for name, table in summary["tables"].items()})

    @unittest.skipUnless(shutil.which("protoc"), "protoc is not installed")
    def test_all_views_agree(self):
        with tempfile.TemporaryDirectory() as board, running("--tensorboard", board, "--set",
                                                             "evaluation.every_epochs=20") as run:
            run.trains()
            wait_for("an evaluation", lambda: run.status().get("eval"))
            wait_for("a later report of servers", lambda: all(t["rows"] for t in run.status()["tables"].values()))
            url = (run.out / "http").read_text(encoding="utf-8").strip()
            self.assertIn(f"watch: {url}\n", run.said())
            status, counters = self.check_http(run, url)
            self.assertEqual(tandem("stop", run.out)[0], 0)
            self.assertEqual(run.process.wait(SECONDS), 0, run.said())
            summary = json.loads((run.out / "summary.json").read_text(encoding="utf-8"))
            lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
            self.assertEqual(status["policy"], summary["policy"])
            end = dict(summary, tables={name: dict(table, version_staleness=summary["staleness"][name]["version_staleness"])
                                        for name, table in summary["tables"].items()})
            for name, value in counters.items():
                self.assertLessEqual(value(status), value(end), name)
            for name, table in summary["tables"].items():  # all ids have been seen when the status was taken
                self.assertEqual(status["tables"][name]["rows"], table["rows"])
                self.assertEqual(status["tables"][name]["memory_bytes"], table["memory_bytes"])
            self.check_tensorboard(pathlib.Path(board), summary, lines)

    def test_a_port_that_is_taken_is_one_line(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with running("--http", f"127.0.0.1:{port}") as run:
                self.assertEqual(run.process.wait(SECONDS), 1)
                self.assertRegex(run.said(), f"--http 127.0.0.1:{port}: Address already in use; hint: another port")
            with running("--http", "0.0.0.0:0", "--set", "security.encrypt=NONE") as run:
                self.assertEqual(run.process.wait(SECONDS), 1)
                self.assertIn("other hosts could see the job, which has no token", run.said())
            with running("--tensorboard", "/dev/null/x") as run:
                self.assertEqual(run.process.wait(SECONDS), 1)
                self.assertIn("--tensorboard /dev/null/x: cannot be made", run.said())

    def test_the_network_needs_a_password_and_this_host_its_name(self):
        with running("--http", "0.0.0.0:0", "--no-checkpoint") as run:
            run.trains()
            port = int((run.out / "http").read_text(encoding="utf-8").strip().rsplit(":", 1)[1])
            password = (run.out / "http_password").read_text(encoding="utf-8").strip()
            self.assertEqual((run.out / "http_password").stat().st_mode & 0o777, 0o600)
            basic = base64.b64encode(f"me:{password}".encode()).decode()
            for header, code in ((None, 401), ("Bearer " + password, 200), ("basic " + basic, 200),
                                 ("Bearer " + "0" * 32, 401)):
                self.assertEqual(self.ask(port, "/status.json", {"Authorization": header} if header else {}), code)
            self.assertEqual(self.ask(port, "/healthz", {}), 200)
        with running("--no-checkpoint") as run:
            run.trains()
            port = int((run.out / "http").read_text(encoding="utf-8").strip().rsplit(":", 1)[1])
            for host, code in (("evil.example", 403), (f"evil.example:{port}", 403), ("127.evil", 403),
                               (f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200), ("[::1]", 200)):
                self.assertEqual(self.ask(port, "/", {"Host": host}), code, host)

    def ask(self, port, path, headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        connection.request("GET", path, headers=headers)
        status = connection.getresponse().status
        connection.close()
        return status

    def test_silent_http_clients_do_not_disturb(self):
        with running("--no-checkpoint") as run:
            run.trains()
            host = (run.out / "http").read_text(encoding="utf-8").strip()[len("http://"):]
            address = (host.split(":")[0], int(host.split(":")[1]))
            silent = [socket.create_connection(address, SECONDS) for _ in range(300)]
            connection = http.client.HTTPConnection(*address, timeout=SECONDS)
            connection.request("GET", "/readyz")
            self.assertEqual(connection.getresponse().status, 200)
            step = run.status()["progress"]["max_step"]
            wait_for("more steps", lambda: run.status()["progress"]["max_step"] > step)
            for client in silent:
                client.close()


class StatusTest(unittest.TestCase):
    def test_a_running_job_shows_its_processes(self):
        with running() as run:
            status = run.trains()
            self.assertEqual(status["state"], "running")
            names = [node["name"] for node in status["nodes"]]
            self.assertEqual(names, ["scheduler", "server 0", "worker 0", "worker 1"])
            for node in status["nodes"]:
                self.assertEqual(node["host"], socket.gethostname())
                command = pathlib.Path(f"/proc/{node['pid']}/cmdline").read_text(encoding="utf-8")
                self.assertIn("tandem-" + node["role"], command)
            beats = wait_for("heartbeats with memory", lambda: all(n["memory_bytes"] for n in run.status()["nodes"]))
            self.assertTrue(beats)
            code, text, _ = tandem("status", run.out)  # standard output is no terminal: once
            self.assertEqual(code, 0)
            for word in ("running", "worker 1", "server 0 shard 0", "SSP(2)", "checkpoint: none yet"):
                self.assertIn(word, text)
            code, _, errors = tandem("status", status["address"], "--once")
            self.assertEqual(code, 1)
            self.assertIn("token", errors)
            code, same, _ = tandem("status", status["address"], "--once", token=run.out / "token")
            self.assertEqual((code, same.splitlines()[0].split(",")[0]), (0, text.splitlines()[0].split(",")[0]))

    def test_checkpoint_then_stop(self):
        with running() as run:
            run.trains()
            code, text, errors = tandem("checkpoint", run.out)
            self.assertEqual(code, 0, errors)
            step = int(text.split("step ")[1].split(" in")[0].replace(",", ""))
            checkpoint = run.status()["checkpoint"]
            self.assertEqual((checkpoint["step"], checkpoint["ended"], checkpoint["writing"]), (step, 1, False))
            self.assertTrue(list((run.out / "model").glob(f"step-{step}.*")))
            code, text, errors = tandem("stop", run.out)
            self.assertEqual(code, 0, errors)
            self.assertIn("stopped, checkpoint at step", text)
            self.assertEqual(run.process.wait(SECONDS), 0)
            self.assertIn("tandem run: stopped by tandem stop, checkpoint at step", run.said())
            self.assertIn("--resume", run.said())
            summary = json.loads((run.out / "summary.json").read_text(encoding="utf-8"))
            self.assertGreaterEqual(summary["stopped"]["checkpointed_step"], step)
            self.assertNotIn("failed", summary)
            # What has ended is shown from its summary, and no longer asked.
            code, text, _ = tandem("status", run.out)
            self.assertEqual(code, 0)
            self.assertIn("stopped, checkpoint at step", text)
            self.assertEqual(json.loads(tandem("status", run.out, "--json")[1])["samples"], summary["samples"])
            for command in ("checkpoint", "stop"):
                code, _, errors = tandem(command, run.out)
                self.assertEqual(code, 1)
                self.assertIn("the job has ended", errors)

    def test_stop_now_writes_no_checkpoint(self):
        with running("--no-checkpoint") as run:
            run.trains()
            code, _, errors = tandem("checkpoint", run.out)
            self.assertEqual(code, 1)
            self.assertIn("this run writes no checkpoints", errors)
            code, text, errors = tandem("stop", "--now", run.out)
            self.assertEqual(code, 0, errors)
            self.assertIn("ends at once", text)
            self.assertIn("stopped, there is no checkpoint", text)
            self.assertEqual(run.process.wait(SECONDS), 0)
            self.assertIn("tandem run: stopped by tandem stop, there is no checkpoint", run.said())
            summary = json.loads((run.out / "summary.json").read_text(encoding="utf-8"))
            self.assertEqual((summary["stopped"], summary["exit"]), ({"checkpointed_step": -1}, 0))
            self.assertNotIn("failed", summary)

    def test_stop_between_two_attempts_ends_the_run(self):
        with running() as run:
            status = run.trains()
            server = next(node["pid"] for node in status["nodes"] if node["name"] == "server 0")
            run.process.send_signal(signal.SIGSTOP)  # no attempt follows until it goes on
            os.kill(server, signal.SIGKILL)
            wait_for("the summary of the attempt", (run.out / "summary.json").exists)
            with subprocess.Popen([TANDEM, "stop", run.out], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True) as stop:
                self.assertIn("waits for the next attempt", stop.stderr.readline())
                run.process.send_signal(signal.SIGCONT)
                text, _ = stop.communicate(timeout=SECONDS)
                self.assertEqual((stop.returncode, run.process.wait(SECONDS)), (0, 0), run.said())
            self.assertIn("restart 1", run.said())
            self.assertIn("stopped", text.splitlines()[-1])

    def test_a_killed_run_is_named(self):
        with running() as run:
            run.trains()
            run.close()
            code, _, errors = tandem("status", run.out)
            self.assertEqual((code, len(errors.splitlines())), (1, 1), errors)
            self.assertIn("--resume", errors)

    def test_bad_input_gets_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            for where, code, word in ((folder, 2, "has no file `address`"), (folder + "/none", 2, "there is no such folder"),
                                      ("tcp://127.0.0.1:1", 1, "no answer from the scheduler"),
                                      ("tcp://nothing", 2, "")):
                for command in ("status", "checkpoint", "stop"):
                    got, _, errors = tandem(command, where)
                    self.assertEqual((got, len(errors.splitlines())), (code, 1), errors)
                    self.assertIn(word, errors)


def load_tests(_loader, tests, _pattern):
    return unittest.TestSuite(draw.drawn([case for group in tests for case in group]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
