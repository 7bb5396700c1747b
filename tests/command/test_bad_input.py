"""Bad input: one clear message, an exit code that is not zero, and that before anything is trained."""
import gzip
import time

import numpy

import support

SMALL = ["--data", "synthetic:200", "--epochs", 1]


class BadInput(support.CommandTest):
    def refused_once(self, *args, says, **settings):
        """Found before workers are started: a single line."""
        text = self.refused(*args, says=says, **settings)
        self.assertEqual(text.count("\n"), 1, text)
        return text

    # ---- names ----
    def test_unknown_names_give_the_nearest(self):
        for args, says in (
            (["trian", "lenet"], ["'trian'", "did you mean 'train'?"]),
            (["bench", "alreduce"], ["'alreduce'", "did you mean 'allreduce'?"]),
            (["train", "lennet", *SMALL], ["'lennet'", "did you mean 'lenet'?"]),
            (["train", "lenet", *SMALL, "--epoch", 3], ["'--epoch'", "did you mean '--epochs'?"]),
            (["launch", "--rank", "3", "--", "true"], ["'--rank'", "did you mean '--ranks'?"]),
            (["train", "lenet", *SMALL, "--optimizer", "adan"], ["'adan'", "did you mean 'adam'?"]),
            (["train", "lenet", *SMALL, "--sync", "alreduce"], ["'alreduce'", "did you mean 'allreduce'?"]),
            (["train", "lenet", *SMALL, "--lr-schedule", "cosin"], ["'cosin'", "did you mean 'cosine'?"]),
            (["train", "lenet", *SMALL, "--memory-format", "channel-last"], ["did you mean 'channels-last'?"]),
            (["train", "lenet", *SMALL, "--loss", "cross_entropy"], ["did you mean 'cross-entropy'?"]),
            (["train", "lenet", *SMALL, "--progress", "plan"], ["did you mean 'plain'?"]),
            (["train", "lenet", *SMALL, "--dtype", "f16"], ["'f16'", "f32 or f64"]),
            (["train", "lenet", "--data", "fashion-mnits"], ["'fashion-mnits'", "did you mean 'fashion-mnist'?"]),
            (["train", "lenet", *SMALL, "another"], ["another"]),
            (["train"], ["MODEL is required"]),
        ):
            with self.subTest(args=args):
                extra = ["--workers", 2] if args[0] == "train" and len(args) > 1 else []
                self.refused_once(*args, *extra, says=says, code=2)

    def test_other_words_for_the_same_flag(self):
        for args, says in (
            (["--learning-rate", "0.1"], ["'--learning-rate'", "did you mean '--lr'?"]),
            (["--learning_rate=0.1"], ["'--learning_rate'", "did you mean '--lr'?"]),
            (["--batch_size", "3"], ["'--batch_size'", "did you mean '--batch'?"]),
            (["--weight_decay", "3"], ["'--weight_decay'", "did you mean '--weight-decay'?"]),
            (["-epochs", "3"], ["'-epochs'", "did you mean '--epochs'?"]),
            (["-lr", "3"], ["'-lr'", "did you mean '--lr'?"]),
        ):
            with self.subTest(args=args):
                self.refused_once("train", "lenet", *SMALL, *args, says=says, code=2)
        text = self.refused_once(
            "train",
            "inception",
            *SMALL,
            says=["unknown model 'inception'", "linear, mlp, lenet, lenet-bn, twoconv", "trireme models", "torch::nn"],
            code=2,
        )
        self.assertNotIn("did you mean", text)

    def test_values_that_are_no_numbers(self):
        for args, says in (
            (["--lr", "abc"], "--lr: 'abc' is not a number"),
            (["--lr", "0,1"], "--lr: '0,1' is not a number; decimals have a point"),
            (["--hosts", "a:1,b:1", "--port", "x"], "--port: 'x' is not a number"),
            (["--timeout", "soon"], "--timeout: 'soon' is not a duration"),
        ):
            with self.subTest(args=args):
                self.refused_once("train", "lenet", *SMALL, *args, says=[says], code=2)
        (self.folder / "words.toml").write_text('model = "lenet"\nlr = "fast"\n')
        self.refused_once("train", "words.toml", says=["words.toml, line 2: --lr: 'fast' is not a number"], code=2)

    # ---- flags without effect ----
    IDLE = (
        (["--optimizer", "sgd", "--momentum", 0.5], ["--momentum has no effect with --optimizer sgd", "momentum"]),
        (["--optimizer", "adam", "--nesterov"], ["--nesterov has no effect with --optimizer adam"]),
        (["--beta1", 0.5], ["--beta1 has no effect with --optimizer momentum", "adam and adamw"]),
        (["--optimizer", "adagrad", "--beta2", 0.5], ["--beta2 has no effect with --optimizer adagrad"]),
        (["--epsilon", 1e-6], ["--epsilon has no effect with --optimizer momentum", "adagrad, adam and adamw"]),
        (["--gamma", 0.5], ["--gamma has no effect with --lr-schedule constant", "step"]),
        (["--lr-schedule", "cosine", "--step-epochs", 2], ["--step-epochs has no effect with --lr-schedule cosine"]),
        (["--floor", 0.1], ["--floor has no effect with --lr-schedule constant", "cosine"]),
        (["--lambda", 0.1], ["--lambda has no effect with --stale-gradients full", "compensated"]),
        (["--chunk-bytes", 1000], ["--chunk-bytes has no effect with --sync shared", "servers"]),
        (["--label", "price"], ["--label has no effect with --data synthetic:200", "CSV"]),
        (["--stale-gradients", "inverse"], ["--stale-gradients has no effect with --sync shared", "async"]),
        (["--sync", "server", "--stale-gradients", "inverse"], ["--stale-gradients has no effect with --sync server"]),
        (["--sync", "local:3", "--chunk-bytes", 9], ["--chunk-bytes has no effect", "local:3 without --servers"]),
        (["--sync", "local:3", "--replicas", 1], ["--replicas has no effect with --sync local:3 without --servers"]),
        (["--rate", "share"], ["--rate has no effect with --sync shared", "one by one"]),
        (["--sync", "stale:0", "--rate", "share"], ["--rate has no effect with --sync stale:0"]),
        (["--sync", "diloco:3", "--rate", "full"], ["rate 'full'", "in sync 'diloco:3' there is no share"]),
        (["--overlap-next"], ["--overlap-next has no effect without --hosts"]),
        (["--sync", "hogwild", "--overlap-next"], ["--overlap-next has no effect with --sync hogwild", "round-robin"]),
        (["--sync", "local:3", "--no-overlap-next"], ["--no-overlap-next has no effect with --sync local:3"]),
        (["--sync", "server", "--on-nan", "skip", "--overlap-next"], ["--overlap-next has no effect with --on-nan"]),
        (["--sync", "server", "--no-overlap", "--overlap-next"], ["--overlap-next has no effect with --no-overlap"]),
        (["--hosts", "a:1,b:1", "--tensor", 2, "--overlap-next"], ["--overlap-next has no effect with --tensor or"]),
        (["--sync", "local:3", "--no-overlap"], ["--no-overlap has no effect with --sync local:3", "shared"]),
        (["--compress", "int8"], ["--compress has no effect without --hosts"]),
        (["--port", 7070], ["--port has no effect without --hosts"]),
        (["--remote", "none"], ["--remote has no effect without --hosts"]),
        (["--address", "127.0.0.1"], ["--address has no effect without --hosts"]),
        (["--engine", "gloo"], ["--engine has no effect without --hosts"]),
        (["--tls", "folder"], ["--tls has no effect without --hosts"]),
        (["--heartbeat-limit", 2], ["--heartbeat-limit has no effect without --hosts"]),
        (["--servers", 2], ["--servers 2", "no use"]),
        (["--straggler", "5:3"], ["--straggler 5:3", "no worker 5"]),
    )

    def test_flags_without_effect_are_refused(self):
        for args, says in self.IDLE:
            with self.subTest(args=args):
                self.refused_once("train", "lenet", *SMALL, "--workers", 2, *args, says=says, code=2)
        self.refused_once(
            "train",
            "mlp:8",
            *SMALL,
            "--memory-format",
            "channels-last",
            says=["--memory-format has no effect with the model mlp:8", "convolutions"],
            code=2,
        )
        self.refused_once(
            "train", "lenet", "--label", "price", says=["--label has no effect with --data fashion-mnist"], code=2
        )
        self.refused_once("launch", "--port", 7070, "--", "true", says=["--port has no effect without --hosts"], code=2)
        self.refused_once(
            "launch",
            "--serve-with",
            "true",
            "--",
            "true",
            says=["--serve-with has no effect without --servers"],
            code=2,
        )
        self.refused_once("doctor", "--port", 7070, says=["--port has no effect without --hosts"], code=2)

    def test_flags_without_effect_in_a_recipe(self):
        (self.folder / "idle.toml").write_text(
            'model = "lenet"\ndata = "synthetic:200"\nepochs = 1\noptimizer = "sgd"\nmomentum = 0.5\n'
        )
        self.refused_once(
            "train", "idle.toml", says=["idle.toml, line 5: --momentum has no effect with --optimizer sgd"], code=2
        )
        # Who overrules the recipe's optimizer means its settings as well.
        (self.folder / "fine.toml").write_text(
            'model = "linear"\ndata = "synthetic:200"\nepochs = 1\noptimizer = "momentum"\nmomentum = 0.5\n'
        )
        self.assertEqual(self.train("fine.toml", "--optimizer", "sgd")["optimizer"], "sgd")

    def test_a_comparison_needs_one_mode_in_which_a_flag_has_an_effect(self):
        compare = ["compare", "linear", *SMALL, "--workers", 2, "--csv", "", "--plot", ""]
        self.refused_once(
            *compare,
            "--sync",
            "shared,allreduce",
            "--stale-gradients",
            "inverse",
            says=["--stale-gradients has no effect with --sync"],
            code=2,
        )
        self.refused_once(
            *compare,
            "--sync",
            "shared,async",
            "--set",
            "shared:momentum=0.5",
            "--optimizer",
            "sgd",
            says=["mode shared: --momentum has no effect"],
            code=2,
        )
        result = support.run(*compare, "--sync", "shared,async", "--stale-gradients", "inverse", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_words_of_libtorch_come_without_its_stack(self):
        text = self.refused_once(
            "train",
            "mlp:1000000000000",
            *SMALL,
            "--workers",
            1,
            says=["libtorch", "mlp:1000000000000 on synthetic:200", "allocate"],
        )
        for word in ("frame #", "enforce fail", "libc10"):
            self.assertNotIn(word, text)

    # ---- hosts ----
    def test_workers_and_hosts_that_contradict(self):
        self.refused_once(
            "train",
            "lenet",
            *SMALL,
            "--workers",
            3,
            "--hosts",
            "a:2,b:2",
            says=["--workers 3", "4 slots", "leave --workers out"],
            code=2,
        )
        self.refused_once("launch", "-n", 3, "--hosts", "a:2,b:2", "--", "true", says=["-n 3", "Leave -n out"], code=2)

    def test_model_that_does_not_fit(self):
        self.refused("train", "mlp:64,x", *SMALL, "--workers", 2, says=["'mlp:64,x'", "mlp:512,512"])
        (self.folder / "two.csv").write_text("1,2,0\n3,4,1\n5,6,0\n")
        self.refused("train", "lenet", "--data", "two.csv", "--workers", 2, says=["1×28×28", "Try mlp"])

    def test_batch_norm_over_workers_that_do_not_meet(self):
        flag = ["--workers", 2, "--sync-batch-norm"]
        for sync in ("async", "stale:3", "hogwild", "local:5", "round-robin"):
            self.refused_once(
                "train", "lenet-bn", *SMALL, *flag, "--sync", sync, says=["sync_batch_norm", sync, "own pace"], code=2
            )
        self.refused_once("train", "lenet", *SMALL, *flag, says=["--sync-batch-norm", "no batch norm in lenet"], code=2)

    # ---- numbers ----
    def test_impossible_numbers(self):
        for flag, values, says in (
            ("--workers", ["-1", "abc"], "--workers"),
            ("--batch", ["0", "-1", "99999999999999999999999"], "--batch"),
            ("--epochs", ["-1"], "--epochs"),
            ("--accumulate", ["0"], "--accumulate"),
            ("--seed", ["-1"], "--seed"),
            ("--threads", ["0"], "--threads"),
            ("--lr", ["nan", "-0.1"], "learning rate"),
            ("--lr", ["abc"], "--lr"),
            ("--gamma", ["nan"], "gamma"),
            ("--timeout", ["0", "inf"], "--timeout"),
        ):
            for value in values:
                with self.subTest(flag=flag, value=value):
                    self.refused_once("train", "lenet", *SMALL, "--workers", 2, f"{flag}={value}", says=[says], code=2)
        self.refused_once("train", "lenet", *SMALL, "--optimizer", "adam", "--beta2=1.5", says=["betas"], code=2)

    def test_no_workers_means_one_per_core(self):
        self.assertGreaterEqual(self.train("linear", *SMALL, "--workers", 0)["workers"], 1)

    def test_too_many_workers(self):
        self.refused_once("train", "lenet", *SMALL, "--workers", 100000, "--batch", 1000000, says=["256", "100000"])

    def test_batch_smaller_than_workers(self):
        self.refused_once(
            "train", "lenet", *SMALL, "--workers", 4, "--batch", 3, says=["--batch 3", "(4)", "at least 4"], code=2
        )

    def test_more_workers_than_samples(self):
        self.refused(
            "train",
            "lenet",
            "--data",
            "synthetic:3",
            "--workers",
            4,
            says=["4 workers", "only 3 samples", "at most 3 workers"],
            code=2,
        )

    def test_micro_batches_without_samples(self):
        self.refused(
            "train", "lenet", *SMALL, "--workers", 2, "--batch", 8, "--accumulate", 5, says=["5 micro-batches"], code=2
        )

    def test_no_room(self):
        started = time.monotonic()
        self.refused(
            "train", "linear", "--data", "synthetic:4000000000", "--workers", 2, says=["no room in shared memory"]
        )
        self.assertLess(time.monotonic() - started, 10)

    # ---- data ----
    def write_idx(self, part, count=20):
        support.write_idx(self.folder / f"{part}-images-idx3-ubyte", numpy.zeros((count, 28, 28), numpy.uint8))
        support.write_idx(self.folder / f"{part}-labels-idx1-ubyte", numpy.zeros(count, numpy.uint8))

    def test_missing_data(self):
        self.refused_once("train", "lenet", "--data", "no/such", "--workers", 2, says=["no/such"])
        self.refused_once("train", "lenet", "--data", "no.csv", "--workers", 2, says=["no.csv"])
        self.write_idx("train")
        self.refused(
            "train", "lenet", "--data", self.folder, "--workers", 2, says=["t10k-images-idx3-ubyte", "missing"]
        )

    def test_truncated_data(self):
        self.write_idx("train")
        self.write_idx("t10k")
        images = self.folder / "train-images-idx3-ubyte"
        whole = images.read_bytes()
        for workers in (1, 2):
            images.write_bytes(whole[:-1])
            self.refused("train", "lenet", "--data", self.folder, "--workers", workers, says=[str(images), "truncated"])
        images.unlink()
        (self.folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(whole)[:-5])
        self.refused("train", "lenet", "--data", self.folder, "--workers", 2, says=[f"{images}.gz", "truncated"])

    def test_bad_cell(self):
        rows = [f"{i},{i * 2},{i % 3}" for i in range(40)]
        rows[29] = "1,oops,0"
        (self.folder / "bad.csv").write_text("a,b,c\n" + "\n".join(rows) + "\n")
        for workers in (1, 3):
            self.refused(
                "train",
                "linear",
                "--data",
                "bad.csv",
                "--workers",
                workers,
                says=["bad.csv, line 31, column 2 ('b'): 'oops' is not a number"],
            )

    def test_unknown_label(self):
        (self.folder / "data.csv").write_text("size,price\n1,2\n2,3\n")
        self.refused(
            "train",
            "linear",
            "--data",
            "data.csv",
            "--label",
            "prise",
            "--workers",
            2,
            says=["'prise'", "did you mean 'price'?"],
        )

    def test_classes_wanted_of_numbers(self):
        (self.folder / "data.csv").write_text("size,price\n1,2.5\n2,3.5\n")
        self.refused(
            "train",
            "linear",
            "--data",
            "data.csv",
            "--loss",
            "cross-entropy",
            "--workers",
            2,
            says=["cross-entropy needs classes", "data.csv"],
        )

    # ---- what cannot be written ----
    def test_unwritable_files_are_found_before_training(self):
        (self.folder / "file").write_text("")
        for flag in ("--save", "--report"):
            for path in ("file/x", "/proc/no/x", "/proc/x", "."):
                with self.subTest(flag=flag, path=path):
                    self.refused_once("train", "lenet", *SMALL, "--workers", 2, flag, path, says=[path.split("/x")[0]])

    def test_a_device_is_not_replaced_by_a_model(self):
        self.refused_once(
            "train", "lenet", *SMALL, "--workers", 2, "--save", "/dev/null", says=["/dev/null is not a file"]
        )

    def test_checks_leave_nothing_behind(self):
        self.refused(
            "train",
            "lenet",
            "--data",
            "synthetic:3",
            "--workers",
            4,
            "--save",
            "model.safetensors",
            "--report",
            "report.json",
            code=2,
        )
        self.assertEqual(list(self.folder.iterdir()), [])

    # ---- recipes ----
    def recipe(self, text):
        (self.folder / "bad.toml").write_text(text)
        return "bad.toml"

    def test_bad_recipes(self):
        self.refused_once("train", self.recipe('model = "lenet"\nepochs = = 3\n'), says=["bad.toml, line 2, column 10"])
        self.refused_once(
            "train",
            self.recipe('model = "lenet"\nepoch = 3\n'),
            says=["bad.toml, line 2", "epoch", "did you mean '--epochs'?"],
        )
        self.refused_once(
            "train",
            self.recipe('model = "lenet"\n[pace]\nepoch = 3\n'),
            says=["bad.toml, line 3", "did you mean '--epochs'?"],
        )
        self.refused_once(
            "train",
            self.recipe('model = "lenet"\nepochs = 3\nbatch = "many"\n'),
            says=["bad.toml, line 3: --batch", "'many'"],
        )
        text = self.refused_once(
            "train",
            self.recipe('model = "lenet"\nepochs = 3\n'),
            "--bach",
            "3",
            says=["'--bach'", "did you mean '--batch'?"],
        )
        self.assertNotIn("bad.toml", text)  # it is not from there
        self.refused_once("train", self.recipe("epochs = 3\n"), says=["bad.toml", "no key 'model'"])
        self.refused_once(
            "train", self.recipe('model = "lenet"\nepochs = [1, 2]\n'), says=["bad.toml, line 2", "'epochs'"]
        )
        self.refused_once("train", self.recipe('model = "lenet"\nlr = nan\n'), says=["learning rate"])
        self.refused_once("train", self.recipe("model = 3\n"), says=["bad.toml", "'model'"])
        self.refused_once("train", "missing.toml", says=["missing.toml", "No such file"])

    # ---- while it runs ----
    def test_loss_that_is_no_number(self):
        for workers in (1, 2):
            text = self.refused(
                "train",
                "lenet",
                *SMALL,
                "--workers",
                workers,
                "--lr",
                "1e30",
                "--save",
                "model.safetensors",
                says=["the loss became", "smaller learning rate than 1e+30"],
            )
            self.assertLessEqual(text.count("the loss became"), 2)
        self.assertFalse((self.folder / "model.safetensors").exists())

    def test_numbers_that_are_none_in_every_mode(self):
        for sync in (
            "shared",
            "allreduce",
            "central",
            "server",
            "async",
            "stale:2",
            "trylock:1",
            "round-robin",
            "hogwild",
            "local:3",
            "diloco:3",
            "elastic:3,0.3",
        ):
            with self.subTest(sync=sync):
                args = ["mlp:32", *SMALL, "--workers", 2, "--lr", "1e200", "--dtype", "f64", "--sync", sync]
                text = self.refused(
                    "train", *args, says=[" on rank ", " at update ", "smaller learning rate than 1e+200"]
                )
                self.assertRegex(text, "became (NaN|infinite|NaN or infinite) on rank [01] at update [0-9]+")
        report = self.train("mlp:32", *SMALL, "--workers", 2, "--lr", "1e200", "--dtype", "f64", "--on-nan", "ignore")
        self.assertIsNone(report["epochs"][0]["loss"])  # JSON has no NaN

    def test_environment_of_a_launcher_that_does_not_fit(self):
        result = support.run("launch", "-n", "2", "--", support.TRIREME, "train", "linear", *SMALL, "--workers", 3)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--workers 3", result.stderr)


if __name__ == "__main__":
    support.main()
