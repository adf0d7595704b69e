"""Parquet and Arrow files train as the same rows in text do, or are refused in one line. Skipped without pyarrow, or
without the libtandem_arrow.so that was built with it.

    parquet_test.py SOURCE BUILD
"""
import contextlib
import datetime
import decimal
import json
import logging
import os
import subprocess
import sys
import tempfile

SOURCE, BUILD = sys.argv[1:3]
TANDEM = os.path.join(BUILD, "bin", "tandem")
SKIPPED = 77
LIMIT = 120  # seconds of one command
ROWS, GROUP = 3000, 400
JOB = """
seed: 1
reproducible: {reproducible}
cluster {{ workers: 2 servers: 2 }}
data {{ format: {format} train: "{train}" {data}
       columns {{ {text} label: "taken" numeric: ["age", "visits"] categorical: ["city", "item", "tags"]
                 column {{ name: "tags" {tags} pooling: MEAN }} column {{ name: "visits" scale: NONE }} }} }}
table {{ name: "ids" dim: 4 optimizer {{ kind: ADAGRAD learning_rate: 0.1 }} }}
policy {{ kind: BSP }}
dense {{ synchroniser: SERVERS optimizer {{ kind: ADAM learning_rate: 0.01 }} }}
model {{ mlp {{ hidden: [8] }} }}
train {{ batch_size: 50 epochs: 2 }}
"""


def rows():
    """Columns of all kinds that the job reads, and one that it does not."""
    random = numpy.random.default_rng(3)
    visits = numpy.where(random.random(ROWS) < .1, numpy.nan, random.exponential(3, ROWS)).astype(numpy.float32)
    return {"unread": [{"a": 1}] * ROWS, "item": random.integers(-20, 60, ROWS), "taken": random.random(ROWS) < .4,
            "age": random.normal(40, 12, ROWS), "visits": visits,
            "city": [None if c == 0 else f"city, {c}" for c in random.integers(0, 40, ROWS)],
            "tags": [[f"t{i}" for i in random.integers(0, 9, n)] for n in random.integers(0, 4, ROWS)]}


def table(columns):
    made = pyarrow.table({name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()})
    at = made.schema.get_field_index("city")
    return made.set_column(at, "city", made.column("city").dictionary_encode())


def write_text(path, columns):
    """The rows as Python writes them: the shortest text of each number."""
    def cell(value):
        return "" if value is None or value != value else ";".join(value) if isinstance(value, list) else str(value)
    with open(path, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        names = [name for name in columns if name != "unread"]
        out.writerow(names)
        for row in zip(*(columns[name] for name in names)):
            out.writerow([cell(value) for value in row])


def job(folder, name, train, data="test_fraction: 0.2", reproducible="true"):
    typed = not train.endswith((".csv", ".zst"))
    text = JOB.format(format="PARQUET" if typed else "DELIMITED", train=train, data=data, reproducible=reproducible,
                      text="" if typed else 'delimiter: "," header: true', tags="" if typed else 'separator: ";"')
    path = os.path.join(folder, name + ".textproto")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def run(*arguments, fails=False, folder=None, **variables):
    done = subprocess.run([TANDEM, *arguments], env=dict(os.environ, **variables), timeout=LIMIT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, cwd=folder)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def model(out):
    """The rows and dense values of a run."""
    saved = tandem.load(os.path.join(out, "model"))
    found = {}
    for name, rows_of in saved.tables.items():
        keys, weights = numpy.array(rows_of.keys), numpy.array(rows_of.weights)
        order = numpy.argsort(keys)
        found[name] = keys[order], weights[order]
    return found, {name: numpy.array(value) for name, value in saved.dense.items()}


def same(one, other):
    return all(numpy.array_equal(a, b) for name in one[0] for a, b in zip(one[0][name], other[0][name])) and \
        all(numpy.array_equal(one[1][name], other[1][name]) for name in one[1]) and one[0].keys() == other[0].keys()


def train(folder, name, path, *flags, **settings):
    out = os.path.join(folder, "out." + name)
    run("run", job(folder, name, path, **settings), "--out", out, *flags)
    return out


def compare_formats(folder):
    columns = rows()
    made = table(columns)
    files = [os.path.join(folder, "rows" + ending) for ending in (".csv", ".csv.zst", ".parquet", ".feather")]
    write_text(files[0], columns)
    subprocess.run(["zstd", "-q", files[0], "-o", files[1]], check=True)
    parquet.write_table(made, files[2], row_group_size=GROUP)
    pyarrow.feather.write_feather(made, files[3], compression="zstd", chunksize=GROUP)
    first = model(train(folder, "text", files[0]))
    for path in files[1:]:
        assert same(first, model(train(folder, path.rsplit(".", 1)[1], path))), path
    print(f"{ROWS} rows as CSV, zstd, Parquet and Arrow: the same bits, {len(first[0]['ids'][0])} rows of the table")
    return files[2]


def deal_and_resume(folder, path):
    """Row groups as blocks: each row is read once an epoch, and a resumed run has the bits of the whole."""
    blocks = {"data": "deal: BLOCKS test_fraction: 0.2"}
    whole = train(folder, "blocks", path, "--set", "checkpoint.every_steps=7", **blocks)
    with open(os.path.join(whole, "summary.json"), encoding="utf-8") as file:
        assert json.load(file)["samples"] == 2 * ROWS * 4 // 5
    part = train(folder, "part", path, "--set", "checkpoint.every_steps=7", "--set", "train.max_steps=17", **blocks)
    run("run", job(folder, "part", path, **blocks), "--resume", part)
    assert same(model(whole), model(part))
    few = run("run", job(folder, "few", path, data="deal: BLOCKS max_rows: 300"), "--out", folder + "/few", fails=True)
    assert "1 row group for 2 workers" in few and "a row group cannot be cut" in few, few


def other_types(folder):
    """Decimals, times and whole numbers that are ids already."""
    columns = rows()
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(int(item)) for item in columns["item"]]
    numbers = [day.toordinal() - datetime.date(1970, 1, 1).toordinal() for day in days]
    prices = [decimal.Decimal(int(item)) / 4 for item in columns["item"]]
    typed, plain = (os.path.join(folder, name + ".parquet") for name in ("typed", "plain"))
    parquet.write_table(table(dict(columns, age=days, visits=prices)), typed)
    parquet.write_table(table(dict(columns, age=numbers, visits=[float(p) for p in prices])), plain)
    first = model(train(folder, "plain", plain))
    assert same(first, model(train(folder, "typed", typed)))
    times = [datetime.datetime.combine(day, datetime.time()) for day in days]
    parquet.write_table(table(dict(columns, age=times, visits=prices)), typed)
    assert same(first, model(train(folder, "times", typed)))
    parquet.write_table(table(dict(columns, age=times, visits=prices)), typed, use_deprecated_int96_timestamps=True)
    assert same(first, model(train(folder, "int96", typed)))
    whole_days = [day.year * 10000 + day.month * 100 + day.day for day in days]
    parquet.write_table(table(dict(columns, age=whole_days, visits=prices)), typed)
    dated = train(folder, "dated", typed, "--set", "data.columns.column=[{name: 'tags' pooling: MEAN}, "
                  "{name: 'visits' scale: NONE}, {name: 'age' date: '%Y%m%d'}]")
    assert same(first, model(dated))
    raw = train(folder, "raw", plain, "--set", "data.columns.categorical=['item']", "--set",
                "data.columns.column=[{name: 'item' ids: RAW}]")
    items = {int(item) % 2 ** 64 for item in columns["item"]}
    assert {int(key) % 2 ** 64 for key in model(raw)[0]["ids"][0]} <= items


