"""--compress between two hosts: as good as without, with fewer bytes on the cable; and what it refuses."""
import training
from training import support

# Images that a small net learns in a few epochs.
ARGS = ["mlp:64", "--data", "synthetic:1000", "--batch", 32, "--epochs", 4, "--lr", 0.05, "--seed", 3]


class Compression(training.HostsTest):
    def sent(self, report):
        """Bytes that ranks handed to the lanes."""
        return sum(rank.get("lane", {}).get("sent_bytes", 0) for rank in report["metrics"].values())

    def test_fewer_bytes_and_as_good(self):
        plain, report, _ = self.train("a:1,b:1", *ARGS)
        wanted, all_bytes = report["epochs"][-1]["test_accuracy"], self.sent(report)
        self.assertEqual(report["compress"], "none")
        self.assertGreater(wanted, 0.8)
        for codec, fewer, points in ("int8", 3.0, 0.03), ("topk:0.01", 10, 0.06):
            with self.subTest(codec=codec):
                trained, report, _ = self.train("a:1,b:1", *ARGS, "--compress", codec)
                self.assertEqual(report["compress"], codec)
                self.assertGreater(report["epochs"][-1]["test_accuracy"], wanted - points)
                self.assertLess(self.sent(report), all_bytes / fewer)
                self.assertNotEqual(support_sha(trained), support_sha(plain))
                balance = [rank for rank in report["metrics"].values() if "codec_given" in rank]
                self.assertEqual(len(balance), 2)
                for rank in balance:
                    off = rank["codec_given"] - rank["codec_sent"] - rank["codec_residual"]
                    self.assertLess(abs(off), 1e-3 * (1 + abs(rank["codec_given"])))
                    self.assertGreater(rank["codec_before_bytes"], fewer * rank["codec_after_bytes"])

    def expect_balance(self, report, holders):
        """Σ given = Σ sent + what is kept, for each rank that has a codec; and fewer bytes."""
        balance = [rank for rank in report["metrics"].values() if "codec_given" in rank]
        self.assertEqual(len(balance), holders)
        for rank in balance:
            off = rank["codec_given"] - rank["codec_sent"] - rank["codec_residual"]
            self.assertLess(abs(off), 1e-3 * (1 + abs(rank["codec_given"])))
            self.assertGreater(rank["codec_before_bytes"], 3 * rank["codec_after_bytes"])

    def test_in_every_mode(self):
        """As good as it is, where gradients are pushed to servers too. Server 0 is on host a, with one of the
        workers."""
        for sync, more, holders in (
            ("allreduce", [], 2),
            ("shared", ["--zero", 2], 2),
            ("server", ["--servers", 1], 1),
            ("async", ["--servers", 1], 1),
            ("stale:2", ["--servers", 2], 2),
            ("trylock:0.5", ["--servers", 1], 1),
            ("round-robin", ["--servers", 1], 1),
        ):
            with self.subTest(sync=sync):
                args = [*ARGS, "--sync", sync, *more, "--accumulate", 2, "--clip", 5, "--on-nan", "skip"]
                report = self.train("a:1,b:1", *args, "--compress", "int8")[1]
                self.assertGreater(report["epochs"][-1]["test_accuracy"], 0.7)
                self.expect_balance(report, holders)

    def test_the_same_bits_again(self):
        for way in [], ["--sync", "server", "--servers", 2]:
            args = [*ARGS, "--max-steps", 20, "--compress", "int8", *way]
            first, second = (self.train("a:2,b:1", *args)[1]["sha256"] for _ in range(2))
            self.assertEqual(first, second, way)

    def test_goes_on_from_a_checkpoint(self):
        """With what codecs and the outer optimizer keep: the bits of a run that nothing stopped."""
        for way in (
            ["--compress", "topk:0.05"],
            ["--sync", "diloco:5"],
            ["--sync", "server", "--servers", 1, "--compress", "topk:0.05"],
        ):
            with self.subTest(way=way):
                args = [*ARGS, *way, "--checkpoint", self.folder / way[1].partition(":")[0]]
                wanted = self.train("a:1,b:1", *ARGS, *way)[1]["sha256"]
                self.train("a:1,b:1", *args, "--max-steps", 50, "--checkpoint-every", "10steps")
                _, report, printed = self.train("a:1,b:1", *args, "--resume", "latest")
                self.assertIn("goes on with", printed)
                self.assertEqual(report["sha256"], wanted)

    def test_refusals(self):
        for args, words in (
            (["--compress", "topc:0.1"], "did you mean 'topk'"),
            (["--compress", "int8", "--sync", "central"], "sync 'central'"),
            (["--compress", "int8", "--virtual", 2], "virtual 2"),
            (["--compress", "int8", "--dtype", "f64"], "dtype f32"),
            (["--compress-layers", "fc*"], "no effect with --compress none"),
        ):
            with self.subTest(args=args):
                process = self.start_train("a:1,b:1", *ARGS, *args)
                _, error = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 2, error)
                self.assertIn(words, error)

    def test_diloco(self):
        """Meets every 8 updates, and learns what is there to be learnt."""
        _, report, _ = self.train("a:1,b:1", *ARGS, "--sync", "diloco:8")
        self.assertEqual(report["sync"], "diloco:8")
        self.assertGreater(report["epochs"][-1]["test_accuracy"], 0.8)


def support_sha(tensors):
    return [tensor.tobytes() for tensor in tensors.values()]


if __name__ == "__main__":
    training.main()
