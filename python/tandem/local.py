"""Scheduler and servers on this machine, for a job whose one worker is this process.
tandem.init("job.textproto") starts them if `tandem run` has not."""
from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Iterator, Optional, Sequence

from tandem._abi import Error, roots

_START_SECONDS, _END_SECONDS = 60, 10
# Replaces command-line flags in messages of the programs by the arguments of tandem.init().
_WORDS = ((r", or say --overwrite to lose what it left", ", or remove this one"),
          (r"the run has (\d+) workers, the job 1; hint: .*",
           r"the run has \1 workers, and tandem.init() starts one; "
           r"hint: resume it by tandem run --resume"),
          (r"--init-from", "tandem run --init-from"), (r"--(out|resume|set) (?=\S)", r"\1="))


def program(name: str) -> str:
    """The path of a program of Tandem. An Error: it is not there."""
    for root in roots():
        path = os.path.join(root, "bin", name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if found is None:
        raise Error(f"{name} is not there, neither beside the package nor in PATH; build it "
                    f"(ninja -C build {name}), or install Tandem")
    return found


def _parse(line: str) -> dict[str, Any]:
    """The JSON object in a line of a log: an event, or a message under
    TANDEM_LOG_FORMAT=json. {} if the line has none."""
    if not line.startswith("{"):
        return {}
    try:
        parsed = json.loads(line)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _open_no_link(path: str, flags: int) -> int:
    """Opens a file, but follows no link that another user may have put in its place."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


class LocalCluster:
    """Scheduler and servers of one job. They end with this process: the scheduler looks whether it
    lives, ends the job and tells the servers. The thread that makes the object may end before.

    job: the job file; settings: "path=value" texts; out: the folder of the run, None: a new one
    under out/; resume: the folder of a run to resume, or None; begin: flags of the
    scheduler that say with which rows the job begins. given: the job file as it was given.
    scheduler: its address, tcp://HOST:PORT. An Error: a program is not there or ends at once.
    """

    def __init__(self, job: str, settings: list[str], out: Optional[str],
                 resume: Optional[str] = None, begin: Sequence[str] = ()) -> None:
        self.given, self.job, self._settings = job, os.path.abspath(job), settings
        stem = os.path.basename(job).rsplit(".", 1)[0]
        self.out = os.path.abspath(resume or out
                                   or time.strftime(f"out/{stem}-%Y%m%d-%H%M%S-{os.getpid()}"))
        self._processes: dict[str, subprocess.Popen] = {}
        self._pid = os.getpid()
        self.told_end = False  # the scheduler was told to checkpoint the job and to end it
        programs = {name: program("tandem-" + name) for name in ("scheduler", "server")}
        self._server = programs["server"]
        os.makedirs(os.path.dirname(self.out), exist_ok=True)
        # The scheduler makes the folder, or refuses it; its log moves there. The log of a resumed
        # run begins with the old one.
        self._logs, self._begins = {"scheduler": self.out + ".log"}, {}
        self._mode = "ab" if resume else "wb"
        moved = os.path.join(self.out, "logs", "scheduler.log")
        with contextlib.suppress(FileNotFoundError):  # it may be a link of another user
            os.remove(self._logs["scheduler"])
        with open(self._logs["scheduler"], "xb") as new:
            if resume and os.path.exists(moved):
                with open(moved, "rb") as old:
                    shutil.copyfileobj(old, new)
        # Processes of other users cannot join the job. None: the environment has a token.
        self._token: Optional[str] = None
        if "TANDEM_TOKEN" not in os.environ and "TANDEM_TOKEN_FILE" not in os.environ:
            self._token = secrets.token_hex(32)
        self._token_lock = threading.Lock()
        try:
            self._start("scheduler", [programs["scheduler"], "--driver", str(self._pid),
                                      "--resume" if resume else "--out", self.out, *begin])
            self.scheduler = self._address()
            os.makedirs(os.path.dirname(moved), exist_ok=True)
            os.rename(self._logs["scheduler"], moved)
            self._logs["scheduler"] = moved
        except BaseException:
            self.stop()
            with contextlib.suppress(OSError):
                os.remove(self._logs["scheduler"])
            raise

    def start_servers(self, count: int) -> None:
        """Starts `count` servers, which join by themselves."""
        for index in range(count):
            self._logs[f"server-{index}"] = os.path.join(self.out, "logs", f"server-{index}.log")
            self._start(f"server-{index}", [self._server, "--index", str(index), "--out", self.out,
                                            "--scheduler", self.scheduler])

    @contextlib.contextmanager
    def token(self) -> Iterator[None]:
        """The environment has the token of the job within the block, for a call that connects to
        the job. It does not keep the token, which is of no use to other jobs and groups."""
        with self._token_lock:
            if self._token is not None:
                os.environ["TANDEM_TOKEN"] = self._token
            try:
                yield
            finally:
                if self._token is not None:
                    os.environ.pop("TANDEM_TOKEN", None)

    def check(self) -> None:
        """Raises an Error with the last words of a process that has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise Error(f"{name} ended with status {process.returncode}: "
                            f"{self._last_words(name)}")

    def tell_end(self) -> None:
        """Tells the scheduler to make a checkpoint and end the job. Call it once: a second signal
        ends the job without a checkpoint."""
        self.told_end = True
        self._processes["scheduler"].send_signal(signal.SIGTERM)

    def check_scheduler(self) -> None:
        """Raises an Error with the scheduler's last words if it has ended."""
        process = self._processes["scheduler"]
        if process.poll() is not None:
            raise Error(f"scheduler ended with status {process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """The last line of the scheduler."""
        return self._last_words("scheduler")

    def event(self, kind: str) -> Optional[dict[str, Any]]:
        """The first event of this kind in the scheduler's log; None if there is none yet.
        scheduler/scheduler_shell.h lists the kinds."""
        for line in self._said("scheduler"):
            event = _parse(line) if line.endswith("\n") else {}
            if event.get("event") == kind:
                return event
        return None

    def finish(self) -> None:
        """Waits for the processes, which end by themselves after the job."""
        self._end(time.monotonic() + _END_SECONDS)

    def stop(self) -> None:
        """Ends the processes now."""
        if os.getpid() == self._pid:
            self._end(time.monotonic())

    # ---- inside ----

    def _start(self, name: str, command: list[str]) -> None:
        for setting in self._settings:
            command += ["--set", setting]
        environment = dict(os.environ)
        if self._token is not None:
            environment["TANDEM_TOKEN"] = self._token
        # Batch systems send SIGUSR1 to all processes. The program inherits that it is blocked, and
        # unblocks it when it no longer kills.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        try:
            with open(self._logs[name], self._mode, opener=_open_no_link) as log:
                self._begins[name] = log.tell()
                self._processes[name] = subprocess.Popen(
                    command + ["--job", self.job], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, env=environment,
                    start_new_session=True)  # a Ctrl-C is for the script
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _address(self) -> str:
        """The address of the scheduler, which it prints first."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            event = self.event("address")
            if event is not None:
                return event["address"]
            self.check()
            time.sleep(.01)
        raise Error(f"the scheduler said no address within {_START_SECONDS} s: "
                    + self._last_words("scheduler"))

    def _said(self, name: str) -> list[str]:
        """The lines that the process has logged."""
        with open(self._logs[name], "rb") as file:
            file.seek(self._begins[name])
            return file.read().decode("utf-8", "replace").splitlines(keepends=True)

    def _last_words(self, name: str) -> str:
        lines = [line.strip() for line in self._said(name) if line.strip()]
        words = lines[-1] if lines else "without a word"
        words = _parse(words).get("text", words)
        for of_flags, of_call in _WORDS:
            words = re.sub(of_flags, of_call, words)
        return words

    def _end(self, patience: float) -> None:
        for how in (None, signal.SIGTERM, signal.SIGKILL):
            running = [p for p in self._processes.values() if p.poll() is None]
            for process in running:
                if how is not None:
                    process.send_signal(how)
            deadline = patience if how is None else time.monotonic() + _END_SECONDS
            for process in running:
                try:
                    process.wait(max(0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass
