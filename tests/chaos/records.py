#!/usr/bin/python3
"""Checks the records of updates of a run: each (worker, step, range) is applied once, or dropped once.

  records.py OUT          # the folder of a run with staleness { record_updates: true }
  records.py --forge OUT  # forges the records in many ways, and checks that each forgery is found

Shares no code with Tandem: docs/RESULTS.md has the meaning of summary.json, server/record/update_record.h the layout of records.
The records are added up, and compared with the counts of the servers and with those of the workers. If a run
resumed with fewer servers or shards, a range number means different ranges before and after, so some checks are skipped.
"""
import collections
import json
import pathlib
import random
import re
import struct
import sys

HEAD = struct.Struct("<8sQ")
MAGIC = b"TNDMUPD2"
RECORD = struct.Struct("<qqqQIIIHHiiqQqQII")
Record = collections.namedtuple(
    "Record", "step version_read version_applied samples range table rows worker fate clock_gap in_flight admitted_at "
    "divided_by age row_staleness_sum row_staleness_max rows_measured")
APPLIED, MERGED, DROPPED = range(3)
MOST_COMPLAINTS = 20


class Forged(AssertionError):
    """The records are not those of the run."""


class Complaints:
    def __init__(self):
        self.lines = []

    def __call__(self, good, *what):
        if not good and len(self.lines) < MOST_COMPLAINTS:
            self.lines.append(" ".join(map(str, what)))
        return good

    def same(self, what, records, summary):
        return self(records == summary, f"{what}: {records} by the records, {summary} by the summary")


def bucket(value):
    """The least value in the bucket of a histogram: 0 to 7 singly, then four buckets an octave."""
    if value < 8:
        return value
    octave = 1 << (value.bit_length() - 1)
    return octave + (value - octave) // (octave // 4) * (octave // 4)


class Recount:
    """One kind of staleness, counted over."""

    def __init__(self):
        self.count = self.sum = self.max = 0
        self.buckets = collections.Counter()

    def add(self, value):
        self.count += 1
        self.sum += value
        self.max = max(self.max, value)
        self.buckets[bucket(value)] += 1

    def compare(self, complain, what, summary, unit=1.0):
        complain.same(what + " count", self.count, summary["count"])
        if self.count == 0 or summary["count"] == 0:
            return
        mean = self.sum / self.count * unit
        complain(abs(mean - summary["mean"]) <= 1e-12 * abs(mean), f"{what} mean: {mean}, the summary has {summary['mean']}")
        complain(abs(self.max * unit - summary["max"]) <= 1e-9 * unit,
                 f"{what} max: {self.max * unit}, the summary has {summary['max']}")
        histogram = {round(value / unit): count for value, count in summary["histogram"]}
        complain.same(what + " histogram", dict(self.buckets), histogram)


class Run:
    """The parts of a run's folder that count here. files: the bytes of each *.updates file, by name. recut: the run had more
    servers or shards before it resumed."""

    def __init__(self, out):
        out = pathlib.Path(out)
        self.summary = json.loads((out / "summary.json").read_text())
        self.files = {path.name: path.read_bytes() for path in sorted(out.glob("*.updates"))}
        self.expected = {f"server-{server}-shard-{shard}.updates" for server in range(self.summary["servers"])
                         for shard in range(self.summary["shards_per_server"])}
        self.recut = "resumed" in self.summary and set(self.files) > self.expected
        job = (out / "job.textproto").read_text()
        self.tables = re.findall(r'^table \{\n  name: "([^"]+)"', job, re.MULTILINE)
        if "dense" in self.summary["tables"]:
            self.tables.append("dense")
        if set(self.tables) != set(self.summary["tables"]):
            raise ValueError(f"{out}: tables {self.tables} in job.textproto, {list(self.summary['tables'])} in summary.json")


