#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks that a query has no results.
# usage: nothing_test.sh WHAT QUERIED ELSEWHERE   (outputs of queries: labels;
#        the same query finds some elsewhere)
set -euo pipefail

[ -s "$3" ] || { echo "the query finds nothing elsewhere either"; exit 1; }
[ ! -s "$2" ] || { echo "$1:"; cat "$2"; exit 1; }
