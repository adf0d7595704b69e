"""Ids of a batch and their rows, with torchrec's names and shapes."""
from __future__ import annotations

import copy
import ctypes
import zlib
from typing import Any, Iterable, Optional, Sequence, Union

import numpy
import torch

from tandem import _abi
from tandem.tables import Table, Tables

# _abi.Field
_FIELD = numpy.dtype([("ids", "u8"), ("count", "i8"), ("stride", "i8"), ("offsets", "u8"),
                      ("weights", "u8")])


class JaggedTensor:
    """Rows of a field's ids: values() [ids, dim]; lengths() [samples]; offsets() [samples + 1].
    Made of lengths or of offsets, int64; with both or none of them: ValueError."""

    def __init__(self, values: torch.Tensor, lengths: Optional[torch.Tensor] = None,
                 offsets: Optional[torch.Tensor] = None) -> None:
        if (lengths is None) == (offsets is None):
            raise ValueError(f"{type(self).__name__}: give lengths or offsets, one of the two")
        self._values = as_tensor("values", values)
        self._offsets: torch.Tensor = as_tensor("offsets", offsets) if lengths is None else \
            _offsets_of(as_tensor("lengths", lengths))

    def values(self) -> torch.Tensor:
        """[ids, dim] of rows; [ids] of a KeyedJaggedTensor."""
        return self._values

    def offsets(self) -> torch.Tensor:
        """int64: where the ids of each sample begin, and where the last one's end."""
        return self._offsets

    def lengths(self) -> torch.Tensor:
        """int64: how many ids each sample has."""
        return self._offsets[1:] - self._offsets[:-1]


def _offsets_of(lengths: Any) -> torch.Tensor:
    out = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
    torch.cumsum(lengths.reshape(-1), 0, out=out[1:])
    return out


class KeyedJaggedTensor(JaggedTensor):
    """The ids of several fields of a batch, field by field: values int64 [ids]; lengths [fields *
    samples] or offsets [fields * samples + 1]; weights float [ids]. ValueError: no keys, or lengths
    that they do not divide."""

    def __init__(self, keys: Iterable[str], values: torch.Tensor,
                 weights: Optional[torch.Tensor] = None, lengths: Optional[torch.Tensor] = None,
                 offsets: Optional[torch.Tensor] = None) -> None:
        super().__init__(values, lengths, offsets)
        self._keys = list(keys)
        self._weights = None if weights is None else as_tensor("weights", weights)
        if len(self._keys) == 0 or (self._offsets.numel() - 1) % len(self._keys) != 0:
            raise ValueError(f"KeyedJaggedTensor: {self._offsets.numel() - 1} lengths for "
                             f"{len(self._keys)} keys; expected as many for each key")

    def keys(self) -> list[str]:
        """The fields, in the order of their ids."""
        return self._keys

    def weights_or_none(self) -> Optional[torch.Tensor]:
        """float [ids], or None: no weights."""
        return self._weights


class KeyedTensor:
    """Pooled rows of a batch. ["city"]: [samples, dim] of a field; values(): [samples, sum of
    dims], in the order of keys(); table("ids"): [samples, fields, dim]."""

    def __init__(self, tables: Sequence[Table], cells: dict[str, torch.Tensor]) -> None:
        self._tables, self._cells = tables, cells

    def keys(self) -> list[str]:
        """The fields, in the order of values()."""
        return [f for table in self._tables for f in table.fields]

    def values(self) -> torch.Tensor:
        """float32 [samples, sum of dims]."""
        flat = [self._cells[table.name].flatten(1) for table in self._tables]
        return flat[0] if len(flat) == 1 else torch.cat(flat, 1)

    def table(self, name: str) -> torch.Tensor:
        """float32 [samples, fields, dim] of the table."""
        return self._cells[name]

    def __getitem__(self, field: str) -> torch.Tensor:
        """float32 [samples, dim] of the field. KeyError: there is none of that name."""
        for table in self._tables:
            if field in table.fields:
                return self._cells[table.name][:, table.fields.index(field)]
        raise KeyError(f"no field {field!r}; there are {self.keys()}")