def parse(run, complain):
    """The records of all files, each with the name of its file."""
    if not run.recut:
        complain.same("record files", sorted(run.files), sorted(run.expected))
    records = []
    for name, data in run.files.items():
        begins = len(data) >= HEAD.size and HEAD.unpack_from(data) == (MAGIC, RECORD.size)
        if not complain(begins, name, "does not begin like a file of records"):
            continue
        body = data[HEAD.size:]
        if not complain(len(body) % RECORD.size == 0, name, f"ends {len(body) % RECORD.size} bytes into a record"):
            continue
        records += [(name, Record._make(fields)) for fields in RECORD.iter_unpack(body)]
    return records


def check_each(run, records, complain):
    """Each record by itself, and beside the one before it of the same range."""
    seen, tables, samples, divisors, last = set(), {}, {}, {}, {}
    latest = collections.defaultdict(int)  # admission of a range
    for name, r in records:
        what = f"{name}: worker {r.worker} step {r.step} range {r.range}"
        sane = (r.fate <= DROPPED and r.worker < run.summary["workers"] and r.table < len(run.tables) and r.step >= 0 and
                r.rows > 0 and r.samples > 0 and 0 <= r.version_read <= r.version_applied and r.age >= -1)
        if not complain(sane, what, "has impossible numbers:", r):
            continue
        complain((r.worker, r.step, r.range) not in seen, what, "is there twice")
        seen.add((r.worker, r.step, r.range))
        complain(run.recut or tables.setdefault(r.range, r.table) == r.table, what, "is of another table than before")
        complain(samples.setdefault((r.worker, r.step), r.samples) == r.samples, what, "has other samples than elsewhere")
        # An update that GBA drops from its batch still counts in the divisor of the batch.
        complain(r.divided_by == r.samples or (r.fate in (MERGED, DROPPED) and r.divided_by > r.samples), what,
                 "has another divisor")
        if r.divided_by != r.samples and not run.recut:
            # Under RINGLEADER each worker of a batch has a divisor of its own.
            by_worker = run.summary["policy"][run.tables[r.table]] == "RINGLEADER"
            batch = divisors.setdefault((r.range, r.version_applied, r.worker if by_worker else 0), r.divided_by)
            complain(r.divided_by == batch, what, "has another divisor than the rest of its batch")
        if r.fate == DROPPED:
            complain(r.age == -1 and r.rows_measured == 0, what, "is dropped, and has a staleness of rows")
        complain(r.rows_measured in (0, r.rows), what, "is measured for a part of its rows")
        complain(r.row_staleness_max <= r.row_staleness_sum <= r.row_staleness_max * r.rows_measured, what,
                 "has an impossible staleness of rows")
        if r.fate == DROPPED:
            continue
        before = last.get((name, r.range))
        last[name, r.range] = r
        admitted = latest[name, r.range]
        latest[name, r.range] = max(admitted, r.admitted_at)
        if before is not None and not run.recut:
            # A range applies an update at once, and each is a tick of its version. Merged updates share a tick.
            merged = r.fate == MERGED and before.version_applied == r.version_applied
            complain(merged or before.version_applied < r.version_applied, what,
                     "is not applied at a later version than the one before")
            resumed = "resumed" in run.summary  # perhaps on a host with another clock
            complain(merged or resumed or admitted <= r.admitted_at, what, "is admitted before one of an earlier version")
        if r.fate == MERGED:
            continue
        complain(r.row_staleness_max <= r.version_applied - r.version_read, what, "has rows more stale than its range")
        own = last.get((r.range, "worker", r.worker))
        complain(run.recut or own is None or own.step < r.step, what, "comes after a later step")
        last[r.range, "worker", r.worker] = r


def check_counts(run, records, complain):
    """Sent = arrived = applied + merged + dropped, by table, in all, and by worker."""
    summary = run.summary
    counts = collections.Counter((run.tables[r.table], r.fate) for _, r in records)
    total = collections.Counter()
    for table in run.tables:
        fates = [counts[table, fate] for fate in (APPLIED, MERGED, DROPPED)]
        total.update(dict(enumerate(fates)))
        compare_counts(f"table {table}:", fates, summary["tables"][table]["updates"], complain)
    compare_counts("all tables:", [total[fate] for fate in range(3)], summary["updates"], complain)
    arrived = collections.Counter(r.worker for _, r in records)
    dropped = collections.Counter(r.worker for _, r in records if r.fate == DROPPED)
    for rank, worker in enumerate(summary["by_worker"]):
        complain.same(f"worker {rank}: updates", arrived[rank], worker["updates"])
        complain.same(f"worker {rank}: dropped", dropped[rank], worker["dropped"])


