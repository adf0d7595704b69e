"""Tandem's compiled models in a Python loop: a baseline for a module of one's own, and a measure of
the cost of the loop.

    import tandem, tandem.models                     # before tandem.init()
    job = tandem.init()
    rows = tandem.EmbeddingBagCollection()
    model = tandem.models.compiled("mlp { hidden: [32, 16] }", numbers=13)
    optimizer = tandem.DistributedOptimizer(model, loss="sum")
    for epoch in job.epochs():
        for numbers, ids, label in loader:
            optimizer.zero_grad()
            model.loss(numbers, rows(ids), label).backward()
            optimizer.step()

Importing it makes the package load libtandem_models.so, which links LibTorch, instead of
libtandem.so.
"""
from __future__ import annotations

import ctypes
import os
import re
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint64, c_void_p
from typing import Any, Iterable, Iterator, Optional, Sequence, Union

import torch
from torch import nn

from tandem import _abi
from tandem._abi import Error, check, library
from tandem.current import current_tables, current_worker
from tandem.sparse import KeyedTensor

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "tandem_model_new": (c_int, [c_char_p, c_int32, c_int32, POINTER(c_char_p), POINTER(c_int32),
                                 POINTER(c_int32), c_int32, POINTER(c_void_p)]),
    "tandem_model_floats": (c_int64, [c_void_p]),
    "tandem_model_parameters": (c_int32, [c_void_p]),
    "tandem_model_parameter": (c_char_p, [c_void_p, c_int32, POINTER(c_int32),
                                          POINTER(POINTER(c_int64)), POINTER(c_int64)]),
    "tandem_model_initial_values": (c_int, [c_void_p, c_uint64, c_void_p]),
    "tandem_model_forward": (c_int, [c_void_p, c_int64, c_void_p, POINTER(c_void_p), c_void_p,
                                     c_void_p]),
    "tandem_model_backward": (c_int, [c_void_p, c_int64, c_void_p, c_void_p, POINTER(c_void_p),
                                      c_void_p, POINTER(c_double), c_void_p, POINTER(c_void_p)]),
    "tandem_model_free": (None, [c_void_p]),
}


def _check_torch(path: str) -> None:
    """Raises ImportError unless the LibTorch that the library links is that of the imported
    package: one process cannot have two."""
    with open(path, "rb") as file:
        wanted = re.search(rb"libtorch_cpu\.so[.\d]*", file.read())
    with open("/proc/self/maps", encoding="utf-8") as maps:
        loaded = {os.path.basename(os.path.realpath(line.split()[-1])) for line in maps
                  if "/libtorch_cpu.so" in line}
    if wanted and any(not name.startswith(wanted.group().decode()) for name in loaded):
        raise ImportError(f"tandem.models: {os.path.basename(path)} was built with "
                          f"{wanted.group().decode()}, and the torch of this Python has "
                          f"{', '.join(sorted(loaded))}; use the system's python3-torch")


def _load() -> None:
    lib = _abi.library("libtandem_models.so", _check_torch)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


_load()


def compiled(config: str, numbers: int = 0, tables: Optional[Sequence[str]] = None,
             threads: Optional[int] = None, seed: Optional[int] = None) -> CompiledModel:
    """A compiled model as a module. config: as `model` of a job; numbers: of a sample; tables:
    names, in their order; None: all of the job, as the compiled model has them. threads: in one
    operation; None: as many as torch has. seed: of the initial values; None: the job's, which gives
    those of a job with that model. An Error: config is invalid; a ValueError names tables that the
    job does not have."""
    return CompiledModel(config, numbers, tables, threads, seed)


