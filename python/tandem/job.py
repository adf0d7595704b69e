"""The job, as one worker of it sees it."""
from __future__ import annotations

import _signal
import atexit
import contextlib
import ctypes
import os
import re
import sys
import threading
import time
import traceback
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Optional, SupportsFloat

from tandem import _abi
from tandem._abi import Diverged, Error, check, library
from tandem.local import LocalCluster
from tandem.progress import Progress
from tandem.tables import Table, Tables

if TYPE_CHECKING:
    import torch
    from tandem.data import DataLoader
    from tandem.sparse import BatchIds

_PATIENCE = 5    # seconds in which a job that is closed is saved as it stands
_SLICE_MS = 100  # a wait is cut into such pieces, so that Ctrl-C is heard


class _Deaf:
    """Delays Ctrl-C until the block ends. Uses `_signal`, because the wrappers of `signal` cost as much as the rest of a
    small step."""
    _heard: Any = None
    _before: Any = None

    def __enter__(self) -> None:
        if threading.get_ident() == threading.main_thread().ident and _signal.getsignal(_signal.SIGINT) is not None:
            self._before = _signal.signal(_signal.SIGINT, self._hear)

    def _hear(self, *arguments: Any) -> None:
        self._heard = arguments

    def __exit__(self, *_: Any) -> None:
        if self._before is None:
            return
        _signal.signal(_signal.SIGINT, self._before)
        if self._heard is not None and callable(self._before):
            self._before(*self._heard)
        elif self._heard is not None:
            os.kill(os.getpid(), _signal.SIGINT)


_FREE = contextlib.nullcontext()

_current: Optional[Job] = None  # the job of this process: modules and loaders belong to it
_stand_in: Optional[Tables[Any]] = None  # the tables that modules are made for while a checkpoint is put together


def current_job() -> Job:
    """The job of this process. An Error if tandem.init() was not called."""
    if _current is None:
        raise Error("there is no job yet; call tandem.init() first")
    return _current


def current_tables() -> Tables[Any]:
    """The tables for which modules are made: those of the job, or of a checkpoint (tandem.serving)."""
    return _stand_in or current_job()


@contextlib.contextmanager
def made_for(tables: Tables[Any]) -> Iterator[None]:
    """Inside, modules are made for these tables."""
    global _stand_in
    before, _stand_in = _stand_in, tables
    try:
        yield
    finally:
        _stand_in = before


def _pass_time_limits_on() -> None:
    """SIGXCPU, a limit of CPU time or of a batch system, is for the `tandem run` that has started this script: it checkpoints
    and ends the job. A handler of the script stays."""
    main = threading.get_ident() == threading.main_thread().ident
    driver = os.getppid()
    if os.environ.get("TANDEM_DRIVER") != str(driver) or not main:
        return

    def pass_on(*_: Any) -> None:
        if os.getppid() == driver:
            os.kill(driver, _signal.SIGXCPU)

    if _signal.getsignal(_signal.SIGXCPU) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGXCPU, pass_on)
        _signal.siginterrupt(_signal.SIGXCPU, False)


