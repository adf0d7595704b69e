"""What needs no job: hashing, forms of ids, and what is missing where."""
import os
import signal
import socket
import threading
import time

import numpy
import torch

import tandem
from tandem.nn import _check_field, _same
from tandem.packing import pack, unpack
from tandem.sparse import BatchIds, FieldIds, KeyedJaggedTensor


class OneTable:
    """Stands for a job whose table `ids` has two fields."""
    _fields = ["city", "offer"]
    tables = {}

    def _table_of(self, name):
        from tandem.job import Table
        if name not in self._fields:
            raise ValueError(name)
        return Table(0, "ids", 4, self._fields), self._fields.index(name)


def same(a, b):
    for name in ("city", "offer"):
        x, y = a.fields[name], b.fields[name]
        assert torch.equal(x.ids, y.ids), name
        ox = torch.arange(x.ids.numel() + 1) if x.offsets is None else x.offsets
        oy = torch.arange(y.ids.numel() + 1) if y.offsets is None else y.offsets
        assert torch.equal(ox, oy), name


job = OneTable()
matrix = torch.tensor([[1, 5], [2, 6], [3, 7]])
flat = BatchIds(job, matrix)
same(flat, BatchIds(job, {"city": matrix[:, 0], "offer": matrix[:, 1]}))
same(flat, BatchIds(job, KeyedJaggedTensor(["city", "offer"], torch.tensor([1, 2, 3, 5, 6, 7]),
                                           lengths=torch.ones(6, dtype=torch.int64))))
same(flat, BatchIds(job, {"city": (matrix[:, 0], torch.arange(3)),      # as nn.EmbeddingBag
                          "offer": (matrix[:, 1], torch.arange(4))}))   # with include_last_offset
assert flat.samples == 3
jagged = BatchIds(job, {"city": (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3])), "offer": matrix[:, 1]})
assert jagged.fields["city"].offsets.tolist() == [0, 0, 3, 3]
wide = BatchIds(job, {"city": matrix.repeat(1, 2), "offer": matrix[:, 1]}).fields["city"]
assert wide.length == 4 and wide.offsets.tolist() == [0, 4, 8, 12]



def refused(text, call, *arguments):
    try:
        call(*arguments)
    except ValueError as error:
        assert text in str(error), (text, str(error))
        return
    raise AssertionError(f"not refused: {text}")


# Rows of other ids than those of the batch are never given out, whatever form they are in.
def keyed(values, lengths=(1, 1, 1, 1, 1, 1), weights=None):
    return KeyedJaggedTensor(["city", "offer"], torch.tensor(values), weights,
                             lengths=torch.tensor(lengths))


for given in flat, BatchIds(job, keyed([1, 2, 3, 5, 6, 7])):
    assert _same(job, given, matrix.clone())
    assert _same(job, given, keyed([1, 2, 3, 5, 6, 7]))
    assert _same(job, given, {"city": torch.tensor([1, 2, 3])})
    assert _same(job, given, {"city": (torch.tensor([1, 2, 3]), torch.arange(3))})
    assert not _same(job, given, {"city": torch.tensor([1, 2, 4])})
    assert not _same(job, given, {"city": (torch.tensor([1, 2, 3]), torch.tensor([0, 2, 2]))})
    assert not _same(job, given, keyed([1, 2, 3, 5, 6, 8]))
    assert not _same(job, given, keyed([1, 2, 3, 5, 6, 7], lengths=(2, 0, 1, 1, 1, 1)))
    assert not _same(job, given, keyed([1, 2, 3, 5, 6, 7], weights=torch.arange(6.)))
assert not _same(job, BatchIds(job, {"city": matrix[:, 0]}), {"offer": matrix[:, 1]})
job._given = BatchIds(job, {"city": (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3, 3]), torch.arange(3.))})
for call in ((torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]), torch.arange(3.)),
             (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3, 3]), torch.arange(3.)), (None,)):
    _check_field(job, "city", *call)
for call in ((torch.tensor([1, 2, 4]), None, torch.arange(3.)),
             (torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3]), torch.arange(3.)),
             (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]), torch.ones(3)),
             (torch.tensor([1, 2, 3]), None, torch.arange(3.)),
             (torch.tensor([[1, 2, 3]]), None, torch.arange(3.))):
    refused("called with other ids", _check_field, job, "city", *call)
# Whoever serves the model calls it in the same way, and has no loader to take the rest from.
for call in ((torch.tensor([1, 2, 3]),), (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]))):
    refused("without the weights", _check_field, job, "city", *call)
job._given = BatchIds(job, {"city": (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3, 3]))})
refused("in other bags", _check_field, job, "city", torch.tensor([1, 2, 3]))

# Ids on a device are refused, not read there. (Tensors without memory stand for those of a GPU.)
far = torch.empty(3, dtype=torch.int64, device="meta")
for ids in ({"city": far}, {"city": (matrix[:, 0], far)}, {"city": (matrix[:, 0], torch.arange(3), far)},
            torch.empty(3, 2, dtype=torch.int64, device="meta"),
            KeyedJaggedTensor(["city"], matrix[:, 0], offsets=torch.empty(4, device="meta")),
            KeyedJaggedTensor(["city"], far, lengths=torch.ones(3, dtype=torch.int64))):
    refused("on meta, want them on the CPU, where rows are fetched; say .cpu()", BatchIds, job, ids)

# What a save has of a script comes back as it was, of the same types; what runs code is not taken.
value = {3: [1, 2.5, float("inf"), None, True, "Rome"], "t": (torch.arange(3), b"\0\1", {1, 2}, -2 ** 70),
         "n": [numpy.float32(1.5), numpy.arange(4, dtype=numpy.uint32)],
         "b": torch.tensor([1.5, -2], dtype=torch.bfloat16), "s": torch.tensor(7), "e": torch.empty(0, 3)}
back = unpack(pack(value))
assert back[3] == value[3] and back["t"][1:] == value["t"][1:] and list(back) == list(value)
assert torch.equal(back["t"][0], value["t"][0]) and type(back["t"]) is tuple and type(back[3][4]) is bool
assert torch.equal(back["b"], value["b"]) and back["b"].dtype == torch.bfloat16
assert back["s"].shape == () and back["e"].shape == (0, 3) and back["n"][1].dtype == numpy.uint32
for what in (print, object(), [numpy.array([print])], {"a": lambda: 0}):
    try:
        pack(what, "x")
    except TypeError as error:
        assert "which no save can hold" in str(error)
    else:
        raise AssertionError(what)
refused("not what a script had saved", unpack, b"no zip file")

texts = tandem.hash_ids(["Rome", "", None, "Rome", "7"], "city")
assert texts[0] == texts[3] != texts[1] == texts[2] and texts.dtype == numpy.int64
assert tandem.hash_ids(["Rome"], "offer")[0] != texts[0]
numbers = tandem.hash_ids(torch.tensor([7, 8, 7]), "city")
assert numbers[0] == numbers[2] != numbers[1]
print(texts[0], texts[1], numbers[0])
try:
    tandem.load("/nowhere")
except FileNotFoundError as error:
    assert "is it the folder of a run, made without --no-save?" in str(error)

# Ctrl-C is heard while a store waits, here for a scheduler that never answers.
with socket.create_server(("127.0.0.1", 0)) as silent:
    begun = time.monotonic()
    threading.Timer(.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        tandem.Store("cache", scheduler=f"tcp://127.0.0.1:{silent.getsockname()[1]}", timeout=100)
    except KeyboardInterrupt:
        assert time.monotonic() - begun < 50
    else:
        raise AssertionError("Ctrl-C is not heard")
