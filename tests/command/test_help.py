"""Every sub-command teaches, and what it prints has the promised shape."""
import json

import support

TRAIN_FLAGS = [
    "--data",
    "--workers",
    "--batch",
    "--epochs",
    "--optimizer",
    "--lr",
    "--accumulate",
    "--seed",
    "--sync",
    "--report",
    "--save",
    "--schedule",
    "--lr-schedule",
    "--pipeline",
    "--micro",
    "--record-schedule",
    "--warmup",
]


class Help(support.CommandTest):
    def succeeds(self, *args, **settings):
        result = support.run(*args, **settings)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_top(self):
        text = self.succeeds("--help")
        for command in ("train", "launch", "bench", "models", "doctor"):
            self.assertIn(f"\n  {command} ", text)
        self.assertRegex(self.succeeds("--version"), r"^\d+\.\d+\.\d+\n$")

    def test_nothing_given_shows_the_help(self):
        result = support.run()
        self.assertEqual(result.returncode, 2)
        self.assertIn("Usage: trireme", result.stdout)

    def test_train(self):
        text = self.succeeds("train", "--help")
        for word in [
            *TRAIN_FLAGS,
            "sgd, momentum, adagrad, adam or adamw",
            "shared",
            "allreduce",
            "central",
            "constant, step or cosine",
            "up to rounding",
            "Examples:",
            ".toml",
        ]:
            self.assertIn(word, text)

    def test_others(self):
        for args, words in (
            (["launch"], ["-n", "-- PROGRAM", "Examples:", "torchrun", "--hosts"]),
            (["bench"], ["allreduce", "train", "checkpoint", "ratio above 1"]),
            (["bench", "allreduce"], ["--rounds", "--sizes"]),
            (["bench", "train"], ["--rounds", "--case"]),
            (["bench", "compress"], ["--rounds", "--codecs", "topk:R", "memcpy", "--hosts", "--gradients", "--plot"]),
            (["bench", "ps"], ["--rounds", "--case", "--sizes"]),
            (["bench", "checkpoint"], ["--rounds", "--turns", "--dir", "--width", "torch.save"]),
            (["bench", "pipeline"], ["--rounds", "--case", "--micro", "bubble-gpt", "resnet18", "Pipe", "--hosts"]),
            (["evaluate"], ["--data", "--part", "--json", "Examples:"]),
            (["predict"], ["--data", "--out", "--all-classes", "label", "Examples:"]),
            (["generate"], ["--prompt", "--tokens", "--temperature", "--top", "--seed", "Examples:"]),
            (["checkpoint"], ["export"]),
            (["checkpoint", "export"], ["--out", "torch.jit.load", ".safetensors"]),
            (["schedule"], ["--stages", "--micro", "--out", "interleaved:V", "file:PATH", "bubble", "Examples:"]),
            (["models"], ["--help"]),
            (["doctor"], ["--help"]),
        ):
            with self.subTest(args=args):
                text = self.succeeds(*args, "--help")
                for word in words:
                    self.assertIn(word, text)

    def test_models(self):
        text = self.succeeds("models")
        for name in ("linear", "mlp", "lenet", "twoconv", "resnet18", "resnet34", "resnet50", "gpt", "bert"):
            self.assertRegex(text, rf"(?m)^{name}\b")

    def test_every_model_trains(self):
        for name in ("linear", "mlp", "mlp:16,8", "twoconv"):
            self.assertEqual(self.train(name, "--data", "synthetic:64", "--workers", 2, "--epochs", 1)["updates"], 1)

    def test_doctor(self):
        text = self.succeeds("doctor")
        for word in (
            "cores",
            "kernels",
            "libtorch",
            "shared memory",
            "process watch",
            "fashion-mnist",
            "ready to train",
        ):
            self.assertIn(word, text)
        for line in text.splitlines():
            if "missing" in line:
                self.assertIn("install", line)

    def test_plain_output(self):
        result = support.run(
            "train",
            "linear",
            "--data",
            "synthetic:200",
            "--workers",
            2,
            "--epochs",
            2,
            "--save",
            self.folder / "m.safetensors",
            cwd=self.folder,
        )
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertNotIn("\x1b", result.stdout)  # no terminal, no progress line
        self.assertRegex(
            result.stdout,
            r"(?m)^epoch 2  loss \d\.\d+  test loss \d\.\d+  test accuracy \d\.\d+  [\d,]+ samples/s  \d+\.\d+ s$",
        )
        self.assertIn(f"model saved to {self.folder / 'm.safetensors'}", result.stdout)

    def test_bench_allreduce(self):
        lines = [
            json.loads(line)
            for line in self.succeeds("bench", "allreduce", "--rounds", 1, "--sizes", 4096, limit=120).splitlines()
        ]
        self.assertEqual(
            [(line["bench"], line["case"]) for line in lines],
            [
                ("allreduce", "2x4096B"),
                ("allreduce-private", "2x4096B"),
                ("allreduce", "4x4096B"),
                ("allreduce", "8x4096B"),
            ],
        )
        for line in lines:
            self.assertEqual(list(line), ["bench", "case", "metric", "ours", "peers", "ratio", "samples"])
            self.assertEqual(line["metric"], "us")
            self.assertGreater(line["ours"], 0)
            self.assertEqual(set(line["samples"]), {"ours", *line["peers"]})
            self.assertEqual(set(line["ratio"]), set(line["peers"]))
            for peer, value in line["peers"].items():
                self.assertAlmostEqual(line["ratio"][peer] * line["ours"] / value, 1, delta=0.01)

    def test_bench_of_other_collectives(self):
        for collective in "reduce-scatter", "all-gather":
            (line,) = [
                json.loads(line)
                for line in self.succeeds(
                    "bench", collective, "--rounds", 1, "--sizes", 65536, "--ranks", 2, limit=120
                ).splitlines()
            ]
            self.assertEqual((line["bench"], line["case"], line["metric"]), (collective, "2x65536B", "us"))
            self.assertGreater(line["ours"], 0)
            self.assertLessEqual(set(line["peers"]), {"gloo"})

    def test_bench_of_codecs(self):
        lines = [
            json.loads(line)
            for line in self.succeeds(
                "bench", "compress", "--rounds", 1, "--codecs", "fp16,topk:0.01", "--gradients", "lenet,gpt", limit=120
            ).splitlines()
        ]
        lines, learnt = lines[:2], lines[2:]
        self.assertEqual([line["case"] for line in lines], ["fp16", "topk:0.01"])
        for line, fewer in zip(lines, (2, 50), strict=True):
            for speed in "encode", "encode_with_feedback", "decode", "memcpy":
                self.assertGreater(line[speed], 0)
            self.assertAlmostEqual(line["fewer_bytes"], fewer, delta=0.1)
            self.assertTrue(0 < line["left_out"] < 1, line)
        cases = [f"{model}+{codec}" for model in ("lenet", "gpt") for codec in ("fp16", "topk:0.01")]
        self.assertEqual([line["case"] for line in learnt], cases)
        for line in learnt:  # of real gradients: fp16 loses next to nothing, 1 % of the elements have a part of it
            least, most = (0, 1e-3) if "fp16" in line["case"] else (0.05, 0.99)
            self.assertTrue(least < line["left_out"] < most, line)
            self.assertAlmostEqual(line["cosine"], (1 - line["left_out"] ** 2) ** 0.5, delta=0.01)
            self.assertLess(line["left_out_of_20"], most)

    def test_picture_of_a_bench_of_codecs(self):
        peers = {"ddp": 100, "none": 80}
        lines = [
            {"case": f"mlp2048-32@a:1,b:1+{codec}", "mbit": mbit, "ours": ours, "peers": peers, "ratio": {"ddp": 1}}
            for codec, ours in (("int8", 20), ("auto", 10))
            for mbit in (100, 1000)
        ]
        text = "not of a bench\n" + "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / "steps.jsonl").write_text(text)
        self.succeeds("bench", "compress", "--plot", self.folder / "a.svg", "--lines", self.folder / "steps.jsonl")
        picture = (self.folder / "a.svg").read_text()
        for word in ("times faster than DDP", "int8", "auto", "none", ">10.0"):
            self.assertIn(word, picture)
        for args, words in (
            (["--plot", "a.svg"], "go together"),
            (["--plot", "a.svg", "--lines", "nowhere"], "cannot read nowhere"),
            (["--codecs", "auto"], "auto chooses by links"),
            (["--codecs", "none"], "leave it out"),
        ):
            result = support.run("bench", "compress", *map(str, args), cwd=self.folder)
            self.assertEqual(result.returncode, 2 if "cannot" not in words else result.returncode, result.stderr)
            self.assertIn(words, result.stderr)

    def test_bench_of_pipelines(self):
        words = "bench pipeline --case bubble-4 --rounds 1 --steps 1 --sleep-ms 1".split()
        result = support.run(*words, limit=120)
        self.assertEqual((result.returncode, result.stderr), (0, ""))  # else a stage held more than was planned
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        schedules = "gpipe", "1f1b", "interleaved:2", "zero-bubble"
        self.assertEqual(
            [line["case"] for line in lines if line["metric"] == "share"],
            [f"bubble-sleep-4x{micro}-{schedule}" for micro in (4, 8, 16) for schedule in schedules],
        )
        by_case = {(line["case"], line["metric"]): line for line in lines}
        self.assertEqual(len(by_case), len(lines))
        for line in lines:
            wanted = {"share": {"formula", "simulated"}, "activations": {"check"}, "idle ms": set()}[line["metric"]]
            if line["case"].endswith("zero-bubble") and line["metric"] != "activations":
                wanted = wanted | {"1f1b"}
            self.assertEqual(set(line["peers"]), wanted, line)
        formulas = {"gpipe": 3 / 19, "1f1b": 3 / 19, "interleaved:2": 3 / 35, "zero-bubble": 3 / 51}
        for schedule, share in formulas.items():
            self.assertAlmostEqual(
                by_case[f"bubble-sleep-4x16-{schedule}", "share"]["peers"]["formula"], share, delta=1e-4
            )
        held = {"gpipe": 16, "1f1b": 4, "interleaved:2": 11, "zero-bubble": 4}
        for schedule, peak in held.items():
            row = by_case[f"bubble-sleep-4x16-{schedule}", "activations"]
            self.assertEqual(row["peers"]["check"], peak, schedule)
            if schedule == "zero-bubble":  # weight parts that fill a wait let go early
                self.assertLessEqual(row["ours"], peak)
            else:
                self.assertEqual(row["ours"], peak, schedule)

    def test_bench_of_checkpoints(self):
        words = "bench checkpoint --rounds 1 --turns 2 --width 64 --batch 2 --dir".split()
        lines = [json.loads(line) for line in self.succeeds(*words, self.folder / "d", limit=120).splitlines()]
        by_case = {line["case"]: line for line in lines}
        self.assertEqual(len(by_case), len(lines))
        self.assertEqual({line["bench"] for line in lines}, {"checkpoint"})
        for case in "longest-step", "stall", "cost", "write", "load":
            self.assertEqual(len(by_case[case]["samples"]["ours"]), 2, case)
        steps = by_case["longest-step"]["samples"]
        for longest, median, ratio in zip(steps["ours"], steps["median-step"], by_case["stall"]["samples"]["ours"]):
            self.assertAlmostEqual(longest / median / ratio, 1, delta=0.01)
        for case in "write", "load":
            self.assertEqual(set(by_case[case]["peers"]), {"disk"})
            self.assertEqual(by_case[case]["metric"], "MB/s")
        for case in "peer-stall", "peer-stall-per-gb", "peer-lost", "peer-lost-per-gb":
            self.assertIn(set(by_case[case]["peers"]), (set(), {"ddp", "ddp-fsync"}))
            self.assertGreater(by_case[case]["ours"], 0)
        self.assertEqual(list((self.folder / "d").iterdir()), [])  # nothing is left


if __name__ == "__main__":
    support.main()
