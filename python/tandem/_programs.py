"""The commands of a wheel, such as `tandem`: each becomes the program of its name."""
import os
import sys

_PREFIX = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_prefix")
# What x86-64-v3 adds, by the names in /proc/cpuinfo.
_V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")


def check_processor(prefix: str = _PREFIX, cpuinfo: str = "/proc/cpuinfo") -> None:
    """ImportError, in one line, if the wheel was compiled for a later processor than this one, on
    which its code would end by an illegal instruction. A build of the source fits its machine."""
    try:
        with open(os.path.join(prefix, "march"), encoding="ascii") as file:
            march = file.read().strip()
        with open(cpuinfo, encoding="utf-8", errors="replace") as file:
            flags = next((line.split() for line in file if line.startswith("flags")), None)
    except OSError:
        return
    if march != "x86-64-v3" or flags is None:
        return
    missing = [flag for flag in _V3 if flag not in flags]
    if missing:
        raise ImportError(f"tandem: this wheel needs a processor of {march} (2013 or later), and "
                          f"this one has no {', '.join(missing)}; hint: build the source, which "
                          "fits the processor (./quickstart)")


def main() -> None:
    """Does not return."""
    try:
        check_processor()
    except ImportError as error:
        sys.exit(str(error))
    os.environ.setdefault("TANDEM_PYTHON", sys.executable)  # where the wheel is installed
    program = os.path.join(_PREFIX, "bin", os.path.basename(sys.argv[0]))
    os.execv(program, [program, *sys.argv[1:]])
