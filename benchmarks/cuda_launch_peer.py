# SPDX-License-Identifier: Apache-2.0
"""Measures the host time of a PyTorch step that computes next to nothing.

usage: cuda_launch_peer.py      (with an interpreter that has PyTorch)

Runs the model of BM_LlamaStep (cuda_launch_benchmark.cc) on the CPU, with so few
elements that the rest is host time: Python, the dispatcher and autograd, without
CUDA's own calls. The optimizer uses lists of tensors as on CUDA, which the CPU's
kernels process one by one; the time of forward and backward alone is a lower
bound. Prints the minimal number of ops that would launch kernels on a device, and
the minimal CPU time of many runs in microseconds.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import training_peer

SIZES = {"dim": 8, "heads": 4, "ffn": 16, "layers": 4, "vocab": 8, "seq_len": 4}
STEPS = 200
# Ops that return a tensor of the same memory or move no data.
VIEWS = {"view", "_unsafe_view", "transpose", "t", "slice", "split", "unsqueeze", "expand",
         "squeeze", "detach", "alias", "reshape", "permute", "select", "as_strided", "empty",
         "empty_like", "empty_strided", "new_empty", "new_empty_strided", "unbind",
         "lift_fresh", "_reshape_alias"}


class KernelCount(TorchDispatchMode):
    """Counts ops. An op on a list of tensors counts once, even with more kernels."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ not in VIEWS
        return func(*args, **(kwargs or {}))


def measure(name, step):
    for _ in range(3):
        step()
    with KernelCount() as kernels:
        step()
    times = []
    for _ in range(STEPS):
        began = time.process_time_ns()
        step()
        times.append((time.process_time_ns() - began) / 1000)
    least = min(times)
    print(f"{name}: {kernels.count} ops, {least:.0f} us, {least / kernels.count:.2f} us an op")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print("PyTorch", torch.__version__)
    model = training_peer.Decoder(argparse.Namespace(**SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    ids = torch.full((1, SIZES["seq_len"]), 3)

    def forward_and_backward():
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.zero_grad(set_to_none=True)

    def whole():
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    measure("forward and backward", forward_and_backward)
    measure("a step", whole)


if __name__ == "__main__":
    main()
