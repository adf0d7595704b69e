"""The job, as one worker of it sees it."""
from __future__ import annotations

import _signal
import atexit
import ctypes
import inspect
import math
import opcode
import os
import sys
import threading
import time
import traceback
import warnings
from types import FrameType, TracebackType
from typing import Any, Callable, Iterable, Iterator, NoReturn, Optional, SupportsFloat

import torch

from tandem import _abi, current
from tandem._abi import Error, Misuse, check, library
from tandem.current import current_worker
from tandem.data import DataLoader, check_not_ended, evaluation_batches
from tandem.local import LocalCluster
from tandem.sparse import FieldIds, as_tensor
from tandem.tables import Table
from tandem.worker import SLICE_MS, Worker

_PATIENCE = 5    # seconds for a checkpoint of a job that is closed
_REDUCTIONS = ["mean", "sum", "min", "max"]  # from 1, as in capi/tandem.h


def _driven() -> bool:
    """Whether `tandem run` or `tandem agent` has started this process and watches it."""
    return os.environ.get("TANDEM_DRIVER") == str(os.getppid())


def _pass_time_limits_on() -> None:
    """Passes SIGXCPU, a limit of CPU time or of a batch system, to the `tandem run` that has
    started this script: it makes a checkpoint and ends the job. A handler of the script stays."""
    main = threading.get_ident() == threading.main_thread().ident
    driver = os.getppid()
    if not _driven() or not main:
        return

    def pass_on(*_: Any) -> None:
        if os.getppid() == driver:
            os.kill(driver, _signal.SIGXCPU)

    if _signal.getsignal(_signal.SIGXCPU) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGXCPU, pass_on)
        _signal.siginterrupt(_signal.SIGXCPU, False)


def init(job: Optional[str] = None, scheduler: Optional[str] = None, index: Optional[int] = None,
         set: Iterable[str] = (),  # pylint: disable=redefined-builtin
         out: Optional[str] = None, resume: Optional[str] = None,
         init_from: Optional[str] = None, only_tables: Iterable[str] = ()) -> Job:
    """Joins the job, and returns when all of its nodes are there. One job at a time in a process.

    job: the job file; scheduler: its address, tcp://HOST:PORT; index: the rank. Defaults are
    TANDEM_JOB, TANDEM_SCHEDULER and TANDEM_INDEX, which `tandem run --python` sets. set:
    "path=value" texts, as --set.

    With a job and no scheduler, as in a notebook: starts scheduler and servers on this machine,
    with this process as the one worker. They end with the job or with this process. out: the folder
    of the run (summary.json, logs, model); None: a new one under out/; job.out is its path. resume:
    the folder of such a run, which resumes from its newest checkpoint, for example that of
    job.close(). init_from: the checkpoint from which the job starts; only_tables: take only these
    tables of it; as --init-from and --only-tables. Under `tandem run` the same call joins the job
    of the command: job, set, out, resume, init_from and only_tables of the call are ignored.

    An Error names the mistake in the job, or the missing node.
    """
    if current.worker is not None and not current.worker.ended:
        raise Error("tandem.init() was called before; a process is one worker of one job at a "
                    "time: tandem.job() is the running job, and job.close() ends it")
    own = job  # to be started here, if nobody has
    if scheduler is None and os.environ.get("TANDEM_SCHEDULER"):
        scheduler, own = os.environ["TANDEM_SCHEDULER"], None
        if job and os.environ.get("TANDEM_JOB"):
            job, set, out, resume, init_from = os.environ["TANDEM_JOB"], (), None, None, None
    job = job or os.environ.get("TANDEM_JOB")
    settings = list(set)
    cluster = None
    if own and not scheduler:
        if index not in (None, 0):
            raise Error(f"tandem.init: index {index} of a job with this worker alone; say "
                        "scheduler=, the address of the others'")
        settings.append("cluster.workers=1")
        if resume is not None and out is not None and \
                os.path.abspath(out) != os.path.abspath(resume):
            raise Error(f"tandem.init: out={out!r} and resume={resume!r}; a run resumes in its own "
                        "folder: leave out=")
        begin = [] if init_from is None else ["--init-from", os.path.abspath(init_from)]
        tables = list(only_tables)
        if tables:
            begin += ["--only-tables", ",".join(tables)]
        cluster = LocalCluster(own, settings, out, resume, begin)
        scheduler, index = cluster.scheduler, 0
    else:
        for name, value in (("out", out), ("resume", resume), ("init_from", init_from)):
            if value is not None:
                raise Error(f"tandem.init: {name}= needs a job that this process starts; this job "
                            "has what its scheduler was given")
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
        return Job(job, scheduler, index, settings, bind, advertise, cluster)
    except BaseException:
        if cluster is not None:
            cluster.stop()
        raise


