"""Modules whose rows live on the servers. They have no parameters: rows come with the batch, and their
gradients leave with optimizer.step(). A module may be called any number of times in a step."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Optional, Sequence, Union

import torch
from torch import nn

from tandem.job import Job, current_job, current_tables
from tandem.sparse import BatchIds, FieldIds, JaggedTensor, KeyedTensor, as_tensor, one_field
from tandem.tables import Table, Tables


def _no_batch(what: str) -> RuntimeError:
    return RuntimeError(f"{what}: there is no batch at hand; rows are fetched ahead for the batches "
                        "of a tandem.DataLoader, so call the model in a loop over one, or over "
                        "job.evaluate()")


_OTHER = ("rows are fetched before the model runs, so pass the ids that the loader gave; compute other ids in `features` "
          "of tandem.DataLoader")


def _batch(job: Job, what: str, tables: Iterable[Table], ids: Any) -> tuple[dict[str, torch.Tensor], BatchIds]:
    """The cells of these tables, and the ids that they are of: those of the batch at hand, or in a notebook of any."""
    if job._cells is not None and _same(job, job._given, ids):
        return job._cells, job._given
    if ids is not None and job._may_look():
        given = BatchIds(job, ids, look=True)
        return job._look_up(given, tables), given
    if job._cells is None:
        raise _no_batch(what)
    raise ValueError(f"{what}: called with other ids than the batch has; {_OTHER}" + _look_hint(job))


def _look_hint(job: Job) -> str:
    if getattr(job, "_cluster", None) is None:
        return ""
    return ("; to look at what it gives for others, call it under torch.no_grad()" + (
        f", or leave the loop over epoch {job._looping.epoch} first (an iterator that a variable keeps ends by its close())"
        if job._looping is not None else ""))


def _field_batch(job: Job, what: str, table: Table, place: int, ids: Any, offsets: Optional[torch.Tensor] = None,
                 weights: Optional[torch.Tensor] = None, include_last_offset: Optional[bool] = None
                 ) -> tuple[torch.Tensor, Optional[FieldIds]]:
    """The same for a module of one field."""
    name = table.fields[place]
    if job._cells is None and (ids is None or not job._may_look()):
        raise _no_batch(what)
    if job._cells is not None:
        try:
            return job._cells[table.name], _check_field(job, name, ids, offsets, weights)
        except ValueError:
            if not job._may_look():
                raise
    form = ids
    if offsets is not None or weights is not None:
        if offsets is None:
            offsets, include_last_offset = one_field(name, ids).bounds(), True
        form = (_flat(name, ids), offsets, None if weights is None else _flat(name, weights))
    given = BatchIds(job, {name: form}, include_last_offset or None, look=True)
    return job._look_up(given, [table])[table.name], given.fields[name]


def _flat(name: str, values: Any) -> torch.Tensor:
    return as_tensor(f"ids or weights of field '{name}'", values).reshape(-1)


def _same(job: Job, given: BatchIds, ids: Any) -> bool:
    """Whether `ids` are those of the batch at hand: the same object, or the same numbers in each field
    that they name."""
    if ids is None or ids is given.source:
        return True
    if isinstance(ids, torch.Tensor) and isinstance(given.source, torch.Tensor) and ids.device == given.source.device:
        return ids.shape == given.source.shape and torch.equal(ids, given.source)
    called = BatchIds(job, ids).fields
    return all(name in given.fields and field.same(given.fields[name])
               for name, field in called.items())


def _check_field(job: Job, name: str, ids: Any, offsets: Optional[torch.Tensor] = None,
                 weights: Optional[torch.Tensor] = None) -> Optional[FieldIds]:
    """That a module of one field is called with the ids that the loader has announced for it, in the
    same bags where the call says some."""
    field = job._given.fields.get(name)
    if ids is None:
        return field
    if field is None:
        raise ValueError(f"field '{name}': the loader gave no ids for it; add it to `features`")
    if field.weights is not None and weights is None:
        raise ValueError(f"field '{name}': called with its ids and without the weights that the loader gave "
                         "for it; give them too, or none of both")
    if offsets is not None or weights is not None:
        bags = (one_field(name, ids).bounds(), True) if offsets is None else (offsets, None)
        same = one_field(name, (_flat(name, ids), bags[0], None if weights is None else _flat(name, weights)),
                         bags[1]).same(field)
    else:
        called = one_field(name, ids)
        same = called.same_ids(field) and called.same_bags(field)
    if not same:
        raise ValueError(f"field '{name}': called with other ids, or in other bags, than the batch has; {_OTHER}"
                         + _look_hint(job))
    return field


class _Rows(nn.Module):
    """Rows arrive on the host; they are carried to the device that .to() or .cuda() has moved the module to, and their
    gradients back."""

    def __init__(self) -> None:
        super().__init__()
        self._device: Optional[torch.device] = None  # the host

    def _apply(self, fn: Any, *arguments: Any, **named: Any) -> _Rows:
        self._device = fn(torch.empty(0)).device
        super()._apply(fn, *arguments, **named)
        return self

    def _here(self, values: torch.Tensor) -> torch.Tensor:
        return values if self._device is None else values.to(self._device)


@dataclass
class EmbeddingBagConfig:
    """As torchrec has it: what the script expects of a table; compared with the job."""
    name: str
    embedding_dim: int
    feature_names: Sequence[str]


class EmbeddingBagCollection(_Rows):
    """The job's tables, pooled by sum: called with the ids of a batch, returns a KeyedTensor.

    tables: EmbeddingBagConfig each, or names; None: all tables of the job. ValueError: the job has no such table.
    include_last_offset: whether the offsets of (values, offsets) end with the number of ids, of what the loader gives for
    these tables unless tandem.DataLoader was told otherwise, and of the module that serves; None: each batch shows it.
    """

    def __init__(self, tables: Optional[Iterable[Union[str, EmbeddingBagConfig]]] = None,
                 include_last_offset: Optional[bool] = None) -> None:
        super().__init__()
        job = current_tables()
        self._tables = job._table_list if tables is None else [self._find(job, t) for t in tables]
        self._include_last_offset = include_last_offset
        if include_last_offset is not None:
            job._last_offsets.update({name: include_last_offset for t in self._tables for name in t.fields})

    @staticmethod
    def _find(job: Tables[Any], wanted: Union[str, EmbeddingBagConfig]) -> Table:
        if isinstance(wanted, str):
            return job._table_of(wanted)[0]
        found = job.tables.get(wanted.name)
        if found is None or found.dim != wanted.embedding_dim or \
                list(found.fields) != list(wanted.feature_names):
            fields = " ".join(f'field: "{f}"' for f in wanted.feature_names)
            raise ValueError(f"{job._WHO} has {found}, and the module wants another table; in the job say "
                             f'table {{ name: "{wanted.name}" dim: {wanted.embedding_dim} {fields} }}')
        return found

    def forward(self, ids: Any = None) -> KeyedTensor:
        """ids: of the batch at hand, in the form in which the loader found them, or None. Returns float32 rows:
        [samples, dim] of each field. RuntimeError: there is no batch at hand; ValueError: other ids than its."""
        cells, _ = _batch(current_job(), "EmbeddingBagCollection", self._tables, ids)
        return KeyedTensor(self._tables, {table.name: self._here(cells[table.name]) for table in self._tables})

    def extra_repr(self) -> str:
        """The tables, for repr()."""
        return ", ".join(repr(t) for t in self._tables)


class EmbeddingCollection(_Rows):
    """Tables without pooling: called with the ids of a batch, returns a dict from field to JaggedTensor,
    whose values() are a row for each id, [ids, dim]. Such a table is read in no other way."""

    def __init__(self, tables: Iterable[Union[str, EmbeddingBagConfig]]) -> None:
        super().__init__()
        job = current_tables()
        self._tables = [EmbeddingBagCollection._find(job, t) for t in tables]
        job._unpooled.update(t.name for t in self._tables)

    def forward(self, ids: Any = None) -> dict[str, JaggedTensor]:
        """ids: as those of EmbeddingBagCollection. Fields that the batch lacks are left out."""
        cells, given = _batch(current_job(), "EmbeddingCollection", self._tables, ids)
        out = {}
        for table in self._tables:
            begin = 0
            for name in table.fields:
                field = given.fields.get(name)
                if field is None:
                    continue
                end = begin + field.ids.numel()
                offsets = torch.arange(field.ids.numel() + 1) if field.offsets is None else \
                    field.offsets
                out[name] = JaggedTensor(self._here(cells[table.name][begin:end]), offsets=self._here(offsets))
                begin = end
        return out


class EmbeddingBag(_Rows):
    """In the place of torch.nn.EmbeddingBag(n, dim, mode=...): one field of the job, [samples, dim].

    name: the field, or a table that has one. mode: "sum" or "mean". include_last_offset: as torch's: whether offsets
    end with the number of ids; of the module that serves, too, and of what the loader gives for this field unless
    tandem.DataLoader was told otherwise.
    """

    def __init__(self, name: str, mode: str = "sum", include_last_offset: bool = False) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise ValueError(f"EmbeddingBag('{name}'): mode {mode!r}, want 'sum' or 'mean'")
        self._table, place = current_tables()._table_of(name)
        if place is None and len(self._table.fields) != 1:
            raise ValueError(f"EmbeddingBag('{name}'): the table has several fields; name one of "
                             f"{list(self._table.fields)}")
        self._place, self._mode = place or 0, mode
        self._include_last_offset = include_last_offset
        if include_last_offset:
            current_tables()._last_offsets[self._table.fields[self._place]] = True
        self.embedding_dim = self._table.dim

    def forward(self, input: Any = None, offsets: Optional[torch.Tensor] = None,  # pylint: disable=redefined-builtin
                per_sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        """float32 [samples, dim]. input: int64 ids [samples] or [samples, length], or ids [ids] with offsets. Offsets are
        [samples + 1] if include_last_offset, or if those of the loader's batches are, else [samples]. None: the ids of
        the batch at hand. per_sample_weights: a weight for each id. ValueError: other ids or weights than the loader
        gave."""
        name = self._table.fields[self._place]
        if per_sample_weights is not None and self._mode != "sum":
            raise ValueError(f"EmbeddingBag('{name}'): per_sample_weights with mode {self._mode!r}; as torch's it takes "
                             "them with mode 'sum' alone")
        cells, field = _field_batch(current_job(), "EmbeddingBag", self._table, self._place, input, offsets,
                                    per_sample_weights, self._include_last_offset)
        if per_sample_weights is not None and (field is None or field.weights is None):
            raise ValueError(f"EmbeddingBag('{name}'): per_sample_weights belong to the batch: let "
                             "`features` of tandem.DataLoader give (values, offsets, weights)")
        out = self._here(cells[:, self._place])
        if self._mode == "sum" or field is None or field.offsets is None:
            return out
        counts = (field.offsets[1:] - field.offsets[:-1]).clamp(min=1)
        return out / self._here(counts.unsqueeze(1).to(out.dtype))

    def extra_repr(self) -> str:
        """Table and mode, for repr()."""
        return f"{self._table!r}, mode={self._mode!r}"


class Embedding(_Rows):
    """In the place of torch.nn.Embedding(n, dim): one field of the job, a row for each id: [samples, dim]
    for ids [samples], [samples, length, dim] for ids [samples, length]."""

    def __init__(self, name: str) -> None:
        super().__init__()
        job = current_tables()
        self._table, place = job._table_of(name)
        if len(self._table.fields) != 1:
            raise ValueError(f"Embedding('{name}'): its table has several fields, and a table without "
                             "pooling has one; give the field a table of its own")
        job._unpooled.add(self._table.name)
        self.embedding_dim = self._table.dim

    def forward(self, input: Any = None) -> torch.Tensor:  # pylint: disable=redefined-builtin
        """float32 [samples, dim] or [samples, length, dim]. input: ids of the batch at hand, or None."""
        cells, field = _field_batch(current_job(), "Embedding", self._table, 0, input)
        cells = self._here(cells)
        if field is not None and field.length is not None:
            return cells.view(-1, field.length, self._table.dim)
        return cells

    def extra_repr(self) -> str:
        """The table, for repr()."""
        return repr(self._table)
