#!/usr/bin/env python3
"""Draws the figures of a study.

figures.py DIR reads DIR/results.json and writes DIR/figures/NAME.svg and NAME.png, and
DIR/figures/figures.json with the title of each figure and how to read it.

Exit status 3: matplotlib is not installed. tools/study/report_page.cc knows the colours, so that a page
can replace them by its own light and dark ones.
"""
import json
import math
import re
import sys
import textwrap
import traceback
from pathlib import Path

try:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.ticker import FuncFormatter, MaxNLocator
except ImportError:
    sys.exit(3)

PAPER, INK, MUTED, GRID = "#ffffff", "#1b1f24", "#68727d", "#dde2e7"
SERIES = ["#0a6ab0", "#cf5a00", "#07875f", "#b0578d", "#b98300", "#3d95c9", "#6f5fb3", "#84633b",
          "#4f5d68", "#9a8f00"]
MARKERS = "os^DvPX*<>"
DASHES = ["-", "--", "-.", ":"]
WIDTH = 7.2  # inches; a page shows a figure at about this width

matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "tandem", "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"], "font.size": 10, "axes.titlesize": 10,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID,
    "grid.linewidth": 0.8, "text.color": INK, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "legend.frameon": False,
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER,
    "text.parse_math": False,  # a "$" in a name is a "$"
    "lines.linewidth": 1.8, "hatch.linewidth": 0.5, "figure.constrained_layout.use": True,
})


