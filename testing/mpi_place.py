# SPDX-License-Identifier: Apache-2.0
"""Directories for the files of a test's processes, including MPI's."""

import os
import shutil
import tempfile


def make_place(case):
    """Returns a new directory, removed when `case` ends. Its name is short
    because names of sockets are limited."""
    place = tempfile.mkdtemp(prefix="ch", dir="/tmp")
    case.addCleanup(shutil.rmtree, place, ignore_errors=True)
    return place


def environment_in(place):
    """Returns the variables of a process with its files in `place`. MPI names
    files by process ids, which tests in sandboxes share."""
    return {"PATH": os.environ["PATH"], "HOME": place, "TMPDIR": place,
            "OMPI_MCA_orte_tmpdir_base": place,
            "OMPI_MCA_btl_vader_backing_directory": place,
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
