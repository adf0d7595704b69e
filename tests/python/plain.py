"""What needs no job: hashing, forms of ids, and what is missing where."""
import array
import collections
import dataclasses
import datetime
import decimal
import fractions
import os
import signal
import socket
import tempfile
import threading
import time
import types
import warnings
from unittest import mock

import numpy
import torch

import tandem
from tandem import _programs
from tandem.copies import copy_of
from tandem.current import made_for
from tandem.nn import _check_field, _same
from tandem.optim import _check_schedule, check_gpu
from tandem.packing import pack, unpack
from tandem.progress import _state_of
from tandem.sparse import BatchIds, KeyedJaggedTensor, StepIds
from tandem.tables import Table, Tables


def same(a, b):
    for name in ("city", "offer"):
        x, y = a.fields[name], b.fields[name]
        assert torch.equal(x.ids, y.ids), name
        ox = torch.arange(x.ids.numel() + 1) if x.offsets is None else x.offsets
        oy = torch.arange(y.ids.numel() + 1) if y.offsets is None else y.offsets
        assert torch.equal(ox, oy), name


tables = Tables("the job", [Table(0, "ids", 4, ["city", "offer"])])
worker = types.SimpleNamespace(tables=tables, cluster=None)
matrix = torch.tensor([[1, 5], [2, 6], [3, 7]])
flat = BatchIds(tables, matrix)
same(flat, BatchIds(tables, {"city": matrix[:, 0], "offer": matrix[:, 1]}))
same(flat, BatchIds(tables, KeyedJaggedTensor(["city", "offer"], torch.tensor([1, 2, 3, 5, 6, 7]),
                                           lengths=torch.ones(6, dtype=torch.int64))))
same(flat, BatchIds(tables, {"city": (matrix[:, 0], torch.arange(3)),      # as nn.EmbeddingBag
                          "offer": (matrix[:, 1], torch.arange(4))}))   # with include_last_offset
assert flat.samples == 3
jagged = BatchIds(tables, {"city": (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3])),
                           "offer": matrix[:, 1]})
assert jagged.fields["city"].offsets.tolist() == [0, 0, 3, 3]

# Offsets are those of torch.nn.EmbeddingBag, whose default has one for each sample: a last one that
# is the number of ids is a sample without ids, unless the option or another field of the batch says
# that it is the end.
values, ends = torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3])


def bags(ids, **options):
    return {name: field.bounds().tolist() for name, field in BatchIds(tables, ids,
                                                                      **options).fields.items()}


for none, end in (({}, {"include_last_offset": True}), ({"include_last_offset": False},
                                                        {"include_last_offset": True})):
    assert bags({"city": (values, ends)}, **none) == {"city": [0, 2, 3, 3]}
    assert bags({"city": (values, ends)}, **end) == {"city": [0, 2, 3]}
    assert bags({"city": (values, ends), "offer": (values, ends)}, **none)["offer"] == [0, 2, 3, 3]
    assert bags({"city": (values[:0], torch.tensor([0, 0]))}, **none) == {"city": [0, 0, 0]}
    assert bags({"city": (values[:0], torch.tensor([0, 0]))}, **end) == {"city": [0, 0]}
    assert bags({"city": (values, ends), "offer": values}, **none)["city"] == [0, 2, 3, 3]
assert bags({"city": (values, ends), "offer": values[:2]})["city"] == [0, 2, 3]
assert bags({"city": (values, ends), "offer": (values, torch.tensor([0, 1, 2]))})["city"] == [0, 2,
                                                                                              3, 3]
assert bags({"city": (values, ends), "offer": (values, torch.tensor([0, 1]))})["city"] == [0, 2, 3]
assert bags({"city": (values, ends, values.float())}) == {"city": [0, 2, 3, 3]}
# ... or what is beside them in a batch: labels say how many samples there are.
both = {"city": (values, ends), "offer": (values, ends)}
for beside, wanted in ((torch.ones(2), [0, 2, 3]), (torch.ones(3), [0, 2, 3, 3]),
                       (numpy.ones((2, 5)), [0, 2, 3]),
                       (torch.ones(7), [0, 2, 3, 3]), ([1, 2], [0, 2, 3, 3])):
    for batch in ((both, beside), {"ids": both, "label": beside}, (values, ends, beside)):
        assert bags(both, beside=batch) == {"city": wanted, "offer": wanted}, batch
        assert bags(both, include_last_offset=False, beside=batch)["city"] == [0, 2, 3, 3]
tables.last_offsets = {"city": True}  # tandem.EmbeddingBag("city", include_last_offset=True)
assert bags({"city": (values, ends)}) == {"city": [0, 2, 3]}
assert bags({"city": (values, ends)}, include_last_offset=False) == {"city": [0, 2, 3, 3]}
tables.last_offsets = {"city": False}  # tandem.EmbeddingBagCollection(include_last_offset=False)
assert bags({"city": (values, ends)}, beside=(torch.ones(2),)) == {"city": [0, 2, 3, 3]}
tables.last_offsets = {}

