# SPDX-License-Identifier: Apache-2.0
"""The tests of kernels, by the file of each."""

FAMILIES = [
    "accumulate_ranks",
    "adamw",
    "attention",
    "attention_16_bit",
    "copy",
    "cross_entropy",
    "cumsum",
    "dropout",
    "embedding",
    "gather",
    "matmul",
    "norm",
    "pointwise",
    "random",
    "reduce",
    "rope",
    "scatter",
    "softmax",
    "sort",
    "windows",
]
