"""Table and ratios of collectives_vs_peers.sh, from lines `NAME RANKS BYTES MICROSECONDS ALGORITHM`."""
import collections
import math
import statistics
import sys

KB, MB = 1 << 10, 1 << 20

# What we want: ours, peer, ranks, least and greatest size, geometric mean of peer / ours, each size.
BARS = [
    ("tandem_tcp", "mpi_tcp", (2, 4), 64 * KB, 64 * MB, 1.0, 0.9),
    ("tandem_tcp", "gloo", (2, 4), 64 * KB, 64 * MB, 1.5, 1.15),
    ("tandem_tcp", "gloo", (4,), 4, 4 * KB, 3.0, 3.0),
    ("tandem_shm", "mpi_shm", (2,), MB, 64 * MB, 1.5, 1.0),
    ("tandem_shm", "mpi_shm", (4,), MB, 64 * MB, 1.15, 0.0),
    ("tandem_shm", "mpi_shm", (2,), 4, 4 * KB, 0.0, 1 / 3),
    ("tandem_shm", "mpi_shm", (4,), 4, 4 * KB, 0.0, 1.0),
]


def read(path):
    """times[name, ranks, bytes][algorithm] = microseconds of each round."""
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in open(path):
        name, ranks, size, us, algorithm = line.split()
        times[name, int(ranks), int(size)][algorithm].append(float(us))
    return times


def best(by_algorithm):
    """The algorithm with the least median, and its times."""
    return min(by_algorithm.items(), key=lambda item: statistics.median(item[1]))


def print_times(times):
    print(f"{'name':12} {'p':>2} {'bytes':>10} {'algorithm':18} {'min_us':>12} {'median_us':>12} {'max_us':>12}")
    for key in sorted(times):
        algorithm, us = best(times[key])
        print(f"{key[0]:12} {key[1]:2} {key[2]:10} {algorithm:18} {min(us):12.2f} "
              f"{statistics.median(us):12.2f} {max(us):12.2f}")


def judge(times, ours, peer, ranks, least, most, mean_bar, each_bar):
    for p in ranks:
        ratios = {}
        for name, rank_count, size in times:
            if name == ours and rank_count == p and least <= size <= most and (peer, p, size) in times:
                us = statistics.median(best(times[peer, p, size])[1])
                ratios[size] = us / statistics.median(best(times[ours, p, size])[1])
        if not ratios:
            continue
        mean = math.exp(statistics.fmean(math.log(r) for r in ratios.values()))
        met = mean >= mean_bar and min(ratios.values()) >= each_bar
        print(f"{peer} / {ours}, p = {p}, {least} to {most} bytes: geometric mean {mean:.2f} (want {mean_bar:.2f}), "
              f"least {min(ratios.values()):.2f} (want {each_bar:.2f}): {'met' if met else 'MISSED'}")
        print("    " + "  ".join(f"{size}: {ratio:.2f}" for size, ratio in sorted(ratios.items())))


def main():
    times = read(sys.argv[1])
    print_times(times)
    for bar in BARS:
        judge(times, *bar)


main()