# Ids may be integers of any type.
for kind in "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64", ">i8":
    one = BatchIds(tables, {"city": numpy.array([1, 0, 1]).astype(kind)}).fields["city"].ids
    assert one.dtype == torch.int64 and one.tolist() == [1, 0, 1], kind
assert BatchIds(tables, numpy.array([[2 ** 63 + 5, 2]],
                                    dtype="u8")).fields["city"].ids.tolist() == [5 - 2 ** 63]
# So may those that a loader finds by type; of several the one that is int64.
finder = tandem.DataLoader.__new__(tandem.DataLoader)
finder._worker = worker
for ids in matrix.int(), matrix.numpy().astype("u2"), matrix.to(torch.uint8):
    for batch in (ids, [torch.ones(3, 2), ids], {"x": numpy.ones((3, 2)), "ids": ids},
                  (ids, matrix[:, :1], matrix[:, 0])):
        assert finder._find(batch) is ids, batch
    assert finder._find([ids, matrix]) is matrix
    # Masks are no ids.
    assert finder._find([ids, matrix > 2]) is finder._find([matrix.numpy() > 2, ids]) is ids

wide = BatchIds(tables, {"city": matrix.repeat(1, 2), "offer": matrix[:, 1]}).fields["city"]
assert wide.length == 4 and wide.offsets.tolist() == [0, 4, 8, 12]

# Lists of samples are that in batches of any size: the last one of an epoch may have two or three.
for value in [5, 6], [5, 6, 7], (5, 6), [torch.tensor(5), torch.tensor(6)], [numpy.int64(5),
                                                                             numpy.int32(6)]:
    one = BatchIds(tables, {"city": value}).fields["city"]
    assert one.ids.tolist() == list(range(5, 5 + len(value))) and one.offsets is None, value
for value in [[1, 2], [0, 1]], [[1, 2, 3], [0, 1, 2]], [[7, 8], [0, 2],
                                                        [0, 1]], [(1, 2), (0, 1), (3, 4), (5, 6)]:
    one = BatchIds(tables, {"city": value}).fields["city"]
    assert one.ids.tolist() == [i for ids in value for i in ids] and one.samples() == len(value), \
        value
for parts in ([1, 2, 3], [0, 2]), [torch.tensor([1, 2, 3]),
                                   torch.tensor([0, 2])], [numpy.array([1, 2, 3]), [0, 2]]:
    assert bags({"city": parts}) == {"city": [0, 2, 3]}, parts
one = BatchIds(tables, {"city": ([1, 2, 3], [0, 2], [1, 2.5, 3])}).fields["city"]
assert one.weights.tolist() == [1, 2.5, 3] and one.bounds().tolist() == [0, 2, 3]
# Ids, offsets and weights may be lists and arrays, too, and there may be no ids at all.
for make in torch.tensor, numpy.array, lambda numbers: numbers:
    for field in (BatchIds(tables,
                           {"city": (make([1, 2, 3]), make([0, 0, 2]), make([.5, 0., 2.]))}).fields[
                               "city"],
                  BatchIds(tables, KeyedJaggedTensor(["city"], make([1, 2, 3]), make([.5, 0., 2.]),
                                                  lengths=make([0, 2, 1]))).fields["city"],
                  BatchIds(tables, KeyedJaggedTensor(["city"], make([1, 2, 3]), make([.5, 0., 2.]),
                                                  offsets=make([0, 0, 2, 3]))).fields["city"]):
        assert field.ids.tolist() == [1, 2, 3] and field.offsets.tolist() == [0, 0, 2, 3], \
            field.offsets
        assert field.weights.dtype == torch.float32 and field.weights.tolist() == [.5, 0, 2]
    assert bags({"city": (make([]), make([0, 0]))}) == {"city": [0, 0, 0]}
    assert bags({"city": make([])}) == {"city": [0]}
    # As many lists as there are in (values, offsets, weights).
    for rows in [[5, 6], [0, 1]], [[5], [6], [7]]:
        assert bags({"city": make(rows)}) == {"city": list(range(0, 1 + len(rows) * len(rows[0]),
                                                                 len(rows[0])))}
    for flat_ids in [5, 6], [5, 6, 7]:
        assert BatchIds(tables, {"city": make(flat_ids)}).fields["city"].ids.tolist() == flat_ids
# Torch's loader.
assert bags({"city": [torch.tensor([1, 2]), torch.tensor([0, 1])]}) == {"city": [0, 1, 2]}
assert bags({"city": [torch.tensor(1), torch.tensor(2)]}) == {"city": [0, 1, 2]}