def count(value, _=None):
    """1,250 as "1,250", 1,250,000 as "1.25M"."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:,.4g}"


class Study:
    def __init__(self, results):
        self.results = results
        self.metric = results["study"]["metric"]
        self.target = results["study"].get("target")
        groups = results["groups"]
        tuned = [g for g in groups if g["part"] == "tuned"]
        self.all_groups = groups
        # The part that figures of one part show: the part of the answer.
        self.part = results["study"]["part"]
        self.groups = [g for g in groups if g["part"] == self.part]
        self.both = bool(tuned)
        names = list(dict.fromkeys(g["variation"] for g in groups))
        self.names = names
        self.style = {
            name: {"color": SERIES[i % len(SERIES)], "marker": MARKERS[i % len(MARKERS)],
                   "dash": DASHES[(i // len(SERIES)) % len(DASHES)]}
            for i, name in enumerate(names)}

    def complete(self, group):
        return [run for run in group["runs"] if run["state"] == "complete"]

    def tried(self, group):
        """Runs that count for times to a target. A diverged run counts as one that missed it."""
        return [run for run in group["runs"] if run["state"] in ("complete", "diverged")]

    def values(self, group, column):
        return [run["numbers"][column] for run in self.complete(group) if column in run["numbers"]]

    def has(self, column):
        return any(self.values(group, column) for group in self.all_groups)

    def tuned_words(self):
        return " (tuned)" if self.part == "tuned" else ""


def legend_below(figure, axes, handles=None, labels=None):
    if handles is None:
        handles, labels = axes.get_legend_handles_labels()
    longest = max((len(label) for label in labels), default=1)
    columns = max(1, min(len(labels), int(84 / (longest + 7))))
    figure.legend(handles, labels, loc="lower center", ncol=columns, fontsize=9)
    # The layout reserves no room for a legend of the figure. A long legend makes the figure higher.
    inches = 0.20 * -(-len(labels) // columns) + 0.10
    width, height = figure.get_size_inches()
    height += max(0, inches - 0.7)
    figure.set_size_inches(width, height)
    figure.get_layout_engine().set(rect=(0, inches / height, 1, 1 - inches / height))


def rows_height(rows):
    return 1.1 + 0.42 * rows


def dots(study, column, label, log_from_zero=False):
    """Draws a row for each variation: a dot for each seed, the mean and its 95 % interval.

    If there are tuned runs, too, untuned ones are hollow."""
    both = study.both
    rows = [name for name in study.names
            if any(study.values(g, column) for g in study.all_groups if g["variation"] == name)]
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, rows_height(len(rows)) + (0.3 if both else 0)))
    for y, name in enumerate(rows):
        color = study.style[name]["color"]
        for group in study.all_groups:
            values = study.values(group, column)
            if group["variation"] != name or not values:
                continue
            tuned = group["part"] == "tuned"
            at = y + (0 if not both else 0.17 if tuned else -0.17)
            filled = color if (tuned or not both) else PAPER
            spread = group["spreads"][column]
            if column.startswith("to_target.") and spread["count"] < len(study.tried(group)):
                spread = {"count": 0, "mean": float("nan")}  # without the runs that missed the target the mean misleads
            if spread["count"] > 1:
                axes.plot([spread["low"], spread["high"]], [at, at], color=color, linewidth=2.2,
                          solid_capstyle="butt", zorder=2)
            axes.plot(values, [at] * len(values), linestyle="none", marker="o", markersize=4.5,
                      markerfacecolor=filled, markeredgecolor=color, alpha=0.75, zorder=3)
            axes.plot([spread["mean"]] * 2, [at - 0.13, at + 0.13], color=INK, linewidth=1.6, zorder=4)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    if log_from_zero:
        axes.set_xlim(left=0)
    largest = max(max(study.values(g, column), default=0) for g in study.all_groups)
    if largest >= 1000:
        axes.xaxis.set_major_formatter(FuncFormatter(count))
    if both:
        from matplotlib.lines import Line2D
        marks = [Line2D([], [], linestyle="none", marker="o", markersize=5, markeredgecolor=INK,
                        markerfacecolor=fill) for fill in (PAPER, INK)]
        legend_below(figure, axes, marks, ["untuned", "tuned"])
    return figure


def against_model(study):
    """Draws a row for each variation: seconds of a step, measured (by seed) and by the model."""
    rows = [g for g in study.groups if study.values(g, "steady.step_seconds")
            and study.values(g, "model.step_seconds")]
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, rows_height(len(rows))))
    for y, group in enumerate(rows):
        measured = study.values(group, "steady.step_seconds")
        model = study.values(group, "model.step_seconds")
        middle = float(np.median(model))
        axes.plot([middle / 1.15, middle * 1.15], [y, y], color=GRID, linewidth=9,
                  solid_capstyle="butt", zorder=1)
        ends = [study.values(group, f"model.{end}_seconds")[:1] for end in ("at_once", "one_way")]
        if all(ends) and ends[0][0] > 0:
            axes.plot([end[0] for end in ends], [y, y], color=MUTED, linewidth=1, zorder=1.5,
                      label="the busiest link: all at once, one way at a time" if y == 0 else None)
        axes.plot([middle] * 2, [y - 0.25, y + 0.25], color=INK, linewidth=1.6, zorder=2,
                  label="the model, and 15 % around it" if y == 0 else None)
        axes.plot(measured, [y] * len(measured), linestyle="none", marker="o", markersize=5,
                  color=SERIES[0], alpha=0.8, zorder=3, label="measured" if y == 0 else None)
    axes.set_yticks(range(len(rows)), [group["variation"] for group in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(count))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds a step")
    legend_below(figure, axes)
    return figure


def model_by_workers(study):
    """Draws the seconds of a step by the number of workers, measured and by the model.

    Variations whose names have the same text after the last comma share a panel."""
    groups = [g for g in study.groups if g.get("model_curve")]
    if not groups:
        return None
    panels = {}
    for group in groups:
        name, _, panel = group["variation"].rpartition(", ")
        panels.setdefault(panel if name else "", []).append((name or group["variation"], group))
    names = list(dict.fromkeys(name for panel in panels.values() for name, _ in panel))
    figure, all_axes = plt.subplots(1, len(panels), sharey=True, squeeze=False,
                                    figsize=(WIDTH, 3.4 + 0.1 * len(names)))
    handles = {}
    for axes, (title, members) in zip(all_axes[0], panels.items()):
        for name, group in members:
            at = names.index(name)
            color, dash = SERIES[at % len(SERIES)], DASHES[at % len(DASHES)]
            curve = group["model_curve"]
            handles[name], = axes.plot([p["workers"] for p in curve],
                                       [p["step_seconds"] for p in curve], color=color,
                                       linestyle=dash, linewidth=1.5)
            seen = study.values(group, "steady.step_seconds")
            workers = study.values(group, "workers")
            axes.plot(workers[:len(seen)], seen, linestyle="none", color=color,
                      marker=MARKERS[at % len(MARKERS)], markersize=5, alpha=0.8)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks([4, 64, 1024])
        axes.xaxis.set_major_formatter(FuncFormatter(count))
        axes.yaxis.set_major_formatter(FuncFormatter(count))
        axes.set_title(title)
        axes.set_xlabel("workers")
    all_axes[0][0].set_ylabel("seconds a step")
    legend_below(figure, all_axes[0][0], list(handles.values()), list(handles))
    return figure


DOTS = ("A dot is one seed, the black tick the mean, the bar its 95 % interval. {} "
        "Bars that overlap do not say that there is no difference: effects are paired by seed, "
        "below.")


def mean_curve(curves):
    low = max(c[0][0] for c in curves)
    high = min(c[0][-1] for c in curves)
    if high <= low:
        return None
    grid = np.linspace(low, high, 80)
    return grid, np.array([np.interp(grid, x, y) for x, y in curves])


def progress(study, x, x_label, key, y_label):
    """Draws curves over samples or seconds: the mean of the seeds, in a band from min to max.

    Without a common part of the seeds there is no mean. A curve of one point is a mark. The legend says
    why a variation is not drawn."""
    figure, axes = plt.subplots(figsize=(WIDTH, 4.1))
    drawn = False
    for group in study.groups:
        curves = []
        for run in study.complete(group):
            points = sorted((p[x], p[2]) for p in run[key])
            if points:
                curves.append(([p[0] for p in points], [p[1] for p in points]))
        name = group["variation"]
        if not curves:
            why = "not evaluated while it trained" if study.complete(group) else "no run is complete"
            axes.plot([], [], linestyle="none", label=f"{name}: {why}")
            continue
        drawn = True
        style = study.style[name]
        mean = mean_curve(curves)
        for at, (xs, ys) in enumerate(curves):
            axes.plot(xs, ys, color=style["color"], linewidth=0.6, alpha=0.35 if mean else 0.8,
                      marker=style["marker"] if len(xs) == 1 else None, markersize=5,
                      label=name if at == 0 and mean is None else None)
        if mean is None:
            continue
        grid, values = mean
        axes.fill_between(grid, values.min(axis=0), values.max(axis=0), color=style["color"],
                          alpha=0.14, linewidth=0)
        axes.plot(grid, values.mean(axis=0), color=style["color"], linestyle=style["dash"],
                  marker=style["marker"], markevery=0.2, markersize=5, label=name)
    if not drawn:
        plt.close(figure)
        return None
    if key == "quality" and study.target is not None:
        axes.axhline(study.target, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        axes.annotate(f"target {study.target:g}", (1, study.target), xycoords=("axes fraction", "data"),
                      xytext=(-2, 3), textcoords="offset points", color=MUTED, fontsize=9, ha="right")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(count))
    if axes.get_legend_handles_labels()[1]:
        legend_below(figure, axes)
    return figure


def effects(study):
    """Draws the difference from the baseline, and its interval."""
    rows = [c for c in study.results["comparisons"]
            if c["measure"] == study.metric["label"] and c["part"] == study.part and c["seeds"] > 1]
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, rows_height(len(rows))))
    ratio = rows[0]["ratio"]
    for y, row in enumerate(rows):
        color = study.style[row["variation"]]["color"] if row["resolved"] else MUTED
        axes.plot([row["low"], row["high"]], [y, y], color=color, linewidth=2.2,
                  solid_capstyle="butt")
        axes.plot([row["mean"]], [y], marker="o", markersize=7, markeredgecolor=color,
                  markerfacecolor=color if row["resolved"] else PAPER)
    axes.axvline(1 if ratio else 0, color=INK, linewidth=1)
    axes.set_yticks(range(len(rows)), [row["variation"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    better = "right" if study.metric["higher_is_better"] else "left"
    what = "times that of" if ratio else "minus that of"
    axes.set_xlabel(textwrap.fill(f"{study.metric['label']} {what} {study.results['study']['baseline']} "
                                  f"(better: to the {better})", 52))
    return figure


def against_staleness(study):
    """Draws the quality of each run over its measured staleness."""
    column = study.metric["column"]
    figure, axes = plt.subplots(figsize=(WIDTH, 3.9))
    drawn = 0
    for group in study.groups:
        points = [(run["numbers"]["staleness.version_mean"], run["numbers"][column])
                  for run in study.complete(group)
                  if column in run["numbers"] and "staleness.version_mean" in run["numbers"]]
        if not points:
            continue
        drawn += 1
        style = study.style[group["variation"]]
        axes.plot([p[0] for p in points], [p[1] for p in points], linestyle="none", markersize=6.5,
                  marker=style["marker"], markerfacecolor=style["color"], markeredgecolor=PAPER,
                  markeredgewidth=0.6, label=group["variation"])
    if drawn < 2:
        plt.close(figure)
        return None
    axes.set_xlabel("mean version staleness of the tables, as measured (updates)")
    axes.set_ylabel(study.metric["label"])
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    legend_below(figure, axes)
    return figure


KINDS = [("staleness.version_mean", "version staleness\nmean, updates"),
         ("staleness.dense_version_mean", "the same of dense\nmean, steps or sums"),
         ("staleness.row_mean", "row staleness\nmean, updates"),
         ("staleness.clock_gap_max", "clock gap\nlargest, steps"),
         ("staleness.in_flight_mean", "in-flight depth\nmean, batches")]


def staleness(study):
    kinds = [kind for kind in KINDS if study.has(kind[0])]
    if not kinds:
        return None
    names = [g["variation"] for g in study.groups]
    figure, panels = plt.subplots(1, len(kinds), sharey=True, squeeze=False,
                                  figsize=(WIDTH, rows_height(len(names)) + 0.2))
    for axes, (column, label) in zip(panels[0], kinds):
        for y, group in enumerate(study.groups):
            values = study.values(group, column)
            if not values:
                continue
            color = study.style[group["variation"]]["color"]
            mean = sum(values) / len(values)
            axes.plot([0, mean], [y, y], color=color, linewidth=5, solid_capstyle="butt", alpha=0.35)
            axes.plot(values, [y] * len(values), linestyle="none", marker="o", markersize=4.5,
                      color=color)
        axes.set_xlim(left=0)
        if axes.get_xlim()[1] < 1:
            axes.set_xlim(right=1)
        axes.set_xlabel(label)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    panels[0][0].set_yticks(range(len(names)), names)
    panels[0][0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def tables_of(study, wanted):
    """The tables for which `wanted` holds in some complete run."""
    names = {}
    for group in study.groups:
        for run in study.complete(group):
            for name, table in run["staleness"].items():
                if wanted(table):
                    names[name] = True
    return list(names)


def shares_of(runs, table, kind, rank=None):
    """Bucket -> share of the values, over all runs; for one worker (rank) or all workers."""
    sums = {}
    for run in runs:
        found = run["staleness"].get(table, {})
        if rank is not None:
            workers = found.get("by_worker", [])
            found = workers[rank] if rank < len(workers) else {}
        for low, n in found.get(kind, {}).get("histogram", []):
            sums[low] = sums.get(low, 0) + n
    total = sum(sums.values())
    return {low: n / total for low, n in sums.items()}


def bucket_label(low, unit):
    """The label of a bucket: where it begins, with a unit for seconds."""
    if unit != "s":
        return count(low)
    for size, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if low >= size:
            return f"{low / size:.3g} {name}"
    return "0"


def coarse(shares, unit):
    """Joins the buckets of times to octaves, since they are finer than a figure can show."""
    if unit != "s":
        return shares
    sums = {}
    for low, share in shares.items():
        octave = 0 if low < 1e-6 else 2.0 ** math.floor(math.log2(low * 1e6 + 1e-9)) * 1e-6
        sums[octave] = sums.get(octave, 0) + share
    return sums


def histogram(study, kind, label, unit=""):
    """Draws a panel for each variation and table: shares by bucket, and a line per worker."""
    tables = tables_of(study, lambda t: t.get(kind, {}).get("count", 0) > 0)
    groups = [g for g in study.groups
              if any(shares_of(study.complete(g), t, kind) for t in tables)]
    if not groups:
        return None
    tables = [t for t in tables if any(shares_of(study.complete(g), t, kind) for g in groups)]
    shown = {(g["variation"], t): coarse(shares_of(study.complete(g), t, kind), unit)
             for g in groups for t in tables}
    lows = sorted({low for shares in shown.values() for low in shares})
    at = {low: i for i, low in enumerate(lows)}
    figure, panels = plt.subplots(len(groups), len(tables), sharex=True, sharey=True, squeeze=False,
                                  figsize=(WIDTH, 1.2 + 0.9 * len(groups)))
    for row, group in zip(panels, groups):
        for axes, table in zip(row, tables):
            color = study.style[group["variation"]]["color"]
            shares = shown[group["variation"], table]
            axes.bar([at[low] for low in shares], list(shares.values()), width=0.86, color=color)
            if not shares:
                axes.set_axis_off()
                continue
            runs = study.complete(group)
            workers = max((len(run["by_worker"]) for run in runs), default=0)
            for rank in range(workers if workers <= 16 else 0):
                of_worker = coarse(shares_of(runs, table, kind, rank), unit)
                axes.plot(range(len(lows)), [of_worker.get(low, 0) for low in lows], color=INK,
                          linewidth=1.1, alpha=0.8)
            axes.set_ylim(0, 1)
            axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"], fontsize=8)
            axes.grid(axis="x", visible=False)
            axes.annotate(group["variation"], (1, 1), xycoords="axes fraction", xytext=(-2, -2),
                          va="top", ha="right", textcoords="offset points", fontsize=9)
    for axes, table in zip(panels[0], tables):
        axes.set_title(table)
    every = max(1, -(-len(lows) * len(tables) // (12 if unit == "s" else 20)))
    for column in panels.T:
        lowest = [axes for axes in column if axes.axison][-1]
        lowest.set_xticks(range(0, len(lows), every),
                          [bucket_label(low, unit) for low in lows[::every]], fontsize=8)
        lowest.tick_params(labelbottom=True)
    figure.supxlabel(label, fontsize=10)
    return figure


def popularity(study):
    """Draws mean row staleness over the earlier updates of a row, a line per variation."""
    tables = tables_of(study, lambda t: t.get("row_staleness_by_popularity"))
    if not tables:
        return None
    figure, panels = plt.subplots(1, len(tables), sharey=True, squeeze=False, figsize=(WIDTH, 3.4))
    for axes, table in zip(panels[0], tables):
        for group in study.groups:
            values, sums = {}, {}
            for run in study.complete(group):
                listed = run["staleness"].get(table, {}).get("row_staleness_by_popularity", [])
                for fewest, n, mean, _ in listed:
                    values[fewest] = values.get(fewest, 0) + n
                    sums[fewest] = sums.get(fewest, 0) + n * mean
            if not values:
                continue
            style = study.style[group["variation"]]
            at = sorted(values)
            axes.plot([1 + math.log2(x) if x else 0 for x in at], [sums[x] / values[x] for x in at],
                      color=style["color"], marker=style["marker"], markersize=4.5,
                      linestyle=style["dash"], label=group["variation"])
        axes.set_title(table)
        most = int(axes.get_xlim()[1])
        ticks = range(0, most + 1, max(1, most // 6))
        axes.set_xticks(ticks, [count(2 ** (t - 1)) if t else "0" for t in ticks])
        axes.set_xlabel("updates that the row had had")
    panels[0][0].set_ylabel("mean row staleness (updates)")
    panels[0][0].set_ylim(bottom=0)
    handles, labels = panels[0][0].get_legend_handles_labels()
    legend_below(figure, panels[0][0], handles, labels)
    return figure


def gradients(study):
    """Draws what updates missed over their staleness, a line per variation: how far the row had
    moved since its read, relative to the row, and the cosine of that move and the update."""
    tables = tables_of(study, lambda t: t.get("gradients", {}).get("by_staleness"))
    if not tables:
        return None
    figure, panels = plt.subplots(2, len(tables), sharex=True, sharey="row", squeeze=False,
                                  figsize=(WIDTH, 5.2))
    for column, table in zip(panels.T, tables):
        for group in study.groups:
            rows, sums = {}, {"distance": {}, "cosine": {}}
            for run in study.complete(group):
                listed = run["staleness"].get(table, {}).get("gradients", {})
                for cell in listed.get("by_staleness", []):
                    for kind, weight in (("distance", "rows"), ("cosine", "missed_rows")):
                        key = kind, cell["from"]
                        rows[key] = rows.get(key, 0) + cell[weight]
                        sums[kind][cell["from"]] = (sums[kind].get(cell["from"], 0) +
                                                    cell[weight] * cell.get(kind, 0))
            style = study.style[group["variation"]]
            for axes, kind in zip(column, ("distance", "cosine")):
                at = sorted(low for low in sums[kind] if rows[kind, low])
                axes.plot([1 + math.log2(x) if x else 0 for x in at],
                          [sums[kind][x] / rows[kind, x] for x in at], color=style["color"],
                          marker=style["marker"], markersize=4.5, linestyle=style["dash"],
                          label=group["variation"])
        column[0].set_title(table)
        most = int(column[1].get_xlim()[1])
        ticks = range(0, most + 1, max(1, most // 6))
        column[1].set_xticks(ticks, [count(2 ** (t - 1)) if t else "0" for t in ticks])
        column[1].set_xlabel("version staleness of the update")
    panels[0][0].set_ylabel("missed change / row")
    panels[0][0].set_ylim(bottom=0)
    panels[1][0].set_ylabel("cosine with the update")
    panels[1][0].set_ylim(-1, 1)
    handles, labels = panels[0][0].get_legend_handles_labels()
    legend_below(figure, panels[1][0], handles, labels)
    return figure


def matrix_of(study, group):
    """Element [w][v]: seconds that reads of worker w waited for worker v, mean over seeds."""
    found = [[worker.get("waited_for", []) for worker in run["by_worker"]]
             for run in study.complete(group) if run["by_worker"]]
    found = [np.array(m) for m in found if m and all(len(row) == len(m) for row in m)]
    return np.mean(found, axis=0) if found and len({m.shape for m in found}) == 1 else None


def waiting(study):
    """Draws which worker waited for which: a square for each pair of workers."""
    matrices = [(g["variation"], m) for g in study.groups
                if (m := matrix_of(study, g)) is not None and len(m) > 1 and m.max() > 0]
    if not matrices:
        return None
    workers = max(len(m) for _, m in matrices)
    columns = min(len(matrices), 3)
    rows = -(-len(matrices) // columns)
    figure, panels = plt.subplots(rows, columns, squeeze=False,
                                  figsize=(WIDTH, 0.3 + rows * (WIDTH / 3 + 0.35)))
    largest = max(m.max() for _, m in matrices)
    for axes in panels.flat[len(matrices):]:
        axes.set_visible(False)
    for axes, (name, matrix) in zip(panels.flat, matrices):
        axes.set_title(f"{name}: {count(matrix.sum())} s", fontsize=9)
        for w, row in enumerate(matrix):  # squares instead of an image, so that a page can recolour them
            for v, seconds in enumerate(row):
                axes.add_patch(plt.Rectangle((v - 0.46, w - 0.46), 0.92, 0.92, edgecolor=GRID,
                                             linewidth=0.6, facecolor=SERIES[1],
                                             alpha=0.06 + 0.8 * seconds / largest))
                if workers <= 8 and seconds > 0:
                    axes.annotate(f"{seconds:.2g}", (v, w), ha="center", va="center", fontsize=8)
        axes.set_xlim(-0.5, len(matrix) - 0.5)
        axes.set_ylim(len(matrix) - 0.5, -0.5)
        axes.set_aspect("equal")
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(min(workers, 8), integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(min(workers, 8), integer=True))
        axes.set_xlabel("for worker", fontsize=9)
        axes.set_ylabel("worker", fontsize=9)
    return figure


def data_shares(study):
    """Draws each worker's share of the samples, and how much of it was dropped."""
    shown = []
    for group in study.groups:
        runs = [run["by_worker"] for run in study.complete(group) if run["by_worker"]]
        if not runs or len({len(run) for run in runs}) > 1:
            continue
        share = np.mean([[w.get("share", 0) for w in run] for run in runs], axis=0)
        lost = np.mean([[w.get("share", 0) * w.get("dropped_share", 0) for w in run]
                        for run in runs], axis=0)
        shown.append((group["variation"], share, lost))
    alike = all(abs(share - 1 / len(share)).max() < 0.005 and not lost.any() for _, share, lost in shown)
    if not shown or alike:  # equal shares, nothing dropped
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, rows_height(len(shown)) + 0.2))
    for y, (name, share, lost) in enumerate(shown):
        height = 0.76 / len(share)
        for rank, (of_all, gone) in enumerate(zip(share, lost)):
            at = y - 0.38 + (rank + 0.5) * height
            axes.barh(at, of_all - gone, height=0.86 * height, color=study.style[name]["color"])
            axes.barh(at, gone, left=of_all - gone, height=0.86 * height, facecolor=PAPER,
                      edgecolor=study.style[name]["color"], hatch="////", linewidth=0.6)
        axes.plot([1 / len(share)] * 2, [y - 0.42, y + 0.42], color=INK, linewidth=1)
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.3g} %"))
    axes.set_xlabel("share of all samples, a bar a worker")
    return figure


