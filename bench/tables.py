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


def of_probes(rows):
    def left(row):
        return {"policy": name(row["policy"]), "cache, MiB": f"{int(row['cache_bytes']) / 2**20:.1f}"}

    def column(row):
        return "tokens, %" if row["depth"] == "all" else f"at {row['depth']} %"

    lines = spread(rows, left, column, lambda row: f"{float(row['right_tokens']):.0f}")
    for line, row in zip(lines, (row for row in rows if row["depth"] == "all"), strict=True):
        line["ln p"] = f"{float(row['log_probability']):.2f}"
    return lines


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


def of_reservation(row):
    held = int(row["held_bytes"]) + int(row["table_bytes"])
    return {
        "layout": row["layout"],
        "held for each, MiB": f"{held / 2**20:.1f}",
        "of it in use, MiB": f"{int(row['live_bytes']) / 2**20:.1f}",
        "waste, %": f"{float(row['waste_percent']):.1f}",
        "conversations in 64 GiB": f"{int(row['in_64_gib']):,}",
    }


def one_by_one(kind):
    return lambda rows: [kind(row) for row in rows]


def spread(rows, left, column, cell):
    """Rows whose `left` is the same become one; `column` and `cell` say what each adds to it."""
    lines = []
    for row in rows:
        line = next((line for line in lines if left(row).items() <= line.items()), None)
        if line is None:
            line = left(row)
            lines.append(line)
        line[column(row)] = cell(row)
    return lines


def of_scales(rows):
    def left(row):
        words = row["policy"].split("_")
        kept = "V" if words[0] == "fp16" else "K" if words[-1] == "fp16" else "K and V"
        return {"8 bits": name("e4m3" if "e4m3" in words else "int8"), "for": kept}

    def column(row):
        whose = next((word for word in row["policy"].split("_") if word in ("head", "tensor")), "token")
        return f"scale per {whose}: KL divergence (top-1, %)"

    return spread(rows, left, column, lambda row: f"{divergence(row['kld_mean'])} ({float(row['top1']):.1f})")


def of_heads(rows):
    def left(row):
        return {"attention": row["attention"], "KV heads": row["kv_heads"], "policy": name(row["policy"])}

    def size(row):
        mib = int(row["bytes"]) / 2**20
        return f"{mib:.1f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"

    return spread(rows, left, lambda row: f"{int(row['tokens']):,} tokens", size)


def shape_name(row):
    text = f"{row['batch']} x {row['context']}, {row['q_heads']}/{row['kv_heads']}"
    queries = int(row["queries"])
    return text if queries == 1 else f"{text}, {queries} queries"


def time_and_share(row):
    if row.get("check", "ok") != "ok":
        return {"none": "no kernel"}.get(row["check"], row["check"])
    share = f" ({float(row['of_read']):.0f} %)" if row["of_read"] else ""
    return f"{float(row['us']):.1f}{share}"


def of_gpu_decode(rows):
    one_dim = len({row["dim"] for row in rows}) == 1

    def left(row):
        dim = {} if one_dim else {"dim": row["dim"]}
        return {"format": name(row["format"]), "layout": row["layout"], **dim}

    return spread(rows, left, shape_name, time_and_share)


def of_gpu_peers(rows):
    def left(row):
        return {"kernel": row["kernel"], "format": row["format"], "layout": row["layout"]}

    return spread(rows, left, shape_name, time_and_share)


def of_gpu_prefill(rows):
    def left(row):
        return {"format": name(row["format"]), "layout": row["layout"]}

    def cell(row):
        return f"{float(row['TFLOP_s']):.0f}" if row["check"] == "ok" else row["check"]

    return spread(rows, left, shape_name, cell)


def of_gpu_mass(rows):
    def left(row):
        return {"keys": name(row["format"]), "layout": row["layout"]}

    return spread(rows, left, shape_name, time_and_share)


def of_gpu_append(rows):
    def left(row):
        turned = " and RoPE" if row["rope"] == "1" else ""
        return {"format": name(row["format"]), "layout": row["layout"] + turned}

    def cell(row):
        return f"{float(row['us']):.1f} ({float(row['of_copy']):.0f} %)" if row["check"] == "ok" else row["check"]

    return spread(rows, left, lambda row: f"{row['sequences']} x {int(row['tokens']):,} tokens", cell)


def of_gpu_load(rows):
    def left(row):
        return {"bytes of a row": row["row_bytes"], "layout": row["layout"]}

    return spread(rows, left, lambda row: f"{row['sequences']} x {int(row['tokens']):,} tokens", time_and_share)


def of_gpu_plan(rows):
    def left(row):
        return {"layout": row["layout"]}

    return spread(rows, left, lambda row: f"{int(row['sequences']):,} sequences, us", lambda row: row["us"])


def of_gpu_step(row):
    return {
        "policy": name(row["policy"]),
        "cache, GB": f"{float(row['cache_GB']):.1f}",
        "ms a step": f"{float(row['ms']):.2f}" if row["check"] == "ok" else row["check"],
        "tokens/s": f"{float(row['tokens_s']):,.0f}",
        "attention, ms": f"{float(row['attention_ms']):.2f}",
        "of the step, %": f"{float(row['of_step']):.0f}",
    }


def of_gpu_compile(row):
    return {"compiler": row["compiler"], "what": row["what"], "seconds": f"{float(row['user_seconds']):.1f}"}


# The files that a table is made of, by how their names begin.
KINDS = {
    "host_policies_": one_by_one(of_policy),
    "cuda_policies_": one_by_one(of_policy),
    "host_bands_": one_by_one(of_band),
    "host_probes_": of_probes,
    "host_attend": one_by_one(of_attention),
    "host_scales_": of_scales,
    "reservations": one_by_one(of_reservation),
    "heads": of_heads,
    "gpu_decode": of_gpu_decode,
    "gpu_peers": of_gpu_peers,
    "gpu_prefill": of_gpu_prefill,
    "gpu_mass": of_gpu_mass,
    "gpu_append": of_gpu_append,
    "gpu_load": of_gpu_load,
    "gpu_plan": of_gpu_plan,
    "gpu_step": one_by_one(of_gpu_step),
    "gpu_compile": one_by_one(of_gpu_compile),
}


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
        rows = kind(chosen(list(csv.DictReader(lines)), conditions))
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, *([row.get(column, "-") for column in columns] for row in rows)]
    heading, *body = ("| " + " | ".join(cells) + " |\n" for cells in lines)
    return heading + "|" + "---|" * len(columns) + "\n" + "".join(body)


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
