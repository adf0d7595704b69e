"""The optimizer's side of a step: rows' gradients to the servers, dense ones to the other workers."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Callable, Iterable, Optional, SupportsFloat, Union

import numpy
import torch

from tandem import _abi
from tandem._abi import Diverged, Error, check, library
from tandem.job import _SLICE_MS, current_job


class DistributedOptimizer:
    """step() pushes the gradients of rows, sums those of dense parameters over the workers, and steps.

    DistributedOptimizer(torch.optim.Adam(model.parameters()), model): the script's optimizer, which
    gets the mean gradient over the samples of all workers; dense.optimizer { kind: PROGRAM } in the job.
    DistributedOptimizer(model): the job's optimizer, on the workers or on servers.

    loss: what the script's loss is over the samples of a batch, "mean" or "sum"; so that workers with
    batches of different sizes count by their samples.

    Making it says what is trained; from then on the parameters have the initial values of rank 0. Those on the CPU
    lie in one buffer: keep the Parameter objects, and change their data in place only. Parameters may be on a GPU:
    then gradients are carried to the host, and values back, with each step. Move a module before.

    An Error or a ValueError says how optimizer, module and job do not fit; parameters are float32.
    """

    def __init__(self, optimizer: Union[torch.optim.Optimizer, torch.nn.Module, None],
                 model: Optional[torch.nn.Module] = None, loss: str = "mean") -> None:
        job = current_job()
        if isinstance(optimizer, torch.nn.Module):
            optimizer, model = None, optimizer
        if model is None:
            raise ValueError("DistributedOptimizer(optimizer, model): give the module, too; its "
                             "parameters' names go into checkpoints")
        if loss not in ("mean", "sum"):
            raise ValueError(f"DistributedOptimizer: loss {loss!r}, want 'mean' or 'sum'")
        if job._optimizer is not None:
            raise Error("there is a DistributedOptimizer already; a job has one")
        if optimizer is not None and not job._program_optimizer:
            raise Error("the job has an optimizer of its own for dense parameters; call "
                        "DistributedOptimizer(model), or say dense { optimizer { kind: PROGRAM } } in "
                        "the job")
        if optimizer is None and job._program_optimizer:
            raise Error("the job leaves dense parameters to the script (dense.optimizer PROGRAM): call "
                        "DistributedOptimizer(torch.optim.Adam(model.parameters()), model)")
        self._job, self._torch, self._loss = job, optimizer, loss
        self._parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._module = model
        self._own = {id(p) for _, p in self._parameters}
        self._frozen: list[torch.Tensor] = []  # what the module has beside them, as it was looked at last
        self._steps = 0
        self._check_parameters()
        self._start()
        self._reached = False   # whether backward() has come to a parameter since the last step
        self._stepping = False  # inside step()
        for _, p in self._parameters:
            p.register_hook(self._reach)
        job._optimizer, job._started = self, True
        job._progress.restore()

    def _check_parameters(self) -> None:
        for name, p in self._parameters:
            if p.dtype != torch.float32 or p.device.type == "meta":
                raise ValueError(f"parameter {name}: {p.dtype} on {p.device}, want torch.float32 on cpu or a GPU")
        if self._torch is None:
            return
        strange = [p for group in self._torch.param_groups for p in group["params"]
                   if id(p) not in self._own and p.requires_grad]
        if strange:
            raise ValueError("the optimizer has a parameter that is none of the module's, of shape "
                             f"{tuple(strange[0].shape)}; give DistributedOptimizer the module that has "
                             "all of them")

    def _start(self) -> None:
        lib, handle = library(), self._job._handle
        names = [n.encode() for n, _ in self._parameters]
        shapes = [s for _, p in self._parameters for s in p.shape]
        flat = torch.cat([p.detach().reshape(-1).cpu() for _, p in self._parameters]) \
            if self._parameters else torch.empty(0)
        count = len(names)
        check(lib.tandem_start(
            handle, count, (ctypes.c_char_p * max(1, count))(*names),
            (ctypes.c_int32 * max(1, count))(*[p.dim() for _, p in self._parameters]),
            (ctypes.c_int64 * max(1, len(shapes)))(*shapes), flat.data_ptr()))
        while not check(lib.tandem_wait_started(handle, _SLICE_MS)):
            pass
        floats = ctypes.c_int64()
        address = lib.tandem_dense(handle, ctypes.byref(floats))
        self._values = torch.empty(0)
        if floats.value:
            array = numpy.ctypeslib.as_array(
                ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (floats.value,))
            self._values = torch.from_numpy(array)
        self._gradient = torch.zeros(floats.value)
        at = 0
        self._views: list[torch.Tensor] = []
        self._apart: list[tuple[torch.nn.Parameter, torch.Tensor]] = []  # with their values on the host
        self._places: list[tuple[str, torch.nn.Parameter, int]] = []     # of the others: where their values are
        for name, p in self._parameters:
            end = at + p.numel()
            values = self._values[at:end].view(p.shape)
            if _on_host(p):
                p.data = values
                self._places.append((name, p, p.data_ptr()))
            else:
                self._apart.append((p, values))
            self._views.append(self._gradient[at:end].view(p.shape))
            at = end
        self._carry_back()

    # ---- parameters on a GPU ----

    def _carry_out(self) -> None:
        """To the host: what the script or its optimizer has made of parameters."""
        for p, values in self._apart:
            values.copy_(p.data)

    def _carry_back(self) -> None:
        """From the host: what the job has made of parameters."""
        for p, values in self._apart:
            p.data.copy_(values)

    def _after_next(self) -> None:
        """The worker has given the thread back, and the job's optimizer may have stepped."""
        if self._torch is None:
            self._carry_back()

    # ---- what a torch optimizer has ----

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of the script's optimizer; none where it is the job's."""
        return self._torch.param_groups if self._torch is not None else []

    def state_dict(self) -> dict[str, Any]:
        """Of the script's optimizer; empty where it is the job's."""
        return self._torch.state_dict() if self._torch is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into the script's optimizer. An Error where it is the job's."""
        if self._torch is None:
            raise Error("the job's optimizer has no state in the script; it comes with a checkpoint")
        self._torch.load_state_dict(state)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """As torch's. Rows come anew with each batch, without gradients; those of the batch at hand lose
        theirs, so that a loss which came to nothing can be computed again."""
        self._reached = False
        for cells in (self._job._cells or {}).values():
            cells.grad = None
        for _, p in self._parameters:
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad = p.grad.detach().zero_()

    def step(self, closure: Optional[Callable[[], Any]] = None, loss: Optional[SupportsFloat] = None) -> None:
        """Ends the step of the batch at hand. loss: its value, for progress lines, which have none without it. closure: none
        is taken (ValueError). An Error: there is no batch or no gradient, or one is infinite or no number."""
        job = self._job
        if closure is not None:
            raise ValueError("step(closure): a closure would compute a step twice; call backward() first")
        if job._cells is None:
            raise Error("optimizer.step() without a batch: call it once for each batch of a "
                        "tandem.DataLoader, after loss.backward()")
        cells = {name: c.grad for name, c in job._cells.items()}
        if not self._reached and all(g is None for g in cells.values()):
            raise Error("optimizer.step() without gradients: call loss.backward() first")
        self._check_unfrozen()
        self._check_places()
        self._collect()
        self._carry_out()
        n = job._given.samples
        scale = float(n) if self._loss == "mean" else 1.0
        value = _abi.NO_LOSS if loss is None else float(loss) * scale
        if loss is not None and value == _abi.NO_LOSS:
            value = math.nan  # it ends the job, as any that is not finite
        self._check_finite(cells.values())
        keep: list[torch.Tensor] = []
        pointers: list[Optional[int]] = []
        sizes: list[int] = []
        for table in job._table_list:
            gradient = cells[table.name]
            if gradient is not None:
                gradient = gradient.to(torch.float32).contiguous()
                keep.append(gradient)
            pointers.append(None if gradient is None else gradient.data_ptr())
            sizes.append(0 if gradient is None else gradient.numel())
        with job._uninterrupted():
            check(library().tandem_finish(
                job._handle, value, (ctypes.c_void_p * len(pointers))(*pointers),
                (ctypes.c_int64 * len(sizes))(*sizes),
                self._gradient.data_ptr() if self._gradient.numel() else None, scale))
            job._cells, self._reached, self._stepping = None, False, True
        done = job._next(of_step=True)
        self._stepping = False
        if done.kind != _abi.STEP_DONE:
            raise Error("the worker lost its place after a step")  # a bug of this package

    # ---- inside ----

    def _reach(self, _: torch.Tensor) -> None:
        self._reached = True

    def _check_unfrozen(self, epoch_over: bool = False) -> None:
        """That nothing is trained which the other workers do not know of. A module is walked through in the first
        steps, then now and then, and at the end of an epoch: that takes as long as a small batch."""
        if self._torch is not None:
            self._frozen = [p for group in self._torch.param_groups for p in group["params"]
                            if id(p) not in self._own]
        elif epoch_over or self._steps < 16 or self._steps % 64 == 0:
            self._frozen = [p for p in self._module.parameters() if id(p) not in self._own]
        self._steps += 1
        for p in self._frozen:
            if p.requires_grad or p.grad is not None:
                raise Error(f"a parameter of shape {tuple(p.shape)} is trained that was frozen or not "
                            "there when DistributedOptimizer was made, which says what is trained; "
                            "freeze parameters after that, or begin a job from the checkpoint")

    def _check_places(self) -> None:
        for name, p, place in self._places:
            if p.data_ptr() != place:
                raise Error(f"parameter {name}: has other memory than DistributedOptimizer gave it; move or replace it "
                            "before, and later change its values in place (p.data.copy_)")

    def _collect(self) -> None:
        """The gradients of dense parameters in one buffer; of one without, zeros."""
        for (_, p), view in zip(self._parameters, self._views):
            if p.grad is None:
                view.zero_()
                continue
            if p.grad.data_ptr() != view.data_ptr():
                view.copy_(p.grad)

    def _check_finite(self, cells: Iterable[Optional[torch.Tensor]]) -> None:
        for part in [self._gradient, *[c for c in cells if c is not None]]:
            # A sum of finite numbers may be too large for one.
            if part.numel() and not math.isfinite(part.sum().item()) and not torch.isfinite(part).all():
                raise Diverged(f"step {self._job.step}: a gradient is infinite or no number; lower the "
                               "learning rate, clip, or look for it in the batch")

    def _update(self) -> None:
        """The mean gradient of all workers is there: the script's optimizer steps with it. In a step
        for which this worker had no batch the script's own gradients stay as they were."""
        own = None if self._stepping else [None if p.grad is None else p.grad.clone()
                                           for _, p in self._parameters]
        check(library().tandem_mean_gradient(self._job._handle, self._gradient.data_ptr()))
        for (_, p), view in zip(self._parameters, self._views):
            p.grad = view.to(p.device)
        self._torch.step()
        self._carry_out()
        if own is not None:
            for (_, p), gradient in zip(self._parameters, own):
                p.grad = gradient


def _on_host(p: torch.Tensor) -> bool:
    return p.device.type == "cpu"
