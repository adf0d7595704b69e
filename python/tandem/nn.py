"""Modules whose rows live on the servers. They have no parameters: rows come with the batch, and
their gradients leave with optimizer.step(). A step may call a module any number of times."""
from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from types import FrameType
from typing import Any, Iterable, Optional, Sequence, Union

import numpy
import torch
from torch import nn

from tandem.current import current_tables, current_worker
from tandem.sparse import BatchIds, FieldIds, JaggedTensor, KeyedTensor, as_tensor, one_field
from tandem.tables import Table, Tables
from tandem.worker import Worker


def _no_batch(what: str) -> RuntimeError:
    return RuntimeError(f"{what}: there is no batch at hand; rows are fetched ahead for the "
                        "batches of a tandem.DataLoader, so call the model in a loop over one, or "
                        "over job.evaluate()")


_OTHER = ("rows are fetched before the model runs, so pass the ids that the loader gave, "
          "unchanged; compute other ids in `features` of tandem.DataLoader")


def batch_at_hand(worker: Worker, what: str, tables: Iterable[Table], ids: Any
                  ) -> tuple[dict[str, torch.Tensor], BatchIds]:
    """The cells of these tables, and their ids: of the batch at hand, or in a notebook of any."""
    if worker.cells is not None and _same(worker, worker.given, ids):
        return worker.cells, worker.given
    if ids is not None and worker.may_look():
        given = BatchIds(worker.tables, ids, look=True)
        return worker.look_up(given, tables), given
    if worker.cells is None:
        raise _no_batch(what)
    raise ValueError(f"{what}: called with other ids than the batch has; {_OTHER}"
                     + _look_hint(worker))


def _look_hint(worker: Worker) -> str:
    if worker.cluster is None:
        return ""
    hint = "; to look at what it gives for others, call it under torch.no_grad()"
    if worker.looping is not None:
        hint += (f", or leave the loop over epoch {worker.looping.epoch} first (an iterator that a "
                 "variable keeps ends by its close())")
    return hint


def _field_batch(worker: Worker, what: str, table: Table, names: Sequence[str], ids: Any,
                 offsets: Optional[torch.Tensor] = None, weights: Optional[torch.Tensor] = None,
                 include_last_offset: Optional[bool] = None, bags: bool = True
                 ) -> tuple[torch.Tensor, BatchIds, str]:
    """The same for a module of one of these fields: that with the ids. bags: and with the same
    samples."""
    if worker.cells is None and (ids is None or not worker.may_look()):
        raise _no_batch(what)
    if worker.cells is not None:
        try:
            name = _name_of(worker, what, names, ids, offsets, weights, bags)
            return worker.cells[table.name], worker.given, name
        except ValueError:
            if not worker.may_look():
                raise
    padding = worker.tables.padding
    form, name = ids, next((name for name in names if name not in padding), names[0])
    if offsets is not None or weights is not None:
        if offsets is None:
            offsets, include_last_offset = one_field(name, ids).bounds(), True
        form = (_flat(name, ids), offsets, None if weights is None else _flat(name, weights))
    given = BatchIds(worker.tables, {name: form}, include_last_offset or None, look=True)
    return worker.look_up(given, [table])[table.name], given, name


def _name_of(worker: Worker, what: str, names: Sequence[str], ids: Any,
             offsets: Optional[torch.Tensor], weights: Optional[torch.Tensor], bags: bool) -> str:
    """The first of these fields with these ids. Several may have them, and the same rows then."""
    if len(names) > 1 and ids is None:
        raise ValueError(f"{what} of a table with fields {list(names)}: called without ids; give "
                         "those of one field")
    for name in names:
        try:
            _check_field(worker, name, ids, offsets, weights, bags)
            return name
        except ValueError:
            if len(names) == 1:
                raise
    raise ValueError(f"{what}: called with other ids than the batch has for each of the fields "
                     f"{list(names)}; {_OTHER}" + _look_hint(worker))


