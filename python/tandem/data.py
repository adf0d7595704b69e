"""Batches of the script's own loader, read ahead so that their rows travel in time."""
from __future__ import annotations

import collections
import copy
import warnings
from typing import Any, Callable, Iterable, Iterator, Optional, Union

import torch

from tandem import _abi
from tandem._abi import Error
from tandem.job import current_job
from tandem.randomness import Stream, generators_of
from tandem.sparse import BatchIds


_END = object()  # of a loader
_OF_STORED = (type(iter([])), type(iter(())))  # iterators over batches that are there already


class DataLoader:
    """Wraps any iterable over batches: a torch DataLoader, a list, a generator function's result.

    features: where the ids of a batch are: an index or key of it, or a function of the batch that
    returns them; None: found by type (the one int64 tensor with a column for each field of the job, or
    a dict or KeyedJaggedTensor). What ids may look like: tandem.sparse.BatchIds.

    repeatable: whether reading an epoch again, with the same random numbers, gives the same batches. A run
    that goes on in the middle of an epoch passes over the batches that it has trained on; where iterable
    has state_dict() and load_state_dict(), it is told its place instead. If neither can be done say
    False: then such a run takes what comes, with a warning.

    Iterating gives the batches of one epoch on this worker, unchanged. The loop ends when the worker
    has no more batches (others may have), or the job takes no more steps.

    An Error where a step is left out or there is no job; a ValueError says what ids of a batch are wrong.
    """

    def __init__(self, iterable: Iterable[Any], features: Union[int, str, Callable[[Any], Any], None] = None,
                 repeatable: bool = True) -> None:
        self._job = current_job()
        self._iterable: Any = iterable
        self._features: Any = features
        self._repeatable = repeatable
        self._taken = 0  # batches, in all epochs

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
        return BatchIds(self._job, found)

    def _find(self, batch: Any) -> Any:
        fields = self._job._fields

        def fits(part: Any) -> bool:
            if isinstance(part, dict):
                return bool(part) and all(k in fields or k in self._job.tables for k in part)
            if isinstance(part, torch.Tensor):
                return part.dtype == torch.int64 and part.dim() == 2 and part.shape[1] == len(fields)
            return hasattr(part, "keys") and hasattr(part, "lengths")

        parts = [batch] if fits(batch) or not isinstance(batch, (tuple, list, dict)) else \
            list(batch.values()) if isinstance(batch, dict) else list(batch)
        found = [part for part in parts if fits(part)]
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
        place = _Place(self, job._progress.reading)
        resumed = job._progress.begin_loop(place)
        if resumed is not None and self._is_over():
            place.restore(resumed["now"])
        else:
            yield from self._batches(_abi.BATCH, _abi.COMPUTE, place)
        job._progress.end_loop()

    def _is_over(self) -> bool:
        """Whether the run has trained on all of the epoch, so that batches of the next one are wanted, or none."""
        want = self._job._next()
        return want.kind != _abi.BATCH or want.epoch != self._job._loop_epoch

    def _batches(self, fetch: int, use: int, place: _Place) -> Iterator[Any]:
        """Gives batches as they are wanted, and yields each when its rows are there."""
        job, epoch = self._job, None
        given: collections.deque = collections.deque()
        while True:
            want = job._next()
            if want.kind == fetch and epoch in (None, want.epoch):
                if job._loop_epoch not in (None, want.epoch):
                    raise Error(f"a second loop over a tandem.DataLoader in epoch {job._loop_epoch}; its "
                                "batches are used up, and these would be those of the next epoch: have "
                                "one loop in the body of `for epoch in job.epochs()`")
                if epoch is None:
                    epoch = want.epoch
                    place.open(epoch)
                    job._progress.found()
                batch, ids, read = place.read()
                if ids is None:
                    job._give_none()
                    continue
                ids.give(job)
                given.append((batch, ids, read))
            elif want.kind == use and given:
                batch, ids, read = given.popleft()
                job._begin(want, ids, gradients=use == _abi.COMPUTE)
                yield batch
                self._check_used(use, want)
                place.used = read
            else:
                return

    def _check_used(self, use: int, want: _abi.Want) -> None:
        job = self._job
        if use == _abi.COMPUTE and job._cells is not None:
            raise Error(f"step {want.step}: the loop goes on to the next batch without "
                        "optimizer.step(); call it once for each batch")
        if use == _abi.SCORE and not job._scored:
            raise Error("the loop over job.evaluate() goes on to the next batch without job.score()")

    def _test_batches(self, fetch: int) -> Iterator[Any]:
        job = self._job
        kind = job._next().kind
        if kind == _abi.VALIDATION_BATCH and fetch == _abi.TEST_BATCH:
            raise Error("the job keeps its best model (train.keep_best), and judges by validation rows before it "
                        "scores test rows: say for batch in job.evaluate(loader, data=\"validation\") first")
        if kind != fetch:
            return
        job._evaluating = True
        for batch in self._batches(fetch, _abi.SCORE, _Place(self, job._progress.testing)):
            job._scored = False
            yield batch
        job._evaluating = False


