#!/usr/bin/env python3
"""Data of ./quickstart: Tandem beside LightGBM, 1,000,000 rows, test AUC and seconds, in turns.

    $(tests/python/torch_environment.sh peers) tests/bench/peers/trees.py [--rounds N] [--rows N] [--build DIR] [--tiny]

Each round makes other data from another known model (`tandem datagen --seed`), and trains all sides with that seed on the
same 13 numbers and 26 columns of ids. `below attainable`: attainable AUC minus the AUC of the side. The attainable AUC is that of
the known model without the effects of rare ids, which no learner can know (`tandem datagen`).

    tandem                 configs/quickstart.textproto: DLRM, hybrid policy, one epoch, two workers and two servers
    lightgbm_plain         ids as numbers: their ranks by frequency
    lightgbm_categorical   the same numbers as categorical_feature
    lightgbm_target        target encoding: for each id the smoothed share of positive labels in the other four fifths of the rows

Better in the peer: LightGBM needs one process and no job file, and it takes numbers of any scale. With few rows it
learns more (--rows 4000), and without columns of many ids it is the better choice.

Differences: LightGBM stops early: it holds back a twentieth of the training rows, and its time is that of all trees until it
stops. The time begins with the table in memory and includes encoding and binning; that of Tandem includes reading, parsing
and hashing of the text file. The widths of its trees were chosen on the test rows of seed 1, in its favour: small trees, because
the effects of the known model are of single ids and of pairs of ids. Other data can have effects that trees find more easily.
Tandem's job is that of the repository, without tuning.
"""
# pylint: disable=import-outside-toplevel  # after the check that the packages are there
import json
import pathlib
import sys
import tempfile
import time

import common

NUMBERS, FIELDS, FOLDS, PRIOR = 13, 26, 5, 20.
PARAMETERS = {"objective": "binary", "metric": "auc", "learning_rate": .1, "min_data_in_leaf": 100, "feature_fraction": .8,
              "bagging_fraction": .8, "bagging_freq": 1, "num_threads": 2, "verbosity": -1}
# The best ones of a search on the data of seed 1, for the AUC of the test rows.
OF_ENCODING = {"plain": {"num_leaves": 63}, "categorical": {"num_leaves": 8, "cat_smooth": 100., "min_data_per_group": 50},
               "target": {"num_leaves": 4}}
MOST_TREES, PATIENCE = 2000, 20


def table(path):
    """Labels, numbers, and ids as integers; 0: missing."""
    import numpy
    labels, numbers, ids = [], [], []
    with open(path, "rb") as file:
        while chunk := file.readlines(1 << 25):
            columns = list(zip(*(line.rstrip(b"\n").split(b"\t") for line in chunk)))
            labels.append(numpy.array(columns[0], "S1") == b"1")
            numbers.append(numpy.array([[x or b"nan" for x in column] for column in columns[1:1 + NUMBERS]]).astype("f4"))
            ids.append(numpy.array(columns[1 + NUMBERS:], "S8").view(">u8").astype("u8"))
    return numpy.concatenate(labels), numpy.concatenate(numbers, 1), numpy.concatenate(ids, 1)


def ranks(train, test):
    """Ids by falling frequency in the training rows, from 0. Others of the test rows: -1, which LightGBM takes as missing."""
    import numpy
    known, codes, counts = numpy.unique(train, return_inverse=True, return_counts=True)
    order = numpy.empty(len(known), "i4")
    order[numpy.argsort(-counts, kind="stable")] = numpy.arange(len(known))
    at = numpy.searchsorted(known, test).clip(max=len(known) - 1)
    return order[codes], numpy.where(known[at] == test, order[at], -1)


