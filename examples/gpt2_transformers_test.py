#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains Hugging Face's GPT-2 from the weights of a directory, with transformers
and, on several meshes, with the example. Losses and norms are equal, and
transformers reads the example's result with equal weights and logits.

usage: gpt2_transformers_test.py PROGRAM DIRECTORY
Needs torch, transformers and tokenizers (needs_transformers.py).
"""

import os
import re
import subprocess
import sys
import tempfile

import needs_transformers  # noqa: F401
import torch
import transformers

PROGRAM, DIRECTORY = (os.path.abspath(path) for path in sys.argv[1:3])
MESHES = "fsdp:1", "fsdp:2", "tp:3", "fsdp:2,tp:2"
ROWS, STEPS, LR = 5, 12, 3e-3
# As in models_test.py. Weights are compared by how training changes them. Of a
# sum of float32 gradients half of the digits are accurate, and so are Adam's
# steps, which divide by the magnitude of the gradients.
LOSS, NORM, WEIGHTS = 3e-5, 1e-3, 2.0**-12


def load(directory):
    model, info = transformers.GPT2LMHeadModel.from_pretrained(
        directory, output_loading_info=True)
    for what, names in info.items():
        assert not names, (directory, what, names)
    return model.eval()  # No dropout.


def batch(step, config):
    length = config.n_positions
    at = torch.arange(ROWS * length) + step * ROWS * length
    return ((at + k) * 5 % config.vocab_size for k in (0, 1))


def train(model):
    """Returns (loss, norm) of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    steps = []
    for step in range(STEPS):
        tokens, targets = batch(step, model.config)
        logits = model(tokens.view(ROWS, -1)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps.append((loss.item(), norm.item()))
    return steps


def without_keys_bias(name, values):
    """Removes the bias of the keys, which shifts a query's scores equally for all
    keys. Its gradient is only rounding, of which Adam makes steps of full size."""
    if not name.endswith("attn.c_attn.bias"):
        return values
    query, _, value = values.chunk(3)
    return torch.cat([query, value])


def far_of(name, written, trained, before):
    written, trained, before = (
        without_keys_bias(name, model.state_dict()[name])
        for model in (written, trained, before))
    return ((written - trained).norm() / (trained - before).norm()).item()


def check(mesh, root, before, trained, expected):
    out = os.path.join(root, mesh)
    printed = subprocess.run([PROGRAM, mesh, DIRECTORY, out], check=True,
                             text=True, capture_output=True).stdout
    steps = [(float(loss), float(norm)) for loss, norm in
             re.findall(r"^step \d+ loss (\S+) norm (\S+)$", printed, re.M)]
    assert len(steps) == STEPS, printed
    for i, ((loss, norm), (loss_0, norm_0)) in enumerate(zip(steps, expected)):
        assert abs(loss - loss_0) < LOSS, (mesh, i, loss, loss_0)
        assert abs(norm - norm_0) < NORM * norm_0, (mesh, i, norm, norm_0)
    written = load(out)
    names = trained.state_dict().keys()
    assert written.state_dict().keys() == names, written.state_dict().keys()
    far, name = max((far_of(n, written, trained, before), n) for n in names)
    assert far < WEIGHTS, (mesh, name, far)
    tokens, _ = batch(STEPS, trained.config)
    with torch.no_grad():
        ours, theirs = (model(tokens.view(ROWS, -1)).logits
                        for model in (written, trained))
    changed = (ours - theirs).norm() / theirs.norm()
    assert changed < WEIGHTS, (mesh, changed)
    print(f"{mesh}: last loss {steps[-1][0]}, transformers' {expected[-1][0]:.7f}; "
          f"of what training changed, {name} is off by {far:.1e}; "
          f"logits by {changed:.1e}")


def main():
    transformers.utils.logging.disable_progress_bar()
    before, trained = load(DIRECTORY), load(DIRECTORY)
    expected = train(trained)
    assert expected[-1][0] < expected[0][0] - 0.05, f"does not learn: {expected}"
    with tempfile.TemporaryDirectory() as root:
        for mesh in MESHES:
            check(mesh, root, before, trained, expected)
    print("PASSED")


main()
