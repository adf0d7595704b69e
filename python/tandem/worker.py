"""A worker of the job in this process, as the modules of this package use it: its requests and
their answers, and the batch at hand. tandem.Job is its public side."""
from __future__ import annotations

import _signal
import contextlib
import ctypes
import json
import os
import threading
from types import FrameType
from typing import Any, Callable, Iterable, Optional

import torch

from tandem import _abi
from tandem._abi import Diverged, Error, Misuse, check, library
from tandem.local import LocalCluster
from tandem.lookup import Lookup
from tandem.progress import Progress
from tandem.sparse import BatchIds, StepIds
from tandem.tables import Table, Tables

SLICE_MS = 100  # a wait is cut into such pieces, so that Ctrl-C is heard
# Exceptions that the script would raise again in the next attempt. A file or a network may cause
# the others.
FAULTS_OF_PROGRAMS = (TypeError, NameError, AttributeError, ImportError, SyntaxError,
                      NotImplementedError, Misuse)


class Uninterrupted:
    """A context that delays Ctrl-C until the block ends. Uses `_signal`, because the wrappers of
    `signal` cost as much as the rest of a small step."""
    _heard: Any = None
    _before: Any = None

    def __enter__(self) -> None:
        main = threading.get_ident() == threading.main_thread().ident
        if main and _signal.getsignal(_signal.SIGINT) is not None:
            self._before = _signal.signal(_signal.SIGINT, self._hear)

    def _hear(self, number: int, frame: Optional[FrameType]) -> None:
        self._heard = number, frame

    def __exit__(self, *_: Any) -> None:
        if self._before is None:
            return
        _signal.signal(_signal.SIGINT, self._before)
        if self._heard is not None and callable(self._before):
            self._before(*self._heard)
        elif self._heard is not None:
            os.kill(os.getpid(), _signal.SIGINT)


_FREE = contextlib.nullcontext()


