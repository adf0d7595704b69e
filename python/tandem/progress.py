"""Where a script stands in its job: what it gives to a checkpoint, and finds again when the run goes on."""
from __future__ import annotations

import copy
import ctypes
import warnings
from typing import TYPE_CHECKING, Any, Optional

from tandem._abi import Error, check, library
from tandem.packing import pack, unpack
from tandem.randomness import Stream, random_state, set_random_state

if TYPE_CHECKING:
    import torch
    from tandem.data import _Place
    from tandem.job import Job


def _buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those that belong to the module's state: not what it makes for itself (persistent=False)."""
    persistent = module.state_dict()
    return {name: buffer for name, buffer in module.named_buffers() if name in persistent}


class Progress:
    """What is in a checkpoint of the script: where it is in its epochs and in its loader, random states, buffers of
    the module, the state of its optimizer, and the objects that it has the job keep.

    A checkpoint may come while the script is in its loop over batches, behind it (in an evaluation, say), or
    between two epochs. Behind the loop, what was there as it ended goes into the checkpoint: the run goes on by
    doing the rest of that epoch again. Not all workers may have come as far; those that go back to the
    end of an epoch need that, too, so the last end of a loop stays until the next epoch has a step.

    Barriers are counted: of those that some workers do again, others may stand behind one, and would not come
    to it. Who does it again passes by. All meet at those behind which no worker goes on.

    reading, testing: the random numbers of who reads batches to train on, and to evaluate.
    """

    def __init__(self, job: Job) -> None:
        self._job: Any = job
        self.reading, self.testing = Stream(job._uninterrupted), Stream(job._uninterrupted)
        self.barriers = 0                      # that the script has been at in its loop over epochs
        self._passed = 0                       # so many that a worker will not come to again
        self._barriers_at_epoch = 0            # those before the body of the loop, which is done again
        self._kept: dict[str, Any] = {}
        self._epoch, self._inside = -1, False  # the last one that the script has begun, and not ended
        self._loop: Optional[str] = None                      # over its batches: None: not yet; "in"; "over"
        self._place: Optional[_Place] = None                     # in the loader: of the last loop
        self._loop_end = b""
        self._begun = False                    # the loop over epochs
        self._resumed: Any = None                   # what the run goes on from
        self._again: Optional[int] = None           # the epoch whose body it does again
        self._taken_up = False                      # the state of the script that it goes on from
        self._resumed_place: Any = None             # for the next loop

    # ---- what the script does ----

    def begin(self) -> Optional[int]:
        """The loop over epochs begins. Returns the epoch in which the run goes on; None: it is the next one
        that comes."""
        if self._begun:  # by a loop that was left
            return None
        self.take_up()
        self.barriers = self._barriers_at_epoch  # those before the loop over epochs are met each time
        self._begun = True
        return self._again

    def take_up(self) -> None:
        """The first loop begins, over epochs or over batches: a run that goes on finds the state of its script."""
        now = self._resumed
        if now is None or self._taken_up:
            return
        lost = sorted(set(now["kept"]) - set(self._kept))
        if lost:
            raise Error(f"the run goes on from a checkpoint with the state of {lost[0]!r}; say job.keep("
                        f"{lost[0]}=...) before the first loop, as when it was saved")
        if now["groups"]:  # making a schedule has set learning rates
            for group, saved in zip(self._job._optimizer._torch.param_groups, now["groups"]):
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
        """All stands as it did: so do the script's random numbers."""
        if self._resumed is not None:
            set_random_state(self._resumed["random"])
            self._resumed = None

    def begin_epoch(self, epoch: int) -> None:
        """The body of the loop over epochs begins with this one."""
        self._epoch, self._inside, self._loop = epoch, True, None
        self._barriers_at_epoch = self.barriers

    def has_passed_barrier(self) -> bool:
        """Whether another worker stands behind the barrier at hand, in the checkpoint that the run goes on from."""
        if not self._begun or self.barriers >= self._passed:
            return False
        self.barriers += 1
        return True

    def end_epoch(self) -> None:
        """The body of the loop over epochs has ended."""
        self._inside = False

    def begin_loop(self, place: _Place) -> Optional[dict[str, Any]]:
        """Returns the place that the loop goes on at, in the epoch that the run goes on in; None: it is the
        loop of another epoch. An interrupted call is made again, until in_loop() or end_loop()."""
        self._place, self._loop = place, "in"
        at, inside = self._resumed_place, self.goes_on()
        if inside and at["epoch"] == self._epoch:
            place.resume(at)
        elif at is not None:
            place.restore(at["now"])
        return at if inside else None

    def goes_on(self) -> bool:
        """Whether the next loop over batches is the one in which the run goes on."""
        self.take_up()
        return self._again is not None and self._resumed_place is not None

    def in_loop(self) -> None:
        """The loop over batches has its place."""
        self._resumed_place = None

    @property
    def begun(self) -> bool:
        """Whether the loop over epochs has."""
        return self._begun

    def continue_loop(self, place: _Place) -> None:
        """The loop over batches that was left in the middle goes on, at this place."""
        self._place, self._loop = place, "in"

    def stands_in(self, epoch: int) -> None:
        """A loop over batches was left in the middle of this epoch."""
        self._epoch, self._inside = epoch, True

    def end_loop(self) -> None:
        """The loop over batches has ended: what is there now is what a checkpoint behind it has."""
        self.found()
        self._loop, self._resumed_place = "over", None
        self._loop_end = self._snapshot() if library().tandem_writes_checkpoints(self._job._handle) else b""

    def keep(self, objects: dict[str, Any]) -> None:
        """As Job.keep. ValueError: one without state_dict() and load_state_dict(), or a name that is taken."""
        for name, value in objects.items():
            if not hasattr(value, "state_dict") or not hasattr(value, "load_state_dict"):
                raise ValueError(f"job.keep({name}=...): a {type(value).__name__} has no state_dict() and "
                                 "load_state_dict()")
            if name in self._kept:
                raise ValueError(f"job.keep({name}=...): it keeps one of that name already")
            pack(value.state_dict(), f"job.keep({name}=...): its state")  # or it says what no checkpoint can hold
            self._kept[name] = value
            if self._resumed is not None:
                self._load(name, value)

    # ---- checkpoints ----

    def checkpoint(self) -> None:
        """Gives the worker what its part of a checkpoint has of the script."""
        job = self._job
        over = self._inside and self._loop == "over"
        if self._inside and self._loop == "in" and self._place.used:
            self._loop_end = b""
        whole = {"now": self._loop_end if over else self._snapshot(),
                 "loop_end": b"" if over else self._loop_end,
                 "optimizer": self._optimizer_state() if job.rank == 0 else None,
                 # Buffers of this moment, as the dense parameters of the checkpoint: for runs that begin with it.
                 "buffers": _buffers_of(job._optimizer._module)}
        data = pack(whole)
        check(library().tandem_checkpoint_state(job._handle, data, len(data)))

    def _snapshot(self) -> bytes:
        if self._resumed is not None:  # as it was found: what has been done since is done again
            return pack(self._resumed)
        place = self._resumed_place or (self._place and self._place.state())
        optimizer = self._job._optimizer
        return pack({
            "epoch": self._epoch, "inside": self._inside, "step": (self._job.step, self._job.epoch),
            "barriers": self.barriers if self._begun and not self._inside else self._barriers_at_epoch,
            "loader": place, "random": random_state(),
            "reading": self.reading.state(), "testing": self.testing.state(),
            "buffers": _buffers_of(optimizer._module),
            "groups": optimizer._torch and [{k: v for k, v in group.items() if k != "params"}
                                            for group in optimizer._torch.param_groups],
            "kept": {name: value.state_dict() for name, value in self._kept.items()}})

    def _optimizer_state(self) -> Optional[dict[str, Any]]:
        """The same on all workers."""
        torch_optimizer = self._job._optimizer._torch
        return torch_optimizer and {"kind": type(torch_optimizer).__name__,
                                    "state": torch_optimizer.state_dict()["state"]}

    # ---- going on ----

    def restore(self) -> None:
        """Once the optimizer is made: takes its state and the module's buffers from the checkpoint that the run goes
        on from, if it does."""
        own = self._read(self._job.rank)
        if own is None:
            self._take_buffers()
            return
        now, self._loop_end, _ = own
        optimizer = None
        for rank in range(self._job.world_size):
            of_rank, _, states = self._read(rank)
            self._passed = max(self._passed, of_rank["barriers"])
            optimizer = states if rank == 0 else optimizer
        self._restore_buffers(now["buffers"])
        self._restore_optimizer(optimizer, now["groups"])
        self._resumed, self._epoch = now, now["epoch"]
        self._job.step, self._job.epoch = now["step"]
        for name, value in self._kept.items():
            self._load(name, value)

    def _take_buffers(self) -> None:
        """Of a run that begins with a checkpoint, such as one that only evaluates: all workers have the buffers of
        worker 0."""
        own = _buffers_of(self._job._optimizer._module)
        data, count = ctypes.c_void_p(), ctypes.c_int64()
        if not own or not check(library().tandem_initial_state(self._job._handle, ctypes.byref(data),
                                                               ctypes.byref(count))):
            return
        try:
            saved = unpack((ctypes.c_char * count.value).from_address(data.value))
            self._restore_buffers(saved["buffers"])
        except (Error, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{', '.join(own)}: as the script has made them, since those of the checkpoint that the run begins "
                          f"with do not fit: {error}", stacklevel=4)

    def _read(self, rank: int) -> Optional[tuple[Any, bytes, Any]]:
        """Where the script of a worker goes on, the end of its loop that it may still have to go back to, and the
        optimizer's state (of worker 0); None: the run begins."""
        data, count, epoch = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64()
        there = check(library().tandem_resumed_state(self._job._handle, rank, ctypes.byref(data),
                                                   ctypes.byref(count), ctypes.byref(epoch)))
        if not there:
            return None
        try:
            saved = unpack((ctypes.c_char * count.value).from_address(data.value))
            now, loop_end = unpack(saved["now"]), saved["loop_end"]
            ahead = now["epoch"] > epoch.value or (not now["inside"] and now["epoch"] == epoch.value)
            if ahead and loop_end:
                now, loop_end = unpack(loop_end), b""
            return now, loop_end, saved["optimizer"]
        except ValueError as error:
            raise Error(f"the checkpoint that the run goes on from: worker {rank}: {error}") from None

    def _restore_buffers(self, saved: dict[str, torch.Tensor]) -> None:
        own = _buffers_of(self._job._optimizer._module)
        for name in sorted({*saved, *own}):
            of_checkpoint = tuple(saved[name].shape) if name in saved else "none"
            of_module = tuple(own[name].shape) if name in own else "none"
            if of_checkpoint != of_module:
                raise Error(f"buffer {name}: {of_module} in the module, {of_checkpoint} in the checkpoint that the run "
                            "begins with; has the script changed?")
        for name, buffer in own.items():
            buffer.detach().copy_(saved[name])

    def _restore_optimizer(self, saved: Any, groups: Any) -> None:
        optimizer = self._job._optimizer._torch
        if optimizer is None:
            return
        kind = type(optimizer).__name__
        own = optimizer.state_dict()["param_groups"]
        if saved is None or saved["kind"] != kind or len(groups) != len(own):
            raise Error(f"the optimizer is {kind} with {len(own)} groups of parameters, in the checkpoint that the run "
                        f"goes on from {saved and saved['kind']} with {groups and len(groups)}; has the script "
                        "changed?")
        optimizer.load_state_dict({"state": saved["state"], "param_groups": [
            {**group, "params": mine["params"]} for group, mine in zip(groups, own)]})

    def _load(self, name: str, value: Any) -> None:
        if name not in self._resumed["kept"]:
            raise Error(f"job.keep({name}=...): the checkpoint that the run goes on from has no state of that name; has "
                        "the script changed?")
        value.load_state_dict(copy.deepcopy(self._resumed["kept"][name]))
