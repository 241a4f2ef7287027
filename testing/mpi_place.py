# SPDX-License-Identifier: Apache-2.0
"""Where the processes of a test have their files, those of MPI among them."""

import os
import shutil
import tempfile


def make_place(case):
    """A new directory, which goes when `case` has ended. Its name is short, for the
    names of sockets in it."""
    place = tempfile.mkdtemp(prefix="ch", dir="/tmp")
    case.addCleanup(shutil.rmtree, place, ignore_errors=True)
    return place


def environment_in(place):
    """All the variables of a process that has its files in `place`. MPI names files
    by numbers of processes, which tests in sandboxes have in common."""
    return {"PATH": os.environ["PATH"], "HOME": place, "TMPDIR": place,
            "OMPI_MCA_orte_tmpdir_base": place,
            "OMPI_MCA_btl_vader_backing_directory": place,
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
