"""Batches of the script's own loader, read ahead so that their rows travel in time."""
from __future__ import annotations

import collections
import copy
import dataclasses
import types
import warnings
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Union

import numpy
import torch

from tandem import _abi
from tandem._abi import Error, Misuse
from tandem.arrow import is_arrow, kind_of
from tandem.arrow_batches import ArrowBatches, ArrowSource
from tandem.copies import copy_of
from tandem.current import current_worker
from tandem.randomness import Stream, generators_of
from tandem.sparse import BatchIds, StepIds, is_integers
from tandem.worker import Worker

_END = object()  # of a loader
_OF_STORED = (type(iter([])), type(iter(())))  # iterators over batches that are there already


class DataLoader:
    """Wraps any iterable over batches: a torch DataLoader, a list, a generator function's result;
    or makes batches of a table.

    features: the place of the ids in a batch: an index or key, or a function of the batch that
    returns them. None: found by type. Then the ids are the one tensor or array of integers (of
    several, the one int64) with a column for each field of the job, or a dict or KeyedJaggedTensor.
    The batch may be a tuple, a list, a dict or a dataclass of such parts.
    tandem.sparse.BatchIds lists the forms of ids.

    include_last_offset: of (values, offsets) among them: whether offsets end with the number of
    ids, [samples + 1], as torch.nn.EmbeddingBag has it. None: they do not, [samples], as is torch's
    default, unless tandem.EmbeddingBag(..., include_last_offset=True) says so, or other fields and
    tensors of the batch, such as its labels, have a sample fewer.

    repeatable: whether reading an epoch again, with the same random numbers, gives the same
    batches. A run that resumes in the middle of an epoch skips the batches that it has trained on;
    if iterable has state_dict() and load_state_dict(), the run restores its state instead. If
    neither works, say False: then a resumed run takes the batches that come, with a warning.

    accumulate: how many batches make a step, for gradients of more samples than fit in one pass.
    Rows of the batches are pulled and pushed together, and train.batch_size of the job is the limit
    of their samples together. Call backward() for each batch, and optimizer.step() where step_ends
    is true: after the last batch of each step. The last step of an epoch may have fewer batches.

    A table is any object with __arrow_c_stream__ (of pandas 2.2, polars, pyarrow, DuckDB), or a
    function that returns one for each epoch, for example a DuckDB query. A batch is a dict from
    column to tensor. Columns that are fields of the job are ids, as tandem.hash_columns has them:
    int64 [rows], or a JaggedTensor of a column of lists. Other columns are float32 [rows]: booleans
    are 1 and 0, dates and times days since 1970, nulls NaN. What can be read once, such as a
    pyarrow.RecordBatchReader, has one epoch. For tables alone:
    - batch_size: rows of a batch; None: train.batch_size of the job, divided by accumulate.
    - columns: the columns that are read; None: all, of which none may be other text.
    - ids: "hashed", or "raw": whole numbers are the ids themselves; or a dict from field to these.

    Iterating gives the batches of one epoch on this worker. They are read ahead, and iterable may
    fill the same memory for each: unless it is a list or a tuple, they are copies. The loop ends
    when the worker has no more batches (others may have), or the job takes no more steps.

    An Error: a step is left out, or there is no job. A ValueError says which ids of a batch are
    invalid.
    """

    def __init__(self, iterable: Iterable[Any],
                 features: Union[int, str, Callable[[Any], Any], None] = None,
                 repeatable: bool = True, include_last_offset: Optional[bool] = None,
                 accumulate: int = 1, batch_size: Optional[int] = None,
                 columns: Optional[Iterable[str]] = None,
                 ids: Union[str, Mapping[str, str]] = "hashed") -> None:
        if accumulate < 1:
            raise ValueError(f"tandem.DataLoader: accumulate={accumulate}, expected 1 or more "
                             "batches a step")
        self._worker: Worker = current_worker()
        self._iterable: Any = iterable
        self._table: Optional[ArrowSource] = None
        if is_arrow(iterable) or (callable(iterable) and not hasattr(iterable, "__iter__")):
            if batch_size is None:
                batch_size = max(1, self._worker.batch_size // accumulate)
            self._table = ArrowSource(iterable, self._worker.tables, batch_size, columns, ids)
            self._iterable = iter(self._table) if self._table.once else self._table
        elif (batch_size, columns, ids) != (None, None, "hashed"):
            raise ValueError(f"tandem.DataLoader of {kind_of(iterable)}: batch_size, columns and "
                             "ids are for tables with __arrow_c_stream__; other loaders make "
                             "their batches themselves")
        self._features: Any = features
        self._repeatable, self._accumulate = repeatable, accumulate
        self._include_last_offset = include_last_offset
        if include_last_offset is not None:
            tables = self._worker.tables
            tables.seen_offsets.update({field: include_last_offset for field in tables.fields})
        self._taken = 0  # batches, in all epochs
        self._warned = False

    def __len__(self) -> int:
        """The length of the iterable. TypeError: the iterable has no length."""
        return len(self._iterable)

    @property
    def step_ends(self) -> bool:
        """Whether the batch at hand is the last one of its step, so that optimizer.step() comes
        after its backward()."""
        worker = self._worker
        return worker.cells is not None and worker.at + 1 == len(worker.batches)

    def _ids(self, batch: Any) -> BatchIds:
        features = self._features
        if features is None and self._table is not None:
            found = self._table.ids_of(batch)
        elif callable(features):
            found = features(batch)
        elif features is not None:
            found = batch[features]
        else:
            found = self._find(batch)
        ids = BatchIds(self._worker.tables, found, self._include_last_offset,
                       beside=_parts_of(batch) if found is not batch else None)
        ids.note_offsets(self._worker.tables)
        return ids

    def _find(self, batch: Any) -> Any:
        tables = self._worker.tables
        fields = tables.loaded

        def fits(part: Any) -> bool:
            if isinstance(part, dict):
                return bool(part) and all(k in fields or k in tables.by_name for k in part)
            if isinstance(part, (torch.Tensor, numpy.ndarray)):
                return is_integers(part) and part.ndim == 2 and part.shape[1] == len(fields)
            return hasattr(part, "keys") and hasattr(part, "lengths")

        batch = _parts_of(batch)
        parts = [batch] if fits(batch) or not isinstance(batch, (tuple, list, dict)) else \
            list(batch.values()) if isinstance(batch, dict) else list(batch)
        found = [part for part in parts if fits(part)]
        if len(found) > 1:  # other integers may be numbers that the model computes with
            found = [part for part in found
                     if getattr(part, "dtype", torch.int64) in (torch.int64, numpy.int64)]
        if len(found) == 1:
            return found[0]
        raise ValueError(f"which part of a batch are its ids? {len(found)} parts could be them; "
                         "say features=INDEX, features=KEY or features=FUNCTION to "
                         "tandem.DataLoader")

    def __iter__(self) -> Iterator[Any]:
        self._worker.check_started()
        check_not_ended(self._worker, "a loop over a tandem.DataLoader")
        return self._train_batches()

    def _train_batches(self) -> Iterator[Any]:
        """The batches of one epoch; in the epoch in which a run resumes, those that it has not
        trained on."""
        worker = self._worker
        progress, loop = worker.progress, worker.train_loop
        if loop is not None and loop.unfinished():
            loop.take_over(self)
            yield from loop.batches()
        else:
            progress.check_first_loop()
            place = _Place(self, progress.reading)
            over = progress.resumes() and self._is_over()
            if over and not progress.begun:  # a look before the loop over epochs
                return
            resumed = progress.begin_loop(place)
            if over:
                place.restore(resumed["now"])
            else:
                with worker.uninterrupted():
                    worker.train_loop = loop = _Loop(worker, _abi.BATCH, place)
                    progress.in_loop()
                yield from loop.batches()
        with worker.uninterrupted():
            progress.end_loop()

    def _is_over(self) -> bool:
        """Whether the run has trained on the whole epoch: the worker requests batches of the next
        one, or none."""
        request = self._worker.next()
        return request.kind != _abi.BATCH or request.epoch != self._worker.progress.epoch


def _parts_of(batch: Any) -> Any:
    """A dict from a dataclass; else the batch itself."""
    return vars(batch) if dataclasses.is_dataclass(batch) and hasattr(batch, "__dict__") else batch


def evaluation_batches(loader: DataLoader, fetch: int) -> Iterator[Any]:
    """Batches of an evaluation, if the worker requests them. fetch: the kind of request."""
    worker = loader._worker
    check_not_ended(worker, "a loop over job.evaluate()")
    if worker.train_loop is not None:
        worker.train_loop.settle()
    loop = worker.test_loop
    continues = loop is not None and loop.unfinished() and loop.is_requested()
    kind = loop.fetch if continues else worker.next().kind
    if kind == _abi.VALIDATION_BATCH and fetch == _abi.TEST_BATCH:
        raise Error("the job keeps its best model (train.keep_best), and judges by validation rows "
                    "before it scores test rows: say for batch in job.evaluate(loader, "
                    "data=\"validation\") first")
    if kind != fetch:
        _check_no_evaluation(worker, kind, fetch)
        return
    if continues:
        loop.take_over(loader)
    else:
        worker.progress.take_up()
        worker.test_loop = loop = _Loop(worker, fetch, _Place(loader, worker.progress.testing))
        worker.reported = False
    worker.evaluating = True
    yield from loop.batches()
    worker.evaluating = False
    if loop.scored > 0 and loop.like_probabilities:
        warnings.warn("job.score: all scores of this evaluation are between 0 and 1, expected "
                      "logits; if they are probabilities, pass torch.logit(p)", stacklevel=2)


def check_not_ended(worker: Worker, what: str) -> None:
    """An Error: the job has ended, so a loop would have no batches."""
    if worker.ended:
        raise Error(f"{what} after the job has ended, where there are no rows: evaluate by `for "
                    "batch in job.evaluate(loader)` in the body of `for epoch in job.epochs()`; "
                    "the last epoch has an evaluation")


def _check_no_evaluation(worker: Worker, kind: int, fetch: int) -> None:
    """Raises or warns: a loop over job.evaluate() has no batches, because the worker requests
    `kind`."""
    progress, loop, done = worker.progress, worker.train_loop, worker.test_loop
    if done is not None and done.over and done.fetch == fetch and \
            done.body == progress.body > 0:
        raise Misuse(f"a second loop over job.evaluate() in epoch {progress.epoch}; the job has "
                     "one evaluation at a time: put the rows of both into one tandem.DataLoader, "
                     "or have train { keep_best {} } in the job and job.evaluate(loader, "
                     "data=\"validation\") for one of them")
    begins = loop is None and not progress.resuming()
    if kind != _abi.BATCH or fetch != _abi.TEST_BATCH or done is not None or \
            not (begins or (loop is not None and loop.over)):
        return
    if worker.rank == 0 and not worker.warned_no_evaluation:
        worker.warned_no_evaluation = True
        where = "before the first epoch" if begins else f"after epoch {loop.epoch}"
        warnings.warn(f"job.evaluate(): no batches {where}: the job evaluates "
                      "after its last epoch, and before it as evaluation { every_epochs: N } says"
                      + ("; call it after the loop over batches" if begins else ""),
                      stacklevel=3)


class _Loop:
    """A pass over the batches of an epoch, or of an evaluation. It gives batches to the worker at
    its requests, and yields each batch when its rows are there. A loop may be left in the middle,
    by an interrupted cell of a notebook, an exception or a break. The next loop then continues it:
    with the batch at hand, unless that was used, and with the batches that were read ahead."""

    def __init__(self, worker: Worker, fetch: int, place: _Place) -> None:
        self._worker = worker
        self.fetch, self.place = fetch, place
        self._use = _abi.COMPUTE if fetch == _abi.BATCH else _abi.SCORE
        self.epoch: Optional[int] = None
        self.body = worker.progress.body
        # To the worker: (batches of a step, StepIds, read).
        self._given: collections.deque = collections.deque()
        self._hand: Any = None         # the batches whose rows are here
        self.over = False
        self._owner: Any = None        # the iterator that runs it
        self.scored = self.unscored = 0  # batches of an evaluation
        self.like_probabilities = True   # all its scores so far
        self._aside: Any = None        # the worker's batch at hand, while earlier ones come again

    def unfinished(self) -> bool:
        """Whether it was left in the middle."""
        return not self.over and self.place.opened()

    def is_requested(self) -> bool:
        """Whether the worker still requests its batches or scores: it may have been left behind its
        last batch."""
        request = self._worker.next()
        return request.kind in (self.fetch, self._use) and self.epoch in (None, request.epoch)

    def take_over(self, loader: DataLoader) -> None:
        """Continues with the batches of this loader."""
        self._put_back()
        self.settle()
        if loader is self.place.loader:
            self.place.mend()
        else:
            self.place, same = self.place.in_other(loader)
            if not same:  # batches that were read ahead have no place in the other loader
                self._given = collections.deque((*given[:2], None) for given in self._given)
                self._hand = self._hand and (*self._hand[:2], None)
        if self.fetch == _abi.BATCH:
            self._worker.progress.continue_loop(self.place)

    def settle(self) -> None:
        """Marks the batches at hand as used if their step or their scores were given before the
        loop was left."""
        worker = self._worker
        used = worker.scored if self._use == _abi.SCORE else worker.cells is None
        if self._hand is not None and used:
            self.place.used, self._hand = self._hand[2], None

    def batches(self) -> Iterator[Any]:
        """The rest of the batches."""
        worker, self._owner = self._worker, object()
        owner = self._owner
        if self.unscored > 0:
            yield from self._yield_again(owner)
        if self._hand is not None:
            worker.optimizer.zero_grad()  # the body of the loop begins again
            yield from self._yield_hand(owner)
        while True:
            request = worker.next()
            if request.kind == self.fetch and self.epoch in (None, request.epoch):
                self._give(request)
                if self.over:
                    return
            elif request.kind == self._use and self._given:
                with worker.uninterrupted():
                    self._hand = self._given.popleft()
                    worker.begin(request, self._hand[1], gradients=self._use == _abi.COMPUTE)
                    worker.scored = self._use != _abi.SCORE
                yield from self._yield_hand(owner)
            else:
                self.over = True
                return

    def _yield_hand(self, owner: Any) -> Iterator[Any]:
        for place, batch in enumerate(self._hand[0]):
            self._worker.turn_to(place)
            yield from self._yield(owner, batch)
        self._check_used()
        self.settle()

    def _yield_again(self, owner: Any) -> Iterator[Any]:
        """The batches that had passed unscored when the loop was left: a metric of the script's own
        is of all batches. Their rows are read from the servers, where they have not changed."""
        worker, place = self._worker, self.place
        if place.last is None:  # another loader, which begins
            return
        if not place.repeats():
            warnings.warn("the loop over job.evaluate() was left, and its loader cannot be read "
                          "again: a metric of the script's own is without the first "
                          f"{self.unscored} batches", stacklevel=5)
            return
        place.doubtful = True
        place.begin_again()
        self._aside = worker.cells, worker.step, worker.scored
        try:
            for _ in range(self.unscored):
                batches, step, place.passed = place.read()
                if step is None:
                    break
                worker.step, worker.batches = step, [worker.look_up(step.joined, worker.tables.all)]
                worker.turn_to(0)
                worker.scored = False
                yield from self._yield(owner, batches[0])
        finally:
            if self._owner is owner:
                self._put_back()
        place.pass_over(place.last)
        place.doubtful = False

    def _put_back(self) -> None:
        if self._aside is not None:
            worker = self._worker
            (cells, worker.step, worker.scored), self._aside = self._aside, None
            worker.batches = [cells]
            worker.turn_to(0)

    def _yield(self, owner: Any, batch: Any) -> Iterator[Any]:
        worker = self._worker
        worker.looping = self
        try:
            yield batch
        finally:
            if self._owner is owner:
                worker.looping = None
        if self._owner is not owner:
            raise Error("this iterator over a tandem.DataLoader cannot be used any more, because "
                        "another loop over the loader has started; use one iterator at a time")

    def _give(self, request: _abi.Request) -> None:
        worker, place = self._worker, self.place
        if self.epoch is None:
            place.open(request.epoch)
            self.epoch = request.epoch
            worker.progress.found()
            if self.fetch == _abi.BATCH:
                worker.progress.stands_in(request.epoch)
        place.doubtful = True
        batches, step, read = place.read()
        if step is None:
            place.doubtful = False
            if self.fetch != _abi.BATCH:
                self.over = worker.holds_end = True
                return
            if place.last is None:
                self._check_empty(request.epoch)
            worker.give(None)
        else:
            with worker.uninterrupted():
                worker.give(step.joined, len(batches))
                self._given.append((batches, step, read))
                place.last, place.doubtful = read, False

    def _check_empty(self, epoch: int) -> None:
        """Raises or warns, because the loader has given no batch of an epoch. Only a worker without
        data may have none."""
        worker, loader = self._worker, self.place.loader
        if hasattr(loader._iterable, "__next__") and loader._taken > 0:
            raise Error(f"epoch {epoch}: the loader gave no batch: it is "
                        f"{_kind_of(loader._iterable)}, which can be read once, and the epoch "
                        "before has read all of it; give tandem.DataLoader what can be iterated "
                        "over again, such as a list, a torch DataLoader or an object whose "
                        "__iter__ begins anew")
        cause = "; earlier epochs had batches. Check that iter(loader) starts again from the " \
            "first batch" if loader._taken > 0 else "; is its data empty?"
        if worker.world_size == 1:
            raise Error(f"epoch {epoch}: the loader gave no batch with samples{cause}")
        if not loader._warned:
            loader._warned = True
            warnings.warn(f"epoch {epoch}: the loader of worker {worker.rank} gave no batch, and "
                          f"the worker waits for the others{cause}", stacklevel=6)

    def _check_used(self) -> None:
        worker, place = self._worker, self.place
        if self._use == _abi.COMPUTE and worker.cells is not None:
            raise Misuse(f"step {worker.progress.at_hand[0]}: the loop goes on to the next batch "
                         "without optimizer.step(); call it once for each batch"
                         + (", or with accumulate= where loader.step_ends is true: the last step "
                            "of an epoch may have fewer batches" if place.accumulates() else ""))
        if self._use != _abi.SCORE or worker.scored:
            return
        judged = self.fetch == _abi.VALIDATION_BATCH and not worker.deciding
        if self.scored > 0 or judged or worker.scores is not None:
            raise Misuse("the loop over job.evaluate() goes on to the next batch without "
                         "job.score()")
        with worker.uninterrupted():
            self.unscored += 1  # for a metric of the script's own, which job.report() will give
            worker.score()


def _kind_of(iterable: Any) -> str:
    return "a generator" if isinstance(iterable, types.GeneratorType) else \
        f"an iterator ({getattr(iterable, 'kind', type(iterable).__name__)})"


class _Place:
    """The place of a loop in the batches of its loader. Batches are read ahead; a resumed run
    counts those that were used.

    stream: random numbers for reading. used: of the last used batch: its number in the epoch, a
    checksum of its ids, and the states behind it of the iterable, if it has one, and of the stream.
    last: the same of the last batch that was given to the worker. doubtful: reading was
    interrupted, so the next batch is not known.
    """

    def __init__(self, loader: DataLoader, stream: Stream) -> None:
        self.loader, self._stream, self._iterable = loader, stream, loader._iterable
        self._told = hasattr(self._iterable, "state_dict") and \
            hasattr(self._iterable, "load_state_dict")
        # An iterator, which is read once.
        self._once = hasattr(self._iterable, "__next__") and not self._told
        self._source: Any = None
        # Batches of a step; evaluations have one.
        self._most = loader._accumulate if stream is loader._worker.progress.reading else 1
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
        """The worker requests the first batch of the epoch."""
        self._epoch, self.doubtful = epoch, True
        resumed = self._resumed
        if resumed is None and self.begin is not None:  # what was interrupted
            self.begin_again()
        elif resumed is None:
            self._open()
        elif not self.loader._repeatable:
            warnings.warn("the run resumes with a tandem.DataLoader that was declared not "
                          "repeatable: its batches are others than if it had not been interrupted",
                          stacklevel=4)
            self._open()
        else:
            self.used = self.last = self._go_to(resumed["begin"], resumed["used"],
                                                self._stream.set_state)
        self._resumed = None  # an interrupted one is done again

    def opened(self) -> bool:
        """Whether batches of the epoch were read, or are to be skipped."""
        return self.begin is not None or self._resumed is not None

    def _go_to(self, begin: dict[str, Any], used: Any,
               set_stream: Callable[[dict[str, Any]], None]) -> Any:
        """Restores the state `begin` of an epoch's start and skips the batches up to `used`.
        Returns the record of the last skipped batch."""
        if self._told and used:
            self.begin = begin
            self._count, _, state, stream = used = tuple(used)
            set_stream(stream)
            self._iterable.load_state_dict(state)
            with self._stream:
                self._source = iter(self._iterable)
            return used
        # An iterator continues where skipping was interrupted.
        if self._count == 0 or not self._once:
            self.loader._taken -= self._count
            self._count = 0
            set_stream(begin["stream"])
            self.restore(begin)
            self._open()
        return self.pass_over(used)

    def mend(self) -> None:
        """If reading was interrupted, reads the epoch again, up to the last batch that was given.
        An iterator continues with the rest of its batches. An Error: the rest is lost."""
        if not self.doubtful:
            return
        if self._once and getattr(self._iterable, "gi_frame", self) is None:
            raise Error(f"epoch {self._epoch}: the exception that interrupted the loader has ended "
                        "it, since it is a generator, and the rest of its batches is lost; give "
                        "tandem.DataLoader a new one, which is passed over to this place, or what "
                        "can be iterated over again")
        if not self.repeats():
            why = f"is over {_kind_of(self._iterable)}" if self._once else "has repeatable=False"
            warnings.warn(f"reading was interrupted, and this tandem.DataLoader {why}: a batch may "
                          "be lost", stacklevel=6)
            self.doubtful = False
            return
        if self.begin is not None and self._resumed is None:  # else it is opened again
            self._go_to(self.begin, self.last, self._stream.rewind)
        self.doubtful = False

    def accumulates(self) -> bool:
        """Whether a step may have several batches."""
        return self._most > 1

    def repeats(self) -> bool:
        """Whether the epoch can be read again."""
        return not self._once and self.loader._repeatable

    def begin_again(self) -> None:
        """The first batch of the epoch comes next."""
        self._go_to(self.begin, None, self._stream.rewind)

    def in_other(self, loader: DataLoader) -> tuple[_Place, bool]:
        """The same place in another loader, for example one that a notebook's cell makes when it
        runs again. False: the loader has other batches, and the epoch continues with its first
        one."""
        place = _Place(loader, self._stream)
        place._epoch, place._resumed = self._epoch, self._resumed
        if self._resumed is not None:
            return place, True
        try:
            place.last = place._go_to(self.begin, self.last, self._stream.rewind)
        except (Error, ValueError, TypeError, KeyError) as error:
            warnings.warn(f"epoch {self._epoch} goes on with the first batch of another loader "
                          f"than it began with: {error}", stacklevel=6)
            place._count, place.last = 0, None
            place._open()
            return place, False
        place.used = self.used
        return place, True

    def resume(self, resumed: dict[str, Any]) -> None:
        """Takes the place in a checkpoint, in the epoch in which the run resumes."""
        self._resumed = resumed

    def read(self) -> tuple[Any, Optional[StepIds], Any]:
        """The next batches with samples, as many as make a step, their ids, and the `used` of the
        last one; Nones: there is no batch."""
        batches: list[Any] = []
        parts: list[BatchIds] = []
        while len(parts) < self._most:
            batch, ids = self._read_one()
            if ids is None:
                break
            self._count += 1
            self.loader._taken += 1
            if ids.samples > 0:
                ids.freeze()
                batches.append(batch)
                parts.append(ids)
        if not parts:
            return None, None, None
        told = (copy.deepcopy(self._iterable.state_dict()), self._stream.state()) if self._told \
            else (None, None)
        step = StepIds(parts)
        return batches, step, (self._count, step.joined.checksum(), *told)

    def _read_one(self) -> tuple[Any, Optional[BatchIds]]:
        if isinstance(self._source, _OF_STORED):
            batch = next(self._source, _END)
            if batch is _END:
                return batch, None
            if type(batch) in (tuple, list, dict) and not callable(self.loader._features):
                # Nothing draws here, and the stream costs a tenth of a step.
                return batch, self.loader._ids(batch)
            with self._stream:
                return batch, self.loader._ids(batch)
        with self._stream:  # a function that finds the ids may draw, too
            batch = next(self._source, _END)
            if not isinstance(self._source, ArrowBatches):
                batch = copy_of(batch)
            return batch, None if batch is _END else self.loader._ids(batch)

    def _open(self) -> None:
        self.begin = self._now()
        with self._stream:
            self._source = iter(self._iterable)

    def pass_over(self, used: Any) -> Any:
        """Reads up to the last used batch, and checks that it is the same. Returns its `used`."""
        if not used:
            return None
        if isinstance(self._source, ArrowBatches):  # the ids of the last step show that it is there
            with self._stream:
                skipped = self._source.skip((used[0] - 1) // self._most * self._most - self._count)
            self._count += skipped
            self.loader._taken += skipped
        while self._count < used[0]:
            _, step, self.passed = self.read()
            if step is None:
                raise Error(f"epoch {self._epoch}: the loader gives {self._count} batches, and the "
                            f"run has trained on {used[0]} of it; is it over other data than "
                            "before?")
        if self.passed is None or self.passed[1] != used[1]:
            raise Error(f"epoch {self._epoch}: batch {used[0]} of the loader has other ids than "
                        "the one that the run has trained on: it does not repeat itself. Give "
                        "generators of its own a seed, give it state_dict() and load_state_dict(), "
                        "or say repeatable=False to tandem.DataLoader")
        return self.passed

    # ---- for a checkpoint ----

    def _now(self) -> dict[str, Any]:
        return {"stream": self._stream.state(), "taken": self.loader._taken,
                "generators": [g.get_state() for g in generators_of(self._iterable)],
                "iterable": copy.deepcopy(self._iterable.state_dict()) if self._told else None}

    def state(self) -> dict[str, Any]:
        if self._resumed is not None:  # no batch has been requested since
            return self._resumed
        return {"epoch": self._epoch, "begin": self.begin, "used": self.used, "now": self._now()}

    def restore(self, now: dict[str, Any]) -> None:
        """Restores what the next batches depend on, besides the stream."""
        for generator, state in zip(generators_of(self._iterable), now["generators"]):
            generator.set_state(state)
        if self._told:
            self._iterable.load_state_dict(now["iterable"])
        while self._once and self.loader._taken < now["taken"]:  # it is read once in all epochs
            with self._stream:
                if next(self._iterable, _END) is _END:
                    return
            self.loader._taken += 1