def rows_of_field(cells: torch.Tensor, table: Table, given: BatchIds, name: str) -> torch.Tensor:
    """[ids, dim] of a field, whose ids are cells; zeros for padding."""
    begin = 0
    for other in table.fields[:table.fields.index(name)]:
        before = given.rows(other)
        begin += 0 if before is None else before.ids.numel()
    field = given.rows(name)
    assert field is not None
    rows = cells[begin:begin + field.ids.numel()]
    if field.kept is None:
        return rows
    whole = rows.new_zeros(given.fields[name].ids.numel(), table.dim)
    return whole.index_copy(0, field.kept, rows)


def pooled_rows(worker: Worker, cells: torch.Tensor, table: Table, given: BatchIds, name: str
                ) -> torch.Tensor:
    """[samples, dim] of a field, of a table with or without pooling."""
    if table.name in worker.tables.unpooled:
        return given.fields[name].pooled(rows_of_field(cells, table, given, name))
    return cells[:, table.fields.index(name)]


def _flat(name: str, values: Any) -> torch.Tensor:
    return as_tensor(f"ids or weights of field '{name}'", values).reshape(-1)


def _same(worker: Worker, given: BatchIds, ids: Any) -> bool:
    """Whether `ids` are those of the batch at hand: the same numbers in each field that they name.
    The object itself that the loader gave may have been changed in place."""
    if ids is None:
        return True
    columns = given.columns
    if columns is not None and isinstance(ids, torch.Tensor) and ids.dim() == 2 and \
            (ids.device, ids.dtype) == (columns.device, columns.dtype):
        return ids.shape == columns.shape and torch.equal(ids, columns)
    called = BatchIds(worker.tables, ids,
                      given.include_last_offset if ids is given.source else None).fields
    return all(name in given.fields and field.same(given.fields[name])
               for name, field in called.items())


def _check_field(worker: Worker, name: str, ids: Any, offsets: Optional[torch.Tensor] = None,
                 weights: Optional[torch.Tensor] = None, bags: bool = True) -> FieldIds:
    """The loader's ids of the field. ValueError: a module of one field is called with others, or
    in other bags, unless `bags` is False."""
    worker.given.check_has([name])
    field = worker.given.fields[name]
    if ids is None:
        return field
    if field.weights is not None and weights is None:
        raise ValueError(f"field '{name}': called with its ids and without the weights that the "
                         "loader gave for it; give them too, or none of both")
    if offsets is not None or weights is not None:
        ends = (one_field(name, ids).bounds(), True) if offsets is None else (offsets, None)
        weighted = None if weights is None else _flat(name, weights)
        same = one_field(name, (_flat(name, ids), ends[0], weighted), ends[1]).same(field)
    else:
        called = one_field(name, ids)
        same = called.same_ids(field) and (not bags or called.same_bags(field))
    if not same:
        table = worker.tables.by_name.get(name)
        also = "" if table is None or len(table.fields) < 2 else \
            (f"; '{name}' is the name of a table, too, and the module reads the field: give the "
             "table another name")
        raise ValueError(f"field '{name}': called with other ids, or in other bags, than the batch "
                         f"has{also}; {_OTHER}" + _look_hint(worker))
    return field


# Functions of torch.nn.Module that lead from parameters() to the modules.
_LISTS = ("named_modules", "_named_members", "named_parameters", "parameters")


def _caller() -> Optional[FrameType]:
    """The frame that called the function that calls this one."""
    own = inspect.currentframe()
    of_function = own.f_back if own is not None else None
    return of_function.f_back if of_function is not None else None


def _warn_script(frame: Optional[FrameType], text: str) -> None:
    """Warns once for the line of the frame, unless it is of this package or of torch."""
    if frame is not None and not str(frame.f_globals.get("__name__")).startswith(("tandem.",
                                                                                  "torch.")):
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno,
                               registry=frame.f_globals.setdefault("__warningregistry__", {}))


