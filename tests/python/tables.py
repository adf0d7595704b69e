"""Tables with __arrow_c_stream__ without a job: their ids and numbers, which types are refused, and
that streams are released. Without pyarrow; then with what is there of pandas, polars, pyarrow and
DuckDB."""
import ctypes
import gc
import importlib
import math
import random
import types

import numpy
import torch

import tandem
from arrow_streams import Column, Table
from tandem import _abi
from tandem.arrow import ArrowStream, _pointer_of, is_arrow
from tandem.arrow_batches import ArrowBatches, ArrowSource
from tandem.tables import Table as JobTable, Tables

CITIES = ["Rome", "a city with a long name", None, "", "Oslo", "Rome", "Łódź"]
NUMBERS = [7, -1, None, 2 ** 53 + 1, 0, -2 ** 63, 2 ** 63 - 1]
nan, inf = math.nan, math.inf


def ids_of(values, field):
    return tandem.hash_ids(values, field).tolist()


def refused(text, call, *arguments, kind=ValueError):
    try:
        call(*arguments)
    except kind as error:
        assert text in str(error) and "\n" not in str(error), (text, str(error))
        return
    raise AssertionError(f"not refused: {text}")


def hashed(column, rows=3):
    table = Table([column], rows=rows)
    out = tandem.hash_columns(table)
    assert out.dtype == torch.int64 and out.shape == (len(table), 1)
    assert table.opened == table.released == 1 and table.live == 0
    return out[:, 0].tolist()


# ---- ids: those of the same values by hash_ids, which are those of files ----

for offset in 0, 1, 9:
    for rows in 1, 3, 100:
        for format, values in (
                ("u", CITIES), ("U", CITIES), ("vu", CITIES), ("z", [b"Rome", None, b"\xff", b""]),
                ("l", NUMBERS), ("L", [7, None, 2 ** 64 - 1, 2 ** 63]), ("c", [-128, 127, 0, None]),
                ("C", [255, 0]), ("s", [-5]), ("S", [65535]), ("i", [-7, None]),
                ("I", [2 ** 32 - 1]),
                ("b", [True, False, None, True])):
            column = Column("city", format, values, offset)
            assert hashed(column, rows) == ids_of(values, "city"), (format, offset, rows)
        # A float32 has another shortest text than the same number in 64 bits.
        floats = [.1, 7., nan, None, -0., 1e-5, 9.9e-5, 2e-4, 123456.5, 1e20, 1e-30, inf, -inf]
        assert hashed(Column("city", "g", floats, offset), rows) == ids_of(floats, "city")
        floats = [None if x is None else numpy.float32(x) for x in floats]
        assert hashed(Column("city", "f", floats, offset), rows) == ids_of(floats, "city")
        # 7.50, -0.05, 3 and 0 of two digits behind the point.
        decimals = Column("city", "d:9,2", [750, -5, 300, 0, None], offset)
        assert hashed(decimals, rows) == ids_of(["7.50", "-0.05", "3", "0", ""], "city")
        # Entries of a dictionary, of which one is null.
        entries = Column("", "u", ["Rome", None, "Oslo"], offset)
        places = Column("city", "C", [2, 0, None, 1, 2], offset, entries=entries)
        assert hashed(places, rows) == ids_of(["Oslo", "Rome", "", "", "Oslo"], "city")

# A seeded random table, in batches of any sizes.
generator = random.Random(7)
for _ in range(20):
    length, columns, wanted = generator.randrange(1, 40), [], []
    for place in range(generator.randrange(1, 6)):
        format = generator.choice(["u", "U", "vu", "l", "i", "b", "g"])
        make = {"u": lambda: "x" * generator.randrange(20), "l": lambda: generator.randrange(-9, 9),
                "b": lambda: generator.random() < .5, "g": generator.random}
        make = make.get(format, make["l" if format == "i" else "u"])
        values = [None if generator.random() < .2 else make() for _ in range(length)]
        columns.append(Column(f"field {place}", format, values, generator.randrange(9)))
        wanted.append(ids_of(values, f"field {place}"))
    found = tandem.hash_columns(Table(columns, rows=generator.randrange(1, 50)))
    assert found.T.tolist() == wanted

