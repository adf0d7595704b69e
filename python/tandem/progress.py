"""The position of a script in its job: its part of a checkpoint, and how a run resumes from it."""
from __future__ import annotations

import copy
import ctypes
import types
import warnings
import weakref
from typing import Any, Callable, Optional

import torch

from tandem._abi import Error, Misuse, check, library
from tandem.packing import pack, unpack
from tandem.randomness import Stream, random_state, set_random_state


def _buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that belong to the module's state (without those of persistent=False)."""
    persistent = module.state_dict()
    return {name: buffer for name, buffer in module.named_buffers() if name in persistent}


def _state_of(value: Any) -> Any:
    """The state of an object of job.keep(). Schedules of torch 1.13 have methods of their own in it
    (OneCycleLR, CyclicLR), which they have again when they are made."""
    schedules = torch.optim.lr_scheduler
    kind = getattr(schedules, "LRScheduler", schedules._LRScheduler)
    state = value.state_dict()
    return _without_methods(state) if isinstance(value, kind) else state


def _without_methods(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _without_methods(part) for key, part in state.items()
                if not isinstance(part, (types.MethodType, weakref.ref))}
    return [_without_methods(part) for part in state] if isinstance(state, list) else state


class Progress:
    """The script's part of a checkpoint: its place in its epochs and in its loader, random states,
    buffers of the module, the state of its optimizer, and the objects of job.keep().

    A checkpoint may come while the script is in its loop over batches, behind it (for example in an
    evaluation), or between two epochs. Behind the loop, the checkpoint has the state at the end of
    the loop: a resumed run does the rest of that epoch again. Workers may be at different places,
    and one that goes back to the end of an epoch needs its state there. So the last end of a loop
    stays until the next epoch has a step.

    Barriers are counted. Some workers may do again an epoch that others have ended. The others do
    not come to its barriers again, so a worker passes a barrier that another one stands behind. All
    workers meet at the barriers behind which no worker resumes.

    handle: of the worker. guard: makes a context that delays Ctrl-C. at_hand: step and epoch of the
    batch at hand. epoch: the last one that the script has begun. begun: whether the loop over
    epochs has begun; body: how often its body has. reading, testing: random numbers for reading
    batches to train on, and to evaluate. barriers: how many the script has passed in its loop over
    epochs.
    """

    def __init__(self, handle: ctypes.c_void_p, guard: Callable[[], Any]) -> None:
        self._handle = handle
        self._rank = 0
        self._module: Any = None        # of the script
        self._optimizer: Any = None     # the torch.optim.Optimizer of the script
        self.reading, self.testing = Stream(guard), Stream(guard)
        self.at_hand = 0, 0
        self.epoch, self.begun, self.body = -1, False, 0
        self._inside = False            # the body of the loop over epochs, or a loop without it
        self._alone = False             # a loop over batches without the loop over epochs
        self.barriers = 0
        self._passed = 0                # so many that a worker will not come to again
        # By number of the barrier: the values that workers have reduced there, in the last body of
        # the loop over epochs.
        self.reduced: dict[int, dict[str, float]] = {}
        self._passed_values: dict[int, dict[str, float]] = {}  # of a worker that had passed it
        self._barriers_at_epoch = 0     # before the body of the loop, which is done again
        self._kept: dict[str, Any] = {}
        # Over the batches of the epoch: None: not yet; "in"; "over".
        self._loop: Optional[str] = None
        self._place: Any = None         # data._Place of the last loop
        self._loop_end = b""
        self._resumed: Any = None       # the state in the checkpoint
        self._again: Optional[int] = None  # the epoch whose body a resumed run does again
        self._taken_up = False          # the state of the script in the checkpoint
        self._resumed_place: Any = None  # for the next loop

    # ---- events of the script ----

    def begin(self) -> Optional[int]:
        """The loop over epochs begins. Returns the epoch in which the run resumes; None: the next
        one that comes."""
        if self.begun:  # by a loop that was left
            return None
        self.take_up()
        # The barriers before the loop over epochs are repeated in every run, also a resumed one.
        self.barriers = self._barriers_at_epoch
        self.begun = True
        return self._again

    def take_up(self) -> None:
        """The first loop begins, over epochs or over batches: restores the script's state in a
        resumed run."""
        now = self._resumed
        if now is None or self._taken_up:
            return
        lost = sorted(set(now["kept"]) - set(self._kept))
        if lost:
            raise Error(f"the run resumes from a checkpoint with the state of {lost[0]!r}; call "
                        f"job.keep({lost[0]}=...) before the first loop, as the first run did")
        if now["groups"]:  # making a schedule has set learning rates
            for group, saved in zip(self._optimizer.param_groups, now["groups"]):
                group.update(copy.deepcopy(saved))
        self.reading.set_state(now["reading"])
        self.testing.set_state(now["testing"])
        self._resumed_place = now["loader"]
        self._barriers_at_epoch, self._taken_up = now["barriers"], True
        if now["inside"]:
            self._again = now["epoch"]
        else:
            self.found()

    def found(self) -> None:
        """The script is where the checkpoint was made: restores its random numbers."""
        if self._resumed is not None:
            set_random_state(self._resumed["random"])
            self._resumed = None

    def begin_epoch(self, epoch: int) -> None:
        """The body of the loop over epochs begins with this one."""
        self.epoch, self._inside, self._alone, self._loop = epoch, True, False, None
        self.body += 1
        self._barriers_at_epoch, self.reduced = self.barriers, {}

    def has_passed_barrier(self) -> bool:
        """Whether another worker stands behind the barrier at hand, in the checkpoint from which
        the run resumes."""
        if not self.begun or self.barriers >= self._passed:
            return False
        self.barriers += 1
        self.reduced[self.barriers] = self._passed_values.get(self.barriers, {})
        return True

    def end_epoch(self) -> None:
        """The body of the loop over epochs has ended."""
        self._inside = False

    def begin_loop(self, place: Any) -> Optional[dict[str, Any]]:
        """place: data._Place of the loop. Returns the state of the place where the loop resumes;
        None: the loop of an epoch that begins. An interrupted call is made again, until in_loop()
        or end_loop()."""
        self._place, self._loop = place, "in"
        at, inside = self._resumed_place, self.resumes()
        if inside and at["epoch"] == self.epoch:
            place.resume(at)
        elif at is not None:
            place.restore(at["now"])
        return at if inside else None

    def resumes(self) -> bool:
        """Whether the next loop over batches is the one in which the run resumes."""
        self.take_up()
        return self._again is not None and self._resumed_place is not None

    def resuming(self) -> bool:
        """Whether the run resumes, or has resumed."""
        return self._resumed is not None or self._taken_up

    def check_first_loop(self) -> None:
        """An Error: the body of the loop over epochs has had its loop over batches."""
        if self.begun and self._inside and self._loop == "over":
            raise Misuse(f"a second loop over a tandem.DataLoader in epoch {self.epoch}; its "
                         "batches are used up: have one loop over batches in the body of `for "
                         "epoch in job.epochs()`, and evaluate by `for batch in "
                         "job.evaluate(loader)`")

    @property
    def alone(self) -> bool:
        """Whether a loop over batches is not in the body of the loop over epochs."""
        return self._alone

    def in_loop(self) -> None:
        """The loop over batches has its place."""
        self._resumed_place = None

    def continue_loop(self, place: Any) -> None:
        """A loop over batches that was left in the middle continues, at this data._Place."""
        self._place, self._loop = place, "in"

    def stands_in(self, epoch: int) -> None:
        """A loop over batches has its first batch of this epoch."""
        self._alone = not self._inside
        self.epoch, self._inside = epoch, True

    def end_loop(self) -> None:
        """The loop over batches has ended: a checkpoint behind it has the state of this moment."""
        self.found()
        self._loop, self._resumed_place = "over", None
        writes = library().tandem_writes_checkpoints(self._handle)
        self._loop_end = self._snapshot() if writes else b""
        if self._alone:
            self._inside, self._alone, self._again = False, False, None

    def keep(self, objects: dict[str, Any]) -> None:
        """As Job.keep. ValueError: an object without state_dict() and load_state_dict(), or a name
        that is taken."""
        for name, value in objects.items():
            if not hasattr(value, "state_dict") or not hasattr(value, "load_state_dict"):
                raise ValueError(f"job.keep({name}=...): a {type(value).__name__} has no "
                                 "state_dict() and load_state_dict()")
            if name in self._kept:
                raise ValueError(f"job.keep({name}=...): it keeps one of that name already")
            # An error says what no checkpoint can hold.
            pack(_state_of(value), f"job.keep({name}=...): its state")
            self._kept[name] = value
            if self._resumed is not None:
                self._load(name, value)

    # ---- checkpoints ----

    def checkpoint(self) -> None:
        """Gives the worker the script's part of a checkpoint."""
        over = self._inside and self._loop == "over"
        if self._inside and self._loop == "in" and self._place.used:
            self._loop_end = b""
        whole = {"now": self._loop_end if over else self._snapshot(),
                 "loop_end": b"" if over else self._loop_end,
                 "optimizer": self._optimizer_state() if self._rank == 0 else None,
                 # Buffers of this moment, as the checkpoint's dense parameters: for runs that begin
                 # with it.
                 "buffers": _buffers_of(self._module)}
        data = pack(whole)
        check(library().tandem_checkpoint_state(self._handle, data, len(data)))

    def _snapshot(self) -> bytes:
        if self._resumed is not None:  # unchanged, because the work since then is done again
            return pack(self._resumed)
        place = self._resumed_place or (self._place and self._place.state())
        passed = self.barriers if self.begun and not self._inside else self._barriers_at_epoch
        return pack({
            "epoch": self.epoch, "inside": self._inside, "step": self.at_hand,
            "barriers": passed, "reduced": self.reduced, "loader": place, "random": random_state(),
            "reading": self.reading.state(), "testing": self.testing.state(),
            "buffers": _buffers_of(self._module),
            "groups": self._optimizer and [{k: v for k, v in group.items() if k != "params"}
                                           for group in self._optimizer.param_groups],
            "kept": {name: _state_of(value) for name, value in self._kept.items()}})

    def _optimizer_state(self) -> Optional[dict[str, Any]]:
        """The same on all workers."""
        return self._optimizer and {"kind": type(self._optimizer).__name__,
                                    "state": self._optimizer.state_dict()["state"]}

    # ---- resuming ----

    def restore(self, rank: int, world_size: int, module: torch.nn.Module,
                torch_optimizer: Optional[torch.optim.Optimizer]) -> None:
        """Takes the state of the script's module and optimizer (None: the job has the optimizer)
        from the checkpoint if the run resumes."""
        self._rank, self._module, self._optimizer = rank, module, torch_optimizer
        own = self._read(rank)
        if own is None:
            self._take_buffers()
            return
        now, self._loop_end, _ = own
        optimizer = None
        for other in range(world_size):
            of_other, _, states = self._read(other)
            self._passed = max(self._passed, of_other["barriers"])
            self._passed_values.update(of_other.get("reduced", {}))
            optimizer = states if other == 0 else optimizer
        self._restore_buffers(now["buffers"])
        self._restore_optimizer(optimizer, now["groups"])
        self._resumed, self.epoch, self.at_hand = now, now["epoch"], now["step"]
        for name, value in self._kept.items():
            self._load(name, value)

    def _take_buffers(self) -> None:
        """In a run that begins with a checkpoint, for example to evaluate it: gives all workers the
        buffers of worker 0."""
        own = _buffers_of(self._module)
        data, count = ctypes.c_void_p(), ctypes.c_int64()
        if not own or not check(library().tandem_initial_state(self._handle, ctypes.byref(data),
                                                               ctypes.byref(count))):
            return
        try:
            saved = unpack((ctypes.c_char * count.value).from_address(data.value))
            self._restore_buffers(saved["buffers"])
        except (Error, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{', '.join(own)}: as the script has made them, since those of the "
                          f"checkpoint that the run begins with do not fit: {error}", stacklevel=4)

    def _read(self, rank: int) -> Optional[tuple[Any, bytes, Any]]:
        """Returns the state in which the script of a worker resumes, the state at the end of its
        last loop, and the optimizer's state of worker 0. None: the run begins."""
        data, count, epoch = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64()
        there = check(library().tandem_resumed_state(self._handle, rank, ctypes.byref(data),
                                                     ctypes.byref(count), ctypes.byref(epoch)))
        if not there:
            return None
        try:
            saved = unpack((ctypes.c_char * count.value).from_address(data.value))
            now, loop_end = unpack(saved["now"]), saved["loop_end"]
            ahead = now["epoch"] > epoch.value or (not now["inside"] and now["epoch"]
                                                   == epoch.value)
            if ahead and loop_end:
                now, loop_end = unpack(loop_end), b""
            return now, loop_end, saved["optimizer"]
        except ValueError as error:
            raise Error(f"the checkpoint of the run: worker {rank}: {error}") from None

    def _restore_buffers(self, saved: dict[str, torch.Tensor]) -> None:
        own = _buffers_of(self._module)
        for name in sorted({*saved, *own}):
            of_checkpoint = tuple(saved[name].shape) if name in saved else "none"
            of_module = tuple(own[name].shape) if name in own else "none"
            if of_checkpoint != of_module:
                raise Error(f"buffer {name}: {of_module} in the module, {of_checkpoint} in the "
                            "checkpoint that the run begins with; has the script changed?")
        for name, buffer in own.items():
            buffer.detach().copy_(saved[name])

    def _restore_optimizer(self, saved: Any, groups: Any) -> None:
        optimizer = self._optimizer
        if optimizer is None:
            return
        kind = type(optimizer).__name__
        own = optimizer.state_dict()["param_groups"]
        if saved is None or saved["kind"] != kind or len(groups) != len(own):
            raise Error(f"the optimizer is {kind} with {len(own)} groups of parameters, in the "
                        f"run's checkpoint {saved and saved['kind']} with "
                        f"{groups and len(groups)}; has the script changed?")
        optimizer.load_state_dict({"state": saved["state"], "param_groups": [
            {**group, "params": mine["params"]} for group, mine in zip(groups, own)]})

    def _load(self, name: str, value: Any) -> None:
        if name not in self._resumed["kept"]:
            raise Error(f"job.keep({name}=...): the run's checkpoint has no state of that name; "
                        "has the script changed?")
        value.load_state_dict(copy.deepcopy(self._resumed["kept"][name]))