class Rows(nn.Module):
    """The base of modules whose rows are on servers. Rows arrive on the host. The module returns
    copies, which the script may change in place, on the device to which .to() or .cuda() has moved
    it. Gradients go back the same way."""

    def __init__(self) -> None:
        super().__init__()
        self._device: Optional[torch.device] = None  # the host

    def _apply(self, fn: Any, *arguments: Any, **named: Any) -> Rows:
        self._device = fn(torch.empty(0)).device
        super()._apply(fn, *arguments, **named)
        return self

    def named_modules(self, *arguments: Any, **named: Any) -> Any:
        """As torch's. Warns a script that asks for the parameters of rows alone: there are none,
        and a penalty on them would be 0."""
        frame = _caller()
        root: Any = None
        while frame is not None and frame.f_code.co_name in _LISTS:
            if frame.f_code.co_name == "named_parameters":
                owner = frame.f_locals.get("self")
                root = owner if isinstance(owner, nn.Module) else root
            frame = frame.f_back
        if root is not None and not any(True for module in root.modules()
                                        for _ in module.parameters(recurse=False)):
            _warn_script(frame, f"{type(root).__name__}.parameters() is empty, because rows are on "
                         "the servers: a penalty on them is 0. Say optimizer { weight_decay: 2 * L "
                         "} of the table in the job for a penalty of L times the squared norm")
        return super().named_modules(*arguments, **named)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[no-untyped-call]
        frame = _caller()
        while frame is not None and frame.f_code.co_name == "state_dict":
            frame = frame.f_back
        _warn_script(frame, f"state_dict() has no rows of {type(self).__name__}, because they are "
                     "on the servers: checkpoints of the job (job.checkpoint(), tandem.load()) "
                     "have rows and parameters")

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise AttributeError(f"{type(self).__name__} has no weight, because rows are on the "
                                 "servers: job.rows(NAME, ids) has those of ids, and "
                                 "tandem.Embedding(NAME, ids=...) those that a step trains; "
                                 "initial values are the table's `initializer` in the job")
        return super().__getattr__(name)  # type: ignore[no-untyped-call]

    def _here(self, values: torch.Tensor) -> torch.Tensor:
        return values.clone() if self._device is None else values.to(self._device, copy=True)


def break_graphs() -> None:
    """Makes calls of modules of rows graph breaks of torch.compile. Their tensors come from the
    worker, so there is nothing to compile. Does nothing before PyTorch 2.1."""
    if hasattr(torch, "compiler"):
        kinds = Rows.__subclasses__()
        for kind in kinds:
            kinds += kind.__subclasses__()
            # A subclass of the script keeps what it compiles.
            if kind.__module__.startswith("tandem.") and "forward" in vars(kind) and \
                    not getattr(kind.forward, "_torchdynamo_disable", False):
                kind.forward = torch.compiler.disable(kind.forward)


@dataclass
class EmbeddingBagConfig:
    """A table that the script expects, as in torchrec; compared with the job."""
    name: str
    embedding_dim: int
    feature_names: Sequence[str]


def find_table(tables: Tables[Any], wanted: Union[str, EmbeddingBagConfig]) -> Table:
    """The table of that name. ValueError: the job has none, or another dim or other fields."""
    if isinstance(wanted, str):
        return tables.find(wanted)[0]
    found = tables.by_name.get(wanted.name)
    if found is None or found.dim != wanted.embedding_dim or \
            list(found.fields) != list(wanted.feature_names):
        fields = " ".join(f'field: "{f}"' for f in wanted.feature_names)
        raise ValueError(f"{tables.who} has {found}, and the module wants another table; in the "
                         f'job say table {{ name: "{wanted.name}" dim: {wanted.embedding_dim} '
                         f"{fields} }}")
    return found


