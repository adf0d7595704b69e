"""The tables of a job or of a checkpoint: names, dims, fields, and the rows of a checkpoint."""
from __future__ import annotations

import math
import operator
import re
from typing import Any, Callable, Generic, Iterable, Optional, TypeVar

import numpy


class Table:
    """name; dim: floats a row; fields: the names of the fields whose ids are keys of the table."""

    def __init__(self, index: int, name: str, dim: int, fields: Iterable[str]) -> None:
        self.index, self.name, self.dim, self.fields = index, name, dim, tuple(fields)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, dim={self.dim}, fields={list(self.fields)})"


_Kind = TypeVar("_Kind", bound=Table)


class Tables(Generic[_Kind]):
    """The tables for which modules of tandem.nn are made.

    who: their owner, for errors. all: in their order; with_fields: without KEY_VALUE tables, which
    a model does not read; by_name; fields: of all tables, in order.
    unpooled: names of tables whose ids are cells of their own. By field: last_offsets:
    include_last_offset, where a module has said so; seen_offsets: whether the offsets of batches
    end with the number of ids; padding: the id without a row; fixed: ids that each batch has
    besides those of the loader. keyed: makes fields of a KeyedJaggedTensor, whose keys are not
    those of the job; None: they are.
    """

    def __init__(self, who: str, tables: Iterable[_Kind]) -> None:
        self.who, self.all = who, list(tables)
        self.with_fields = [table for table in self.all if table.fields]
        self.by_name = {table.name: table for table in self.all}
        self.fields = [field for table in self.all for field in table.fields]
        self.unpooled: set[str] = set()
        self.last_offsets: dict[str, bool] = {}
        self.seen_offsets: dict[str, bool] = {}
        self.padding: dict[str, int] = {}
        self.fixed: dict[str, Any] = {}
        self.keyed: Optional[Callable[[Any], dict[str, Any]]] = None

    @property
    def loaded(self) -> list[str]:
        """The fields whose ids the loader gives, in order."""
        return [field for field in self.fields if field not in self.fixed]

    def pad(self, fields: Iterable[str], padding_idx: Optional[int]) -> None:
        """Gives the fields a padding id. ValueError: a field has another one."""
        if padding_idx is not None:
            fields = list(fields)
            self.check_padding([f for f in fields if f in self.padding], padding_idx)
            self.padding.update(dict.fromkeys(fields, operator.index(padding_idx)))

    def check_padding(self, fields: Iterable[str], padding_idx: Optional[int]) -> None:
        """ValueError: one of the fields has another padding id, or has one and this is None."""
        for field in fields if self.padding else ():
            known = self.padding.get(field)
            if known != padding_idx:
                raise ValueError(f"field '{field}': padding_idx={padding_idx}, and another module "
                                 f"says {known}; all modules of a field say the same")

    def find(self, name: str) -> tuple[_Kind, Optional[int]]:
        """The table of this name, or the table of the field of this name and the field's place in
        it. ValueError: there is neither."""
        for table in self.all:
            if name in table.fields:
                return table, table.fields.index(name)
        if name in self.by_name:
            return self.by_name[name], None
        raise ValueError(f"{self.who} has no table or field {name!r}; its tables are "
                         + ", ".join(repr(t) for t in self.all))


# ---- rows of a checkpoint -----------------------------------------------------------------------

