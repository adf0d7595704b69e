"""Random states for checkpoints: of the generators that a whole process shares, in torch, numpy and
random, and of the generators of a loader."""
from __future__ import annotations

import contextlib
import ctypes
import random
from typing import Any, Callable

import numpy
import torch

_MT19937_BYTES = 625 * 4  # its key and the place in it


def random_state() -> dict[str, Any]:
    """The states of the generators that the process shares."""
    state = {"torch": torch.get_rng_state(), "numpy": numpy.random.get_state(legacy=False),
             "python": random.getstate()}
    return {**state, "cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_initialized() \
        else state


def set_random_state(state: dict[str, Any]) -> None:
    """state: the result of random_state()."""
    torch.set_rng_state(state["torch"])
    numpy.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])


def _numpy_mark() -> Any:
    """A value that changes whenever numpy's shared generator draws. It costs a hundredth of the
    generator's state."""
    generator = getattr(numpy.random.mtrand._rand, "_bit_generator", None)
    if type(generator).__name__ == "MT19937":
        return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    return repr(numpy.random.get_state(legacy=False))


class Stream:
    """Random numbers for reading batches. A loader reads ahead, sometimes more and sometimes less,
    so it must not draw from the script's generators: inside `with stream:` the shared generators
    have the stream's own states, which begin as the script's at the first read. Exchanging numpy's
    state takes as long as a small batch, so the stream has one only after drawing from numpy.
    guard: makes a context that delays Ctrl-C, so that generators are exchanged as a whole."""

    def __init__(self, guard: Callable[[], Any] = contextlib.nullcontext) -> None:
        self._guard = guard
        self._torch: Any = None
        self._python: Any = None
        self._numpy: Any = None
        self._outside: Any = None

    def __enter__(self) -> None:
        inside = False
        try:
            with self._guard():
                self._enter()
                inside = True
        except BaseException:
            if inside:  # a Ctrl-C that waited: the block is not entered
                self._exit()
            raise

    def __exit__(self, *_: Any) -> None:
        with self._guard():
            self._exit()

    def _enter(self) -> None:
        self._outside = (torch.get_rng_state(), random.getstate(),
                         _numpy_mark() if self._numpy is None
                         else numpy.random.get_state(legacy=False))
        if self._torch is not None:
            torch.set_rng_state(self._torch)
            random.setstate(self._python)
        if self._numpy is not None:
            numpy.random.set_state(self._numpy)

    def _exit(self) -> None:
        of_torch, of_python, of_numpy = self._outside
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        if self._numpy is not None:
            self._numpy = numpy.random.get_state(legacy=False)
            numpy.random.set_state(of_numpy)
        elif _numpy_mark() != of_numpy:
            self._numpy = numpy.random.get_state(legacy=False)

    def state(self) -> dict[str, Any]:
        """Determines the next numbers, also while they are the script's."""
        own = {"torch": self._torch, "python": self._python, "numpy": self._numpy}
        shared = random_state()
        return {"shared": {k: shared[k] for k in own if own[k] is None}, **own}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a state(). Also sets the script's generators of the kinds that the stream
        lacks."""
        set_random_state({**random_state(), **state["shared"]})
        self._torch, self._python, self._numpy = state["torch"], state["python"], state["numpy"]

    def rewind(self, state: dict[str, Any]) -> None:
        """As set_state, but leaves the script's generators, in the process that had this state."""
        self._torch, self._python, self._numpy = [
            state["shared"][k] if state[k] is None else state[k]
            for k in ("torch", "python", "numpy")]


def generators_of(loader: Any) -> list[torch.Generator]:
    """The torch generators of a torch DataLoader and its samplers, each once."""
    found: list[torch.Generator] = []
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    for owner in (loader, sampler, batches, getattr(batches, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not g for g in found):
            found.append(generator)
    return found