def job() -> Job:
    """The job of this process, for other files of a program than the one that called tandem.init().
    An Error if none has."""
    return current_worker().job


class Job:
    """The result of tandem.init().

    rank, world_size: of this worker, and how many workers there are. step, epoch: of the batch at
    hand. seed: of the job. tables: by name. scheduler: its address, tcp://HOST:PORT. out: the
    folder of a run that tandem.init() has started, else None. batch_size: samples of a batch;
    depth: prefetched steps.
    """

    def __init__(self, job: str, scheduler: str, index: int, settings: list[str],
                 bind: Optional[str], advertise: Optional[str],
                 cluster: Optional[LocalCluster] = None) -> None:
        lib = library()
        self._worker = worker = Worker(job, scheduler, index, settings, bind, advertise, cluster)
        self.scheduler, self.out = scheduler, cluster and cluster.out
        self._forget = _end_with_the_process(worker)
        try:
            worker.wait_joined()
        except BaseException as error:
            worker.fail(_reason(type(error), error, error.__traceback__), type(error))
            lib.tandem_close(worker.handle)
            lib.tandem_free(worker.handle)
            worker.ended = True
            self._forget()
            raise
        current.worker, worker.job = worker, self
        self.rank, self.world_size, self.seed = worker.rank, worker.world_size, worker.seed
        self.batch_size: int = worker.batch_size
        self.depth: int = lib.tandem_prefetch_steps(worker.handle)
        self.tables: dict[str, Table] = worker.tables.by_name

    @property
    def step(self) -> int:
        """The step of the batch at hand."""
        return self._worker.progress.at_hand[0]

    @property
    def rates(self) -> dict[str, float]:
        """The learning rate of each table at the batch at hand, as the schedules of the job say."""
        lib, handle = library(), self._worker.handle
        return {name: lib.tandem_table_rate(handle, table.index)
                for name, table in self.tables.items() if table.fields}

    @property
    def epoch(self) -> int:
        """The epoch of the batch at hand."""
        return self._worker.progress.at_hand[1]

    @staticmethod
    def device() -> torch.device:
        """The GPU of this worker, which becomes torch's current one; the CPU if there is no GPU.
        Workers of a host take its GPUs in turn: GPU LOCAL_RANK, which `tandem run` sets, modulo the
        number of GPUs that this process sees."""
        gpus = torch.cuda.device_count()
        if gpus == 0:
            return torch.device("cpu")
        found = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus)
        torch.cuda.set_device(found)
        return found

    # ---- the loop ----

    def epochs(self) -> Iterator[int]:
        """The epochs of the job:

            for epoch in job.epochs():
                for batch in loader: ...

        The last one ends when the whole job does, with its evaluation and its checkpoint. A resumed
        run begins with the epoch of its checkpoint, of which the loader gives the rest.

        After a loop that was left in the middle of an epoch (an interrupted cell of a notebook),
        the next loop begins with that epoch, of which the loader gives the rest.

        A script that has left the loop by break ends the job as close() does, when the script ends.
        In a notebook the job stays, and the loop can be run again.

        An Error: no optimizer is made yet, or the loop over batches ends before the epoch does.
        """
        worker = self._worker
        worker.check_started()
        worker.left = False
        worker.loop_thread = threading.get_ident()
        for epoch in self._epochs():
            worker.left = True  # if the loop never comes back here
            yield epoch
            worker.left = False

    def _epochs(self) -> Iterator[int]:
        worker = self._worker
        last = worker.progress.begin()
        if last is None and worker.train_loop is not None and worker.train_loop.unfinished():
            last = worker.train_loop.epoch
        if last is not None:
            yield from self._epoch_of_loop(last)
        while True:
            worker.between = True
            worker.optimizer.carry_out()
            request = worker.next()
            worker.between = False
            if request.kind == _abi.END:
                self._end()
                return
            if last is None and request.kind in (_abi.VALIDATION_BATCH, _abi.SCORE):
                last = request.epoch  # an evaluation that was left in the middle
                yield from self._epoch_of_loop(last)
                continue
            left = Error(f"the loop over job.evaluate() in epoch {last} was left before the last "
                         "batch; iterate over the whole tandem.DataLoader")
            if request.kind == _abi.SCORE:
                raise left
            if request.kind == _abi.VALIDATION_BATCH:
                raise Misuse(f"epoch {last} is over, and the job keeps its best model "
                             "(train.keep_best): behind the loop over batches, say for batch in "
                             "job.evaluate(loader, data=\"validation\"), whole and on all workers")
            if request.kind == _abi.TEST_BATCH:
                if last is None:  # a job that takes no step: the loop's body may evaluate
                    last = request.epoch
                    yield from self._epoch_of_loop(last)
                elif not worker.evaluating:
                    worker.give(None)  # the script evaluates nothing here
                elif worker.scores is None:
                    raise left
                else:
                    raise Misuse("the loop over job.evaluate() has ended before its rows; `tandem "
                                 "predict` wants a score for each, so iterate over the whole "
                                 "tandem.DataLoader")
                continue
            if request.kind == _abi.COMPUTE or request.epoch == last:
                raise Misuse(f"the loop over the batches of epoch {last} has ended before the "
                             f"epoch (at step {self.step}); iterate over the whole "
                             "tandem.DataLoader, and bound the steps of a job by train.max_steps")
            last = request.epoch
            yield from self._epoch_of_loop(last)

    def _epoch_of_loop(self, epoch: int) -> Iterator[int]:
        worker = self._worker
        worker.progress.begin_epoch(epoch)
        yield epoch
        worker.optimizer.check_unfrozen(epoch_over=True)
        self._check_evaluated(epoch)
        worker.progress.end_epoch()

    def _check_evaluated(self, epoch: int) -> None:
        """Raises or warns after a loop over job.evaluate() without job.score() and job.report()."""
        worker, loop = self._worker, self._worker.test_loop
        if worker.reported or loop is None or loop.unscored == 0:
            return
        worker.reported = True
        said = (f"the loop over job.evaluate() of epoch {epoch} has scored nothing: call "
                "job.score() for each batch, or job.report(NAME=VALUE) with a metric of your own")
        if self.world_size == 1:
            raise Error(said)
        if self.rank == 0 and not worker.warned_unscored:  # another worker may have reported
            worker.warned_unscored = True
            warnings.warn(said, stacklevel=5)

    def keep(self, **objects: Any) -> None:
        """Has checkpoints contain the state of these objects, by name, of each worker. An object
        has state_dict() and load_state_dict(), for example a learning rate schedule. A resumed run
        restores it. Call keep() before the loop over epochs. Module and optimizer are in
        checkpoints without it."""
        self._worker.progress.keep(objects)

    def evaluate(self, loader: DataLoader, data: str = "test") -> Iterator[Any]:
        """Test batches of `loader`, if the job evaluates after this epoch; else nothing:

            for dense, ids, label in job.evaluate(test_loader):
                job.score(model(dense, ids), label)

        AUC, logloss and accuracy over all workers are in summary.json, and job.evaluation() returns
        them. Call it after the epoch's loop. The job evaluates after its last epoch, or after each
        N with evaluation { every_epochs: N }. A loop for a metric of the script's own scores no
        batch, and calls job.report(NAME=VALUE, reduce="mean", weight=SAMPLES) afterwards.

        data="validation": batches of the rows by which the job judges its model (train.keep_best),
        before the test rows, which come only after the models that are the best so far. Nothing in
        a job that keeps no best model.
        """
        if data not in ("test", "validation"):
            raise ValueError(f"job.evaluate(data={data!r}): expected 'test' or 'validation'")
        if not isinstance(loader, DataLoader):
            raise ValueError("job.evaluate takes a tandem.DataLoader, which says where ids are")
        self._worker.check_started()
        fetch = _abi.VALIDATION_BATCH if data == "validation" else _abi.TEST_BATCH
        return evaluation_batches(loader, fetch)

    def rows(self, table: str, ids: Any) -> torch.Tensor:
        """float32 [ids, dim]: the rows of these ids, int64 [n], for example of all items, to rank
        them. They are read from the servers in blocks, without gradients. table: a table or a
        field. An id that was never trained has its initial value. Padding has zeros, if all fields
        of the table have it.

        After the loop over batches, and in a loop over job.evaluate(), they are the rows that the
        job evaluates. Within a loop over batches they are as they are at the moment: no policy
        bounds their staleness there. tandem.Embedding(NAME, ids=...) has rows that a step trains.

        ValueError: no such table, a table of a Store, or invalid ids. An Error: the job has ended.
        """
        worker = self._worker
        worker.check_started()
        worker.check_process()
        check_not_ended(worker, "job.rows()")
        tables = worker.tables
        found, place = tables.find(table)
        if not found.fields:
            raise ValueError(f"job.rows({table!r}): a KEY_VALUE table, which tandem.Store reads")
        wanted = FieldIds(table, ids).ids
        if worker.cells is None and worker.train_loop is not None and worker.train_loop.over:
            worker.train_loop.settle()
            worker.next()  # all workers have ended the epoch, if an evaluation follows
        rows = worker.rows(found, wanted)
        padding = {tables.padding.get(field) for field in
                   (found.fields if place is None else [table]) if field not in tables.fixed}
        if len(padding) == 1 and None not in padding:
            rows[wanted == padding.pop()] = 0
        return rows

    def score(self, logits: Any, labels: Any = None) -> None:
        """Adds the scores of the test batch at hand. logits: [samples], before the sigmoid; labels:
        [samples], 0 or 1; tensors, arrays, pandas columns or lists of numbers. Labels are optional
        under `tandem predict`; a batch without labels is in no AUC. ValueError: not one for each
        sample, or invalid labels; the batch can be scored again."""
        worker = self._worker
        if worker.scored:
            raise Misuse("job.score() belongs into a loop over job.evaluate(), once for each batch")
        if worker.test_loop.unscored > 0:
            raise Misuse("job.score(): batches of this evaluation were not scored; score all of "
                         "them, or none")
        request = worker.next()
        if request.kind != _abi.SCORE:
            raise Error("job.score(): the job ends before the evaluation does; was it told to end?")
        if labels is None and worker.scores is None:
            raise ValueError("job.score(logits): where are the labels? Under `tandem predict` "
                             "alone there need be none")
        both = []
        for name, values in (("logits", logits), ("labels", labels)):
            if values is None:
                continue
            values = as_tensor(f"job.score: {name}", values)
            values = values.detach().to("cpu", torch.float32).reshape(-1)
            if values.numel() != request.samples:
                raise ValueError(f"job.score: {values.numel()} {name} for a batch of "
                                 f"{request.samples} samples; give one for each")
            if name == "labels" and not bool(((values == 0) | (values == 1)).all()):
                strange = values[(values != 0) & (values != 1)][0].item()
                raise ValueError(f"job.score: a label is {strange:g}; labels are 0 or 1. Map "
                                 "others before: (labels > 0) makes 1 of positive ones; for "
                                 "another loss report your own metric with job.report(NAME=VALUE)")
            both.append(values.contiguous())
        pointers = [part.data_ptr() for part in both] if labels is not None else [None, None]
        with worker.uninterrupted():
            worker.score(*pointers, request.samples)
            if worker.scores is not None:
                worker.scores.write(both[0].numpy().tobytes())
                worker.scores.flush()
            worker.test_loop.scored += 1
            worker.test_loop.like_probabilities &= bool(((both[0] > 0) & (both[0] < 1)).all())

    def barrier(self) -> None:
        """Waits until all workers have entered the barrier: each calls it as often as the others.
        Do not call it in a loop over batches, because workers may have different numbers of
        batches. The call returns at once in a job that was told to end, and in a resumed run at a
        barrier that another worker had left when the checkpoint was made."""
        self._meet("job.barrier()", lambda: library().tandem_enter_barrier(self._worker.handle))

    def _meet(self, what: str, enter: Callable[[], int]) -> bool:
        """Waits until all workers have entered a barrier. False: another worker had left it when
        the checkpoint was made."""
        worker = self._worker
        worker.check_process()
        if worker.cells is not None:
            raise Misuse(f"{what} in the middle of a step; workers may have different numbers of "
                         "batches, so call it before or after the loop over them")
        if worker.progress.has_passed_barrier():
            return False
        if worker.optimizer is not None:
            worker.optimizer.carry_out()
        check(enter())
        while not check(library().tandem_wait_barrier(worker.handle, SLICE_MS)):
            worker.answer_state()
        worker.progress.barriers += 1
        return True

    def report(self, *, reduce: Optional[str] = None, weight: Optional[float] = None,
               **values: SupportsFloat) -> Optional[dict[str, float]]:
        """Adds numbers of the script's own to a line of metrics.jsonl with the step at hand. The
        last one of each name is in summary.json. A number that is not finite becomes null, with a
        warning.

        reduce: "mean", "sum", "min" or "max": all workers make the call, with the same names, and
        each gets the reduced numbers, by name. The call waits for all of them, so it belongs before
        or after a loop over batches. weight: how many samples the numbers of this worker are the
        mean of; a mean needs it. With weight=0 the worker's numbers do not count, and if none
        counts, the result is NaN. So is that of a job that was told to end.

        Without reduce the call returns at once. If several workers then report a name at one step,
        the lowest rank counts.

        After a loop over job.evaluate() reduced numbers are part of that evaluation: of the result
        of job.evaluation(), and of what decides with train { keep_best { metric: REPORTED } }.
        """
        worker = self._worker
        worker.check_process()
        names = (ctypes.c_char_p * max(1, len(values)))(*[name.encode() for name in values])
        try:
            numbers = (ctypes.c_double * max(1, len(values)))(*[float(v) for v in values.values()])
        except (TypeError, ValueError) as error:
            raise ValueError(f"job.report: {error}; expected a number for each name") from None
        if reduce is not None:
            return self._reduce(reduce, weight, names, numbers, list(values))
        if weight is not None:
            raise ValueError("job.report: weight= belongs to reduce=\"mean\"")
        while not check(library().tandem_report(worker.handle, len(values), names, numbers,
                                                self.step, SLICE_MS)):
            pass
        worker.reported = True
        return None

    def _reduce(self, reduce: str, weight: Optional[float], names: Any, numbers: Any,
                keys: list[str]) -> dict[str, float]:
        """Does what report() does with reduce."""
        if reduce not in _REDUCTIONS:
            raise ValueError(f"job.report(reduce={reduce!r}): expected one of "
                             f"{', '.join(map(repr, _REDUCTIONS))}")
        if weight is None and reduce == "mean":
            raise ValueError("job.report(reduce=\"mean\"): where is the weight? Say weight=N, the "
                             "number of samples of this worker")
        worker, lib = self._worker, library()
        number = _REDUCTIONS.index(reduce) + 1
        weighs = 1. if weight is None else float(weight)
        if not self._meet("job.report(reduce=...)", lambda: lib.tandem_enter_reduction(
                worker.handle, len(keys), names, numbers, number, weighs, self.step,
                worker.holds_end)):
            passed = worker.progress.reduced[worker.progress.barriers]
            return {key: passed.get(key, math.nan) for key in keys}
        worker.reported = True
        reduced, value = {}, ctypes.c_double()
        for key, name in zip(keys, names):
            there = check(lib.tandem_reduced(worker.handle, name, ctypes.byref(value)))
            reduced[key] = value.value if there else math.nan
        worker.progress.reduced[worker.progress.barriers] = reduced
        return reduced

    def evaluation(self) -> dict[str, Any]:
        """The result of the last loop over job.evaluate() that had batches on some worker: "auc",
        "logloss" and "accuracy" over all workers, and the others of an `evaluation` line of
        metrics.jsonl, with "reported", what the script has reported with reduce=. Each worker gets
        the same. Waits until all workers have ended their loops. Empty: nothing was scored yet."""
        return self._worker.evaluation()

    def on_record(self, function: Callable[[dict[str, Any]], Any]) -> None:
        """Has a function called with each record of the job, a dict: the lines of metrics.jsonl,
        whose "event" is "started", "progress", "evaluation", "reported", "saved" and others, and at
        the end of the job its summary ("event": "summary"), as in summary.json. On worker 0 alone,
        in the thread of the loop, between two batches."""
        self._worker.on_record.append(function)

    def checkpoint(self) -> None:
        """Asks for a checkpoint and returns at once. The checkpoint is made soon. The n-th calls of
        all workers ask for the same checkpoint."""
        self._worker.check_process()
        check(library().tandem_request_checkpoint(self._worker.handle, self.step))

    @property
    def stopped(self) -> bool:
        """Whether the job was told to end early: by a signal to `tandem run`, by `tandem stop`, or
        by job.close() of a worker. The loop over epochs has then ended like any other, and there is
        a checkpoint."""
        return bool(library().tandem_stopped(self._worker.handle))

    def close(self) -> None:
        """Makes a last checkpoint and ends the job, if it has not ended, for all of its workers;
        tandem.init() may then begin another one. Notebooks need close(), also after an error; a
        script that runs to its end does not. A second call does nothing, or waits for the
        checkpoint of a first one that Ctrl-C has interrupted.

        The run can be resumed: under `tandem run` by --resume, in a notebook by tandem.init(...,
        resume=job.out), with the batch at hand if its step was not taken, as if the job had not
        been closed. job.close() in a notebook prints the folder of the checkpoint."""
        self._close()

    def _close(self) -> bool:
        """Does what close() does. Returns whether the job has ended well, with its checkpoint."""
        worker = self._worker
        worker.check_process()
        done = True
        if not worker.ended:
            done = not worker.failed and worker.optimizer is not None and \
                self._checkpoint_and_end()
            if not done:
                worker.fail(f"closed at step {self.step}, before the job had ended")
            done = worker.close() == 0 and done
            if done and worker.cluster is not None:
                done = self._say_checkpointed()
        self._forget()
        return done

    def _checkpoint_and_end(self) -> bool:
        """Has the scheduler make a checkpoint and end the job, and answers the worker until it has.
        False: it has failed."""
        worker, lib, request = self._worker, library(), _abi.Request()
        if worker.cluster is not None and not lib.tandem_writes_checkpoints(worker.handle):
            return False
        if worker.train_loop is not None:
            worker.train_loop.settle()
        try:
            worker.end_evaluation()
            while not check(lib.tandem_next(worker.handle, SLICE_MS, ctypes.byref(request))):
                if worker.cluster is not None and not worker.cluster.told_end:
                    worker.cluster.check()  # until the job has begun
            with worker.uninterrupted():
                if self.world_size == 1:
                    check(lib.tandem_rest(worker.handle))
                if worker.cluster is None:
                    check(lib.tandem_request_end(worker.handle))
                elif not worker.cluster.told_end:  # by an interrupted call
                    worker.cluster.tell_end()
            patience = time.monotonic() + (_PATIENCE if self.world_size == 1 else 1)
            while request.kind != _abi.END:
                if not check(lib.tandem_next(worker.handle, SLICE_MS, ctypes.byref(request))):
                    if worker.cluster is not None:
                        worker.cluster.check_scheduler()
                    continue
                with worker.uninterrupted():
                    self._answer_at_end(request, time.monotonic() > patience)
        except Exception as error:  # of the job, or of the script's optimizer or job.keep()
            print(f"tandem: no checkpoint was written: {error}", file=sys.stderr)
            return False
        return True

    def _answer_at_end(self, request: _abi.Request, late: bool) -> None:
        """Answers a request while the job is being closed. late: for some seconds already."""
        worker = self._worker
        if request.kind == _abi.STATE:
            worker.progress.checkpoint()
        elif request.kind == _abi.UPDATE:
            worker.update(in_step_alone=True)
        elif request.kind == _abi.STEP_DONE:
            worker.stepping = False
        elif request.kind == _abi.COMPUTE and late:
            # An earlier checkpoint, or another worker, waits for the step; end the step without a
            # gradient. An error says that the checkpoint of the end has just taken the step back;
            # tandem_next tells how a job has failed.
            library().tandem_finish(worker.handle, _abi.NO_LOSS, None, None, None, 1)
        elif request.kind == _abi.SCORE:
            check(library().tandem_score(worker.handle, None, None, 0))
        elif late and self.world_size > 1 and \
                request.kind in (_abi.BATCH, _abi.TEST_BATCH, _abi.VALIDATION_BATCH):
            worker.give(None)  # another worker, which goes on, waits for this one
        elif request.kind != _abi.END:
            time.sleep(.001)  # batches and steps, of which there are no more

    def _say_checkpointed(self) -> bool:
        """Prints the folder of the checkpoint, or why there is none. Returns whether there is one.
        """
        cluster = self._worker.cluster
        end = cluster.event("finished")
        out = os.fsencode(self.out).decode(errors="replace")  # a path need not be UTF-8
        if end is None or "failure" in end:
            print(f"tandem: no checkpoint: {cluster.last_words()}", file=sys.stderr)
            return False
        if "checkpointed_step" in end:
            print(f"tandem: checkpoint in {out}/model (step {end['checkpointed_step']}); "
                  f"resume it with tandem.init({cluster.given!r}, resume={self.out!r})")
        else:
            print(f"tandem: the job was already finished; its model is in {out}/model")
        return True

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        worker = self._worker
        if kind is not None and not worker.ended and \
                (worker.cluster is None or worker.optimizer is None):
            worker.fail(_reason(kind, value, trace), kind)
        self.close()

    def _end(self) -> None:
        if not self._worker.ended:
            code = self._worker.close()
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


