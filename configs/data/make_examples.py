#!/usr/bin/env python3
"""Makes the example data beside it: python3 configs/data/make_examples.py (seeded, no input)."""
import math
import pathlib
import random

HERE = pathlib.Path(__file__).parent


def draw(rng, score):
    return rng.random() < 1 / (1 + math.exp(-score))


def write_libsvm(name, rows, rng, weights):
    with open(HERE / name, "w") as out:
        for _ in range(rows):
            indices = sorted(rng.sample(range(1, len(weights)), 6))
            values = [round(rng.uniform(0.2, 1.8), 2) for _ in indices]
            score = sum(weights[i] * v for i, v in zip(indices, values))
            pairs = " ".join(f"{i}:{v}" for i, v in zip(indices, values))
            out.write(f"{'+1' if draw(rng, score) else '-1'} {pairs}\n")


def write_csv(name, rows, rng, effects):
    with open(HERE / name, "w") as out:
        out.write("age,city,device,visits,minutes,offer,taken\n")
        for _ in range(rows):
            age, visits = rng.randint(18, 80), int(rng.expovariate(0.2))
            minutes = round(rng.expovariate(0.1), 1)
            city, device, offer = (rng.choice(list(effects[k])) for k in ("city", "device", "offer"))
            score = (effects["city"][city] + effects["device"][device] + effects["offer"][offer]
                     + 0.4 * math.log1p(visits) - 0.8)
            shown_age = "?" if rng.random() < 0.1 else age
            shown_city = "" if rng.random() < 0.05 else city
            taken = "yes" if draw(rng, score) else "no"
            out.write(f"{shown_age},{shown_city},{device},{visits},{minutes},{offer},{taken}\n")


def main():
    rng = random.Random(1)
    weights = [rng.gauss(0, 1.2) for _ in range(101)]
    write_libsvm("example_train.libsvm", 800, rng, weights)
    write_libsvm("example_test.libsvm", 200, rng, weights)
    effects = {
        "city": {c: rng.gauss(0, 0.7) for c in ("Arles", "Bergen", "Cusco", "Delft", "Essen")},
        "device": {d: rng.gauss(0, 0.5) for d in ("phone", "tablet", "desktop")},
        "offer": {f"offer{i}": rng.gauss(0, 1.5) for i in range(20)},
    }
    write_csv("example_train.csv", 1000, rng, effects)
    write_csv("example_test.csv", 250, rng, effects)


if __name__ == "__main__":
    main()
