"""What srun, mpirun and torchrun really set, and what the command makes of it. The tables of
tests/core/cluster/environment_test.cpp were taken from here."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import hosts
import slurm

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRIREME = os.environ.get("TRIREME", str(ROOT / "build" / "trireme"))
DOCTOR = [
    "sh",
    "-c",
    f"'{TRIREME}' doctor || true",
]  # what else it finds is not the question here, and a failed rank ends the others


def place(text):
    """The launcher's line of `trireme doctor`, without its colours."""
    found = re.search(r"launcher\W+(.*)", re.sub(r"\x1b\[[0-9;]*m", "", text))
    return found[1].strip() if found else f"no launcher in: {text}"


def variables(text):
    """rank -> variables, from the output of `srun -l env`."""
    result = {}
    for rank, name, value in re.findall(r"^ *(\d+): (\w+)=(.*)$", text, re.M):
        result.setdefault(int(rank), {})[name] = value
    return result


@unittest.skipIf(slurm.unavailable(), str(slurm.unavailable()))
class OfSlurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.network = cls.enterClassContext(hosts.Hosts(2))
        cls.slurm = cls.enterClassContext(slurm.Slurm(cls.network))

    def places(self, *args):
        result = self.slurm.srun(*args, "-l", *DOCTOR)
        ranks = sorted({int(rank) for rank in re.findall(r"^ *(\d+):", result.stdout, re.M)})
        return [place("\n".join(re.findall(rf"^ *{rank}: (.*)$", result.stdout, re.M))) for rank in ranks]

    def batch(self, text):
        """Runs a script by sbatch and returns what it wrote."""
        out = self.slurm.folder / "batch.out"
        out.unlink(missing_ok=True)
        script = self.slurm.folder / "batch.sh"
        script.write_text(f"#!/bin/sh\n{text}\n")
        submitted = self.slurm.command("sbatch", "-N", 2, "-n", 4, "-o", out, script)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        number = submitted.stdout.split()[-1]
        self.slurm._wait(
            lambda: self.slurm.command("squeue", "-h", "-j", number).stdout.strip() == "", f"job {number} to end"
        )
        return out.read_text()

    def test_what_srun_sets(self):
        result = self.slurm.srun("-N", 2, "-n", 2, "-l", "env")
        seen = variables(result.stdout)
        self.assertEqual(sorted(seen), [0, 1], result.stderr)
        for rank, node in ((0, "a"), (1, "b")):
            expected = {
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": "2",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_NUM_NODES": "2",
                "SLURM_STEP_NODELIST": "a,b",
                "SLURM_STEP_ID": "0",
                "SLURM_NODEID": str(rank),
                "SLURM_LOCALID": "0",
                "SLURMD_NODENAME": node,
            }
            self.assertEqual({name: seen[rank].get(name) for name in expected}, expected)

    def test_what_a_batch_script_has(self):
        text = self.batch("env")
        self.assertIn("SLURM_PROCID=0\n", text)
        self.assertIn("SLURM_NTASKS=4\n", text)
        self.assertNotIn("SLURM_STEP_ID", text)

    def test_node_0_is_the_first_of_the_list_wherever_rank_0_is(self):
        order = self.slurm.folder / "order"
        order.write_text("b\na\nb\n")
        result = self.slurm.srun(
            "-n", 3, "-m", "arbitrary", "-w", order, "-l", "env", env=self.slurm.environment(SLURM_HOSTFILE=str(order))
        )
        seen = variables(result.stdout)
        self.assertEqual(
            [(seen[r]["SLURMD_NODENAME"], seen[r]["SLURM_NODEID"]) for r in range(3)],
            [("b", "1"), ("a", "0"), ("b", "1")],
            result.stderr,
        )
        self.assertEqual(seen[0]["SLURM_STEP_NODELIST"], "a,b")

    def test_places_of_tasks(self):
        self.assertEqual(self.places("-N", 2, "-n", 3), [f"Slurm: rank {rank} of 3" for rank in range(3)])
        self.assertEqual(self.places("-N", 1, "-n", 2), [f"Slurm: rank {rank} of 2" for rank in range(2)])

    def test_what_is_alone(self):
        alone = "none: this process is alone"
        self.assertEqual(self.places("-N", 1, "-n", 1), [alone])
        self.assertEqual(place(self.batch(f"{TRIREME} doctor")), alone)
        self.assertEqual(place(self.slurm.command("salloc", "-N", 2, "-n", 4, *DOCTOR).stdout), alone)


@unittest.skipIf(shutil.which("mpirun") is None, "no mpirun (apt-get install openmpi-bin)")
class OfMpirun(unittest.TestCase):
    def mpirun(self, *command):
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMPI_", "PMI", "SLURM_", "TRIREME_"))
        }
        result = subprocess.run(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "--tag-output", "-n", "2", *command],
            env=clean,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(sorted(set(re.findall(r"^\[\d+,(\d+)\]", result.stdout, re.M))), ["0", "1"], result.stderr)
        return ["\n".join(re.findall(rf"^\[\d+,{rank}\]<stdout>: ?(.*)$", result.stdout, re.M)) for rank in range(2)]

    def test_what_it_sets(self):
        names = []
        for rank, text in enumerate(self.mpirun("env")):
            for line in (f"OMPI_COMM_WORLD_RANK={rank}", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=2"):
                self.assertIn(line, text.splitlines())
            names.append(re.search(r"^PMIX_NAMESPACE=(.+)$", text, re.M)[1])
        self.assertEqual(names[0], names[1])

    def test_places(self):
        self.assertEqual(
            [place(text) for text in self.mpirun(*DOCTOR)], [f"Open MPI: rank {rank} of 2" for rank in range(2)]
        )


@unittest.skipIf(shutil.which("torchrun") is None, "no torchrun (apt-get install python3-torch)")
class OfTorchrun(unittest.TestCase):
    def test_two_hosts(self):
        # Debian's torchrun fails without --tee and --redirects: its default of 0 is not found by Python 3.11.
        command = [
            "torchrun",
            "--tee",
            "1",
            "--redirects",
            "1",
            "--no_python",
            "--nnodes",
            "2",
            "--nproc_per_node",
            "2",
            "--rdzv_backend",
            "c10d",
            "--rdzv_endpoint",
            "a:29500",
            *DOCTOR,
        ]
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMPI_", "PMI", "SLURM_", "TRIREME_"))
        }
        with hosts.Hosts(2) as network:
            agents = [
                network.run(host, command, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                for host in network.names
            ]
            texts = [agent.communicate(timeout=90)[0] for agent in agents]
        places = [
            place("\n".join(re.findall(rf"^\[default{local}\]:(.*)$", text, re.M)))
            for text in texts
            for local in range(2)
        ]
        self.assertEqual(sorted(places), [f"torchrun-style variables: rank {rank} of 4" for rank in range(4)])


if __name__ == "__main__":
    if reason := hosts.unavailable():
        print(f"skipped: {reason}")
        sys.exit(hosts.SKIPPED)
    unittest.main()