class CompiledModel(nn.Module):
    """The result of compiled(). Its parameters have the names and shapes of the model's
    checkpoints."""

    def __init__(self, config: str, numbers: int, tables: Optional[Sequence[str]],
                 threads: Optional[int], seed: Optional[int]) -> None:
        super().__init__()
        known = current_tables().all
        used = [t for t in known if tables is None or t.name in tables]
        if tables is not None and [t.name for t in used] != list(tables):
            raise ValueError(f"compiled: tables {list(tables)}, want names of the job's in their "
                             f"order: {[t.name for t in known]}")
        self.tables, self.numbers = used, numbers
        count = max(1, len(used))
        self._model = c_void_p()
        check(library().tandem_model_new(
            config.encode(), numbers, len(used),
            (c_char_p * count)(*[t.name.encode() for t in used]),
            (c_int32 * count)(*[len(t.fields) for t in used]),
            (c_int32 * count)(*[t.dim for t in used]),
            threads or torch.get_num_threads(), ctypes.byref(self._model)))
        flat = torch.empty(library().tandem_model_floats(self._model))
        check(library().tandem_model_initial_values(
            self._model, current_worker().seed if seed is None else seed, flat.data_ptr()))
        for name, begin, shape in self._layout():
            self._put(name.split("."),
                      nn.Parameter(flat[begin:begin + torch.Size(shape).numel()].view(shape)))
        self._flat = flat  # memory of the parameters, until the optimizer gives them its buffer

    def _layout(self) -> Iterator[tuple[str, int, list[int]]]:
        """Name, first element and shape of each parameter."""
        for i in range(library().tandem_model_parameters(self._model)):
            dims, shape, offset = c_int32(), POINTER(c_int64)(), c_int64()
            name = library().tandem_model_parameter(self._model, i, ctypes.byref(dims),
                                                    ctypes.byref(shape), ctypes.byref(offset))
            yield name.decode(), offset.value, shape[:dims.value]

    def _put(self, path: list[str], parameter: nn.Parameter) -> None:
        """A module's parameters have no dots in their names: modules inside stand for them."""
        at: Any = self
        for part in path[:-1]:
            if not hasattr(at, part):
                at.add_module(part, nn.Module())
            at = getattr(at, part)
        at.register_parameter(path[-1], parameter)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        raise Error("a compiled model cannot be copied; make another one, and load_state_dict() "
                    "the first one's")

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            library().tandem_model_free(self._model)

    def forward(self, numbers: Optional[torch.Tensor],
                rows: Union[KeyedTensor, Iterable[torch.Tensor]]) -> torch.Tensor:
        """Logits, float32 [samples], without gradients, to evaluate. Arguments as for loss(). An
        Error if gradients are enabled."""
        if torch.is_grad_enabled():
            raise Error("a compiled model has its loss inside: train by model.loss(numbers, rows, "
                        "label), and call the model under torch.no_grad()")
        numbers, cells = self._inputs(numbers, rows)
        logits = torch.empty(cells[0].shape[0] if cells else numbers.shape[0])
        check(library().tandem_model_forward(
            self._model, len(logits), numbers.data_ptr(), _pointers(cells),
            self._values(self.parameters()).data_ptr(),
            logits.data_ptr()))
        return logits

    def loss(self, numbers: Optional[torch.Tensor],
             rows: Union[KeyedTensor, Iterable[torch.Tensor]],
             label: torch.Tensor) -> torch.Tensor:
        """The sum over the samples of the binary cross-entropy, a float64 scalar. numbers:
        [samples, numbers] or None; rows: the result of EmbeddingBagCollection, or a list with a
        float32 tensor [samples, fields, dim] for each table; label: [samples], 0 or 1. ValueError:
        other shapes, or rows that are not float32."""
        numbers, cells = self._inputs(numbers, rows)
        label = label.detach().to(torch.float32).contiguous()
        if any(len(x) != label.numel() for x in [*cells, *([numbers] if self.numbers else [])]):
            raise ValueError(f"loss: {label.numel()} labels for numbers and rows of another number "
                             "of samples")
        return _Loss.apply(self, numbers, label, len(cells), *cells, *self.parameters())

    def _inputs(self, numbers: Optional[torch.Tensor],
                rows: Union[KeyedTensor, Iterable[torch.Tensor]]
                ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        cells = [rows.table(t.name) for t in self.tables] if hasattr(rows, "table") else list(rows)
        cells = [c.contiguous() for c in cells]
        for table, c in zip(self.tables, cells):
            if c.dim() != 3 or list(c.shape[1:]) != [len(table.fields), table.dim] \
                or c.dtype != torch.float32:
                raise ValueError(f"table {table.name}: rows of shape {list(c.shape)} and "
                                 f"{c.dtype}, want [samples, {len(table.fields)}, {table.dim}] and "
                                 "torch.float32")
        if len(cells) != len(self.tables):
            raise ValueError(f"rows of {len(cells)} tables, want those of "
                             f"{[t.name for t in self.tables]}")
        if len({len(c) for c in cells}) > 1:
            raise ValueError(f"rows of different numbers of samples: {[len(c) for c in cells]}")
        if not self.numbers:
            return torch.empty(0), cells
        if numbers is None or numbers.dim() != 2 or numbers.shape[1] != self.numbers:
            raise ValueError(f"numbers: want a tensor [samples, {self.numbers}]")
        if any(len(c) != len(numbers) for c in cells):
            raise ValueError(f"numbers of {len(numbers)} samples, rows of {len(cells[0])}")
        return numbers.detach().to(torch.float32).contiguous(), cells

    def _values(self, parameters: Iterable[torch.Tensor]) -> torch.Tensor:
        """The parameters in one piece: their own memory, or a copy if a script has moved one."""
        parameters = list(parameters)
        at = parameters[0].data_ptr() if parameters else 0
        for p in parameters:
            if p.data_ptr() != at or not p.is_contiguous():
                return torch.cat([p.detach().reshape(-1) for p in parameters])
            at += 4 * p.numel()
        return parameters[0].detach() if parameters else torch.empty(0)


def _pointers(tensors: Sequence[torch.Tensor]) -> Any:
    return (c_void_p * max(1, len(tensors)))(*[t.data_ptr() for t in tensors])


class _Loss(torch.autograd.Function):
    """Loss and gradients come out of one call of the model, so the gradients are there before
    backward()."""

    @staticmethod
    def forward(ctx: Any, model: CompiledModel,  # pylint: disable=arguments-differ
                numbers: torch.Tensor, label: torch.Tensor, tables: int,
                *tensors: torch.Tensor) -> torch.Tensor:
        cells, parameters = tensors[:tables], tensors[tables:]
        values = model._values(parameters)
        flat = torch.empty(sum(p.numel() for p in parameters))
        of_cells, loss = [torch.empty_like(c) for c in cells], c_double()
        check(library().tandem_model_backward(
            model._model, label.numel(), numbers.data_ptr(), label.data_ptr(), _pointers(cells),
            values.data_ptr(), ctypes.byref(loss), flat.data_ptr(), _pointers(of_cells)))
        ctx.gradients = (*of_cells, *[g.view(p.shape) for g, p in
                                      zip(flat.split([p.numel() for p in parameters]), parameters)])
        ctx.save_for_backward(label)  # so that torch refuses a second backward()
        return torch.tensor(loss.value, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor  # pylint: disable=arguments-differ
                 ) -> tuple[Any, ...]:
        assert ctx.saved_tensors, "there is always a label"
        gradients = ctx.gradients
        if scale.item() != 1:
            gradients = [g * scale.to(g.dtype) for g in gradients]
        return (None, None, None, None, *gradients)
