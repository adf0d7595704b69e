"""A checkpoint, out again. `checkpoints.py train FOLDER` is a worker that leaves the logits of its
test rows in FOLDER; `checkpoints.py check OUT FOLDER` holds what the run has left in OUT to them;
`checkpoints.py exported FILE FOLDER` holds a program of torch.export to them; `checkpoints.py first
FILE` compares initial values with those of the servers."""
import argparse
import contextlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
from typing import Dict

import numpy
import torch
from torch import nn

import tandem
from tandem import export
from tandem.checkpoint import _map, _read_range
from tandem.serving import InitialValues
from tandem.tables import CatchUp, Initializer

ROWS, TESTS = 600, 200
TESTDATA = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + "/testdata"


class Ranker(nn.Module):
    """Each way of reading rows: two fields of one table, a bag of words with weights, a
    sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.places = tandem.EmbeddingBagCollection(["places"])
        self.words = tandem.EmbeddingBag("word")
        self.tags = tandem.Embedding("tags")
        self.layers = nn.Sequential(nn.Linear(2 * 8 + 5 + 2 * 3, 6), nn.Tanh(), nn.Linear(6, 1))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, ids: Dict[str, torch.Tensor], words: torch.Tensor, offsets: torch.Tensor,
                weights: torch.Tensor) -> torch.Tensor:
        places = self.places({"city": ids["city"], "offer": ids["offer"]})
        rows = [places.values(), self.words(words, offsets, weights),
                self.tags(ids["tag"]).flatten(1)]
        return self.layers(torch.cat(rows, 1)).squeeze(1) * self.scale


class Global(Ranker):
    """One that TorchScript does not take: its forward reads a global variable."""

    def forward(self, ids: Dict[str, torch.Tensor]) -> torch.Tensor:
        return self.places({"city": ids["city"], "offer": ids["offer"]}).values() * ROWS


class Broken(Ranker):
    def __init__(self):
        super().__init__()
        raise LookupError("no such layer")


def batch(seed, samples, known):
    """Ids of training are below `known`; those of tests go to twice that."""
    random = numpy.random.default_rng(seed)
    whole = lambda *shape: torch.from_numpy(random.integers(0, known, shape))
    lengths = random.integers(0, 4, samples)
    # As torch.nn.EmbeddingBag has them.
    offsets = numpy.concatenate([[0], numpy.cumsum(lengths)[:-1]])
    ids = {"city": whole(samples), "offer": whole(samples) - 7, "tag": whole(samples, 2)}
    label = (ids["city"] % 3 == 0).float()
    return (ids, whole(int(lengths.sum())), torch.from_numpy(offsets),
            torch.from_numpy(random.random(int(lengths.sum())).astype(numpy.float32)), label)


def example():
    return batch(7, 6, 80)[:4]


def features(b):
    ids, words, offsets, weights, _ = b
    return {**ids, "word": (words, offsets, weights)}


def tests(rank):
    return [batch(1000 + 10 * rank + i, TESTS // 2, 80) for i in range(2)]


def train(folder):
    job = tandem.init()
    model, loss_of = Ranker(), nn.BCEWithLogitsLoss()
    optimizer = tandem.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=.01), model)
    loader = tandem.DataLoader([batch(i + 50 * job.rank, 40, 40) for i in range(ROWS // 40)],
                               features)
    test = tandem.DataLoader(tests(job.rank), features)
    for _ in job.epochs():
        for ids, words, offsets, weights, label in loader:
            optimizer.zero_grad()
            loss_of(model(ids, words, offsets, weights), label).backward()
            optimizer.step()
        scores = []
        for ids, words, offsets, weights, label in job.evaluate(test):
            with torch.no_grad():
                scores.append(model(ids, words, offsets, weights))
            job.score(scores[-1], label)
    numpy.save(f"{folder}/logits-{job.rank}.npy", torch.cat(scores).numpy())


# ---- what is checked --------------------------------------------------------------------------

SERVE = """
import sys, numpy, torch
assert "tandem" not in sys.modules
exported = sys.argv[1].endswith(".pt2")
model = torch.export.load(sys.argv[1]).module() if exported else torch.jit.load(sys.argv[1])
for path in sys.argv[2:]:
    rows = torch.load(path)
    with torch.no_grad():
        logits = torch.cat([model(*row) for row in rows]).numpy()
    numpy.save(path + ".npy", logits)
