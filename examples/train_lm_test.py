#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_lm as a user would: equal runs, signals, outputs.

usage: train_lm_test.py PROGRAM MODEL_FILE
where MODEL_FILE is a file of a Hugging Face model directory.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import unittest

from train_lm_testcase import PROGRAM, SMALL, TIMES, VALUES, TrainLmTestCase

MODEL_FILE = sys.argv.pop(1)
MODEL = os.path.dirname(MODEL_FILE)


class TrainLmTest(TrainLmTestCase):
    def test_two_runs_give_equal_metrics(self):
        for mesh in ["fsdp:2,tp:2", "replicate:2,fsdp:2"]:
            flags = ["--mesh=" + mesh]
            self.assertEqual(self.metrics(*flags, without=TIMES),
                             self.metrics(*flags, without=TIMES))

    def test_initial_weights_are_equal_on_every_mesh(self):
        # With a learning rate of 0, the saved weights are the initial ones.
        weights = set()
        for mesh in ["fsdp:1", "fsdp:3", "tp:3", "fsdp:2,tp:2"]:
            out = self.path("model")
            self.metrics("--mesh=" + mesh, "--lr=0", "--seed=5",
                         "--save=" + out, "--overwrite")
            with open(os.path.join(out, "model.safetensors"), "rb") as file:
                weights.add(file.read())
        self.assertEqual(len(weights), 1)

    def test_a_dry_run_has_the_bytes_and_peaks_of_a_real_run(self):
        for mesh in ["fsdp:2,tp:2", "fsdp:3,tp:2", "replicate:2,fsdp:2"]:
            real = self.metrics("--mesh=" + mesh, without=TIMES + VALUES)
            dry = self.metrics("--mesh=" + mesh, "--engine=fake",
                               without=TIMES + VALUES)
            self.assertEqual(real, dry)

    def test_a_saved_model_is_loaded_unchanged(self):
        out = self.path("model")
        self.metrics("--mesh=fsdp:2", "--save=" + out)
        again = self.path("again")
        run = self.run_program(
            "--text=" + self.text, "--model=" + out, "--lr=0", "--steps=1",
            "--mesh=tp:2", "--save=" + again)
        self.assertEqual(run.returncode, 0, run.stderr)
        files = [os.path.join(d, "model.safetensors") for d in (out, again)]
        with open(files[0], "rb") as a, open(files[1], "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_learns(self):
        losses = [line["loss"] for line in self.metrics("--lr=0.01")]
        self.assertLess(losses[-1], losses[0])

    def test_roles_of_axes_depend_on_their_names_only(self):
        # The same roles on other ranks: equal memory and traffic and, except
        # for the order of sums, equal losses.
        for meshes in [
            ["replicate:2,fsdp:3", "fsdp:3,replicate:2"],
            ["fsdp:3,tp:2", "tp:2,fsdp:3"],
            ["replicate:2,fsdp:2,tp:2", "tp:2,replicate:2,fsdp:2",
             "fsdp:2,tp:2,replicate:2"],
        ]:
            runs = [self.metrics("--mesh=" + mesh, without=TIMES)
                    for mesh in meshes]
            for mesh, run in zip(meshes, runs):
                for line, first in zip(run, runs[0]):
                    self.assertEqual(line["peak_bytes"], first["peak_bytes"], mesh)
                    for axis in ["fsdp", "replicate", "tp"]:
                        self.assertEqual(line["moved"].get(axis),
                                         first["moved"].get(axis), mesh)
                    # Sums of float32 over 8 ranks in another order.
                    self.assertAlmostEqual(line["loss"], first["loss"], 5, mesh)

    def test_fewer_heads_than_ranks_train(self):
        one = self.metrics("--mesh=fsdp:1", "--heads=2", without=TIMES)
        more = self.metrics("--mesh=tp:3", "--heads=2", without=TIMES)
        for a, b in zip(one, more):
            self.assertAlmostEqual(a["loss"], b["loss"], 5)
        # Reports that some ranks have no heads.
        for mesh, heads, note in [
            ("tp:4", ["--heads=2", "--kv_heads=1"], "2 of 4 tp ranks"),
            ("tp:3", ["--heads=2", "--kv_heads=2"], "1 of 3 tp ranks"),
            ("tp:4", ["--heads=4", "--kv_heads=2"], None),
            ("tp:2", ["--heads=4", "--kv_heads=2"], None),
        ]:
            run = self.run_program("--text=" + self.text, "--engine=fake",
                                   *SMALL, *heads, "--mesh=" + mesh)
            self.assertEqual(run.returncode, 0, run.stderr)
            if note:
                self.assertIn("note: " + note, run.stdout)
            else:
                self.assertNotIn("note:", run.stdout)

    def test_help_lists_the_flags_of_the_program(self):
        run = self.run_program("--text=/no/such", "--help")
        # Abseil's status.
        self.assertEqual((run.returncode, run.stderr), (1, ""))
        for name in ["mesh", "heads", "save", "verbose", "engine", "timeout"]:
            self.assertIn("\n    --" + name + " (", run.stdout)
        self.assertNotIn("--flagfile", run.stdout)

    def test_a_signal_in_the_last_step_has_no_effect(self):
        # There is no space for the step's metrics.
        fifo, pipe = self.full_pipe()
        run = subprocess.Popen(
            [PROGRAM, "--text=" + self.text, *SMALL, "--mesh=fsdp:2",
             "--steps=1", "--metrics=" + fifo],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.kill)
        caught = 0
        while not caught >> (signal.SIGTERM - 1) & 1:
            self.assertIsNone(run.poll())
            with open(f"/proc/{run.pid}/status") as file:
                caught = int(re.search(r"SigCgt:\s*(\S+)", file.read())[1], 16)
        run.send_signal(signal.SIGTERM)
        os.read(pipe, 1 << 20)
        out, _ = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 0, out)
        self.assertNotIn("stopped by a signal", out)

    def test_a_signal_ends_the_run_after_a_step_and_saves(self):
        for stop, flags, status in [
                (signal.SIGTERM, ["--mesh=fsdp:2"], 143),
                (signal.SIGINT, ["--mesh=tp:2", "--stop_status=0"], 0)]:
            with self.subTest(stop=stop):
                saved = self.path("saved" + str(status))
                run = subprocess.Popen(
                    [PROGRAM, "--text=" + self.text, "--save=" + saved,
                     *[flag for flag in SMALL if "steps" not in flag],
                     "--steps=1000000000", *flags],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                self.addCleanup(run.kill)
                while "step 1/" not in run.stdout.readline():
                    self.assertIsNone(run.poll())
                run.send_signal(stop)
                out, error = run.communicate(timeout=120)
                self.assertEqual((run.returncode, error), (status, ""))
                self.assertIn("note: stopped by a signal after step ", out)
                self.assertIn("saved to " + saved, out)
                self.assertTrue(os.path.exists(saved + "/config.json"))

    def test_training_continues_if_metrics_cannot_be_written(self):
        out = self.path("model")
        for metrics in ["/dev/full", self.path("metrics")]:
            # A resource limit on file sizes acts like a full disk, except for
            # the model.
            run = self.run_program("--text=" + self.text, "--save=" + out,
                                   "--metrics=" + metrics, "--overwrite", *SMALL,
                                   limit=None if metrics == "/dev/full" else 800)
            if metrics == "/dev/full":
                self.assertEqual(run.returncode, 1)
                # At once, and at the end.
                self.assertEqual(run.stderr.count("--metrics: cannot write"), 2)
                self.assertIn("No space left", run.stderr)
                self.assertIn("saved to " + out, run.stdout)
                self.assertTrue(os.path.exists(out + "/model.safetensors"))
            else:
                # The limit applies to the model too: its save is abandoned with
                # an error, and complete lines remain.
                self.assertEqual(run.returncode, 1)
                self.assertIn("File too large", run.stderr)
                with open(metrics) as file:
                    for line in file:
                        self.assertIn("step", json.loads(line))
                self.assertFalse(os.path.exists(out + ".saving"))

    def test_a_full_standard_output_is_an_error(self):
        for flags in [["--text=" + self.text, "--plan=print"],
                      ["--text=" + self.text, *SMALL, "--steps=1",
                       "--sample=5"]]:
            with open("/dev/full", "w") as full:
                run = subprocess.run([PROGRAM, *flags], stdout=full,
                                     stderr=subprocess.PIPE, text=True,
                                     timeout=120)
            self.assertEqual(run.returncode, 1, flags)
            self.assertRegex(run.stderr, "^(train_lm: )?cannot write to "
                             "standard output(: No space left on device)?\n$")

    def test_an_old_metrics_file_stays_until_the_first_step(self):
        metrics = self.path("metrics")
        old = '{"step":1}\n' * 1000
        with open(metrics, "w") as file:
            file.write(old)
        self.refusal("--text=" + self.text, "--metrics=" + metrics,
                     "--model=/no/such")
        self.refusal("--text=" + self.text, "--metrics=" + metrics,
                     "--lr=1e30", "--vocab=20")
        with open(metrics) as file:
            self.assertEqual(file.read(), old)
        self.metrics()

    def test_training_continues_if_nobody_reads_the_output(self):
        out = self.path("model")
        reader, writer = os.pipe()
        os.close(reader)
        run = subprocess.run(
            [PROGRAM, "--text=" + self.text, "--save=" + out, *SMALL],
            stdout=writer, stderr=subprocess.PIPE, timeout=120)
        os.close(writer)
        self.assertEqual((run.returncode, run.stderr), (0, b""))
        self.assertTrue(os.path.exists(out + "/model.safetensors"))

    def test_closed_outputs_do_not_reach_other_files(self):
        # Enough steps to print more than one buffer.
        metrics, out = self.path("metrics"), self.path("model")
        run = subprocess.run(
            [PROGRAM, "--text=" + self.text, "--metrics=" + metrics,
             "--save=" + out, *SMALL, "--steps=200"],
            preexec_fn=lambda: os.closerange(0, 3), timeout=120)
        self.assertEqual(run.returncode, 0)
        with open(metrics) as file:
            steps = [json.loads(line)["step"] for line in file]
        self.assertEqual(steps, list(range(1, 201)))

    def test_a_save_reports_an_unfinished_one(self):
        out = self.path("model")
        left = out + ".saving"
        os.mkdir(left)
        with open(os.path.join(left, "model.safetensors"), "w") as file:
            file.write("keep")
        run = self.run_program("--text=" + self.text, "--save=" + out, *SMALL)
        self.assertEqual(run.returncode, 0)
        self.assertIn(left + " is from a save", run.stderr)
        with open(os.path.join(left, "model.safetensors")) as file:
            self.assertEqual(file.read(), "keep")

    def test_weights_are_kept_next_to_an_occupied_target(self):
        out = self.path("model")
        # Unread metrics block the program before its last step.
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        run = subprocess.Popen(
            [PROGRAM, "--text=" + self.text, "--metrics=" + fifo,
             "--save=" + out, *SMALL, "--steps=400"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        select.select([reader], [], [], 120)
        os.mkdir(out)
        with open(os.path.join(out, "mine"), "w") as file:
            file.write("keep")
        os.set_blocking(reader, True)
        with os.fdopen(reader, "rb") as metrics:
            lines = metrics.read().splitlines()
        _, errors = run.communicate(timeout=120)
        self.assertEqual(len(lines), 400)
        self.assertGreater(len(b"".join(lines)), 2 * 65536)
        self.assertEqual(run.returncode, 1, errors)
        self.assertIn("are in " + out + ".saving", errors)
        self.assertEqual(sorted(os.listdir(out + ".saving")),
                         ["config.json", "model.safetensors"])
        self.assertEqual(os.listdir(out), ["mine"])

    def test_non_finite_weights_are_not_saved(self):
        out = self.path("model")
        self.assertEqual(self.run_program(
            "--text=" + self.text, "--save=" + out, *SMALL).returncode, 0)
        with open(out + "/model.safetensors", "rb") as file:
            good = file.read()
        line = self.refusal("--text=" + self.text, "--save=" + out,
                            "--overwrite", "--mesh=fsdp:2,tp:2", *SMALL,
                            "--steps=1", "--lr=1e38")
        self.assertIn("not finite", line)
        self.assertIn(out + " is not changed", line)
        with open(out + "/model.safetensors", "rb") as file:
            self.assertEqual(file.read(), good)

    def test_special_token_ids_are_kept(self):
        place, out = self.path("place"), self.path("out")
        shutil.copytree(MODEL, place)
        os.chmod(place, 0o755)
        path = os.path.join(place, "config.json")
        os.chmod(path, 0o644)
        with open(path) as file:
            fields = json.load(file)
        ids = {"bos_token_id": 5, "eos_token_id": [6, 7], "pad_token_id": 0}
        with open(path, "w") as file:
            json.dump({**fields, **ids}, file)
        run = self.run_program("--text=" + self.text, "--model=" + place,
                               "--save=" + out, "--steps=1", "--seq_len=9")
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(os.path.join(out, "config.json")) as file:
            saved = json.load(file)
        self.assertEqual({name: saved[name] for name in ids}, ids)

    def test_a_dry_run_of_many_ranks_prints_a_summary(self):
        flags = ["--text=" + self.text, "--mesh=fsdp:512", "--engine=fake",
                 "--steps=1", *SMALL]
        summary = self.run_program(*flags)
        self.assertEqual(summary.returncode, 0, summary.stderr)
        self.assertIn("dim 0: 32 x 1, 480 x 0", summary.stdout)
        self.assertLess(max(map(len, summary.stdout.split("\n"))), 200)
        every = self.run_program(*flags, "--verbose")
        self.assertIn(" 0:1 1:2 2:3 ", every.stdout)


if __name__ == "__main__":
    unittest.main()