class Weighted:
    """Stands for torchrec's JaggedTensor."""
    values, offsets = lambda self: torch.tensor([1, 2]), lambda self: torch.tensor([0, 2])
    weights_or_none = lambda self: torch.tensor([3., 4.])


assert BatchIds(tables, {"city": Weighted()}).fields["city"].weights.tolist() == [3, 4]



def refused(text, call, *arguments):
    try:
        call(*arguments)
    except ValueError as error:
        assert text in str(error), (text, str(error))
        return
    raise AssertionError(f"not refused: {text}")


refused("field 'city' is there twice", BatchIds, tables,
        KeyedJaggedTensor(["city", "city"], values, lengths=torch.tensor([1, 1, 1, 0])))
one = Tables("the job", [Table(0, "cities", 4, ["city"])])  # which the name of the table means, too
refused("field 'city' is there twice", BatchIds, one, {"city": values, "cities": values})
flat.check_has(["city", "offer"])
refused("field 'offer': the loader gave no ids for it",
        BatchIds(tables, {"city": values}).check_has, ["city", "offer"])

# Parts that a batch shares with the memory of its loader are copied.
Pair = collections.namedtuple("Pair", "x y")


class Slotted:
    __slots__ = ("x",)


class Batch:
    """An object of the script's, with a data set that is no part of a batch."""

    def __init__(self, data):
        self.x, self.inner, self.whole = torch.zeros(2), {"y": [torch.zeros(2)]}, data


slotted, whole = Slotted(), Batch(None)
slotted.x = torch.zeros(2)
memory = {"a": [torch.zeros(2), numpy.zeros(2)], "b": Pair(torch.zeros(2), ["Rome"]),
          "c": collections.OrderedDict(d=array.array("d", [0])), "e": Batch(whole), "f": slotted,
          "g": KeyedJaggedTensor(["city"], torch.zeros(2), lengths=torch.ones(2)), "h": 7,
          "i": numpy.zeros((2, 2))[::-1, ::-1].T}
made = copy_of(memory)
for part in (memory["a"][0], memory["a"][1], memory["b"].x, memory["e"].x, memory["f"].x,
             memory["e"].inner["y"][0], memory["g"].values(), memory["i"]):
    part += 1
memory["b"].y[0], memory["c"]["d"][0] = "Oslo", 1
memory["a"].append(0)
memory["e"].inner["z"] = 1
assert [part.tolist() for part in made["a"]] == [[0, 0]] * 2 and type(made["b"]) is Pair
assert made["b"].x.tolist() == [0, 0] and made["b"].y == ["Rome"] and made["c"]["d"][0] == 0
assert made["e"].x.tolist() == made["f"].x.tolist() == made["g"].values().tolist() == [0, 0]
assert made["e"].inner["y"][0].tolist() == [0, 0] and "z" not in made["e"].inner
assert made["e"].whole is whole and made["h"] == 7 and made["i"].sum() == 0
for thing in print, Batch, threading.Lock(), iter([]), torch.nn.Linear(2, 2), torch.float32:
    assert copy_of(thing) is thing


class Viewed:
    """Copies itself, because one of its parts is a view of another."""

    def __init__(self, x):
        self.x, self.first = x, x[:1]

    def __copy__(self):
        return Viewed(self.x)


@dataclasses.dataclass(frozen=True)
class Part:
    x: torch.Tensor


class Outer:
    def __init__(self, part):
        self.part = part


viewed, outer = Viewed(torch.zeros(2)), Outer(Part(torch.zeros(2)))
queue = collections.deque([torch.zeros(2), threading.Lock()], maxlen=3)
made = copy_of([viewed, outer, queue])
for part in viewed.x, outer.part.x, queue[0]:
    part += 1
queue.append(0)
assert made[0].x.tolist() == made[1].part.x.tolist() == made[2][0].tolist() == [0, 0]
assert len(made[2]) == 2 and made[2].maxlen == 3
made[0].x[0] = 5
assert made[0].first.tolist() == [5]
wanted = torch.zeros(2, requires_grad=True)
assert copy_of([wanted])[0] is wanted

# Rows of other ids than those of the batch are never given out, whatever form they are in.
weights = torch.arange(3.)


def keyed(values, lengths=(1, 1, 1, 1, 1, 1), weights=None):
    return KeyedJaggedTensor(["city", "offer"], torch.tensor(values), weights,
                             lengths=torch.tensor(lengths))


for given in flat, BatchIds(tables, keyed([1, 2, 3, 5, 6, 7])):
    assert _same(worker, given, given.source)
    assert _same(worker, given, matrix.clone())
    assert _same(worker, given, keyed([1, 2, 3, 5, 6, 7]))
    assert _same(worker, given, {"city": torch.tensor([1, 2, 3])})
    assert _same(worker, given, {"city": (torch.tensor([1, 2, 3]), torch.arange(3))})
    assert not _same(worker, given, {"city": torch.tensor([1, 2, 4])})
    assert not _same(worker, given, {"city": (torch.tensor([1, 2, 3]), torch.tensor([0, 2, 2]))})
    assert not _same(worker, given, keyed([1, 2, 3, 5, 6, 8]))
    assert not _same(worker, given, keyed([1, 2, 3, 5, 6, 7], lengths=(2, 0, 1, 1, 1, 1)))
    assert not _same(worker, given, keyed([1, 2, 3, 5, 6, 7], weights=torch.arange(6.)))
