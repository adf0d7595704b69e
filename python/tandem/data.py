"""Batches of the script's own loader, read ahead so that their rows travel in time."""
from __future__ import annotations

import collections
import copy
import types
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Optional, Union

import numpy
import torch

from tandem import _abi
from tandem._abi import Error
from tandem.job import current_job
from tandem.randomness import Stream, generators_of
from tandem.sparse import BatchIds, is_integers

if TYPE_CHECKING:
    from tandem.job import Job

_END = object()  # of a loader
_OF_STORED = (type(iter([])), type(iter(())))  # iterators over batches that are there already


class DataLoader:
    """Wraps any iterable over batches: a torch DataLoader, a list, a generator function's result.

    features: where the ids of a batch are: an index or key of it, or a function of the batch that
    returns them; None: found by type (the one tensor or array of integers, or of several the one int64, with a
    column for each field of the job, or a dict or KeyedJaggedTensor). What ids may look like: tandem.sparse.BatchIds.

    include_last_offset: of (values, offsets) among them: whether offsets end with the number of ids, [samples + 1],
    as torch.nn.EmbeddingBag has it. None: they do not, [samples], as is torch's default, unless
    tandem.EmbeddingBag(..., include_last_offset=True) says so, or other fields and tensors of the batch, such as its
    labels, have a sample fewer.

    repeatable: whether reading an epoch again, with the same random numbers, gives the same batches. A run
    that goes on in the middle of an epoch passes over the batches that it has trained on; where iterable
    has state_dict() and load_state_dict(), it is told its place instead. If neither can be done say
    False: then such a run takes what comes, with a warning.

    Iterating gives the batches of one epoch on this worker, unchanged. The loop ends when the worker
    has no more batches (others may have), or the job takes no more steps.

    An Error where a step is left out or there is no job; a ValueError says what ids of a batch are wrong.
    """

    def __init__(self, iterable: Iterable[Any], features: Union[int, str, Callable[[Any], Any], None] = None,
                 repeatable: bool = True, include_last_offset: Optional[bool] = None) -> None:
        self._job = current_job()
        self._iterable: Any = iterable
        self._features: Any = features
        self._repeatable = repeatable
        self._include_last_offset = include_last_offset
        if include_last_offset is not None:
            self._job._seen_offsets.update({field: include_last_offset for field in self._job._fields})
        self._taken = 0  # batches, in all epochs
        self._warned = False

    def __len__(self) -> int:
        """Of the iterable. TypeError: it has none."""
        return len(self._iterable)

    def _ids(self, batch: Any) -> BatchIds:
        features = self._features
        if callable(features):
            found = features(batch)
        elif features is not None:
            found = batch[features]
        else:
            found = self._find(batch)
        ids = BatchIds(self._job, found, self._include_last_offset, beside=batch if found is not batch else None)
        ids.note_offsets(self._job)
        return ids

    def _find(self, batch: Any) -> Any:
        fields = self._job._fields

        def fits(part: Any) -> bool:
            if isinstance(part, dict):
                return bool(part) and all(k in fields or k in self._job.tables for k in part)
            if isinstance(part, (torch.Tensor, numpy.ndarray)):
                return is_integers(part) and part.ndim == 2 and part.shape[1] == len(fields)
            return hasattr(part, "keys") and hasattr(part, "lengths")

        parts = [batch] if fits(batch) or not isinstance(batch, (tuple, list, dict)) else \
            list(batch.values()) if isinstance(batch, dict) else list(batch)
        found = [part for part in parts if fits(part)]
        if len(found) > 1:  # other integers may be numbers that the model computes with
            found = [part for part in found if getattr(part, "dtype", torch.int64) in (torch.int64, numpy.int64)]
        if len(found) == 1:
            return found[0]
        raise ValueError(f"which part of a batch are its ids? {len(found)} parts could be them; say "
                         "features=INDEX, features=KEY or features=FUNCTION to tandem.DataLoader")

    def __iter__(self) -> Iterator[Any]:
        self._job._check_started()
        return self._train_batches()

    def _train_batches(self) -> Iterator[Any]:
        """Those of one epoch. In the epoch in which a run goes on: those that it has not trained on."""
        job = self._job
        loop = job._train_loop
        if loop is not None and loop.goes_on():
            loop.take_over(self)
            yield from loop.batches()
        else:
            progress, place = job._progress, _Place(self, job._progress.reading)
            over = progress.goes_on() and self._is_over()
            if over and not progress.begun:  # a look before the loop over epochs
                return
            resumed = progress.begin_loop(place)
            if over:
                place.restore(resumed["now"])
            else:
                with job._uninterrupted():
                    job._train_loop = loop = _Loop(job, _abi.BATCH, place)
                    progress.in_loop()
                yield from loop.batches()
        with job._uninterrupted():
            job._progress.end_loop()

    def _is_over(self) -> bool:
        """Whether the run has trained on all of the epoch, so that batches of the next one are wanted, or none."""
        want = self._job._next()
        return want.kind != _abi.BATCH or want.epoch != self._job._progress._epoch

    def _test_batches(self, fetch: int) -> Iterator[Any]:
        job = self._job
        if job._train_loop is not None:
            job._train_loop.settle()
        loop = job._test_loop
        goes_on = loop is not None and loop.goes_on() and loop.is_wanted()
        kind = loop.fetch if goes_on else job._next().kind
        if kind == _abi.VALIDATION_BATCH and fetch == _abi.TEST_BATCH:
            raise Error("the job keeps its best model (train.keep_best), and judges by validation rows before it "
                        "scores test rows: say for batch in job.evaluate(loader, data=\"validation\") first")
        if kind != fetch:
            job._note_no_evaluation(kind, fetch)
            return
        if goes_on:
            loop.take_over(self)
        else:
            job._progress.take_up()
            job._test_loop = loop = _Loop(job, fetch, _Place(self, job._progress.testing))
            job._reported = False
        job._evaluating = True
        yield from loop.batches()
        job._evaluating = False


