"""Embeddings of a checkpoint as modules of plain PyTorch, for serving. They need neither servers
nor a job. torch.jit.script takes them, so that a checkpoint runs where there is no Tandem.

A row is found by a binary search in sorted keys. An id without a row in the checkpoint gets the
initial value that the servers would have given it, bit for bit.
"""
import copy
import math
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import numpy
import torch
from torch import Tensor, nn

from tandem import nn as trained
from tandem._abi import Error
from tandem.current import made_for
from tandem.tables import CheckpointTable, Initializer, Table, Tables


def in_torch_script(part: Any) -> Any:
    """torch.jit.script, without PyTorch 2.15's warning that it is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.jit.script(part)


# ---- initial values: optim/initializer.cc in int64 arithmetic, which wraps as uint64 does -------

def _mix(x: Tensor) -> Tensor:
    """Mix64 of base/hash.h. A shift of int64 carries the sign along, which is masked away."""
    x = (x ^ ((x >> 30) & 0x3ffffffff)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1fffffffff)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1ffffffff)


def _draws(seed: int, ids: Tensor, count: int) -> Tensor:
    """The first `count` words of Random(HashCombine(seed, id)) of each id: [ids, count]."""
    combined = _mix(_mix(ids + -3335678366873096957) + -7046029254386353131 + seed)
    state = _mix(combined + -7046029254386353131)
    turns = torch.arange(1, count + 1, device=ids.device) * -7046029254386353131
    return _mix(state.unsqueeze(1) + turns)


def _units(words: Tensor) -> List[float]:
    """Random::NextDouble of each word, row by row."""
    units: List[float] = (((words >> 11) & 0x1fffffffffffff).to(torch.float64)
                          * 1.1102230246251565e-16).flatten().tolist()
    return units


def _signed_units(words: Tensor) -> Tensor:
    """2u - 1 of the low and of the high half of each word, next to each other."""
    halves = torch.stack([(words >> 8) & 0xffffff, (words >> 40) & 0xffffff], 2).flatten(1)
    return halves.to(torch.float32) * 1.1920928955078125e-07 - 1.0


def _normal(seed: int, ids: Tensor, dim: int, scale: float) -> Tensor:
    """Computes one number at a time with log and cos of the C library, as the servers do: functions
    of tensors may differ in the last bit."""
    words = _draws(seed, ids, 2 * dim)
    u, v = _units(words[:, 0::2]), _units(words[:, 1::2])
    values: List[float] = []
    for i in range(len(u)):
        radius = math.sqrt(-2.0 * math.log(1.0 - u[i]))
        values.append(scale * (radius * math.cos(6.283185307179586 * v[i])))
    rows = torch.tensor(values, dtype=torch.float64)
    return rows.to(torch.float32).view(ids.numel(), dim).to(ids.device)


def _traced() -> bool:
    """Whether torch.export or torch.compile traces the module, whose result is then operations of
    tensors alone: no branch depends on a value."""
    compiler = getattr(torch, "compiler", None)  # of torch 2.1
    return compiler is not None and compiler.is_compiling()


def _normal_of_tensors(seed: int, ids: Tensor, dim: int, scale: float) -> Tensor:
    """As _normal, by functions of tensors."""
    words = _draws(seed, ids, 2 * dim)
    units = ((words >> 11) & 0x1fffffffffffff).to(torch.float64) * 1.1102230246251565e-16
    radius = torch.sqrt(-2.0 * torch.log(1.0 - units[:, 0::2]))
    return (scale * (radius * torch.cos(6.283185307179586 * units[:, 1::2]))).to(torch.float32)


def _rounded_to_int8(rows: Tensor, largest_of: Tensor) -> Tensor:
    """RoundToNearest of optim/row_rounding.h for INT8, of each row. largest_of: the largest number
    with each exponent, in order."""
    step = largest_of[torch.bucketize(rows.abs().amax(1, keepdim=True), largest_of)] / 127
    units = (rows.abs() * (65536 / step)).to(torch.int32)
    number = (units + 0x7fff + ((units >> 16) & 1)) >> 16
    return torch.where(rows < 0, -number, number).to(torch.float32) * step


class InitialValues(nn.Module):
    """Initial values of rows: called with ids int64 [n], returns float32 [n, dim]."""

    def __init__(self, initializer: Initializer, dim: int) -> None:
        super().__init__()
        if initializer.kind not in ("ZERO", "CONSTANT", "UNIFORM", "NORMAL"):
            raise Error(f"initial values of kind {initializer.kind} are not known here")
        if initializer.row_dtype not in ("F32", "BF16", "F16", "INT8"):
            raise Error(f"rows of type {initializer.row_dtype} are not known here")
        self.kind: str = initializer.kind
        self.row_dtype: str = initializer.row_dtype
        self.scale: float = initializer.scale
        self.seed: int = initializer.seed - (1 << 64 if initializer.seed >> 63 else 0)
        self.dim: int = dim
        self.register_buffer("factor", torch.tensor(self.scale, dtype=torch.float32))
        exponents = range(-110, 122) if self.row_dtype == "INT8" else ()
        largest_of = torch.tensor([127 * 2.0 ** e for e in exponents], dtype=torch.float32)
        self.register_buffer("largest_of", largest_of, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        values = self._before_rounding(ids)
        if self.row_dtype == "BF16":
            return values.to(torch.bfloat16).to(torch.float32)
        if self.row_dtype == "F16":
            return values.to(torch.float16).to(torch.float32)
        if self.row_dtype == "INT8":
            return _rounded_to_int8(values, self.largest_of)
        return values

    def _before_rounding(self, ids: Tensor) -> Tensor:
        if self.kind == "NORMAL":
            if not torch.jit.is_scripting():
                if _traced():
                    return _normal_of_tensors(self.seed, ids, self.dim, self.scale)
            return _normal(self.seed, ids, self.dim, self.scale)
        if self.kind == "UNIFORM":
            words = _draws(self.seed, ids, (self.dim + 1) // 2)
            return self.factor * _signed_units(words)[:, :self.dim]
        return self.factor.expand(ids.numel(), self.dim)


# ---- rows -------------------------------------------------------------------------------------

class CheckpointRows(nn.Module):
    """The rows of a table in a checkpoint: called with ids int64 of any shape, returns float32
    [..., dim]."""

    def __init__(self, table: CheckpointTable) -> None:
        super().__init__()
        self.dim: int = table.dim
        keys = numpy.array(table.keys)
        order = numpy.argsort(keys, kind="stable")
        place = numpy.empty(len(keys), dtype=numpy.int64)
        place[order] = numpy.arange(len(keys))
        weights = numpy.empty((len(keys), table.dim), dtype=numpy.float32)
        at = 0
        for part in table.parts:
            weights[place[at:at + len(part.keys)]] = part.weights
            at += len(part.keys)
        self.register_buffer("keys", torch.from_numpy(keys[order]))
        self.register_buffer("weights", torch.from_numpy(weights))
        self.first = InitialValues(table.initializer, table.dim)
        self.name, self.fields = table.name, list(table.fields)

    def forward(self, ids: Tensor) -> Tensor:
        if ids.is_floating_point():
            raise ValueError("ids: expected integers")
        flat = ids.reshape(-1).to(torch.int64).contiguous()
        shape = list(ids.shape) + [self.dim]
        if self.keys.numel() == 0:
            return self.first(flat).reshape(shape)
        at = torch.searchsorted(self.keys, flat).clamp(max=self.keys.numel() - 1)
        rows = self.weights[at]
        unknown = self.keys[at] != flat
        if not torch.jit.is_scripting():
            if _traced():
                return torch.where(unknown.unsqueeze(1), self.first(flat), rows).reshape(shape)
        if bool(unknown.any()):
            ids_of, which = torch.unique(flat[unknown], return_inverse=True)
            rows[unknown] = self.first(ids_of)[which]
        return rows.reshape(shape)

    def extra_repr(self) -> str:
        """Table, sizes and initial values, for repr()."""
        return (f"{self.name!r}, rows={self.keys.numel()}, dim={self.dim}, "
                f"initial values {self.first.kind}")


def _without(padding: Optional[int], ids: Tensor, rows: Tensor) -> Tensor:
    """The rows of ids, with zeros for padding."""
    return rows if padding is None else rows.masked_fill((ids == padding).unsqueeze(-1), 0.0)


def _pool(rows: Tensor, offsets: Tensor, samples: int, mean: bool,
          kept: Optional[Tensor] = None) -> Tensor:
    """The sum (or mean) of each sample's rows: of those from offsets[s] to the next sample's.
    kept: float [ids], 0 for those that do not count in a mean."""
    bag = torch.searchsorted(offsets[:samples].contiguous(),
                             torch.arange(rows.size(0), device=rows.device), right=True) - 1
    out = torch.zeros([samples, rows.size(1)], device=rows.device).index_add(0, bag, rows)
    if not mean:
        return out
    ones = torch.ones([rows.size(0)], device=rows.device) if kept is None else kept
    counts = torch.zeros([samples], device=rows.device).index_add(0, bag, ones)
    return out / counts.clamp(min=1.0).unsqueeze(1)


class EmbeddingBag(nn.Module):
    """In the place of tandem.EmbeddingBag, and called as torch.nn.EmbeddingBag is."""

    def __init__(self, rows: CheckpointRows, mode: str = "sum",
                 include_last_offset: bool = False, padding_idx: Optional[int] = None) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise ValueError(
                f"EmbeddingBag of {rows.name}: mode {mode!r}, expected 'sum' or 'mean'")
        self.rows = rows
        self.mean: bool = mode == "mean"
        self.include_last_offset: bool = include_last_offset
        self.padding_idx: Optional[int] = padding_idx
        self.embedding_dim: int = rows.dim

    def forward(self, input: Tensor,  # pylint: disable=redefined-builtin
                offsets: Optional[Tensor] = None,
                per_sample_weights: Optional[Tensor] = None) -> Tensor:
        ids, padding = input.reshape(-1), self.padding_idx
        rows = _without(padding, ids, self.rows(ids))
        kept = torch.ones([ids.numel()], device=rows.device) if padding is None else \
            (ids != padding).to(torch.float32)
        if per_sample_weights is not None:
            if self.mean:
                raise ValueError("EmbeddingBag: per_sample_weights with mode 'mean'; expected mode "
                                 "'sum'")
            rows = rows * per_sample_weights.reshape(-1, 1)
        if offsets is not None:
            samples = offsets.numel() - (1 if self.include_last_offset else 0)
            return _pool(rows, offsets, samples, self.mean, kept)
        if input.dim() == 1:
            return rows
        rows = rows.view(input.size(0), input.size(1), self.embedding_dim).sum(1)
        return rows / kept.view(input.shape).sum(1, True).clamp(min=1.0) if self.mean else rows


class Embedding(nn.Module):
    """In the place of tandem.Embedding: a row for each id; zeros for padding."""

    def __init__(self, rows: CheckpointRows, padding_idx: Optional[int] = None) -> None:
        super().__init__()
        self.rows = rows
        self.padding_idx: Optional[int] = padding_idx
        self.embedding_dim: int = rows.dim

    def forward(self, input: Tensor) -> Tensor:  # pylint: disable=redefined-builtin
        return _without(self.padding_idx, input, self.rows(input))


class FixedEmbedding(nn.Module):
    """In the place of tandem.Embedding(..., ids=...): called without ids, returns [ids, dim]."""

    def __init__(self, rows: CheckpointRows, ids: Tensor) -> None:
        super().__init__()
        self.embedding_dim: int = rows.dim
        self.register_buffer("values", rows(ids))

    def forward(self) -> Tensor:
        return self.values


@in_torch_script
class RowsOfField:
    """As tandem.JaggedTensor: values() [ids, dim], offsets() [samples + 1], lengths()
    [samples]."""

    def __init__(self, values: Tensor, offsets: Tensor) -> None:
        self._values = values
        self._offsets = offsets

    def values(self) -> Tensor:
        """float32 [ids, dim]."""
        return self._values

    def offsets(self) -> Tensor:
        """int64: where the rows of each sample begin, and where the last one's end."""
        return self._offsets

    def lengths(self) -> Tensor:
        """int64: the number of rows of each sample."""
        return self._offsets[1:] - self._offsets[:-1]


