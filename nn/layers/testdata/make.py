#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes layers.txt next to this file, with PyTorch:

    pip install torch && python3 nn/layers/testdata/make.py

There is a line for each layer and tensor: the layer, "y" for the result or the
name of the gradient's tensor, and the elements in float64. Element i of tensor
`salt` is ((37 i + 11 salt) % 101 - 50) / 64. The salt is 0 for the input, 1 for
the weight, 2 for the bias and 3 for the gradient of the result.
"""

import math
import os

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


def fill(sizes, salt):
    i = torch.arange(math.prod(sizes), dtype=torch.float64)
    return (((37 * i + 11 * salt) % 101 - 50) / 64).reshape(sizes)


# As in nn/layers/layers_golden_test.cc.
LAYERS = {
    "layer_norm": ((2, 3, 5), nn.LayerNorm(5, eps=1e-3)),
    "layer_norm_without_bias": ((4, 6), nn.LayerNorm(6, bias=False)),
    "layer_norm_bare": ((4, 6), nn.LayerNorm(6, elementwise_affine=False)),
    "group_norm": ((2, 6, 5), nn.GroupNorm(3, 6)),
    "group_norm_of_images": ((2, 4, 3, 2), nn.GroupNorm(2, 4, eps=1e-2)),
    "rms_norm": ((3, 7), nn.RMSNorm(7, eps=1e-5)),
    "gelu": ((40,), nn.GELU()),
    "gelu_tanh": ((40,), nn.GELU(approximate="tanh")),
    "linear": ((2, 3, 5), nn.Linear(5, 4)),
    "conv1d": ((2, 3, 9), nn.Conv1d(3, 4, 3, stride=2, padding=1)),
    "conv1d_dilated": ((1, 2, 9), nn.Conv1d(2, 3, 2, dilation=3, bias=False)),
    "conv2d": ((2, 3, 6, 5), nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0))),
    "conv2d_groups": ((1, 4, 4, 4), nn.Conv2d(4, 6, 2, groups=2)),
    "conv2d_patches": ((2, 3, 4, 6), nn.Conv2d(3, 5, 2, stride=2)),
}


def main():
    with open(os.path.join(HERE, "layers.txt"), "w", encoding="utf-8") as out:
        for name, (sizes, layer) in LAYERS.items():
            layer.double()
            with torch.no_grad():
                for parameter, salt in ("weight", 1), ("bias", 2):
                    values = getattr(layer, parameter, None)
                    if values is not None:
                        values.copy_(fill(values.shape, salt))
            x = fill(sizes, 0).requires_grad_()
            y = layer(x)
            y.backward(fill(y.shape, 3))
            tensors = {"y": y, "x": x.grad}
            tensors.update({n: p.grad for n, p in layer.named_parameters()})
            for what, values in tensors.items():
                numbers = " ".join(f"{v:.9g}" for v in values.flatten().tolist())
                out.write(f"{name} {what} {numbers}\n")


if __name__ == "__main__":
    main()