def _reason(kind: type[BaseException], value: Optional[BaseException],
            trace: Optional[TracebackType]) -> str:
    name, text = kind.__name__, str(value).split("\n", 1)[0]
    place = place_of(traceback.extract_tb(trace), _script())
    return f"{name}: {text} ({place})" if text else f"{name} ({place})"


def _main_frame() -> Optional[FrameType]:
    """The frame of the script's own lines, if they called this; None: they did not."""
    found, frame = None, inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and \
                frame.f_globals.get("__name__") == "__main__":
            found = frame
        frame = frame.f_back
    return found


def _end_with_the_process(worker: Worker) -> Callable[[], None]:
    """Has an exception, Ctrl-C, or a script that ends before the job does end the job with the
    reason. A script that has left the loop over epochs and ends without an error ends the job with
    a checkpoint. A script that nobody watches ends with status 1 if its job has failed. Returns a
    function that ends this watch."""
    shown, leave, of_threads = sys.excepthook, sys.exit, threading.excepthook
    status: Any = None  # of sys.exit()
    exited = False      # it was called
    main = _main_frame()
    script = os.path.basename(_script())  # at exit, Python does not know it any more

    before = getattr(sys, "last_value", None)

    def ends() -> bool:
        """Whether an uncaught exception ends the process: not at Python's prompt, where the next
        line can continue with a job that this process has started."""
        return worker.cluster is None or not (hasattr(sys, "ps1") or sys.flags.interactive)

    def on_exception(kind: type[BaseException], value: BaseException,
                     trace: Optional[TracebackType]) -> None:
        if os.getpid() == worker.process and not worker.ended and ends():
            worker.fail(_reason(kind, value, trace), kind)
        shown(kind, value, trace)

    def on_exit(code: Any = None, /) -> NoReturn:
        nonlocal status, exited
        if threading.current_thread() is threading.main_thread():  # else it ends a thread alone
            status, exited = code, True
        leave(code)

    def on_thread(told: threading.ExceptHookArgs) -> None:
        if os.getpid() == worker.process and not worker.ended and ends() and \
                worker.loop_thread == threading.get_ident() and told.exc_value is not None:
            worker.fail(_reason(told.exc_type, told.exc_value, told.exc_traceback), told.exc_type)
        of_threads(told)

    def ended_well() -> bool:
        """Whether the script came to its last line or called sys.exit() without an error.
        `raise SystemExit(1)` calls nothing that could be seen."""
        return (exited and not status) or main is None or \
            opcode.opname[main.f_code.co_code[main.f_lasti]].startswith("RETURN_")

    def at_exit() -> None:
        if os.getpid() != worker.process or worker.ended:
            return
        last = getattr(sys, "last_value", None)
        if last is not None and last is not before and ends():
            # Another exception came before on_exception was called, for example from the handler
            # of a signal.
            worker.fail(_reason(type(last), last, getattr(sys, "last_traceback", None)), type(last))
        if worker.left and not worker.failed and not status and ended_well() and \
                (worker.cluster is None or script):
            done = worker.job._close()
        else:
            done = False
            why = (f"{script or 'the program'} ended at step {worker.progress.at_hand[0]}, before "
                   "the job had; iterate to the end of job.epochs()")
            if script and not worker.failed and not _driven():
                print(f"tandem: {why}", file=sys.stderr)
            worker.fail(why)
            worker.close()
        if not done and script and not _driven():
            check(library().tandem_fail_at_exit())  # Python cannot change the status any more

    def forget() -> None:
        atexit.unregister(at_exit)
        if sys.excepthook is on_exception:
            sys.excepthook = shown
        if sys.exit is on_exit:
            sys.exit = leave
        if threading.excepthook is on_thread:
            threading.excepthook = of_threads

    sys.excepthook, sys.exit, threading.excepthook = on_exception, on_exit, on_thread
    atexit.register(at_exit)
    return forget