"""


def serves_as_evaluated(path, folder):
    for rank in (0, 1):
        torch.save([b[:4] for b in tests(rank)], f"{folder}/rows-{rank}")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", SERVE, path, f"{folder}/rows-0", f"{folder}/rows-1"],
                   check=True, env=environment)
    for rank in (0, 1):
        logits, served = (numpy.load(f"{folder}/{name}-{rank}.npy") for name in ("logits", "rows"))
        worst = float(numpy.abs(logits - served).max())
        assert logits.shape == (TESTS,) and worst < 1e-6, worst
    unknown = sum(int((b[0]["city"] >= 40).sum()) for b in tests(0))
    assert unknown > TESTS / 4, unknown


def read_safetensors(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        assert length % 8 == 0
        header, data = json.loads(file.read(length)), file.read()
    metadata, ends = header.pop("__metadata__"), [0]
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert begin == ends[-1]
        ends.append(end)
        kind = {"F32": "<f4", "I64": "<i8"}[entry["dtype"]]
        arrays[name] = numpy.frombuffer(data[begin:end], dtype=kind).reshape(entry["shape"])
    assert ends[-1] == len(data)
    return metadata, arrays


def goes_out_and_in(saved, folder):
    want = dict(saved.dense)
    for table in saved.tables.values():
        want[table.name + ".keys"], want[table.name + ".weights"] = table.keys, table.weights
    assert want["scale"].shape == () and want["tags.weights"].shape[1] == 3, list(want)
    with open(f"{folder}/elsewhere", "wb"):
        os.chmod(f"{folder}/elsewhere", 0o640)
    os.symlink("elsewhere", f"{folder}/all.npz")
    saved.save_npz(f"{folder}/all.npz")  # through the link
    assert os.path.islink(f"{folder}/all.npz") \
        and os.stat(f"{folder}/elsewhere").st_mode & 0o777 == 0o640
    saved.save_safetensors(f"{folder}/all.safetensors")
    os.mkfifo(f"{folder}/fifo")
    with subprocess.Popen(["cat", f"{folder}/fifo"], stdout=subprocess.PIPE) as reader:
        saved.save_safetensors(f"{folder}/fifo")
        with open(f"{folder}/all.safetensors", "rb") as file:
            assert reader.stdout.read() == file.read()
    metadata, tensors = read_safetensors(f"{folder}/all.safetensors")
    assert json.loads(metadata["tandem"]) == saved.manifest
    with numpy.load(f"{folder}/all.npz") as archive:
        for arrays in ({name: archive[name] for name in archive.files}, tensors):
            assert arrays.keys() == want.keys(), list(arrays)
            for name, values in want.items():
                assert arrays[name].dtype == values.dtype and arrays[name].shape == values.shape, \
                    name
                assert arrays[name].tobytes() == numpy.ascontiguousarray(values).tobytes(), name
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        refused("Parquet needs pyarrow", saved.save_parquet, folder)
    else:
        for path in saved.save_parquet(folder):
            table = saved.tables[os.path.basename(path)[:-len(".parquet")]]
            found = pyarrow.parquet.read_table(path)
            assert numpy.array_equal(found["key"].to_numpy(), table.keys)
            assert numpy.array_equal(numpy.array(found["weights"].to_pylist(), dtype="f4"),
                                     table.weights)


def tables_are_mapped(saved):
    known = {"places": set(range(40)) | set(range(-7, 33)), "words": set(range(40)),
             "tags": set(range(40))}
    cold = hot_rows = 0
    for table in saved.tables.values():
        assert len(table.parts) > 1 and table.rows == len(table.keys) == len(table.slots)
        for part in table.parts:
            assert (part.catch_up is None) == (table.name != "tags")
            base = part.stored
            while base is not None and not isinstance(base, numpy.memmap):
                base = base.base
            # Rows of F32 are as in the file, and others are made.
            assert part.stored.flags.writeable == (table.name != "words")
            assert base is not None or part.stored.flags.writeable
            assert part.stored.dtype == part.slots.dtype == numpy.float32
            assert (part.ages is None) == (table.name != "words")  # which has an eviction
            assert (part.heads is None) == (table.name != "places")  # which has hot rows
            if part.heads is not None:
                hot = part.heads["updates"] == 255
                assert set(part.heads["exponent"][hot]) <= {-128}
                assert all(part.heads["exponent"][~hot] >= -110)
                cold, hot_rows = cold + sum(~hot), hot_rows + sum(hot)
            if part.ages is not None:
                assert len(part.ages) == len(part.keys) and len(part.candidates) == 0
                assert all(part.ages <= 1000)
        keys = table.keys.tolist()
        assert table.keys.dtype == numpy.int64 and set(keys) == known[table.name], table
        assert len(set(keys)) == len(keys) and numpy.isfinite(table.weights).all()
    assert cold > 5 and hot_rows > 5, (cold, hot_rows)
    assert saved.state_dict()["layers.0.bias"].shape == (6,)


def refused(text, call, *arguments):
    try:
        call(*arguments)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        assert text in str(error) and "\n" not in str(error), (text, str(error))
        return
    raise AssertionError(f"not refused: {text}")


def modules_know_the_forms_of_ids(saved):
    ids, count = torch.tensor([3, 500, 3, 12]), torch.tensor([[2.], [0], [1], [1]])
    rows = saved.embedding("word")(ids)
    found = saved.tables["words"]
    assert rows[0].tolist() == found.weights[found.keys.tolist().index(3)].tolist()
    offsets = torch.tensor([0, 2, 2, 3, 4])
    sums = torch.stack([rows[:2].sum(0), 0 * rows[0], rows[2], rows[3]])
    for mode, want in (("sum", sums), ("mean", sums / count.clamp(min=1))):
        torch.testing.assert_close(saved.embedding_bag("word", mode)(ids, offsets[:-1]), want)
        torch.testing.assert_close(saved.embedding_bag("word", mode, True)(ids, offsets), want)
    pairs = ids.reshape(2, 2)
    torch.testing.assert_close(saved.embedding_bag("word")(pairs), torch.stack([rows[:2].sum(0),
                                                                                rows[2:].sum(0)]))
    collection = saved.embedding_bag_collection()
    fields = ["city", "offer", "word", "tag"]
    matrix = collection(ids.unsqueeze(1).repeat(1, 4))
    assert matrix.keys() == fields and matrix.values().shape == (4, 8 + 8 + 5 + 3)
    assert torch.equal(matrix["word"], rows) and torch.equal(matrix.table("words")[:, 0], rows)
    for form in (ids, ids.unsqueeze(1), (ids, torch.arange(5))):
        assert torch.equal(collection({f: form for f in fields}).values(), matrix.values())
    # Columns follow the order of the module, which need not be that of the job.
    turned = saved.embedding_bag_collection(["words", "places"])(ids.unsqueeze(1).repeat(1, 4))
    assert turned.keys() == ["word", "city", "offer"], turned.keys()
    assert torch.equal(turned.values()[:, :5], rows)
    assert torch.equal(turned.values()[:, 5:], matrix.values()[:, :16])
    # What training would refuse, or would take for something else.
    offsets_of_a_collection(saved, ids, fields)
    refused("expected integers", collection, ids.unsqueeze(1).repeat(1, 4).float())
    none = saved.embedding_bag("word", "mean")(torch.empty(3, 0, dtype=torch.int64))
    assert torch.equal(none, torch.zeros(3, 5)), none
    refused("expected [samples, fields]", collection, ids)
    refused("ids: expected a tensor", collection, "ids")


def offsets_of_a_collection(saved, ids, fields):
    """Both forms that torch.nn.EmbeddingBag knows, each as it knows them."""
    rows = saved.embedding("word")(ids)
    begins, ends = torch.tensor([0, 2, 3]), torch.tensor([0, 2, 3, 4])
    first = torch.stack([rows[:2].sum(0), rows[2], rows[3]])
    last = torch.stack([rows[:3].sum(0), rows[3], 0 * rows[0]])  # whose last sample has no ids
    for plain in (saved.embedding_bag_collection(),
                  torch.jit.script(saved.embedding_bag_collection())):
        for offsets in (begins, ends):
            torch.testing.assert_close(plain({f: (ids, offsets) for f in fields})["word"], first)
        mixed = {f: (ids, begins) for f in fields}
        for offsets, want in ((ends, first), (torch.tensor([0, 3, 4]), last)):
            torch.testing.assert_close(plain({**mixed, "word": (ids, offsets)})["word"], want)
        other = torch.tensor([0, 3, 4])  # the end, or a last sample without ids
        assert plain({f: (ids, other) for f in fields})["word"].shape == (2, 5)
        torch.testing.assert_close(plain({**{f: (ids, ends) for f in fields},
                                          "word": (ids, other)})["word"], last)
    for told, offsets, want in ((False, other, last), (True, ends, first)):
        plain = saved.embedding_bag_collection(include_last_offset=told)
        torch.testing.assert_close(plain({f: (ids, offsets) for f in fields})["word"], want)
    collection = saved.embedding_bag_collection()
    refused("2 offsets for 4 ids of 3 samples; expected one for each sample, or the number of ids "
            "behind them", collection,
            {**mixed, "city": (ids, torch.tensor([0, 2]))})
    refused("expected the number of ids behind them",
            saved.embedding_bag_collection(include_last_offset=True),
            {f: (ids, begins) for f in fields})
    refused("expected one for each sample",
            saved.embedding_bag_collection(include_last_offset=False),
            {**mixed, "word": (ids, ends)})


def other_models_are_refused(saved):
    class Wider(Ranker):
        def __init__(self):
            super().__init__()
            self.layers[0] = nn.Linear(27, 7)

    class Less(Ranker):
        def __init__(self):
            super().__init__()
            del self.scale

    class Town(nn.Module):
        def __init__(self):
            super().__init__()
            self.town = tandem.EmbeddingBag("town")

    class Normed(Ranker):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

    refused("dense parameter layers.0.weight is [6, 27] in the checkpoint, [7, 27] in the module",
            saved.serving, Wider)
    refused("a dense parameter scale, and the module none of that name", saved.serving, Less)
    refused("the checkpoint has no table or field 'town'", saved.serving, Town)
    refused("call tandem.init() first", Ranker)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saved.serving(Normed)
    said = [str(w.message) for w in caught if "not in the checkpoint" in str(w.message)]
    assert len(said) == 1 and "norm.running_mean" in said[0] and "norm.weight" in said[0], said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved.serving(Ranker)


def damaged_checkpoints_are_refused(saved, folder):
    model = os.path.dirname(saved.folder)
    copies = iter(range(100))

    def copy():
        to = f"{folder}/copy-{next(copies)}"
        shutil.copytree(model, to)
        return to, os.path.join(to, os.path.basename(saved.folder))

    entries = saved.manifest["files"]
    place = next(f for f in entries if f["table"] == "places")
    dense = next(f for f in entries if f["file"] == "dense.part")
    for entry in place, dense:
        name = entry["file"]
        last = max(f["offset"] + f["length"] for f in entries if f["file"] == name)
        path, checkpoint = copy()
        with open(f"{checkpoint}/{name}", "r+b") as file:  # one bit of a weight
            file.seek(entry["offset"] + entry["length"] - 24)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        refused(": its bytes have checksum", tandem.load, path)
        refused(name, tandem.load, path)
        if entry is place:
            refused("table places, positions [0x", tandem.load, path)
        tandem.load(path, False)
        path, checkpoint = copy()
        os.truncate(f"{checkpoint}/{name}", last - 8)
        refused(f"{name}: ", tandem.load, path)
        refused(f"{name}", tandem.load, path, False)
        path, checkpoint = copy()
        os.truncate(f"{checkpoint}/{name}", 0)
        refused("is the copy whole?", tandem.load, path, False)
        path, checkpoint = copy()
        os.remove(f"{checkpoint}/{name}")
        refused(name, tandem.load, path)
    path, checkpoint = copy()
    # a whole file, of something else
    shutil.copy(f"{checkpoint}/dense.part", f"{checkpoint}/{place['file']}")
    refused(place["file"], tandem.load, path)
    path, checkpoint = copy()
    with open(f"{checkpoint}/MANIFEST", encoding="utf-8") as file:
        text = file.read()
    with open(f"{checkpoint}/MANIFEST", "w", encoding="utf-8") as file:
        file.write(text.replace('"step": ', '"step": 1'))
    refused("manifest: checksum is", tandem.load, path)
    with open(f"{checkpoint}/MANIFEST", "w", encoding="utf-8") as file:
        file.write(text[:200])
    refused("cut short?", tandem.load, path)
    refused("cut short?", tandem.load, path, False)
    os.remove(f"{checkpoint}/MANIFEST")
    refused("MANIFEST", tandem.load, path)
    refused("is it the folder of a run, made without --no-checkpoint?", tandem.load, checkpoint)


def a_table_may_have_no_rows(saved, folder):
    """As a frozen table is: its files have a head, names and no row."""
    checkpoint = f"{folder}/without-rows"
    shutil.copytree(saved.folder, checkpoint)
    with open(f"{checkpoint}/MANIFEST", encoding="utf-8") as file:
        manifest = json.load(file)
    for number, entry in enumerate(manifest["files"]):
        if entry["table"] != "tags":
            continue
        with open(f"{checkpoint}/{entry['file']}", "rb") as file:
            file.seek(entry["offset"])
            part = bytearray(file.read(entry["length"]))
        workers, table, optimizer = struct.unpack_from("<3I", part, 56)
        size = (120 + 32 * workers + table + optimizer + 7) // 8 * 8 + 8
        struct.pack_into("<Q", part, 8, size)
        struct.pack_into("<Q", part, 24, 0)  # rows
        struct.pack_into("<Q", part, 72, 0)  # held updates
        entry.update(file=f"{number}.range", offset=0, length=size)
        with open(f"{checkpoint}/{number}.range", "wb") as file:
            file.write(part[:size])
    with open(f"{checkpoint}/MANIFEST", "w", encoding="utf-8") as file:
        json.dump(manifest, file)
    bare = tandem.load(checkpoint, verify=False)
    assert bare.tables["tags"].rows == 0 and bare.tables["tags"].weights.shape == (0, 3)
    bare.save_npz(f"{checkpoint}.npz")
    bare.save_safetensors(f"{checkpoint}.safetensors")
    with numpy.load(f"{checkpoint}.npz") as archive:
        for arrays in (archive, read_safetensors(f"{checkpoint}.safetensors")[1]):
            assert arrays["tags.keys"].shape == (0,) and arrays["tags.weights"].shape == (0, 3)
    ids = torch.tensor([500, 501, 500])  # which no worker has trained
    rows = torch.jit.script(bare.embedding("tag"))(ids)
    assert torch.equal(rows, saved.embedding("tag")(ids)) and rows.abs().min() > 0, rows


def tables_with_limits_have_ages_and_candidates(folder):
    """Files as server/checkpoint/range_file.md describes formats 2 and 3."""
    path = f"{folder}/limited.range"
    body = b"tsgd".ljust(8, b"\0") + struct.pack("<2q", 6, -9)  # names, keys
    body += struct.pack("<2f", 1.5, 2.5) + struct.pack("<2I", 7, 0)  # weights, ages
    body += struct.pack("<qII", -3, 2, 5) + bytes(8)  # a candidate, checksum
    for number, size, limited in (2, 88, 0), (3, 120, 1):
        head = struct.pack("<4sIQIIQQQqIIIIQQ", b"TDRF", number, size + len(body), 1, 0, 2, 0, 0,
                           12, 0, 1, 3, limited, 0, 1) + struct.pack("<qqIIQ", 5, 0, 0, 0, 0)
        with open(path, "wb") as file:
            file.write(head[:size] + body)
        part = _read_range(path, _map(path))
        assert part.keys.tolist() == [6, -9] and part.weights.tolist() == [[1.5], [2.5]]
        assert part.slots.shape == (2, 0) and part.ages.tolist() == [7, 0]
        assert part.candidates.tolist() == [(-3, 2, 5)]
        for kept in size + len(body) - 8, size, 84, 80:
            os.truncate(path, kept)
            refused("is the copy whole?", _read_range, path, _map(path))
    later = "of a later version of Tandem"
    more = "1 numbers a row of 0 slots"
    # The types of rows and of state, numbers, flags.
    for at, value, text in (104, 3, later), (108, 2, later), (112, 1, more), (116, 1, later):
        changed = bytearray(head + body)
        changed[at] = value
        with open(path, "wb") as file:
            file.write(changed)
        refused(text, _read_range, path, _map(path))


def rows_with_heads_have_their_values(folder):
    """The file of LayoutOfRowsWithHeads in tests/unit/server/range_file_test.cc."""
    path = f"{folder}/heads.range"
    head = struct.pack("<4sIQIIQQQqIIIIQQqqIIIIQQII", b"TDRF", 4, 200, 3, 0, 2, 0, 0, 0, 0, 1, 3, 0,
                       0, 0, 0, 0, 3, 0, 0, 0, 1, 5, 1, 0)
    body = bytearray(b"tsgd".ljust(8, b"\0") + struct.pack("<2q", 6, 7))
    body += bytes.fromhex("ff0480ff00000000" "02fc7f0000000000" "803f00c0003f0000") + bytes(8)

    def write(at=0, value=ord("T")):
        file = bytearray(head + body)
        file[at] = value
        with open(path, "wb") as out:
            out.write(file)
        return _map(path)

    part = _read_range(path, write())
    assert part.weights.tolist() == [[1, -2, 63.5], [1, -2, .5]], part.weights
    assert part.heads.tolist() == [(-1, 4), (-128, 255)]
    later = "of a later version of Tandem"
    # The types of rows and of hot rows, the number of hot rows, a count of updates.
    for at, value, text in ((104, 4, later), (136, 3, later), (120, 3, "3 hot rows of 2"),
                            (169, 255, "do not name 1 hot rows")):
        refused(text, _read_range, path, write(at, value))


def rows_catch_up():
    """As those of the servers: the same file is read by tests/unit/optim/catch_up_test.cc."""
    tables = numpy.loadtxt(f"{TESTDATA}/catch_up.txt")
    assert tables.shape == (40, 10)
    for rate, beta1, beta2, epsilon, last, now, weight, m, v, expected in tables:
        text = f"kind: ADAM learning_rate: {rate} beta1: {beta1} beta2: {beta2} epsilon: {epsilon}"
        slots = numpy.array([[m, v, 0], [m, v, 0]], "f4")
        slots.view("u4")[1, 2] = last  # row 0 has no update
        found = CatchUp(text, int(now)).weights(numpy.full((2, 1), weight, "f4"), slots)
        assert found.dtype == numpy.float32 and found[0, 0] == numpy.float32(weight)
        assert abs(found[1, 0] - expected) < 2e-6, (found, expected)


def checkpoints_of_earlier_versions_are_read():
    """A file for each range, in formats 1 and 2."""
    for verify in (True, False):
        old = tandem.load(f"{TESTDATA}/checkpoint_format_2", verify)
        assert old.manifest["format"] == 2 and old.step == 5
        offers, rest = old.tables["offers"], old.tables["rest"]
        assert offers.rows == 20 and rest.rows == 6 and len(old.dense) == 4
        at = int(numpy.flatnonzero(rest.keys == 0xa82034f6e854c2d6 - (1 << 64))[0])
        assert abs(rest.weights[at, 1] - 0.147939) < 1e-6
        assert rest.parts[0].ages is not None and offers.parts[0].ages is None


def check(out, folder):
    checkpoints_of_earlier_versions_are_read()
    rows_catch_up()
    saved = tandem.load(out + "/model")
    tables_are_mapped(saved)
    tables_with_limits_have_ages_and_candidates(folder)
    rows_with_heads_have_their_values(folder)
    goes_out_and_in(saved, folder)
    torch.jit.script(saved.serving(Ranker)).save(f"{folder}/serve.pt")
    serves_as_evaluated(f"{folder}/serve.pt", folder)
    modules_know_the_forms_of_ids(saved)
    other_models_are_refused(saved)
    a_table_may_have_no_rows(saved, folder)
    damaged_checkpoints_are_refused(saved, folder)
    failed_exports_leave_the_last(out, folder)


def failed_exports_leave_the_last(out, folder):
    to = f"{folder}/exported-here"
    for names, formats in (("model.npz",), ["npz"]), (("model.npz", "model.safetensors"),
                                                      ["npz", "safetensors"]):
        sys.argv[1:] = [out, "--to", to, *[word for name in formats for word in ("--format", name)]]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            export.main()
        assert said.getvalue().endswith("".join(f"wrote {to}/{name}\n" for name in names)), \
            said.getvalue()
        if len(names) > 1:
            break
        os.truncate(f"{to}/model.npz", 7)  # by which it is known again
        os.mkdir(f"{to}/model.safetensors.tmp")
        sys.argv += ["--format", "safetensors"]
        try:
            export.main()
        except OSError as error:
            assert "model.safetensors.tmp" in str(error), error
        else:
            raise AssertionError("wrote into a folder")
        os.rmdir(f"{to}/model.safetensors.tmp")
        assert os.listdir(to) == ["model.npz"] and os.path.getsize(f"{to}/model.npz") == 7
    assert sorted(os.listdir(to)) == ["model.npz", "model.safetensors"] \
        and os.path.getsize(f"{to}/model.npz") > 7


def initial_values(path):
    """Each line: salt, dim, row_dtype, id, the row's bits in hexadecimal, and the initializer's
    text."""
    rows = 0
    with open(path, encoding="utf-8") as file:
        for line in file:
            salt, dim, row_dtype, key, bits, text = line.rstrip("\n").split(" ", 5)
            initializer = Initializer(text, int(salt), int(dim), row_dtype)
            want = numpy.frombuffer(bytes.fromhex(bits), dtype=">u4").astype("u4")
            plain = InitialValues(initializer, int(dim))
            for module in (plain, torch.jit.script(plain)) if rows % 16 == 0 else (plain,):
                found = module(torch.tensor([int(key)], dtype=torch.int64)).numpy()
                assert found.shape == (1, int(dim)) and found.dtype == numpy.float32
                assert numpy.array_equal(found[0].view("u4"), want), (line, found)
            rows += 1
    assert rows > 100, rows


if __name__ == "__main__":
    ways = {"train": train, "check": check, "exported": serves_as_evaluated,
            "first": initial_values}
    ways[sys.argv[1]](*sys.argv[2:])
elif __name__ == "checkpoints":  # of `tandem export --serve`, whose flags are not the script's
    argparse.ArgumentParser().parse_args()