class FieldIds:
    """The ids of one field: ids int64; offsets [samples + 1] or None (one a sample); weights or
    None. kept: the places of these ids in a field that has padding, too, or None."""

    def __init__(self, name: str, ids: Any, offsets: Any = None,
                 weights: Optional[torch.Tensor] = None, length: Optional[int] = None) -> None:
        self.name = name
        self.unclear = False  # the offsets may have the end already: BatchIds decides
        self.ended: Optional[bool] = None  # whether they were given with it
        self.kept: Optional[torch.Tensor] = None
        self.given = (ids, offsets, weights)
        self.ids = _integers(f"ids of field '{name}'", ids)
        # The ids of each sample if all samples have as many (a [samples, length] tensor), or None.
        self.length = length
        self.offsets = None if offsets is None else \
            _integers(f"offsets of field '{name}'", offsets).contiguous()
        if self.offsets is not None and self.offsets.dim() != 1:
            raise ValueError(f"offsets of field '{name}': shape {tuple(self.offsets.shape)}, "
                             "expected one dimension")
        self.weights = None
        if weights is not None:
            weights = as_tensor(f"weights of field '{name}'", weights)
            _check_device(f"weights of field '{name}'", weights)
            if tuple(weights.shape) != tuple(self.ids.shape):
                raise ValueError(f"weights of field '{name}': shape {tuple(weights.shape)}, "
                                 f"expected that of its ids, {tuple(self.ids.shape)}")
            self.weights = weights.detach().to(torch.float32).contiguous()
        if self.ids.dim() != 1:
            raise ValueError(f"ids of field '{name}': shape {tuple(self.ids.shape)}, expected "
                             "[samples] or (values, offsets)")

    def freeze(self) -> None:
        """Copies ids, offsets and weights: later changes of what was given change nothing."""
        self.ids = self.ids.clone()
        self.offsets = None if self.offsets is None else self.offsets.clone()
        self.weights = None if self.weights is None else self.weights.clone()

    def bounds(self) -> torch.Tensor:
        """The places at which the ids of each sample begin, and the end of the last sample."""
        return torch.arange(self.ids.numel() + 1) if self.offsets is None else self.offsets

    def same_ids(self, other: FieldIds) -> bool:
        """Whether both have the same ids in the same order."""
        return torch.equal(self.ids, other.ids)

    def same_bags(self, other: FieldIds) -> bool:
        """Whether the samples begin and end at the same places. Unclear offsets are read like those
        of the other."""
        if self.unclear and self.samples() == other.samples() + 1:
            self.drop_end()
        return torch.equal(self.bounds(), other.bounds())

    def same(self, other: FieldIds) -> bool:
        """Whether the field has the same rows in the same samples; missing weights are ones."""
        if not self.same_ids(other) or not self.same_bags(other):
            return False
        if self.weights is None and other.weights is None:
            return True
        return torch.equal(*[torch.ones(f.ids.shape) if f.weights is None else f.weights
                             for f in (self, other)])

    def samples(self) -> int:
        """The number of samples."""
        return self.ids.numel() if self.offsets is None else self.offsets.numel() - 1

    def read_offsets(self, include_last_offset: Optional[bool]) -> None:
        """Makes the offsets end with the number of ids. include_last_offset: as in
        torch.nn.EmbeddingBag: True: they do already; False: there is one for each sample; None: as
        False, but unclear if the last one is the number of ids: it may belong to a last sample
        without ids, or be the end."""
        count = self.ids.numel()
        ends = self.offsets.numel() > 0 and int(self.offsets[-1]) == count
        if include_last_offset and not ends:
            raise ValueError(f"offsets of field '{self.name}': the last one is "
                             f"{int(self.offsets[-1]) if self.offsets.numel() else 'missing'}, and "
                             f"with include_last_offset=True it is the number of ids, {count}")
        if not include_last_offset:
            self.offsets = torch.cat([self.offsets, torch.tensor([count])])
        self.unclear, self.ended = ends and include_last_offset is None, bool(include_last_offset)

    def without(self, padding: Optional[int]) -> FieldIds:
        """The field without ids that are `padding`."""
        keep = None if padding is None else self.ids != padding
        if keep is None or bool(keep.all()):
            return self
        field = FieldIds(self.name, self.ids[keep], _offsets_of(keep)[self.bounds()],
                         None if self.weights is None else self.weights[keep])
        field.kept = keep.nonzero().squeeze(1)
        return field

    def pooled(self, rows: torch.Tensor) -> torch.Tensor:
        """The (weighted) sum of the rows of each sample's ids: [samples, dim] of [ids, dim]."""
        bounds = self.bounds()
        sample = torch.repeat_interleave(torch.arange(len(bounds) - 1), bounds[1:] - bounds[:-1])
        if self.weights is not None:
            rows = rows * self.weights.unsqueeze(1)
        return rows.new_zeros(len(bounds) - 1, rows.shape[1]).index_add(0, sample, rows)

    def drop_end(self) -> None:
        """Removes the last sample, which has no ids: the offsets had the end already."""
        self.offsets, self.unclear, self.ended = self.offsets[:-1], False, True

    def fill(self, field: _abi.Field) -> None:
        """Fills in the field for the C interface; it points into this object's tensors."""
        field.ids = self.ids.data_ptr() or None
        field.count = self.ids.numel()
        field.stride = self.ids.stride(0) if self.ids.numel() > 1 else 1
        field.offsets = None if self.offsets is None else self.offsets.data_ptr()
        field.weights = None if self.weights is None else self.weights.data_ptr()
        if field.count == 0 and self.offsets is not None:
            field.offsets = None  # no ids: none in any sample


