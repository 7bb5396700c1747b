"""A Slurm of our own for the length of a test: munged, slurmctld and a slurmd for each node, configured in a temporary
folder.

    with Hosts(2) as hosts, Slurm(hosts) as slurm:      # nodes are the hosts
        print(slurm.srun("-N", 2, "-n", 2, "hostname").stdout)
    with Slurm() as slurm: ...                          # nodes n1 and n2, both on this machine, on ports of their own

Leaving the context ends every process that came of it, by process id.
"""
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from hosts import alive

PR_SET_CHILD_SUBREAPER = 36
TOOLS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}


def unavailable():
    """Why there is no Slurm here, or None."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        return f"no Slurm (apt-get install {' '.join(missing)})"
    return None if os.geteuid() == 0 else "slurmd needs root"


def free_ports(n):
    holders = [socket.socket() for _ in range(n)]
    for holder in holders:
        holder.bind(("127.0.0.1", 0))
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def parents():
    """pid -> parent of every process."""
    result = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                result[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                pass
    return result


def descendants():
    parent, mine = parents(), {os.getpid()}
    while new := {pid for pid, up in parent.items() if up in mine} - mine:
        mine |= new
    return mine - {os.getpid()}


class Slurm:
    def __init__(self, hosts=None, nodes=2, cpus=4):
        self.hosts = hosts
        self.nodes = list(hosts.names) if hosts else [f"n{i + 1}" for i in range(nodes)]
        self.cpus = cpus

    def __enter__(self):
        self.holder = tempfile.TemporaryDirectory(prefix="trireme-slurm-")
        self.folder = pathlib.Path(self.holder.name)
        self.folder.chmod(0o755)
        self.before = descendants()
        # Job steps leave slurmd's family. As a subreaper we stay their ancestor, and can end them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.processes = []
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end = time.monotonic() + 10
        while (pids := [pid for pid in descendants() - self.before if alive(pid)]) and time.monotonic() < end:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        for process in self.processes:
            process.wait(10)
        for pid in descendants() - self.before:  # orphans that became ours
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self.holder.cleanup()

    # ---- what a test uses ----
    def environment(self, **more):
        """This process's, without what an outer Slurm or launcher has set, and with the way to this one."""
        ours = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("SLURM_", "SRUN_", "PMI", "OMPI_", "TRIREME_", "DMLC_"))
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            ours.pop(name, None)
        return {**ours, "SLURM_CONF": str(self.folder / "slurm.conf"), **more}

    def command(self, *argv, env=None, limit=60, node=None):
        """Runs a client such as sbatch or sinfo to its end: returncode, stdout, stderr."""
        process = self._popen(
            node or self.nodes[0],
            argv,
            env or self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )
        try:
            out, error = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
            raise RuntimeError(
                f"{' '.join(map(str, argv))} took more than {limit} s\n{out}{error}\n{self.logs()}"
            ) from None
        return subprocess.CompletedProcess(argv, process.returncode, out, error)

    def srun(self, *args, **options):
        return self.command("srun", *args, **options)

    def logs(self):
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(self.folder.glob("*.log"))
        )

    # ---- starting ----
    def _popen(self, node, argv, env, **options):
        argv = [str(arg) for arg in argv]
        options.setdefault("stdin", subprocess.DEVNULL)
        return self.hosts.run(node, argv, env, **options) if self.hosts else subprocess.Popen(argv, env=env, **options)

    def _daemon(self, node, *argv):
        with open(self.folder / f"{os.path.basename(argv[0])}-{node}.out.log", "w") as log:
            process = self._popen(node, argv, self.environment(), stdout=log, stderr=log, cwd=self.folder)
        self.processes.append(process)
        return process

    def _start(self):
        first, munge = self.nodes[0], self.folder / "munge"
        munge.mkdir(mode=0o755)
        key = munge / "key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        self._configure(munge / "socket")
        self._daemon(
            first,
            "munged",
            "--foreground",
            "--force",
            f"--socket={munge}/socket",
            f"--key-file={key}",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )
        self._wait(lambda: (munge / "socket").exists(), "munged")
        self._daemon(first, "slurmctld", "-D", "-i", "-f", self.folder / "slurm.conf")
        for node in self.nodes:
            self._daemon(node, "slurmd", "-D", "-N", node, "-f", self.folder / "slurm.conf")
        self._wait(
            lambda: self.command("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").stdout.split() == sorted(self.nodes),
            "all nodes to be idle",
        )

    def _wait(self, condition, what, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            ended = [process.args for process in self.processes if process.poll() is not None]
            if ended or time.monotonic() > end:
                raise RuntimeError(
                    f"Slurm: waited for {what}" + (f", but {ended[0]} ended" if ended else "") + "\n" + self.logs()
                )
            time.sleep(0.1)

    def _configure(self, munge_socket):
        folder = self.folder
        for name in ["state"] + [f"spool-{node}" for node in self.nodes]:
            (folder / name).mkdir()
        if self.hosts:
            ports = [6817] + [6818] * len(self.nodes)
            where = {node: (node, self.hosts.address(node)) for node in self.nodes}
        else:
            ports = free_ports(1 + len(self.nodes))
            where = {node: (socket.gethostname(), "127.0.0.1") for node in self.nodes}
        control, address = where[self.nodes[0]]
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={control}({address})",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={munge_socket}",
            "CredType=cred/munge",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd-%n.log",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",
            "SlurmdTimeout=60",
            "InactiveLimit=0",
            "MinJobAge=300",
            "KillWait=2",
        ]
        for node, port in zip(self.nodes, ports[1:]):
            lines.append(
                f"NodeName={node} NodeHostname={where[node][0]} NodeAddr={where[node][1]} "
                f"Port={port} CPUs={self.cpus} State=UNKNOWN"
            )
        lines.append(f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP")
        (folder / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\n"
        )  # none is used; looking for the right one fails in a namespace
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
