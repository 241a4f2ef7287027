# SPDX-License-Identifier: Apache-2.0
"""Measures PyTorch at what tools/gpu_hour measures of Crosshatch.

usage: gpu_peer.py attention [--tiny]
       gpu_peer.py llama [--compile] --dim=N --heads=N --ffn=N --layers=N --vocab=N
                         --seq_len=N --global_batch=N --steps=N

Runs on CUDA device 0, or on the CPU with --device=cpu, in bfloat16: attention by
scaled_dot_product_attention, and training steps of the model of training_peer.py
under autocast with float32 weights and AdamW. Prints one JSON object per line.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

import training_peer

# As in device_benchmark.cc: batch, tokens, heads, columns of a head.
ATTENTION = [(8, 2048, 32, 64), (4, 4096, 32, 128), (1, 16384, 32, 128)]
TINY_ATTENTION = [(2, 9, 2, 16)]
SECONDS = 0.2


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(count, run, device):
    synchronize(device)
    began = time.perf_counter()
    for _ in range(count):
        run()
    synchronize(device)
    return time.perf_counter() - began


def measure(kernel, sizes, flops, run, args):
    seconds_of(1, run, args.device)
    one = seconds_of(1, run, args.device)
    count = 1 if args.tiny else max(1, min(1000, int(SECONDS / 3 / one)))
    least = min(seconds_of(count, run, args.device) / count for _ in range(3))
    print(json.dumps({"kernel": kernel, "sizes": " x ".join(map(str, sizes)), "us": least * 1e6,
                      "flops": flops}), flush=True)


def attention(args):
    for sizes in TINY_ATTENTION if args.tiny else ATTENTION:
        batch, length, heads, dim = sizes
        shape = (batch, length, heads, dim)
        # Memory as Crosshatch's; SDPA takes (batch, heads, tokens, columns).
        q, k, v, grad = (torch.randn(shape, device=args.device, dtype=torch.bfloat16)
                         .transpose(1, 2) for _ in range(4))
        product = 2 * batch * heads * dim * length * (length + 1) / 2

        def forward():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        measure("attention", sizes, 2 * product, forward, args)
        for x in (q, k, v):
            x.requires_grad_()
        out = forward()
        measure("attention_backward", sizes, 5 * product,
                lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), args)


def llama(args):
    torch.manual_seed(1)
    with torch.device(args.device):
        model = training_peer.Decoder(args)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=args.device == "cuda")
    if args.compile:
        model = torch.compile(model)
    ids = torch.randint(0, args.vocab, (args.global_batch, args.seq_len + 1), device=args.device)

    def step():
        with torch.autocast(args.device, torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    rates = []
    for number in range(args.steps):
        seconds = seconds_of(1, step, args.device)
        if number >= 2:
            rates.append(args.global_batch * args.seq_len / seconds)
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else None
    print(json.dumps({"tokens_per_s": sorted(rates)[len(rates) // 2], "peak_bytes": peak,
                      "parameters": parameters}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["attention", "llama"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compile", action="store_true")
    for name in ("dim", "heads", "ffn", "layers", "vocab", "seq_len", "global_batch", "steps"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    if args.what == "attention":
        attention(args)
    else:
        llama(args)


if __name__ == "__main__":
    main()
