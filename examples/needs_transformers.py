# SPDX-License-Identifier: Apache-2.0
"""For tests that compare with Hugging Face's libraries: imported first, it starts
the test again by the Python that CROSSHATCH_PYTHON names if this one lacks the
packages torch, transformers and tokenizers. Without any the test says so, and
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