class EmbeddingBagCollection(Rows):
    """The job's tables, pooled by sum: called with the ids of a batch, returns a KeyedTensor.

    tables: EmbeddingBagConfig each, or names; None: all tables of the job. ValueError: the job has
    no such table. include_last_offset: whether the offsets of (values, offsets) end with the number
    of ids. The option applies to the loader's batches for these tables, unless tandem.DataLoader
    has its own, and for the module that serves. None: each batch shows it.
    """

    def __init__(self, tables: Optional[Iterable[Union[str, EmbeddingBagConfig]]] = None,
                 include_last_offset: Optional[bool] = None) -> None:
        super().__init__()
        current = current_tables()
        self.tables = current.all if tables is None else [find_table(current, t) for t in tables]
        self.include_last_offset = include_last_offset
        if include_last_offset is not None:
            current.last_offsets.update(
                {name: include_last_offset for t in self.tables for name in t.fields})

    def forward(self, ids: Any = None) -> KeyedTensor:
        """ids: of the batch at hand, in the form in which the loader found them, or None. Returns
        float32 rows: [samples, dim] of each field. RuntimeError: there is no batch at hand;
        ValueError: ids of another batch."""
        cells, given = batch_at_hand(current_worker(), "EmbeddingBagCollection", self.tables, ids)
        given.check_has(name for table in self.tables for name in table.fields)
        worker = current_worker()
        worker.tables.check_padding((name for t in self.tables for name in t.fields), None)
        return KeyedTensor(self.tables, {
            t.name: self._here(cells[t.name]) if t.name not in worker.tables.unpooled else
            torch.stack([self._here(pooled_rows(worker, cells[t.name], t, given, name))
                         for name in t.fields], 1) for t in self.tables})

    def extra_repr(self) -> str:
        """The tables, for repr()."""
        return ", ".join(repr(t) for t in self.tables)


class EmbeddingCollection(Rows):
    """Tables without pooling: called with the ids of a batch, returns a dict from field to
    JaggedTensor, whose values() are a row for each id, [ids, dim]. padding_idx: an id of these
    tables that has no row, as that of Embedding."""

    def __init__(self, tables: Iterable[Union[str, EmbeddingBagConfig]],
                 padding_idx: Optional[int] = None) -> None:
        super().__init__()
        current = current_tables()
        self.tables, self.padding_idx = [find_table(current, t) for t in tables], padding_idx
        current.unpooled.update(t.name for t in self.tables)
        for table in self.tables:
            current.pad(table.fields, padding_idx)

    def forward(self, ids: Any = None) -> dict[str, JaggedTensor]:
        """ids: as for EmbeddingBagCollection. The result has no fields that the batch lacks."""
        worker = current_worker()
        cells, given = batch_at_hand(worker, "EmbeddingCollection", self.tables, ids)
        worker.tables.check_padding((name for t in self.tables for name in t.fields
                                     if name in given.fields), self.padding_idx)
        return {name: JaggedTensor(self._here(rows_of_field(cells[table.name], table, given, name)),
                                   offsets=self._here(given.fields[name].bounds()))
                for table in self.tables for name in table.fields if name in given.fields}


