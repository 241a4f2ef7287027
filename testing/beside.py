# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of a test concurrently: for tests of processes, which mostly
wait.
"""

import fnmatch
import os
import sys
import tempfile
import time
import traceback
import unittest


def main(at_once=4):
    """Runs the cases of the calling program, `at_once` at a time, and exits
    with status 1 if one has failed.

    Runs all cases, or those in sys.argv (Class or Class.test_case), filtered by
    bazel test --test_filter=PATTERN. Each case is a process, so cases share no
    Python state and have different parents. Prints the output of failed cases
    when they end, and their names in the last line.
    """
    module = sys.modules["__main__"]
    loader = unittest.TestLoader()
    suite = (loader.loadTestsFromNames(sys.argv[1:], module)
             if len(sys.argv) > 1 else loader.loadTestsFromModule(module))
    pattern = os.environ.get("TESTBRIDGE_TEST_ONLY", "*")
    waiting = [case for case in _cases(suite)
               if fnmatch.fnmatchcase(_name(case), pattern)]
    if not waiting:
        sys.exit(f"no case is named {pattern}")
    count, failed, began = len(waiting), [], time.monotonic()
    running = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            case = waiting.pop(0)
            running.update([_start(case)])
        pid, status = os.wait()
        if pid not in running:  # A child of the program itself.
            continue
        case, said, started = running.pop(pid)
        outcome = "ok" if status == 0 else "FAILED"
        print(f"{outcome:6} {time.monotonic() - started:5.1f} s  {_name(case)}",
              file=sys.stderr)
        if status != 0:
            failed.append(_name(case))
            said.seek(0)
            print(said.read(), file=sys.stderr)
        sys.stderr.flush()
        said.close()
    print(f"{count} cases in {time.monotonic() - began:.1f} s: " +
          (f"{len(failed)} failed: " + ", ".join(sorted(failed))
           if failed else "all passed"), file=sys.stderr)
    sys.exit(1 if failed else 0)


def _cases(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _cases(part)
        else:
            yield part


def _name(case):
    return f"{type(case).__name__}.{case.id().rpartition('.')[2]}"


def _start(case):
    """Runs a case in a new process. Returns (pid, (case, output, start time))."""
    said = tempfile.TemporaryFile("w+")
    # Otherwise the new process would print it, too.
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = _run(case, said)
        except BaseException:
            traceback.print_exc(file=said)
        finally:
            said.flush()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return pid, (case, said, time.monotonic())


def _run(case, said):
    result = unittest.TestResult()
    unittest.TestSuite([case]).run(result)
    for what, text in result.failures + result.errors:
        said.write(f"{what}\n{text}\n")
    for what in result.unexpectedSuccesses:
        said.write(f"{what}\nsucceeded, which was not expected\n")
    return 0 if result.wasSuccessful() else 1
