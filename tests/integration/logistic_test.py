"""Logistic regression on three ordinary files, each from a job of twelve lines, reaches what scikit-learn's reaches on
the same rows. Skipped (exit status 77) where pandas or scikit-learn is not installed.

Arguments: the source folder, the build folder.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import pandas
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

SOURCE, BUILD = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
ROWS, TEST_ROWS = 6000, 2000
SECONDS = 120


def logit(random, score):
    return random.random(len(score)) < 1 / (1 + numpy.exp(-score))


def census(random, rows):
    """Blanks after the commas, '?' for what is missing, labels in words; capital far from unit scale."""
    age, capital = random.integers(17, 90, rows), numpy.exp(random.normal(7, 2, rows)).round()
    work = random.choice(["Private", "State-gov", "Self-emp", "?"], rows, p=[.6, .2, .15, .05])
    school = random.choice(["Bachelors", "HS-grad", "Masters", "11th"], rows)
    score = (.04 * (age - 45) + .8 * (school == "Masters") + .4 * (work == "Self-emp") - .9 * (school == "11th")
             + .5 * (numpy.log(capital) - 7) / 2)
    label = numpy.where(logit(random, score), ">50K", "<=50K")
    lines = [f"{a}, {w}, {s}, {c:.0f}, {y}" for a, w, s, c, y in zip(age, work, school, capital, label)]
    return "age,workclass,education,capital,income", lines


def churn(random, rows):
    """Semicolons, quotes, CRLF, labels True and False; numbers in exponents."""
    months, paid = random.integers(0, 72, rows), random.gamma(2, 300, rows)
    plan = random.choice(['a "basic" one', "plus; more", "none"], rows)
    score = -.03 * (months - 30) + .9 * (plan == "none") - .4 * (plan == "plus; more") - .001 * (paid - 600)
    label = logit(random, score)
    quoted = ['"' + text.replace('"', '""') + '"' for text in plan]
    lines = [f"{q};{m};{p:.6e};{y}\r" for q, m, p, y in zip(quoted, months, paid, label)]
    return "plan;months;paid;left\r", lines


def visits(random, rows):
    """Tabs, labels 1 and 0, many values of one column; a tenth of the numbers are not there."""
    city = random.integers(0, 40, rows)
    minutes, age = random.normal(30, 12, rows), random.normal(1960, 15, rows)
    weight = numpy.random.default_rng(3).normal(0, .7, 40)
    score = weight[city] + .05 * (minutes - 30) - .02 * (age - 1960)
    known = random.random(rows) > .1
    score = numpy.where(known, score, weight[city] - .02 * (age - 1960))
    lines = [f"{int(y)}\tcity {c}\t{f'{m:.2f}' if k else 'NA'}\t{a:.1f}"
             for y, c, m, k, a in zip(logit(random, score), city, minutes, known, age)]
    return "taken\tcity\tminutes\tborn", lines


FILES = {
    census: dict(columns='delimiter: "," trim: true label: "income" positive: ">50K" negative: "<=50K" missing: "?"',
                 numeric=["age", "capital"], categorical=["workclass", "education"],
                 read=dict(sep=",", skipinitialspace=True), label="income", positive=">50K"),
    churn: dict(columns='delimiter: ";" label: "left" positive: "True" negative: "False"',
                numeric=["months", "paid"], categorical=["plan"],
                read=dict(sep=";"), label="left", positive="True"),
    visits: dict(columns='delimiter: "\\t" label: "taken" positive: "1" negative: "0" missing: "NA"',
                 numeric=["minutes", "born"], categorical=["city"],
                 read=dict(sep="\t"), label="taken", positive="1"),
}

JOB = """
cluster {{ workers: 2 servers: 1 }}
data {{
  format: DELIMITED train: "{train}" test: "{test}"
  columns {{ header: true {columns}
            numeric: {numeric} categorical: {categorical} }}
}}
table {{ name: "ids" dim: 1 initializer {{ kind: CONSTANT }} optimizer {{ kind: ADAGRAD learning_rate: 0.1 }} }}
dense {{ optimizer {{ kind: ADAGRAD learning_rate: 0.1 }} }}
policy {{ kind: BSP }}
model {{ logistic_regression {{}} }}
train {{ batch_size: 64 epochs: 20 }}
"""


def of_tandem(folder, spec):
    text = JOB.format(train=folder / "train", test=folder / "test", columns=spec["columns"],
                      numeric=json.dumps(spec["numeric"]), categorical=json.dumps(spec["categorical"]))
    assert len(text.strip().splitlines()) <= 12, text
    (folder / "job.textproto").write_text(text, encoding="utf-8")
    run = subprocess.run([BUILD / "bin" / "tandem", "run", folder / "job.textproto", "--out", folder / "out"], cwd=SOURCE,
                         capture_output=True, text=True, timeout=SECONDS)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))["eval"]


def of_scikit_learn(folder, spec):
    def read(name):
        table = pandas.read_csv(folder / name, dtype=str, keep_default_na=False, na_values=["", "?", "NA"], **spec["read"])
        rows = table[spec["numeric"] + spec["categorical"]].copy()
        rows[spec["categorical"]] = rows[spec["categorical"]].fillna("(missing)")
        rows[spec["numeric"]] = rows[spec["numeric"]].astype(float)
        return rows, (table[spec["label"]] == spec["positive"]).astype(int)

    train, label = read("train")
    means = train[spec["numeric"]].mean()  # a missing number is an average one: 0 once it is standardised
    columns = ColumnTransformer([("numbers", StandardScaler(), spec["numeric"]),
                                 ("texts", OneHotEncoder(handle_unknown="ignore"), spec["categorical"])])
    model = make_pipeline(columns, LogisticRegression(max_iter=1000)).fit(train.fillna(means), label)
    test, truth = read("test")
    scores = model.predict_proba(test.fillna(means))[:, 1]
    return {"auc": roc_auc_score(truth, scores), "logloss": log_loss(truth, scores)}


def main():
    worse = []
    for seed, (make, spec) in enumerate(FILES.items()):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            header, lines = make(numpy.random.default_rng(seed), ROWS + TEST_ROWS)
            for part, rows in (("train", lines[:ROWS]), ("test", lines[ROWS:])):
                (folder / part).write_text("\n".join([header] + rows) + "\n", encoding="utf-8", newline="")
            ours, theirs = of_tandem(folder, spec), of_scikit_learn(folder, spec)
        assert ours["samples"] == TEST_ROWS, ours
        print(f"{make.__name__}: AUC {ours['auc']:.4f}, scikit-learn {theirs['auc']:.4f}; "
              f"logloss {ours['logloss']:.4f}, {theirs['logloss']:.4f}")
        assert theirs["auc"] > .6, "there is something to learn"
        if math.isnan(ours["auc"]) or ours["auc"] < theirs["auc"] - .003 or ours["logloss"] > theirs["logloss"] + .005:
            worse.append(make.__name__)
    sys.exit(f"worse than scikit-learn on {', '.join(worse)}" if worse else 0)


if __name__ == "__main__":
    main()
