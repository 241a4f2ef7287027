# SPDX-License-Identifier: Apache-2.0
"""Restarts a test with the Python that CROSSHATCH_PYTHON names if this one lacks
the packages torch, transformers and tokenizers. Tests that compare with Hugging
Face's libraries import it first. Without any such Python, the test prints that and
checks nothing."""

import os
import sys

try:
    import tokenizers  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as missing:
    other = os.environ.pop("CROSSHATCH_PYTHON", None)
    if other:
        os.execv(other, [other, *sys.argv])
    print(f"NOT CHECKED: {missing}; CROSSHATCH_PYTHON may name a Python that has "
          "it", file=sys.stderr)
    sys.exit(0)
