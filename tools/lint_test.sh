#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Each kind of finding of tools/lint, on a small tree made for it; and silence
# on a tree with none. usage: lint_test.sh LINT
set -euo pipefail
lint=$PWD/$1
cd "$TEST_TMPDIR"
license='SPDX-License-Identifier: Apache-2.0'
failures=0

# expect WANTED PATH CONTENT: linting the one file PATH says WANTED ("": nothing).
expect() {
  local wanted=$1 path=$2 content=$3 said
  rm -rf tree
  mkdir -p "tree/$(dirname "$path")"
  printf '%s' "$content" > "tree/$path"
  said=$(cd tree && python3 "$lint" --root=. --files "$path") || true
  case $wanted in
    "") [ -z "$said" ] && return ;;
    *) [[ $said == *"$wanted"* ]] && return ;;
  esac
  echo "FAILED $path: wanted '$wanted', lint said '$said'"
  failures=$((failures + 1))
}

cc() { printf '// %s\n%s\n' "$license" "$1"; }
build() { printf '# %s\n%s\n' "$license" "$1"; }
header() {
  cc "#ifndef CROSSHATCH_MESH_A_H_
#define CROSSHATCH_MESH_A_H_
$1
#endif  // CROSSHATCH_MESH_A_H_"
}
nl=$'\n'

expect "" mesh/a.h "$(header 'int f();')$nl"
expect "lacks the line" mesh/b.h "$(header 'int f();')$nl"
expect "starts without" mesh/a.cc "int f();$nl"
expect "no newline" mesh/a.cc "$(cc 'int f();')"
expect "white space" mesh/a.cc "$(cc 'int f(); ')$nl"
expect "our headers are included" mesh/a.cc "$(cc '#include "mesh/a.h"')$nl"
expect "our headers are included" mesh/a.cc "$(cc '#include "a.h"')$nl"
expect "" mesh/a.cc "$(cc '#include "crosshatch/mesh/a.h"
#include "absl/status/status.h"')$nl"
expect "belongs in a .cc" mesh/a.h "$(header '#include "Eigen/Core"')$nl"
expect "std::mutex" mesh/a.cc "$(cc 'absl::Mutex m;')$nl"
expect "a test runs" mesh/a.cc "$(cc 'GTEST_SKIP();')$nl"
expect "finish it" mesh/a.cc "$(cc "// TO""DO: more")$nl"
expect "name what is used" mesh/a.cc "$(cc 'using namespace absl;')$nl"
expect "is it one concept" mesh/a.cc "$(cc "$(yes 'int f();' | head -700)")$nl"
expect "" mesh/BUILD "$(build 'load("//tools:crosshatch.bzl", "ch_cc_library")
ch_cc_library(
    name = "a",
    deps = [":b", "//base:check", "@eigen"],
)')$nl"
expect "use ch_cc_library" mesh/BUILD "$(build 'cc_library(name = "a")')$nl"
expect "are not sorted" mesh/BUILD "$(build 'f(name = "a", deps = ["@eigen", ":b"])')$nl"
expect "there twice" mesh/BUILD "$(build 'f(name = "a", deps = [":b", ":b"])')$nl"
expect "name comes first" mesh/BUILD "$(build 'f(deps = [":b"], name = "a")')$nl"
expect "does not use it" mesh/BUILD "$(build 'load("//a:b.bzl", "c")')$nl"
expect "symbols are not sorted" mesh/BUILD "$(build 'load("//a:b.bzl", "d", "c")
c()
d()')$nl"
expect "load() statements are not sorted" mesh/BUILD "$(build 'load("//a:b.bzl", "c")
load("@a//a:b.bzl", "d")
c()
d()')$nl"
expect "load() after" mesh/BUILD "$(build 'f(name = "a")
load("//a:b.bzl", "c")
c()')$nl"
expect "not readable" mesh/BUILD "$(build 'f(')$nl"
expect "load the rule" mesh/a.bzl "$(build 'native.cc_library()')$nl"

[ $failures = 0 ]
