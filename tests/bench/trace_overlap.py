#!/usr/bin/env python3
"""How much of the allreduce lane of a trace lies under the compute lane.

usage: trace_overlap.py [--skip STEPS] TRACE.json...

Prints one line a trace: milliseconds of all buckets, of them while the worker computed, the ratio.
The first STEPS steps are left out (connections and caches warm up).
"""
import argparse
import json


def intervals(events, wanted):
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in events
                  if e.get("ph") == "X" and wanted(e["name"]))


def covered(span, by):
    begin, end = span
    return sum(max(0, min(end, e) - max(begin, b)) for b, e in by)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("traces", nargs="+")
    options = parser.parse_args()
    for path in options.traces:
        with open(path, encoding="utf-8") as file:
            loaded = json.load(file)
        events = loaded["traceEvents"] if isinstance(loaded, dict) else loaded
        compute = intervals(events, lambda name: name.startswith("compute "))
        buckets = intervals(events, lambda name: name.startswith("bucket "))
        first = compute[options.skip][0] if options.skip < len(compute) else 0
        buckets = [b for b in buckets if b[0] >= first]
        total = sum(end - begin for begin, end in buckets)
        hidden = sum(covered(bucket, compute) for bucket in buckets)
        ratio = hidden / total if total else float("nan")
        print(f"{path}: buckets {total / 1000:.1f} ms, hidden {hidden / 1000:.1f} ms, "
              f"hidden / total {ratio:.2f}")


if __name__ == "__main__":
    main()
