#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes models of each family on a mesh. transformers made the models
and loads what was written: it must have the same weights and bitwise the same
logits in float32 and bfloat16, and give the stored answers.

usage: families_test.py PROGRAM DIRECTORY
DIRECTORY has a directory for each family, with answer.json next to the model.
Needs torch, transformers and tokenizers (needs_transformers.py).
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

import needs_transformers  # noqa: F401
import torch
import transformers

PROGRAM, FAMILIES = (os.path.abspath(path) for path in sys.argv[1:3])
ROWS, LENGTH = 2, 5
# As in checkpoint/llama_families_test.cc: sums in another order.
TIMES_FLOAT64, LEAST = 4, 4 * 2.0**-23


def load(directory):
    """Returns a model as transformers loads it, in the dtype of its files."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype="auto", output_loading_info=True)
    for what, names in info.items():
        assert not names, (directory, what, names)
    return model.eval()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits


def train_lm(model, out, tokens, *flags):
    """Reads `model` and writes it to `out` unchanged; returns the loss of a step."""
    metrics = out + ".metrics"
    run = subprocess.run(
        [PROGRAM, "--model=" + model, "--tokens=" + tokens, "--token_bits=32",
         "--mesh=fsdp:2,tp:2", "--steps=1", "--lr=0", f"--global_batch={ROWS}",
         f"--seq_len={LENGTH}", "--metrics=" + metrics, "--save=" + out, *flags],
        capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    with open(metrics) as file:
        return json.loads(file.readline())["loss"]


def expect_same(model, again, tokens, dtype):
    weights, written = model.state_dict(), again.state_dict()
    assert weights.keys() == written.keys(), weights.keys() ^ written.keys()
    for name, values in weights.items():
        assert written[name].dtype == dtype, (name, written[name].dtype)
        assert torch.equal(values, written[name]), name
    assert type(again) is type(model), (type(again), type(model))
    assert torch.equal(logits_of(again, tokens), logits_of(model, tokens))


def check(family, root):
    directory = os.path.join(FAMILIES, family)
    with open(os.path.join(directory, "answer.json")) as file:
        answer = json.load(file)
    ids = [token for row in answer["tokens"] for token in row]
    ids = (ids * (ROWS * LENGTH + 1))[:ROWS * LENGTH + 1]
    tokens = os.path.join(root, family + ".tokens")
    with open(tokens, "wb") as file:
        file.write(struct.pack(f"<{len(ids)}I", *ids))

    model = load(directory)
    out = os.path.join(root, family)
    loss = train_lm(directory, out, tokens)
    again = load(out)
    expect_same(model, again, answer["tokens"], torch.float32)
    kept = torch.tensor(answer["logits"]).view_as(
        logits_of(again, answer["tokens"]))
    far = (logits_of(again, answer["tokens"]) - kept).abs().max().item()
    bound = (TIMES_FLOAT64 * answer["differs_from_float64"]["logits"]
             + 4 * LEAST)
    assert far <= bound, (family, far, bound)
    rows = torch.tensor(ids)
    expected = torch.nn.functional.cross_entropy(
        logits_of(again, rows[:-1].view(ROWS, LENGTH).tolist()).flatten(0, 1),
        rows[1:]).item()
    assert abs(loss - expected) <= 5e-6 * expected, (family, loss, expected)

    # The same with bfloat16, rounded by transformers and by the program.
    half = os.path.join(root, family + "_half")
    model.to(torch.bfloat16).save_pretrained(half)
    for source, name in (half, "_again"), (directory, "_rounded"):
        train_lm(source, out + name, tokens, "--save_dtype=bfloat16")
        expect_same(load(half), load(out + name), answer["tokens"],
                    torch.bfloat16)
    print(f"{family}: logits within {far:.1e} of the kept ones (at most "
          f"{bound:.1e}), loss within {abs(loss - expected) / expected:.1e}, "
          "weights and logits to the bit in float32 and bfloat16")


def main():
    transformers.utils.logging.disable_progress_bar()
    families = sorted(os.listdir(FAMILIES))
    assert len(families) >= 8, families
    with tempfile.TemporaryDirectory() as root:
        for family in families:
            check(family, root)
    print("PASSED")


if __name__ == "__main__":
    main()