def _check_device(what: str, values: torch.Tensor) -> None:
    if values.device.type != "cpu":
        raise ValueError(f"{what}: on {values.device}, expected them on the CPU, where rows are "
                         "fetched; say .cpu()")


def _sizes_of(beside: Any, without: list[Any]) -> set[int]:
    """The first extents of the tensors and arrays of a batch, but for these."""
    parts = beside.values() if isinstance(beside, dict) else beside \
        if isinstance(beside, (tuple, list)) else []
    return {len(part) for part in parts if isinstance(part, (torch.Tensor, numpy.ndarray))
            and part.ndim > 0
            and all(part is not other for other in without)}


_INTEGERS = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_HASH = "hash texts with tandem.hash_columns or tandem.hash_ids"


def is_integers(values: Union[torch.Tensor, numpy.ndarray]) -> bool:
    """Whether a loader may find ids by this type: not bool, which masks have."""
    if isinstance(values, numpy.ndarray):
        return values.dtype.kind in "iu"
    return values.dtype == torch.int64 or (values.dtype in _INTEGERS and values.dtype != torch.bool)


def as_tensor(what: str, values: Any, want: str = "numbers") -> torch.Tensor:
    """A tensor, an array, a pandas column or a list as a tensor. ValueError: values that are no
    numbers."""
    if isinstance(values, torch.Tensor):
        return values
    try:
        return _from_array(numpy.asarray(values)) if hasattr(values, "__array__") \
            else torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what}: {error}; expected {want}") from None


def _integers(what: str, values: Any) -> torch.Tensor:
    values = as_tensor(what, values, f"integers; {_HASH}")
    _check_device(what, values)
    if values.numel() == 0:  # torch makes floats of an empty list
        return values.detach().to(torch.int64)
    if values.dtype == torch.int64:
        return values.detach()
    if values.dtype in _INTEGERS:
        return values.detach().to(torch.int64)
    hint = "say .long(), or .astype(\"int64\"), if these are whole numbers" \
        if values.dtype.is_floating_point else _HASH
    raise ValueError(f"{what}: dtype {values.dtype}, expected torch.int64; {hint}")


def _from_array(values: numpy.ndarray) -> torch.Tensor:
    """The tensor of an array. Integers of any size and order of bytes become int64; unsigned ones
    of 64 bits keep their bits. numpy converts objects, such as pandas' own integers."""
    if values.dtype.kind == "O":
        values = numpy.array(values.tolist())
    if values.dtype.kind in "iu":
        values = numpy.ascontiguousarray(values, dtype=numpy.int64)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _has_parts(value: Any) -> bool:
    """Whether it is (values, offsets) or (values, offsets, weights): a tuple of lists, tensors or
    arrays, or a list of tensors or arrays, as torch's default_collate makes it. A list of numbers
    or of lists has a sample in each place. The length does not matter: the last batch of an epoch
    may have two samples."""
    if not isinstance(value, (tuple, list)) or len(value) == 0:
        return False
    lists = (list, tuple) if isinstance(value, tuple) else ()
    return any(isinstance(part, lists) or getattr(part, "ndim", 0) > 0 for part in value)