class EmbeddingCollection(nn.Module):
    """In the place of tandem.EmbeddingCollection. Called with a dict from fields of its tables to
    [samples], [samples, ids] or (values, offsets), where offsets have one for each sample."""

    def __init__(self, rows: Dict[str, CheckpointRows], padding_idx: Optional[int] = None) -> None:
        super().__init__()
        self.padding_idx: Optional[int] = padding_idx
        self.fields: Dict[str, List[str]] = {name: table.fields for name, table in rows.items()}
        self.rows = nn.ModuleDict(rows)

    def forward(self, ids: Union[Dict[str, Tensor], Dict[str, Tuple[Tensor, Tensor]]]
                ) -> Dict[str, RowsOfField]:
        out: Dict[str, RowsOfField] = {}
        for name, rows in self.rows.items():
            for field in self.fields[name]:
                if torch.jit.isinstance(ids, Dict[str, Tensor]):
                    if field in ids:
                        values = ids[field]
                        length = values.size(1) if values.dim() == 2 else 1
                        flat = values.reshape(-1)
                        offsets = torch.arange(values.size(0) + 1, device=flat.device) * length
                        out[field] = RowsOfField(_without(self.padding_idx, flat, rows(flat)),
                                                 offsets)
                elif torch.jit.isinstance(ids, Dict[str, Tuple[Tensor, Tensor]]):
                    if field in ids:
                        flat, begins = ids[field]
                        end = torch.tensor([flat.numel()], device=begins.device)
                        out[field] = RowsOfField(_without(self.padding_idx, flat, rows(flat)),
                                                 torch.cat([begins, end]))
                else:
                    raise ValueError("ids: expected a dict from fields to [samples], [samples, "
                                     "ids] or (values, offsets)")
        return out


