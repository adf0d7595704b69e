"""Starts one small reproducible job by each launcher, on this machine: the model must have the bits of `tandem run`, and
a launcher that is killed must leave no process. `./check --launchers` installs the launchers and calls this.

Arguments: the build folder, and the names of launchers; without names: all. Each prints "ok" or "FAILED". Exit status 1
if one has failed. sshd listens on 127.0.0.2 to 127.0.0.4 with keys of its own, and ends with the test.
"""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()
TANDEM = str(BUILD / "bin/tandem")
PYTHON = "/usr/bin/python3"
SECONDS = 200
GONE = 30   # several times what an end takes

JOB = """
name: "launched"
seed: 7
reproducible: true
cluster { workers: 2 servers: 2 }
data { format: CRITEO train: "FOLDER/data/train.tsv" test: "FOLDER/data/test.tsv" }
table { name: "ids" dim: 8 optimizer { kind: ADAGRAD learning_rate: 0.05 } expected_rows: 20000 }
policy { kind: BSP }
dense { optimizer { kind: ADAM learning_rate: 0.002 } }
model { dlrm { bottom: [24, 8] top: [32, 16] } }
train { batch_size: 32 }
"""


class Failed(Exception):
    """What was expected and has not happened."""


class World:
    """A folder with the job, and the model that `tandem run` makes of it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.job = str(self.folder / "job.textproto")
        subprocess.run([TANDEM, "datagen", "--out", self.folder / "data", "--train-rows", "1500", "--test-rows", "300"],
                       check=True, stdout=subprocess.DEVNULL)
        pathlib.Path(self.job).write_text(JOB.replace("FOLDER", folder), encoding="utf-8")
        self.run([TANDEM, "run", self.job, "--out", self.out("run")])
        self.expected = self.model("run")

    def out(self, name):
        return str(self.folder / name)

    def run(self, command, code=0, **environment):
        done = subprocess.run([str(word) for word in command], cwd=self.folder, timeout=SECONDS, text=True,
                              env=dict(os.environ, OMP_NUM_THREADS="1", **environment), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != code:
            raise Failed(f"{command[0]} ended with {done.returncode}, expected {code}:\n{done.stdout}")
        return done.stdout

    def model(self, name):
        """A hash of the trained tables and dense parameters."""
        folder = self.out(name + "-export")
        self.run([TANDEM, "export", self.out(name) + "/model", "--to", folder], TANDEM_PYTHON=PYTHON)
        data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        tensors = json.loads(data[8:8 + size])
        tensors.pop("__metadata__", None)   # names the run
        return hashlib.sha256(json.dumps(tensors, sort_keys=True).encode() + data[8 + size:]).hexdigest()

    def trains(self, name, command, **environment):
        said = self.run(command, **environment)
        if self.model(name) != self.expected:
            raise Failed(f"{name}: the model differs from that of tandem run:\n{said}")
        return said

    def killed(self, name, command, **environment):
        """Kills the launcher of a running job: nothing may be left."""
        with open(self.out(name + ".txt"), "w", encoding="utf-8") as log:
            launcher = subprocess.Popen([str(word) for word in command], cwd=self.folder, stdin=subprocess.DEVNULL,
                                        env=dict(os.environ, **environment), stdout=log, stderr=log)
        try:
            self.wait(lambda: "progress" in read(self.out(name) + "/metrics.jsonl"), SECONDS, "the job does not train", name)
        finally:
            launcher.send_signal(signal.SIGKILL)
            launcher.wait()
        self.wait(lambda: not processes(self.out(name)), GONE, "processes are left", name)

    def wait(self, done, seconds, what, name):
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                raise Failed(f"{what}: {processes(self.out(name))}\n{read(self.out(name + '.txt'))}")
            time.sleep(.05)


def read(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def processes(text):
    """The command lines of tandem's processes that contain a text."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in line and "/bin/tandem" in line and "ssh" not in line.split(" ")[0] and "mpi" not in line.split(" ")[0]:
            found.append(line)
    return found


def expect(text, said):
    if text not in said:
        raise Failed(f"expected {text!r} in:\n{said}")


ENDLESS = ["--set", "train.epochs=1000000"]


def mpich(world):
    start = ["/usr/bin/mpiexec.mpich", "-n", "3", TANDEM, "agent", world.job, "--out"]
    expect("rank 2 of 3, from PMI", world.trains("mpich", start + [world.out("mpich")]))
    world.killed("mpich-killed", start + [world.out("mpich-killed")] + ENDLESS)


def torchrun(world):
    # Standard output goes to logs, too: without that torchrun of Debian 12 does not start.
    start = [PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", "3", "-r", "1", "-t", "1", "--log_dir",
             world.out("torch-logs")]
    expect("rank 2 of 3, from torch",
           world.trains("torchrun", start + ["--no_python", TANDEM, "agent", world.job, "--out", world.out("torchrun")]))
    said = world.run(start + [SOURCE / "examples/four_collectives.py"], PYTHONPATH=str(BUILD / "python"))
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
    start = [TANDEM, "run", world.job, "--hosts", hosts, "--out"]
    try:
        said = world.trains("ssh", start + [world.out("ssh")], TANDEM_SSH=sshd.ssh)
        expect("rank 2 of 3, from Tandem", said)
        world.trains("ssh-list", [TANDEM, "run", world.job, "-H", "127.0.0.2:2,127.0.0.3:2", "--out", world.out("ssh-list")],
                     TANDEM_SSH=sshd.ssh)
        world.killed("ssh-killed", start + [world.out("ssh-killed")] + ENDLESS, TANDEM_SSH=sshd.ssh)
        # Each refusal is one line, and nothing is started.
        for command, text in ((["-H", "127.0.0.2,127.0.0.9"], "host 127.0.0.9: ssh cannot log in: ssh: connect"),
                              (["-H", "nobody.invalid"], "host nobody.invalid: ssh cannot log in: ssh: Could not resolve"),
                              (["-H", "127.0.0.2:0"], "host 127.0.0.2 has '0' slots"),
                              (["-H", "127.0.0.2,127.0.0.2"], "host 127.0.0.2 is there twice")):
            said = world.run([TANDEM, "run", world.job, "--out", world.out("refused")] + command, 2, TANDEM_SSH=sshd.ssh)
            expect(text, said)
            if said.count("\n") != 1:
                raise Failed(f"expected one line:\n{said}")
        said = world.run([TANDEM, "run", world.job, "-H", "127.0.0.2", "--out", world.out("refused")], 2,
                         TANDEM_SSH=sshd.stranger)
        expect("Permission denied (publickey", said)
    finally:
        sshd.close()


LAUNCHERS = {"mpich": mpich, "torchrun": torchrun, "ssh": ssh}


def main():
    names = sys.argv[2:] or list(LAUNCHERS)
    folder, failed = tempfile.mkdtemp(prefix="tandem-launchers-"), 0
    try:
        world = World(folder)
        for name in names:
            start = time.monotonic()
            try:
                LAUNCHERS[name](world)
                print(f"{name}: ok ({time.monotonic() - start:.0f} s)", flush=True)
            except (Failed, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"{name}: FAILED: {error}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