def one_field(name: str, value: Any, include_last_offset: Optional[bool] = None) -> FieldIds:
    """The ids of a field, from a form that BatchIds lists."""
    if isinstance(value, FieldIds):
        return value
    if hasattr(value, "values") and hasattr(value, "offsets") and callable(value.values):
        weights = value.weights_or_none() if hasattr(value, "weights_or_none") else None
        return FieldIds(name, value.values(), value.offsets(), weights)
    if _has_parts(value):
        if len(value) not in (2, 3):
            raise ValueError(f"ids of field '{name}': a {type(value).__name__} of {len(value)} "
                             "parts, expected (values, offsets) or (values, offsets, weights); "
                             "give a tensor or a list of lists with the ids of each sample")
        field = FieldIds(name, value[0], value[1], value[2] if len(value) == 3 else None)
        field.read_offsets(include_last_offset)
        return field
    value = _integers(f"ids of field '{name}'", value)
    if value.dim() == 2:
        samples, length = value.shape
        return FieldIds(name, value.reshape(-1),
                        torch.arange(0, samples * length + 1, length) if length else
                        torch.zeros(samples + 1, dtype=torch.int64), length=length)
    return FieldIds(name, value)


def _joined_field(name: str, parts: Sequence[tuple[Optional[FieldIds], int]]) -> FieldIds:
    """The field in a batch of all samples of several batches. parts: the field there, or None if
    the batch lacks it; and the number of its samples."""
    there = [field for field, _ in parts if field is not None]
    offsets = weights = None
    if len(there) < len(parts) or any(field.offsets is not None for field in there):
        offsets = _offsets_of(torch.cat([
            torch.zeros(samples, dtype=torch.int64) if field is None else field.bounds().diff()
            for field, samples in parts]))
    if any(field.weights is not None for field in there):
        weights = torch.cat([torch.ones(field.ids.shape) if field.weights is None else field.weights
                             for field in there])
    return FieldIds(name, torch.cat([field.ids for field in there]), offsets, weights)


