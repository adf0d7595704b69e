"""The job of this process, and the tables for which modules are made. Needs no torch."""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional

from tandem._abi import Error
from tandem.tables import Tables

worker: Any = None  # worker.Worker: set by tandem.init()
_stand_in: Optional[Tables[Any]] = None  # the tables of a checkpoint, inside made_for()


def current_worker() -> Any:
    """The worker.Worker of this process. An Error if tandem.init() was not called."""
    if worker is None:
        raise Error("there is no job yet; call tandem.init() first")
    return worker


def current_tables() -> Tables[Any]:
    """The tables for which modules are made: of the job, or inside made_for() its argument."""
    return _stand_in or current_worker().tables


@contextlib.contextmanager
def made_for(tables: Tables[Any]) -> Iterator[None]:
    """Inside, modules are made for these tables."""
    global _stand_in
    before, _stand_in = _stand_in, tables
    try:
        yield
    finally:
        _stand_in = before