assert not _same(worker, BatchIds(tables, {"city": matrix[:, 0]}), {"offer": matrix[:, 1]})
# Nor of ids that the script has changed in place.
source = matrix.clone()
for make, change in ((lambda: source, source.neg_), (lambda: {"city": source[:, 0]}, source.neg_),
                     (lambda: source.numpy(), source.neg_),
                     (lambda: {"city": (source[:, 0], torch.arange(3))}, source.neg_),
                     (lambda: keyed([1, 2, 3, 5, 6, 7]), lambda: held.source.values().neg_()),
                     (lambda: {"city": [1, 2, 3]}, lambda: held.source["city"].reverse()),
                     (lambda: {"city": (values, torch.arange(3), weights)}, weights.neg_)):
    held = BatchIds(tables, make())
    held.freeze()
    assert _same(worker, held, held.source)
    change()
    assert not _same(worker, held, held.source), held.source
held = BatchIds(tables, {"city": (values, ends), "offer": (values, ends)}, True)
assert _same(worker, held, held.source)
worker.given = BatchIds(tables, {"city": (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]),
                                          torch.arange(3.))})
for call in ((torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]), torch.arange(3.)),
             (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3, 3]), torch.arange(3.)), (None,),
             ([1, 2, 3], [0, 0, 3], [0., 1., 2.]), (numpy.array([1, 2, 3]), numpy.array([0, 0, 3]),
                                                    numpy.arange(3))):
    _check_field(worker, "city", *call)
for call in ((torch.tensor([1, 2, 4]), None, torch.arange(3.)),
             (torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3]), torch.arange(3.)),
             (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]), torch.ones(3)),
             (torch.tensor([1, 2, 3]), None, torch.arange(3.)),
             (torch.tensor([[1, 2, 3]]), None, torch.arange(3.))):
    refused("called with other ids", _check_field, worker, "city", *call)
# Whoever serves the model calls it in the same way, and has no loader to take the rest from.
for call in ((torch.tensor([1, 2, 3]),), (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]))):
    refused("without the weights", _check_field, worker, "city", *call)
worker.given = BatchIds(tables, {"city": (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]))})
refused("in other bags", _check_field, worker, "city", torch.tensor([1, 2, 3]))
# As the module is called with what the loader gave.
worker.given = BatchIds(tables, {"city": (values, ends)})
_check_field(worker, "city", values, ends)
_check_field(worker, "city", values, torch.tensor([0, 2, 3, 3]))
refused("in other bags", _check_field, worker, "city", values, torch.tensor([0, 3, 3]))
refused("the last one is 2, and with include_last_offset=True it is the number of ids, 3", BatchIds,
        tables, {"city": (values, ends[:2])}, True)
refused("say include_last_offset=True", BatchIds, tables,
        {"city": (values, ends), "offer": values[:2]}, False)

# Padding has no row and no place in a mean, in each form of ids. The loader gives no fixed ids.
tied = Tables("the job", [Table(0, "item", 4, ["seq", "pos", "all"])])
with made_for(tied):
    bag, every = tandem.EmbeddingBag("pos", padding_idx=-1), tandem.Embedding("all", ids=[5, 6])
    tandem.Embedding("seq", padding_idx=0)
    refused("padding_idx=3, and another module says 0", tandem.Embedding, "item", 3)
    refused("padding_idx=None, and another module says 0", tied.check_padding, ["all", "seq"], None)
    assert tied.padding == {"pos": -1, "seq": 0}
    refused("expected a field without padding", tandem.Embedding, "item", None, [1])
    refused("expected a field without padding", tandem.Embedding, "pos", 1, [1])
    refused("called without ids", every._fixed, worker, [5, 6])
    try:
        every.weight
    except AttributeError as error:
        assert "job.rows(NAME, ids)" in str(error) and not hasattr(bag, "weight")
for ids in (torch.tensor([[0, -1], [2, 2], [0, 3]]),
            {"seq": torch.tensor([[0], [2], [0]]), "pos": torch.tensor([-1, 2, 3])},
            {"seq": (torch.tensor([0, 2, 0]), torch.tensor([0, 1, 2])), "pos": [[-1], [2], [3]]}):
    given = BatchIds(tied, ids)
    kept = {name: given.rows(name) for name in tied.fields}
    assert [f.ids.tolist() for f in kept.values()] == [[2], [2, 3], [5, 6]]
    assert [f.bounds().tolist() for f in kept.values()] == [[0, 0, 1, 1], [0, 0, 1, 2],
                                                            [0, 2, 2, 2]]
    assert kept["seq"].kept.tolist() == [1] and given.count(tied.all[0]) == 5
    assert given.fields["seq"].ids.tolist() == [0, 2, 0]  # which a module is called with
    filled, unpooled = given.fill(tied)
    assert [field.count for field in filled] == [1, 2, 2] and list(unpooled) == [1]
