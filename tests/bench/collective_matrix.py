"""Table of collective_matrix.sh: DIR/names lists the runs, the plain one first; DIR/NAME/summary.json has each.

Exit status 1 if a run has failed.
"""
import json
import os
import sys

KEYS = ("logloss", "auc", "hr_at_10", "ndcg_at_10")


def main(folder, load):
    names = open(os.path.join(folder, "names")).read().split()
    runs = {}
    for name in names:
        path = os.path.join(folder, name, "summary.json")
        runs[name] = json.load(open(path)) if os.path.exists(path) else None
    plain = runs[names[0]]
    if plain is None or not plain["eval"]:
        sys.exit("the plain run has no evaluation")
    keys = [key for key in KEYS if key in plain["eval"]]
    print("load:", load)
    print("%s, seed %s: %d workers, %d steps" % (plain["job"], plain["seed"], plain["workers"], plain["steps"]))
    print("%-19s %8s %12s" % ("run", "seconds", "dense MB") + "".join(" %10s %9s" % (key, "") for key in keys))
    for name in names:
        run = runs[name]
        if run is None:
            print("%-19s failed" % name)
            continue
        sent = run["bytes"].get("collective", 0) / 1e6
        line = "%-19s %8.1f %12.2f" % (name, run["seconds"], sent)
        for key in keys:
            line += " %10.5f %+9.5f" % (run["eval"][key], run["eval"][key] - plain["eval"][key])
        print(line)
    sys.exit(int(None in runs.values()))


main(sys.argv[1], sys.argv[2])
