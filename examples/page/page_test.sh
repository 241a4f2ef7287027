#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: page_test.sh PAGE_TEST.JS PAGE.HTML
if ! command -v node >/dev/null; then
  echo "NOT CHECKED: there is no node; tools/prepare browser installs it" >&2
  exit 0
fi
exec node "$@"