class _Place:
    """Where a loop stands in the batches of its loader. Batches are read ahead; what counts for a run that
    goes on are those that have been used.

    stream: the random numbers of who reads. used: of the last batch that was used, (number in the epoch, a
    checksum of its ids, state of the iterable behind it, if it has one, and of the stream).
    """

    def __init__(self, loader: DataLoader, stream: Stream) -> None:
        self._loader, self._stream, self._iterable = loader, stream, loader._iterable
        self._told = hasattr(self._iterable, "state_dict") and hasattr(self._iterable, "load_state_dict")
        self._source: Any = None
        self._resumed: Any = None
        self._epoch: Optional[int] = None
        self._count = 0  # read in this epoch
        self.begin: Any = None
        self.used: Any = None

    # ---- reading ----

    def open(self, epoch: int) -> None:
        """At the first batch of the epoch that is wanted."""
        self._epoch = epoch
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            self._open()
        elif not self._loader._repeatable:
            warnings.warn("the run goes on with a tandem.DataLoader that was declared not repeatable: its "
                          "batches are others than if it had not been interrupted", stacklevel=4)
            self._open()
        elif self._told and resumed["used"]:
            self.begin = resumed["begin"]
            self._count, _, state, stream = self.used = tuple(resumed["used"])
            self._stream.set_state(stream)
            self._iterable.load_state_dict(state)
            with self._stream:
                self._source = iter(self._iterable)
        else:
            self._stream.set_state(resumed["begin"]["stream"])
            self.restore(resumed["begin"])
            self._open()
            self._pass_over(resumed["used"])

    def resume(self, resumed: dict[str, Any]) -> None:
        """The place that a save has, in the epoch that the run goes on in."""
        self._resumed = resumed

    def read(self) -> tuple[Any, Optional[BatchIds], Any]:
        """The next batch with samples, its ids, and what `used` is once it is used; Nones: there is none."""
        while True:
            batch, ids = self._read_one()
            if ids is None:
                return None, None, None
            self._count += 1
            self._loader._taken += 1
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
            if type(batch) in (tuple, list, dict) and not callable(self._loader._features):
                return batch, self._loader._ids(batch)  # nothing draws here, and the stream costs a tenth of a step
            with self._stream:
                return batch, self._loader._ids(batch)
        with self._stream:  # a function that finds the ids may draw, too
            batch = next(self._source, _END)
            return batch, None if batch is _END else self._loader._ids(batch)

    def _open(self) -> None:
        self.begin = self._now()
        with self._stream:
            self._source = iter(self._iterable)

    def _pass_over(self, used: Any) -> None:
        """Reads up to the last batch that was used, and looks whether it is that one."""
        last = None
        while used and self._count < used[0]:
            _, ids, last = self.read()
            if ids is None:
                raise Error(f"epoch {self._epoch}: the loader gives {self._count} batches, and the run has "
                            f"trained on {used[0]} of it; is it over other data than before?")
        if last is not None and last[1] != used[1]:
            raise Error(f"epoch {self._epoch}: batch {used[0]} of the loader has other ids than the one that "
                        "the run has trained on: it does not repeat itself. Give generators of its own a "
                        "seed, give it state_dict() and load_state_dict(), or say repeatable=False to "
                        "tandem.DataLoader")
        self.used = last

    # ---- for a save ----

    def _now(self) -> dict[str, Any]:
        return {"stream": self._stream.state(), "taken": self._loader._taken,
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
        if not hasattr(self._iterable, "__next__"):
            return
        while self._loader._taken < now["taken"]:  # an iterator, which is read once in all epochs
            with self._stream:
                if next(self._iterable, _END) is _END:
                    return
            self._loader._taken += 1
