#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The effects of single flags of train_lm on a training.

usage: train_lm_flags_test.py PROGRAM
"""

import json
import struct
import unittest

from train_lm_testcase import SMALL, TIMES, VALUES, TrainLmTestCase


class TrainLmFlagsTest(TrainLmTestCase):
    def test_micro_batches_add_up_to_the_batch(self):
        # 5 rows as 2, 2 and 1; some ranks have no rows in some micro-batches.
        for mesh in ["fsdp:1", "fsdp:2,tp:2", "replicate:2,fsdp:2"]:
            whole = self.metrics("--mesh=" + mesh)
            for count in ["2", "3", "5"]:
                parts = self.metrics("--mesh=" + mesh, "--accumulate=" + count)
                for a, b in zip(whole, parts):
                    # Sums of float32 in another order, then 3 steps of them.
                    self.assertAlmostEqual(a["loss"], b["loss"], 5)
                    self.assertAlmostEqual(a["grad_norm"], b["grad_norm"], 4)
            self.assertLess(parts[0]["peak_bytes"]["activation"],
                            whole[0]["peak_bytes"]["activation"])

    def test_less_memory_gives_the_same_bits(self):
        for mesh in ["fsdp:2,tp:2", "replicate:2,fsdp:2"]:
            without = [*TIMES, "peak_bytes", "moved", "copied_bytes"]
            flags = ["--mesh=" + mesh, "--layers=4"]
            plain = self.metrics(*flags)
            recomputed = self.metrics(*flags, "--recompute")
            offloaded = self.metrics(*flags, "--offload")
            self.assertLess(recomputed[1]["peak_bytes"]["activation"],
                            plain[1]["peak_bytes"]["activation"] / 2)
            self.assertEqual(offloaded[1]["peak_bytes"]["optimizer_state"], 0)
            for lines in plain, recomputed, offloaded:
                for line in lines:
                    for key in without:
                        del line[key]
            self.assertEqual(recomputed, plain)
            self.assertEqual(offloaded, plain)

    def test_float8_trains_on_any_mesh_and_gathers_less(self):
        flags = ["--dim=64", "--ffn=48", "--dtype=bfloat16"]
        def gathered_bytes(line):
            return line["moved"].get("fsdp", {}).get("all_gather", {}).get("bytes", 0)
        plain = {}
        gathered = {}
        for mesh in ["fsdp:1", "fsdp:2,tp:2", "fsdp:3", "replicate:2,fsdp:2"]:
            plain[mesh] = self.metrics("--mesh=" + mesh, *flags)
            for recipe in ["tensorwise", "rowwise"]:
                given = ["--mesh=" + mesh, *flags, "--float8=" + recipe]
                lines = self.metrics(*given)
                self.assertNotEqual(lines[0]["loss"], plain[mesh][0]["loss"])
                for a, b in zip(lines, plain[mesh]):
                    self.assertAlmostEqual(a["loss"], b["loss"], delta=0.05 * b["loss"])
                without = [*TIMES, *VALUES]
                recomputed = self.metrics(*given, "--recompute")
                for a, b in zip(lines, recomputed):
                    self.assertEqual([a[key] for key in VALUES], [b[key] for key in VALUES])
                for line in lines:
                    for key in without:
                        del line[key]
                self.assertEqual(lines, self.metrics(*given, "--engine=fake", without=without))
                gathered[mesh, recipe] = gathered_bytes(lines[1])
        for mesh, lines in plain.items():
            self.assertEqual(gathered[mesh, "rowwise"], gathered_bytes(lines[1]), mesh)
            if mesh != "fsdp:1":
                self.assertLess(gathered[mesh, "tensorwise"], gathered[mesh, "rowwise"])

    def test_float8_names_what_it_converts(self):
        flags = ["--text=" + self.text, *SMALL, "--steps=1"]
        run = self.run_program(*flags, "--float8=tensorwise")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("linear layers in float8; skipped: ", run.stdout + run.stderr)
        self.assertIn("lm_head (matches lm_head)", run.stdout + run.stderr)
        run = self.run_program(*flags, "--dim=24", "--ffn=20", "--float8=rowwise")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("--float8=rowwise: 0 linear layers in float8", run.stderr)

    def test_packed_documents_are_documents_alone(self):
        # Documents of four tokens: four per row, or one per row.
        words = ["abc.", "bad.", "cab.", "deb.", "ebb."]
        with open(self.text, "w") as file:
            file.write("".join(words[i * i % 5] for i in range(203)))
        packed = ["--seq_len=16", "--global_batch=5"]
        alone = ["--seq_len=4", "--global_batch=20"]
        eos = "--eos=" + str(ord("."))
        expected = self.metrics(eos, *alone)
        for flags in [["--mesh=fsdp:1"], ["--mesh=fsdp:2,tp:2"],
                      ["--mesh=fsdp:3,tp:2", "--accumulate=2", "--recompute"]]:
            lines = self.metrics(eos, *packed, *flags)
            for a, b in zip(lines, expected):
                # Sums of float32 in another order, then 3 steps of them.
                self.assertAlmostEqual(a["loss"], b["loss"], 5, flags)
                self.assertAlmostEqual(a["grad_norm"], b["grad_norm"], 4, flags)
        without = self.metrics(*packed)
        self.assertGreater(abs(without[0]["loss"] - expected[0]["loss"]), 1e-4)
        # Evaluated on the same number of tokens: whole rows, and one more
        # target.
        evaluated = self.path("evaluated")
        with open(evaluated, "w") as file:
            file.write("".join(words[i * i % 5] for i in range(20)) + "a")
        evals = [self.metrics(eos, *flags, "--eval_text=" + evaluated)[2]
                 ["eval_loss"] for flags in (packed, alone)]
        self.assertAlmostEqual(evals[0], evals[1], 5)

    def test_a_dry_run_of_packed_documents_counts_what_a_real_one_does(self):
        values = [*TIMES, "loss", "grad_norm"]
        flags = ["--eos=" + str(ord(".")), "--mesh=fsdp:2,tp:2"]
        self.assertEqual(
            self.metrics(*flags, without=values),
            self.metrics(*flags, "--engine=fake", without=values))

    def test_the_learning_rate_follows_the_schedule(self):
        def rates(*flags):
            return [line["lr"] for line in self.metrics("--lr=0.5", *flags)]
        self.assertEqual(rates(), [0.5, 0.5, 0.5])
        self.assertEqual(rates("--warmup=2"), [0.25, 0.5, 0.5])
        self.assertEqual(rates("--warmup=1", "--schedule=linear"),
                         [0.5, 0.5, 0.25])
        cosine = rates("--schedule=cosine")
        for rate, expected in zip(cosine, [0.5, 0.375, 0.125]):
            self.assertAlmostEqual(rate, expected, 15)

    def test_decay_of_matrices_leaves_norms_and_the_embedding(self):
        # With negligible gradients a step only applies decay.
        out = self.path("model")
        run = self.run_program(
            "--text=" + self.text, *SMALL, "--lr=1e-30", "--eps=1e10",
            "--weight_decay=1e29", "--steps=1", "--decay=matrices",
            "--save=" + out)
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(out + "/model.safetensors", "rb") as file:
            data = file.read()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        decayed = {}
        start = self.path("start")
        run = self.run_program("--text=" + self.text, *SMALL, "--lr=0",
                               "--steps=1", "--save=" + start)
        with open(start + "/model.safetensors", "rb") as file:
            before = file.read()
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + at for at in tensor["data_offsets"])
            decayed[name] = data[begin:end] != before[begin:end]
        for name, is_decayed in decayed.items():
            expected = not ("norm" in name or "embed_tokens" in name)
            self.assertEqual(is_decayed, expected, name)

    def test_evaluates_on_another_text(self):
        eval_text = self.path("eval")
        with open(eval_text, "w") as file:
            file.write("Another text, of 7 rows and a bit. " * 4)
        results = []
        for mesh in ["fsdp:1", "fsdp:3,tp:2"]:
            lines = self.metrics("--mesh=" + mesh, "--eval_text=" + eval_text,
                                 "--eval_every=2")
            self.assertEqual(["eval_loss" in line for line in lines],
                             [False, True, True])
            results.append([lines[1]["eval_loss"], lines[2]["eval_loss"]])
            # It has no other effect.
            plain = self.metrics("--mesh=" + mesh)
            self.assertEqual([line["loss"] for line in plain],
                             [line["loss"] for line in lines])
        for a, b in zip(*results):
            self.assertAlmostEqual(a, b, 5)
        # The loss on the training text before training is the same.
        one = self.path("one")
        with open(self.text) as text, open(one, "w") as file:
            file.write(text.read()[:5 * 17 + 1])
        lines = self.metrics("--lr=0", "--eval_text=" + one, "--eval_every=1")
        self.assertAlmostEqual(lines[0]["eval_loss"], lines[0]["loss"], 6)

    def test_a_plan_that_was_printed_is_the_plan_without_one(self):
        mesh = ["--mesh=fsdp:2,tp:2"]
        printed = self.run_program("--plan=print", *SMALL[:5])
        self.assertEqual(printed.returncode, 0, printed.stderr)
        self.assertIn("layers.*.self_attn.o_proj ", printed.stdout)
        plan = self.path("llama.plan")
        with open(plan, "w") as file:
            file.write(printed.stdout)
        self.assertEqual(self.metrics(*mesh, "--plan=" + plan, without=TIMES),
                         self.metrics(*mesh, without=TIMES))

    def test_a_plan_of_the_users_trains_as_one_rank_does(self):
        # Activations and logits are whole between modules.
        plan = self.path("my.plan")
        with open(plan, "w") as file:
            file.write(
                "# Heads and inner features are split, nothing else.\n"
                "embed_tokens  RowwiseParallel\n"
                "layers.*.*norm  SequenceParallel sequence_dim=1\n"
                "layers.*.self_attn  PrepareModuleInput input=S(1) desired=R\n"
                "layers.*.self_attn.q_proj  ColwiseParallel unit=16\n"
                "layers.*.self_attn.[kv]_proj  ColwiseParallel unit=8\n"
                "layers.*.self_attn.o_proj  RowwiseParallel output=S(1) unit=16\n"
                "layers.*.mlp  PrepareModuleInput input=S(1) desired=R\n"
                "layers.*.mlp.*_proj  ColwiseParallel output=R\n"
                "norm  SequenceParallel\n"
                "lm_head  ColwiseParallel output=R\n")
        one = self.metrics("--mesh=fsdp:1")
        split = self.metrics("--mesh=fsdp:1,tp:3", "--plan=" + plan)
        for a, b in zip(one, split):
            for name in VALUES:
                self.assertAlmostEqual(a[name], b[name], delta=1e-4 * a[name])
        self.assertNotEqual(split[0]["moved"], self.metrics(
            "--mesh=fsdp:1,tp:3")[0]["moved"])

    def test_what_a_plan_leaves_out_is_computed_by_every_rank(self):
        plan = self.path("mlp.plan")
        with open(plan, "w") as file:
            file.write("layers.*.mlp.gate_proj ColwiseParallel\n"
                       "layers.*.mlp.up_proj ColwiseParallel\n"
                       "layers.*.mlp.down_proj RowwiseParallel\n")
        one = self.metrics("--mesh=fsdp:2")
        split = self.metrics("--mesh=fsdp:2,tp:2", "--plan=" + plan)
        for a, b in zip(one, split):
            for name in VALUES:
                self.assertAlmostEqual(a[name], b[name], delta=1e-4 * a[name])

    def test_a_plan_that_is_wrong_is_refused_by_its_line(self):
        plan = self.path("wrong.plan")
        for text, says in [
                ("norm SequenceParallel\nlm_head Colwise\n",
                 'wrong.plan, line 2: there is no style "Colwise"; there are '),
                ("lm_heads ColwiseParallel\n", "lm_heads"),
                ("# nothing\n", "wrong.plan: holds no plan")]:
            with open(plan, "w") as file:
                file.write(text)
            run = self.run_program("--text=" + self.text, *SMALL,
                                   "--mesh=tp:2", "--plan=" + plan)
            self.assertEqual(run.returncode, 1)
            self.assertIn(says, run.stderr)
            self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        for flags, says in [
                (["--mesh=tp:2", "--plan=" + self.path("none")], "none"),
                (["--mesh=fsdp:2", "--plan=" + plan], "has none"),
                (["--mesh=tp:2", "--plan="], "--plan= is empty")]:
            run = self.run_program("--text=" + self.text, *SMALL, *flags)
            self.assertEqual(run.returncode, 1)
            self.assertIn(says, run.stderr)

    def test_weights_are_saved_in_half_the_size_rounded_once(self):
        tensors = []
        for flags in [], ["--save_dtype=bfloat16"]:
            out = self.path("model" + "".join(flags))
            self.metrics("--mesh=fsdp:2,tp:2", "--save=" + out, *flags)
            with open(out + "/model.safetensors", "rb") as file:
                data = file.read()
            with open(out + "/config.json") as file:
                config = json.load(file)
            size = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + size])
            header.pop("__metadata__", None)
            tensors.append({})
            for name, tensor in header.items():
                begin, end = (8 + size + at for at in tensor["data_offsets"])
                self.assertEqual(tensor["dtype"], "BF16" if flags else "F32")
                tensors[-1][name] = data[begin:end]
            self.assertIn("bfloat16" if flags else "float32",
                          config.values())
        whole, half = tensors
        self.assertEqual(whole.keys(), half.keys())
        for name, values in whole.items():
            rounded = b""
            for (bits,) in struct.iter_unpack("<I", values):
                # To nearest, ties to even.
                bits += 0x7fff + (bits >> 16 & 1)
                rounded += (bits >> 16).to_bytes(2, "little")
            self.assertEqual(half[name], rounded, name)

    def test_what_is_wrong_in_a_model_directory_is_named(self):
        base = self.path("base")
        run = self.run_program("--text=" + self.text, *SMALL, "--lr=0",
                               "--save=" + base)
        self.assertEqual(run.returncode, 0, run.stderr)
        flags = ["--text=" + self.text, "--model=" + base, "--steps=1",
                 "--seq_len=17", "--mesh=fsdp:2,tp:2"]
        with open(base + "/config.json") as file:
            config = json.load(file)
        for more, status, says in [
                ({"note": "ours"}, 0, "ignores unknown fields of " + base +
                 "/config.json: note"),
                ({"is_causal": False}, 1, "is_causal is false"),
                ({"logit_scale": 2.0}, 1, "logit_scale is 2.0")]:
            with open(base + "/config.json", "w") as file:
                json.dump({**config, **more}, file)
            run = self.run_program(*flags)
            self.assertEqual(run.returncode, status, run.stderr)
            self.assertIn(says, run.stderr)
        with open(base + "/config.json", "w") as file:
            json.dump(config, file)
        with open(base + "/model.safetensors", "r+b") as file:
            size = int.from_bytes(file.read(8), "little")
            name = "model.layers.1.mlp.up_proj.weight"
            begin = json.loads(file.read(size))[name]["data_offsets"][0]
            file.seek(8 + size + begin + 4)
            file.write(struct.pack("<f", float("nan")))
        run = self.run_program(*flags)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn(f'{base}/model.safetensors: tensor "{name}" contains values '
                      "that are not finite", run.stderr)
        self.assertNotIn("--lr", run.stderr)

    def test_tokens_of_16_and_32_bits_are_the_same_training(self):
        with open(self.text, "rb") as file:
            values = list(file.read())
        losses = []
        for name, width, header in [
                ("narrow", 2, b""), ("wide", 4, b""),
                ("headed", 4, b"".join(n.to_bytes(4, "little") for n in
                                       [20240801, 7, len(values)] + [0] * 253))]:
            path = self.path(name)
            with open(path, "wb") as file:
                file.write(header + b"".join(v.to_bytes(width, "little")
                                             for v in values))
            metrics = self.path("metrics")
            run = self.run_program(
                "--tokens=" + path, "--metrics=" + metrics, *SMALL,
                *(["--token_bits=32"] if name == "wide" else []))
            self.assertEqual(run.returncode, 0, run.stderr)
            with open(metrics) as file:
                losses.append([json.loads(line)["loss"] for line in file])
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])


if __name__ == "__main__":
    unittest.main()
