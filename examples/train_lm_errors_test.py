#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors of train_lm: each is one line, and nothing is left behind.

usage: train_lm_errors_test.py PROGRAM MODEL_FILE
where MODEL_FILE is a file of a Hugging Face model directory.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from train_lm_testcase import PROGRAM, SMALL, TrainLmTestCase

MODEL_FILE = sys.argv.pop(1)
MODEL = os.path.dirname(MODEL_FILE)


class TrainLmErrorsTest(TrainLmTestCase):
    def test_invalid_flags_and_files(self):
        text = "--text=" + self.text
        odd, empty, fifo = (self.path(n) for n in ["odd", "empty", "fifo"])
        with open(odd, "wb") as file:
            file.write(b"abc")
        open(empty, "w").close()
        os.mkfifo(fifo)
        os.symlink(self.path("nowhere"), self.path("link"))
        # A link to a file that does not exist yet, in an empty directory.
        os.mkdir(self.path("place"))
        os.symlink(self.path("place/metrics"), self.path("later"))
        os.mkdir(self.path("taken"))
        open(self.path("taken/step-000002"), "w").close()
        config = self.path("config")
        os.mkdir(config)
        with open(MODEL_FILE) as file:
            fields = json.load(file)

        def model(**changes):
            """Returns a directory whose config.json has these fields changed."""
            place = tempfile.mkdtemp(dir=config)
            with open(os.path.join(place, "config.json"), "w") as file:
                json.dump({**fields, **changes}, file)
            return "--model=" + place

        def raw(content):
            place = tempfile.mkdtemp(dir=config)
            with open(os.path.join(place, "config.json"), "wb") as file:
                file.write(content)
            return "--model=" + place

        huge = str(2 ** 63 - 1)
        short = self.path("short")
        with open(short, "w") as file:
            file.write("a " * 45)
        for flags, expected in [
            # Training data.
            ([], "either --text=FILE,... or --tokens=FILE"),
            (["--text="], "either --text=FILE,... or --tokens=FILE"),
            ([text, "--tokens=" + self.text], "either --text=FILE,..."),
            (["--text=/no/such"], "cannot open /no/such: No such file"),
            (["--text=" + self.dir], "neither a file nor a pipe"),
            (["--text=/dev/zero"], "neither a file nor a pipe"),
            (["--text=" + empty], "is empty"),
            ([text + ",," + self.text], "cannot open "),
            (["--tokens="], "--tokens= is empty"),
            (["--tokens=" + odd], "their number must be even"),
            (["--tokens=" + self.dir], "neither a file nor a pipe"),
            (["--tokens=" + self.text, "--vocab=9"], "beyond the vocabulary"),
            ([text, "--vocab=50"], "beyond the vocabulary of 50"),
            # The command line.
            ([text, "more"], '"more" is not a flag'),
            ([text, "--seq_length=9"],
             "Unknown command line flag 'seq_length'"),
            ([text, "--dim=x"], "dim"),
            ([text, "--dim="], "dim"),
            ([text, "--heads=4.5"], "heads"),
            ([text, "--steps=9223372036854775808"], "steps"),
            ([text, "--seed=-1"], "seed"),
            ([text, "--timeout=3"], "timeout"),
            ([text, "--overwrite=maybe"], "overwrite"),
            # The mesh.
            ([text, "--mesh="],
             "--mesh= is empty: must be AXIS:SIZE,..., e.g. fsdp:2,tp:2"),
            ([text, "--mesh=pp:2"], 'unknown axis "pp"'),
            ([text, "--mesh=fsdp:0"], '"fsdp:0" is not AXIS:SIZE'),
            ([text, "--mesh=fsdp:-1"], '"fsdp:-1" is not AXIS:SIZE'),
            ([text, "--mesh=fsdp:2,"], '"" is not AXIS:SIZE'),
            ([text, "--mesh=fsdp"], '"fsdp" is not AXIS:SIZE'),
            ([text, "--mesh=tp:2,tp:2"], 'the axis "tp" is given twice'),
            ([text, "--mesh=fsdp:99999999999"], "is not AXIS:SIZE"),
            ([text, "--mesh=fsdp:2000000"], "more than 1048576 ranks"),
            ([text, "--mesh=fsdp:1048576"], "local runs at most 4096"),
            ([text, "--fake_rank=1"], "--fake_rank is for --engine=fake"),
            ([text, "--fake_rank=0"], "--fake_rank is for --engine=fake"),
            ([text, "--engine=fake", "--fake_rank=-1"], "--fake_rank=-1"),
            ([text, "--engine=fake", "--fake_rank=1"], "ranks 0 to 0"),
            ([text, "--engine=nccl"], "must be one of auto local processes"),
            ([text, "--engine=processes"], "no launcher started this process as a rank"),
            ([text, "--dtype=float8"], "must be float32 or bfloat16"),
            ([text, "--cuda_graphs=yes"], "must be on, auto or off"),
            ([text, "--cuda_graphs=on"], "--cuda_graphs=on: the CPU has no graphs"),
            ([text, "--verbose"], "--verbose needs --engine=fake"),
            # Sizes of a model.
            ([text, "--heads=3"], "heads must divide dim: dim 128, 3 heads"),
            ([text, "--dim=130"], "heads must divide dim"),
            ([text, "--dim=12"], "head_dim must be even"),
            ([text, "--dim=0"], "dim must be at least 1, not 0"),
            ([text, "--dim=-128"], "dim must be at least 1"),
            ([text, "--heads=0"], "heads must be at least 1"),
            ([text, "--kv_heads=3"], "kv_heads must divide heads"),
            ([text, "--kv_heads=-1"], "kv_heads must be at least 1"),
            ([text, "--layers=0"], "layers must be at least 1"),
            ([text, "--layers=1000000000"], "layers must be at most 10000"),
            ([text, "--ffn=0"], "ffn must be at least 1"),
            ([text, "--vocab=" + huge], "vocab must be at most"),
            ([text, "--dim=1000000000"], "parameters"),
            ([text, "--dim=1000000"], "this machine has"),
            ([text, "--ffn=100000000000"], "this machine has"),
            # Sizes of a step.
            ([text, "--steps=0"], "--steps=0: must be at least 1"),
            ([text, "--seq_len=0"], "--seq_len=0: must be at least 1"),
            ([text, "--seq_len=" + huge], "is too large"),
            ([text, "--seq_len=" + huge, "--engine=fake"], "is too large"),
            ([text, "--global_batch=" + huge], "is too large"),
            ([text, "--global_batch=-1"], "must be at least 1"),
            ([text, "--global_batch=100000000"], "this machine has"),
            ([text, "--seq_len=30000000"], "this machine has"),
            # Other numbers.
            ([text, "--accumulate=0"], "--accumulate=0: must be at least 1"),
            ([text, "--accumulate=9"], "must be at most 8, the rows of"),
            ([text, "--float8=mxfp8"], "must be tensorwise or rowwise"),
            ([text, "--schedule=step"], "must be constant, linear or cosine"),
            ([text, "--warmup=-1"], "--warmup=-1: must be at least 0"),
            ([text, "--warmup=9", "--steps=8", "--schedule=linear"],
             "--warmup=9: must be at most 8"),
            ([text, "--decay=none"], "--decay=none: must be all or matrices"),
            ([text, "--eval_every=1"], "--eval_every needs --eval_text"),
            ([text, "--eval_text=/no/such"], "cannot open /no/such"),
            ([text, "--seq_len=900"],
             "--seq_len=900: a row needs 901 tokens, but the data have 900"),
            ([text, "--eval_text=" + short, "--seq_len=90"],
             "--eval_text holds 90 tokens"),
            ([text, "--eval_text=" + self.text, "--engine=fake"],
             "no values to evaluate"),
            ([text, "--token_bits=16"], "--token_bits needs --tokens"),
            ([text, "--eos=x"], "--eos=x: must be a token"),
            ([text, "--eos=-1"], "--eos=-1: must be a token"),
            ([text, "--eos=config"], "--eos=config needs --model"),
            ([text, "--eos=7"], "--eos: none of the 900 tokens is 7"),
            ([text, "--eos=config", model(eos_token_id=[1, 2])],
             "is [1, 2], but must be one token of the 256"),
            (["--tokens=" + self.text, "--token_bits=8"],
             "must be 16, 32 or 0"),
            ([text, "--save_every=1"], "--save_every needs --checkpoints"),
            ([text, "--keep=1"], "--keep needs --checkpoints"),
            ([text, "--save_async"], "--save_async needs --checkpoints"),
            ([text, "--resume"], "--resume needs --checkpoints"),
            ([text, "--checkpoints="], "--checkpoints= is empty"),
            ([text, "--checkpoints=" + self.path("out"), "--keep=-1"],
             "--keep=-1: must be at least 0"),
            ([text, "--checkpoints=" + self.path("out"), "--engine=fake"],
             "computes no values"),
            ([text, "--checkpoints=" + self.path("out/a"),
              "--save=" + self.path("out")], "contain each other"),
            ([text, "--checkpoints=" + self.text], self.text),
            ([text, "--sample=-1"], "--sample=-1: must be at least 0"),
            ([text, "--sample=1", "--top_k=-1"], "--top_k=-1: must be at least 0"),
            ([text, "--sample=1", "--temperature=-1"], "--temperature=-1: must be a number"),
            ([text, "--prompt=a"], "--prompt needs --sample"),
            ([text, "--sample=1", "--prompt="], "--prompt= is empty"),
            ([text, "--sample=1", "--prompt=\xe9", "--vocab=130"],
             "beyond the vocabulary"),
            ([text, "--sample=1", "--engine=fake"], "no logits to sample from"),
            ([text, "--top_k=2"], "--top_k needs --sample"),
            ([text, "--temperature=1"], "--temperature needs --sample"),
            ([text, "--sample=" + huge], "--sample=" + huge + ": must be at"),
            ([text, "--sample=100000000000"], "draw fewer"),
            (["--tokens=" + self.text, "--sample=1", "--prompt=a"],
             "--prompt needs --text"),
            ([text, "--lr=nan"], "--lr=nan: must be a number"),
            ([text, "--lr=-1"], "--lr=-1: must be a number of at least 0"),
            ([text, "--lr=inf"], "--lr=inf: must be a number"),
            ([text, "--beta1=1"], "--beta1=1: must be at least 0 and below 1"),
            ([text, "--beta2=nan"], "--beta2=nan"),
            ([text, "--eps=-1e-9"], "--eps=-1e-09: must be a number above 0"),
            ([text, "--eps=0"], "--eps=0: must be a number above 0"),
            ([text, "--eps=1e-60"], "--eps=1e-60: must be a number above 0"),
            ([text, "--weight_decay=inf"], "--weight_decay=inf"),
            ([text, "--clip_norm=nan"], "--clip_norm=nan"),
            ([text, "--timeout=0s"], "--timeout: must be above zero"),
            ([text, "--timeout=-5m"], "--timeout: must be above zero"),
            ([text, "--lr=1e30", "--mesh=fsdp:2", "--steps=9"], "nan"),
            # A model.
            ([text, "--model="], "--model= is empty"),
            ([text, "--model=/no/such"], "cannot open /no/such/config.json"),
            ([text, "--model=" + self.text], "Not a directory"),
            ([text, "--model=" + MODEL, "--dim=64"], "brings its own"),
            ([text, "--model=" + MODEL, "--dim=128"], "brings its own"),
            ([text, "--model=" + MODEL, "--kv_heads=0"], "brings its own"),
            ([text, "--model=" + MODEL, "--seed=0"], "brings its own"),
            ([text, raw(b"")], "is not JSON"),
            ([text, raw(b"\xff{}")], "is not JSON"),
            ([text, raw(b"[" * 200000 + b"]" * 200000)], "nested deeper"),
            ([text, model(x=json.loads("[" * 90 + "]" * 90))], "nested deeper"),
            ([text, raw(b'{"num_key_value_heads": ' + b"[" * 200000)],
             "nested deeper"),
            ([text, model(num_key_value_heads=0)], "must be at least 1"),
            ([text, model(num_key_value_heads=3)], "kv_heads must divide"),
            ([text, model(head_dim=0)], "head_dim is 0"),
            ([text, model(num_attention_heads=6)], "heads must divide dim"),
            ([text, model(num_attention_heads=2 ** 32, head_dim=2 ** 32,
                          hidden_size=2 ** 32, num_key_value_heads=2 ** 32)],
             "parameters"),
            ([text, model(hidden_size=2 ** 63)], "a size is expected"),
            ([text, model(hidden_size=-64)], "a size is expected"),
            ([text, model(num_hidden_layers=10 ** 9)], "at most 10000"),
            ([text, model(vocab_size="257")], "a size is expected"),
            ([text, model(eos_token_id={})], "eos_token_id is {}"),
            ([text, model()], "holds neither model.safetensors nor"),
            # Output paths.
            ([text, "--save="], "--save= is empty"),
            ([text, "--save=/proc/x"], "/proc/x"),
            ([text, "--save=" + self.text], "not a directory"),
            ([text, "--save=" + self.text + "/a"], "is not a directory"),
            ([text, "--save=" + self.path("link")], "is a link to"),
            ([text, "--save=/"], "a mount point"),
            ([text, "--save=/proc", "--overwrite"], "a mount point"),
            ([text, "--save=" + self.path("a" * 250)], "File name too long"),
            ([text, "--save=" + self.path("out"), "--engine=fake"],
             "computes no values"),
            ([text, "--overwrite"], "--overwrite needs --save"),
            ([text, "--metrics="], "--metrics= is empty"),
            ([text, "--metrics=" + self.dir], "Is a directory"),
            ([text, "--metrics=/no/such/file"], "No such file"),
            ([text, "--metrics=/proc/x"], "--metrics: cannot write /proc/x"),
            ([text, "--metrics=" + fifo], "No such device"),
            ([text, "--metrics=" + odd], "is not overwritten"),
            ([text, "--metrics=" + self.path("c/step-000002/checkpoint.json"),
              "--checkpoints=" + self.path("c")], "is in --checkpoints"),
            ([text, "--report=" + self.path("c/run.html"),
              "--checkpoints=" + self.path("c")], "is in --checkpoints"),
            ([text, "--checkpoints=" + self.path("taken")],
             "taken/step-000002 exists and is not a directory"),
            ([text, "--metrics=" + self.text], "which is only read"),
            ([text, "--metrics=" + self.path("out/metrics"),
              "--save=" + self.path("out")], "is in --save"),
            ([text, "--metrics=" + self.path("out"),
              "--save=" + self.path("out")], "is in --save"),
            ([text, "--metrics=" + self.path("later"),
              "--save=" + self.path("place")], "is in --save"),
            ([text, "--metrics=" + MODEL_FILE, "--model=" + MODEL],
             "is in --model"),
        ]:
            with self.subTest(flags):
                self.assertIn(expected, self.refusal(*flags))
        with open(self.text) as file:
            self.assertIn("A small text", file.read())
        self.assertEqual(sorted(os.listdir(self.dir)),
                         ["config", "empty", "fifo", "later", "link", "odd",
                          "place", "short", "taken", "text"])
        self.assertEqual(os.listdir(self.path("place")), [])

    def test_an_invalid_seed_in_the_environment(self):
        run = subprocess.run(
            [PROGRAM, "--text=" + self.text, *SMALL], capture_output=True,
            text=True, env={**os.environ, "CROSSHATCH_ADVERSARIAL_SEED": "abc"})
        self.assertEqual(run.returncode, 1)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        self.assertIn("CROSSHATCH_ADVERSARIAL_SEED=abc", run.stderr)

    def test_a_short_timeout(self):
        for timeout in ["1ns", "100us"]:
            line = self.refusal("--text=" + self.text, "--mesh=fsdp:2,tp:2",
                                "--timeout=" + timeout, *SMALL)
            self.assertIn("timed out after " + timeout, line)

    def test_a_directory_that_is_not_empty(self):
        out = self.path("full")
        os.mkdir(out)
        with open(os.path.join(out, "mine"), "w") as file:
            file.write("keep")
        self.assertIn("not empty", self.refusal(
            "--text=" + self.text, "--save=" + out))
        self.assertEqual(os.listdir(out), ["mine"])

    def test_a_damaged_model_leaves_no_files(self):
        bad = self.path("bad")
        shutil.copytree(MODEL, bad)
        weights = os.path.join(bad, "model.safetensors")
        os.chmod(bad, 0o755)
        os.chmod(weights, 0o644)
        with open(weights, "rb") as file:
            content = file.read()
        out = self.path("out")
        for damaged, expected in [
            (content[:5], "ends after 5 bytes"),
            (content[:len(content) // 2], "truncated"),
            (b"\xff" * 8 + content[8:], "not a valid safetensors file"),
            (content[:8] + b"[" + content[9:], "not a valid safetensors file"),
        ]:
            with open(weights, "wb") as file:
                file.write(damaged)
            self.assertIn(expected, self.refusal(
                "--text=" + self.text, "--model=" + bad, "--mesh=fsdp:2",
                "--save=" + out))
            self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    unittest.main()