def compare_counts(what, fates, updates, complain):
    applied, merged, dropped = fates
    complain.same(what + " applied", applied + merged, updates["applied"])
    complain.same(what + " merged", merged, updates["applied_merged"])
    complain.same(what + " dropped", dropped, updates["dropped"])
    complain.same(what + " arrived", applied + merged + dropped, updates["arrived"])
    complain.same(what + " sent", applied + merged + dropped, updates["sent"])


def check_steps(run, records, complain):
    """Each step that a worker has trained is in each range of the dense table, and in some range of each other table."""
    steps = {table: collections.defaultdict(dict) for table in run.tables}  # by range: samples of each (worker, step)
    rows = {}
    for _, r in records:
        steps[run.tables[r.table]][r.range][r.worker, r.step] = r.samples
        if run.tables[r.table] == "dense":
            before = rows.setdefault(r.range, r.rows)
            complain(run.recut or before == r.rows, f"dense range {r.range}: {r.rows} rows, before", before)
    trained = {}
    for ranges in steps.values():
        for of_range in ranges.values():
            trained.update(of_range)
    for rank, worker in enumerate(run.summary["by_worker"]):
        mine = {step: samples for (of, step), samples in trained.items() if of == rank}
        complain.same(f"worker {rank}: steps", len(mine), worker["steps"])
        complain.same(f"worker {rank}: samples", sum(mine.values()), worker["samples"])
    for table, ranges in steps.items():
        for number, of_range in ranges.items() if table == "dense" and not run.recut else ():
            lost = sorted(set(trained) - set(of_range))
            complain(not lost, f"dense range {number} lacks (worker, step)", lost[:3])
        lost = sorted(set(trained).difference(*ranges.values()))
        complain(not lost, f"table {table} lacks (worker, step)", lost[:3])


def check_staleness(run, records, complain):
    """The summary's staleness is that of the records."""
    for number, table in enumerate(run.tables):
        gap, version, age, in_flight = Recount(), Recount(), Recount(), Recount()
        rows = measured = worst = 0
        for _, r in records:
            if r.table != number:
                continue
            gap.add(max(0, r.clock_gap))
            in_flight.add(r.in_flight)
            if r.fate == DROPPED:
                continue
            version.add(r.version_applied - r.version_read)
            if r.age >= 0:
                age.add(r.age)
            rows, measured = rows + r.row_staleness_sum, measured + r.rows_measured
            worst = max(worst, r.row_staleness_max)
        summary = run.summary["staleness"][table]
        gap.compare(complain, table + " clock gap", summary["clock_gap"])
        version.compare(complain, table + " version staleness", summary["version_staleness"])
        in_flight.compare(complain, table + " in-flight depth", summary["in_flight_depth"])
        age.compare(complain, table + " age", summary["age"], 1e-6)
        of_rows = summary["row_staleness"]
        complain.same(table + " measured rows", measured, of_rows["count"])
        if measured > 0 and of_rows["count"] > 0:
            mean = rows / measured
            complain(abs(mean - of_rows["mean"]) <= 1e-12 * mean, f"{table}: mean row staleness {mean}, the summary has "
                     f"{of_rows['mean']}")
            complain.same(table + " largest row staleness", worst, of_rows["max"])


def check(run):
    """Returns the number of records. Forged: they are not those of the run."""
    complain = Complaints()
    records = parse(run, complain)
    for checks in (check_each, check_counts, check_steps, check_staleness):
        if not complain.lines:  # the rest needs sane records, or would say the same again
            checks(run, records, complain)
    if complain.lines:
        raise Forged("; ".join(complain.lines))
    return len(records)


