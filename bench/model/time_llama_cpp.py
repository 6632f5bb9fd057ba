"""Times decoding by llama.cpp: time_llama_cpp.py MODEL TEXT THREADS f16|q8_0|q4_0 DEPTH...

Prints llama.cpp,<type>,,<depth>,<milliseconds a token at the median of 32> for each depth, in ascending order.
"""

import statistics
import sys
import time

import llama_cpp as llama

TIMED = 32
TYPES = {"f16": llama.GGML_TYPE_F16, "q8_0": llama.GGML_TYPE_Q8_0, "q4_0": llama.GGML_TYPE_Q4_0}


def main(path, text_path, threads, cache_type, *depths):
    depths = sorted(map(int, depths))
    with open(text_path, "rb") as file:
        text = file.read()
    model = llama.Llama(
        model_path=path,
        n_ctx=depths[-1] + TIMED * len(depths),
        n_batch=512,
        n_threads=int(threads),
        n_threads_batch=int(threads),
        type_k=TYPES[cache_type],
        type_v=TYPES[cache_type],
        flash_attn=True,
        verbose=False,
    )
    tokens = model.tokenize(text)[: depths[-1] + TIMED * len(depths)]

    def decode(part):
        numbers = (llama.llama_token * len(part))(*part)  # the batch points into it
        if llama.llama_decode(model.ctx, llama.llama_batch_get_one(numbers, len(part))) != 0:
            sys.exit("llama_decode failed")
        llama.llama_get_logits_ith(model.ctx, -1)  # waits

    at = 0
    for depth in depths:
        depth = max(at, depth)
        for first in range(at, depth, 512):
            decode(tokens[first : min(first + 512, depth)])
        seconds = []
        for token in tokens[depth : depth + TIMED]:
            start = time.perf_counter()
            decode([token])
            seconds.append(time.perf_counter() - start)
        at = depth + TIMED
        print(f"llama.cpp,{cache_type},,{depth},{1e3 * statistics.median(seconds):.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
