#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a Hugging Face model from end to end: transformers makes a model and
a tokenizer, train_lm trains the model on the tokenizer's ids, and transformers
loads the result. Losses equal those of transformers and of the same steps in
PyTorch.

usage: finetune_test.py PROGRAM
Needs torch, transformers and tokenizers (needs_transformers.py).
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile

import needs_transformers  # noqa: F401
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

PROGRAM = os.path.abspath(sys.argv[1])
ROWS, LENGTH, STEPS, RATE = 6, 48, 30, 3e-3
MESHES = ["fsdp:1", "fsdp:2,tp:2", "tp:3"]
# For float32 losses summed in other orders: ten times the observed difference.
BOUND = 5e-6


def make_text():
    """Returns words in an order that can be learned."""
    words = ("the mesh of ranks splits each tensor by its axes and every rank "
             "holds a shard which it gathers before use").split()
    return " ".join(words[i * i % len(words)] + words[i % 7] for i in range(6000))


def make_model(directory, vocab):
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=48, intermediate_size=100,
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        max_position_embeddings=128, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(directory)
    return model


def batch(ids, step):
    """Returns the rows of a step as in train_lm, and their targets."""
    first = step * ROWS * LENGTH
    rows = torch.tensor([ids[(first + i) % len(ids)]
                         for i in range(ROWS * LENGTH + 1)])
    return rows[:-1].view(ROWS, LENGTH), rows[1:].view(ROWS, LENGTH)


def loss_of(model, ids, step):
    inputs, targets = batch(ids, step)
    logits = model(inputs).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten())


def train_with_torch(model, ids):
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95),
                                  eps=1e-8, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, ids, step)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_lm(*flags):
    """Returns the losses of the steps."""
    with tempfile.NamedTemporaryFile() as metrics:
        run = subprocess.run(
            [PROGRAM, f"--global_batch={ROWS}", f"--seq_len={LENGTH}",
             "--metrics=" + metrics.name, *flags], capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(run.stdout + run.stderr)
        return [json.loads(line)["loss"] for line in metrics.read().splitlines()]


def worst(a, b):
    assert len(a) == len(b), (len(a), len(b))
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def expect(what, value, bound):
    print(f"{what}: {value:.2e} (at most {bound:.0e})")
    if not value <= bound:
        sys.exit("FAILED")


def main():
    with tempfile.TemporaryDirectory() as root:
        base = os.path.join(root, "base")
        text = make_text()
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator([text], vocab_size=320, show_progress=False)
        ids = tokenizer.encode(text).ids
        model = make_model(base, tokenizer.get_vocab_size())
        tokens = os.path.join(root, "tokens")
        with open(tokens, "wb") as file:
            file.write(struct.pack(f"<{len(ids)}I", *ids))
        print(f"{len(ids)} tokens of {tokenizer.get_vocab_size()}")
        with torch.no_grad():
            before = loss_of(model, ids, 0).item()
        expected = train_with_torch(model, ids)
        for mesh in MESHES:
            out = os.path.join(root, re.sub(r"\W", "_", mesh))
            losses = train_lm("--model=" + base, "--tokens=" + tokens,
                              "--token_bits=32", "--mesh=" + mesh,
                              f"--steps={STEPS}", f"--lr={RATE}", "--save=" + out)
            expect(f"{mesh}: the first loss and that of transformers",
                   worst(losses[:1], [before]), BOUND)
            expect(f"{mesh}: all losses and those of torch.optim.AdamW",
                   worst(losses, expected), BOUND)
            assert losses[-1] < 0.7 * losses[0], losses
            tuned = transformers.LlamaForCausalLM.from_pretrained(out)
            with torch.no_grad():
                after = loss_of(tuned, ids, 0).item()
            again = train_lm("--model=" + out, "--tokens=" + tokens,
                             "--token_bits=32", "--mesh=" + mesh, "--steps=1",
                             "--lr=0")
            expect(f"{mesh}: the loss of what was saved, here and in transformers",
                   worst(again, [after]), BOUND)
            print(f"{mesh}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    print("PASSED")


if __name__ == "__main__":
    main()
