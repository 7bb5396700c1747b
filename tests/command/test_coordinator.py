"""A coordinator that dies: the job goes on without it, and another one takes it over from its journal."""
import hashlib
import socket
import subprocess
import time

import support

TOKEN = "0123456789abcdef"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Coordinator(support.CommandTest):
    def setUp(self):
        super().setUp()
        self.journal = self.folder / "journal"
        self.port = free_port()

    def start(self, name, command, **env):
        """Its output is in the file NAME."""
        with open(self.folder / name, "a") as output:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=self.folder,
                env={**support.environment(), "TRIREME_TOKEN": TOKEN, **{k: str(v) for k, v in env.items()}},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def said(self, name):
        return (self.folder / name).read_text()

    def wait_for(self, name, text, seconds=30, count=1):
        self.assertTrue(
            support.wait_until(lambda: self.said(name).count(text) >= count, seconds), f"{text}: {self.said(name)}"
        )

    def coordinator(self, ranks, *args):
        command = [support.TRIREME, "coordinator", "--ranks", ranks, "--port", self.port, "--address", "127.0.0.1"]
        return self.start("coordinator", [*command, "--journal", self.journal, *args])

    def rank(self, rank, size, command, **env):
        place = {"TRIREME_COORDINATOR": f"127.0.0.1:{self.port}", "TRIREME_RANK": rank, "TRIREME_SIZE": size}
        return self.start(f"rank{rank}", command, **place, **env)

    def succeeds(self, process, name, seconds=support.LIMIT):
        self.assertEqual(process.wait(timeout=seconds), 0, self.said(name) + self.said("coordinator"))

    def training(self, ranks, model, epochs=200):
        command = [support.TRIREME, "train", "mlp:64", "--data", "synthetic:2000", "--workers", ranks]
        command += ["--epochs", epochs, "--save", model]
        return [self.rank(rank, ranks, command) for rank in range(ranks)]

    def test_killed_and_started_again_it_changes_nothing(self):
        ranks, hashes = 2, []
        for deaths in (False, True):
            coordinator = self.coordinator(ranks)
            model = self.folder / f"model-{deaths}.safetensors"
            running = self.training(ranks, model)
            if deaths:
                self.wait_for("rank0", "epoch 2 ", count=2)
                coordinator.kill()
                coordinator.wait()
                time.sleep(3)
                coordinator = self.coordinator(ranks)
                self.wait_for("coordinator", "is back", count=ranks)
            for rank, process in enumerate(running):
                self.succeeds(process, f"rank{rank}")
            self.succeeds(coordinator, "coordinator", 20)
            hashes.append(hashlib.sha256(model.read_bytes()).hexdigest())
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(self.said("coordinator").count("is taken over from the journal"), 1)

    def test_a_worker_that_dies_meanwhile_is_missed_when_it_is_back(self):
        coordinator = self.coordinator(3, "--workers", "2:3", "--heartbeat-limit", 1)
        program = support.PROGRAMS / "program_elastic"
        running = [self.rank(rank, 3, [program, self.folder]) for rank in range(3)]
        for rank in range(3):
            self.wait_for(f"rank{rank}", "epoch 0 of 0,1,2")
        coordinator.kill()
        coordinator.wait()
        running[1].kill()
        time.sleep(1)
        coordinator = self.coordinator(3, "--workers", "2:3", "--heartbeat-limit", 1)
        for rank in (0, 2):
            self.wait_for(f"rank{rank}", "epoch 1 of 0,2")
        self.assertIn("rank 1 on host", self.said("coordinator"))
        newcomer = self.start(
            "rank3",
            [program, self.folder],
            TRIREME_COORDINATOR=f"127.0.0.1:{self.port}",
            TRIREME_RANK=-1,
            TRIREME_SIZE=3,
            TRIREME_NEWCOMER=1,
        )
        self.wait_for("rank3", "epoch 2 of 0,2,3")
        coordinator.terminate()  # as systemd does it
        self.succeeds(coordinator, "coordinator", 20)
        self.wait_for("coordinator", "this coordinator ends; the job goes on for 60 s")
        coordinator = self.coordinator(3, "--workers", "2:3", "--heartbeat-limit", 1)
        (self.folder / "stop").touch()
        for rank, process in ((0, running[0]), (2, running[2]), (3, newcomer)):
            self.succeeds(process, f"rank{rank}")
        self.succeeds(coordinator, "coordinator", 20)

    def test_ranks_stop_themselves_when_no_other_one_comes(self):
        coordinator = self.coordinator(2, "--coordinator-patience", 2)
        running = self.training(2, self.folder / "model.safetensors", epochs=100_000)
        self.wait_for("rank0", "epoch 2 ")
        coordinator.kill()
        begin = time.monotonic()
        for rank, process in enumerate(running):
            self.assertNotEqual(process.wait(timeout=30), 0)
            self.assertRegex(
                self.said(f"rank{rank}"), r"has been away from host .* and no other one came in its place \(limit 2 s"
            )
        self.assertGreater(time.monotonic() - begin, 1.5)

    def refused_coordinator(self, *args, says):
        self.refused("coordinator", "--ranks", 2, "--port", self.port, "--journal", self.journal, *args, says=says)

    def test_journals_that_are_of_no_use_are_named(self):
        coordinator = self.coordinator(2)
        self.wait_for("coordinator", "coordinator of job")
        token = self.folder / "token"
        token.write_text(TOKEN)
        same = ["--token-file", token]
        self.refused_coordinator(*same, says=["another coordinator that runs on this host"])
        coordinator.kill()
        coordinator.wait()
        self.refused_coordinator(*same, "--job", "mine", says=[f"the journal {self.journal} is of job 'job', not of"])
        (self.folder / "other").write_text("another")
        self.refused_coordinator("--token-file", self.folder / "other", says=["of job 'job' with another token"])
        whole = self.journal.read_bytes()
        self.journal.write_bytes(whole[:40] + b"x" + whole[41:] + whole[32:])
        self.refused_coordinator(*same, says=[f"the journal {self.journal} is damaged in the middle: behind byte 32"])
        self.journal.write_bytes(b"epoch,loss\n")
        self.refused_coordinator(*same, says=["is no journal of a coordinator"])
        self.refused(
            "coordinator", "--ranks", 2, "--journal", self.journal, *same, says=["needs a port of its own", "--port"]
        )


if __name__ == "__main__":
    support.main()
