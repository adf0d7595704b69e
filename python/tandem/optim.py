"""The optimizer's part of a step: rows' gradients go to the servers, dense ones to all workers."""
from __future__ import annotations

import ctypes
import inspect
import math
import os
import warnings
from typing import Any, Callable, Iterable, Optional, SupportsFloat, Union

import numpy
import torch

from tandem import _abi
from tandem._abi import Diverged, Error, Misuse, check, library
from tandem.current import current_worker
from tandem.nn import break_graphs
from tandem.worker import SLICE_MS, Worker


class DistributedOptimizer(torch.optim.Optimizer):
    """step() pushes the gradients of rows, sums those of dense parameters over the workers, and
    steps.

    DistributedOptimizer(torch.optim.Adam(model.parameters()), model): the script's optimizer, which
    gets the mean gradient over the samples of all workers. The job says dense.optimizer { kind:
    PROGRAM }.
    DistributedOptimizer(model): the job's optimizer, on the workers or on servers.

    loss: how the script's loss combines the samples of a batch, "mean" or "sum". Batches of
    different sizes then count by their samples.

    max_norm: with the script's optimizer, the norm to which the mean gradient of all dense
    parameters is shortened before each step, as torch.nn.utils.clip_grad_norm_ does in one process.
    If a script calls clip_grad_norm_ itself, the function sees only this worker's gradient.

    clip_norm: the norm to which this worker's own gradient is shortened before it leaves: the mean
    over its samples, of dense parameters and rows together (repeated ids merged, frozen tables left
    out). Works with any policy and any optimizer of the job.

    Making it says what is trained; from then on the parameters have the initial values of rank 0.
    Those on the CPU lie in one buffer: keep the Parameter objects, and change their data in place
    only. Parameters may be on a GPU: then each step copies gradients to the host, and values back.
    Move a module before.

    schedule: a learning rate schedule of torch over the script's optimizer. It is stepped once
    after each step of the job, also after one in which this worker has no samples, so that all
    workers have the same learning rates. Checkpoints contain it. Schedules that the script steps
    itself take the script's optimizer or this one: torch.optim.lr_scheduler.StepLR(optimizer, 1).
    Step those once an epoch, and say job.keep(schedule=schedule). The job's optimizer has no
    schedule.

    An Error or a ValueError says how optimizer, module and job do not fit; parameters are float32.
    """

    # pylint: disable=super-init-not-called

    def __init__(self, optimizer: Union[torch.optim.Optimizer, torch.nn.Module, None],
                 model: Optional[torch.nn.Module] = None, loss: str = "mean",
                 max_norm: Optional[float] = None, clip_norm: Optional[float] = None,
                 schedule: Any = None) -> None:
        worker = current_worker()
        if isinstance(optimizer, torch.nn.Module):
            optimizer, model = None, optimizer
        if model is None:
            raise ValueError("DistributedOptimizer(optimizer, model): give the module, too; its "
                             "parameters' names go into checkpoints")
        if loss not in ("mean", "sum"):
            raise ValueError(f"DistributedOptimizer: loss {loss!r}, expected 'mean' or 'sum'")
        for name, norm in (("max_norm", max_norm), ("clip_norm", clip_norm)):
            if norm is not None and not 0 < norm < math.inf:
                raise ValueError(f"DistributedOptimizer: {name} {norm}, expected a number above 0")
        if max_norm is not None and optimizer is None:
            raise ValueError("DistributedOptimizer: max_norm is for an optimizer of torch; for "
                             "the job's optimizer set dense { optimizer { clip_norm: ... } }")
        if schedule is not None:
            _check_schedule(schedule, optimizer)
        if worker.optimizer is not None:
            raise Error("there is a DistributedOptimizer already; a job has one")
        if optimizer is not None and not worker.program_optimizer:
            raise Error("the job has an optimizer of its own for dense parameters; call "
                        "DistributedOptimizer(model), or say dense { optimizer { kind: PROGRAM } } "
                        "in the job")
        if optimizer is None and worker.program_optimizer:
            raise Error("the job leaves dense parameters to the script (dense.optimizer PROGRAM): "
                        "call DistributedOptimizer(torch.optim.Adam(model.parameters()), model)")
        self._worker: Worker = worker
        self._torch, self._loss = optimizer, loss
        self._scaler_saw_rows = False
        if clip_norm is not None:
            check(library().tandem_clip_norm(worker.handle, clip_norm))
        self._parameters = worker.optimizer = _Parameters(worker, model, optimizer, max_norm,
                                                          schedule)
        if optimizer is not None:  # whose class has imported the compiler, which takes seconds
            break_graphs()
        if schedule is not None:
            worker.progress.keep({"schedule": schedule})
        worker.progress.restore(worker.rank, worker.world_size, model, optimizer)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """GradScaler.step() looks for this name before it touches a gradient. True: step() is
        called also after an overflow, with the scaler's results in grad_scale and found_inf."""
        if not hasattr(torch.amp, "GradScaler"):
            raise Error(f"GradScaler needs PyTorch 2.3 or later, and this is {torch.__version__}; "
                        "train without it: torch.autocast with bfloat16 needs no scale")
        return True

    def _of_script(self, name: str) -> Any:
        if self._torch is None:
            raise Error(f"{name} of the job's optimizer: it is not in the script, and its learning "
                        "rate is in the job (dense.optimizer). For a schedule of torch say dense { "
                        "optimizer { kind: PROGRAM } } and give DistributedOptimizer an optimizer "
                        "of torch")
        return getattr(self._torch, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the script's optimizer. An Error for the job's. GradScaler, which divides
        the gradients in them and looks for overflows, gets all that has a gradient: rows, too."""
        caller = inspect.currentframe().f_back  # type: ignore[union-attr]
        if caller is not None and caller.f_code.co_name == "_unscale_grads_":
            self._scaler_saw_rows = True
            return [{"params": self._parameters.with_gradients()}]
        return self._of_script("param_groups")

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the script's optimizer, by parameter. An Error for the job's."""
        return self._of_script("state")

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the script's optimizer. An Error for the job's."""
        return self._of_script("defaults")

    def __repr__(self) -> str:
        return f"DistributedOptimizer({'of the job' if self._torch is None else self._torch!r})"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """An Error: the job knows what is trained from the time when this object is made."""
        raise Error("add_param_group: the job knows already what is trained; add groups to the "
                    "optimizer of torch before DistributedOptimizer is made of it")

    def state_dict(self) -> dict[str, Any]:
        """The state of the script's optimizer; empty if the job has the optimizer."""
        return self._torch.state_dict() if self._torch is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the state into the script's optimizer. An Error for the job's."""
        if self._torch is None:
            raise Error("the job's optimizer has no state in the script; it comes with a "
                        "checkpoint")
        self._torch.load_state_dict(state)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Like torch's zero_grad(). Rows come anew with each batch, without gradients. Rows of the
        batch at hand lose theirs, so that a loss can be computed again."""
        self._parameters.zero_grad(set_to_none)

    def step(self, closure: Optional[Callable[[], Any]] = None,
             loss: Optional[SupportsFloat] = None) -> None:
        """Ends the step of the batch at hand. loss: its value, for progress lines; with
        accumulate= the mean over the step. closure: must be None (else ValueError). An Error: there
        is no batch or no gradient, or a gradient is infinite or NaN. If a GradScaler calls this
        function after an overflow, the step counts as one without samples of this worker."""
        try:
            self._step(closure, loss)
        except BaseException:
            for name in ("grad_scale", "found_inf"):  # GradScaler takes them back only after a step
                self.__dict__.pop(name, None)
            raise

    def _step(self, closure: Optional[Callable[[], Any]], loss: Optional[SupportsFloat]) -> None:
        worker, parameters = self._worker, self._parameters
        if closure is not None:
            raise ValueError("step(closure): a closure would compute a step twice; call backward() "
                             "first")
        if worker.cells is None:
            raise Misuse("optimizer.step() without a batch: call it once for each batch of a "
                         "tandem.DataLoader, after loss.backward()")
        if worker.at + 1 < len(worker.batches):
            raise Misuse(f"optimizer.step() after batch {worker.at + 1} of {len(worker.batches)} "
                         "of the step (accumulate): call it after the last one, where "
                         "loader.step_ends is true")
        if worker.cluster is None and worker.progress.alone:
            raise Misuse("optimizer.step() outside of `for epoch in job.epochs()`; use that loop "
                         "instead of `for epoch in range(...)`")
        gradients = worker.row_gradients()
        if not parameters.reached and all(g is None for g in gradients):
            raise Misuse("optimizer.step() without gradients: call loss.backward() first")
        parameters.check_unfrozen()
        dense = parameters.collect()
        scale = float(worker.step.joined.samples) if self._loss == "mean" else 1.0
        value = _abi.NO_LOSS if loss is None else scale * float(
            loss.detach() if isinstance(loss, torch.Tensor) else loss)
        if loss is not None and value == _abi.NO_LOSS:
            value = math.nan  # the job ends, as for any loss that is not finite
        overflowed, of_scaler = self._take_scaler()
        if not overflowed:
            self._check_finite(dense, gradients)
        rows = [g if g is None else g.to(torch.float32).contiguous() for g in gradients]
        pointers = [None if g is None else g.data_ptr() for g in rows]
        sizes = [0 if g is None else g.numel() for g in rows]
        with worker.uninterrupted():
            if overflowed:
                check(library().tandem_skip(worker.handle))
            else:
                check(library().tandem_finish(
                    worker.handle, value, (ctypes.c_void_p * len(pointers))(*pointers),
                    (ctypes.c_int64 * len(sizes))(*sizes),
                    dense.data_ptr() if dense.numel() else None, scale / of_scaler))
            worker.cells, parameters.reached, worker.stepping = None, False, True
        done = worker.next(of_step=True)
        worker.stepping = False
        if done.kind != _abi.STEP_DONE:
            raise Error("the worker lost its place after a step")  # a bug of this package

    def _take_scaler(self) -> tuple[bool, float]:
        """Whether a GradScaler that calls step() has found an overflow, and the scale by which it
        has left the gradients too large."""
        found: Any = getattr(self, "found_inf", None)
        scale: Any = getattr(self, "grad_scale", None)
        if found is None:
            return False, 1.0
        if not self._scaler_saw_rows:
            raise Error(f"the GradScaler of PyTorch {torch.__version__} has not looked at the "
                        "gradients of rows: it works in another way than this version of Tandem "
                        "knows; train without it")
        self._scaler_saw_rows = False
        return float(found) > 0, 1.0 if scale is None else float(scale)

    def _check_finite(self, dense: torch.Tensor, cells: Iterable[Optional[torch.Tensor]]) -> None:
        for part in [dense, *[c for c in cells if c is not None]]:
            # The sum of finite numbers may overflow.
            if part.numel() and not math.isfinite(part.sum().item()) and \
                    not torch.isfinite(part).all():
                raise Diverged(f"step {self._worker.progress.at_hand[0]}: a gradient is infinite "
                               "or no number; lower the learning rate, clip, or look for it in "
                               "the batch")


class _Parameters:
    """The dense parameters of a module: their values, which are in the worker's buffer, their
    gradients in one buffer, and the steps of the script's optimizer.

    reached: whether backward() has come to a parameter since the last step.
    """

    def __init__(self, worker: Worker, module: torch.nn.Module,
                 optimizer: Optional[torch.optim.Optimizer], max_norm: Optional[float],
                 schedule: Any) -> None:
        self._worker, self._module, self._optimizer = worker, module, optimizer
        self._max_norm, self._schedule = max_norm, schedule
        self._named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self._own = {id(p) for _, p in self._named}
        self._frozen: list[torch.Tensor] = []  # the module's others, when they were last listed
        self._steps = 0
        self._check()
        self._start()
        self.reached = False
        for _, p in self._named:
            p.register_hook(self._reach)

    def _check(self) -> None:
        for name, p in self._named:
            if isinstance(p, torch.nn.parameter.UninitializedParameter):
                raise ValueError(f"parameter {name} has no shape yet: call its layer once, for "
                                 "example with zeros, before DistributedOptimizer")
            if p.dtype != torch.float32 or p.device.type == "meta":
                raise ValueError(f"parameter {name}: {p.dtype} on {p.device}, expected "
                                 "torch.float32 on cpu or a GPU")
        check_gpu({p.device for _, p in self._named})
        if self._optimizer is None:
            return
        strange = [p for group in self._optimizer.param_groups for p in group["params"]
                   if id(p) not in self._own and p.requires_grad]
        if strange:
            raise ValueError("the optimizer has a parameter that is none of the module's, of shape "
                             f"{tuple(strange[0].shape)}; give DistributedOptimizer the module "
                             "that has all of them")

    def _start(self) -> None:
        lib, handle = library(), self._worker.handle
        names = [n.encode() for n, _ in self._named]
        shapes = [s for _, p in self._named for s in p.shape]
        flat = torch.cat([p.detach().reshape(-1).cpu() for _, p in self._named]) \
            if self._named else torch.empty(0)
        count = len(names)
        check(lib.tandem_start(
            handle, count, (ctypes.c_char_p * max(1, count))(*names),
            (ctypes.c_int32 * max(1, count))(*[p.dim() for _, p in self._named]),
            (ctypes.c_int64 * max(1, len(shapes)))(*shapes), flat.data_ptr()))
        while not check(lib.tandem_wait_started(handle, SLICE_MS)):
            pass
        floats = ctypes.c_int64()
        address = lib.tandem_dense(handle, ctypes.byref(floats))
        dense = torch.empty(0)
        if floats.value:
            dense = torch.from_numpy(numpy.ctypeslib.as_array(
                ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (floats.value,)))
        self.gradient = torch.zeros(floats.value)
        at = 0
        self._views: list[torch.Tensor] = []
        # Parameters on a GPU with their values on the host, and the places of the others' values.
        self._apart: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._places: list[tuple[str, torch.nn.Parameter, int]] = []
        for name, p in self._named:
            end = at + p.numel()
            values = dense[at:end].view(p.shape)
            if _on_host(p):
                p.data = values
                self._places.append((name, p, p.data_ptr()))
            else:
                self._apart.append((p, values))
            self._views.append(self.gradient[at:end].view(p.shape))
            at = end
        self._carry_back()

    def _reach(self, _: torch.Tensor) -> None:
        self.reached = True

    # ---- parameters on a GPU ----

    def carry_out(self) -> None:
        """Copies to the host what the script or its optimizer has made of parameters."""
        for p, values in self._apart:
            values.copy_(p.data)

    def _carry_back(self) -> None:
        """Copies from the host what the job has made of parameters."""
        for p, values in self._apart:
            p.data.copy_(values)

    # ---- a step ----

    def zero_grad(self, set_to_none: bool = False) -> None:
        self.reached = False
        for cells in self._cells():
            cells.grad = None
        for _, p in self._named:
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad = p.grad.detach().zero_()

    def _cells(self) -> list[torch.Tensor]:
        """The rows of the batches of the step at hand."""
        worker = self._worker
        return [] if worker.cells is None else [cells for batch in worker.batches
                                                for cells in batch.values()]

    def with_gradients(self) -> list[torch.Tensor]:
        """Dense parameters and rows, of which backward() gives gradients."""
        return [p for _, p in self._named] + self._cells()

    def after_next(self) -> None:
        """The worker has returned to the script, and the job's optimizer may have stepped."""
        if self._optimizer is None:
            self._carry_back()

    def check_unfrozen(self, epoch_over: bool = False) -> None:
        """Raises an Error if a parameter is trained that the other workers do not know of. Walking
        through a module takes as long as a small batch: it is done in the first steps, then now and
        then, and at the end of an epoch."""
        if self._optimizer is not None:
            self._frozen = [p for group in self._optimizer.param_groups for p in group["params"]
                            if id(p) not in self._own]
        elif epoch_over or self._steps < 16 or self._steps % 64 == 0:
            self._frozen = [p for p in self._module.parameters() if id(p) not in self._own]
        self._steps += 1
        for p in self._frozen:
            if p.requires_grad or p.grad is not None:
                raise Misuse(f"a parameter of shape {tuple(p.shape)} is trained that was frozen or "
                             "not there when DistributedOptimizer was made, which says what is "
                             "trained; freeze parameters after that, or begin a job from the "
                             "checkpoint")

    def collect(self) -> torch.Tensor:
        """The gradients in one buffer, zeros for a parameter without one; values go to the host."""
        for name, p, place in self._places:
            if p.data_ptr() != place:
                raise Misuse(f"parameter {name}: has other memory than DistributedOptimizer gave "
                             "it; move or replace it before, and later change its values in place "
                             "(p.data.copy_)")
        for (name, p), view in zip(self._named, self._views):
            if p.grad is None:
                view.zero_()
            elif p.grad.layout != torch.strided:
                raise Misuse(f"parameter {name} has sparse gradients: say sparse=False, or make it "
                             "a table of the job")
            elif p.grad.data_ptr() != view.data_ptr():
                view.copy_(p.grad)
        self.carry_out()
        return self.gradient

    def update(self) -> None:
        """Steps the script's optimizer with the mean gradient of all workers. In a step for which
        this worker had no batch the script's own gradients stay as they were."""
        own = None if self._worker.stepping else [None if p.grad is None else p.grad.clone()
                                                  for _, p in self._named]
        check(library().tandem_mean_gradient(self._worker.handle, self.gradient.data_ptr()))
        for (_, p), view in zip(self._named, self._views):
            p.grad = view.to(p.device)
        if self._max_norm is not None:  # here: the script does not run in a step without a batch
            torch.nn.utils.clip_grad_norm_([p for _, p in self._named], self._max_norm)
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
        self.carry_out()
        if own is not None:
            for (_, p), gradient in zip(self._named, own):
                p.grad = gradient


def _check_schedule(schedule: Any, optimizer: Optional[torch.optim.Optimizer]) -> None:
    if optimizer is None:
        raise ValueError("DistributedOptimizer: schedule is for an optimizer of torch; the job's "
                         "optimizer has a constant learning rate")
    if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError("DistributedOptimizer: ReduceLROnPlateau needs a number for each step; "
                         "step it once an epoch: schedule.step(job.report(loss=LOSS, weight=SAMPLES"
                         ", reduce=\"mean\")[\"loss\"]), the same number on all workers")
    if getattr(schedule, "optimizer", None) is not optimizer:
        raise ValueError("DistributedOptimizer: schedule is not one of this optimizer; expected "
                         "for example torch.optim.lr_scheduler.OneCycleLR(optimizer, ...)")


def check_gpu(devices: set[torch.device]) -> None:
    """Warns if this worker computes on the first GPU, which another worker of the host uses, while
    there are more GPUs. devices: where the parameters of this worker are."""
    if torch.device("cuda", 0) not in devices:
        return
    rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if gpus > 1 and rank % gpus:
        warnings.warn(f"LOCAL_RANK is {rank}, but parameters are on the first of {gpus} GPUs, "
                      "which another worker uses: say .to(job.device())", stacklevel=2)


def _on_host(p: torch.Tensor) -> bool:
    return p.device.type == "cpu"