def init(job: Optional[str] = None, scheduler: Optional[str] = None, index: Optional[int] = None,
         set: Iterable[str] = (),  # pylint: disable=redefined-builtin
         out: Optional[str] = None, resume: Optional[str] = None) -> Job:
    """Joins the job, and returns when all of its nodes are there. One job at a time in a process.

    job: the job file; scheduler: its address, tcp://HOST:PORT; index: the wanted rank. What is not said
    is taken from TANDEM_JOB, TANDEM_SCHEDULER and TANDEM_INDEX, which `tandem run --python` sets.
    set: "path=value" texts, as --set.

    With a job and no scheduler, as in a notebook: starts scheduler and servers on this machine, with
    this process as the one worker. They end with the job or with this process. out: the folder of the
    run (summary.json, logs, model); None: a new one under out/. job.out says which. resume: the folder of such a run,
    which goes on from its newest checkpoint, such as job.close() has made. Under `tandem run` the same call joins the
    job that it has started: job, set, out and resume of the call do not count.

    An Error says what is wrong with the job, or who did not come.
    """
    global _current
    if _current is not None and not _current._ended:
        raise Error("tandem.init() was called before; a process is one worker of one job at a time: "
                    "job.close() ends it")
    own = job  # to be started here, if nobody has
    if scheduler is None and os.environ.get("TANDEM_SCHEDULER"):
        scheduler, own = os.environ["TANDEM_SCHEDULER"], None
        if job and os.environ.get("TANDEM_JOB"):
            job, set, out, resume = os.environ["TANDEM_JOB"], (), None, None
    job = job or os.environ.get("TANDEM_JOB")
    settings = list(set)
    cluster = None
    if own and not scheduler:
        if index not in (None, 0):
            raise Error(f"tandem.init: index {index} of a job with this worker alone; say scheduler=, the "
                        "address of the others'")
        settings.append("cluster.workers=1")
        if resume is not None and out is not None and os.path.abspath(out) != os.path.abspath(resume):
            raise Error(f"tandem.init: out={out!r} and resume={resume!r}; a run goes on in its own folder: leave out=")
        cluster = LocalCluster(own, settings, out, resume)
        scheduler, index = cluster.scheduler, 0
    elif out is not None or resume is not None:
        raise Error(f"tandem.init: {'out' if out is not None else 'resume'}= needs a job that this process starts; this "
                    "job has the folder that its scheduler was given")
    if not job or not scheduler:
        raise Error("which job? Start the script by `tandem run JOB --python SCRIPT`, or say "
                    "TANDEM_JOB (a file) and TANDEM_SCHEDULER (tcp://HOST:PORT), or "
                    "tandem.init(\"job.textproto\") for a job of this process alone")
    if index is None:
        index = int(os.environ.get("TANDEM_INDEX", "-1"))
    bind = os.environ.get("TANDEM_BIND")
    advertise = os.environ.get("TANDEM_ADVERTISE")
    _pass_time_limits_on()
    try:
        _current = Job(job, scheduler, index, settings, bind, advertise, cluster)
    except BaseException:
        if cluster is not None:
            cluster.stop()
        raise
    return _current