class CatchUp:
    """Rows of an ADAM with catch_up, which move in steps that they are not in. text: the message
    Optimizer, as in the manifest; now: the steps that the table has taken."""

    _BLOCK = 4096  # rows, so that the arrays of a step stay in the cache

    def __init__(self, text: str, now: int) -> None:
        words = dict(re.findall(r"(\w+): *(\S+)", text))
        self.now = now
        self.beta1, self.beta2 = float(words["beta1"]), float(words["beta2"])
        self.learning_rate = float(numpy.float32(words["learning_rate"]))
        self.epsilon = numpy.float32(words["epsilon"])

    def weights(self, stored: numpy.ndarray, slots: numpy.ndarray) -> numpy.ndarray:
        """float32 [rows, dim]: the weights after `now` steps. stored, slots: those of each row's
        last update. optim/catch_up_adam.cc has the formula, and computes in the same precision."""
        moving = int(-24 / math.log2(self.beta1 / math.sqrt(self.beta2)))
        last = numpy.ascontiguousarray(slots[:, -1]).view("<u4").astype(numpy.int64)
        missed = numpy.where(last == 0, 0, (self.now - last).clip(0, moving))
        weights = numpy.array(stored)
        order = numpy.argsort(missed, kind="stable")
        order = order[numpy.searchsorted(missed[order], 1):]
        for begin in range(0, len(order), self._BLOCK):
            rows = order[begin:begin + self._BLOCK]
            self._move(weights, rows, slots[rows], last[rows], missed[rows])
        return weights

    def _move(self, weights: numpy.ndarray, rows: numpy.ndarray, slots: numpy.ndarray,
              last: numpy.ndarray, missed: numpy.ndarray) -> None:
        dim, moved = weights.shape[1], weights[rows]
        momentum, root = slots[:, :dim], numpy.sqrt(slots[:, dim:2 * dim])
        power1, power2 = self.beta1 ** last[:, None], self.beta2 ** last[:, None]
        decay1, decay2 = self.learning_rate, 1.0
        move, divisor = numpy.empty_like(moved), numpy.empty_like(moved)
        for step in range(1, int(missed.max()) + 1):
            power1, power2 = power1 * self.beta1, power2 * self.beta2
            decay1, decay2 = decay1 * self.beta1, decay2 * self.beta2
            rate = numpy.where(missed[:, None] < step, 0, decay1 / (1 - power1))
            of_root = numpy.sqrt(decay2 / (1 - power2))
            numpy.multiply(rate.astype(numpy.float32), momentum, out=move)
            numpy.multiply(of_root.astype(numpy.float32), root, out=divisor)
            divisor += self.epsilon
            move /= divisor
            moved -= move
        weights[rows] = moved


# The types of values in range files, by the numbers in their headers. numpy has no bfloat16.
TYPES = [numpy.dtype("<f4"), numpy.dtype("<u2"), numpy.dtype("<f2"), numpy.dtype("i1")]
BFLOAT16 = 1
# The head of a row. A weight of int8 is 2^exponent times its integer. updates: the count u of
# updates, which stands for ((16 + u % 16) << u // 16) - 16 updates, or HOT.
HEAD = numpy.dtype([("exponent", "i1"), ("updates", "u1")])
HOT = 255


def _floats(values: numpy.ndarray) -> numpy.ndarray:
    """The values of one of TYPES but int8 as float32; float32 itself stays mapped."""
    if values.dtype == TYPES[BFLOAT16]:  # the upper half of a float32
        return (values.astype("<u4") << 16).view("<f4")
    return values.astype("<f4", copy=False)


class CheckpointRange:
    """A part of a table: keys int64 [rows]; row i of `weights`, `stored` and `slots` belongs to key
    i. These are mapped from the file if it has them as float32; each use of others makes an array.

    ages: uint32 [rows], versions of the range since the last update of each row. candidates: ids
    without a row, with `key`, `count` (updates) and `age`. Both are None if the table has neither
    admission nor eviction. catch_up: of a table whose rows move in steps that they are not in;
    None: `weights` are the stored ones. heads: [rows], with `exponent` (of int8) and `updates` (a
    count of updates in 8 bits, or 255: the row is hot); None unless the table has row_dtype INT8 or
    hot_rows.
    """

    def __init__(self, keys: numpy.ndarray, weights: numpy.ndarray, slots: list[numpy.ndarray],
                 ages: Optional[numpy.ndarray] = None, candidates: Optional[numpy.ndarray] = None,
                 catch_up: Optional[CatchUp] = None, heads: Optional[numpy.ndarray] = None,
                 hot: Optional[numpy.ndarray] = None) -> None:
        """weights, slots: as in the file; the slots may be several arrays, side by side. heads
        tells which rows have their weights in `hot`."""
        self.keys = keys
        self.ages, self.candidates, self.catch_up = ages, candidates, catch_up
        self.heads = heads
        self._weights, self._slots, self._hot = weights, slots, hot

    @property
    def stored(self) -> numpy.ndarray:
        """float32 [rows, dim]: the weights in the file."""
        if self.heads is None or self._hot is None:
            return _floats(self._weights)
        hot = self.heads["updates"] == HOT
        rows = numpy.empty((len(self.keys), self._weights.shape[1]), dtype="<f4")
        rows[hot] = _floats(self._hot)
        rows[~hot] = _floats(self._weights)
        if self._weights.dtype.itemsize == 1:
            rows[~hot] = numpy.ldexp(rows[~hot], self.heads["exponent"][~hot, None])
        return rows

    @property
    def slots(self) -> numpy.ndarray:
        """float32 [rows, slots]: the optimizer state."""
        parts = [_floats(part) for part in self._slots]
        return parts[0] if len(parts) == 1 else numpy.hstack(parts)

    @property
    def weights(self) -> numpy.ndarray:
        """float32 [rows, dim], as a job would read them. With catch_up each use computes them."""
        return self.stored if self.catch_up is None else \
            self.catch_up.weights(self.stored, self.slots)