class Worker:
    """A worker that has asked to join. cluster: scheduler and servers, if this process starts them.

    handle: of capi/tandem.h. ended: the job is over for this process; failed: it has said why it
    fails. process: the one that joined. optimizer: of the script, once there is one; the job begins
    with it. progress: where the script stands.
    cells: of the batch at hand, a tensor by table; None: there is no batch. given: its ids, as the
    loader gave them. step: the ids of the step, which may have several batches; batches: their
    cells; at: the batch at hand. scored: the batch at hand has scores, or needs none. stepping: its
    gradients were given, and its step is not done. train_loop, test_loop: the last loop over
    batches of an epoch, and of an evaluation; looping: the one whose body runs. deciding: the name
    of the number of the script that decides which model is kept, or "". on_record: functions of the
    script that get the job's records.
    """

    def __init__(self, job: str, scheduler: str, index: int, settings: list[str],
                 bind: Optional[str], advertise: Optional[str],
                 cluster: Optional[LocalCluster]) -> None:
        texts = (ctypes.c_char_p * (len(settings) + 1))(*map(os.fsencode, settings), None)
        options = _abi.JoinOptions(ctypes.sizeof(_abi.JoinOptions), os.fsencode(job), texts,
                                   scheduler.encode(), index, bind and bind.encode(),
                                   advertise and advertise.encode(), 1)
        self.handle = ctypes.c_void_p()
        with cluster.token() if cluster else contextlib.nullcontext():
            check(library().tandem_join(ctypes.byref(options), ctypes.byref(self.handle)))
        self.process, self.scheduler, self.cluster = os.getpid(), scheduler, cluster
        self.ended = self.failed = False
        self.job: Any = None         # session.Job
        self.left = False            # the script has left the loop over epochs before its end
        self.loop_thread: Optional[int] = None  # the thread of that loop
        self.optimizer: Any = None   # optim._Parameters
        self.cells: Optional[dict[str, torch.Tensor]] = None
        self.given: Optional[BatchIds] = None
        self.step: Any = None        # StepIds
        self.batches: list[dict[str, torch.Tensor]] = []
        self.at = 0
        self.scored, self.stepping = True, False
        self.train_loop: Any = None  # data._Loop
        self.test_loop: Any = None   # data._Loop
        self.looping: Any = None     # data._Loop
        self.evaluating = False      # a loop over job.evaluate() has begun and not ended
        # The loop over job.evaluate() has ended, and the worker still requests a batch: what the
        # script reports now belongs to the evaluation.
        self.holds_end = False
        self.reported = True         # something, since the last loop of an evaluation began
        self.warned_no_evaluation = self.warned_unscored = False
        self.between = False         # epochs() waits for the next one
        self.lookup: Optional[Lookup] = None   # of rows between batches
        scores = os.environ.get("TANDEM_SCORES")  # `tandem predict` wants them
        self.scores = open(scores, "wb") if scores else None
        self.on_record: list[Callable[[dict[str, Any]], Any]] = []
        self.progress = Progress(self.handle, self.uninterrupted)

    def wait_joined(self) -> None:
        """Waits for the other nodes of the job."""
        lib, handle = library(), self.handle
        if self.cluster is not None:
            self.cluster.start_servers(lib.tandem_servers(handle))
        while not check(lib.tandem_wait_joined(handle, SLICE_MS)):
            if self.cluster is not None:
                self.cluster.check()
        self.rank: int = lib.tandem_rank(handle)
        self.world_size: int = lib.tandem_world_size(handle)
        self.seed: int = lib.tandem_seed(handle)
        self.batch_size: int = lib.tandem_batch(handle)
        self.deciding: str = lib.tandem_deciding_number(handle).decode()
        self.program_optimizer = bool(lib.tandem_program_optimizer(handle))
        self.tables: Tables[Table] = Tables("the job", (
            Table(t, lib.tandem_table_name(handle, t).decode(), lib.tandem_table_dim(handle, t),
                  [lib.tandem_field_name(handle, t, f).decode()
                   for f in range(lib.tandem_table_fields(handle, t))])
            for t in range(lib.tandem_tables(handle))))

    def check_process(self) -> None:
        """Raises an Error in a process that was forked."""
        if os.getpid() != self.process:
            raise Error("a forked process is no worker: what a loader's processes run may not use "
                        "the job; make batches there, and train with them in the script")

    def check_started(self) -> None:
        """Raises an Error before the optimizer is made."""
        if self.optimizer is None:
            raise Error("the job does not know yet what is trained; make the optimizer first: "
                        "tandem.DistributedOptimizer(torch.optim.Adam(model.parameters()), model)")

    def uninterrupted(self) -> Any:
        """A context for work that is done as a whole, so that a loop can continue after Ctrl-C in a
        notebook."""
        return _FREE if self.cluster is None else Uninterrupted()

    # ---- requests and answers ----

    def next(self, of_step: bool = False) -> _abi.Request:
        """The worker's open request. Updates of the program's optimizer and checkpoints are done on
        the way. of_step: the end of a step counts as one; else it belongs to a step that was
        interrupted while it waited, and is skipped."""
        self.check_process()
        self.end_evaluation()
        request = _abi.Request()
        lib = library()
        while True:
            self.pass_records_on()
            if not check(lib.tandem_next(self.handle, SLICE_MS, ctypes.byref(request))):
                continue
            if request.kind == _abi.STATE:
                if request.last and not self.between:
                    return request  # the script finishes the body of its loop first
                with self.uninterrupted():
                    self.progress.checkpoint()
                continue
            if request.kind == _abi.STEP_DONE and not of_step:
                self.stepping = False
                continue
            if request.kind != _abi.UPDATE:
                if request.kind == _abi.COMPUTE:
                    self.progress.at_hand = request.step, request.epoch
                self.optimizer.after_next()
                return request
            with self.uninterrupted():
                self.update()

    def update(self, in_step_alone: bool = False) -> None:
        """Answers UPDATE. in_step_alone: the optimizer steps only inside of the script's step()."""
        if self.stepping or not in_step_alone:
            self.optimizer.update()
        check(library().tandem_updated(self.handle))

    def end_evaluation(self) -> None:
        """Says that the evaluation has no more batches on this worker, if its loop has ended."""
        if self.holds_end:
            with self.uninterrupted():
                self.give(None)
                self.holds_end = False

    def evaluation(self) -> dict[str, Any]:
        """The result of the last evaluation. Waits for the workers that still evaluate."""
        self.check_process()
        self.end_evaluation()
        text = ctypes.c_char_p()
        while not check(library().tandem_evaluation(self.handle, SLICE_MS, ctypes.byref(text))):
            self.answer_state()
        return json.loads(text.value or b"{}")

    def answer_state(self) -> None:
        """Gives the script's part of a checkpoint that other workers wait for, while this one waits
        for them."""
        request = _abi.Request()
        check(library().tandem_next(self.handle, 0, ctypes.byref(request)))
        if request.kind == _abi.STATE and not request.last:  # others cannot come here before
            self.progress.checkpoint()

    def pass_records_on(self) -> None:
        """Calls the functions of job.on_record() with the records that have come."""
        text = ctypes.c_char_p()
        while self.on_record and check(library().tandem_record(self.handle, ctypes.byref(text))):
            for function in self.on_record:
                function(json.loads(text.value or b"{}"))

    def give(self, ids: Optional[BatchIds], batches: int = 1) -> None:
        """Answers a request for a batch. None: there are no more. batches: how many of the script's
        make it."""
        most = self.batch_size
        if ids is not None and batches > 1 and ids.samples > most:
            raise ValueError(f"the {batches} batches of a step (accumulate) have {ids.samples} "
                             f"samples together, and train.batch_size is {most}; raise it, or "
                             "accumulate fewer")
        samples, fields = (0, (None, None)) if ids is None else (ids.samples, ids.fill(self.tables))
        check(library().tandem_give(self.handle, samples, *fields))

    def begin(self, request: _abi.Request, step: StepIds, gradients: bool) -> None:
        """Reads the cells of the batches of a step: by table a tensor [samples, fields, dim], or
        [ids, dim] of a table whose ids are cells. The first batch is at hand."""
        self.step, self.batches = step, [{} for _ in step.parts]
        for table in self.tables.all:
            unpooled = table.name in self.tables.unpooled
            if unpooled:
                shape = (step.joined.count(table), table.dim)
            else:
                shape = (request.samples, len(table.fields), table.dim)
            cells = torch.empty(shape, dtype=torch.float32)
            check(library().tandem_rows(self.handle, table.index, cells.data_ptr(), cells.numel()))
            for batch, of_batch in zip(self.batches, step.split(table, unpooled, cells)):
                batch[table.name] = of_batch.requires_grad_(gradients)
        self.turn_to(0)

    def turn_to(self, batch: int) -> None:
        """A batch of the step is at hand."""
        self.at, self.cells, self.given = batch, self.batches[batch], self.step.parts[batch]

    def row_gradients(self) -> list[Optional[torch.Tensor]]:
        """Of each table, the gradient of the cells of the step; None: zeros."""
        return [self.step.join(table, table.name in self.tables.unpooled,
                               [batch[table.name] for batch in self.batches])
                for table in self.tables.all]

    def score(self, logits: Optional[int] = None, labels: Optional[int] = None,
              samples: int = 0) -> None:
        """Answers SCORE with addresses of floats. None: the batch at hand does not count."""
        check(library().tandem_score(self.handle, logits, labels, samples))
        self.scored, self.cells = True, None

    def fail(self, why: str, kind: type[BaseException] = Exception) -> None:
        """Ends the job for all nodes, because of an exception of this kind."""
        self.failed = True
        lib = library()
        fail = lib.tandem_fail_diverged if issubclass(kind, Diverged) else \
            lib.tandem_fail_again if issubclass(kind, FAULTS_OF_PROGRAMS) else lib.tandem_fail
        fail(self.handle, why.encode(errors="replace"))

    def close(self) -> int:
        """Leaves the job. Returns the result of tandem_close."""
        self.ended, self.cells = True, None
        if self.lookup is not None:
            self.lookup.close()
        code = library().tandem_close(self.handle)
        if self.cluster is not None:
            self.cluster.finish()
        if code == 0:
            self.pass_records_on()
        return code

    # ---- rows of other batches than that at hand ----

    def may_look(self) -> bool:
        """Whether a module may be called with ids that no loader has announced: in a notebook, to
        look at its results; not in the loop that trains, where such rows would not be trained."""
        return self.cluster is not None and self.optimizer is not None and not self.ended and \
            (self.looping is None or not torch.is_grad_enabled())

    def look_up(self, ids: BatchIds, tables: Iterable[Table]) -> dict[str, torch.Tensor]:
        """The cells of these tables, laid out as by begin(), without gradients."""
        return {table.name: self._reader().cells(table, ids, table.name in self.tables.unpooled)
                for table in tables}

    def rows(self, table: Table, ids: torch.Tensor) -> torch.Tensor:
        """float32 [ids, dim]: rows as they are on the servers at the moment."""
        return self._reader().rows(table, ids)

    def _reader(self) -> Lookup:
        if self.lookup is None:
            with self.cluster.token() if self.cluster else contextlib.nullcontext():
                self.lookup = Lookup(self.scheduler)
        return self.lookup