def refusals(folder, path):
    def refused(name, values, *words, **changes):
        wrong = os.path.join(folder, name + ".parquet")
        if values is not None:
            parquet.write_table(table(dict(rows(), **values)), wrong)
        said = run("run", job(folder, name, changes.pop("train", wrong)), "--out", folder + "/none", fails=True,
                   **changes)
        assert all(word in said for word in words) and said.count("\n") == 1, said
        assert not os.path.exists(folder + "/none")

    refused("nested", {"tags": [[["a"]]] * ROWS}, "nested.parquet: column 'tags' has type list of lists, expected")
    refused("list", {"item": [["a"]] * ROWS}, "'item' has type list of text, expected one value a row; hint: `column")
    refused("struct", {"item": [{"a": 1}] * ROWS}, "struct.parquet: column 'item' has type struct, expected")
    refused("day", {"item": [datetime.date(2024, 1, 1)] * ROWS}, "'item' has type date", "data.columns.numeric")
    refused("word", {"age": ["old"] * ROWS}, "word.parquet:1: column 'age' is 'old', expected a number")
    refused("infinite", {"age": [float("inf")] * ROWS}, "infinite.parquet:1: column 'age' is 'inf'")
    refused("label", {"taken": [7] * ROWS}, "label.parquet:1: the label in column 'taken' is '7'")
    refused("scalar", {"tags": ["a"] * ROWS}, "'tags' has type text, expected a list; hint: `separator`")
    two = parquet.read_table(path).drop_columns(["age"]).append_column("Age", pyarrow.array(["1"] * ROWS))
    parquet.write_table(two, os.path.join(folder, "rows2.parquet"))
    refused("two", None, "rows2.parquet: there is no column 'age'; did you mean 'Age'?",
            train=os.path.join(folder, "rows*.parquet"))
    os.remove(os.path.join(folder, "rows2.parquet"))
    with open(path, "rb") as file:
        good = file.read()
    for name, damaged, word in (("cut", good[:-100], "cut.parquet: "), ("empty", b"", "empty.parquet: "),
                                ("codec", good.replace(b"age\x15\x02", b"age\x15\x06"), "codec.parquet: "),
                                ("csv", b"taken,age\n1,2\n", "csv.parquet: ")):
        assert damaged != good
        with open(os.path.join(folder, name + ".parquet"), "wb") as file:
            file.write(damaged)
        refused(name, None, word)
    whole = parquet.read_table(path).combine_chunks()
    for name, kind in (("offset", pyarrow.string()), ("view", pyarrow.string_view())):
        at = pyarrow.array(["a city of many letters"] * ROWS, kind)
        beside = whole.set_column(whole.schema.get_field_index("item"), "item", at)
        wrong = os.path.join(folder, name + ".parquet")
        pyarrow.feather.write_feather(beside, wrong, compression="uncompressed", chunksize=ROWS)
        with open(wrong, "rb") as file:
            good = file.read()
        text = numpy.frombuffer(at.buffers()[1], numpy.int32).copy()
        text[1000 if name == "offset" else 4003] = 2 ** 30  # the end of a text, or the place of another
        damaged = good.replace(bytes(at.buffers()[1])[:4 * len(text)], text.tobytes())
        assert damaged != good
        with open(wrong, "wb") as file:
            file.write(damaged)
        refused(name, None, name + ".parquet: ")
    refused("alone", None, "pyarrow", "hint: pip install pyarrow", train=path, TANDEM_PYARROW=folder)


