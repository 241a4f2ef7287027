# SPDX-License-Identifier: Apache-2.0
"""The output of a job's processes without that of libraries: warnings of MPI
and hwloc depend on the machine.
"""

import re


def own_lines(said, program):
    """Returns the lines of `said` that the ranks of `program` print."""
    own = re.compile(rf"\[rank \d+\] |{re.escape(program)}: |"
                     # Each rank's activity.
                     r"  rank \d+ \(process |  and \d+ more|.*: check failed: ")
    return [line for line in said.splitlines() if own.match(line)]
