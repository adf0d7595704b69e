"""Batches of the script's own loader, read ahead so that their rows travel in time."""
import collections

import torch

from tandem import _abi
from tandem._abi import Error
from tandem.job import current_job
from tandem.sparse import BatchIds


class DataLoader:
    """Wraps any iterable over batches: a torch DataLoader, a list, a generator function's result.

    features: where the ids of a batch are: an index or key of it, or a function of the batch that
    returns them; None: found by type (the one int64 tensor with a column for each field of the job, or
    a dict or KeyedJaggedTensor). What ids may look like: tandem.sparse.BatchIds.

    Iterating gives the batches of one epoch on this worker, unchanged. The loop ends when the worker
    has no more batches (others may have), or the job takes no more steps.
    """

    def __init__(self, iterable, features=None):
        self._job = current_job()
        self._iterable, self._features = iterable, features

    def __len__(self):
        return len(self._iterable)

    def _ids(self, batch):
        features = self._features
        if callable(features):
            found = features(batch)
        elif features is not None:
            found = batch[features]
        else:
            found = self._find(batch)
        return BatchIds(self._job, found)

    def _find(self, batch):
        fields = self._job._fields

        def fits(part):
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

    def __iter__(self):
        job = self._job
        job._check_started()
        return self._batches(_abi.BATCH, _abi.COMPUTE)

    def _batches(self, fetch, use):
        """Gives batches as they are wanted, and yields each when its rows are there."""
        job, source, given, epoch = self._job, iter(self._iterable), collections.deque(), None
        while True:
            want = job._next()
            if want.kind == fetch and epoch in (None, want.epoch):
                epoch = want.epoch
                if job._loop_epoch not in (None, epoch):
                    raise Error(f"a second loop over a tandem.DataLoader in epoch {job._loop_epoch}; its "
                                "batches are used up, and these would be those of the next epoch: have "
                                "one loop in the body of `for epoch in job.epochs()`")
                ids = None
                for batch in source:
                    ids = self._ids(batch)
                    if ids.samples > 0:
                        break
                    ids = None
                if ids is None:
                    job._give_none()
                    continue
                ids.give(job)
                given.append((batch, ids))
            elif want.kind == use and given:
                batch, ids = given.popleft()
                job._begin(want, ids, gradients=use == _abi.COMPUTE)
                yield batch
                self._check_used(use, want)
            else:
                return

    def _check_used(self, use, want):
        job = self._job
        if use == _abi.COMPUTE and job._cells is not None:
            raise Error(f"step {want.step}: the loop goes on to the next batch without "
                        "optimizer.step(); call it once for each batch")
        if use == _abi.SCORE and not job._scored:
            raise Error("the loop over job.evaluate() goes on to the next batch without job.score()")

    def _test_batches(self):
        job = self._job
        if job._next().kind != _abi.TEST_BATCH:
            return
        for batch in self._batches(_abi.TEST_BATCH, _abi.SCORE):
            job._scored = False
            yield batch
