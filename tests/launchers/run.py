"""Starts a small reproducible job by each launcher, on this machine: the model must have the bits of `tandem run`. The AUC
of the quickstart must be that of `tandem run`, within .001. However a job ends, no process may be left.
`./check --launchers` installs the launchers and calls this.

Arguments: the build folder, and the names of launchers; without names: all. Each prints the times that it measured, and
"ok", "skipped" or "FAILED". The last line counts them. Exit status 1 if one has failed. Daemons (sshd, Slurm, Prometheus)
have configurations and keys of their own and end with the test. sshd listens on 127.0.0.2 to 127.0.0.4.
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import netns  # pylint: disable=wrong-import-position
import slurm  # pylint: disable=wrong-import-position
from world import (ENDLESS, GONE, LONG, PYTHON, SECONDS, SOURCE,  # pylint: disable=wrong-import-position
                   Failed, Skipped, World, expect, processes, read)


def openmpi(world):
    start = ["/usr/bin/mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "3", world.tandem,
             "agent"]
    expect("rank 2 of 3, from Open MPI", world.trains("openmpi", start + [world.job, "--out", world.out("openmpi")]))
    world.killed("openmpi-killed", start + [world.job, "--out", world.out("openmpi-killed")] + ENDLESS)
    world.quickstart("openmpi-quickstart", start)


def mpich(world):
    start = ["/usr/bin/mpiexec.mpich", "-n", "3", world.tandem, "agent"]
    expect("rank 2 of 3, from PMI", world.trains("mpich", start + [world.job, "--out", world.out("mpich")]))
    world.killed("mpich-killed", start + [world.job, "--out", world.out("mpich-killed")] + ENDLESS)
    world.quickstart("mpich-quickstart", start)


def torchrun(world):
    # Standard output goes to logs, too: without that torchrun of Debian 12 does not start.
    start = [PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", "3", "-r", "1", "-t", "1", "--log_dir",
             world.out("torch-logs")]
    agent = start + ["--no_python", world.tandem, "agent"]
    expect("rank 2 of 3, from torch", world.trains("torchrun", agent + [world.job, "--out", world.out("torchrun")]))
    world.killed("torchrun-killed", agent + [world.job, "--out", world.out("torchrun-killed")] + ENDLESS)
    world.quickstart("torchrun-quickstart", agent)
    said = world.run(start + [SOURCE / "examples/four_collectives.py"], PYTHONPATH=str(world.build / "python"))
    for rank in range(3):
        expect(f"rank {rank}: AllReduce [3.0]", said)


class Sshd:
    """sshd on three loopback addresses, and the command that reaches it."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir()
        for name in ("host", "user", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", 0))
            port = probe.getsockname()[1]
        os.makedirs("/run/sshd", exist_ok=True)
        (folder / "sshd_config").write_text(
            "".join(f"ListenAddress 127.0.0.{i}:{port}\n" for i in (2, 3, 4)) + f"HostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 100\n", encoding="utf-8")
        self.log = open(folder / "log", "w", encoding="utf-8")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(["/usr/sbin/sshd", "-f", folder / "sshd_config", "-D", "-e"], stderr=self.log)
        self.ssh = self.client(folder, port, "user")
        self.stranger = self.client(folder, port, "stranger")
        until = time.monotonic() + 20
        while socket.socket().connect_ex(("127.0.0.4", port)) != 0:
            if time.monotonic() > until or self.process.poll() is not None:
                raise Failed(f"sshd does not listen: {read(folder / 'log')}")
            time.sleep(.05)

    @staticmethod
    def client(folder, port, key):
        config = folder / f"config-{key}"
        config.write_text(f"Port {port}\nIdentityFile {folder}/{key}\nIdentitiesOnly yes\nStrictHostKeyChecking no\n"
                          f"UserKnownHostsFile {folder}/known\nIdentityAgent none\n", encoding="utf-8")
        return f"ssh -F {config}"

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def ssh(world):
    sshd = Sshd(world.out("sshd"))
    hosts = world.folder / "hosts"
    hosts.write_text("127.0.0.2 slots=1\n127.0.0.3 slots=1   # a comment\n127.0.0.4\n", encoding="utf-8")
    start = [world.tandem, "run", world.job, "--hosts", hosts, "--out"]
    try:
        said = world.trains("ssh", start + [world.out("ssh")], TANDEM_SSH=sshd.ssh)
        expect("rank 2 of 3, from Tandem", said)
        world.trains("ssh-list", [world.tandem, "run", world.job, "-H", "127.0.0.2:2,127.0.0.3:2", "--out", world.out("ssh-list")],
                     TANDEM_SSH=sshd.ssh)
        world.quickstart("ssh-quickstart", [world.tandem, "run", "--hosts", hosts], TANDEM_SSH=sshd.ssh)
        world.killed("ssh-killed", start + [world.out("ssh-killed")] + ENDLESS, TANDEM_SSH=sshd.ssh)
        # Each refusal is one line, and nothing is started.
        for command, text in ((["-H", "127.0.0.2,127.0.0.9"], "host 127.0.0.9: ssh cannot log in: ssh: connect"),
                              (["-H", "nobody.invalid"], "host nobody.invalid: ssh cannot log in: ssh: Could not resolve"),
                              (["-H", "127.0.0.2:0"], "host 127.0.0.2 has '0' slots"),
                              (["-H", "127.0.0.2,127.0.0.2"], "host 127.0.0.2 is there twice")):
            said = world.run([world.tandem, "run", world.job, "--out", world.out("refused")] + command, 2, TANDEM_SSH=sshd.ssh)
            expect(text, said)
            if said.count("\n") != 1:
                raise Failed(f"expected one line:\n{said}")
        said = world.run([world.tandem, "run", world.job, "-H", "127.0.0.2", "--out", world.out("refused")], 2,
                         TANDEM_SSH=sshd.stranger)
        expect("Permission denied (publickey", said)
    finally:
        sshd.close()


def alone(world):
    """Without a launcher, --resume-any begins a run, resumes it after SIGTERM, and refuses one that is finished."""
    start = [world.tandem, "agent", world.job, "--resume-any"]
    expect("needs the folder of the run; hint: add --out DIR", world.run(start, 2))
    start += ["--out", world.out("alone"), *LONG]
    agent = world.start("alone", start)
    world.wait_for_training("alone")
    agent.terminate()
    if agent.wait(GONE) != -signal.SIGTERM:
        raise Failed(f"expected an end by SIGTERM:\n{world.said('alone')}")
    expect("stopped by a signal, checkpoint at step", world.said("alone"))
    said = world.run(start)
    expect("resumes at step", said)
    world.expect_bits("alone", said, LONG)
    expect("the run is finished", world.run(start, 2))


def script(name):
    def run(world):
        done = subprocess.run([SOURCE / "tests/launchers" / name, world.build], cwd=SOURCE, timeout=SECONDS, text=True,
                              check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode == 77:
            raise Skipped(done.stdout.strip())
        if done.returncode != 0:
            raise Failed(done.stdout)
    return run


LAUNCHERS = {"alone": alone, "openmpi": openmpi, "mpich": mpich, "torchrun": torchrun, "ssh": ssh, "slurm": slurm.slurm,
             "netns": netns.netns, "prometheus": script("prometheus.sh"), "manifests": script("manifests.sh")}


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))   # also then everything is ended
    build, names = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or list(LAUNCHERS)
    folder, passed, failed, skipped = tempfile.mkdtemp(prefix="tandem-launchers-"), 0, 0, 0
    try:
        world = World(folder, build)
        for name in names:
            start = time.monotonic()
            try:
                LAUNCHERS[name](world)
                passed += 1
                print(f"{name}: ok ({time.monotonic() - start:.0f} s)", flush=True)
            except Skipped as why:
                skipped += 1
                print(f"{name}: skipped: {why}", flush=True)
            except (Failed, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"{name}: FAILED: {error}", flush=True)
    finally:
        for process in processes(folder):   # of a test that has failed
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