class CheckpointTable(Table):
    """One table. Besides name, dim and fields:

    keys: int64 [rows], the ids of a script, in no order; weights: float32 [rows, dim]; slots:
    float32 [rows, slots]. The first use of one joins it from its parts; if a table does not fit
    into memory, use the parts.
    parts: a mapped CheckpointRange each. rows: their number. initializer: of rows that the
    checkpoint does not have.
    """

    def __init__(self, index: int, entry: dict[str, Any], parts: list[CheckpointRange],
                 seed: int) -> None:
        super().__init__(index, entry["name"], int(entry["dim"]), entry["fields"])
        self.parts = parts
        self._joined: dict[str, numpy.ndarray] = {}
        self.rows = sum(len(part.keys) for part in parts)
        self.initializer = Initializer(entry["initializer"], seed, self.dim,
                                       entry.get("row_dtype", "F32"))

    def _join(self, what: str) -> numpy.ndarray:
        if what not in self._joined:
            parts = [getattr(part, what) for part in self.parts]
            self._joined[what] = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        return self._joined[what]

    @property
    def keys(self) -> numpy.ndarray:
        """int64 [rows]."""
        return self._join("keys")

    @property
    def weights(self) -> numpy.ndarray:
        """float32 [rows, dim]."""
        return self._join("weights")

    @property
    def slots(self) -> numpy.ndarray:
        """float32 [rows, slots]."""
        return self._join("slots")


_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """Mix64 of base/hash.h."""
    x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & _MASK
    x = ((x ^ x >> 27) * 0x94d049bb133111eb) & _MASK
    return x ^ x >> 31


def _combine(a: int, b: int) -> int:
    """HashCombine of base/hash.h."""
    return _mix((a + 0x9e3779b97f4a7c15 + _mix((b + 0xd1b54a32d192ed03) & _MASK)) & _MASK)


def _hash_name(name: str) -> int:
    """HashName of base/hash.h."""
    h = 0xcbf29ce484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001b3) & _MASK
    return _mix(h)


class Initializer:
    """The initial value of a row. kind: ZERO, CONSTANT, UNIFORM or NORMAL; scale; seed: of the
    table's rows (job/job.cc); row_dtype: F32, BF16, F16 or INT8, to which rows are rounded."""

    def __init__(self, text: str, salt: int, dim: int, row_dtype: str = "F32") -> None:
        self.row_dtype = row_dtype
        words = dict(re.findall(r"(\w+): *(\S+)", text))
        self.kind = words.get("kind", "INITIALIZER_UNSPECIFIED")
        self.scale = float(words.get("scale", 0))
        self.seed = _combine(salt, _hash_name("initial values"))
        if self.kind == "INITIALIZER_UNSPECIFIED":
            self.kind = "UNIFORM"
            self.scale = float(numpy.float32(1) / numpy.sqrt(numpy.float32(dim)))