weighted = BatchIds(tied, {"pos": ([-1, 4, 5], [0, 2], [1., 2., 3.])}).rows("pos")
assert weighted.weights.tolist() == [2, 3] and weighted.bounds().tolist() == [0, 1, 2]
assert weighted.pooled(torch.tensor([[1.], [10.]])).tolist() == [[2], [30]]
refused("give none in `features`", BatchIds, tied, {"all": [1, 2]})
for parts in [torch.tensor([1, 2])] * 4, ([1], [2], [3], [4]), [numpy.array([1, 2])]:
    refused(f"a {type(parts).__name__} of {len(parts)} parts, expected (values, offsets) or",
            BatchIds, tables, {"city": parts})
refused("weights of field 'city'", BatchIds, tables, {"city": ([1, 2], [0, 1], ["a", "b"])})
for wrong, text in (({"city": (values, ends.view(3, 1))}, "offsets of field 'city': shape (3, 1)"),
                    ({"city": (values, ends, ["a"] * 3)}, "weights of field 'city': "),
                    (KeyedJaggedTensor(["city"], values, lengths=torch.tensor([1, 1])),
                     "their offsets end with 2"),
                    (KeyedJaggedTensor(["city"], values, torch.ones(4),
                                       lengths=torch.tensor([1, 2])), "and 4 weights")):
    refused(text, BatchIds, tables, wrong)
for wrong, hint in ((torch.ones(3), ".long()"), (numpy.array(["a"] * 3), "hash texts"),
                    (["a"] * 3, "hash texts")):
    refused(hint, BatchIds, tables, {"city": wrong})

# The batches of a step are joined sample after sample, and the cells of each are found again.
jagged = {"city": (values, ends[:2], torch.arange(3.)), "offer": matrix[:2, 1]}
for given, city, bounds in (
        ([matrix, matrix[:2]], [1, 2, 3, 1, 2], [0, 1, 2, 3, 4, 5]),
        ([{"offer": matrix[:, 1]}, matrix[:2]], [1, 2], [0, 0, 0, 0, 1, 2]),
        ([jagged, matrix], [1, 2, 3, 1, 2, 3], [0, 2, 3, 4, 5, 6])):
    step = StepIds([BatchIds(tables, part) for part in given])
    assert step.joined.samples == len(bounds) - 1
    field = step.joined.fields["city"]
    assert field.ids.tolist() == city and field.bounds().tolist() == bounds, given
    assert step.joined.fields["offer"].ids.tolist() == [
        i for part in step.parts for i in part.fields["offer"].ids.tolist()]
assert field.weights.tolist() == [0, 1, 2, 1, 1, 1]
for unpooled, shape, begins in ((False, (5, 2, 4), ([0, 1], [2, 3, 4])),
                                (True, (11, 4), ([0, 1, 2, 6, 7], [3, 4, 5, 8, 9, 10]))):
    cells = torch.arange(float(shape[0])).view(-1, *[1] * (len(shape) - 1)).expand(shape)
    parts = [part.clone().requires_grad_() for part in step.split(tables.all[0], unpooled, cells)]
    for part, places in zip(parts, begins):
        assert part.flatten(1)[:, 0].tolist() == places and part.shape[1:] == shape[1:], part
    assert step.join(tables.all[0], unpooled, parts) is None
    parts[1].grad = parts[1].detach() + 1
    joined = step.join(tables.all[0], unpooled, parts)
    wanted = [place + 1 if place in begins[1] else 0 for place in range(shape[0])]
    assert joined.shape == shape and joined.flatten(1)[:, -1].tolist() == wanted, joined

# Ids on a device are refused, not read there. (Tensors without memory stand for those of a GPU.)
far = torch.empty(3, dtype=torch.int64, device="meta")
for ids in ({"city": far}, {"city": (matrix[:, 0], far)},
            {"city": (matrix[:, 0], torch.arange(3), far)},
            torch.empty(3, 2, dtype=torch.int64, device="meta"),
            KeyedJaggedTensor(["city"], matrix[:, 0], offsets=torch.empty(4, device="meta")),
            KeyedJaggedTensor(["city"], far, lengths=torch.ones(3, dtype=torch.int64))):
    refused("on meta, expected them on the CPU, where rows are fetched; say .cpu()", BatchIds,
            tables, ids)

