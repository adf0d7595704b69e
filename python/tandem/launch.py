"""The place of this process in a launch, by the variables that launchers set for each rank.

`tandem agent` reads the same families of variables (cli/launch_environment.h).
"""
from __future__ import annotations

import os
import zlib
from typing import Mapping, NamedTuple, Optional

from tandem._abi import Error

__all__ = ["Place", "find"]


class Place(NamedTuple):
    """rank, size: of the launch. address: tcp://HOST:PORT where rank 0 can be met, the same for all
    ranks; empty: not known. one_host: all ranks are on this host."""
    rank: int
    size: int
    address: str
    one_host: bool


class _Family(NamedTuple):
    rank: str
    size: tuple[str, ...]
    local_size: str
    name: tuple[str, ...]   # together they differ from launch to launch


_FAMILIES = (
    _Family("TANDEM_RANK", ("TANDEM_WORLD_SIZE",), "TANDEM_LOCAL_SIZE", ("TANDEM_LAUNCH_ID",)),
    _Family("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_LOCAL_SIZE",
            ("OMPI_MCA_orte_hnp_uri", "PMIX_NAMESPACE")),
    _Family("PMI_RANK", ("PMI_SIZE",), "MPI_LOCALNRANKS", ()),
    _Family("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",), "",
            ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise Error(f"{name}={environment[name]}: expected a number") from None


def find(environment: Mapping[str, str] = os.environ, parent: Optional[int] = None
         ) -> Optional[Place]:
    """The place by the first family of variables that is complete; None: there is none. parent:
    the process number of the launcher, which names a launch on one host that has no other name."""
    for family in _FAMILIES:
        size_name = next((name for name in family.size if environment.get(name)), None)
        if not environment.get(family.rank) or size_name is None:
            continue
        rank, size = _number(environment, family.rank), _number(environment, size_name)
        if not 0 <= rank < size:
            raise Error(f"{family.rank}={rank}: expected a rank below {size_name}={size}")
        here = environment.get(family.local_size) or environment.get("SLURM_STEP_NUM_NODES")
        one_host = size == 1 or (here == str(size) if family.local_size else here == "1")
        return Place(rank, size, _address(environment, family, one_host, parent), one_host)
    return None


def _address(environment: Mapping[str, str], family: _Family, one_host: bool,
             parent: Optional[int]) -> str:
    name = " ".join(environment.get(part, "") for part in family.name).strip()
    if one_host and not name:
        name = f"parent {os.getppid() if parent is None else parent}"
    if one_host:  # below the ports that systems give out by themselves
        return f"tcp://127.0.0.1:{10000 + zlib.crc32(name.encode()) % 20000}"
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    return f"tcp://{host}:{port}" if host and port else ""
