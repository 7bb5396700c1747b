"""--compress auto: on a slow link it finds what pays and says why; on one machine it leaves everything as it is."""
import json

import training
from training import support

ARGS = ["mlp:256", "--data", "synthetic:1000", "--batch", 32, "--epochs", 5, "--lr", 0.05, "--seed", 3]


class ChoosesCodecs(training.HostsTest):
    def test_a_slow_link_gets_a_codec(self):
        """20 Mbit/s: a step's 0.8 MB take a third of a second, whatever else the machine does."""
        for host in self.hosts.names:
            self.hosts.limit(host, "20mbit")
        self.addCleanup(lambda: [self.hosts.unlimit(host) for host in self.hosts.names])
        _, report, printed = self.train("a:1,b:1", *ARGS, "--compress", "auto:int8,topk:0.01")
        self.assertEqual(report["compress"], "auto:int8,topk:0.01")
        found = report["compression"]
        self.assertTrue(found["settled"] or found["looks"] > 0, found)
        self.assertIn("compression: " + found["reason"], printed)
        self.assertGreater(found["ms_saved"]["mean"] - found["ms_saved"]["plus_minus"], 50, json.dumps(found, indent=1))
        self.assertLess(found["ms_per_step"], found["ms_per_step_without"])
        large = max(found["buckets"], key=lambda bucket: bucket["bytes_before"])
        self.assertIn(large["codec"], ("int8", "topk:0.01"))
        self.assertLess(large["bytes_after"], large["bytes_before"] / 3)
        self.assertTrue(0 < large["cosine"] <= 1, large)
        self.assertGreater(large["ms_saved"]["mean"], 50)
        self.assertIn("saved in each step", large["reason"])
        self.assertGreater(report["epochs"][-1]["test_accuracy"], 0.8)
        shown = report["metrics"]["rank 0"]
        buckets = [value for name, value in shown.items() if name.startswith("bucket ")]
        self.assertEqual(len(buckets), len(found["buckets"]))
        self.assertEqual(max(bucket["chosen_before_bytes"] for bucket in buckets), large["bytes_before"])
        for rank in report["metrics"].values():
            if rank.get("codec_given"):
                off = rank["codec_given"] - rank["codec_sent"] - rank["codec_residual"]
                self.assertLess(abs(off), 1e-3 * (1 + abs(rank["codec_given"])))

    def test_one_machine_stays_as_it_is(self):
        """The bits of a run without, and the sentence."""
        hashes = set()
        for way in ["--compress", "auto"], []:
            report = self.folder / "report.json"
            result = support.run(
                "train", *map(str, ARGS), "--workers", "2", *way, "--report", str(report), cwd=self.folder
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            hashes.add(json.loads(report.read_text())["sha256"])
            if way:
                found = json.loads(report.read_text())["compression"]
                self.assertEqual((found["settled"], found["buckets"]), (True, []))
                self.assertIn("all ranks are on one machine, where nothing travels", found["reason"])
        self.assertEqual(len(hashes), 1)

    def test_refusals(self):
        for args, words in (
            (["--compress", "auto:int8,int8"], "has int8 twice"),
            (["--compress", "auto:none"], "none is what auto compares with"),
            (["--compress", "auto:"], "names no codec"),
            (["--compress", "auto:topc:0.1"], "did you mean 'topk'"),
            (["--compress", "auto", "--zero", 2], "zero 2"),
            (["--compress", "auto", "--virtual", 2], "virtual 2"),
            (["--compress", "auto", "--sync", "allreduce"], "sync 'allreduce'"),
        ):
            with self.subTest(args=args):
                process = self.start_train("a:1,b:1", *ARGS, *args)
                _, error = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 2, error)
                self.assertIn(words, error)


if __name__ == "__main__":
    training.main()