# Workers of a host take its GPUs in turn. A worker that computes on the GPU of another is warned.
for gpus, rank, device in ((0, "1", "cpu"), (2, "0", "cuda:0"), (2, "1", "cuda:1"),
                           (2, "2", "cuda:0")):
    with mock.patch.dict(os.environ, LOCAL_RANK=rank), \
            mock.patch("torch.cuda.device_count", return_value=gpus), \
            mock.patch("torch.cuda.set_device") as current, \
            warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert tandem.Job.device() == torch.device(device)
        assert current.call_count == (gpus > 0)
        check_gpu({torch.device(device)})
        assert told == []
        check_gpu({torch.device("cuda", 0)})
        assert len(told) == (device == "cuda:1"), (device, told)

# Each schedule of torch can be in a checkpoint, and continues from there.
parameter = torch.nn.Parameter(torch.zeros(1))
schedules = torch.optim.lr_scheduler


def each_schedule():
    sgd = lambda: torch.optim.SGD([parameter], lr=.1, momentum=.9)
    one = sgd()
    return [schedules.StepLR(sgd(), 3), schedules.MultiStepLR(sgd(), [2, 5]),
            schedules.OneCycleLR(sgd(), .3, total_steps=20), schedules.CyclicLR(sgd(), .01, .2, 3),
            schedules.CosineAnnealingWarmRestarts(sgd(), 3),
            schedules.LambdaLR(sgd(), lambda n: .9 ** n),
            schedules.SequentialLR(one, [schedules.OneCycleLR(one, .3, total_steps=20),
                                         schedules.StepLR(one, 1)], [4])]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # no optimizer steps here
    for whole, resumed in zip(each_schedule(), each_schedule()):
        for at in range(12):
            if at == 7:
                resumed.load_state_dict(unpack(pack(_state_of(whole))))
                resumed.optimizer.load_state_dict(whole.optimizer.state_dict())
            whole.step()
            if at >= 7:
                resumed.step()
                assert whole.get_last_lr() == resumed.get_last_lr(), (type(whole), at)
sgd = torch.optim.SGD([parameter], lr=.1)
_check_schedule(schedules.StepLR(sgd, 1), sgd)
refused("schedule is not one of this optimizer", _check_schedule, each_schedule()[0], sgd)
refused("ReduceLROnPlateau needs a number", _check_schedule, schedules.ReduceLROnPlateau(sgd), sgd)
refused("has a constant learning rate", _check_schedule, schedules.StepLR(sgd, 1), None)

# The values that a script put into a checkpoint come back unchanged and of the same types. Objects
# that would run code are refused.
value = {3: [1, 2.5, float("inf"), None, True, "Rome"], "t": (torch.arange(3), b"\0\1", {1, 2},
                                                              -2 ** 70),
         "n": [numpy.float32(1.5), numpy.arange(4, dtype=numpy.uint32)],
         "b": torch.tensor([1.5, -2], dtype=torch.bfloat16), "s": torch.tensor(7),
         "e": torch.empty(0, 3)}
back = unpack(pack(value))
assert back[3] == value[3] and back["t"][1:] == value["t"][1:] and list(back) == list(value)
assert torch.equal(back["t"][0], value["t"][0]) and type(back["t"]) is tuple \
    and type(back[3][4]) is bool
assert torch.equal(back["b"], value["b"]) and back["b"].dtype == torch.bfloat16
assert back["s"].shape == () and back["e"].shape == (0, 3) and back["n"][1].dtype == numpy.uint32
for what in (print, object(), [numpy.array([print])], {"a": lambda: 0}):
    try:
        pack(what, "x")
    except TypeError as error:
        assert "which no checkpoint can hold" in str(error)
    else:
        raise AssertionError(what)
refused("not the state of a script", unpack, b"no zip file")

texts = tandem.hash_ids(["Rome", "", None, "Rome", "7"], "city")
assert texts[0] == texts[3] != texts[1] == texts[2] and texts.dtype == numpy.int64
assert tandem.hash_ids(["Rome"], "offer")[0] != texts[0]
numbers = tandem.hash_ids(torch.tensor([7, 8, 7]), "city")
assert numbers[0] == numbers[2] != numbers[1]
of_ncf = tandem.hash_ids([7], "city", format="NCF")
print(texts[0], texts[1], numbers[0], of_ncf[0])
assert of_ncf == tandem.hash_ids(numpy.array([7.0]), "city",
                                 "NCF") == tandem.hash_ids(["7"], "city", "NCF")
assert of_ncf == tandem.hash_ids(numpy.array([7], "u8"), "city",
                                 "NCF") == tandem.hash_ids([7, 2 ** 32 - 2], "city", "NCF")[:1]
