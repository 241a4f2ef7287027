# SPDX-License-Identifier: Apache-2.0
"""Trains the same model in PyTorch: FSDP2 over tensor parallelism on CPUs.

Run by training_benchmark.py. Each rank is a process with one thread; they use
gloo. Prints the tokens per second of each step but the first two, one per line.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Layer(nn.Module):
    def __init__(self, dim, heads, ffn):
        super().__init__()
        self.head_dim = dim // heads
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-5)
        for name in ("q", "k", "v", "o"):
            setattr(self, name, nn.Linear(dim, dim, bias=False))
        self.gate = nn.Linear(dim, ffn, bias=False)
        self.up = nn.Linear(dim, ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)

    def forward(self, x, cos, sin):
        h = self.attention_norm(x)
        batch, length, _ = h.shape
        q, k, v = (
            linear(h).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for linear in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embedding = nn.Embedding(args.vocab, args.dim)
        self.layers = nn.ModuleList(
            Layer(args.dim, args.heads, args.ffn) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.dim, eps=1e-5)
        self.head = nn.Linear(args.dim, args.vocab, bias=False)
        half = torch.arange(0, args.dim // args.heads, 2)
        angles = torch.outer(
            torch.arange(args.seq_len),
            10000.0 ** (-half * args.heads / args.dim)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


def train(rank, args):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = str(args.port)
    dist.init_process_group("gloo", rank=rank, world_size=args.fsdp * args.tp)
    mesh = dist.init_device_mesh(
        "cpu", (args.fsdp, args.tp), mesh_dim_names=("fsdp", "tp"))
    model = Decoder(args)
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {
            **{name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")},
            **{name: RowwiseParallel() for name in ("o", "down")}})
        fully_shard(layer, mesh=mesh["fsdp"])
    parallelize_module(model, mesh["tp"], {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate())})
    fully_shard(model, mesh=mesh["fsdp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    rows = args.global_batch // args.fsdp
    ids = torch.randint(0, args.vocab, (rows, args.seq_len + 1))
    for step in range(args.steps):
        began = time.perf_counter()
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.barrier()
        seconds = time.perf_counter() - began
        if rank == 0 and step >= 2:
            print(args.global_batch * args.seq_len / seconds, flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    for name in ("fsdp", "tp", "dim", "heads", "ffn", "layers", "vocab", "seq_len",
                 "global_batch", "steps", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    torch.multiprocessing.spawn(train, (args,), nprocs=args.fsdp * args.tp)


if __name__ == "__main__":
    main()