class Job(Tables[Table]):
    """What tandem.init() returns.

    rank, world_size: which worker this is, and of how many. step: the one at hand. epoch. seed: of the
    job. tables: by name. scheduler: its address, tcp://HOST:PORT. out: the folder of a run that
    tandem.init() has started, else None. batch_size: samples of a batch; depth: steps read ahead.
    """
    _WHO = "the job"

    def __init__(self, job: str, scheduler: str, index: int, settings: list[str], bind: Optional[str],
                 advertise: Optional[str], cluster: Optional[LocalCluster] = None) -> None:
        lib = library()
        texts = (ctypes.c_char_p * (len(settings) + 1))(*[s.encode() for s in settings], None)
        options = _abi.JoinOptions(ctypes.sizeof(_abi.JoinOptions), job.encode(), texts,
                                   scheduler.encode(), index, bind and bind.encode(),
                                   advertise and advertise.encode(), 1)
        self._handle = ctypes.c_void_p()
        check(lib.tandem_join(ctypes.byref(options), ctypes.byref(self._handle)))
        self._pid, self.scheduler = os.getpid(), scheduler
        self._cluster, self.out = cluster, cluster and cluster.out
        self._ended = self._started = False
        self._optimizer: Any = None  # DistributedOptimizer: the wrapper, which is told of updates
        self._cells: Optional[dict[str, torch.Tensor]] = None  # of the step at hand: by table, what modules read
        self._given: Any = None      # BatchIds: ids of the batch at hand, as the loader gave them
        self._scored = True
        self._evaluating = False     # a loop over job.evaluate() has begun and not ended
        self._train_loop: Any = None  # data._Loop: the last one over batches of an epoch, and
        self._test_loop: Any = None   # of an evaluation
        self._looping: Any = None     # the one whose body runs
        self._reported = True         # something, since the last loop of an evaluation began
        self._skipped_said = False    # that the job does not evaluate after each epoch
        self._seen_offsets: dict[str, bool] = {}  # by field: whether those of batches end with the number of ids
        self._lookup: Any = None      # lookup.Lookup: of rows between batches
        self._loop_epoch: Optional[int] = None  # what epochs() has given last
        self._between = False        # epochs() waits for the next one
        self._progress = Progress(self)
        self.step, self.epoch = 0, 0
        scores = os.environ.get("TANDEM_SCORES")  # `tandem predict` wants them
        self._scores = open(scores, "wb") if scores else None
        self._forget = _end_with_the_process(self)
        try:
            self._join()
        except BaseException as error:
            self._fail(_reason(type(error), error, error.__traceback__))
            lib.tandem_close(self._handle)
            lib.tandem_free(self._handle)
            self._ended = True
            self._forget()
            raise
        self.rank: int = lib.tandem_rank(self._handle)
        self.world_size: int = lib.tandem_world_size(self._handle)
        self.seed: int = lib.tandem_seed(self._handle)
        self.batch_size: int = lib.tandem_batch(self._handle)
        self.depth: int = lib.tandem_prefetch_steps(self._handle)
        self._epochs: int = lib.tandem_epochs(self._handle)
        self._dense_on_servers = bool(lib.tandem_dense_on_servers(self._handle))
        self._program_optimizer = bool(lib.tandem_program_optimizer(self._handle))
        self._set_tables(self._describe_table(t) for t in range(lib.tandem_tables(self._handle)))

    def _join(self) -> None:
        """Waits for the other nodes of the job."""
        if self._cluster is not None:
            self._cluster.start_servers(library().tandem_servers(self._handle))
        while not check(library().tandem_wait_joined(self._handle, _SLICE_MS)):
            if self._cluster is not None:
                self._cluster.check()

    def _describe_table(self, t: int) -> Table:
        lib, handle = library(), self._handle
        fields = [lib.tandem_field_name(handle, t, f).decode()
                  for f in range(lib.tandem_table_fields(handle, t))]
        return Table(t, lib.tandem_table_name(handle, t).decode(), lib.tandem_table_dim(handle, t),
                     fields)

    # ---- the loop ----

    def epochs(self) -> Iterator[int]:
        """The epochs of the job, to be iterated over:

            for epoch in job.epochs():
                for batch in loader: ...

        The last one is over when the whole job is: evaluated and saved. A run that goes on begins with the
        epoch that it stands in, of which the loader gives what is left.

        A loop that was left in the middle of an epoch (a cell of a notebook that was interrupted) is gone on with by
        another one: it begins with that epoch, of which the loader gives what is left.

        An Error if no optimizer is made yet, or if the loop over batches ends before the epoch does.
        """
        self._check_started()
        last = self._progress.begin()
        if last is None and self._train_loop is not None and self._train_loop.goes_on():
            last = self._train_loop.epoch
        if last is not None:
            yield from self._epoch_of_loop(last)
        while True:
            self._between = True
            self._optimizer._carry_out()
            want = self._next()
            self._between = False
            if want.kind == _abi.END:
                self._end()
                return
            if last is None and want.kind in (_abi.VALIDATION_BATCH, _abi.SCORE):
                last = want.epoch  # an evaluation that was left in the middle
                yield from self._epoch_of_loop(last)
                continue
            left = Error(f"the loop over job.evaluate() in epoch {last} was left before the last batch; iterate over the "
                         "whole tandem.DataLoader")
            if want.kind == _abi.SCORE:
                raise left
            if want.kind == _abi.VALIDATION_BATCH:
                raise Error(f"epoch {last} is over, and the job keeps its best model (train.keep_best): behind "
                            "the loop over batches, say for batch in job.evaluate(loader, data=\"validation\"), "
                            "whole and on all workers")
            if want.kind == _abi.TEST_BATCH:
                if last is None:  # a job that takes no step: the loop's body may evaluate
                    last = want.epoch
                    yield from self._epoch_of_loop(last)
                elif not self._evaluating:
                    self._give_none()  # the script evaluates nothing here
                elif self._scores is None:
                    raise left
                else:
                    raise Error("the loop over job.evaluate() has ended before its rows; `tandem predict` wants a score "
                                "for each, so iterate over the whole tandem.DataLoader")
                continue
            if want.kind == _abi.COMPUTE or want.epoch == last:
                raise Error(f"the loop over the batches of epoch {last} has ended before the epoch "
                            f"(at step {self.step}); iterate over the whole tandem.DataLoader, and "
                            "bound the steps of a job by train.max_steps")
            last = want.epoch
            yield from self._epoch_of_loop(last)

    def _epoch_of_loop(self, epoch: int) -> Iterator[int]:
        self._loop_epoch = epoch
        self._progress.begin_epoch(epoch)
        yield epoch
        self._optimizer._check_unfrozen(epoch_over=True)
        self._check_evaluated(epoch)
        self._progress.end_epoch()

    def _check_evaluated(self, epoch: int) -> None:
        """Raises or warns if a loop over job.evaluate() ended without job.score() and job.report()."""
        loop = self._test_loop
        if self._reported or loop is None or loop.unscored == 0:
            return
        self._reported = True
        said = (f"the loop over job.evaluate() of epoch {epoch} has scored nothing: call job.score() for each batch, or "
                "job.report(NAME=VALUE) with a metric of your own")
        if self.world_size == 1:
            raise Error(said)
        if self.rank == 0:  # another worker may have reported
            warnings.warn(said, stacklevel=4)

    def keep(self, **objects: Any) -> None:
        """Has checkpoints contain the state of these objects, by name, of each worker: what has state_dict() and
        load_state_dict(), such as a learning rate schedule. A run that goes on finds it again. Before
        the loop over epochs. Module and optimizer are in checkpoints without it."""
        self._progress.keep(objects)

    def evaluate(self, loader: DataLoader, data: str = "test") -> Iterator[Any]:
        """Test batches of `loader`, where the job evaluates after this epoch; else nothing:

            for dense, ids, label in job.evaluate(test_loader):
                job.score(model(dense, ids), label)

        AUC, logloss and accuracy over all workers are in summary.json. Call it after the epoch's loop. The job evaluates
        after its last epoch, or after each N with evaluation { every_epochs: N }. A loop for a metric of the script's own
        scores no batch, and says job.report(NAME=VALUE) behind it.

        data="validation": of the rows by which the job judges its model (train.keep_best), before the test
        rows, which come after models alone that are the best so far. Nothing in a job that keeps no best.
        """
        if data not in ("test", "validation"):
            raise ValueError(f"job.evaluate(data={data!r}): want 'test' or 'validation'")
        from tandem.data import DataLoader
        if not isinstance(loader, DataLoader):
            raise ValueError("job.evaluate takes a tandem.DataLoader, which says where ids are")
        self._check_started()
        fetch = _abi.VALIDATION_BATCH if data == "validation" else _abi.TEST_BATCH
        return loader._test_batches(fetch)

    def score(self, logits: Any, labels: Any = None) -> None:
        """Adds the scores of the test batch at hand. logits: [samples], before the sigmoid; labels: [samples], 0 or 1;
        tensors, arrays, pandas columns or lists of numbers. Under `tandem predict` there need be no labels; a batch
        without is in no AUC. ValueError: not one for each sample, or other labels; the batch can be scored again."""
        import torch
        from tandem.sparse import as_tensor
        if self._scored:
            raise Error("job.score() belongs into a loop over job.evaluate(), once for each batch")
        if self._test_loop.unscored > 0:
            raise Error("job.score(): batches of this evaluation were not scored; score all of them, or none")
        want = self._next()
        if want.kind != _abi.SCORE:
            raise Error("job.score(): the job ends before the evaluation does; was it told to end?")
        if labels is None and self._scores is None:
            raise ValueError("job.score(logits): where are the labels? Under `tandem predict` alone there need be "
                             "none")
        both = []
        for name, values in (("logits", logits), ("labels", labels)):
            if values is None:
                continue
            values = as_tensor(f"job.score: {name}", values).detach().to("cpu", torch.float32).reshape(-1)
            if values.numel() != want.samples:
                raise ValueError(f"job.score: {values.numel()} {name} for a batch of {want.samples} "
                                 "samples; give one for each")
            if name == "labels" and not bool(((values == 0) | (values == 1)).all()):
                strange = values[(values != 0) & (values != 1)][0].item()
                raise ValueError(f"job.score: a label is {strange:g}; labels are 0 or 1. Map others before: "
                                 "(labels > 0) makes 1 of positive ones; for another loss report your own metric "
                                 "with job.report(NAME=VALUE)")
            both.append(values.contiguous())
        pointers = [part.data_ptr() for part in both] if labels is not None else [None, None]
        with self._uninterrupted():
            check(library().tandem_score(self._handle, *pointers, want.samples))
            if self._scores is not None:
                self._scores.write(both[0].numpy().tobytes())
                self._scores.flush()
            self._scored, self._cells = True, None
            self._test_loop.scored += 1

    def _leave_unscored(self) -> None:
        """The batch at hand does not count."""
        check(library().tandem_score(self._handle, None, None, 0))
        self._scored, self._cells = True, None

    def barrier(self) -> None:
        """Waits until all workers have come here: each calls it as often as the others. Not in a loop over
        batches, of which workers may have different numbers. In a job that was told to end it returns at once, and
        in a run that goes on where another worker has been behind it as the run was saved."""
        self._check_process()
        if self._cells is not None:
            raise Error("job.barrier() in the middle of a step; workers may have different numbers of "
                        "batches, so call it before or after the loop over them")
        if self._progress.has_passed_barrier():
            return
        if self._optimizer is not None:
            self._optimizer._carry_out()
        check(library().tandem_enter_barrier(self._handle))
        want = _abi.Want()
        while not check(library().tandem_wait_barrier(self._handle, _SLICE_MS)):
            check(library().tandem_next(self._handle, 0, ctypes.byref(want)))
            if want.kind == _abi.STATE and not want.last:  # others cannot come here before
                self._progress.checkpoint()
        self._progress.barriers += 1

    def report(self, **values: SupportsFloat) -> None:
        """Numbers of the script's own, for a line of metrics.jsonl with the step at hand and, the last of each
        name, for summary.json. Where several workers report a name at one step the lowest rank counts."""
        self._check_process()
        names = (ctypes.c_char_p * max(1, len(values)))(*[name.encode() for name in values])
        try:
            numbers = (ctypes.c_double * max(1, len(values)))(*[float(v) for v in values.values()])
        except (TypeError, ValueError) as error:
            raise ValueError(f"job.report: {error}; want a number for each name") from None
        while not check(library().tandem_report(self._handle, len(values), names, numbers, self.step,
                                                _SLICE_MS)):
            pass
        self._reported = True

    def checkpoint(self) -> None:
        """Asks for a checkpoint and returns at once. It is made soon, when all workers stand at one step that each of
        them can still reach; no matter how many workers ask: their n-th calls are one checkpoint."""
        self._check_process()
        check(library().tandem_request_checkpoint(self._handle, self.step))

    @property
    def stopped(self) -> bool:
        """Whether the job was told to end before its end, by a signal to `tandem run`. The loop over epochs has
        then ended like any other, and the model is saved."""
        return bool(library().tandem_stopped(self._handle))

    def close(self) -> None:
        """Ends the job, if it has not ended, for all of its workers; tandem.init() may then begin another one. For
        notebooks, also after an error; where a script runs to its end there is no need to. A second call
        does nothing; if Ctrl-C has interrupted the first one, it waits for the same checkpoint.

        A job that tandem.init() has started is saved first, and a line says where, so that
        tandem.init(..., resume=job.out) can go on with it: as if it had not been closed, and so with the batch at hand if
        its step was not taken."""
        self._check_process()
        if not self._ended:
            saved = self._cluster is not None and self._started and self._checkpoint_and_end()
            if not saved:
                self._fail(f"closed at step {self.step}, before the job had ended")
            self._close()
            if saved:
                self._say_checkpointed()
        self._forget()

    def _close(self) -> int:
        self._ended, self._cells = True, None
        if self._lookup is not None:
            self._lookup.close()
        code = library().tandem_close(self._handle)
        if self._cluster is not None:
            self._cluster.finish()
        return code

    def _checkpoint_and_end(self) -> bool:
        """Tells the scheduler to checkpoint and to end the job, and does what the worker wants until it has. False: it has
        failed."""
        lib, want = library(), _abi.Want()
        if not lib.tandem_writes_checkpoints(self._handle):
            return False
        if self._train_loop is not None and self._train_loop.goes_on():
            self._train_loop.settle()
            if self._train_loop.epoch is not None:
                self._progress.stands_in(self._train_loop.epoch)
        try:
            if not self._cluster.told_end:  # by an interrupted call
                while not check(lib.tandem_next(self._handle, _SLICE_MS, ctypes.byref(want))):
                    self._cluster.check()  # until the job has begun
                with self._uninterrupted():
                    check(lib.tandem_rest(self._handle))
                    self._cluster.tell_end()
            patience = time.monotonic() + _PATIENCE
            while want.kind != _abi.END:
                if not check(lib.tandem_next(self._handle, _SLICE_MS, ctypes.byref(want))):
                    self._cluster.check_scheduler()
                    continue
                with self._uninterrupted():
                    self._answer_at_end(want, time.monotonic() > patience)
        except Exception as error:  # of the job, or of what the script has given it: its optimizer, job.keep()
            print(f"tandem: no checkpoint was written: {error}", file=sys.stderr)
            return False
        return True

    def _answer_at_end(self, want: _abi.Want, late: bool) -> None:
        """What the worker of a job that is being closed wants of the script. late: it has been closed for some seconds."""
        lib = library()
        if want.kind == _abi.STATE:
            self._progress.checkpoint()
        elif want.kind == _abi.UPDATE:
            if self._optimizer._stepping:
                self._optimizer._update()
            check(lib.tandem_updated(self._handle))
        elif want.kind == _abi.STEP_DONE:
            self._optimizer._stepping = False
        elif want.kind == _abi.COMPUTE and late:
            # An earlier checkpoint waits for the step: it is one without a gradient. An error says that the checkpoint of the end has
            # just taken the step back; tandem_next says how a job has failed.
            lib.tandem_finish(self._handle, _abi.NO_LOSS, None, None, None, 1)
        elif want.kind == _abi.SCORE:
            check(lib.tandem_score(self._handle, None, None, 0))
        elif want.kind != _abi.END:
            time.sleep(.001)  # batches and steps, of which there are no more

    def _say_checkpointed(self) -> None:
        said = self._cluster.last_words()  # of the scheduler
        if said.startswith("{"):
            print(f"tandem: the job had come to its end; its model is in {self.out}/model")
        elif saved := re.search(r"; saved step (\d+)", said):
            print(f"tandem: checkpoint in {self.out}/model (step {saved[1]}); resume it with "
                  f"tandem.init({self._cluster.given!r}, resume={self.out!r})")
        else:
            print(f"tandem: no checkpoint: {said}", file=sys.stderr)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is not None and not self._ended and (self._cluster is None or not self._started):
            self._fail(_reason(kind, value, trace), issubclass(kind, Diverged))
        self.close()

    # ---- for the other modules of this package ----

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Error("a forked process is no worker: what a loader's processes run may not use the "
                        "job; make batches there, and train with them in the script")

    def _next(self, of_step: bool = False) -> _abi.Want:
        """What the worker wants now. Updates of the program's optimizer are done on the way. of_step: for the end of a step;
        else that of one which was interrupted while it waited is passed by."""
        self._check_process()
        want = _abi.Want()
        lib = library()
        while True:
            if not check(lib.tandem_next(self._handle, _SLICE_MS, ctypes.byref(want))):
                continue
            if want.kind == _abi.STATE:
                if want.last and not self._between:
                    return want  # what the script does after its loop comes first
                with self._uninterrupted():
                    self._progress.checkpoint()
                continue
            if want.kind == _abi.STEP_DONE and not of_step:
                self._optimizer._stepping = False
                continue
            if want.kind != _abi.UPDATE:
                if want.kind == _abi.COMPUTE:
                    self.step, self.epoch = want.step, want.epoch
                if self._optimizer is not None:
                    self._optimizer._after_next()
                return want
            with self._uninterrupted():
                self._optimizer._update()
                check(lib.tandem_updated(self._handle))

    def _uninterrupted(self) -> Any:
        """A context: a Ctrl-C in a notebook is heard behind what must be done as a whole, so that the loop can go on."""
        return _FREE if self._cluster is None else _Deaf()

    def _forget_gradients(self) -> None:
        """The body of a loop begins again with the batch at hand."""
        if self._optimizer is not None:
            self._optimizer.zero_grad()

    def _note_no_evaluation(self, kind: int, fetch: int) -> None:
        """A loop over job.evaluate() has no batches: `kind` is wanted."""
        loop = self._train_loop
        if kind != _abi.BATCH or fetch != _abi.TEST_BATCH or self._test_loop is not None or loop is None or not loop.over:
            return
        if self.rank == 0 and not self._skipped_said:
            self._skipped_said = True
            warnings.warn(f"job.evaluate(): no batches after epoch {loop.epoch}: the job evaluates after its last epoch, "
                          "and before it as evaluation { every_epochs: N } says", stacklevel=4)

    # ---- rows of other batches than that at hand ----

    def _may_look(self) -> bool:
        """Whether a module may be called with ids that no loader has announced: in a notebook, to look at what it gives;
        not in the loop that trains, where such rows would not be trained."""
        import torch
        return self._cluster is not None and self._started and not self._ended and \
            (self._looping is None or not torch.is_grad_enabled())

    def _look_up(self, ids: BatchIds, tables: Iterable[Table]) -> dict[str, torch.Tensor]:
        """The cells of these tables, as _begin has them, without gradients."""
        if self._lookup is None:
            from tandem.lookup import Lookup
            self._lookup = Lookup(self.scheduler)
        return {table.name: self._lookup.cells(table, ids, table.name in self._unpooled) for table in tables}

    def _give_none(self) -> None:
        check(library().tandem_give(self._handle, 0, None, None))

    def _check_started(self) -> None:
        if not self._started:
            raise Error("the job does not know yet what is trained; make the optimizer first: "
                        "tandem.DistributedOptimizer(torch.optim.Adam(model.parameters()), model)")

    def _begin(self, want: _abi.Want, ids: BatchIds, gradients: bool) -> None:
        """Reads the cells of the batch at hand: by table a tensor [samples, fields, dim], or [ids, dim]
        of one whose ids are cells."""
        import torch
        self._cells, self._given = {}, ids
        for table in self._table_list:
            if table.name in self._unpooled:
                shape = (ids.count(table), table.dim)
            else:
                shape = (want.samples, len(table.fields), table.dim)
            cells = torch.empty(shape, dtype=torch.float32)
            check(library().tandem_rows(self._handle, table.index, cells.data_ptr(), cells.numel()))
            self._cells[table.name] = cells.requires_grad_(gradients)

    def _fail(self, why: str, diverged: bool = False) -> None:
        fail = library().tandem_fail_diverged if diverged else library().tandem_fail
        fail(self._handle, why.encode(errors="replace"))

    def _end(self) -> None:
        if not self._ended:
            code = self._close()
            self._forget()
            check(code)


