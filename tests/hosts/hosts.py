"""Several hosts on one machine: network namespaces with host names of their own, joined by a switch.

    with Hosts(2) as hosts:                     # "a" and "b", 10.77.0.1 and 10.77.0.2, which know each other's names
        hosts.limit("b", "1gbit")               # both directions of b's cable
        server = hosts.run("a", ["./server"])   # a Popen
        client = hosts.run("b", ["./client", "a"], env={...}, stdout=subprocess.PIPE)
        hosts.down("b")                         # pulls b's cable: nobody is told

What the hosts share: files, process ids, the boot id, memory and cores. What is their own: addresses, ports, abstract
unix sockets, the host name. The switch is a namespace too, so nothing here can collide with the machine's own addresses
or with another test. Leaving the context kills every process that is inside (and nothing else), and removes the
namespaces and the name files.
"""
import itertools
import os
import pathlib
import shutil
import signal
import string
import subprocess
import time

NETWORK = "10.77.0"
SKIPPED = 77  # the exit code that CTest takes for "skipped"
NAMES_FOLDER = pathlib.Path("/etc/netns")  # `ip netns exec` mounts what is in /etc/netns/NAME over /etc
_count = itertools.count()


def _call(*command):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    if result.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)}: {(result.stderr or result.stdout).strip() or f'exit code {result.returncode}'}"
        )
    return result.stdout


def unavailable():
    """Why this machine cannot have hosts, or None."""
    for tool in ("ip", "tc", "unshare", "hostname"):
        if shutil.which(tool) is None:
            return f"no {tool} (apt-get install iproute2 util-linux hostname)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Hosts(1) as hosts:
            hosts.limit("a", "1gbit")
            hosts.check("a", ["true"])
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return f"network namespaces are not permitted here: {error}"
    return None


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Hosts:
    def __init__(self, n, names=None):
        self.names = list(names) if names else list(string.ascii_lowercase[:n])
        assert len(self.names) == n <= 26
        self.prefix = f"tri{os.getpid()}-{next(_count)}"
        self.switch = f"{self.prefix}-switch"
        self._started = []

    # ---- what a test uses ----
    def address(self, host):
        return f"{NETWORK}.{self.names.index(host) + 1}"

    def namespace(self, host):
        assert host in self.names, f"no host '{host}': {self.names}"
        return f"{self.prefix}-{host}"

    def run(self, host, argv, env=None, **options):
        """Starts argv on that host; a Popen whose pid is the program's own. `env` replaces the environment, as with
        Popen."""
        options.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                self.namespace(host),
                "unshare",
                "--uts",
                "sh",
                "-c",
                'hostname "$0" && exec "$@"',
                host,
                *map(str, argv),
            ],
            env=env,
            **options,
        )
        self._started.append(process)
        return process

    def check(self, host, argv, env=None, limit=60):
        """Runs argv on that host to its end, and returns what it printed. Raises when it fails."""
        process = self.run(host, argv, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, error = process.communicate(timeout=limit)
        if process.returncode != 0:
            raise RuntimeError(
                f"on {host}: {' '.join(map(str, argv))}: exit code {process.returncode}: {error.strip() or out.strip()}"
            )
        return out

    def limit(self, host, rate):
        """The speed of the host's cable, each direction by itself: "1gbit", "200mbit"."""
        for namespace, device in self._cable(host):
            # A bucket of about 2 ms: smaller ones do not reach the rate with a coarse clock, larger ones let bursts
            # through.
            _call(
                "tc",
                "-n",
                namespace,
                "qdisc",
                "replace",
                "dev",
                device,
                "root",
                "tbf",
                "rate",
                rate,
                "burst",
                "256kb",
                "latency",
                "100ms",
            )

    def unlimit(self, host):
        for namespace, device in self._cable(host):
            _call("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")

    def down(self, host):
        """Pulls the cable at the switch: packets vanish, connections stay open and hear nothing."""
        _call("ip", "-n", self.switch, "link", "set", f"to-{host}", "down")

    def up(self, host):
        _call("ip", "-n", self.switch, "link", "set", f"to-{host}", "up")

    def pids(self, host=None):
        """Processes that are inside that host, or inside any."""
        namespaces = [self.namespace(host)] if host else [self.namespace(name) for name in self.names] + [self.switch]
        return [
            int(pid)
            for namespace in namespaces
            if self._exists(namespace)
            for pid in _call("ip", "netns", "pids", namespace).split()
        ]

    # ---- making and removing ----
    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_):
        self._remove()

    def _cable(self, host):
        return (self.namespace(host), "eth0"), (self.switch, f"to-{host}")

    @staticmethod
    def _exists(namespace):
        return pathlib.Path("/run/netns", namespace).exists()

    def _make(self):
        _call("ip", "netns", "add", self.switch)
        _call(
            "ip", "-n", self.switch, "link", "add", "switch", "type", "bridge", "forward_delay", "0", "stp_state", "0"
        )
        _call("ip", "-n", self.switch, "link", "set", "switch", "up")
        lines = ["127.0.0.1 localhost", "::1 localhost"] + [f"{self.address(host)} {host}" for host in self.names]
        for host in self.names:
            folder = NAMES_FOLDER / self.namespace(host)
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            (folder / "hostname").write_text(host + "\n")
            namespace = self.namespace(host)
            _call("ip", "netns", "add", namespace)
            _call(
                "ip",
                "-n",
                self.switch,
                "link",
                "add",
                f"to-{host}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                namespace,
            )
            _call("ip", "-n", self.switch, "link", "set", f"to-{host}", "master", "switch", "up")
            _call("ip", "-n", namespace, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _call("ip", "-n", namespace, "link", "set", "eth0", "up")
            _call("ip", "-n", namespace, "link", "set", "lo", "up")

    def _remove(self):
        end = time.monotonic() + 10
        while (pids := [pid for pid in self.pids() if alive(pid)]) and time.monotonic() < end:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)
        for process in self._started:
            if process.poll() is None:  # between fork and its namespace, so far
                process.kill()
            process.wait(10)
        for namespace in [self.namespace(host) for host in self.names] + [self.switch]:
            if self._exists(namespace):
                _call("ip", "netns", "del", namespace)
            shutil.rmtree(NAMES_FOLDER / namespace, ignore_errors=True)
        try:
            NAMES_FOLDER.rmdir()  # ours if nobody else has names in it
        except OSError:
            pass
