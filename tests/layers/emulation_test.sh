#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Nothing that is shipped is made of the emulation of CUDA.
# usage: emulation_test.sh SHIPPED TESTS   (labels of it that each is made of)
set -euo pipefail

[ -s "$2" ] || { echo "the query does not find the emulation in tests either"; exit 1; }
[ ! -s "$1" ] || { echo "what is shipped is made of:"; cat "$1"; exit 1; }
