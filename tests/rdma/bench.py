#!/usr/bin/env python3
"""RDMA beside perftest and ZeroMQ, both sides in turns in one run, where there is an RDMA device.

  tests/rdma/run_in_guest.sh --clock wall --seconds 900 tests/rdma/bench.py [--rounds 5] [--quick]

Needs rdma_bench (ninja -C build rdma_bench) and the Debian package perftest. Prints medians and the
smallest and largest of the rounds. With one processor the pollers of perftest keep each other from it;
--events has ib_send_lat wait for events, as the transport does (ib_write_bw cannot).
"""
import argparse, os, re, statistics, subprocess, sys, time

HERE = os.path.dirname(os.path.realpath(__file__))
PROGRAM = os.path.join(os.environ.get("TANDEM_BIN_DIR", os.path.join(HERE, "../../build/bin")), "rdma_bench")


def ours(*args):
    out = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=600, check=True).stdout
    return [float(word) for word in out.split()]


def perftest(program, column, *args):
    """A number of the last line of them that the asking side prints."""
    port = str(20000 + time.monotonic_ns() // 1000 % 20000)
    common = [program, "-p", port, "-F", *map(str, args)]
    host = os.environ.get("TANDEM_RDMA_HOSTS", "127.0.0.1").split(",")[0]
    server = subprocess.Popen(common, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        # It may not be listening yet; and where the processor's clock is unsteady, no time is "inf", a long one 0.
        for _ in range(50):
            time.sleep(0.3)
            asked = subprocess.run([*common, host], capture_output=True, text=True, timeout=600)
            lines = [l for l in asked.stdout.splitlines() if re.match(r"^\s*\d+(\s+[\d.]+)+\s*$", l)]
            got = float(lines[-1].split()[column]) if lines else 0
            if got > 0:
                return got
            if server.poll() is not None:
                server = subprocess.Popen(common, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        sys.exit(f"{' '.join(common)}: {asked.stdout}{asked.stderr}")
    finally:
        server.kill()
        server.wait()


def show(name, values, unit):
    print(f"{name:34} {statistics.median(values):10.2f} {unit:8} ({min(values):.2f} to {max(values):.2f})")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything but round trips")
    parser.add_argument("--events", action="store_true", help="ib_send_lat waits for events")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    events = ["-e"] if options.events else []
    got = {name: [] for name in ("ours_bw", "ib_bw", "ours_lat", "ib_lat", "rdma_cpu", "rdma_mbs", "zmq_cpu", "zmq_mbs")}
    for _ in range(options.rounds):
        got["ours_bw"] += ours("stream", 800 // scale)
        got["ib_bw"].append(perftest("ib_write_bw", 3, "-s", 1 << 20, "-n", 800 // scale))
        # Fewer would be over before who waits has found out whether it may spin (transport/spin.h).
        got["ours_lat"] += ours("latency", 5000)
        got["ib_lat"].append(perftest("ib_send_lat", 4, "-s", 64, "-n", 5000, *events))
        for way in ("rdma", "zmq"):
            cpu, rate = ours("pushpull", way, 400 // scale)
            got[way + "_cpu"].append(cpu)
            got[way + "_mbs"].append(rate)
    print(f"{options.rounds} rounds, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; median (least to most)")
    show("1 MiB frames, ours", got["ours_bw"], "MiB/s")
    show("1 MiB writes, ib_write_bw", got["ib_bw"], "MiB/s")
    show("64 bytes one way, ours", got["ours_lat"], "us")
    show("64 bytes one way, ib_send_lat", got["ib_lat"], "us")
    show("push and pull over RDMA, processor", got["rdma_cpu"], "s/GB")
    show("push and pull over ZeroMQ, processor", got["zmq_cpu"], "s/GB")
    show("push and pull over RDMA", got["rdma_mbs"], "MB/s")
    show("push and pull over ZeroMQ", got["zmq_mbs"], "MB/s")
    ratios = [a / b for a, b in zip(got["ours_bw"], got["ib_bw"])]
    show("frames / ib_write_bw (bar 0.8)", ratios, "x")
    show("64 bytes / ib_send_lat (bar 2)", [a / b for a, b in zip(got["ours_lat"], got["ib_lat"])], "x")


if __name__ == "__main__":
    main()
