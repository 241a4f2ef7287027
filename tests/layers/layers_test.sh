#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks that the public API of each package depends only on the packages below
# it, and each of its sub-packages only on the previous ones.
# usage: layers_test.sh PACKAGE.deps... PACKAGE.STEP.above...
set -euo pipefail

# Package, and its allowed dependencies. Repeated here, so that a change of
# //tools:layers.bzl alone cannot loosen the layers.
declare -A ladder=(
  [base]=""
  [tensor]="base"
  [comm]="base tensor"
  [launch]="base tensor comm"
  [mesh]="base tensor comm"
  [dtensor]="base tensor comm mesh"
  [nn]="base tensor comm mesh dtensor"
  [fsdp]="base tensor comm mesh dtensor nn"
  [tp]="base tensor comm mesh dtensor nn"
  [extensions]="base tensor comm mesh dtensor nn fsdp tp"
  [checkpoint]="base tensor comm mesh dtensor nn fsdp tp extensions"
  [verify]="base tensor comm mesh dtensor nn fsdp tp extensions checkpoint launch"
)

# The sub-packages in their order; FILE.above lists what one of them takes from
# those after it.
steps="dtensor.layout dtensor.redistribution dtensor.rules dtensor.dispatch"

checked=0
wrong=0
seen=
for file in "$@"; do
  if [[ $file == *.above ]]; then
    step=$(basename "$file" .above)
    seen="$seen $step"
    if [ -s "$file" ]; then
      echo "//${step/.//} is built from what is above it:"
      cat "$file"
      wrong=$((wrong + 1))
    fi
    continue
  fi
  package=$(basename "$file" .deps)
  allowed=" $package third_party ${ladder[$package]} "
  [ -s "$file" ] || { echo "$file is empty"; exit 1; }
  while IFS= read -r label; do
    other=${label#//}
    other=${other%%:*}
    other=${other%%/*}
    # "": the flags of the workspace's own package, as //:with_cuda.
    if [ -n "$other" ] && [[ $allowed != *" $other "* ]]; then
      echo "//$package is built from $label: it sees only$allowed"
      wrong=$((wrong + 1))
    fi
  done <"$file"
  checked=$((checked + 1))
done

[ $checked = ${#ladder[@]} ] || { echo "$checked packages checked of ${#ladder[@]}"; exit 1; }
[ "$(echo $seen)" = "$(echo $steps)" ] || { echo "checked the steps$seen"; exit 1; }
[ $wrong = 0 ]
