"""Tandem from Python: your module, your loop and your loader; tables on parameter servers.

    job = tandem.init()
    model = Ranker()                                     # holds tandem.EmbeddingBagCollection()
    optimizer = tandem.DistributedOptimizer(torch.optim.Adam(model.parameters()), model)
    loader = tandem.DataLoader(my_loader, features=1)    # where in a batch its ids are
    for epoch in job.epochs():
        for dense, ids, label in loader:
            optimizer.zero_grad()
            loss_of(model(dense, ids), label).backward()
            optimizer.step()

    saved = tandem.load("OUT/model")                     # tables and dense parameters

docs/PYTHON.md is the tutorial. Importing this package needs numpy; training needs torch.
"""
from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

try:
    import numpy as _numpy  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(f"tandem needs numpy; hint: {sys.executable} -m pip install numpy") from None

from tandem._abi import Diverged, Error, Misuse, preload_blas
from tandem.hashing import hash_columns, hash_ids
from tandem.checkpoint import Checkpoint, load
from tandem.store import Store

if TYPE_CHECKING:  # __getattr__ imports them
    from tandem.data import DataLoader
    from tandem.nn import (Embedding, EmbeddingBag, EmbeddingBagCollection, EmbeddingBagConfig,
                           EmbeddingCollection)
    from tandem.optim import DistributedOptimizer
    from tandem.session import Job, init, job
    from tandem.sparse import JaggedTensor, KeyedJaggedTensor, KeyedTensor

preload_blas()

# Names that need torch, by the file that has them. The first use loads it.
_LAZY = {
    "Job": "session", "init": "session", "job": "session",
    "KeyedJaggedTensor": "sparse", "KeyedTensor": "sparse", "JaggedTensor": "sparse",
    "EmbeddingBagCollection": "nn", "EmbeddingCollection": "nn", "EmbeddingBag": "nn",
    "Embedding": "nn", "EmbeddingBagConfig": "nn",
    "DataLoader": "data",
    "DistributedOptimizer": "optim",
}

__version__ = "0.2.0"  # the same as in CMakeLists.txt; plain.py checks it

__all__ = ["Error", "Diverged", "Misuse", "Checkpoint", "Store", "__version__", "hash_columns",
           "hash_ids", "load", *_LAZY]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tandem' has no attribute '{name}'")
    try:
        return getattr(importlib.import_module("tandem." + _LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"tandem.{name} needs PyTorch; hint: {sys.executable} -m pip install "
                          "torch") from None