class _Loop:
    """A pass over the batches of an epoch, or of an evaluation. It passes batches to the worker when the worker asks for
    them, and yields each batch when its rows are there. Where it was left in the middle (an interrupted cell of a
    notebook, an exception, a break), the next loop goes on with it: with the batch at hand, unless that was used, and
    with those that were read ahead."""

    def __init__(self, job: Job, fetch: int, place: _Place) -> None:
        self._job: Any = job
        self.fetch, self.place = fetch, place
        self._use = _abi.COMPUTE if fetch == _abi.BATCH else _abi.SCORE
        self.epoch: Optional[int] = None
        self._given: collections.deque = collections.deque()  # to the worker: (batch, ids, read)
        self._hand: Any = None                                # the one whose rows are here
        self.over = False
        self._owner: Any = None                               # the iterator that runs it
        self.scored = self.unscored = 0                       # batches of an evaluation
        self._aside: Any = None                               # what the job has of the batch at hand, while others come again

    def goes_on(self) -> bool:
        """Whether it was left in the middle."""
        return not self.over and self.place.opened()

    def is_wanted(self) -> bool:
        """Whether the worker still wants something of it: it may have been left behind its last batch."""
        want = self._job._next()
        return want.kind in (self.fetch, self._use) and self.epoch in (None, want.epoch)

    def take_over(self, loader: DataLoader) -> None:
        """Goes on with the batches of this loader."""
        self._put_back()
        self.settle()
        if loader is self.place.loader:
            self.place.mend()
        else:
            self.place, same = self.place.in_other(loader)
            if not same:  # what was read ahead has no place in the other one
                self._given = collections.deque((batch, ids, None) for batch, ids, _ in self._given)
                self._hand = self._hand and (*self._hand[:2], None)
        if self.fetch == _abi.BATCH:
            self._job._progress.continue_loop(self.place)

    def settle(self) -> None:
        """Marks the batch at hand as used if its step or its scores were given before the loop was left."""
        used = self._job._scored if self._use == _abi.SCORE else self._job._cells is None
        if self._hand is not None and used:
            self.place.used, self._hand = self._hand[2], None

    def batches(self) -> Iterator[Any]:
        """What is left of them."""
        job, self._owner = self._job, object()
        owner = self._owner
        if self.unscored > 0:
            yield from self._yield_again(owner)
        if self._hand is not None:
            job._forget_gradients()
            yield from self._yield_hand(owner)
        while True:
            want = job._next()
            if want.kind == self.fetch and self.epoch in (None, want.epoch):
                self._give(want)
            elif want.kind == self._use and self._given:
                with job._uninterrupted():
                    self._hand = self._given.popleft()
                    job._begin(want, self._hand[1], gradients=self._use == _abi.COMPUTE)
                    job._scored = self._use != _abi.SCORE
                yield from self._yield_hand(owner)
            else:
                self.over = True
                return

    def _yield_hand(self, owner: Any) -> Iterator[Any]:
        yield from self._yield(owner, self._hand[0])
        self._check_used()
        self.settle()

    def _yield_again(self, owner: Any) -> Iterator[Any]:
        """The batches that have passed unscored, as the loop was left: a metric of the script's own is of all of them. Their
        rows are read from the servers, where they are as they were."""
        job, place = self._job, self.place
        if place.last is None:  # another loader, which begins
            return
        if not place.repeats():
            warnings.warn("the loop over job.evaluate() was left, and its loader cannot be read again: a metric of the "
                          f"script's own is without the first {self.unscored} batches", stacklevel=5)
            return
        place.doubtful = True
        place.begin_again()
        self._aside = job._cells, job._given, job._scored
        try:
            for _ in range(self.unscored):
                batch, ids, place.passed = place.read()
                if ids is None:
                    break
                job._cells, job._given, job._scored = job._look_up(ids, job._table_list), ids, False
                yield from self._yield(owner, batch)
        finally:
            if self._owner is owner:
                self._put_back()
        place.pass_over(place.last)
        place.doubtful = False

    def _put_back(self) -> None:
        if self._aside is not None:
            job = self._job
            (job._cells, job._given, job._scored), self._aside = self._aside, None

    def _yield(self, owner: Any, batch: Any) -> Iterator[Any]:
        job = self._job
        job._looping = self
        try:
            yield batch
        finally:
            if self._owner is owner:
                job._looping = None
        if self._owner is not owner:
            raise Error("this iterator over a tandem.DataLoader cannot be used any more, because another loop over "
                        "the loader has started; use one iterator at a time")

    def _give(self, want: _abi.Want) -> None:
        job, place = self._job, self.place
        if self.fetch == _abi.BATCH and job._loop_epoch not in (None, want.epoch):
            raise Error(f"a second loop over a tandem.DataLoader in epoch {job._loop_epoch}; its "
                        "batches are used up, and these would be those of the next epoch: have "
                        "one loop in the body of `for epoch in job.epochs()`")
        if self.epoch is None:
            place.open(want.epoch)
            self.epoch = want.epoch
            job._progress.found()
        place.doubtful = True
        batch, ids, read = place.read()
        if ids is None:
            place.doubtful = False
            if self.fetch == _abi.BATCH and place.last is None:
                self._check_empty(want.epoch)
            job._give_none()
        else:
            with job._uninterrupted():
                ids.give(job)
                self._given.append((batch, ids, read))
                place.last, place.doubtful = read, False

    def _check_empty(self, epoch: int) -> None:
        """Where the loader has given no batch of an epoch, which is right only for a worker without data."""
        job, loader = self._job, self.place.loader
        if hasattr(loader._iterable, "__next__") and loader._taken > 0:
            raise Error(f"epoch {epoch}: the loader gave no batch: it is {_kind_of(loader._iterable)}, which can be read "
                        "once, and the epoch before has read all of it; give tandem.DataLoader what can be iterated over "
                        "again, such as a list, a torch DataLoader or an object whose __iter__ begins anew")
        cause = "; earlier epochs had batches. Check that iter(loader) starts again from the first batch" \
            if loader._taken > 0 else "; is its data empty?"
        if job.world_size == 1:
            raise Error(f"epoch {epoch}: the loader gave no batch with samples{cause}")
        if not loader._warned:
            loader._warned = True
            warnings.warn(f"epoch {epoch}: the loader of worker {job.rank} gave no batch, and the worker waits for the "
                          f"others{cause}", stacklevel=6)

    def _check_used(self) -> None:
        job = self._job
        if self._use == _abi.COMPUTE and job._cells is not None:
            raise Error(f"step {job.step}: the loop goes on to the next batch without "
                        "optimizer.step(); call it once for each batch")
        if self._use != _abi.SCORE or job._scored:
            return
        if self.scored > 0 or self.fetch == _abi.VALIDATION_BATCH or job._scores is not None:
            raise Error("the loop over job.evaluate() goes on to the next batch without job.score()")
        with job._uninterrupted():
            self.unscored += 1  # a metric of the script's own, which job.report() is to say
            job._leave_unscored()


