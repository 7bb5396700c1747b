"""Parameter servers and workers on several hosts: the same results as on one, and named deaths."""
import json
import os
import pathlib
import re
import signal
import time

import numpy

import training
from training import support

ARGS = ["mlp:40,30", "--data", "synthetic:300", "--batch", 30, "--epochs", 3, "--lr", 0.02, "--dtype", "f64"]
ENDLESS = ["mlp:64", "--data", "synthetic:2000", "--epochs", 100000, "--batch", 64]


class Servers(training.HostsTest):
    def alone(self, *args):
        save = self.folder / "alone.safetensors"
        result = support.run("train", *ARGS, *args, "--workers", 1, "--save", save, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return support.read_safetensors(save)

    def servers(self, host):
        """Pids of the servers on a host, lowest number first."""
        found = {}
        for pid in self.hosts.pids(host):
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            number = [int(entry[15:]) for entry in environment if entry.startswith(b"TRIREME_SERVER=")]
            if number and b"serve" in words:
                found[number[0]] = pid
        return [found[number] for number in sorted(found)]

    def test_synchronous_servers_give_what_one_process_gives(self):
        for more in ([], ["--clip", 1.5]):
            expected = self.alone(*more)
            for spec, servers in (("a:1,b:1", 1), ("a:2,b:1", 2)):
                with self.subTest(spec=spec, servers=servers, more=more):
                    ours, _, printed = self.train(spec, *ARGS, *more, "--sync", "server", "--servers", servers)
                    self.assertIn("2 machines", printed)
                    for name, values in expected.items():
                        self.assertLess(numpy.abs(ours[name] - values).max(), 1e-9, name)

    def test_asynchronous_modes_learn(self):
        for sync in ("async", "stale:2", "elastic:4,0.3"):
            with self.subTest(sync=sync):
                # Plain SGD: staleness acts like momentum, and together with momentum so small a run is unsteady.
                _, report, _ = self.train(
                    "a:1,b:1",
                    "mlp:32",
                    *ARGS[1:],
                    "--sync",
                    sync,
                    "--servers",
                    2,
                    "--epochs",
                    10,
                    "--optimizer",
                    "sgd",
                    "--lr",
                    0.1,
                )
                self.assertLess(report["epochs"][-1]["loss"], 0.6 * report["epochs"][0]["loss"])

    def test_with_certificates(self):
        self.hosts.check("a", [training.TRIREME, "tls", "init", self.folder / "tls"], env=support.environment())
        self.train("a:1,b:1", *ARGS, "--sync", "async", "--servers", 2, "--tls", self.folder / "tls")

    def test_the_coordinator_hears_what_all_count(self):
        process = self.start_train("a:1,b:1", *ENDLESS, "--sync", "async", "--servers", 2)
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                break
        asked = lambda host: [
            json.loads(line) for line in self.hosts.check(host, [training.TRIREME, "ctl", "status"]).splitlines()
        ]  # noqa: E731
        everybody = ["rank 0", "rank 1", "server 0", "server 1"]
        self.assertTrue(
            support.wait_until(lambda: [line["member"] for line in asked("a")] == everybody, 10), asked("a")
        )
        lines = asked("a")
        self.assertEqual(len({line["job"] for line in lines}), 1)
        self.assertEqual([line["host"] for line in lines], ["a", "b", "a", "b"])
        self.assertEqual([line["age_seconds"] > 0 for line in lines], [False, True, False, True])
        self.assertEqual(
            [line["member"] for line in asked("b")], ["rank 1", "server 1"]
        )  # who is here answers by himself
        grown = lambda: all(
            now["metrics"]["updates"] > then["metrics"]["updates"] for now, then in zip(asked("a")[:2], lines)
        )  # noqa: E731
        self.assertTrue(support.wait_until(grown, 10), asked("a"))

    def test_a_killed_server_is_named(self):
        process = self.start_train("a:1,b:1", *ENDLESS, "--sync", "async", "--servers", 2, "--heartbeat-limit", 2)
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                break
        victim = self.servers("b")
        self.assertEqual(len(victim), 1)
        since = time.monotonic()
        os.kill(victim[0], signal.SIGKILL)
        _, text = process.communicate(timeout=30)
        self.assertLess(time.monotonic() - since, 8, text)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("server 1", text)


class Models(training.HostsTest):
    """Several models in one program: tests/programs/several_models.cpp."""

    PROGRAM = support.PROGRAMS / "program_several_models"

    def launch(self, spec, servers, *words):
        return self.start(
            "launch", "--hosts", spec, "--remote", self.remote(), "--servers", servers, "--", self.PROGRAM, *words
        )

    def test_several_models_by_turns_and_one_after_another(self):
        for spec, servers, mode in (
            ("a:1,b:1", 2, "server"),
            ("a:2,b:1", 1, "server"),
            ("a:1,b:1", 2, "async"),
            ("a:2,b:2", 0, "shared"),
            ("a:1,b:1", 0, "allreduce"),
            ("a:1,b:1", 2, "stale:3"),
            ("a:1,b:1", 2, "local:4"),
        ):
            for what, count in (("pair", 1), ("sequence", 3)):
                with self.subTest(spec=spec, mode=mode, what=what):
                    out, error = self.launch(spec, servers, mode, what).communicate(timeout=60)
                    found = re.findall(r"distance (\S+) before (\S+) after (\S+)", out)
                    self.assertEqual(len(found), count, out + error)
                    for distance, before, after in found:
                        self.assertLess(float(after), 0.5 * float(before))
                        if mode in ("server", "shared", "allreduce"):
                            self.assertLess(float(distance), 1e-12)

    def test_a_worker_killed_in_the_second_model_is_named(self):
        process = self.launch("a:1,b:1", 2, "server", "endless")
        for line in process.stdout:
            if "the second model trains" in line:
                break
        victim = [
            pid
            for pid in self.hosts.pids("b")
            if pathlib.Path(f"/proc/{pid}/comm").read_text().startswith("program_several")
        ]
        self.assertEqual(len(victim), 1)
        os.kill(victim[0], signal.SIGKILL)
        _, text = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(text, rf"rank 1 .*process {victim[0]}.*SIGKILL")


if __name__ == "__main__":
    training.main()
