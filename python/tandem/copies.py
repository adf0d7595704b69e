"""Copies of batches. A loader may fill the same memory for each batch, and batches are read ahead.
"""
from __future__ import annotations

import array
import collections
import copy
import dataclasses
import types
from typing import Any

import numpy
import torch

_CONSTANT = (type(None), bool, int, float, complex, str, bytes, range, type, types.FunctionType,
             types.MethodType, types.BuiltinFunctionType, types.ModuleType, torch.nn.Module,
             torch.Generator)


def copy_of(part: Any, inside: bool = False) -> Any:
    """A copy of a batch, which later changes of the batch do not reach: tensors, arrays, columns
    of pandas and lists, also in tuples, dicts and objects. An object that an object refers to
    (inside), such as a data set, stays the same, unless it is a dataclass or holds ids in bags. So
    does what cannot be copied."""
    if type(part) in _CONSTANT:
        return part
    if isinstance(part, torch.Tensor):
        return _tensor(part)
    if isinstance(part, numpy.ndarray):
        return numpy.array(part, order="K", subok=True)
    try:
        if isinstance(part, (list, tuple)):
            return _sequence(part, inside)
        if isinstance(part, dict):
            made = copy.copy(part)
            for key, value in part.items():
                made[key] = copy_of(value, inside)
            return made
        if isinstance(part, (bytearray, array.array, set)):
            return copy.copy(part)
        if isinstance(part, collections.deque):
            return type(part)((copy_of(value, inside) for value in part), part.maxlen)
        if hasattr(part, "iloc"):  # of pandas
            return part.copy()
        of_batch = dataclasses.is_dataclass(part) or \
            (hasattr(part, "values") and hasattr(part, "lengths"))
        return part if (inside and not of_batch) or isinstance(part, _CONSTANT) else _object(part)
    except Exception:  # the class of the script cannot be copied
        return part


def _tensor(part: torch.Tensor) -> torch.Tensor:
    if part.requires_grad:  # the script asks for its gradient
        return part
    made = part.detach().clone()
    pinned = torch.cuda.is_initialized() and part.is_pinned()
    return made.pin_memory() if pinned else made


def _sequence(part: Any, inside: bool) -> Any:
    parts = [copy_of(value, inside) for value in part]
    if isinstance(part, list):
        made = copy.copy(part)
        made[:] = parts
        return made
    return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)


def _object(part: Any) -> Any:
    if hasattr(type(part), "__copy__"):  # it knows what its parts refer to
        return part.clone() if callable(getattr(part, "clone", None)) else copy.deepcopy(part)
    slots = [name for kind in type(part).__mro__
             for name in _names(kind.__dict__.get("__slots__", ())) if hasattr(part, name)]
    state = {**getattr(part, "__dict__", {}), **{name: getattr(part, name) for name in slots}}
    if not state:
        return part
    made = copy.copy(part)
    for name, value in state.items() if made is not part else ():
        object.__setattr__(made, name, copy_of(value, inside=True))
    return made


def _names(slots: Any) -> tuple[str, ...]:
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