def bound_of(policy):
    """The bound of an "SSP(4)" in the policies of a variation; None if there is none."""
    found = re.search(r"\bSSP\((\d+)\)", policy)
    return int(found.group(1)) if found else None


def against_bound(study):
    """Draws throughput over the bound of SSP. None if variations are compared in several sets."""
    if len({group["among"] for group in study.groups}) > 1:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
    points = {}
    for group in study.groups:
        values = study.values(group, "samples_per_second")
        bound = bound_of(group["policy"])
        if not values:
            continue
        if bound is not None:
            points.setdefault(bound, []).extend(values)
        elif re.search(r"\b(BSP|ASP)\b", group["policy"]):
            style = study.style[group["variation"]]
            mean = sum(values) / len(values)
            axes.axhline(mean, color=style["color"], linestyle=(0, (4, 3)), linewidth=1.2)
            axes.annotate(group["variation"], (1, mean), xycoords=("axes fraction", "data"),
                          xytext=(-2, 3), textcoords="offset points", ha="right", fontsize=9,
                          color=style["color"])
    if len(points) < 2:
        plt.close(figure)
        return None
    bounds = sorted(points)
    for bound in bounds:
        axes.plot([bound] * len(points[bound]), points[bound], linestyle="none", marker="o",
                  markersize=4.5, color=SERIES[0], alpha=0.7)
    axes.plot(bounds, [sum(points[b]) / len(points[b]) for b in bounds], color=SERIES[0])
    axes.set_xlabel("bound of SSP (steps)")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    axes.set_xticks(bounds)
    axes.yaxis.set_major_formatter(FuncFormatter(count))
    return figure