# ---- forgeries --------------------------------------------------------------------------------


def altered(run, name, records):
    """The run with other records in one file."""
    other = object.__new__(Run)
    other.__dict__.update(run.__dict__)
    other.files = dict(run.files)
    other.files[name] = HEAD.pack(MAGIC, RECORD.size) + b"".join(RECORD.pack(*r) for r in records)
    return other


def forgeries(run, rng):
    """Pairs of what was forged and the forged run."""
    names = [name for name, data in run.files.items() if len(data) >= HEAD.size + 3 * RECORD.size]
    name = rng.choice(names)
    genuine = [Record._make(fields) for fields in RECORD.iter_unpack(run.files[name][HEAD.size:])]
    at = rng.randrange(len(genuine))
    one = genuine[at]
    yield "a record removed", altered(run, name, genuine[:at] + genuine[at + 1:])
    yield "a record twice", altered(run, name, genuine[:at] + [one] + genuine[at:])
    yield "a record twice, the second as another step", altered(run, name, genuine + [one._replace(step=one.step + 1)])
    yield "two records exchanged", altered(run, name, exchanged(genuine, rng))
    for field, value in {
            "step": one.step + 1, "version_read": one.version_read - 1, "version_applied": one.version_applied + 1,
            "samples": one.samples + 1, "range": one.range + 1, "table": one.table + 1, "rows": one.rows + 1,
            "worker": (one.worker + 1) % run.summary["workers"], "fate": MERGED if one.fate == APPLIED else APPLIED,
            "clock_gap": one.clock_gap + 1, "in_flight": one.in_flight + 1, "divided_by": one.divided_by - 1,
            "age": one.age + 1_000_000, "row_staleness_sum": one.row_staleness_sum + 1,
            "row_staleness_max": one.row_staleness_max + 1, "rows_measured": one.rows_measured + 1}.items():
        yield field + " changed", altered(run, name, genuine[:at] + [one._replace(**{field: value})] + genuine[at + 1:])
    first = next(i for i, r in enumerate(genuine) if any(r.range == later.range for later in genuine[i + 1:]))
    late = genuine[first]._replace(admitted_at=genuine[-1].admitted_at + 1)
    yield "admitted_at changed", altered(run, name, genuine[:first] + [late] + genuine[first + 1:])
    for what, data in (("a file cut short", run.files[name][:-1]),
                       ("a file of another layout", b"TNDMUPD1" + run.files[name][8:])):
        other = altered(run, name, [])
        other.files[name] = data
        yield what, other
    lost = altered(run, name, [])
    del lost.files[name]
    yield "a file missing", lost


def exchanged(records, rng):
    """Two records of one range in the other order, but not two that were merged with each other."""
    by_range = collections.defaultdict(dict)
    for at, record in enumerate(records):
        if record.fate != DROPPED:
            by_range[record.range].setdefault(record.version_applied, at)
    first, second = list(rng.choice([places for places in by_range.values() if len(places) > 1]).values())[:2]
    records = list(records)
    records[first], records[second] = records[second], records[first]
    return records


def forge(run, seed):
    """Checks that every forgery is found. Returns how many there were."""
    count = 0
    for what, forged in forgeries(run, random.Random(seed)):
        try:
            check(forged)
        except Forged:
            count += 1
            continue
        raise AssertionError(f"{what}: the checker has not found it (--seed {seed})")
    return count


def main():
    words = [word for word in sys.argv[1:] if word != "--forge"]
    if len(words) != 1:
        sys.exit(__doc__)
    try:
        run = Run(words[0])
        print(f"{check(run)} records have each update once, and agree with summary.json")
        if "--forge" in sys.argv:
            print(f"{sum(forge(run, seed) for seed in range(10))} forgeries, each found")
    except (AssertionError, ValueError, OSError) as error:
        sys.exit(f"{words[0]}: {error}")


if __name__ == "__main__":
    main()
