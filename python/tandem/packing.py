"""Values as bytes and back, for the state of a script in a checkpoint: numbers, text, bytes, lists,
tuples, sets, dicts, arrays of numpy and tensors of torch. Reading runs no code, unlike unpickling.

The bytes are an .npz: `tree` is JSON, the members `0`, `1`, ... the arrays in it.
"""
from __future__ import annotations

import io
import json
import sys
import zipfile
from typing import Any

import numpy


def pack(value: Any, what: str = "state") -> bytes:
    """The bytes of a value. what: its name in errors. TypeError: a part that no checkpoint can
    hold."""
    arrays: list[numpy.ndarray] = []
    tree = _tree(value, arrays, what)
    members = {str(i): array for i, array in enumerate(arrays)}
    text = numpy.frombuffer(json.dumps(tree).encode(), numpy.uint8)
    file = io.BytesIO()
    numpy.savez(file, tree=text, **members)
    return file.getvalue()


def unpack(data: Any) -> Any:
    """The value of bytes from pack(). ValueError: other bytes."""
    try:
        with numpy.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _value(json.loads(arrays["tree"].tobytes()), arrays)
    except (zipfile.BadZipFile, KeyError, IndexError, OSError, ValueError) as error:
        raise ValueError(f"not the state of a script: {error}") from None


def _tree(value: Any, arrays: list[numpy.ndarray], what: str) -> Any:
    """Values of JSON as they are; others as a list that begins with their kind."""
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, dict):
        return ["dict", [[_tree(k, arrays, what), _tree(v, arrays, f"{what}[{k!r}]")]
                         for k, v in value.items()]]
    for kind, name in ((list, "list"), (tuple, "tuple"), (set, "set")):
        if isinstance(value, kind):
            return [name, [_tree(v, arrays, f"{what}[{i}]") for i, v in enumerate(value)]]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", _add(numpy.frombuffer(value, numpy.uint8), arrays)]
    if isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "biufc":
        return ["scalar" if isinstance(value, numpy.generic) else "array",
                _add(numpy.asarray(value), arrays)]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        if value.dtype == torch.bfloat16:  # numpy has none
            return ["bfloat16", _add(value.view(torch.int16).numpy(), arrays)]
        return ["tensor", _add(value.numpy(), arrays)]
    raise TypeError(f"{what} is a {type(value).__name__}, which no checkpoint can hold; it can "
                    "hold numbers, text, bytes, lists, tuples, dicts, arrays and tensors")


def _add(array: numpy.ndarray, arrays: list[numpy.ndarray]) -> int:
    arrays.append(array)
    return len(arrays) - 1


def _value(tree: Any, arrays: dict[str, numpy.ndarray]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, content = tree
    if kind == "dict":
        return {_value(k, arrays): _value(v, arrays) for k, v in content}
    if kind in ("list", "tuple", "set"):
        return {"list": list, "tuple": tuple, "set": set}[kind](_value(v, arrays) for v in content)
    array = arrays[str(content)]
    if kind == "bytes":
        return array.tobytes()
    if kind in ("array", "scalar"):
        return array if kind == "array" else array[()]
    import torch
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor
