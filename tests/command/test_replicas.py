"""Parameter servers with replicas: killed one after the other, and the training goes on as if nothing had been."""
import json
import os
import re
import signal
import time

import support
from test_servers import SMALL, job_of, role

LONG = ["mlp:32", "--data", "synthetic:1000", "--epochs", 150, "--batch", 50, "--lr", 0.02, "--workers", 2]


def servers_of(process):
    return [pid for pid in support.children(process.pid) if role(pid) == "server" and support.alive(pid)]


def parts(job):
    """What `trireme ctl servers` says: by part, who is what."""
    found = {}
    for line in support.run("ctl", "servers", "--job", job).stdout.splitlines():
        match = re.match(r"server (\d+): part (\d+): epoch (\d+), (primary|backup of)(.*)", line)
        if match:
            found.setdefault(int(match[2]), {})[match[4]] = (int(match[1]), int(match[3]))
    return found


class Replicas(support.CommandTest):
    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def disturbed(self, *args, kills, servers):
        """Kills server after server, always when all parts are there twice. Returns what the run has written."""
        process = support.start("train", *args, "--servers", servers, "--replicas", 1, cwd=self.folder)
        self.addCleanup(self.end, process)
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                break
        job = job_of(servers_of(process)[0])
        complete = lambda: len(parts(job)) == servers and all(
            len(part) == 2 for part in parts(job).values()
        )  # noqa: E731
        for kill in range(kills):
            self.assertTrue(support.wait_until(complete, 20, 0.1), f"kill {kill}: {parts(job)}")
            time.sleep(1.1 if kills > 1 else 0)  # one that dies at once is not replaced
            alive = servers_of(process)
            self.assertEqual(len(alive), servers)
            self.assertIsNone(process.poll(), "it was over too soon")
            os.kill(alive[kill % servers], signal.SIGKILL)
        out, error = process.communicate(timeout=200)
        self.assertEqual(process.returncode, 0, out + error)
        self.assertEqual(error.count("was lost; the others went on without it"), kills, error)
        return out

    def test_synchronous_training_has_the_bits_of_one_without_deaths(self):
        longer = [2000 if word == 150 else word for word in LONG]  # two kills and what is copied after them
        expected = self.train(*longer, "--sync", "server", "--servers", 2)
        report = self.folder / "disturbed.json"
        self.disturbed(*longer, "--sync", "server", "--report", report, kills=2, servers=2)
        self.assertEqual(json.loads(report.read_text())["sha256"], expected["sha256"])

    def test_every_mode_goes_on(self):
        for sync in ("async", "stale:2", "trylock:0.9", "round-robin", "local:5", "elastic:5,0.3"):
            with self.subTest(sync=sync):
                report = self.folder / f"{sync[:4]}.json"
                self.disturbed(
                    *LONG, "--sync", sync, "--optimizer", "sgd", "--lr", 0.1, "--report", report, kills=1, servers=3
                )
                found = json.loads(report.read_text())
                self.assertEqual(len(found["epochs"]), 150)
                self.assertGreater(found["epochs"][-1]["test_accuracy"], 0.5)

    def test_without_deaths_nothing_changes(self):
        for args in (["--optimizer", "adam"], ["--clip", 0.1]):
            expected = self.train(*SMALL, "--workers", 2, "--sync", "server", *args)
            report = self.train(*SMALL, "--workers", 2, "--sync", "server", "--servers", 3, "--replicas", 1, *args)
            self.assertEqual(report["sha256"], expected["sha256"])

    def test_what_cannot_be_is_refused(self):
        self.refused("train", *SMALL, "--sync", "async", "--replicas", 1, says=["2 servers at least"], code=2)
        self.refused(
            "train",
            *SMALL,
            "--sync",
            "async",
            "--servers",
            4,
            "--replicas",
            2,
            says=["one backup of each part"],
            code=2,
        )
        self.refused("train", *SMALL, "--replicas", 1, says=["--replicas", "parameter servers"], code=2)
        self.refused(
            "train",
            *SMALL,
            "--sync",
            "async",
            "--servers",
            2,
            "--replicas",
            1,
            "--hosts",
            "a:1,b:1",
            says=["on one machine so far"],
            code=2,
        )
        self.refused("launch", "-n", 2, "--replicas", 1, "--", "true", says=["without --servers"], code=2)
        self.refused(
            "launch", "-n", 2, "--servers", 1, "--replicas", 1, "--", "true", says=["2 servers at least"], code=2
        )

    def test_a_part_that_is_lost_is_named(self):
        process = support.start(
            "train", *LONG, "--epochs", 100000, "--sync", "async", "--servers", 2, "--replicas", 1, cwd=self.folder
        )
        self.addCleanup(self.end, process)
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                break
        for pid in servers_of(process):
            os.kill(pid, signal.SIGKILL)
        _, error = process.communicate(timeout=30)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(error, "server [01]")


if __name__ == "__main__":
    support.main()
