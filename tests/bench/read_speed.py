#!/usr/bin/env python3
"""Rows a second of reading alone, one thread: Tandem beside pandas and pyarrow, in turns.

    $(tests/python/torch_environment.sh arrow) tests/bench/read_speed.py [--rows N] [--rounds N] [--build DIR] [--tiny]

Rows of `tandem datagen`, as Criteo's: a label, 13 numbers, 26 columns of ids in hexadecimal digits, some values missing. The
same rows as CSV, .csv.zst, Parquet, Arrow (both packed by zstd, groups of 50,000 rows), and as a cache of the CSV file.

    csv, zst, parquet, arrow, cache   `tandem bench read`: the batches of a worker, with hashed ids and standardised numbers
    pandas_csv, pyarrow_csv           pandas.read_csv, and pyarrow.csv without its threads: columns, nothing hashed
    pyarrow_parquet, pyarrow_arrow    the same rows as a table of pyarrow, without threads

Differences: Tandem gives batches that can be trained on, the others columns. pandas and pyarrow hold all rows in memory.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
from common import call, in_turns, machine, parser, report  # noqa: E402  pylint: disable=wrong-import-position

NUMBERS, IDS = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
GROUP = 50_000
JOB = """
seed: 1 reproducible: true
cluster {{ workers: 1 servers: 1 }}
data {{ format: {format} train: "{file}" {cache}
       columns {{ {text} label: "label" numeric: {numbers} categorical: {ids} }} }}
table {{ name: "ids" dim: 4 optimizer {{ kind: SGD learning_rate: 0.1 }} }}
policy {{ kind: BSP }}
dense {{ synchroniser: SERVERS optimizer {{ kind: SGD learning_rate: 0.1 }} }}
model {{ mlp {{ hidden: [8] }} }}
train {{ batch_size: 512 epochs: 1 }}
"""


def write_files(flags, folder):
    call([flags.build / "bin" / "tandem", "datagen", "--out", folder, "--train-rows", flags.rows, "--test-rows", 100])
    kinds = dict({name: "float64" for name in NUMBERS}, label="int64", **{name: "str" for name in IDS})
    frame = pandas.read_csv(folder / "train.tsv", sep="\t", header=None, names=["label", *NUMBERS, *IDS], dtype=kinds,
                            keep_default_na=False, na_values=[""])
    frame.to_csv(folder / "rows.csv", index=False)
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    parquet.write_table(table, folder / "rows.parquet", row_group_size=GROUP, compression="zstd")
    feather.write_feather(table, folder / "rows.arrow", compression="zstd", chunksize=GROUP)
    subprocess.run(["zstd", "-q", folder / "rows.csv"], check=True)


def job(folder, name, file, cache=""):
    typed = file.endswith((".parquet", ".arrow"))
    path = folder / (name + ".textproto")
    path.write_text(JOB.format(format="PARQUET" if typed else "DELIMITED", file=folder / file, cache=cache,
                               text="" if typed else 'delimiter: "," header: true', numbers=json.dumps(NUMBERS),
                               ids=json.dumps(IDS)), encoding="utf-8")
    return path


def tandem_side(flags, path, hashes):
    def read():
        out = call([flags.build / "bin" / "tandem", "bench", "read", path, "--repetitions", 1],
                   {"TANDEM_PYARROW": os.path.dirname(pyarrow.__file__)}).out
        rows, found, seconds = re.search(r"(\d+) rows, hash (\w+): ([\d.]+) s", out).groups()
        hashes.add((rows, found))
        return {"rows/s": int(rows) / float(seconds)}
    return read


def other_side(rows, read):
    def measured():
        begin = time.monotonic()
        assert len(read()) == rows
        return {"rows/s": rows / (time.monotonic() - begin)}
    return measured


if __name__ == "__main__":
    flags = parser(__doc__)
    flags.add_argument("--rows", type=int, default=600_000)
    flags = flags.parse_args()
    try:
        import pandas
        import pyarrow
        import pyarrow.csv
        from pyarrow import feather, parquet
    except ImportError as missing:
        print("SKIPPED ENTIRELY:", missing)
        sys.exit(77)
    if flags.tiny:
        flags.rows, flags.rounds = 2_000, 1
    pyarrow.set_cpu_count(1)
    machine()
    with tempfile.TemporaryDirectory() as name:
        here = pathlib.Path(name)
        write_files(flags, here)
        files = {"csv": "rows.csv", "zst": "rows.csv.zst", "parquet": "rows.parquet", "arrow": "rows.arrow"}
        seen = set()
        sides = {side: tandem_side(flags, job(here, side, file), seen) for side, file in files.items()}
        cached = job(here, "cache", "rows.csv", f'cache: "{here / "cache"}"')
        call([flags.build / "bin" / "tandem", "cache", cached])
        sides["cache"] = tandem_side(flags, cached, seen)
        one = pyarrow.csv.ReadOptions(use_threads=False)
        sides["pandas_csv"] = other_side(flags.rows, lambda: pandas.read_csv(here / "rows.csv"))
        sides["pyarrow_csv"] = other_side(flags.rows, lambda: pyarrow.csv.read_csv(here / "rows.csv", read_options=one))
        sides["pyarrow_parquet"] = other_side(
            flags.rows, lambda: parquet.read_table(here / "rows.parquet", use_threads=False))
        sides["pyarrow_arrow"] = other_side(
            flags.rows, lambda: feather.read_table(here / "rows.arrow", use_threads=False))
        report(f"{flags.rows} rows of 40 columns", in_turns(sides, flags.rounds), "csv", "rows/s")
        assert len(seen) == 1, f"other batches: {seen}"
        print("all sides of Tandem have the same batches")