def traffic(study):
    """Draws the bytes per sample by kind, stacked."""
    prefix = "bytes_per_sample."
    kinds = sorted({column[len(prefix):] for group in study.groups for column in group["spreads"]
                    if column.startswith(prefix) and column != prefix + "all"})
    if not kinds:
        return None
    rows = [g for g in study.groups if g["spreads"]]
    figure, axes = plt.subplots(figsize=(WIDTH, rows_height(len(rows)) + 0.35))
    left, total = np.zeros(len(rows)), np.zeros(len(rows))
    hatches = ["", "//", "..", "xx", "\\\\", "++", "oo", "--"]
    for i, kind in enumerate(kinds):
        means = np.array([g["spreads"].get(prefix + kind, {}).get("mean", 0) for g in rows])
        axes.barh(range(len(rows)), means, left=left, height=0.62, label=kind,
                  color=SERIES[i % len(SERIES)], edgecolor=PAPER, linewidth=0.6,
                  hatch=hatches[i % len(hatches)])
        left += means
        if kind != "within_worker":
            total += means
    for y in range(len(rows)):
        axes.annotate(count(total[y]), (left[y], y), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [g["variation"] for g in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, max(left) * 1.12)
    axes.xaxis.set_major_formatter(FuncFormatter(count))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("bytes a sample")
    legend_below(figure, axes)
    return figure


def all_figures(study):
    """Yields (name, title, how to read it, function) in the order of the page.

    The function draws the figure, or returns None if there is nothing to draw."""
    label = study.metric["label"]
    better = "More is better." if study.metric["higher_is_better"] else "Less is better."
    words = study.tuned_words()
    curves = any(len(run["quality"]) > 1 for g in study.groups for run in g["runs"])
    band = ("A line is the mean of the seeds, its band reaches from the lowest to the highest of "
            "them. ")
    yield ("quality", f"{label} at the end", DOTS.format(better),
           lambda: dots(study, study.metric["column"], label))
    yield ("effects", f"{label} against {study.results['study']['baseline']}{words}",
           "Mean and 95 % interval of the difference, seed by seed. Where the interval crosses the "
           "line the dot is hollow: the difference is not resolved, and nothing may be said of which "
           "is better.", lambda: effects(study))
    if curves:
        rows, curve = "", label
        if study.metric.get("curve_rows") == "training":
            rows = "Of training rows, each scored before it was trained on. "
            curve = f"{label} of training rows"
        elif study.metric.get("curve_rows") == "validation":
            rows = "Of validation rows, by which the model that is kept is chosen. "
            curve = f"{label} of validation rows"
        yield ("quality-samples", f"{curve} against samples{words}",
               rows + band + "At the same height to the right, a variation needs more samples for the same "
               "quality.", lambda: progress(study, 1, "samples trained on", "quality", curve))
        yield ("quality-seconds", f"{curve} against seconds{words}",
               rows + band + "This is what a user waits for: it joins the loss in quality a sample with the "
               "gain in speed.", lambda: progress(study, 0, "seconds", "quality", curve))
    else:
        yield ("loss-samples", f"Training loss against samples{words}", band +
               "Each row counts before it trains.",
               lambda: progress(study, 1, "samples trained on", "loss", "training loss"))
        yield ("loss-seconds", f"Training loss against seconds{words}", band +
               "Each row counts before it trains.",
               lambda: progress(study, 0, "seconds", "loss", "training loss"))
    if study.has("to_target.seconds") and study.target is not None:
        yield ("target-seconds", f"Seconds to {label} {study.target:g}",
               DOTS.format("Less is better; a run that did not get there has no dot."),
               lambda: dots(study, "to_target.seconds", "seconds", True))
        yield ("target-samples", f"Samples to {label} {study.target:g}",
               DOTS.format("Less is better; a run that did not get there has no dot."),
               lambda: dots(study, "to_target.samples", "samples", True))
    if study.metric["name"] != "samples_per_second":
        yield ("throughput", "Samples a second", DOTS.format("More is better."),
               lambda: dots(study, "samples_per_second", "samples/s", True))
    yield ("model", f"A step, measured and by the model{words}",
           "A dot is one seed, the black tick what the model of tandem plan says, from what steps computed "
           "in the run and the links' rate; the grey bar is 15 % to both sides.",
           lambda: against_model(study))
    yield ("model-workers", f"A step by the number of workers{words}",
           "Lines are the model, marks were measured. One server stays one; where there are several, there "
           "are as many more as there are workers more. A line that rises is a way that "
           "does not scale.", lambda: model_by_workers(study))
    yield ("throughput-bound", f"Samples a second against the bound of SSP{words}",
           "A dot is one run, the line the mean. Where it is flat, a looser bound buys no speed.",
           lambda: against_bound(study))
    yield ("staleness", f"Staleness as measured{words}",
           "Bars are means over seeds, dots single seeds. Version staleness: updates applied between "
           "the read of a row's range and the update computed from it; row staleness (if recorded): "
           "those of them that touched the row. Clock gap: how far a worker "
           "was ahead of the slowest. In-flight depth: batches begun and not yet acknowledged.",
           lambda: staleness(study))
    bars = ("Bars are the share of all {}, thin lines those of single workers; a column is a table. "
            "Buckets begin at the number below them and grow with it. ")
    yield ("staleness-histogram", f"Updates by version staleness{words}",
           bars.format("updates") + "A long tail to the right is what a mean does not show; lines "
           "that lie apart say that workers are not equally stale.",
           lambda: histogram(study, "version_staleness", "version staleness of an update"))
    yield ("row-staleness-histogram", f"Rows of updates by row staleness{words}",
           bars.format("rows in updates") + "Only updates that touched the row itself are counted: "
           "what lies at 0 was computed from the row as it still was.",
           lambda: histogram(study, "row_staleness", "updates of the row since it was read"))
    yield ("row-popularity", f"Row staleness by popularity{words}",
           "Rows are grouped by how often they had been updated before. Rare rows are hardly ever "
           "stale, whatever the policy: a line that rises late says that asynchrony reaches only "
           "the few most popular rows.", lambda: popularity(study))
    yield ("gradients", f"What stale gradients miss{words}",
           "Over sampled rows. Above: the change of a row between its read and the update, relative "
           "to the row. Below: the cosine of that change and the change by the update. Near 1 the "
           "worker repeats what others have done; near 0 it learned something else.",
           lambda: gradients(study))
    yield ("age-histogram", f"Updates by age{words}",
           bars.format("updates") + "Age is the time from the read of a row to the application of "
           "what was computed from it.",
           lambda: histogram(study, "age", "age of an update", "s"))
    yield ("waiting", f"Who waited for whom{words}",
           "Seconds that reads of a worker (row) lay parked until an update of another (column) "
           "freed them, mean over seeds. A dark column is a worker that holds up all others; on "
           "the diagonal are reads, sent ahead, that waited for the worker's own update. A worker "
           "that reads ahead may have computed meanwhile. Variations in which nobody waited are left out.", lambda: waiting(study))
    yield ("data-shares", f"Share of the data, by worker{words}",
           "What each worker computed; hatched: updates that a policy dropped. The upright line is "
           "an equal share: a slow worker falls short of it where nobody waits, and its data "
           "counts for less.", lambda: data_shares(study))
    yield ("quality-staleness", f"{label} against measured staleness{words}",
           "A mark is one run. If quality fell with staleness, marks would lie along a line; a cloud "
           "says that staleness of this size does not decide.", lambda: against_staleness(study))
    yield ("traffic", f"Bytes a sample, by kind{words}",
           "Mean over seeds. pull: keys asked for; rows: the answers; push: gradients to servers; "
           "ack: their answers; refresh: rows that workers keep, sent anew; collective: dense "
           "gradients between workers; within_worker: rows that a worker holds itself, which cross no socket and are not in the sum.", lambda: traffic(study))
    memory = [value for g in study.all_groups for value in study.values(g, "memory_bytes")]
    if memory and max(memory) > 1.01 * min(memory):  # otherwise a column of the table is enough
        yield ("memory", "Memory of the tables, where they are", DOTS.format("Less is better."),
               lambda: dots(study, "memory_bytes", "bytes", True))


def main():
    folder = Path(sys.argv[1])
    results = json.loads((folder / "results.json").read_text())
    out = folder / "figures"
    out.mkdir(exist_ok=True)
    for old in list(out.glob("*.svg")) + list(out.glob("*.png")):
        old.unlink()
    listed = []
    for name, title, reading, draw in all_figures(Study(results)):
        try:  # a figure that fails must not cost the other figures
            figure = draw()
            if figure is None:
                continue
            figure.savefig(out / f"{name}.svg", metadata={"Date": None, "Creator": "Tandem"})
            figure.savefig(out / f"{name}.png", dpi=160)
            listed.append({"name": name, "title": title, "read": reading})
        except Exception:
            print(f"{name} cannot be drawn:", file=sys.stderr)
            traceback.print_exc()
            listed.append({"name": name, "title": title, "read": "It could not be drawn; "
                           "figures/log.txt says why."})
        finally:
            plt.close("all")
    (out / "figures.json").write_text(json.dumps(listed, indent=2) + "\n")


if __name__ == "__main__":
    main()