def _kind_of(iterable: Any) -> str:
    return "a generator" if isinstance(iterable, types.GeneratorType) else f"an iterator ({type(iterable).__name__})"


class _Place:
    """Where a loop stands in the batches of its loader. Batches are read ahead; what counts for a run that
    goes on are those that have been used.

    stream: the random numbers of who reads. used: of the last batch that was used, (number in the epoch, a
    checksum of its ids, state of the iterable behind it, if it has one, and of the stream). last: the same of the last
    one that was given to the worker. doubtful: reading was interrupted, so what comes next is not known.
    """

    def __init__(self, loader: DataLoader, stream: Stream) -> None:
        self.loader, self._stream, self._iterable = loader, stream, loader._iterable
        self._told = hasattr(self._iterable, "state_dict") and hasattr(self._iterable, "load_state_dict")
        self._once = hasattr(self._iterable, "__next__") and not self._told  # an iterator, which is read once
        self._source: Any = None
        self._resumed: Any = None
        self._epoch: Optional[int] = None
        self._count = 0  # read in this epoch
        self.passed: Any = None  # of the last batch that was passed over
        self.begin: Any = None
        self.used: Any = None
        self.last: Any = None
        self.doubtful = False

    # ---- reading ----

    def open(self, epoch: int) -> None:
        """At the first batch of the epoch that is wanted."""
        self._epoch, self.doubtful = epoch, True
        resumed = self._resumed
        if resumed is None and self.begin is not None:  # what was interrupted
            self.begin_again()
        elif resumed is None:
            self._open()
        elif not self.loader._repeatable:
            warnings.warn("the run goes on with a tandem.DataLoader that was declared not repeatable: its "
                          "batches are others than if it had not been interrupted", stacklevel=4)
            self._open()
        else:
            self.used = self.last = self._go_to(resumed["begin"], resumed["used"], self._stream.set_state)
        self._resumed = None  # an interrupted one is done again

    def opened(self) -> bool:
        """Whether something of the epoch was read, or is to be passed over."""
        return self.begin is not None or self._resumed is not None

    def _go_to(self, begin: dict[str, Any], used: Any, set_stream: Callable[[dict[str, Any]], None]) -> Any:
        """Restores the state `begin` of an epoch's start and skips the batches up to `used`. Returns the record of the
        last skipped batch."""
        if self._told and used:
            self.begin = begin
            self._count, _, state, stream = used = tuple(used)
            set_stream(stream)
            self._iterable.load_state_dict(state)
            with self._stream:
                self._source = iter(self._iterable)
            return used
        if self._count == 0 or not self._once:  # an iterator goes on where passing over was interrupted
            self.loader._taken -= self._count
            self._count = 0
            set_stream(begin["stream"])
            self.restore(begin)
            self._open()
        return self.pass_over(used)

    def mend(self) -> None:
        """Where reading was interrupted: reads the epoch again, up to the last batch that was given. An iterator goes on
        with what it has left. An Error: that is nothing."""
        if not self.doubtful:
            return
        if self._once and getattr(self._iterable, "gi_frame", self) is None:
            raise Error(f"epoch {self._epoch}: the exception that interrupted the loader has ended it, since it is a "
                        "generator, and the rest of its batches is lost; give tandem.DataLoader a new one, which is passed "
                        "over to this place, or what can be iterated over again")
        if not self.repeats():
            why = f"is over {_kind_of(self._iterable)}" if self._once else "has repeatable=False"
            warnings.warn(f"reading was interrupted, and this tandem.DataLoader {why}: a batch may be lost", stacklevel=6)
            self.doubtful = False
            return
        if self.begin is not None and self._resumed is None:  # else it is opened again
            self._go_to(self.begin, self.last, self._stream.rewind)
        self.doubtful = False

    def repeats(self) -> bool:
        """Whether the epoch can be read again."""
        return not self._once and self.loader._repeatable

    def begin_again(self) -> None:
        """The first batch of the epoch comes next."""
        self._go_to(self.begin, None, self._stream.rewind)

    def in_other(self, loader: DataLoader) -> tuple[_Place, bool]:
        """The same place in a loader of another object, such as the cell of a notebook makes when it is run again. Where
        that has other batches (False) the epoch goes on with its first one."""
        place = _Place(loader, self._stream)
        place._epoch, place._resumed = self._epoch, self._resumed
        if self._resumed is not None:
            return place, True
        try:
            place.last = place._go_to(self.begin, self.last, self._stream.rewind)
        except (Error, ValueError, TypeError, KeyError) as error:
            warnings.warn(f"epoch {self._epoch} goes on with the first batch of another loader than it began with: {error}",
                          stacklevel=6)
            place._count, place.last = 0, None
            place._open()
            return place, False
        place.used = self.used
        return place, True

    def resume(self, resumed: dict[str, Any]) -> None:
        """The place that a checkpoint has, in the epoch that the run goes on in."""
        self._resumed = resumed

    def read(self) -> tuple[Any, Optional[BatchIds], Any]:
        """The next batch with samples, its ids, and what `used` is once it is used; Nones: there is none."""
        while True:
            batch, ids = self._read_one()
            if ids is None:
                return None, None, None
            self._count += 1
            self.loader._taken += 1
            if ids.samples > 0:
                break
        told = (copy.deepcopy(self._iterable.state_dict()), self._stream.state()) if self._told \
            else (None, None)
        # Before the script can change the ids in place.
        return batch, ids, (self._count, ids.checksum(), *told)

    def _read_one(self) -> tuple[Any, Optional[BatchIds]]:
        if isinstance(self._source, _OF_STORED):
            batch = next(self._source, _END)
            if batch is _END:
                return batch, None
            if type(batch) in (tuple, list, dict) and not callable(self.loader._features):
                return batch, self.loader._ids(batch)  # nothing draws here, and the stream costs a tenth of a step
            with self._stream:
                return batch, self.loader._ids(batch)
        with self._stream:  # a function that finds the ids may draw, too
            batch = next(self._source, _END)
            return batch, None if batch is _END else self.loader._ids(batch)

    def _open(self) -> None:
        self.begin = self._now()
        with self._stream:
            self._source = iter(self._iterable)

    def pass_over(self, used: Any) -> Any:
        """Reads up to the last batch that was used, and looks whether it is that one. Returns what `used` is of it."""
        if not used:
            return None
        while self._count < used[0]:
            _, ids, self.passed = self.read()
            if ids is None:
                raise Error(f"epoch {self._epoch}: the loader gives {self._count} batches, and the run has "
                            f"trained on {used[0]} of it; is it over other data than before?")
        if self.passed is None or self.passed[1] != used[1]:
            raise Error(f"epoch {self._epoch}: batch {used[0]} of the loader has other ids than the one that "
                        "the run has trained on: it does not repeat itself. Give generators of its own a "
                        "seed, give it state_dict() and load_state_dict(), or say repeatable=False to "
                        "tandem.DataLoader")
        return self.passed

    # ---- for a checkpoint ----

    def _now(self) -> dict[str, Any]:
        return {"stream": self._stream.state(), "taken": self.loader._taken,
                "generators": [g.get_state() for g in generators_of(self._iterable)],
                "iterable": copy.deepcopy(self._iterable.state_dict()) if self._told else None}

    def state(self) -> dict[str, Any]:
        if self._resumed is not None:  # nothing has been wanted since
            return self._resumed
        return {"epoch": self._epoch, "begin": self.begin, "used": self.used, "now": self._now()}

    def restore(self, now: dict[str, Any]) -> None:
        """What comes next is what came next then, as far as it does not follow from the stream."""
        for generator, state in zip(generators_of(self._iterable), now["generators"]):
            generator.set_state(state)
        if self._told:
            self._iterable.load_state_dict(now["iterable"])
        while self._once and self.loader._taken < now["taken"]:  # it is read once in all epochs
            with self._stream:
                if next(self._iterable, _END) is _END:
                    return
            self.loader._taken += 1