class EmbeddingBag(Rows):
    """In the place of torch.nn.EmbeddingBag(n, dim, mode=...): one field of the job, [samples,
    dim].

    name: the field, or a table that has one. mode: "sum" or "mean". include_last_offset: as
    torch's: whether offsets end with the number of ids. It also holds for the module that serves,
    and for the loader's batches for this field unless tandem.DataLoader has its own. padding_idx:
    an id that has no row and does not count in a mean. All modules of a field say the same.
    """

    def __init__(self, name: str, mode: str = "sum", include_last_offset: bool = False,
                 padding_idx: Optional[int] = None) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise ValueError(f"EmbeddingBag('{name}'): mode {mode!r}, expected 'sum' or 'mean'")
        self.table, place = current_tables().find(name)
        if place is None and len(self.table.fields) != 1:
            raise ValueError(f"EmbeddingBag('{name}'): the table has several fields; name one of "
                             f"{list(self.table.fields)}")
        self._field, self.mode = self.table.fields[place or 0], mode
        self.include_last_offset, self.padding_idx = include_last_offset, padding_idx
        if include_last_offset:
            current_tables().last_offsets[self._field] = True
        current_tables().pad([self._field], padding_idx)
        self.embedding_dim = self.table.dim

    def forward(self, input: Any = None,  # pylint: disable=redefined-builtin
                offsets: Optional[torch.Tensor] = None,
                per_sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        """float32 [samples, dim]. input: int64 ids [samples] or [samples, length], or ids [ids]
        with offsets; None: the ids of the batch at hand. Offsets are [samples + 1] if
        include_last_offset, or if those of the loader's batches are, else [samples].
        per_sample_weights: a weight for each id. ValueError: other ids or weights than the loader
        gave."""
        name, worker = self._field, current_worker()
        if per_sample_weights is not None and self.mode != "sum":
            raise ValueError(f"EmbeddingBag('{name}'): per_sample_weights with mode {self.mode!r}; "
                             "as torch's it takes them with mode 'sum' alone")
        cells, given, _ = _field_batch(worker, "EmbeddingBag", self.table, [name], input, offsets,
                                       per_sample_weights, self.include_last_offset)
        worker.tables.check_padding([name], self.padding_idx)
        if per_sample_weights is not None and given.fields[name].weights is None:
            raise ValueError(f"EmbeddingBag('{name}'): per_sample_weights belong to the batch: let "
                             "`features` of tandem.DataLoader give (values, offsets, weights)")
        out = self._here(pooled_rows(worker, cells, self.table, given, name))
        field = given.rows(name)
        if self.mode == "sum" or field is None or field.offsets is None:
            return out
        counts = (field.offsets[1:] - field.offsets[:-1]).clamp(min=1)
        return out / self._here(counts.unsqueeze(1).to(out.dtype))

    def extra_repr(self) -> str:
        """Table and mode, for repr()."""
        return f"{self.table!r}, mode={self.mode!r}"


class Embedding(Rows):
    """In the place of torch.nn.Embedding(n, dim): a row for each id, [..., dim].

    name: a field of the job, or a table. With a table of several fields call it with the ids of any
    of them. Equal ids in several fields of a table are one row. padding_idx: an id that has no row:
    nothing is pulled, pushed or trained for it, and it gives zeros. All modules of a field say the
    same. ids: int64 [n]: rows of these ids are in each batch, besides
    those that the loader gives, and the module is called without ids: [n, dim], for a softmax over
    all items. The field has then no other ids, and is named. ValueError: no such field.
    """

    def __init__(self, name: str, padding_idx: Optional[int] = None, ids: Any = None) -> None:
        super().__init__()
        current = current_tables()
        self.table, place = current.find(name)
        self._fields = self.table.fields if place is None else (name,)
        self.padding_idx, self.embedding_dim = padding_idx, self.table.dim
        self.ids: Optional[torch.Tensor] = None
        current.unpooled.add(self.table.name)
        if ids is None:
            current.pad(self._fields, padding_idx)
            return
        if len(self._fields) != 1 or padding_idx is not None:
            raise ValueError(f"Embedding('{name}', ids=...): expected a field without padding, for "
                             f"these ids alone; the table has {list(self.table.fields)}")
        self.ids = FieldIds(self._fields[0], ids).ids.clone()
        current.fixed[self._fields[0]] = self.ids

    def forward(self, input: Any = None) -> torch.Tensor:  # pylint: disable=redefined-builtin
        """float32 [..., dim]. input: a tensor or an array of any shape with the ids of a field of
        the batch at hand; None: those of the one field, [samples, dim] or [samples, length, dim].
        """
        worker = current_worker()
        if self.ids is not None:
            return self._fixed(worker, input)
        names = [name for name in self._fields if name not in worker.tables.fixed]
        shape = list(input.shape) if isinstance(input, (torch.Tensor, numpy.ndarray)) else None
        cells, given, name = _field_batch(worker, "Embedding", self.table, names,
                                          input if shape is None else input.reshape(-1),
                                          bags=shape is None)
        worker.tables.check_padding([name], self.padding_idx)
        rows, length = rows_of_field(cells, self.table, given, name), given.fields[name].length
        if shape is None:
            shape = [-1] if length is None else [given.samples, length]
        return self._here(rows.view(*shape, self.table.dim))

    def _fixed(self, worker: Worker, given: Any) -> torch.Tensor:
        if given is not None:
            raise ValueError(f"Embedding('{self._fields[0]}', ids=...) is called without ids")
        if worker.cells is not None:
            return self._here(rows_of_field(worker.cells[self.table.name], self.table, worker.given,
                                            self._fields[0]))
        if not worker.may_look():
            raise _no_batch("Embedding")
        return self._here(worker.rows(self.table, self.ids))

    def extra_repr(self) -> str:
        """The table, for repr()."""
        return repr(self.table)
