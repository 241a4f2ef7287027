#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes float8.txt next to this file, with PyTorch and torchao:

    pip install torch torchao && python3 nn/layers/testdata/make_float8.py

There is a line for each recipe and tensor of a Float8Linear of 32 features to 16,
in float32, as in layers.txt: "y", or the gradient of "x" or "weight". Products
are emulated: the float8 values are multiplied in float32.
"""

import math
import os

import torch
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear

HERE = os.path.dirname(os.path.abspath(__file__))


def fill(shape, salt):
    """Returns tensor number `salt`."""
    index = torch.arange(math.prod(shape))
    return (((37 * index + 11 * salt) % 101 - 50) / 64).reshape(shape)


def main():
    """Writes the file."""
    with open(os.path.join(HERE, "float8.txt"), "w", encoding="utf-8") as out:
        for recipe in ("tensorwise", "rowwise"):
            config = Float8LinearConfig.from_recipe_name(recipe)
            object.__setattr__(config, "emulate", True)
            linear = torch.nn.Linear(32, 16, bias=False)
            linear = Float8Linear.from_float(linear, config=config)
            with torch.no_grad():
                linear.weight.copy_(fill((16, 32), 1))
            x = fill((3, 5, 32), 0).requires_grad_(True)
            y = linear(x)
            y.backward(fill(y.shape, 3))
            for name, tensor in (("y", y), ("x", x.grad), ("weight", linear.weight.grad)):
                values = " ".join(f"{v:.9g}" for v in tensor.flatten().tolist())
                print(recipe, name, values, file=out)


if __name__ == "__main__":
    main()