class BatchIds:
    """The ids of a batch, by field, from one of these forms:

    - an int64 tensor [samples, fields], all fields of the job in their order ([samples] if it has
      one)
    - a dict from field to [samples], [samples, ids of each], (values, offsets), (values, offsets,
      weights) or a JaggedTensor. A list of numbers or lists is one of the first two; a tuple, or a
      list of tensors, one of the others
    - a KeyedJaggedTensor, this package's or torchrec's

    include_last_offset: whether the offsets of (values, offsets) end with the number of ids,
    [samples + 1], as torch.nn.EmbeddingBag has it; None: they are [samples], as is its default,
    unless other fields of the batch, or tensors `beside` them (labels), show that they have the
    end. look: no loader gives the batch; unclear offsets are then like those of the loader's
    batches.

    ValueError: ids of another dtype, shape or device, or of fields that the job does not have.
    """

    def __init__(self, tables: Tables[Any], ids: Any, include_last_offset: Optional[bool] = None,
                 beside: Any = None, look: bool = False) -> None:
        self.source, self.include_last_offset = ids, include_last_offset
        self.columns: Optional[torch.Tensor] = None  # [samples, fields], where the ids come so
        fields = tables.loaded
        self._fields: dict[str, FieldIds] = {}
        self._rows: dict[str, Optional[FieldIds]] = {}
        self._padding, self._fixed = tables.padding, tables.fixed
        if isinstance(ids, dict):
            for name, value in ids.items():
                name = self._field_name(tables, name)
                told = include_last_offset
                if told is None:
                    told = tables.last_offsets.get(name)
                self._add(name, one_field(name, value, told))
        elif hasattr(ids, "keys") and hasattr(ids, "lengths"):
            self._from_keyed(tables, ids)
        else:
            tensor = _integers("ids of a batch", ids)
            if tensor.dim() == 1 and len(fields) == 1:
                tensor = tensor.unsqueeze(1)
            if tensor.dim() != 2 or tensor.shape[1] != len(fields):
                raise ValueError(f"ids of a batch: shape {tuple(tensor.shape)}, expected [samples, "
                                 f"{len(fields)}], a column for each of the fields {fields}; or "
                                 "give a dict from field to ids")
            self._names, self.columns, self.samples = fields, tensor, tensor.shape[0]
            return
        self._settle(beside, tables.seen_offsets if look else {})
        sizes = {name: field.samples() for name, field in self.fields.items()}
        if not sizes:
            raise ValueError(f"ids of a batch: none; expected some of the fields {fields}")
        self.samples = next(iter(sizes.values()))
        if len(set(sizes.values())) > 1:
            hint = "; do offsets end with the number of ids? Then say include_last_offset=True " \
                "to tandem.DataLoader" \
                if any(field.offsets is not None for field in self.fields.values()) else ""
            raise ValueError("ids of a batch: fields of different numbers of samples: "
                             f"{sizes}{hint}")

    def _settle(self, beside: Any, seen: dict[str, bool]) -> None:
        """Drops the last offset of an unclear field if the other fields or tensors have one sample
        fewer, and none has the same number; or if they show nothing, and earlier batches had it."""
        unclear = [field for field in self.fields.values() if field.unclear]
        if not unclear:
            return
        clear = {field.samples() for field in self.fields.values() if not field.unclear} or \
            _sizes_of(beside, [part for field in unclear for part in field.given])
        for field in unclear:
            if (field.samples() not in clear and field.samples() - 1 in clear) if clear \
                else seen.get(field.name, False):
                field.drop_end()

    def note_offsets(self, tables: Tables[Any]) -> None:
        """Makes later looks read offsets like those of this batch."""
        for name, field in self._fields.items():
            if field.ended is not None and not field.unclear:
                tables.seen_offsets[name] = field.ended

    @property
    def fields(self) -> dict[str, FieldIds]:
        """FieldIds by name. The first use makes those of a tensor; a step does not need them."""
        if self.columns is not None and not self._fields:
            self._fields = {name: FieldIds(name, self.columns[:, f])
                            for f, name in enumerate(self._names)}
        return self._fields

    def _add(self, name: str, field: FieldIds) -> None:
        if name in self._fields:
            raise ValueError(f"ids of a batch: field '{name}' is there twice; give a field all of "
                             "its ids at once")
        self._fields[name] = field

    def freeze(self) -> None:
        """Copies the ids: the script or its loader may change its own in place."""
        self.columns = None if self.columns is None else self.columns.clone()
        for field in self._fields.values():
            field.freeze()

    @staticmethod
    def joined(parts: Sequence[BatchIds]) -> BatchIds:
        """The ids of several batches as those of one, sample after sample."""
        if len(parts) == 1:
            return parts[0]
        out = copy.copy(parts[0])
        out.samples = sum(part.samples for part in parts)
        out.columns, out._fields, out._rows = None, {}, {}
        if all(part.columns is not None for part in parts):
            out.columns = torch.cat([part.columns for part in parts])
            return out
        for name in dict.fromkeys(name for part in parts for name in part.fields):
            out._fields[name] = _joined_field(name, [(part.fields.get(name), part.samples)
                                                     for part in parts])
        return out

    def check_has(self, names: Iterable[str]) -> None:
        """ValueError: the batch has no ids of one of these fields."""
        has: Any = self._fields if self.columns is None else self._names
        for name in names:
            if name not in has:
                raise ValueError(f"field '{name}': the loader gave no ids for it; add it to "
                                 "`features`")

    def _field_name(self, tables: Tables[Any], name: str) -> str:
        table, place = tables.find(name)
        if name in self._fixed:
            raise ValueError(f"field '{name}': its ids are those of tandem.Embedding('{name}', "
                             "ids=...); give none in `features`")
        if place is not None:
            return name
        if len(table.fields) != 1:
            raise ValueError(f"ids of table {name!r}, which has several fields; name one of "
                             f"{list(table.fields)}")
        return table.fields[0]

    def _from_keyed(self, tables: Tables[Any], ids: Any) -> None:
        if tables.keyed is not None:
            self._fields = tables.keyed(ids)
            return
        keys, offsets = list(ids.keys()), _integers("offsets of a batch", ids.offsets())
        values = _integers("ids of a batch", ids.values())
        weights = ids.weights_or_none() if hasattr(ids, "weights_or_none") else None
        samples = (offsets.numel() - 1) // len(keys)
        if int(offsets[-1]) != values.numel():
            raise ValueError(f"ids of a batch: {values.numel()}, and their offsets end with "
                             f"{int(offsets[-1])}")
        if weights is not None and weights.shape != values.shape:
            raise ValueError(f"ids of a batch: {values.numel()}, and {weights.numel()} weights of "
                             "them")
        for k, name in enumerate(keys):
            part = offsets[k * samples:(k + 1) * samples + 1]
            begin, end = int(part[0]), int(part[-1])
            of_part = None if weights is None else weights[begin:end]
            name = self._field_name(tables, name)
            self._add(name, FieldIds(name, values[begin:end], part - begin, of_part))

    def checksum(self) -> int:
        """A checksum of the ids and their samples."""
        if self.columns is not None:
            return zlib.crc32(self.columns.contiguous().numpy(), self.samples)
        sum_of = 0
        for name in sorted(self.fields):
            field = self.fields[name]
            for part in (field.ids, field.offsets):
                if part is not None:
                    sum_of = zlib.crc32(part.contiguous().numpy(), sum_of)
        return sum_of

    def count(self, table: Table) -> int:
        """The number of ids of the table in this batch."""
        if self._plain():
            return self.samples * len(table.fields)
        return sum(field.ids.numel() for field in map(self.rows, table.fields) if field is not None)

    def rows(self, name: str) -> Optional[FieldIds]:
        """The ids of a field that have rows: without padding, and fixed ones as those of the first
        sample. None: the batch has no such field."""
        if name not in self._rows:
            if name in self._fixed:
                ends = torch.full((self.samples + 1,), len(self._fixed[name]))
                ends[0] = 0
                found = FieldIds(name, self._fixed[name], ends)
            else:
                given = self.fields.get(name)
                found = given and given.without(self._padding.get(name))
            self._rows[name] = found
        return self._rows[name]

    def _plain(self) -> bool:
        """Whether each id of a tensor has a row, and there are no others."""
        return self.columns is not None and not self._padding and not self._fixed

    def fill(self, tables: Tables[Any]) -> tuple[Any, Any]:
        """The fields, and which tables are unpooled, as tandem_give takes them; the fields point
        into this object's tensors."""
        given = (_abi.Field * max(1, len(tables.fields)))()
        if self.columns is not None and self._plain():
            first, (stride, apart) = self.columns.data_ptr(), self.columns.stride()
            fields = numpy.frombuffer(given, _FIELD)[:len(tables.fields)]  # at once, not one by one
            fields["ids"] = 0 if first == 0 else first + 8 * apart * numpy.arange(len(fields))
            fields["count"], fields["stride"] = self.samples, stride if self.samples > 1 else 1
        else:
            for place, name in enumerate(tables.fields):
                field = self.rows(name)
                if field is not None:
                    field.fill(given[place])
        return given, (ctypes.c_uint8 * max(1, len(tables.all)))(
            *[table.name in tables.unpooled for table in tables.all])