@in_torch_script
class PooledRows:
    """As tandem.KeyedTensor: values() [samples, sum of dims]; table(name) [samples, fields, dim];
    of a field, [name] is [samples, dim]."""

    def __init__(self, tables: List[str], fields: Dict[str, List[str]],
                 cells: Dict[str, Tensor]) -> None:
        self.tables = tables
        self.fields = fields
        self.cells = cells

    def keys(self) -> List[str]:
        """The fields, in the order of values()."""
        out: List[str] = []
        for table in self.tables:
            out.extend(self.fields[table])
        return out

    def values(self) -> Tensor:
        """float32 [samples, sum of dims]."""
        return torch.cat([self.cells[table].flatten(1) for table in self.tables], 1)

    def table(self, name: str) -> Tensor:
        """float32 [samples, fields, dim] of the table."""
        return self.cells[name]

    def __getitem__(self, field: str) -> Tensor:
        for table in self.tables:
            names = self.fields[table]
            for place in range(len(names)):
                if names[place] == field:
                    return self.cells[table][:, place]
        raise KeyError("no such field: " + field)


class EmbeddingBagCollection(nn.Module):
    """In the place of tandem.EmbeddingBagCollection. Called with int64 [samples, fields], a column
    for each field of the job in its order, or with a dict that has each field of its tables:
    [samples] or [samples, ids], or (values, offsets). include_last_offset: as that of
    tandem.EmbeddingBagCollection; None: offsets end with the number of ids, [samples + 1], if those
    of all fields do, unless they show a sample more."""

    def __init__(self, tables: List[CheckpointTable], rows: Dict[str, CheckpointRows],
                 include_last_offset: Optional[bool] = None) -> None:
        """tables: all of the job, in its order; rows: CheckpointRows by name, in the order of the
        module."""
        super().__init__()
        # Whether offsets may end with the number of ids, and whether they may not.
        self.with_end: bool = include_last_offset is not False
        self.without_end: bool = include_last_offset is not True
        self.names: List[str] = list(rows)
        self.fields: Dict[str, List[str]] = {t.name: list(t.fields) for t in tables}
        self.columns: int = sum(len(t.fields) for t in tables)
        self.first_column: Dict[str, int] = {}
        column = 0
        for table in tables:
            self.first_column[table.name] = column
            column += len(table.fields)
        self.rows = nn.ModuleDict(rows)

    def forward(self, ids: Union[Tensor, Dict[str, Tensor], Dict[str, Tuple[Tensor, Tensor]]]
                ) -> PooledRows:
        cells: Dict[str, Tensor] = {}
        for name, rows in self.rows.items():
            fields = self.fields[name]
            if isinstance(ids, Tensor):
                columns = ids.unsqueeze(1) if ids.dim() == 1 and self.columns == 1 else ids
                if columns.dim() != 2 or columns.size(1) != self.columns:
                    raise ValueError("ids: expected [samples, fields], a column for each field of "
                                     "the job")
                first = self.first_column[name]
                cells[name] = rows(columns[:, first:first + len(fields)])
            elif torch.jit.isinstance(ids, Dict[str, Tensor]):
                pooled: List[Tensor] = []
                for field in fields:
                    found = rows(ids[field])
                    pooled.append(found.sum(1) if found.dim() == 3 else found)
                cells[name] = torch.stack(pooled, 1)
            elif torch.jit.isinstance(ids, Dict[str, Tuple[Tensor, Tensor]]):
                bags: List[Tensor] = []
                samples = self._samples(ids)
                for field in fields:
                    values, offsets = ids[field]
                    bags.append(_pool(rows(values), offsets, samples, False))
                cells[name] = torch.stack(bags, 1)
            else:
                raise ValueError("ids: expected a tensor [samples, fields], or a dict from each "
                                 "field to [samples], [samples, ids] or (values, offsets)")
        return PooledRows(self.names, self.fields, cells)

    def _samples(self, ids: Dict[str, Tuple[Tensor, Tensor]]) -> int:
        """The number of samples. Each field has as many offsets, or one more that is the number of
        its ids."""
        if not torch.jit.is_scripting():
            if _traced() and self.with_end and self.without_end:
                raise ValueError("torch.export cannot look at offsets: say include_last_offset= to "
                                 "tandem.EmbeddingBagCollection")
        samples, clear = 0, False
        for name in self.names:
            for field in self.fields[name]:
                values, offsets = ids[field]
                if not self.with_end or not _ends(values, offsets):
                    samples, clear = offsets.numel(), True
                elif not clear:
                    samples = max(samples, offsets.numel() - 1)
        for name in self.names:
            for field in self.fields[name]:
                values, offsets = ids[field]
                more = offsets.numel() - samples
                alike = more == 0 and self.without_end
                if not alike and not (more == 1 and self.with_end and _ends(values, offsets)):
                    wanted = "one for each sample" if self.without_end else \
                        "the number of ids behind them"
                    if self.with_end and self.without_end:
                        wanted += ", or the number of ids behind them"
                    raise ValueError("field " + field + ": " + str(offsets.numel()) +
                                     " offsets for " + str(values.numel()) + " ids of " +
                                     str(samples) + " samples; expected " + wanted)
        return samples


