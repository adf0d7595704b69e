"""What pandas and scikit-learn make of a file, for messy_files_test.cc.

stdin: JSON {files, read (arguments of pandas.read_csv), label, positive, numeric, categorical,
missing (by column, or null), standardise}. stdout: JSON {labels, numbers, texts}, a row a list; null
is a missing value. Exit status 77: pandas or scikit-learn is not installed.
"""
import json
import sys

try:
    import pandas
    from sklearn.preprocessing import StandardScaler
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)


def read(case):
    """All files below one another, every cell a text or missing."""
    tables = [
        pandas.read_csv(file, dtype=str, keep_default_na=False,
                        na_values=case["missing"] or [""], **case["read"])
        for file in case["files"]
    ]
    table = pandas.concat(tables, ignore_index=True)
    table.columns = [str(name) for name in table.columns]
    return table


def main():
    case = json.load(sys.stdin)
    table = read(case)
    numbers = table[case["numeric"]].apply(pandas.to_numeric).astype("float64")
    if case["standardise"]:
        numbers[:] = StandardScaler().fit_transform(numbers)
    texts = table[case["categorical"]]
    json.dump({
        "labels": table[case["label"]].isin(case["positive"]).astype(int).tolist(),
        "numbers": numbers.astype(object).where(numbers.notna(), None).values.tolist(),
        "texts": texts.where(texts.notna(), None).values.tolist(),
    }, sys.stdout)


main()
