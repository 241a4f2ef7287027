# SPDX-License-Identifier: Apache-2.0
"""What the processes of a job print themselves, apart from what libraries print: the
warnings of MPI and hwloc differ from one machine to the next."""

import re


def own_lines(said, program):
    """The lines of `said` that the ranks of `program` print."""
    own = re.compile(rf"\[rank \d+\] |{re.escape(program)}: |"
                     # Each rank's activity.
                     r"  rank \d+ \(process |  and \d+ more|.*: check failed: ")
    return [line for line in said.splitlines() if own.match(line)]
