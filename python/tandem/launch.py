"""The place of this process in a launch, by the variables that launchers set for each rank.

`tandem agent` reads more families of variables (cli/launch_environment.h). torch.distributed reads
those of torchrun.
"""
from __future__ import annotations

import os
import zlib
from typing import Mapping, NamedTuple, Optional

from tandem._abi import Error

__all__ = ["Place", "find"]


class Place(NamedTuple):
    """rank, size: of the launch. address: tcp://HOST:PORT where rank 0 listens, the same for all
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
        here = environment.get(family.local_size) if family.local_size else None
        # PMI of srun does not say how many ranks are on a host. Slurm does.
        of_slurm = environment.get("SLURM_STEP_NUM_TASKS") == str(size)
        slurm_here = of_slurm and environment.get("SLURM_STEP_NUM_NODES") == "1"
        one_host = size == 1 or here == str(size) or (here is None and slurm_here)
        name = " ".join(environment.get(part, "") for part in family.name).strip()
        if not name and of_slurm:
            name = " ".join(environment.get(part, "") for part in _FAMILIES[-1].name).strip()
        # Ranks that a person starts may have several parents.
        if not name and one_host and family != _FAMILIES[0]:
            name = f"parent {os.getppid() if parent is None else parent}"
        return Place(rank, size, _address(environment, name if one_host else ""), one_host)
    return None


def _address(environment: Mapping[str, str], name: str) -> str:
    """name: of a launch on one host; empty: it has none, or is on several."""
    if name:  # below the ports that systems give out by themselves
        return f"tcp://127.0.0.1:{10000 + zlib.crc32(name.encode()) % 20000}"
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    return f"tcp://{host}:{port}" if host and port else ""
