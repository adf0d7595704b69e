"""The scripts of examples/ on generated files of the same formats: each as a worker that starts its own cluster, and by
`tandem run` as two. What they are trained on can be learned, so they must be better than a guess. Skipped (exit status 77)
where pandas or PyTorch is not installed.

Arguments: the source folder, the build folder.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import pandas  # pylint: disable=unused-import
    import torch  # pylint: disable=unused-import
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

SOURCE, BUILD = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
SECONDS = 120


def ratings(folder, random, users=40, items=150, kinds=4):
    """Users rate films of their own kind. For every tenth user the film kept back is among the 99 others, too."""
    folder.mkdir()
    train, test, negative = [], [], []
    for user in range(users):
        own = random.permutation(numpy.arange(user % kinds, items, kinds))
        kept, seen = own[0], own[1:25]
        others = random.permutation(numpy.setdiff1d(numpy.arange(items), own))[:99]
        if user % 10 == 0:
            others[0] = kept
        train += [f"{user}\t{item}\t5" for item in seen]
        test.append(f"{user}\t{kept}\t5\t0")
        negative.append(f"({user},{kept})\t" + "\t".join(map(str, others)))
    for name, lines in (("train.rating", train), ("test.rating", test), ("test.negative", negative)):
        (folder / f"ml-1m.{name}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def clicks(folder, random, rows=1600):
    """A number and a category decide; a tenth of the cells is empty."""
    folder.mkdir()
    numbers, categories = random.integers(-1, 1000, (rows, 13)), random.integers(0, 30, (rows, 26))
    score = .5 * (numpy.log1p(numbers[:, 0].clip(0)) - 6) + 2. * (categories[:, 0] % 3 - 1)
    label = random.random(rows) < 1 / (1 + numpy.exp(-score))
    empty = random.random((rows, 39)) < .1
    lines = []
    for i in range(rows):
        cells = [str(n) for n in numbers[i]] + [f"{c:08x}" for c in categories[i]]
        lines.append("\t".join([str(int(label[i]))] + ["" if e else c for c, e in zip(cells, empty[i])]))
    (folder / "first8000.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def histories(folder, random, users=64, films=150):
    """Each user watches films in the order of their numbers, with gaps."""
    folder.mkdir()
    lines = []
    for user in range(users):
        own = (random.integers(films) + random.integers(1, 3, 18).cumsum()) % films
        lines += [f"{user}\t{film + 1}\t5\t{time}" for time, film in enumerate(own)]
    (folder / "u.data").write_text("\n".join(random.permutation(lines)) + "\n", encoding="utf-8")


def run(root, *command):
    environment = dict(os.environ, PYTHONPATH=str(BUILD / "python"), TANDEM_PYTHON=sys.executable, TANDEM_DATA=str(root / "data"),
                       OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=root, env=environment, timeout=SECONDS, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}"
    return done.stdout


def by_tandem_run(root, name, *settings):
    flags = [word for setting in settings for word in ("--set", setting)]
    run(root, BUILD / "bin" / "tandem", "run", f"examples/{name}.textproto", "--python", f"examples/{name}.py", "--out",
        f"out/{name}", *flags)
    return json.loads((root / "out" / name / "summary.json").read_text(encoding="utf-8"))


def main():
    with tempfile.TemporaryDirectory() as folder:
        root, random = pathlib.Path(folder), numpy.random.default_rng(11)
        (root / "data").mkdir()
        (root / "examples").symlink_to(SOURCE / "examples")
        ratings(root / "data" / "ncf-ml-1m", random)
        clicks(root / "data" / "criteo-kaggle", random)
        histories(root / "data" / "ml-100k", random)

        said = run(root, sys.executable, "examples/ncf.py")
        assert "epoch 20: HR@10 0." in said and "films; the first two" in said, said
        said = run(root, sys.executable, "examples/criteo.py")
        assert "1600 rows" in said and ": AUC 0." in said and "on 200 rows" in said, said

        summary = by_tandem_run(root, "ncf", "train.batch_size=32", "train.epochs=8", "dense.optimizer.learning_rate=0.01")
        found = summary["reported"]
        assert summary["samples"] == 8 * 5 * 40 * 24 and summary["eval"]["samples"] == 40 * 100, summary
        print(f"ncf: HR@10 {found['hr']:.3f}, NDCG@10 {found['ndcg']:.3f}")
        assert .8 < found["hr"] <= 1 and .5 < found["ndcg"] <= found["hr"], "a guess has .1 and .045"
        summary = by_tandem_run(root, "criteo", "train.batch_size=16", "train.epochs=4")
        assert summary["samples"] == 4 * 1400 and summary["eval"]["samples"] == 200, summary
        print(f"criteo: AUC {summary['eval']['auc']:.3f}")
        assert summary["eval"]["auc"] > .7
        summary = by_tandem_run(root, "sasrec", "train.batch_size=8", "train.epochs=15", "table[0].optimizer.learning_rate=0.02")
        found = summary["reported"]
        assert summary["samples"] == 15 * 64, summary
        print(f"sasrec: HR@10 {found['hr']:.3f}, NDCG@10 {found['ndcg']:.3f}")
        assert .4 < found["hr"] <= 1 and .2 < found["ndcg"] <= found["hr"], "a guess has .1 and .045"


if __name__ == "__main__":
    main()
