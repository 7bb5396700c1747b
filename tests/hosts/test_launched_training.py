"""One training, started by every launcher that there is: each gives what one process gives, and the first line says who
started it."""
import json
import os
import shlex
import shutil
import signal
import subprocess
import unittest

import slurm
import training
from training import support

TRAINING = ["train", "mlp:40", "--data", "synthetic:600", "--epochs", 2, "--batch", 32, "--dtype", "f64", "--seed", 3]
STRANGERS = ("OMPI_", "PMI", "SLURM_", "DMLC_", "TRIREME_")  # prefixes of what an outer launcher may have set
LIMIT = 60
TOKEN = "0123456789abcdef0123456789abcdef"


def clean_environment(**more):
    return {**{name: value for name, value in support.environment().items() if not name.startswith(STRANGERS)}, **more}


class Launched(training.HostsTest):
    """What the classes below share; no tests."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not hasattr(Launched, "expected"):  # once for all classes
            result = support.run(*TRAINING, "--workers", 1, "--report", "/dev/stdout", "--progress", "none")
            assert result.returncode == 0, result.stderr
            Launched.expected = json.loads(result.stdout)["epochs"]

    def setUp(self):
        super().setUp()
        self.report = self.folder / "report.json"
        self.words = [*TRAINING, "--report", self.report]

    def run_on(self, host, argv, env):
        process = self.hosts.run(
            host, argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder
        )
        self.addCleanup(self.end, process)
        return process

    def rank(self, host, *args, **variables):
        """A rank as a launcher would start it there."""
        return self.run_on(
            host,
            [training.TRIREME, *map(str, self.words), *map(str, args)],
            clean_environment(**{name: str(value) for name, value in variables.items()}),
        )

    def coordinator(self, ranks, port, *args):
        process = self.run_on(
            "a",
            [training.TRIREME, "coordinator", "--ranks", str(ranks), "--port", str(port), *args],
            clean_environment(TRIREME_TOKEN=TOKEN),
        )
        self.assertIn("coordinator of job", process.stdout.readline())
        return process

    def outcome(self, processes):
        """Waits for all; what they printed."""
        texts = [process.communicate(timeout=LIMIT) for process in processes]
        for process, (out, error) in zip(processes, texts):
            self.assertEqual(process.returncode, 0, f"{process.args[-1]}\n{out}{error}")
        return "".join(out for out, _ in texts)

    def check(self, text, launcher, ranks, machines, engine):
        """That `text` names the launcher once, and that the losses are those of one process."""
        lines = [line for line in text.splitlines() if line.startswith("started by ")]
        self.assertEqual(len(lines), 1, text)
        self.assertTrue(
            lines[0].startswith(
                f"started by {launcher}: {ranks} ranks on {machines} machine{'s' if machines > 1 else ''}; "
                "shared memory"
            ),
            lines[0],
        )
        self.assertIn(engine, lines[0])
        epochs = json.loads(self.report.read_text())["epochs"]
        self.assertEqual(len(epochs), 2)
        for ours, theirs in zip(epochs, self.expected, strict=True):
            for key in ("loss", "test_loss"):
                self.assertAlmostEqual(ours[key] / theirs[key], 1, delta=1e-9)

    def tearDown(self):
        self.nothing_left()

    def nothing_left(self):
        self.assertTrue(support.wait_until(lambda: not self.hosts.pids(), 5), f"still there: {self.hosts.pids()}")


@unittest.skipIf(shutil.which("mpirun") is None, "no mpirun (apt-get install openmpi-bin)")
class ByMpirun(Launched):
    def agent(self):
        """What ssh is on real hosts: hands its words to a shell there, and little of the environment."""
        script = self.folder / "agent"
        script.write_text(
            f'#!/bin/sh\nhost=$1\nshift\nexec {training.ON_HOST} {self.hosts.prefix} "$host" env -i '
            'PATH="$PATH" HOME="$HOME" sh -c "$*"\n'
        )
        script.chmod(0o755)
        return script

    def mpirun(self, hosts, ranks, *args, mpi=()):
        command = [
            "mpirun",
            "--allow-run-as-root",
            "--bind-to",
            "none",
            "--mca",
            "orte_tmpdir_base",
            self.folder,
            "--mca",
            "plm",
            "rsh",
            "--mca",
            "plm_rsh_agent",
            self.agent(),
            # Host names, boot ids and memory of these hosts are one machine's: nothing but TCP is between real ones.
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            "eth0",
            "--mca",
            "oob_tcp_if_include",
            "eth0",
            "--host",
            hosts,
            "-n",
            ranks,
            *mpi,
            training.TRIREME,
            *self.words,
            *args,
        ]
        text = self.outcome([self.run_on("a", list(map(str, command)), clean_environment())])
        return text

    def test_two_hosts(self):
        self.check(self.mpirun("a:1,b:1", 2), "Open MPI", 2, 2, "Open MPI v")

    def test_two_by_two(self):
        self.check(self.mpirun("a:2,b:2", 4, "--workers", 4), "Open MPI", 4, 2, "Open MPI v")

    def test_gloo_met_at_the_host_of_rank_0(self):
        self.check(
            self.mpirun("a:1,b:1", 2, "--engine", "gloo", mpi=("-x", "MASTER_ADDR=a", "-x", "MASTER_PORT=29600")),
            "Open MPI",
            2,
            2,
            "Gloo",
        )

    def test_gloo_met_through_mpi(self):
        self.check(self.mpirun("a:1,b:1", 2, mpi=("-x", "TRIREME_ENGINE=gloo")), "Open MPI", 2, 2, "Gloo")

    def test_gloo_met_at_a_coordinator(self):
        coordinator = self.coordinator(2, 7075)
        text = self.mpirun("a:1,b:1", 2, mpi=("-x", "TRIREME_COORDINATOR=a:7075", "-x", f"TRIREME_TOKEN={TOKEN}"))
        self.check(text, "Open MPI", 2, 2, "Gloo")
        self.outcome([coordinator])

    def test_one_machine(self):
        command = [
            "mpirun",
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
            "-n",
            "2",
            training.TRIREME,
            *map(str, self.words),
        ]
        result = subprocess.run(
            command,
            env=clean_environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.check(result.stdout, "Open MPI", 2, 1, "")


@unittest.skipIf(slurm.unavailable(), str(slurm.unavailable()))
class BySrun(Launched):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slurm = cls.enterClassContext(slurm.Slurm(cls.hosts))

    def nothing_left(self):
        pass  # the daemons are

    def srun(self, *args):
        result = self.slurm.srun(
            *args, training.TRIREME, *self.words, env={**self.slurm.environment(), "TRIREME_TOKEN": TOKEN}
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_one_node(self):
        self.check(self.srun("-N", 1, "-n", 2), "Slurm", 2, 1, "")

    def test_two_nodes(self):
        self.check(self.srun("-N", 2, "-n", 2), "Slurm", 2, 2, "Gloo")


class ByVariables(Launched):
    def test_of_torchrun(self):
        common = {"WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "a", "MASTER_PORT": 29500}
        text = self.outcome([self.rank("a", RANK=0, **common), self.rank("b", RANK=1, **common)])
        self.check(text, "torchrun-style variables", 2, 2, "Gloo")

    def test_of_torchrun_on_one_host(self):
        common = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "a", "MASTER_PORT": 29510}
        text = self.outcome([self.rank("a", RANK=rank, LOCAL_RANK=rank, **common) for rank in range(2)])
        self.check(text, "torchrun-style variables", 2, 1, "")

    def test_of_ps_lite(self):
        common = {"DMLC_NUM_WORKER": 2, "DMLC_NUM_SERVER": 0, "DMLC_PS_ROOT_URI": "a", "DMLC_PS_ROOT_PORT": 9000}
        workers = [self.rank(host, DMLC_ROLE="worker", **common) for host in ("a", "b")]  # the first to come: they wait
        scheduler = self.rank("a", DMLC_ROLE="scheduler", **common)
        self.check(self.outcome(workers), "ps-lite variables", 2, 2, "Gloo")
        self.assertIn("all 2 ranks have registered", self.outcome([scheduler]))

    def test_of_ps_lite_with_servers(self):
        common = {"DMLC_NUM_WORKER": 2, "DMLC_NUM_SERVER": 2, "DMLC_PS_ROOT_URI": "a", "DMLC_PS_ROOT_PORT": 9010}
        roles = [
            ("a", "worker"),
            ("b", "server"),
            ("b", "worker"),
            ("a", "server"),
            ("a", "scheduler"),
        ]  # in no order: all run the same command
        processes = [self.rank(host, "--sync", "server", DMLC_ROLE=role, **common) for host, role in roles]
        self.check(self.outcome(processes), "ps-lite variables", 2, 2, "Gloo")
        self.assertEqual(json.loads(self.report.read_text())["sync"], "server")

    def test_of_ps_lite_a_server_of_a_job_without(self):
        common = {"DMLC_NUM_WORKER": 2, "DMLC_NUM_SERVER": 0, "DMLC_PS_ROOT_URI": "a", "DMLC_PS_ROOT_PORT": 9000}
        process = self.rank("a", DMLC_ROLE="server", **common)
        _, error = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 2, error)
        self.assertIn("DMLC_NUM_SERVER=0: the job has no servers", error)

    def test_of_our_own(self):
        coordinator = self.coordinator(2, 7070)
        common = {"TRIREME_COORDINATOR": "a:7070", "TRIREME_SIZE": 2, "TRIREME_TOKEN": TOKEN}
        text = self.outcome(
            [
                self.rank("a", "--workers", 2, TRIREME_RANK=0, **common),
                self.rank("b", "--workers", 2, TRIREME_RANK=1, **common),
            ]
        )
        self.check(text, "trireme launch", 2, 2, "Gloo")
        self.assertIn("all 2 ranks have registered", self.outcome([coordinator]))

    def test_of_kubernetes(self):
        coordinator = self.coordinator(2, 7071)
        common = {"TRIREME_COORDINATOR": "a:7071", "TRIREME_SIZE": 2, "TRIREME_TOKEN": TOKEN}
        text = self.outcome(
            [self.rank("a", JOB_COMPLETION_INDEX=0, **common), self.rank("b", JOB_COMPLETION_INDEX=1, **common)]
        )
        self.check(text, "Kubernetes indexed Job", 2, 2, "Gloo")
        self.outcome([coordinator])


class ByHand(Launched):
    def launcher(self, **variables):
        """A job that waits for host b; (process, what it tells to start there)."""
        process = self.run_on(
            "a",
            [training.TRIREME, *map(str, self.words), "--hosts", "a:1,b:1", "--remote", "none"],
            clean_environment(**variables),
        )
        line = process.stdout.readline()
        self.assertTrue(line.startswith("start on host b"), line + process.stderr.read() if not line else line)
        return process, line

    def test_join_as_told(self):
        process, line = self.launcher()
        self.join_and_check(process, *shlex.split(line.split(":  ", 1)[1]))

    def test_join_with_our_token(self):
        process, line = self.launcher(TRIREME_TOKEN=TOKEN)
        self.assertNotIn(TOKEN, line)
        self.join_and_check(process, f"TRIREME_TOKEN={TOKEN}", *shlex.split(line.split(":  ", 1)[1]))

    def test_interrupt_while_it_waits(self):
        process, _ = self.launcher()
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=10)
        self.assertEqual(process.returncode, 130, out + error)

    def test_both_terminals_hear_who_died(self):
        self.words += ["--epochs", 100000]
        process, line = self.launcher()
        agent = self.run_on("b", ["env", *shlex.split(line.split(":  ", 1)[1])], clean_environment())
        self.assertTrue(any(text.startswith("epoch 1 ") for text in process.stdout))
        victim = self.workers("a")[0]
        os.kill(victim, signal.SIGKILL)
        for terminal in (process, agent):
            _, error = terminal.communicate(timeout=20)
            self.assertNotEqual(terminal.returncode, 0)
            self.assertRegex(error, f"rank 0.*{victim}")

    def join_and_check(self, process, *command):
        agent = self.run_on("b", ["env", *command], clean_environment())
        self.check(self.outcome([process, agent]), "trireme launch", 2, 2, "Gloo")


if __name__ == "__main__":
    if reason := slurm.unavailable():
        print(f"without srun: {reason}")
    if shutil.which("mpirun") is None:
        print("without mpirun: apt-get install openmpi-bin")
    training.main()