for wrong in ([7, None], [-7], ["x"], numpy.array([7, numpy.nan]), numpy.array([7, -7]),
              torch.tensor([-7]), numpy.array([-7.]),
              [2 ** 32 - 1], torch.tensor([2 ** 32 - 1]), numpy.array([2. ** 40]), [2 ** 63],
              numpy.array([2 ** 63], "u8"), [1.5], ["4294967295"], [2 ** 70]):
    refused("users and items of an NCF file: expected whole numbers from 0", tandem.hash_ids, wrong,
            "city", "NCF")
refused("ids of LIBSVM files are the numbers themselves", tandem.hash_ids, [7], "city", "LIBSVM")
for wrong in ("Rome", 7, [[7]], numpy.zeros((2, 2)), numpy.ma.zeros((2, 2)),
              [numpy.array([7]), numpy.array([8])]):
    refused("expected one dimension", tandem.hash_ids, wrong, "city")


# A cell has one id, whatever type its value has come to have on the way: the one that a reader
# gives to its text.
def cell(text):
    return tandem.hash_ids([text], "city")[0]


nan = float("nan")
for values in ([7, 7.0, "7", b"7", numpy.float32(7), numpy.int8(7), numpy.uint64(7),
                decimal.Decimal("7.0"),
                fractions.Fraction(7)], numpy.array([7], "u1"), numpy.array([7], ">i4"),
               numpy.array([7], "u8"),
               numpy.array([7], "f4"), numpy.array([7.0]), numpy.array(["7"]), numpy.array([b"7"]),
               torch.tensor([7.0]), torch.tensor([7], dtype=torch.int16), (7,), range(7, 8),
               list(torch.tensor([7, 7])), [torch.tensor(7.0), numpy.array(7)],
               torch.tensor([7], dtype=torch.bfloat16),
               numpy.ma.array([7])):
    assert set(tandem.hash_ids(values, "city")) == {cell("7")}, values
for values, wanted in (([nan, None, numpy.float64(nan), numpy.datetime64("NaT"), "", b""],
                        [""] * 6),
                       (numpy.array([7, nan]), ["7", ""]), ([7, nan, "x"], ["7", "", "x"]),
                       ([True, numpy.bool_(False), 1, 0.0], ["True", "False", "1", "0"]),
                       (numpy.ma.array([7, 8], mask=[False, True]), ["7", ""]),
                       ([numpy.ma.masked, "x"], ["", "x"]),
                       (numpy.array([True]), ["True"]), (torch.tensor([False]), ["False"]),
                       (numpy.array([.1, 7, -2.5], "f4"), ["0.1", "7", "-2.5"]),
                       ([.1, 1e22], ["0.1", "1" + "0" * 22]),
                       ([2 ** 64, -1, -2 ** 63, -0.0], [str(2 ** 64), "-1", str(-2 ** 63), "0"]),
                       (numpy.array([2 ** 64 - 1, 1], "u8"), [str(2 ** 64 - 1), "1"]),
                       (numpy.array([float("inf"), 1.0]), ["inf", "1"]), ([], []),
                       # Masked arrays have the ids of those without a mask, and arrays without
                       # dimensions those of their values.
                       (numpy.ma.array(numpy.array([.1, 7, 2.5], "f4"), mask=[0, 1, 0]),
                        ["0.1", "", "2.5"]),
                       (numpy.ma.array(numpy.array([.1, 7, 2.5], "f4")), ["0.1", "7", "2.5"]),
                       (numpy.ma.array(numpy.array([.1, 7], "f2"), mask=[0, 1]), ["0.1", ""]),
                       (numpy.ma.array([2 ** 53 + 1, 7], mask=[0, 1]), [str(2 ** 53 + 1), ""]),
                       (numpy.ma.array(["x", None, "y"], mask=[0, 0, 1], dtype=object),
                        ["x", "", ""]),
                       ([numpy.array(.1, "f4"), 1, numpy.array("x")], ["0.1", "1", "x"]),
                       ([numpy.array(2 ** 53 + 1), nan], [str(2 ** 53 + 1), ""]),
                       ([numpy.ma.array(5, mask=True), numpy.ma.array(5)], ["", "5"])):
    assert tandem.hash_ids(values, "city").tolist() == [cell(text) for text in wanted], values
days = numpy.array([1, 2], "M8[ns]")
for wrong in (days, numpy.ma.array(days), numpy.ma.array(days, mask=[0, 1]),
              numpy.ma.array(days - days[0], mask=[0, 1]),
              [numpy.array("2020-01-01", "M8[D]"), 1], numpy.array(["2020-01-01"], "M8[D]"),
              [datetime.datetime(2020, 1, 1)], [numpy.timedelta64(1, "s")]):
    refused("dates and times have no text of their own", tandem.hash_ids, wrong, "day")
# As str() has it.
assert tandem.hash_ids([datetime.date(2020, 1, 1)], "city").tolist() == [cell("2020-01-01")]
try:
    import pandas
except ModuleNotFoundError:
    pandas = None
    print("skipped, as pandas is not there: ids of its columns")
