#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stops and resumes train_lm: on the same mesh, a stopped run computes bitwise the
same as an uninterrupted one.

usage: resume_test.py PROGRAM
With CROSSHATCH_RESUME=all, also between all pairs of the meshes below.
"""

import fcntl
import itertools
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
STEPS, HALF = 6, 3
# No mesh divides these sizes, and some have more ranks than key heads.
MODEL = ["--dim=24", "--layers=2", "--heads=6", "--kv_heads=2", "--ffn=37",
         "--vocab=131", "--seed=3"]
NO_SEED = MODEL[:-1]
RATE = 0.01
RUN = ["--global_batch=5", "--seq_len=13", f"--lr={RATE}", "--warmup=2",
       "--schedule=cosine", "--accumulate=2", "--decay=matrices"]
MESHES = ["fsdp:2,tp:2", "tp:3", "replicate:2,fsdp:3", "fsdp:5",
          "replicate:2,fsdp:2,tp:2"]
BETA2 = 0.95
ALL = os.environ.get("CROSSHATCH_RESUME") == "all"
TIMES = ["tokens_per_s", "step_ms", "rank"]
LONG = 120
# Messages of a run about its checkpoints.
SAVED = (r"\nsaved {} checkpoint{}: each blocked training for [\d.]+ ms, at most"
         r" [\d.]+ ms; a step took [\d.]+ ms\n")



class Held:
    """Starts a run of two or more steps and blocks it in the first one, after all
    checks, because its metrics cannot be written."""

    def __init__(self, case, *flags):
        fifo = case.path("fifo" + str(len(os.listdir(case.dir))))
        os.mkfifo(fifo)
        self.case = case
        self.pipe = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        case.addCleanup(os.close, self.pipe)
        # While there is space, writes of single bytes fill every page.
        fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, 4096)
        with self.case.assertRaises(BlockingIOError):
            while os.write(self.pipe, b"x"):
                pass
        self.run = subprocess.Popen(
            [PROGRAM, "--text=" + case.text, "--metrics=" + fifo, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        case.addCleanup(self.run.kill)
        self.begin = self.run.stdout.readline()
        case.assertNotEqual(self.begin, "")

    def let_go(self, status):
        """Returns the output."""
        fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.read(self.pipe, 4096)
        out, error = self.run.communicate(timeout=LONG)
        self.case.assertEqual(self.run.returncode, status, out + error)
        return self.begin + out, error


class ResumeTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        self.text = self.path("text")
        with open(self.text, "w") as file:
            file.write("A small text to learn, which goes on and on. " * 7)

    def path(self, name):
        return os.path.join(self.dir, name)

    def run_program(self, *flags, status=0):
        run = subprocess.run([PROGRAM, "--text=" + self.text, *flags],
                             capture_output=True, text=True, errors="replace",
                             timeout=LONG)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        return run

    def train(self, name, mesh, *flags, model=MODEL):
        """Returns the complete lines of metrics and the saved weights."""
        metrics, saved = self.path(name + ".metrics"), self.path(name + ".model")
        self.run_program(*model, *RUN, "--mesh=" + mesh, "--metrics=" + metrics,
                         "--save=" + saved, "--overwrite", *flags)
        return self.read(metrics), self.weights(saved)

    def read(self, metrics, without=TIMES):
        with open(metrics) as file:
            lines = [json.loads(line) for line in file]
        return [{k: v for k, v in line.items() if k not in without}
                for line in lines]

    def weights(self, saved):
        with open(saved + "/model.safetensors", "rb") as file:
            return file.read()

    def tensors(self, data):
        """Returns the float32 tensors of a safetensors file by name."""
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__", None)
        values = {}
        for name, tensor in header.items():
            begin, end = (8 + size + at for at in tensor["data_offsets"])
            values[name] = struct.unpack(f"<{(end - begin) // 4}f",
                                         data[begin:end])
        return values

    def whole_tensors(self, checkpoint):
        """Returns the elements of a checkpoint's tensors by name, joined from their
        cells (docs/checkpoints.md describes the format)."""
        cells = {}
        for file in os.listdir(checkpoint):
            if file.endswith(".safetensors"):
                with open(os.path.join(checkpoint, file), "rb") as data:
                    cells.update(self.tensors(data.read()))
        with open(checkpoint + "/checkpoint.json") as file:
            tensors = json.load(file)["tensors"]
        wholes = {}
        for name, tensor in tensors.items():
            shape = tensor["shape"]
            whole = [math.nan] * math.prod(shape)
            spans = [list(zip(cuts, cuts[1:])) for cuts in tensor["cuts"]]
            for box in itertools.product(*spans):
                cut = ", ".join(f"{begin}:{end}" for begin, end in box)
                cell = cells[name if f"{name}[{cut}]" not in cells
                             else f"{name}[{cut}]"]
                for value, index in zip(cell, itertools.product(
                        *(range(begin, end) for begin, end in box))):
                    at = 0
                    for i, extent in zip(index, shape):
                        at = at * extent + i
                    whole[at] = value
            self.assertFalse(any(map(math.isnan, whole)), name)
            wholes[name] = whole
        return wholes

    def by_file_names(self, wholes):
        """Returns a checkpoint's parameters by their names in model.safetensors."""
        names = {}
        for name, whole in wholes.items():
            part, name = name.split(".", 1)
            if part == "model":
                names[name if name.startswith("lm_head") else "model." + name] = (
                    whole)
        return names

    def bounds(self, one_rank):
        """Returns how far elements of each parameter may differ from the run on
        one rank, whose checkpoints of all steps are given.

        AdamW adds the learning rate times m / sqrt(v). If a gradient is summed in
        another order, an element differs by at most TERMS roundings of the largest
        element in its tensor, sqrt(max v), relative to its own magnitude sqrt(v).
        In any case, m / sqrt(v) is at most 1 / sqrt(1 - BETA2) in magnitude. A
        change of a weight affects later gradients in proportion."""
        terms, largest, rounding = 200, 1 / math.sqrt(1 - BETA2), 2.0**-24
        bounds = {}
        for step in range(1, STEPS + 1):
            rate = RATE * min(1, step / 2)
            of_step = self.whole_tensors(f"{one_rank}/step-{step:06d}")
            correction = 1 - BETA2**step
            for name, squares in of_step.items():
                if not name.endswith(".exp_avg_sq"):
                    continue
                name = name[len("optimizer."):-len(".exp_avg_sq")]
                error = terms * rounding * math.sqrt(max(squares) / correction)
                so_far = bounds.setdefault("model." + name, [0] * len(squares))
                for i, square in enumerate(squares):
                    size = math.sqrt(square / correction)
                    so_far[i] += rate * min(2 * largest,
                                            2 * error / size if size else 0)
        return bounds

    def check_near(self, checkpoint, one_rank, bounds):
        """Compares the run's end with that on one rank. Weights are within their
        bounds. Moments are means of gradients and of their squares, so they are
        within the bound of the gradients' norm, doubled for squares."""
        got = self.whole_tensors(f"{checkpoint}/step-{STEPS:06d}")
        want = self.whole_tensors(f"{one_rank}/step-{STEPS:06d}")
        self.assertEqual(got.keys(), want.keys())
        for name, values in want.items():
            self.assertEqual(len(got[name]), len(values), name)
            size = max(map(abs, values))
            part = 1e-4 if name.endswith("_sq") else 5e-5
            limits = bounds.get(name, [part * size] * len(values))
            for i, (a, b, limit) in enumerate(zip(got[name], values, limits)):
                # Also the roundings of the element itself in each step.
                self.assertLessEqual(abs(a - b),
                                     limit + STEPS * 2.0**-23 * abs(b),
                                     f"{name}, element {i}: {a} and {b}")

    def tied_model(self):
        """Returns the flags of a tied model, as for a Hugging Face file."""
        tied = self.path("tied")
        self.run_program(*MODEL, "--lr=0", "--steps=1", "--save=" + tied,
                         "--overwrite")
        with open(tied + "/config.json") as file:
            config = json.load(file)
        with open(tied + "/config.json", "w") as file:
            json.dump({**config, "tie_word_embeddings": True}, file)
        with open(tied + "/model.safetensors", "rb") as file:
            data = file.read()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        begin, end = header.pop("lm_head.weight")["data_offsets"]
        for name, tensor in header.items():
            if name != "__metadata__":
                tensor["data_offsets"] = [
                    at - (end - begin if at >= end else 0)
                    for at in tensor["data_offsets"]]
        text = json.dumps(header).encode()
        with open(tied + "/model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text
                       + data[8 + size:8 + size + begin]
                       + data[8 + size + end:])
        return ["--model=" + tied]

    def stop_and_go_on(self, first, second, model=MODEL, how=()):
        """Trains half of the steps on one mesh and half on the other. Compares
        metrics, weights and checkpoints."""
        name = f"{first} {second}" + "".join(how)
        checkpoints = self.path(name)
        flags = ["--checkpoints=" + checkpoints, *how]
        # The schedule covers all steps, so removes the remaining steps.
        self.train(name, first, *flags, f"--steps={STEPS}",
                   f"--save_every={HALF}", model=model)
        for step in os.listdir(checkpoints):
            if step != f"step-{HALF:06d}":
                shutil.rmtree(os.path.join(checkpoints, step))
        # The second mesh starts with bitwise the first one's values.
        held = self.train(name + " held", second, f"--steps={HALF}", *flags,
                          "--resume", model=model)[1]
        saved = self.whole_tensors(f"{checkpoints}/step-{HALF:06d}")
        self.assertEqual(
            {name: list(values) for name, values in self.tensors(held).items()},
            self.by_file_names(saved))
        lines, weights = self.train(name, second, *flags, f"--steps={STEPS}",
                                    "--resume", model=model)
        self.assertEqual(sorted(name for name in os.listdir(checkpoints)
                                if name.startswith("step-")),
                         [f"step-{HALF:06d}", f"step-{STEPS:06d}"])
        return lines, weights, checkpoints

    def test_the_same_mesh_goes_on_in_the_same_bits(self):
        for mesh, *how in [
                ("fsdp:1",), ("fsdp:2,tp:2",), ("replicate:2,fsdp:2",), ("tp:3",),
                ("replicate:2,fsdp:2,tp:2",), ("fsdp:2,tp:2", "--save_async"),
                ("fsdp:2,tp:2", "--dtype=bfloat16"),
                ("fsdp:3", "--offload", "--recompute"),
                ("fsdp:2,tp:2", f"--eos={ord('.')}")]:
            with self.subTest(mesh=mesh, how=how):
                whole = self.train("whole", mesh, f"--steps={STEPS}", *(
                    flag for flag in how if flag != "--save_async"))
                lines, weights, _ = self.stop_and_go_on(mesh, mesh, how=how)
                # The first step after a resume already leases moments.
                for line in whole[0] + lines:
                    del line["peak_bytes"]
                self.assertEqual(len(lines), len(whole[0]))
                for line, expected in zip(lines, whole[0]):
                    self.assertEqual(line, expected)
                self.assertTrue(weights == whole[1], "the weights differ")

    def check_meshes(self, model, pairs):
        one_rank = self.path("one rank")
        whole, _ = self.train("whole", "fsdp:1", f"--steps={STEPS}",
                              "--checkpoints=" + one_rank, "--save_every=1",
                              model=model)
        bounds = self.bounds(one_rank)
        for first, second in pairs:
            with self.subTest(first=first, second=second):
                lines, _, checkpoints = self.stop_and_go_on(first, second, model)
                self.check_near(checkpoints, one_rank, bounds)
                self.assertEqual([line["step"] for line in lines],
                                 list(range(1, STEPS + 1)))
                for line, expected in zip(lines, whole):
                    self.assertEqual(line["lr"], expected["lr"])
                    # Bounds between meshes, as in tests/conformance.
                    self.assertLess(abs(line["loss"] - expected["loss"]),
                                    2e-6 * expected["loss"])
                    self.assertLess(
                        abs(line["grad_norm"] - expected["grad_norm"]),
                        5e-5 * expected["grad_norm"])

    # With the tied ones, twelve pairs.
    def test_another_mesh_goes_on_as_one_rank_would(self):
        self.check_meshes(MODEL, [
            ("fsdp:1", "fsdp:2,tp:2"), ("fsdp:2,tp:2", "fsdp:1"),
            ("fsdp:3", "tp:4"), ("tp:3", "replicate:2,fsdp:2"),
            ("replicate:2,fsdp:3", "tp:2,fsdp:2"), ("fsdp:2,tp:2", "tp:2,fsdp:2"),
            ("replicate:2,fsdp:2,tp:2", "fsdp:3"),
            ("tp:2,fsdp:2", "replicate:2,fsdp:2,tp:2"), ("tp:4", "fsdp:5")])

    def test_a_tied_model_goes_on(self):
        self.check_meshes(self.tied_model(), [
            ("fsdp:2,tp:2", "fsdp:3"), ("tp:3", "fsdp:2,tp:2"),
            ("replicate:2,fsdp:2,tp:2", "tp:3")])

    def check_all_meshes(self, model):
        pairs = [(a, b) for a in MESHES for b in MESHES if a != b]
        self.assertGreaterEqual(len(pairs), 12)
        self.check_meshes(model, pairs)

    @unittest.skipUnless(ALL, "for the nightly run")
    def test_between_all_meshes(self):
        self.check_all_meshes(MODEL)

    @unittest.skipUnless(ALL, "for the nightly run")
    def test_a_tied_model_between_all_meshes(self):
        self.check_all_meshes(self.tied_model())

    def test_a_signal_leaves_a_checkpoint_and_status_0(self):
        checkpoints, metrics = self.path("run"), self.path("run.metrics")
        run_flags = ["--mesh=fsdp:2,tp:2", "--schedule=constant"]
        flags = [*MODEL, *RUN, *run_flags, "--steps=100000",
                 "--checkpoints=" + checkpoints, "--metrics=" + metrics]
        for stop in signal.SIGTERM, signal.SIGINT:
            run = subprocess.Popen(
                [PROGRAM, "--text=" + self.text, *flags,
                 *(["--resume"] if stop == signal.SIGINT else [])],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(run.kill)
            while "  loss " not in run.stdout.readline():
                self.assertIsNone(run.poll())
            run.send_signal(stop)
            out, error = run.communicate(timeout=LONG)
            self.assertEqual((run.returncode, error), (0, ""))
            step = int(out.split("stopped by a signal after step ")[1].split()[0])
            self.assertTrue(os.path.exists(
                f"{checkpoints}/step-{step:06d}/checkpoint.json"))
            lines = self.read(metrics)
            self.assertEqual([line["step"] for line in lines],
                             list(range(1, step + 1)))
        # The two runs together are one.
        whole, _ = self.train("whole", "fsdp:2,tp:2", *run_flags,
                              f"--steps={step}")
        self.assertEqual([line["loss"] for line in lines],
                         [line["loss"] for line in whole])

    def test_keeps_the_newest_while_training_goes_on(self):
        for how in [], ["--save_async"]:
            with self.subTest(how=how):
                checkpoints = self.path("kept" + "".join(how))
                flags = ["--mesh=fsdp:2,tp:2", "--checkpoints=" + checkpoints,
                         "--save_every=1", "--keep=2", *how]
                plain, _ = self.train("plain", "fsdp:2,tp:2",
                                      f"--steps={STEPS}")
                lines, _ = self.train("run", "fsdp:2,tp:2", *flags,
                                      f"--steps={STEPS}")
                self.assertEqual([line["loss"] for line in lines],
                                 [line["loss"] for line in plain])
                self.assertEqual(sorted(os.listdir(checkpoints)),
                                 [f"step-{STEPS - 1:06d}", f"step-{STEPS:06d}"])

    def test_a_checkpoint_that_cannot_be_written_ends_no_training(self):
        for how in [], ["--save_async"]:
            with self.subTest(how=how):
                checkpoints = self.path("run" + "".join(how))
                model = self.path("model" + "".join(how))
                held = Held(self, *MODEL, *RUN, "--steps=3", "--save_every=1",
                            *how, "--checkpoints=" + checkpoints,
                            "--save=" + model)
                # An existing directory that is no checkpoint is not replaced.
                os.mkdir(checkpoints)
                open(os.path.join(checkpoints, "step-000002"), "w").close()
                out, error = held.let_go(status=1)
                self.assertIn("trained 3 steps", out)
                self.assertRegex(out, SAVED.format(2, "s"))
                self.assertIn("are in " + checkpoints + "/step-000002.saving",
                              error)
                self.assertTrue(os.path.exists(model + "/model.safetensors"))
                for step in "step-000002.saving", "step-000003":
                    self.assertTrue(os.path.exists(
                        f"{checkpoints}/{step}/checkpoint.json"))

    def test_two_runs_in_one_directory_cost_each_other_no_checkpoint(self):
        checkpoints = self.path("both")
        flags = [*NO_SEED, *RUN, "--steps=3", "--save_every=1", "--keep=1",
                 "--checkpoints=" + checkpoints]
        held = Held(self, *flags, "--seed=1")
        self.run_program(*flags, "--seed=2")
        self.assertEqual(os.listdir(checkpoints), ["step-000003"])
        _, error = held.let_go(status=1)
        self.assertIn(checkpoints + "/step-000003.saving", error)
        for step, seed in ("step-000003", 2), ("step-000003.saving", 1):
            with open(f"{checkpoints}/{step}/checkpoint.json") as file:
                self.assertIn(f'"run.seed": {seed}', file.read())
        run = self.run_program(*flags, "--resume")
        self.assertIn("step-000003.saving is from a save", run.stderr)

    def test_one_command_begins_goes_on_and_ends_a_job(self):
        model = self.path("model")
        flags = ["--text=" + self.text, *MODEL, *RUN, "--steps=100000",
                 "--checkpoints=" + self.path("run"), "--resume",
                 "--save=" + model, "--overwrite"]
        saved = []
        for _ in range(2):
            run = subprocess.Popen([PROGRAM, *flags], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
            self.addCleanup(run.kill)
            while "  loss " not in run.stdout.readline():
                self.assertIsNone(run.poll())
            run.send_signal(signal.SIGTERM)
            out, error = run.communicate(timeout=LONG)
            self.assertEqual((run.returncode, error), (0, ""))
            self.assertIn("stopped by a signal", out)
            saved.append(self.weights(model))
        self.assertNotEqual(*saved)

    def test_says_where_it_begins(self):
        checkpoints = self.path("run")
        flags = [*MODEL, *RUN, "--checkpoints=" + checkpoints]
        run = self.run_program(*flags, "--steps=2", "--resume")
        self.assertIn("holds no checkpoint yet: the run starts", run.stdout)
        self.assertRegex(run.stdout, SAVED.format(1, ""))
        run = self.run_program(*flags, "--steps=3", status=1)
        self.assertIn(f"--checkpoints={checkpoints} holds step-000002 of an "
                      "earlier run: --resume continues", run.stderr)
        run = self.run_program(*flags, "--steps=3", "--resume")
        self.assertIn(f"resumes after step 2 of {checkpoints}/step-000002",
                      run.stdout)
        self.assertIn("trained 1 steps", run.stdout)
        run = self.run_program(*flags, "--steps=3", "--resume")
        self.assertIn("no steps are left to train: --steps=3", run.stdout)
        # A modified file, another model and other data.
        index = checkpoints + "/step-000003/checkpoint.json"
        with open(index) as file:
            text = file.read()
        # In a checkpoint without a hash, the run's own values are checked.
        unhashed = re.sub(',\n"index_hash": "[^"]*"', "", text)
        self.assertNotEqual(unhashed, text)
        most = str(2**63 - 1)
        for begin, pattern, value, says in [
                (text, '"run.step": 3', "2", "its contents differ from the saved"),
                (unhashed, '"run.step": 3', "-3", "is of step -3, at token"),
                (unhashed, '"run.step": 3', "2", "is of step 2, at token"),
                (unhashed, r'"run.position": \d+', most, "at token " + most),
                (unhashed, r'"optimizer\.[^"]*\.step": 3', most,
                 f"is {most}, which is out of range")]:
            changed = re.sub(pattern,
                             lambda m: m[0].split(": ")[0] + ": " + value,
                             begin, count=1)
            self.assertNotEqual(changed, begin)
            with open(index, "w") as file:
                file.write(changed)
            run = self.run_program(*flags, "--steps=4", "--resume", status=1)
            self.assertIn(says, run.stderr)
        with open(index, "w") as file:
            file.write(text)
        # Also a model with the same shapes.
        for change, says in [
                ("--layers=3",
                 "num_hidden_layers was 2 and is 3 (--layers=2);"),
                ("--heads=2", "num_attention_heads was 6 and is 2 (--heads=6);"),
                ("--dtype=bfloat16",
                 "--dtype was float32 and is bfloat16; restore the former values, "
                 "or allow the change with --may_change=dtype")]:
            run = self.run_program(*flags, "--steps=4", change, "--resume",
                                   status=1)
            self.assertIn(f"{checkpoints}/step-000003 belongs to another run: ",
                          run.stderr)
            self.assertIn(says, run.stderr)
        # A config field that affects no shape.
        base = self.path("base")
        self.run_program(*MODEL, "--lr=0", "--steps=1", "--save=" + base)
        with open(base + "/config.json") as file:
            config = json.load(file)
        config.update(rope_theta=20, rms_norm_eps=1e-5)
        with open(base + "/config.json", "w") as file:
            json.dump(config, file)
        run = self.run_program(*RUN, "--checkpoints=" + checkpoints,
                               "--steps=4", "--model=" + base, "--resume",
                               status=1)
        self.assertIn("rope_theta was 10000.0 and is 20.0", run.stderr)
        run = self.run_program(*flags, "--steps=4", "--seed=4", "--resume",
                               status=1)
        self.assertIn(f"--seed=4: {checkpoints}/step-000003 is from a run with "
                      "--seed=3, which a resumed run keeps", run.stderr)
        with open(self.text, "a") as file:
            file.write("More.")
        run = self.run_program(*flags, "--steps=4", "--resume", status=1)
        self.assertIn("the number of tokens was 315 and is 320; restore the former "
                      "values, or allow the change with --may_change=data", run.stderr)
        run = self.run_program(*flags, "--steps=4", "--resume",
                               "--may_change=data")
        self.assertIn(f"since {checkpoints}/step-000003 the number of tokens "
                      "was 315 and is 320", run.stdout)
        # The same number of other tokens, e.g. of another tokenizer, and other
        # batches. One different byte is enough.
        with open(self.text, "r+") as file:
            file.seek(101)
            file.write("z")
        run = self.run_program(*flags, "--steps=5", "--resume", status=1)
        self.assertIn("the tokens differ (their number is the same)", run.stderr)
        run = self.run_program(*flags, "--steps=5", "--global_batch=6",
                               "--may_change=data", "--resume")
        self.assertIn("the tokens differ (their number is the same)", run.stdout)
        self.assertIn("a step was 5 rows of 13 tokens and is 6 rows of 13 "
                      "tokens", run.stdout)
        # An allowed change is recorded in the next checkpoint.
        run = self.run_program(*flags, "--steps=6", "--global_batch=6",
                               "--resume")
        self.assertNotIn("since ", run.stdout)
        # Checkpoints of older versions do not have it.
        index = checkpoints + "/step-000006/checkpoint.json"
        with open(index) as file:
            older = json.load(file)
        del older["index_hash"]
        for name in [*older["values"]]:
            if name.startswith("identity."):
                del older["values"][name]
        older["values"]["batch.hash"] = 7
        with open(index, "w") as file:
            json.dump(older, file)
        run = self.run_program(*flags, "--steps=7", "--resume")
        self.assertIn("resumes after step 6", run.stdout)

    def test_goes_on_from_a_step_that_is_named(self):
        checkpoints = self.path("run")
        flags = [*MODEL, *RUN, "--checkpoints=" + checkpoints,
                 f"--steps={STEPS}", "--save_every=1", "--keep=5"]
        whole = self.train("whole", "fsdp:1", *flags)
        run = self.run_program(*flags, "--resume_step=1", status=1)
        self.assertIn(f"--resume_step=1: --checkpoints={checkpoints} holds "
                      "checkpoints of the steps 2, 3, 4, 5, 6", run.stderr)
        # The error for a damaged newest checkpoint names an earlier intact one.
        for step in 5, 6:
            name = f"{checkpoints}/step-{step:06d}/state-00001-of-00001.safetensors"
            with open(name, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\x01")
        run = self.run_program(*flags, "--resume", status=1)
        self.assertIn("step-000006 differs from what was saved", run.stderr)
        self.assertIn("; the last complete one before it is "
                      f"{checkpoints}/step-000004", run.stderr)
        # Everything that an uninterrupted run computes.
        again = self.train("again", "fsdp:1", *flags, "--resume_step=4")
        self.assertEqual([line["loss"] for line in again[0]],
                         [line["loss"] for line in whole[0]][4:])
        self.assertTrue(again[1] == whole[1], "the weights differ")
        self.assertEqual(
            sorted(os.listdir(checkpoints)),
            ["step-000002", "step-000003", "step-000004", "step-000005",
             "step-000005.aside", "step-000006", "step-000006.aside"])
        # The same command again would discard what this run has computed.
        run = self.run_program(*flags, "--resume_step=4", status=1)
        self.assertIn(f"--resume_step=4: {checkpoints}/step-000005.aside was set "
                      "aside before", run.stderr)
        self.assertTrue(os.path.isdir(checkpoints + "/step-000006"))
        self.run_program(*flags, "--resume")

    def test_a_sample_is_the_same_on_every_mesh(self):
        with open(self.text, "w") as file:
            file.write("abcdefgh" * 50)
        checkpoints = self.path("run")
        self.run_program(*MODEL, "--mesh=fsdp:2", "--steps=40", "--lr=0.02",
                         "--global_batch=5", "--seq_len=13",
                         "--checkpoints=" + checkpoints)

        def sample(mesh, *flags, model=MODEL):
            run = self.run_program(*model, "--mesh=" + mesh, "--steps=40",
                                   "--checkpoints=" + checkpoints, "--resume",
                                   *flags)
            return run.stdout.split("sample: ")[1]
        for mesh in ["fsdp:1", "tp:4", "fsdp:2,tp:3"]:
            # It has learned the text.
            self.assertEqual(sample(mesh, "--sample=21", "--prompt=def",
                                    "--temperature=0"),
                             "defghabcdefghabcdefghabc\n")
        hot = ["--sample=40", "--temperature=5", "--vocab=131"]
        drawn = sample("fsdp:1", *hot)
        self.assertEqual(drawn, sample("fsdp:1", *hot, model=NO_SEED))
        self.assertEqual(drawn, sample("fsdp:1", *hot))
        self.assertEqual(drawn[:16], "abcdefghabcdefgh")
        self.assertNotEqual(drawn[16:24], "abcdefgh")
        self.assertEqual(sample("fsdp:1", *hot, "--top_k=1")[16:24], "abcdefgh")


if __name__ == "__main__":
    unittest.main()
