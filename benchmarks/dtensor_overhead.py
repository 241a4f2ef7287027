# SPDX-License-Identifier: Apache-2.0
"""Measures the overhead of PyTorch's DTensor per op.

Run by //benchmarks:dtensor_overhead, which measures the same for this library.
Prints a line with PyTorch's version, then one per op: its name and the
microseconds of a call on plain and on distributed tensors, minima of many rounds.
"""

import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, distribute_tensor

CALLS = 200
ROUNDS = 200


def microseconds(op, a, b):
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        op(a, b)
    return (time.perf_counter_ns() - start) / CALLS / 1000


def main():
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = dist.init_device_mesh("cpu", (1,))
    plain = torch.full((8, 8), 1.0), torch.full((8, 8), 2.0)
    spread = [distribute_tensor(t, mesh, [Replicate()]) for t in plain]
    print("PyTorch", torch.__version__)
    with torch.no_grad():
        for name, op in (("add", torch.add), ("matmul", torch.matmul)):
            rounds = [(microseconds(op, *plain), microseconds(op, *spread))
                      for _ in range(ROUNDS)]
            print(name, *(min(times) for times in zip(*rounds)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
