#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the checksums of float8_bits_test.cc, with PyTorch:

    pip install torch && python3 tensor/testdata/make_float8.py

CRC-32 of the bytes that PyTorch converts to, after clamping to the finite range:
of all bfloat16 in the order of their bits, and of 2^20 float32 with the bits
i * 2654435761 modulo 2^32.
"""

import zlib

import torch


def checksum(values, dtype):
    """Returns the CRC-32 of the saturating conversion."""
    most = torch.finfo(dtype).max
    values = values.float().clamp(-most, most)
    return zlib.crc32(bytes(values.to(dtype).view(torch.uint8).tolist()))


def main():
    """Prints a line for each format."""
    bits = torch.arange(0x10000, dtype=torch.int32).to(torch.int16)
    sampled = (torch.arange(1 << 20, dtype=torch.int64) * 2654435761) % (1 << 32)
    sampled = torch.where(sampled >= 1 << 31, sampled - (1 << 32), sampled).to(torch.int32)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        print(f"{dtype}: bfloat16 {checksum(bits.view(torch.bfloat16), dtype):#010x}, "
              f"float32 {checksum(sampled.view(torch.float32), dtype):#010x}")


if __name__ == "__main__":
    main()
