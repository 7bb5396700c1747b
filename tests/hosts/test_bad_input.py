"""What goes wrong on several hosts because somebody gave something wrong: an end within seconds, a sentence that says
where and what to do, and nothing left."""
import signal
import subprocess
import sys
import time

import training
from training import support

MODEL = ["mlp:16", "--data", "synthetic:200", "--epochs", 1]
ENDLESS = ["mlp:64", "--data", "synthetic:2000", "--epochs", 100000, "--batch", 64]
LIMIT = 3  # --timeout in these tests, seconds
TOKEN = "0123456789abcdef0123456789abcdef"
SOON = 10  # seconds; the machine may be busy
LISTEN = "import socket, time; s = socket.create_server(('', 7300)); print('ready', flush=True); time.sleep(60)"
GARBAGE = r"""
import random, socket, sys
random.seed(1)
kept = []
for i in range(50):
    s = socket.create_connection(("a", int(sys.argv[1])), 5)
    try:
        noise, preface = random.randbytes(random.randint(1, 5000)), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        s.sendall(noise if i % 2 else preface[:i % 25 + 1])
    except OSError:
        pass  # it hung up on us
    kept.append(s) if i % 3 == 0 else s.close()
"""


class BadInput(training.HostsTest):
    def tearDown(self):
        self.assertTrue(support.wait_until(lambda: not self.hosts.pids(), 5), f"still there: {self.hosts.pids()}")

    def refused(self, process, *says, within=SOON):
        since = time.monotonic()
        out, error = process.communicate(timeout=within + 20)
        self.assertLess(time.monotonic() - since, within, error)
        self.assertNotEqual(process.returncode, 0, out)
        self.assertLess(process.returncode, 128, error)
        for part in says:
            self.assertIn(part, error)
        for noise in ("terminate called", "Exception raised from"):
            self.assertNotIn(noise, error)
        self.assertTrue(error.startswith("trireme: "), error)
        return error

    def coordinator(self, port, *args, env=None):
        process = self.start(
            "coordinator", "--ranks", 2, "--port", port, *args, env={"TRIREME_TOKEN": TOKEN, **(env or {})}
        )
        self.assertIn("coordinator of job", process.stdout.readline())
        return process

    def stop(self, coordinator):
        self.assertIsNone(coordinator.poll(), "the coordinator has ended")
        coordinator.send_signal(signal.SIGINT)
        coordinator.communicate(timeout=20)

    def join(self, port, *args, slots=1, token=TOKEN):
        return self.start(
            "join", f"a:{port}", "--slots", slots, "--timeout", LIMIT, *args, host="b", env={"TRIREME_TOKEN": token}
        )

    def rank(self, port, rank, *args, **variables):
        return self.start(
            "train",
            *MODEL,
            "--timeout",
            LIMIT,
            *args,
            host="b",
            env={
                "TRIREME_TOKEN": TOKEN,
                "TRIREME_COORDINATOR": f"a:{port}",
                "TRIREME_SIZE": "2",
                "TRIREME_RANK": str(rank),
                **variables,
            },
        )

    def certificates(self, name):
        folder = self.folder / name
        result = support.run("tls", "init", folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return folder

    # ---- who may join ----
    def test_wrong_token(self):
        coordinator = self.coordinator(7201)
        self.refused(self.join(7201, token="another"), "host b", "a:7201", "refuses the token", "TRIREME_TOKEN")
        self.refused(
            self.rank(7201, 1, TRIREME_TOKEN="another"), "host b", "a:7201", "refuses the token", "TRIREME_TOKEN"
        )
        self.stop(coordinator)

    def test_foreign_certificate_and_none(self):
        ours, theirs = self.certificates("ours"), self.certificates("theirs")
        coordinator = self.coordinator(7202, "--tls", ours)
        self.refused(
            self.join(7202, "--tls", theirs), "host b", "a:7202", "foreign certificate", "Copy one folder", str(theirs)
        )
        self.refused(self.join(7202), "host b", "a:7202", "speaks TLS", "--tls")
        self.stop(coordinator)
        coordinator = self.coordinator(7203)
        self.refused(self.join(7203, "--tls", ours), "host b", "a:7203", "does not speak TLS", "--tls")
        self.stop(coordinator)

    def test_expired_certificate(self):
        folder = self.certificates("old")
        request = subprocess.run(
            ["openssl", "req", "-new", "-key", folder / "node.key", "-subj", "/CN=trireme"],
            capture_output=True,
            check=True,
        ).stdout
        expired = subprocess.run(
            [
                "openssl",
                "x509",
                "-req",
                "-CA",
                folder / "ca.pem",
                "-CAkey",
                folder / "ca.key",
                "-set_serial",
                "7",
                "-days",
                "-1",
            ],
            input=request,
            capture_output=True,
            check=True,
        ).stdout
        (folder / "node.pem").write_bytes(expired)
        self.refused(
            self.start_train("a:1,b:1", *MODEL, "--tls", folder),
            "host a",
            str(folder / "node.pem"),
            "has expired on",
            "trireme tls init --force",
        )
        self.refused(
            self.join(7204, "--tls", folder),
            "host b",
            str(folder / "node.pem"),
            "has expired on",
            "trireme tls init --force",
        )

    def test_training_with_tls(self):
        for name, args, env in (
            ("flag", ["--tls", self.certificates("flag")], None),
            ("variable", [], {"TRIREME_TLS": str(self.certificates("variable"))}),
        ):
            with self.subTest(name):
                process = self.start_train("a:1,b:1", *MODEL, *args, env=env)
                out, error = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 0, out + error)
                self.assertIn("2 ranks on 2 machines", out)

    # ---- what they read ----
    def test_the_same_file_with_other_numbers(self):
        """As many rows, but one cell is another: without a word, each machine would train on its own data."""
        ranks = []
        for rank, host in enumerate(("a", "b")):
            folder = self.folder / host
            folder.mkdir()
            (folder / "data.csv").write_text("a,b\n1,0\n2,1\n3,0\n4,1\n" + f"{5 + rank},0\n6,1\n")
            variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7290"}
            command = [training.TRIREME, "train", "linear", "--data", "data.csv", "--test", "0", "--epochs", "1"]
            process = self.hosts.run(
                host,
                command,
                env={**support.environment(), **variables},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.addCleanup(self.end, process)
            ranks.append(process)
        self.refused(
            ranks[1], "data.csv on this machine (rank 1)", "other names, categories or numbers", "Copy the same files"
        )
        ranks[0].communicate(timeout=30)
        self.assertNotEqual(ranks[0].returncode, 0)

    def test_ranks_of_two_jobs_that_meet(self):
        """One MASTER_PORT for two jobs: rank 0 of one finds rank 1 of the other."""
        ranks = []
        for rank, (host, lr) in enumerate((("a", 0.1), ("b", 0.2))):
            variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7291"}
            ranks.append(self.start("train", *MODEL, "--lr", lr, "--timeout", 15, host=host, env=variables))
        for rank in ranks:
            words = "rank 0 was started with --lr 0.1, rank 1 with --lr 0.2: ranks of one job have the same command"
            self.refused(rank, words, "MASTER_PORT or TRIREME_JOB")

    # ---- where they meet ----
    def test_port_in_use(self):
        listener = self.hosts.run(
            "a", [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(self.end, listener)
        self.assertEqual(listener.stdout.readline(), "ready\n")
        for process in (
            self.start_train("a:1,b:1", *MODEL, "--port", 7300),
            self.start("coordinator", "--ranks", 2, "--port", 7300),
            self.start(
                "train", *MODEL, env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7299"}
            ),
        ):
            self.refused(process, "host a", "7300", "Address already in use", "another --port")
        listener.kill()
        listener.wait()

    def test_unknown_host(self):
        self.refused(
            self.start_train("a,nosuchhost", *MODEL), "host 'nosuchhost' cannot be found", "Check the spelling"
        )
        self.refused(
            self.start("join", "nosuchhost:7200", "--timeout", 1, host="b", env={"TRIREME_TOKEN": TOKEN}),
            "host b",
            "nosuchhost",
            "is not known",
        )

    def test_host_that_is_down(self):
        self.hosts.down("b")
        self.addCleanup(self.hosts.up, "b")
        error = self.refused(
            self.start_train("a:1,b:1", *MODEL, "--timeout", LIMIT),
            "host b has not joined the job within 3 s",
            within=20,
        )
        self.assertIn("host b: the coordinator at 10.77.0.1:", error)

    def test_nobody_listens(self):
        self.refused(self.join(7205), "host b", "a:7205", "has not answered within 3 s", "refused", "firewall")

    def test_interrupted_before_anybody_answers(self):
        for port in (7205, 7210):  # nobody listens; somebody listens who says nothing
            with self.subTest(port=port):
                if port == 7210:
                    listener = self.hosts.run(
                        "a",
                        [sys.executable, "-c", LISTEN.replace("7300", "7210")],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                    self.addCleanup(self.end, listener)
                    self.assertEqual(listener.stdout.readline(), "ready\n")
                process = self.start(
                    "join", f"a:{port}", "--slots", 1, "--timeout", 60, host="b", env={"TRIREME_TOKEN": TOKEN}
                )
                time.sleep(1)  # nothing can be seen from outside
                self.assertIsNone(process.poll())
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=5)  # of the minute that it would wait
                self.assertEqual(process.returncode, -signal.SIGINT)
        listener.kill()
        listener.wait()

    def test_a_rank_that_does_not_come(self):
        coordinator = self.coordinator(7206)
        self.refused(self.rank(7206, 0), "host b", "rank 1 has not come to the coordinator at a:7206 within 3 s")
        out, _ = coordinator.communicate(timeout=20)
        self.assertEqual(coordinator.returncode, 1, out)
        self.assertIn("rank 0 on host b", out)

    def test_two_jobs_at_one_coordinator(self):
        coordinator = self.coordinator(7207, "--job", "first")
        self.refused(
            self.rank(7207, 0, TRIREME_JOB="second"),
            "host b",
            "a:7207",
            "serves job 'first', not 'second'",
            "one coordinator per job",
        )
        self.refused(self.rank(7207, 0, TRIREME_SIZE="3"), "host b", "3 ranks", "give both the same number")
        holder = self.rank(7207, 0, "--timeout", 60, TRIREME_JOB="first")
        self.assertIn("rank 0 on host b", coordinator.stdout.readline())
        self.refused(self.rank(7207, 0), "host b", "rank 0 is taken")
        self.stop(coordinator)
        holder.communicate(timeout=20)

    def test_join_what_has_nothing_to_start(self):
        coordinator = self.coordinator(7208)
        self.refused(self.join(7208, slots=2), "host b", "a:7208", "nothing for agents to start", "--remote none")
        coordinator.communicate(timeout=20)
        self.assertEqual(coordinator.returncode, 1)

    def test_garbage_at_the_port(self):
        model = self.folder / "kept.safetensors"
        process = self.start_train("a:1,b:1", *ENDLESS, "--port", 7209, "--save", model)
        self.assertTrue(self.still_trains(process, 0), "it ended before the first epoch")
        self.hosts.check("b", [sys.executable, "-c", GARBAGE, "7209"])
        self.assertTrue(self.still_trains(process, 1), "it ended because of the garbage")
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, out + error)
        self.assertIn("stopped on request", out)
        self.assertTrue(model.exists())

    def still_trains(self, process, seconds):
        """Reads until an epoch ends that many seconds from now, or later."""
        end = time.monotonic() + seconds
        return any(line.startswith("epoch ") and time.monotonic() > end for line in process.stdout)

    # ---- flags ----
    def test_hosts(self):
        for spec, says in (
            ("a:0", "'0' is not a number of ranks"),
            ("a:two", "'two' is not a number of ranks"),
            ("", "--hosts a:2,b:2"),
            ("a,,b", "'' is not a host name"),
            ("a:2,a:2", "host 'a' is there twice"),
            ("-x", "'-x' is not a host name"),
        ):
            with self.subTest(spec):
                self.refused(
                    self.start(
                        "train",
                        *MODEL,
                        f"--hosts={spec}" if spec else "--hosts",
                        *([] if spec else [""]),
                        "--remote",
                        self.remote(),
                    ),
                    "--hosts",
                    says,
                )

    def test_hostfile(self):
        file = self.folder / "hosts.txt"
        for text, says in (
            ("a slots=2\n# nothing\nb slots=x\n", ":3: 'x' is not a number of ranks"),
            ("a 1 2\n", ":1: nothing is expected after '1'"),
            ("a\na\n", ":2: host 'a' is there twice"),
            ("# nobody\n", "names no host"),
        ):
            with self.subTest(text):
                file.write_text(text)
                self.refused(
                    self.start("train", *MODEL, "--hostfile", file, "--remote", self.remote()), str(file), says
                )
        self.refused(self.start("train", *MODEL, "--hostfile", self.folder / "none.txt"), "none.txt", "No such file")

    def test_remote(self):
        self.refused(
            self.start("train", *MODEL, "--hosts", "a:1,b:1", "--remote", "ssh {host}"),
            "--remote 'ssh {host}'",
            "{command}",
            "Example",
        )
        self.refused(
            self.start("train", *MODEL, "--hosts", "b:1", "--remote", "none"), "host a is not in the host list"
        )
        error = self.refused(
            self.start("train", *MODEL, "--hosts", "a:1,b:1", "--remote", "nosuchprogram {host} {command}"),
            "cannot start nosuchprogram",
            within=20,
        )
        self.assertIn("the agent of host b", error)

    def test_engine(self):
        error = self.refused(
            self.start_train("a:1,b:1", *MODEL, "--engine", "nccl"), "this libtorch has no NCCL", "--engine stream"
        )
        self.assertEqual(error.count("NCCL"), 1, error)  # not by every worker
        self.refused(
            self.start_train("a:1,b:1", *MODEL, "--engine", "mpi"),
            "--engine mpi needs ranks that mpirun has started",
            "--engine stream",
        )
        self.refused(
            self.start(
                "train",
                *MODEL,
                "--engine",
                "mpi",
                env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"},
            ),
            "engine 'mpi' needs processes that mpirun has started",
        )
        self.refused(
            self.start_train("a:1,b:1", *MODEL, "--engine", "gluo"), "unknown --engine 'gluo'", "did you mean 'gloo'?"
        )
        self.refused(
            self.start_train("a:1,b:1", *MODEL, "--engine", "nonsense"),
            "unknown --engine 'nonsense'",
            "auto, stream, gloo, mpi, nccl, gloo:insecure or mpi:insecure",
        )

    def test_more_workers_than_samples_of_a_batch(self):
        self.refused(
            self.start_train("a:2,b:2", *MODEL, "--batch", 3), "--batch 3", "number of workers (4)", "at least 4"
        )

    def test_hosts_and_a_launcher(self):
        self.refused(
            self.start(
                "train",
                *MODEL,
                "--hosts",
                "a:1,b:1",
                env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"},
            ),
            "--hosts",
            "torchrun-style variables",
        )


if __name__ == "__main__":
    training.main()
