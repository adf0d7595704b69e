"""Three hosts, each a network namespace with a name and an address of its own, between them a switch. A person starts an
agent on each. Then the cable of one host is pulled out."""
import os
import secrets
import shutil
import signal
import subprocess
import time

from world import ENDLESS, Failed, Skipped, expect, processes

RANKS = (0, 1, 2)
PORT = 7000
BOUND = 120   # seconds, five times the usual


class Hosts:
    """The network of the machine is not touched. `close` removes the namespaces."""

    def __init__(self):
        self.prefix = f"tandem-launchers-{os.getpid()}-"
        self.switch = self.prefix + "switch"
        try:
            self.ip("netns", "add", self.switch)
            self.ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
            self.ip("-n", self.switch, "link", "set", "br0", "up")
            for rank in RANKS:
                self.add(rank)
        except Failed as why:
            self.close()
            raise Skipped(f"no network namespaces: {why}") from why

    def add(self, rank):
        space = self.space(rank)
        self.ip("netns", "add", space)
        self.ip("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", f"port{rank}", "netns", self.switch)
        self.ip("-n", self.switch, "link", "set", f"port{rank}", "master", "br0", "up")
        self.ip("-n", space, "addr", "add", f"{self.address(rank)}/24", "dev", "eth0")
        self.ip("-n", space, "link", "set", "eth0", "up")
        self.ip("-n", space, "link", "set", "lo", "up")

    def space(self, rank):
        return f"{self.prefix}{rank}"

    @staticmethod
    def address(rank):
        return f"10.77.2.{rank + 1}"

    def on(self, rank, command):
        """The command on that host, which is called host-RANK."""
        return ["ip", "netns", "exec", self.space(rank), "unshare", "--uts", "sh", "-c", f'hostname host-{rank} && exec "$@"',
                "sh", *command]

    def pull(self, rank, state):
        """Pulls out the cable of a host ("down"), or puts it in again ("up")."""
        self.ip("-n", self.switch, "link", "set", f"port{rank}", state)

    def close(self):
        for space in [self.space(rank) for rank in RANKS] + [self.switch]:
            subprocess.run(["ip", "netns", "delete", space], check=False, stderr=subprocess.DEVNULL)

    @staticmethod
    def ip(*words):
        done = subprocess.run(["ip", *words], check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise Failed(f"ip {' '.join(words)}: {done.stdout.strip()}")


class Agents:
    """An agent on each host, started by hand."""

    def __init__(self, world, hosts, name, flags=()):
        self.world, self.name = world, name
        token = secrets.token_hex(32)
        self.agents = [
            world.start(f"{name}-{rank}", hosts.on(rank, [world.tandem, "agent", world.job, "--out", world.out(name), "--scheduler",
                                                          f"tcp://{hosts.address(0)}:{PORT}", *flags]),
                        TANDEM_RANK=str(rank), TANDEM_WORLD_SIZE=str(len(RANKS)), TANDEM_TOKEN=token) for rank in RANKS]

    def said(self, rank):
        return self.world.said(f"{self.name}-{rank}")

    def all_said(self):
        return "\n".join(self.said(rank) for rank in RANKS)

    def wait(self):
        for agent in self.agents:
            agent.wait(200)


def same_bits(world, hosts):
    agents = Agents(world, hosts, "netns")
    agents.wait()
    world.expect_bits("netns", agents.all_said())
    expect(f"scheduler at tcp://{hosts.address(0)}:{PORT}", agents.said(2))


def cut_off(world, hosts, rank):
    """The cable of a host is pulled out: both sides end, and rank 0 names a role on the other side, with its host."""
    name = f"netns-cut-{rank}"
    agents = Agents(world, hosts, name, ENDLESS)
    world.wait_for_training(name)
    hosts.pull(rank, "down")
    start = time.monotonic()
    world.wait(lambda: agents.agents[0].poll() is not None, BOUND, "rank 0 goes on", name)
    print(f"  host-{rank} was cut off: rank 0 ended after {time.monotonic() - start:.1f} s", flush=True)
    world.gone(name, f"host-{rank} was cut off", BOUND, start)
    hosts.pull(rank, "up")
    agents.wait()
    if any(agent.poll() != 1 for agent in agents.agents):
        raise Failed(f"expected exit status 1 of all agents:\n{agents.all_said()}")
    expect("no sign of life", agents.said(0))
    expect("; on host host-1" if rank == 1 else "; on host host-", agents.said(0))


def netns(world):
    missing = [program for program in ("ip", "unshare", "hostname") if shutil.which(program) is None]
    if missing:
        raise Skipped(f"not installed: {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Skipped("only root makes network namespaces")
    hosts = Hosts()
    try:
        same_bits(world, hosts)
        for rank in (1, 0):
            cut_off(world, hosts, rank)
    finally:
        for process in processes(world.out("netns")):
            os.kill(process, signal.SIGKILL)
        hosts.close()