empty = tandem.hash_columns(Table([Column("a", "u", []), Column("b", "l", [])]))
assert empty.shape == (0, 2) and empty.dtype == torch.int64

for column, text in (
        (Column("day", "tdD", [1]), "hash_columns of arrow_streams.Table: column 'day' has type "
         "date, expected text or a number; hint: times have no text of their own"),
        (Column("at", "tsu:UTC", [1]), "column 'at' has type timestamp, expected text or a number"),
        (Column("x", "e", [1.5]), "column 'x' has type halffloat, expected text or a number"),
        (Column("x", "tDs", [1]), "column 'x' has type duration, expected numbers, booleans"),
        (Column("x", "+l", [[1]], items=Column("item", "l", [])),
         "column 'x' has type list of int64, expected one value a row; hint: a tandem.DataLoader"),
        (Column("x", "+l", [[[1]]], items=Column("item", "+l", [],
                                                 items=Column("item", "l", []))),
         "column 'x' has type list of lists, expected numbers, booleans")):
    table = Table([column])
    refused(text, tandem.hash_columns, table)
    assert table.opened == table.released == 1 and table.live == 0, text
refused("column 'a' is there several times, expected once", tandem.hash_columns,
        Table([Column("a", "l", [1]), Column("a", "l", [2])]))
table = Table([Column("a", "l", [1, 2])], fails="the disk is\ngone")
refused("hash_columns of arrow_streams.Table: the disk is", tandem.hash_columns, table,
        kind=tandem.Error)
assert table.released == 1 and table.live == 0

# ---- batches of a loader ----

tables = Tables("the job", [JobTable(0, "ids", 4, ["city", "user", "tags"])])
TAGS = [["a", "b"], None, [], ["c", None, ""], [None], ["b"], ["a", "a", "c"]]
CLICKS = [True, False, None, True, False, True, False]
TAG_CELLS = [["a", "b"], [""], [""], ["c"], [""], ["b"], ["a", "a", "c"]]


def ad_table(rows=3, **options):
    return Table([Column("city", "vu", CITIES, 2), Column("user", "l", NUMBERS, 1),
                  Column("tags", "+l", TAGS, 1, items=Column("item", "u", [], 3)),
                  Column("price", "f", [.5, None, nan, 1.5, 2, 3, 4]),
                  Column("click", "b", CLICKS, 3),
                  Column("day", "tdD", [0, 19000, None, 1, 2, 3, -1]),
                  Column("at", "tsu:UTC", [43200 * 10 ** 6] * 7),
                  Column("cost", "d:9,2", [750, -5, None, 1, 2, 3, 4]),
                  Column("big", "L", [2 ** 64 - 1, None, 1, 2, 3, 4, 5]),
                  Column("note", "u", CITIES)], rows, **options)


ALL = ["city", "user", "tags", "price", "click", "day", "at", "cost", "big"]


def numbers(*values):
    return torch.tensor([nan if value is None else value for value in values], dtype=torch.float32)


def same(found, wanted):
    return found.dtype == torch.float32 and torch.equal(found.nan_to_num(-9), wanted.nan_to_num(-9))