def _ends(values: Tensor, offsets: Tensor) -> bool:
    """Whether the last offset is the number of ids."""
    if not torch.jit.is_scripting():
        if _traced():
            return True
    return offsets.numel() > 0 and int(offsets[-1]) == values.numel()


# ---- whole models -----------------------------------------------------------------------------

def serving(tables: Tables[CheckpointTable], dense: Dict[str, numpy.ndarray],
            buffers: Dict[str, Tensor],
            model: Union[nn.Module, Callable[[], nn.Module]]) -> nn.Module:
    """As Checkpoint.serving, of a checkpoint with these tables, dense parameters and buffers."""
    if isinstance(model, nn.Module):
        model = copy.deepcopy(model)
    else:
        with made_for(tables):
            model = model()
    plain = _Plain(tables)
    model = plain.of(model) or plain.inside(model)
    _load_dense(dense, buffers, model)
    return model.eval().requires_grad_(False)


class _Plain:
    """Plain modules in the place of those whose rows are on servers; a table has one
    CheckpointRows."""

    def __init__(self, tables: Tables[CheckpointTable]) -> None:
        self._tables = tables
        self._rows: Dict[str, CheckpointRows] = {}
        self._made: Dict[int, nn.Module] = {}

    def _rows_of(self, table: Table) -> CheckpointRows:
        if table.name not in self._rows:
            found = self._tables.by_name.get(table.name)
            if found is None or found.dim != table.dim or found.fields != table.fields:
                raise Error(f"the module has {table}, and the checkpoint {self._tables.all}: is it "
                            "of another model?")
            self._rows[table.name] = CheckpointRows(found)
        return self._rows[table.name]

    def of(self, module: nn.Module) -> Optional[nn.Module]:
        """None: the module is plain already."""
        if isinstance(module, trained.EmbeddingBagCollection):
            return EmbeddingBagCollection(self._tables.with_fields,
                                          {t.name: self._rows_of(t) for t in module.tables},
                                          module.include_last_offset)
        if isinstance(module, trained.EmbeddingBag):
            return EmbeddingBag(self._rows_of(module.table), module.mode,
                                module.include_last_offset, module.padding_idx)
        if isinstance(module, trained.Embedding):
            rows = self._rows_of(module.table)
            return Embedding(rows, module.padding_idx) if module.ids is None else \
                FixedEmbedding(rows, module.ids)
        if isinstance(module, trained.EmbeddingCollection):
            return EmbeddingCollection({t.name: self._rows_of(t) for t in module.tables},
                                       module.padding_idx)
        return None

    def inside(self, module: nn.Module) -> nn.Module:
        for name, child in module.named_children():
            if id(child) not in self._made:
                self._made[id(child)] = self.of(child) or self.inside(child)
            module.add_module(name, self._made[id(child)])
        return module


