#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Creates the files in this directory with Hugging Face's transformers:

    pip install torch transformers && python3 examples/testdata/gpt2/make.py

config.json and model.safetensors are a small GPT-2 with random weights, larger
than initial weights so that its logits differ. logits.txt has the logits of the
tokens (3 i + 1) % 17 in two rows of eight, one per line.
"""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, LENGTH = 17, 8

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(
    n_embd=12, n_layer=2, n_head=3, vocab_size=VOCAB, n_positions=LENGTH,
    initializer_range=0.3, bos_token_id=None, eos_token_id=None)).eval()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_(0, 0.1)
    tokens = (3 * torch.arange(2 * LENGTH) + 1).remainder(VOCAB)
    logits = model(tokens.reshape(2, LENGTH)).logits
model.save_pretrained(HERE)
os.remove(os.path.join(HERE, "generation_config.json"))
with open(os.path.join(HERE, "logits.txt"), "w", encoding="utf-8") as out:
    out.writelines(f"{value:.9g}\n" for value in logits.flatten().tolist())