for rows in 1, 2, 3, 7, 50:
    for size in 1, 2, 3, 4, 7, 9:
        table = ad_table(rows)
        source = ArrowSource(table, tables, size, ALL, {"user": "raw"})
        assert len(source) == -(-7 // size)
        for epoch in range(2):
            begin = 0
            for batch in source:
                assert list(batch) == ALL
                end = min(begin + size, 7)
                count, cells = end - begin, TAG_CELLS[begin:end]
                assert batch["city"].tolist() == ids_of(CITIES[begin:end], "city")
                missing = ids_of([""], "user")[0]
                assert batch["user"].tolist() == [missing if n is None else n
                                                  for n in NUMBERS[begin:end]]
                assert batch["tags"].lengths().tolist() == [len(cell) for cell in cells]
                assert batch["tags"].values().tolist() == ids_of(sum(cells, []), "tags")
                assert same(batch["price"], numbers(.5, None, nan, 1.5, 2, 3, 4)[begin:end])
                assert same(batch["click"], numbers(*CLICKS)[begin:end])
                assert same(batch["day"], numbers(0, 19000, None, 1, 2, 3, -1)[begin:end])
                assert same(batch["at"], numbers(*[.5] * count))
                assert same(batch["cost"], numbers(7.5, -.05, None, .01, .02, .03, .04)[begin:end])
                assert same(batch["big"], numbers(2. ** 64, None, 1, 2, 3, 4, 5)[begin:end])
                begin = end
            assert begin == 7 and table.opened == table.released == epoch + 1 and table.live == 0
        # Batches that are passed over leave the same ones.
        for skipped in range(9):
            left, there = iter(source), min(skipped, len(source))
            assert left.skip(skipped) == there
            wanted = [batch["city"].tolist() for batch in source][there:]
            assert [batch["city"].tolist() for batch in left] == wanted
        assert table.opened == table.released and table.live == 0

# The ids that a loader finds, and the columns that it needs.
loader = tandem.DataLoader.__new__(tandem.DataLoader)
loader._worker = types.SimpleNamespace(tables=tables)
loader._features, loader._include_last_offset = None, None
loader._table = ArrowSource(ad_table(), tables, 4, ALL, "hashed")
batch = next(iter(loader._table))
given = loader._ids(batch)
assert given.samples == 4 and list(given.fields) == ["city", "user", "tags"]
assert given.fields["tags"].bounds().tolist() == [0, 2, 3, 4, 5]
assert given.fields["user"].ids.tolist() == ids_of(NUMBERS[:4], "user")
loader._features = lambda batch: {"city": batch["city"]}
assert list(loader._ids(batch).fields) == ["city"]
loader._features, loader._table = None, ArrowSource(ad_table(), tables, 4, ["price"], "hashed")
refused("which columns are ids? None of ['price'] is a field of the job; its fields are ['city'",
        loader._ids, next(iter(loader._table)))
whole = next(iter(ArrowSource(Table([Column("city", "u", CITIES), Column("__index_level_0__", "u",
                                                                       CITIES)]), tables, 9, None,
                              "hashed")))
assert list(whole) == ["city"]  # without the index of pandas


def first(table, columns=None, ids="hashed", size=4):
    return next(iter(ArrowSource(table, tables, size, columns, ids)))


refused("tandem.DataLoader of arrow_streams.Table: column 'note' has type text, expected a number, "
        "a boolean or a date; hint: a column of ids has the name of a field of the job; leave "
        "other columns out", first, ad_table())
refused("there is no column 'prize'; its columns are ['city'", first, ad_table(), ["prize"])
refused("column 'city' is chosen twice", first, ad_table(), ["city", "city"])
refused("columns='city', expected a list of names", first, ad_table(), "city")
refused("batch_size=0, expected 1 or more", first, ad_table(), None, "hashed", 0)
for wrong in "hash", {"price": "raw"}, {"city": "RAW"}:
    refused(f"ids={wrong!r}, expected", first, ad_table(), None, wrong)
refused("row 0, column 'city': the id is 'Rome', expected a whole number of 64 bits; hint: hashed",
        first, ad_table(), ["city"], "raw", kind=tandem.Error)
refused("column 'embedding' has type list of float, expected a number", first,
        Table([Column("embedding", "+l", [[1.]], items=Column("item", "f", []))]))
texts = Table([Column("user", "u", ["7", "-1", None, str(2 ** 64 - 1)])])
assert first(texts, ids="raw")["user"].tolist() == [7, -1, ids_of([""], "user")[0], -1]
refused("its function has returned an object of type builtins.int, expected one with", first,
        lambda: 7)
made = []
source = ArrowSource(lambda: made.append(ad_table()) or made[-1], tables, 4, ["city"], "hashed")
assert [len(list(source)) for _ in range(2)] == [2, 2] and len(made) == 2

# A source that fails after its batches, at the place where it fails; and again.
table = ad_table(fails="no more")
batches = iter(ArrowSource(table, tables, 4, ["city"], "hashed"))
assert len(next(batches)["city"]) == 4
for _ in range(2):
    refused("tandem.DataLoader of arrow_streams.Table: no more", next, batches, kind=tandem.Error)
assert table.released == 1 and table.live == 0
# A stream that is left is released, and batches stay.
table = ad_table()
batches = iter(ArrowSource(table, tables, 2, ["city"], "hashed"))
kept = next(batches)
assert table.released == 0 and table.live > 0
del batches
gc.collect()
assert table.released == 1 and table.live == 0
assert kept["city"].tolist() == ids_of(CITIES[:2], "city")
# A capsule that was read before.
capsule = ad_table().__arrow_c_stream__()
twice = types.SimpleNamespace(__arrow_c_stream__=lambda: capsule)
assert len(first(twice, ["city"], size=9)["city"]) == 7
refused("the stream was read before, and can be read once", first, twice, ["city"])

# ---- wrong calls of the C interface ----

lib, handle, rows = _abi.library(), ctypes.c_void_p(), ctypes.c_int64()
three = [ctypes.byref(ctypes.c_void_p()), ctypes.byref(rows), ctypes.byref(ctypes.c_void_p())]


def wrong(text, code):
    assert code == -1 and text in lib.tandem_error().decode(), lib.tandem_error()


with ArrowStream(Table([Column("a", "l", [1, 2]), Column("b", "l", [3, 4])]), "a table") as stream:
    handle = stream._handle
    wrong("stream: a null pointer", lib.tandem_arrow_open(None, b"", three[0]))
    left = Table([Column("a", "l", [1, 2])])
    capsule = left.__arrow_c_stream__()
    wrong("arrow: a null pointer",
          lib.tandem_arrow_open(_pointer_of(capsule, b"arrow_array_stream"), b"", None))
    assert left.opened == left.released == 1  # also after the error
    wrong("arrow: a null pointer", lib.tandem_arrow_next(None, 1, ctypes.byref(rows)))
    wrong("column 2, expected 0 to 1", lib.tandem_arrow_read(handle, 2, _abi.ARROW_ID))
    wrong("column -1, expected 0 to 1", lib.tandem_arrow_values(handle, -1, *three))
    wrong("as: 0, expected one of TANDEM_ARROW_ID", lib.tandem_arrow_read(handle, 0, 0))
    stream.read(0, _abi.ARROW_RAW_IDS)
    wrong("rows: a null pointer", lib.tandem_arrow_next(handle, 1, None))
    wrong("most: 0 rows; expected 1 or more", lib.tandem_arrow_skip(handle, 0, ctypes.byref(rows)))
    assert lib.tandem_arrow_column(handle, 1) == b"b" and lib.tandem_arrow_column(handle, 2) == b""
    assert stream.skip(1) == 1 and stream.next(5) == 1 and stream.values(0)[0].tolist() == [2]
    wrong("column 1 is not read", lib.tandem_arrow_values(handle, 1, *three))
    wrong("values, count, offsets: a null", lib.tandem_arrow_values(handle, 0, None, *three[1:]))
    wrong("column 'b' is chosen after rows were read", lib.tandem_arrow_read(handle, 1, 1))
    assert stream.next(1) == stream.next(1) == stream.skip(1) == 0

# ---- the libraries that are there ----

ROWS = 5
TEXTS, FLOATS = ["Rome", None, "", "Oslo", "a city with a long name"], [.5, None, 7., 1e-5, -3.25]
LISTS = [["a", "b"], [], None, ["c", None], ["a"]]


def check(table, what):
    """A table of the columns city, user, price and tags, or a function that returns one."""
    table = table if callable(table) else lambda made=table: made
    for epoch in range(2):  # a table is read again
        batches = list(ArrowSource(table, tables, 2, None, {"user": "raw"}))
        assert [len(batch["price"]) for batch in batches] == [2, 2, 1], what
        assert sum((b["city"].tolist() for b in batches), []) == ids_of(TEXTS, "city"), what
        assert sum((b["user"].tolist() for b in batches), []) == [1, 2, 3, 2 ** 53 + 1, 5], what
        assert same(torch.cat([b["price"] for b in batches]), numbers(*FLOATS)), what
        assert sum((b["tags"].lengths().tolist() for b in batches), []) == [2, 1, 1, 1, 1], what
        assert sum((b["tags"].values().tolist() for b in batches), []) == \
            ids_of(["a", "b", "", "", "c", "a"], "tags"), what
    print("read tables of", what)


def columns_of(users=(1, 2, 3, 2 ** 53 + 1, 5)):
    return {"city": TEXTS, "user": list(users), "price": FLOATS, "tags": LISTS}


def imported(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        print(f"skipped, as {name} is not there: its tables")
        return None


pyarrow, polars, duckdb, pandas = map(imported, ("pyarrow", "polars", "duckdb", "pandas"))
flat = {name: values for name, values in columns_of().items() if name != "tags"}
wanted = numpy.stack([tandem.hash_ids(values, name) for name, values in flat.items()], 1)


def check_hashed(frame, what):
    assert numpy.array_equal(tandem.hash_columns(frame), wanted), what


if pyarrow is not None:
    table = pyarrow.table(columns_of())
    check(table, "pyarrow")
    check(lambda: table.to_reader(max_chunksize=2), "a pyarrow.RecordBatchReader")
    check_hashed(pyarrow.table(flat), "pyarrow")
    check_hashed(pyarrow.concat_tables([pyarrow.table(flat)] * 3).slice(5, ROWS), "slices")
    once = iter(ArrowSource(table.to_reader(), tables, 4, ["city"], "hashed"))
    assert once.source.once and [len(batch["city"]) for batch in once] == [4, 1]
    encoded = pyarrow.table({"city": pyarrow.array(TEXTS).dictionary_encode(),
                             "user": flat["user"], "price": pyarrow.array(FLOATS)})
    check_hashed(encoded, "a dictionary of pyarrow")
    refused("column 'x' has type struct, expected", first,
            pyarrow.table({"x": [{"a": 1}]}), ["x"])
    refused("the stream is one column, expected a table", tandem.hash_columns,
            pyarrow.chunked_array([[1, 2]]))
if polars is not None:
    check(polars.DataFrame(columns_of()), "polars")
    check_hashed(polars.DataFrame(flat), "polars")
    check_hashed(polars.DataFrame(flat).with_columns(polars.col("city").cast(polars.Categorical)),
                 "categories of polars")
    check_hashed(polars.concat([polars.DataFrame(flat)] * 3)[ROWS:2 * ROWS], "slices of polars")
if duckdb is not None:
    rows = ", ".join(f"({', '.join('NULL' if value is None else repr(value) for value in row)})"
                     for row in zip(*columns_of().values())).replace("None", "NULL")
    query = f"SELECT * FROM (VALUES {rows}) AS t(city, user, price, tags)"
    check(lambda: duckdb.sql(query), "DuckDB")
    check(duckdb.sql(query), "one relation of DuckDB")
    check_hashed(duckdb.sql(f"SELECT city, user, price FROM ({query})"), "DuckDB")
if pandas is not None:
    # A frame has the same ids by its own way and as a table of Arrow.
    frame = pandas.DataFrame({**flat, "user": pandas.array(flat["user"], dtype="Int64"),
                              "kind": pandas.Categorical(["a", None, "b", "a", "a"]),
                              "old": numpy.array([.1, 2, nan, 1e-5, 2e20], dtype="f4"),
                              "new": pandas.array([True, None, False, True, True])})
    assert numpy.array_equal(tandem.hash_columns(frame)[:, :3], wanted)
    if not is_arrow(frame) or pyarrow is None:
        print("skipped, as pandas >= 2.2 with pyarrow is not there: its frames as tables")
    else:
        check(pandas.DataFrame(columns_of()), "pandas")
        table = pyarrow.table(frame)
        assert table.column_names == list(frame.columns)
        assert torch.equal(tandem.hash_columns(table), tandem.hash_columns(frame))
        if polars is not None:
            assert torch.equal(tandem.hash_columns(polars.from_pandas(frame)),
                               tandem.hash_columns(frame))
print("tables: done")
