#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/cuda_machine_code counts in machine code."""

import os
import subprocess
import tempfile
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cuda_machine_code")

SASS = """
code for sm_90
		Function : _ZN10crosshatch8internal9AddKernelILi4EEEvPf
	.headerflags	@"EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                 /* 0x00000a00ff017b82 */
                                                                          /* 0x000fe20000000800 */
        /*0010*/                   LDGSTS.E.BYPASS.128 [R3], desc[UR4][R2.64] ; /* 0x0 */
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;       /* 0x0 */
        /*0030*/                   HMMA.16816.F32.BF16 R4, R4, R8, RZ ;   /* 0x0 */
        /*0040*/              @!P0 BRA 0x30 ;                             /* 0x0 */
        /*0050*/                   HMMA.16816.F32.BF16 R4, R4, R8, RZ ;   /* 0x0 */
        /*0060*/                   HMMA.16816.F32.BF16 R4, R4, R8, RZ ;   /* 0x0 */
        /*0070*/                   STL [R1], R4 ;                         /* 0x0 */
        /*0080*/                   LDL R4, [R1] ;                         /* 0x0 */
        /*0090*/             @!UP0 BRA 0x50 ;                             /* 0x0 */
        /*00a0*/                   STG.E.128 desc[UR4][R2.64], R4 ;       /* 0x0 */
        /*00b0*/                   STG.E desc[UR4][R2.64], R4 ;           /* 0x0 */
        /*00c0*/                   BRA 0xc0 ;                             /* 0x0 */
        /*00d0*/                   NOP ;                                  /* 0x0 */
"""
USAGE = """
Resource usage:
 Function _ZN10crosshatch8internal9AddKernelILi4EEEvPf:
  REG:40 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:904
"""


class CudaMachineCodeTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.cuobjdump = os.path.join(scratch.name, "cuobjdump")
        with open(self.cuobjdump, "w") as file:
            file.write("#!/bin/sh\ncase $1 in\n-sass) cat <<'END'\n%sEND\n;;\n"
                       "-res-usage) cat <<'END'\n%sEND\n;;\nesac\n" % (SASS, USAGE))
        os.chmod(self.cuobjdump, 0o755)

    def rows(self, *arguments):
        text = subprocess.run([PROGRAM, *arguments], check=True, text=True,
                              stdout=subprocess.PIPE,
                              env=dict(os.environ, CUOBJDUMP=self.cuobjdump)).stdout
        return [line.split() for line in text.splitlines()[1:]]

    def test_counts_of_a_kernel(self):
        # The loop from 0x50 has two products in five instructions.
        self.assertEqual(
            self.rows("a.o"),
            [["AddKernel<4>", "90", "13", "5", "2", "2.5", "40", "2", "1", "1", "1"]])

    def test_kernels_by_name(self):
        self.assertEqual(len(self.rows("--kernels=Add.*4", "a.o")), 1)
        self.assertEqual(self.rows("--kernels=Add.*5", "a.o"), [])


if __name__ == "__main__":
    unittest.main()
