#!/usr/bin/env python3
"""Draws bench/results/gpu_decode.csv beside the best of gpu_peers.csv, with gnuplot.

    python3 bench/plot_gpu.py [--results FOLDER] [--to FILE.svg]

One group of bars a shape: the share of a plain read of as many bytes. Bars are pages of 16, dots the other layouts, and
hollow bars the best that others reach in any layout, in the same bits.
"""

import argparse
import csv
import pathlib
import subprocess
import sys

SHAPE = ("batch", "context", "q_heads", "kv_heads")
# The formats that are compared: ours, a title, a colour, and others' of as many bits.
FORMATS = [
    ("bf16", "bf16", "#3b6fb6", ("bf16",)),
    ("e4m3", "fp8 (e4m3)", "#c8553d", ("e4m3",)),
    ("q8", "int8", "#3f8f5b", ("int8",)),
    ("q4", "int4 (others: nvfp4)", "#8a5fb0", ("nvfp4",)),
]
LAYOUTS = [("contiguous", 4), ("paged64", 6), ("paged1", 8)]
BAR, GAP = 1.0, 1.4


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [row for row in rows if row["queries"] == "1" and row["of_read"] and row.get("check", "ok") == "ok"]


def shape_of(row):
    return tuple(int(row[column]) for column in SHAPE)


def shares(rows, shape, layout=None, formats=()):
    return [
        float(row["of_read"])
        for row in rows
        if shape_of(row) == shape and row["format"] in formats and layout in (None, row["layout"])
        if row.get("dim", "128") == "128"
    ]


def points(ours, theirs):
    """(plot's name, [(x, share)]), and (middle of the group, its shape)."""
    shapes = list(dict.fromkeys(shape_of(row) for row in ours if row["part"] == "shapes"))
    plots, groups, x = {}, [], 0.0
    for shape in shapes:
        first = x
        for ours_name, _, _, their_names in FORMATS:
            for layout in ("paged16", *(layout for layout, _ in LAYOUTS)):
                for share in shares(ours, shape, layout, (ours_name,)):
                    plots.setdefault((ours_name, layout), []).append((x, share))
            best = max(shares(theirs, shape, None, their_names), default=None)
            if best is not None:
                plots.setdefault((ours_name, "others"), []).append((x + BAR, best))
            x += 2 * BAR
        groups.append(((first + x - BAR) / 2, shape))
        x += GAP
    return plots, groups, x


def commands(plots, groups, end, gpu, to):
    tics = ", ".join(f'"{b} x {c:,}\\n{q}/{kv} heads" {x:.2f}' for x, (b, c, q, kv) in groups)
    lines = [
        "set terminal svg dynamic background rgb 'white' font 'sans-serif,12' size 1120,560",
        f"set output '{to}'",
        "set grid y lc rgb '#e4e4e4' lt 1 lw 1",
        "set border 3 lc rgb '#555555'",
        "set tics nomirror scale 0.5",
        f"set title \"Decode on one {gpu}: share of a plain read of the same bytes, %\\n"
        "filled: kvilt, pages of 16; hollow: the best of others, any layout\"",
        f"set xtics ({tics})",
        "set bmargin 6",
        f"set xrange [{-1.5 * BAR}:{end}]",
        "set yrange [0:108]",
        "set ytics 20",
        f"set boxwidth {0.86 * BAR}",
        "set key bottom center at screen 0.5, 0.02 horizontal width 2",
    ]
    drawn, data = [], []

    def add(key, title, style):
        if key not in plots:
            return
        block = f"$p{len(data)}"
        data.append(f"{block} << EOD\n" + "\n".join(f"{x} {y}" for x, y in plots[key]) + "\nEOD")
        said = f"title '{title}'" if title else "notitle"
        drawn.append(f"{block} using 1:2 {style} {said}")

    for ours_name, title, colour, _ in FORMATS:
        add((ours_name, "paged16"), title, f"with boxes fs solid 1.0 border lc rgb '{colour}' lc rgb '{colour}'")
        add((ours_name, "others"), "", f"with boxes fs solid 0.15 border lc rgb '{colour}' lc rgb '{colour}'")
    for layout, mark in LAYOUTS:
        for i, (ours_name, _, _, _) in enumerate(FORMATS):
            style = f"with points pt {mark} ps 0.7 lc rgb '#222222'"
            add((ours_name, layout), layout if i == 0 else "", style)
    return "\n".join([*data, *lines, "plot " + ", \\\n  ".join(drawn)]) + "\n"


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, default=here / "results")
    parser.add_argument("--to", type=pathlib.Path)
    options = parser.parse_args()
    to = options.to or options.results / "gpu_decode.svg"
    try:
        ours = rows_of(options.results / "gpu_decode.csv")
        plots, groups, end = points(ours, rows_of(options.results / "gpu_peers.csv"))
        if not groups:
            sys.exit("plot_gpu.py: gpu_decode.csv has no line to draw")
        subprocess.run(["gnuplot"], input=commands(plots, groups, end, ours[0]["gpu"], to), text=True, check=True)
    except (OSError, KeyError, subprocess.CalledProcessError) as error:
        sys.exit(f"plot_gpu.py: {error}")


if __name__ == "__main__":
    main()