def scores(folder, path, trained):
    out = os.path.join(folder, "scores.parquet")
    run("predict", os.path.join(folder, "parquet.textproto"), "--init-from", trained, "--data", path, "--columns",
        "city,item", "--out", out)
    scored, whole = parquet.read_table(out), parquet.read_table(path)
    assert scored.column_names == ["city", "item", "score"] and len(scored) == ROWS
    assert [int(item) for item in scored["item"].to_pylist()] == whole["item"].to_pylist()
    assert [city or None for city in scored["city"].to_pylist()] == whole["city"].to_pylist()
    near = ("predict", "parquet.textproto", "--init-from", trained, "--data", os.path.basename(path), "--out")
    run(*near, "near.parquet", folder=folder)
    assert parquet.read_table(os.path.join(folder, "near.parquet"))["score"] == scored["score"]
    twice = run(*near, "twice.parquet", "--columns", "city,score", folder=folder, fails=True)
    assert "--columns gives a second column 'score'" in twice, twice
    run("run", job(folder, "near", os.path.basename(path)), "--out", "near.out", folder=folder)
    assert same(model(trained), model(os.path.join(folder, "near.out")))
    text = os.path.join(folder, "scores.txt")
    run("predict", os.path.join(folder, "text.textproto"), "--init-from", trained, "--data",
        os.path.join(folder, "rows.csv"), "--out", text)
    with open(text, encoding="utf-8") as file:
        assert [float(line) for line in file] == scored["score"].to_pylist()


@contextlib.contextmanager
def bucket(path):
    """An S3 server of this host, with the file in a bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1")):
            os.environ["AWS_" + name] = value
        query = f"?endpoint_override={host}:{port}&scheme=http&allow_bucket_creation=true"
        files, base = pyarrow.fs.FileSystem.from_uri("s3://rows" + query)
        files.create_dir(base)
        for day in ("day-1", "day-2"):
            pyarrow.fs.copy_files(path, base + f"/{day}.parquet", destination_filesystem=files)
        yield "s3://rows/{}" + query
    finally:
        server.stop()


def from_bucket(folder, path):
    both = os.path.join(folder, "both.parquet")
    parquet.write_table(pyarrow.concat_tables([parquet.read_table(path)] * 2), both)
    with bucket(path) as address:
        there = train(folder, "s3", address.format("day-*.parquet"))
        said = run("run", job(folder, "gone", address.format("none.parquet")), "--out", folder + "/none", fails=True)
        assert "data.train: there is no file s3://rows/none.parquet" in said, said
    assert same(model(there), model(train(folder, "both", both)))
    print("the same bits from s3://")


if __name__ == "__main__":
    try:
        import csv
        import numpy
        import pyarrow
        import pyarrow.feather
        import pyarrow.fs
        from pyarrow import parquet
    except ImportError as missing:
        print("skipped:", missing)
        sys.exit(SKIPPED)
    if not os.path.exists(os.path.join(BUILD, "bin", "libtandem_arrow.so")):
        print("skipped: there is no libtandem_arrow.so")
        sys.exit(SKIPPED)
    os.environ.update(TANDEM_PYARROW=os.path.dirname(pyarrow.__file__), TANDEM_PYTHON=sys.executable,
                      TANDEM_LIBRARY=os.path.join(BUILD, "lib", "libtandem.so"))
    sys.path.insert(0, os.path.join(BUILD, "python"))
    import tandem
    with tempfile.TemporaryDirectory() as here:
        of_rows = compare_formats(here)
        deal_and_resume(here, of_rows)
        other_types(here)
        refusals(here, of_rows)
        scores(here, of_rows, os.path.join(here, "out.parquet"))
        try:
            import moto.server
        except ImportError as missing:
            print("skipped: s3://:", missing)
        else:
            from_bucket(here, of_rows)