class StepIds:
    """The ids of a step: of its batches, one after the other, and of all of them joined."""

    def __init__(self, parts: Sequence[BatchIds]) -> None:
        self.parts, self.joined = parts, BatchIds.joined(parts)

    def split(self, table: Table, unpooled: bool, cells: torch.Tensor) -> list[torch.Tensor]:
        """The cells of each batch, of those of all."""
        if len(self.parts) == 1:
            return [cells]
        return [torch.cat([cells[place] for place in places])
                for places in self._places(table, unpooled)]

    def join(self, table: Table, unpooled: bool, like: Sequence[torch.Tensor]
             ) -> Optional[torch.Tensor]:
        """The gradients of the cells that split() has made, joined; None: there are none."""
        if len(self.parts) == 1 or all(cells.grad is None for cells in like):
            return like[0].grad
        count = self.joined.count(table) if unpooled else self.joined.samples
        out = like[0].new_zeros(count, *like[0].shape[1:])
        for cells, places in zip(like, self._places(table, unpooled)):
            if cells.grad is not None:
                sizes = [place.stop - place.start for place in places]
                for place, gradient in zip(places, cells.grad.split(sizes)):
                    out[place] += gradient
        return out

    def _places(self, table: Table, unpooled: bool) -> list[list[slice]]:
        """For each batch, where its cells are among those of all: cells of ids follow one another
        field by field, in each field batch by batch. Batches share the cells of fixed ids."""
        begin, places = 0, [[] for _ in self.parts]
        for name in table.fields if unpooled else [""]:
            count = 0
            for part, of_part in zip(self.parts, places):
                begin += 0 if name in part._fixed else count
                field = part.rows(name) if unpooled else None
                count = part.samples if not unpooled else field.ids.numel() if field else 0
                of_part.append(slice(begin, begin + count))
            begin += count
        return places
