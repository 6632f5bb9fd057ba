#!/usr/bin/env python3
"""What a cache weighs under multi-head, grouped-query and multi-query attention, as the planner says.

    python3 bench/plan_heads.py build/examples/planner > bench/results/heads.csv

32 layers of 32 query heads of 128, Llama's shape, which share 32, 8 or 1 KV heads.
"""

import csv
import json
import subprocess
import sys

HEADS = {"multi-head": 32, "grouped-query": 8, "multi-query": 1}
POLICIES = ("fp16", "int8", "int4")
TOKENS = (1024, 8192, 131072)


def planned_bytes(planner, heads, policy, tokens):
    command = [planner, "--preset=llama-3-8b", f"--kv-heads={heads}", f"--policy={policy}", f"--tokens={tokens}"]
    said = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(said)["bytes_per_sequence"]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["attention", "kv_heads", "policy", "tokens", "bytes"])
    for attention, heads in HEADS.items():
        for policy in POLICIES:
            for tokens in TOKENS:
                out.writerow([attention, heads, policy, tokens, planned_bytes(sys.argv[1], heads, policy, tokens)])


if __name__ == "__main__":
    main()
