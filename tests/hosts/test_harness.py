"""The hosts that other tests rely on: they talk, names resolve, cables have a speed and can be pulled, and nothing
stays behind."""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import hosts
import slurm

# Counts what arrives on a port, and prints bytes per second from the first to the last byte.
RECEIVE = """
import socket, sys, time
server = socket.create_server(("", 5001))
print("ready", flush=True)
connection, peer = server.accept()
total, begin = len(connection.recv(1)), time.monotonic()
while data := connection.recv(1 << 16): total += len(data)
print(total / (time.monotonic() - begin), peer[0], flush=True)
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5001), 10)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end: connection.sendall(bytes(1 << 16))
"""


def traces():
    """What a harness may leave behind."""
    names = {path.name for path in pathlib.Path("/run/netns").glob("tri*")} | {
        path.name for path in hosts.NAMES_FOLDER.glob("tri*")
    }
    return {name for name in names if name.startswith(f"tri{os.getpid()}-")}


class Network(unittest.TestCase):
    def transfer(self, network, source, target, seconds=1.0):
        receiver = network.run(target, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
        self.assertEqual(receiver.stdout.readline(), "ready\n")
        network.check(source, [sys.executable, "-c", SEND, target, seconds])
        rate, peer = receiver.communicate(timeout=20)[0].split()
        self.assertEqual(peer, network.address(source))
        return float(rate)

    def test_names_and_addresses(self):
        with hosts.Hosts(3) as network:
            self.assertEqual(network.check("b", ["hostname"]).strip(), "b")
            self.assertEqual(network.check("b", ["cat", "/etc/hostname"]).strip(), "b")
            self.assertEqual(network.check("b", ["getent", "hosts", "c"]).split(), [network.address("c"), "c"])
            self.assertIn(network.address("b"), network.check("b", ["ip", "-4", "addr", "show", "eth0"]))
        with hosts.Hosts(2, names=["node1", "node2"]) as network:
            self.assertEqual(network.check("node2", ["getent", "hosts", "node1"]).split()[0], network.address("node1"))
        self.assertNotEqual(socket.gethostname(), "b")

    def test_the_environment_is_the_one_that_was_given(self):
        with hosts.Hosts(1) as network:
            out = network.check("a", ["env"], env={"PATH": os.environ["PATH"], "COLOUR": "red"})
            self.assertIn("COLOUR=red\n", out)
            self.assertNotIn("HOME=", out)

    def test_traffic_and_its_limit(self):
        with hosts.Hosts(2) as network:
            free = self.transfer(network, "a", "b", 0.5)
            network.limit("b", "200mbit")
            limited = [self.transfer(network, "a", "b"), self.transfer(network, "b", "a")]
            print(f"free {free * 8e-6:.0f} Mbit/s, limited to 200: {limited[0] * 8e-6:.0f} and {limited[1] * 8e-6:.0f}")
            for rate in limited:  # a busy machine may be slower; faster would be no limit
                self.assertLess(rate * 8, 1.05 * 200e6)
            self.assertGreater(free, max(limited))
            network.unlimit("b")

    def test_two_networks_do_not_meet(self):
        with hosts.Hosts(2) as one, hosts.Hosts(2) as other:
            receiver = one.run("a", [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
            self.assertEqual(receiver.stdout.readline(), "ready\n")
            with self.assertRaisesRegex(RuntimeError, "refused"):
                other.check("b", [sys.executable, "-c", SEND, "a", "0"])
            one.check("b", [sys.executable, "-c", SEND, "a", "0.01"])
            self.assertEqual(receiver.wait(10), 0)
            receiver.stdout.close()

    def test_a_pulled_cable(self):
        with hosts.Hosts(2) as network:
            reach = [sys.executable, "-c", "import socket; socket.create_connection(('b', 5001), 1)"]
            server = network.run(
                "b",
                [
                    sys.executable,
                    "-c",
                    "import socket, time; s = socket.create_server(('', 5001)); "
                    "print('ready', flush=True); time.sleep(60)",
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            self.assertEqual(server.stdout.readline(), "ready\n")
            network.check("a", reach)
            network.down("b")
            with self.assertRaises(RuntimeError):
                network.check("a", reach)
            self.assertIsNone(server.poll())
            network.up("b")
            network.check("a", reach)
        server.stdout.close()

    def test_nothing_is_left(self):
        with hosts.Hosts(2) as network:
            self.assertEqual(len(traces()), 3)
            process = network.run("a", ["sleep", "100"])
            stubborn = network.run("b", ["sh", "-c", "trap '' TERM; setsid sleep 100 & wait"])
            while len(network.pids()) < 3:
                time.sleep(0.01)
            pids = network.pids()
            self.assertIn(process.pid, pids)
            self.assertIn(stubborn.pid, pids)
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertEqual([pid for pid in pids if hosts.alive(pid)], [])
        self.assertEqual(traces(), set())

    def test_nothing_is_left_after_an_exception(self):
        with self.assertRaisesRegex(ValueError, "on purpose"):
            with hosts.Hosts(2) as network:
                process = network.run("a", ["sleep", "100"])
                raise ValueError("on purpose")
        self.assertIsNotNone(process.returncode)
        self.assertEqual(traces(), set())
        with self.assertRaises(RuntimeError):  # half made: the name is too long for a network device
            with hosts.Hosts(1, names=["a-name-that-is-too-long-for-a-device"]):
                pass
        self.assertEqual(traces(), set())

    def test_failures_say_what_failed(self):
        with hosts.Hosts(1) as network:
            with self.assertRaisesRegex(RuntimeError, "on a: sh -c .*exit code 3: oh"):
                network.check("a", ["sh", "-c", "echo oh >&2; exit 3"])


@unittest.skipIf(slurm.unavailable(), str(slurm.unavailable()))
class OwnSlurm(unittest.TestCase):
    def test_two_nodes_on_this_machine(self):
        before = slurm.descendants()
        with slurm.Slurm() as cluster:
            folder = cluster.folder
            result = cluster.srun("-N", 2, "-n", 2, "-l", "printenv", "SLURMD_NODENAME")
            self.assertEqual(
                (result.returncode, sorted(result.stdout.splitlines())), (0, ["0: n1", "1: n2"]), result.stderr
            )
        self.assertEqual([pid for pid in slurm.descendants() - before if hosts.alive(pid)], [])
        self.assertFalse(folder.exists())

    def test_a_step_does_not_outlive_it(self):
        with hosts.Hosts(2) as network, slurm.Slurm(network) as cluster, tempfile.TemporaryDirectory() as folder:
            client = network.run(
                "a",
                ["srun", "-N", "2", "-n", "2", "sh", "-c", f"echo $$ > {folder}/$SLURM_PROCID; exec sleep 100"],
                env=cluster.environment(),
            )
            files = [pathlib.Path(folder, str(rank)) for rank in range(2)]
            end = time.monotonic() + 20
            while not all(file.exists() and file.read_text().strip() for file in files) and time.monotonic() < end:
                time.sleep(0.05)
            pids = [int(file.read_text()) for file in files]
            self.assertTrue(all(map(hosts.alive, pids)))
        self.assertIsNotNone(client.poll())
        self.assertEqual([pid for pid in pids if hosts.alive(pid)], [])
        self.assertEqual(traces(), set())


if __name__ == "__main__":
    if reason := hosts.unavailable():
        print(f"skipped: {reason}")
        sys.exit(hosts.SKIPPED)
    unittest.main()