def _load_dense(dense: Dict[str, numpy.ndarray], saved_buffers: Dict[str, Tensor],
                model: nn.Module) -> None:
    own = dict(model.named_parameters())
    for name, values in dense.items():
        if name not in own:
            raise Error(f"the checkpoint has a dense parameter {name}, and the module none of that "
                        f"name; it has {', '.join(own) or 'none'}")
        if tuple(own[name].shape) != values.shape:
            raise Error(f"dense parameter {name} is {list(values.shape)} in the checkpoint, "
                        f"{list(own[name].shape)} in the module")
        with torch.no_grad():
            own[name].copy_(torch.from_numpy(numpy.array(values)))
    buffers = dict(model.named_buffers())
    of_checkpoint = {name: values for name, values in saved_buffers.items()
                     if name in buffers and buffers[name].shape == values.shape}
    for name, values in of_checkpoint.items():
        buffers[name].detach().copy_(values)
    of_rows = {f"{path}.{n}" for path, module in model.named_modules()
               if isinstance(module, (CheckpointRows, FixedEmbedding))
               for n, _ in module.named_buffers()}
    state = [n for n in buffers
             if n not in of_rows and n not in of_checkpoint and "num_batches" not in n]
    other = [n for n in own if n not in dense] + state
    if other:
        warnings.warn(f"{', '.join(other)}: not in the checkpoint, which has what was trained; the "
                      "module's own values are taken: give Checkpoint.serving() the module that "
                      "was trained", stacklevel=3)
