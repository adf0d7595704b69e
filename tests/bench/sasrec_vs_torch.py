"""examples/sasrec.py beside the same module as a plain PyTorch program, with the same data, samples
and candidates, and equal numbers of epochs.

  sasrec_vs_torch.py TREE [--seeds 1,2,3] [--epochs 40] [--only TEXT]    all rows of the table
  sasrec_vs_torch.py TREE --plain adam|sparse|halves --seed S --epochs N    a run of the plain one

TREE has build/bin/tandem. $TANDEM_DATA/ml-100k has the data (examples/sasrec.py). A run of 40
epochs takes about half a minute of a core, and there are 27: say --seeds 1 for a quick look.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

POLICIES = {"BSP": "{kind: BSP}", "SSP(4)": "{kind: SSP bound: 4}", "ASP": "{kind: ASP}"}
PLAIN = {"adam": "plain, Adam for all", "sparse": "plain, SparseAdam for the table",
         "halves": "plain, SparseAdam after each half of a batch"}
BATCH = 128


def plain(kind, seed, epochs):
    """Prints NDCG@10, HR@10 and the training loss after the last epoch."""
    import numpy
    import torch
    from torch import nn
    import sasrec
    films, rated = sasrec.histories()
    torch.manual_seed(seed)
    rows = nn.Embedding(rated.shape[1], sasrec.DIM, padding_idx=0, sparse=kind != "adam")
    model = sasrec.SASRec(rows)
    with torch.no_grad():
        rows.weight.normal_(std=.034)  # the job's initializer
        rows.weight[0] = 0
    dense = [p for p in model.parameters() if p is not rows.weight]
    of, halves = {"lr": .001, "betas": (.9, .98)}, 2 if kind == "halves" else 1
    optimizer = torch.optim.Adam(dense, **of)
    of_rows = (torch.optim.Adam if kind == "adam" else torch.optim.SparseAdam)([rows.weight], **of)
    samples = sasrec.Sequences(films, rated, BATCH, seed)
    for samples.epoch in range(epochs):
        losses = []
        for batch in samples:
            optimizer.zero_grad()
            for half in range(halves):  # as two workers update rows under ASP
                of_rows.zero_grad()
                loss = model(**{name: ids[half::halves] for name, ids in batch.items()})
                (loss / halves).backward()
                if kind == "halves":
                    rows.weight.grad *= halves
                of_rows.step()
                losses.append(loss.item())
            optimizer.step()
    model.eval()
    with torch.no_grad():
        ndcg, hr = sasrec.metrics(torch.cat([model.scores(**batch) for batch in
                                             sasrec.questions(films, rated)]))
    print(json.dumps({"ndcg": ndcg, "hr": hr, "train_loss": float(numpy.mean(losses))}))


def run(command, tree):
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=f"{tree}/build/python:"
                       f"{tree}/examples")
    environment.setdefault("TANDEM_PYTHON", sys.executable)
    done = subprocess.run(command, cwd=tree, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def trained(tree, policy, workers, seed, epochs):
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"seed={seed}", f"cluster.workers={workers}", f"policy={policy}",
                    f"train.epochs={epochs}", f"train.batch_size={BATCH // workers}",
                    f"evaluation.every_epochs={epochs}"]
        flags = [word for setting in settings for word in ("--set", setting)]
        run([f"{tree}/build/bin/tandem", "run", "examples/sasrec.textproto", "--python",
             "examples/sasrec.py", "--out", f"{folder}/out", *flags], tree)
        with open(f"{folder}/out/summary.json", encoding="utf-8") as file:
            return json.load(file)["reported"]


def row(name, results):
    cells = []
    for key in ("ndcg", "hr", "train_loss"):
        values = [result[key] for result in results]
        cells.append(" ".join(f"{value:.4f}".lstrip("0") for value in values))
        cells.append(f"{statistics.mean(values):.4f}".lstrip("0"))
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", type=os.path.abspath)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--only", default="")
    parser.add_argument("--plain", choices=PLAIN)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.plain:
        plain(given.plain, given.seed, given.epochs)
        return
    seeds = [int(seed) for seed in given.seeds.split(",")]
    print("| | NDCG@10 | mean | HR@10 | mean | training loss | mean |\n" + "|---" * 7 + "|")
    for kind, name in PLAIN.items():
        if given.only in name:
            row(name, [json.loads(run([sys.executable, os.path.abspath(__file__), given.tree,
                                       "--plain", kind, "--seed", str(seed), "--epochs",
                                       str(given.epochs)], given.tree)) for seed in seeds])
    for name, policy in POLICIES.items():
        for workers in (1, 2):
            title = f"Tandem, {name}, {workers} worker" + "s" * (workers > 1)
            if given.only in title:
                row(title, [trained(given.tree, policy, workers, seed, given.epochs)
                            for seed in seeds])


if __name__ == "__main__":
    main()
