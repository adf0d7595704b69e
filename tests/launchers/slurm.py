"""Slurm with three slurmd on this machine: the job by the shipped file of sbatch, and what scancel, signals, a requeue and
a killed agent do to it."""
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import time

from world import ENDLESS, LONG, QUICKSTART, Failed, SECONDS, SOURCE, Skipped, expect, processes, read

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue")


class Cluster:
    """munged, slurmctld and three slurmd of the current user, with all their files in one folder. `close` ends them and
    every process of their jobs."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self.daemons = []
        self.folder.mkdir()
        for name in ("state", "log", "n1", "n2", "n3"):
            (self.folder / name).mkdir()
        (self.folder / "munge").mkdir(mode=0o700)
        (self.folder / "munge/key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge/key").chmod(0o400)
        self.write_configuration()
        try:
            munge = self.folder / "munge"
            # --force: the folder need not be open to other users.
            self.daemon("munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                        f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")
            self.until((munge / "socket").exists, 20, "munged does not listen")
            self.daemon("slurmctld", "-D", "-i")
            for node in ("n1", "n2", "n3"):
                self.daemon("slurmd", "-D", "-N", node)
            self.until(lambda: self.say("sinfo", "-h", "-t", "idle", "-o", "%D", may_fail=True) == "3", 60,
                       "the nodes are not idle")
        except BaseException:
            self.close()
            raise

    def write_configuration(self):
        sockets = [socket.socket() for _ in range(4)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in sockets]
        for probe in sockets:
            probe.close()
        host, user = socket.gethostname().split(".", maxsplit=1)[0], os.getuid()
        folder = self.folder
        lines = [
            "ClusterName=tandem", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={ports[0]}",
            f"SlurmUser={user}", f"SlurmdUser={user}",
            "AuthType=auth/munge", "CredType=cred/munge", f"AuthInfo=socket={folder}/munge/socket,cred_expire=5",
            f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/%n",
            f"SlurmctldPidFile={folder}/log/slurmctld.pid", f"SlurmdPidFile={folder}/log/%n.pid",
            f"SlurmctldLogFile={folder}/log/slurmctld", f"SlurmdLogFile={folder}/log/%n",
            # No control groups: Slurm knows the processes of a job by their parents.
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none", "MpiDefault=none",
            "SelectType=select/cons_tres", "SlurmdParameters=config_overrides", "ReturnToService=2",
            "SchedulerParameters=sched_interval=3,bf_interval=3"]
        lines += [f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[i]} CPUs=2" for i in (1, 2, 3)]
        lines += ["PartitionName=all Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP"]
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def daemon(self, program, *flags):
        with open(self.folder / "log" / "daemons", "a", encoding="utf-8") as log:
            self.daemons.append(subprocess.Popen([program, *flags], env=dict(os.environ, **self.environment), stdout=log,
                                                 stderr=log, stdin=subprocess.DEVNULL))

    def say(self, *command, may_fail=False):
        done = subprocess.run([str(word) for word in command], env=dict(os.environ, **self.environment), text=True,
                              timeout=60, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode != 0 and not may_fail:
            raise Failed(f"{command[0]} failed: {done.stdout}")
        return done.stdout.strip()

    def until(self, done, seconds, what):
        end = time.monotonic() + seconds
        while not done():
            dead = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            if time.monotonic() > end or dead:
                raise Failed(f"{what}; ended: {dead}\n{read(self.folder / 'log/daemons')}")
            time.sleep(.1)

    def processes(self):
        """All processes that Slurm has started or that belong to it: they have its configuration in their environment."""
        mark, found = f"SLURM_CONF={self.environment['SLURM_CONF']}\0".encode(), []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue
        return found

    def close(self):
        """Ends all jobs, then the daemons in order, then whatever is left."""
        if len(self.daemons) > 1:
            try:
                self.say("scancel", "--me", may_fail=True)
                end = time.monotonic() + 45
                while self.say("squeue", "-h", may_fail=True) and time.monotonic() < end:
                    time.sleep(.2)
            except subprocess.TimeoutExpired:
                pass
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self.processes():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Batch:
    """A job that sbatch has queued with the shipped file."""

    def __init__(self, cluster, world, name, flags=(), options=(), job=None):
        self.cluster, self.world, self.name = cluster, world, name
        self.number = cluster.say("sbatch", "--parsable", "--chdir", world.folder, "--output", world.out(name + ".txt"),
                                  *options, SOURCE / "configs/launch/slurm.sbatch", job or world.job, world.out(name), *flags)

    def state(self):
        return self.field("JobState")

    def field(self, name):
        for word in self.cluster.say("scontrol", "show", "job", self.number).split():
            if word.startswith(name + "="):
                return word.split("=", 1)[1]
        return ""

    def wait_for(self, *states):
        self.world.wait(lambda: self.state() in states, SECONDS, f"the job is {self.state()}, not {states}", self.name)

    def trains(self):
        self.world.wait_for_training(self.name)
        return self

    def said(self):
        return self.world.said(self.name)


def same_bits(cluster, world):
    batch = Batch(cluster, world, "slurm")
    batch.wait_for("COMPLETED")
    world.expect_bits("slurm", batch.said())
    expect("rank 2 of 3, from Slurm", batch.said())
    batch = Batch(cluster, world, "slurm-quickstart", job=QUICKSTART)
    batch.wait_for("COMPLETED")
    world.expect_auc("slurm-quickstart")


def cancel(cluster, world):
    batch = Batch(cluster, world, "slurm-cancel", ENDLESS).trains()
    cluster.say("scancel", batch.number)
    world.gone(batch.name, "scancel")
    batch.wait_for("CANCELLED")
    expect("stopped by a signal, checkpoint at step", batch.said())


def signals(cluster, world):
    """A signal by scancel makes a checkpoint, and so does the one that the shipped file asks for, two minutes before the end
    of the time. Slurm looks at the time twice a minute."""
    batch = Batch(cluster, world, "slurm-signal", ENDLESS, ["--time=2"]).trains()
    for count, send in ((1, None), (2, ["scancel", "--signal=USR1", batch.number])):
        if send:
            time.sleep(2)   # within five seconds, but a second signal to one rank is a new request
            cluster.say(*send)
        world.wait(lambda count=count: world.metrics(batch.name).count('"saved"') >= count, SECONDS,
                   f"checkpoint {count} was not made", batch.name)
    if batch.state() != "RUNNING":
        raise Failed(f"the job is {batch.state()} after SIGUSR1:\n{batch.said()}")
    cluster.say("scancel", batch.number)
    batch.wait_for("CANCELLED")


def requeue(cluster, world):
    batch = Batch(cluster, world, "slurm-requeue", LONG).trains()
    cluster.say("scontrol", "requeue", batch.number)
    world.gone(batch.name, "scontrol requeue")
    batch.wait_for("COMPLETED")
    if batch.field("Restarts") != "1":
        raise Failed(f"the job was restarted {batch.field('Restarts')} times:\n{batch.said()}")
    for text in ("stopped by a signal, checkpoint at step", "resumes at step"):
        expect(text, batch.said())
    world.expect_bits(batch.name, batch.said(), LONG)


def killed_agent(cluster, world):
    batch = Batch(cluster, world, "slurm-agent", ENDLESS).trains()
    ranks = {read(f"/proc/{pid}/environ").split("SLURM_PROCID=")[1].split("\0")[0]: pid
             for pid in processes("tandem agent", world.out(batch.name)) if "SLURM_PROCID=" in read(f"/proc/{pid}/environ")}
    os.kill(ranks["1"], signal.SIGKILL)
    world.gone(batch.name, "an agent was killed")
    batch.wait_for("FAILED")
    expect(f"failed: host {socket.gethostname()}: the agent of rank 1", batch.said())


def killed_srun(cluster, world):
    """Without sbatch: Slurm ends the step of an srun that has gone."""
    command = ["srun", "--ntasks=3", "--nodes=3", "--kill-on-bad-exit=1", world.tandem, "agent", world.job, "--out"]
    world.killed("slurm-srun", command + [world.out("slurm-srun")] + ENDLESS, **cluster.environment)


def slurm(world):
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise Skipped(f"not installed: {' '.join(missing)}")
    os.symlink(world.build, world.folder / "build")   # the shipped file calls build/bin/tandem
    cluster = Cluster(world.out("slurm-cluster"))
    try:
        for test in (same_bits, cancel, signals, requeue, killed_agent, killed_srun):
            test(cluster, world)
    finally:
        cluster.close()
    if cluster.processes():
        raise Failed(f"processes are left: {cluster.processes()}")