# ---- how a script ends ----

def place_of(frames: traceback.StackSummary, script: str) -> str:
    """"train.py:31": the innermost line of the script itself."""
    own = [f for f in frames if os.path.abspath(f.filename) == script] or frames[-1:]
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""


def _script() -> str:
    """Its path; "" in a notebook."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    return os.path.abspath(path) if path else ""


def _reason(kind: type[BaseException], value: Optional[BaseException], trace: Optional[TracebackType]) -> str:
    name, text = kind.__name__, str(value).split("\n", 1)[0]
    place = place_of(traceback.extract_tb(trace), _script())
    return f"{name}: {text} ({place})" if text else f"{name} ({place})"


def _end_with_the_process(job: Job) -> Callable[[], None]:
    """An exception, Ctrl-C, or a script that ends before the job does end the job by name. Returns what ends
    this watch."""
    shown = sys.excepthook
    script = os.path.basename(_script())  # as the process ends Python knows it no more

    before = getattr(sys, "last_value", None)

    def ends() -> bool:
        """Whether an exception that nobody catches ends the process: not at Python's prompt, where the next line can go on
        with a job that this process has started."""
        return job._cluster is None or not (hasattr(sys, "ps1") or sys.flags.interactive)

    def on_exception(kind: type[BaseException], value: BaseException, trace: Optional[TracebackType]) -> None:
        if os.getpid() == job._pid and not job._ended and ends():
            job._fail(_reason(kind, value, trace), issubclass(kind, Diverged))
        shown(kind, value, trace)

    def at_exit() -> None:
        if os.getpid() != job._pid or job._ended:
            return
        last = getattr(sys, "last_value", None)
        if last is not None and last is not before and ends():
            # Something else was raised before on_exception came to say it: by the signal of another process's end, say.
            job._fail(_reason(type(last), last, getattr(sys, "last_traceback", None)))
        job._fail(f"{script or 'the program'} ended at step {job.step}, before the job had; iterate to the "
                  "end of job.epochs()")
        job._close()

    def forget() -> None:
        atexit.unregister(at_exit)
        if sys.excepthook is on_exception:
            sys.excepthook = shown

    sys.excepthook = on_exception
    atexit.register(at_exit)
    return forget
