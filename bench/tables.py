#!/usr/bin/env python3
"""Writes README's tables from bench/results, or with --check says which of them differ.

    python3 bench/tables.py [--check] [--root FOLDER]

A table stands between two comments. The first names a file of bench/results, and which of its lines are shown:

    <!-- table: host_attend dim=128 threads=1 group=1|8 -->
    <!-- end -->
"""

import argparse
import csv
import difflib
import pathlib
import re
import sys


def signed(number):
    return f"{float(number):+.4f}"


def divergence(number, bold=False):
    text = "0" if float(number) == 0 else f"{float(number):.1e}"
    return f"**{text}**" if bold else text


def name(text):
    return f"`{text}`"


def of_policy(row):
    exact = int(row["sinks16"]) + int(row["tail16"]) > 0
    return {
        "policy": name(row["policy"]),
        "bytes a token": f"{float(row['bytes_per_token']):,.0f}",
        "cache, MiB": f"{int(row['cache_bytes']) / 2**20:.1f}",
        "KL divergence": divergence(row["kld_mean"], exact),
        "top-1, %": f"{float(row['top1']):.1f}",
        "change of ln perplexity": f"{signed(row['dlnppl'])} ± {float(row['dlnppl_se']):.4f}",
        "tokens/s": f"{float(row['tok_s']):.0f}",
    }


def of_band(row):
    return {
        "policy": name(row["policy"]),
        "positions": f"{int(row['first']):,} to {int(row['last']):,}",
        "KL divergence": divergence(row["kld_mean"]),
        "± its standard error": divergence(row["kld_se"]),
        "top-1, %": f"{float(row['top1']):.1f}",
        "change of ln perplexity": f"{signed(row['dlnppl'])} ± {float(row['dlnppl_se']):.4f}",
    }


def of_attention(row):
    return {
        "format": name(row["format"]),
        "layout": row["layout"],
        "dim": row["dim"],
        "queries a KV head": row["group"],
        "threads": row["threads"],
        "ns a token and head": f"{float(row['ns_token_head']):.1f}",
        "GB/s": f"{float(row['GB_s']):.1f}",
        "read loop, GB/s": f"{float(row['read_GB_s']):.1f}",
        "instructions allow, GB/s": f"{float(row['instructions_GB_s']):.0f}",
        "of the read loop, %": row["of_read"],
        "of the lower, %": row["of_lower"],
    }


# The files that a table is made of, by how their names begin.
KINDS = {"host_policies_": of_policy, "host_bands_": of_band, "host_attend": of_attention}


def chosen(rows, conditions):
    for condition in conditions:
        column, _, values = condition.partition("=")
        if rows and column not in rows[0]:
            raise ValueError(f"there is no column {column}")
        rows = [row for row in rows if row[column] in values.split("|")]
    if not rows:
        raise ValueError("no line is left")
    return rows


def table(results, words):
    """The table of a marker's words: the name of a file and conditions on its columns."""
    file, *conditions = words.split()
    kind = next((kind for start, kind in KINDS.items() if file.startswith(start)), None)
    if kind is None:
        raise ValueError(f"it begins with none of {', '.join(KINDS)}")
    with open(results / f"{file}.csv", encoding="utf-8", newline="") as lines:
        rows = [kind(row) for row in chosen(list(csv.DictReader(lines)), conditions)]
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    heading, *body = ("| " + " | ".join(cells) + " |\n" for cells in lines)
    return heading + "|" + "---|" * len(rows[0]) + "\n" + "".join(body)


def written(text, results):
    """The text with its tables made anew."""
    marked = re.compile(r"(<!-- table: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    begun, ended = text.count("<!-- table:"), text.count("<!-- end -->")
    if begun != ended or begun != len(marked.findall(text)):
        raise ValueError(f"{begun} tables are begun and {ended} ended")

    def replaced(match):
        try:
            return match[1] + table(results, match[2]) + match[4]
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(f"table {match[2]}: {error}") from error

    return marked.sub(replaced, text), begun


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table differs")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    readme = options.root / "README.md"
    old = readme.read_text(encoding="utf-8")
    try:
        new, count = written(old, options.root / "bench/results")
    except ValueError as error:
        sys.exit(f"{readme.name}: {error}")
    if options.check and new != old:
        changes = difflib.unified_diff(old.splitlines(), new.splitlines(), "as it is", "as made", n=0, lineterm="")
        sys.exit("\n".join([f"{readme.name} has other tables than python3 bench/tables.py would write:", *changes]))
    if new != old:
        readme.write_text(new, encoding="utf-8")
    print(f"{count} of {readme.name}'s tables are those of bench/results")


if __name__ == "__main__":
    main()