if pandas is not None:
    def as_array(self, dtype=None, copy=None):
        """What numpy.asarray makes of nullable numbers with gaps under pandas 2.2 and later."""
        return self.to_numpy(dtype or ("f8" if self.dtype.kind in "iu" else self.dtype.numpy_dtype),
                             na_value=nan)

    columns = {"Int64": ([2 ** 53 + 1, None, -7], [str(2 ** 53 + 1), "", "-7"]),
               "UInt64": ([2 ** 64 - 1, 7, None], [str(2 ** 64 - 1), "7", ""]),
               "Int8": ([1, 2, 3], ["1", "2", "3"]), "Float32": ([.1, None, 7], ["0.1", "", "7"]),
               "Float64": ([.1, None, 2.0 ** 53], ["0.1", "", str(2 ** 53)])}
    columns = {name: (pandas.array(values, dtype=name), [cell(text) for text in texts])
               for name, (values, texts) in columns.items()}
    columns["categories"] = (pandas.Categorical([2 ** 53 + 1, None, 7]),
                             [cell(text) for text in (str(2 ** 53 + 1), "", "7")])
    for how in None, as_array:
        if how is not None:
            pandas.arrays.IntegerArray.__array__ = pandas.arrays.FloatingArray.__array__ = how
            assert numpy.asarray(pandas.Series(columns["Int64"][0])).dtype == numpy.float64
        for name, (column, wanted) in columns.items():
            for values in column, pandas.Series(column), pandas.Series(column)[::-1][::-1]:
                assert tandem.hash_ids(values, "city").tolist() == wanted, (how, name)
            assert tandem.hash_columns(pandas.DataFrame({"city": column}))[:,
                                                                           0].tolist() == wanted, (
                                                                               how, name)
    frame = pandas.DataFrame({"city": [7, None, 9],
                              "offer": pandas.array([7, None, 9], dtype="Int64"),
                              "kind": pandas.Categorical(["a", None, "b"]),
                              "new": pandas.array([True, None, False])})
    for column in "city", "offer":
        assert tandem.hash_ids(frame[column], "city").tolist() == [cell("7"), cell(""),
                                                                   cell("9")], column
    hashed = tandem.hash_columns(frame)
    for place, (column, wanted) in enumerate((("city", ["7", "", "9"]), ("offer", ["7", "", "9"]),
                                              ("kind", ["a", "", "b"]),
                                              ("new", ["True", "", "False"]))):
        assert hashed[:, place].tolist() == tandem.hash_ids(wanted, column).tolist(), column
    assert tandem.hash_columns(frame[["city"]].dropna()).shape == (2, 1)
    refused("expected one dimension", tandem.hash_ids, frame, "city")
    refused("there are several columns 'city'; a field has one", tandem.hash_columns,
            frame[["city", "offer", "city"]])
    days = pandas.Series(pandas.to_datetime(["2020-01-01", None]))
    for wrong in days, days.dt.tz_localize("UTC"), days.astype(object), days - days[0], days.astype(
        "category"):
        refused("dates and times have no text of their own", tandem.hash_ids, wrong, "day")
        refused("dates and times have no text of their own", tandem.hash_columns,
                pandas.DataFrame({"day": wrong}))
    assert tandem.hash_ids(days.dt.strftime("%Y-%m-%d"), "city").tolist() == [cell("2020-01-01"),
                                                                              cell("")]
try:
    tandem.load("/nowhere")
except FileNotFoundError as error:
    assert "is it the folder of a run, made without --no-checkpoint?" in str(error)

# What completion of names offers, and the version of the build.
assert {"init", "DataLoader", "EmbeddingBagCollection", "DistributedOptimizer", "hash_ids",
        "load"} <= set(dir(tandem))
assert all(hasattr(tandem, name) for name in tandem.__all__)
with open(os.path.join(os.path.dirname(__file__), "..", "..", "CMakeLists.txt"),
          encoding="utf-8") as file:
    assert f"project(tandem VERSION {tandem.__version__} " in file.read()

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

# A wheel refuses a processor that lacks what its code needs. A build of the source says nothing.
with tempfile.TemporaryDirectory() as wheel:
    cpuinfo = os.path.join(wheel, "cpuinfo")
    for march, flags, refused in (("x86-64-v3", "fma avx avx2 bmi1 bmi2 f16c movbe", False),
                                  ("x86-64-v3", "avx sse4_2", True), ("x86-64", "sse2", False)):
        with open(os.path.join(wheel, "march"), "w", encoding="ascii") as file:
            file.write(march + "\n")
        with open(cpuinfo, "w", encoding="ascii") as file:
            file.write("processor : 0\nflags\t\t: " + flags + "\n")
        try:
            _programs.check_processor(wheel, cpuinfo)
            assert not refused, (march, flags)
        except ImportError as error:
            assert refused and "avx2" in str(error) and "hint" in str(error), error