def shares(codes, test_codes, labels, fold):
    """Smoothed share of positive labels of each id; of training rows without the rows of their own fold."""
    import numpy
    mean, size = labels.mean(), codes.max() + 1

    def of(rows):
        positive, all_of_them = numpy.bincount(codes[rows], labels[rows], size), numpy.bincount(codes[rows], minlength=size)
        return ((positive + PRIOR * mean) / (all_of_them + PRIOR)).astype("f4")

    found = numpy.empty(len(codes), "f4")
    for number in range(FOLDS):
        found[fold == number] = of(fold != number)[codes[fold == number]]
    return found, numpy.where(test_codes < 0, numpy.float32(mean), of(slice(None))[test_codes])


def auc(labels, scores):
    import numpy
    _, place, counts = numpy.unique(scores, return_inverse=True, return_counts=True)
    rank = (numpy.cumsum(counts) - (counts - 1) / 2)[place]
    positive = int(labels.sum())
    return (rank[labels].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive))


class Bench:
    def __init__(self, flags, folder):
        self.flags, self.folder, self.seed, self.data, self.tables = flags, folder, 0, None, None

    def prepare(self, number):
        f, self.seed = self.flags, number + 1
        self.data = pathlib.Path(self.folder, "data")
        common.call([f.build / "bin" / "tandem", "datagen", "--out", self.data, "--train-rows", f.rows, "--test-rows",
                     max(1000, f.rows // 10), "--seed", self.seed])
        self.tables = [table(self.data / f"{part}.tsv") for part in ("train", "test")]

    def figures(self, found, seconds):
        best = json.loads((self.data / "planted.json").read_text())["attainable_auc"]
        return {"AUC": found, "below attainable": best - found, "s": seconds}

    def tandem(self):
        files = [x for part in ("train", "test") for x in ("--set", f'data.{part}=["{self.data / part}.tsv"]')]
        summary, _ = common.run_job(self.flags, self.folder, "configs/quickstart.textproto", *files, "--set",
                                    f"seed={self.seed}")
        return self.figures(summary["eval"]["auc"], summary["seconds"])

    def lightgbm(self, encoding):
        import lightgbm
        import numpy
        (labels, numbers, ids), (test_labels, test_numbers, test_ids) = self.tables
        began, fold = time.monotonic(), numpy.random.default_rng(self.seed).integers(0, FOLDS, len(labels))
        columns, test_columns = list(numbers), list(test_numbers)
        for of_train, of_test in zip(ids, test_ids):
            pair = ranks(of_train, of_test)
            pair = shares(*pair, labels, fold) if encoding == "target" else pair
            columns.append(pair[0]), test_columns.append(pair[1])
        held = len(labels) // 20
        train = numpy.stack(columns, 1, dtype="f4", casting="unsafe")
        kinds = list(range(NUMBERS, NUMBERS + FIELDS)) if encoding == "categorical" else "auto"
        parameters = {**PARAMETERS, **OF_ENCODING[encoding], "seed": self.seed}
        fit = lightgbm.Dataset(train[held:], labels[held:], categorical_feature=kinds, params=parameters)
        check = lightgbm.Dataset(train[:held], labels[:held], reference=fit, categorical_feature=kinds, params=parameters)
        model = lightgbm.train(parameters, fit, MOST_TREES, valid_sets=[check],
                               callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)])
        seconds = time.monotonic() - began
        found = auc(test_labels, model.predict(numpy.stack(test_columns, 1, dtype="f4", casting="unsafe")))
        return {**self.figures(found, seconds), "trees": model.best_iteration}


def main():
    parser = common.parser(__doc__, rounds=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    flags = parser.parse_args()
    common.need("numpy", "lightgbm")
    if flags.tiny:
        flags.rounds, flags.rows = 1, 4000
    common.machine()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(flags, folder)
        sides = {"tandem": bench.tandem, **{"lightgbm_" + kind: lambda kind=kind: bench.lightgbm(kind)
                                            for kind in OF_ENCODING}}
        found = common.in_turns(sides, flags.rounds, bench.prepare)
    common.report(f"AUC on the test rows, {flags.rows:,} training rows, {flags.rounds} seeds", found, "tandem", "s")


if __name__ == "__main__":
    sys.exit(main())
