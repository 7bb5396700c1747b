"""The commands of the pages that are about several hosts, as they are written there (tests/command/docs.py), for a few
steps.

What stands in for a reader's network: hosts a, b and c of this machine; an `ssh` that enters them; a Slurm of the
test's own. `...` in a line is the token that another line has printed or made, 10.0.0.1 is the address of host a, and
/shared and /var/lib/trireme the test's folder.
"""
import os
import re
import shlex
import shutil
import subprocess
import unittest

import slurm
import training
from training import support

import docs  # of tests/command

LIMIT = 90
TOKEN = "0123456789abcdef0123456789abcdef"
SSH = """#!/bin/sh
# What ssh does on real hosts: a shell there, at home, with little of the environment.
while [ "${1#-}" != "$1" ]; do
  [ "$1" = -o ] && shift
  shift
done
host=$1
shift
exec %s %s "$host" env -i PATH="$PATH" HOME="$HOME" sh -c 'cd && exec sh -c "$*"' sh "$*"
"""
# Host names, boot ids and memory of these hosts are one machine's: nothing but TCP is between real ones.
MPI = {"plm": "rsh", "pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0"}

ONE_BY_ONE = [  # on host a, each by itself
    "trireme train recipes/lenet.toml --hosts a:2,b:2",
    "trireme train gpt:small --data text:book.txt --hosts a:2,b:2 --tensor 2 --zero 3 --recompute --batch 16",
    "trireme train gpt:small --data text:book.txt --hosts a:2,b:2 --tensor 2 --pipeline 2 --micro 8 --batch 16",
    "trireme doctor --hosts a,b",
    "trireme doctor --hosts a,b,c",
    "trireme train lenet --data fashion-mnist --hosts a:2,b:2",
    "trireme train lenet --data fashion-mnist --hostfile hosts.txt --engine gloo",
    "trireme train lenet --data fashion-mnist --hosts a:2,b:2 --engine stream",
    "trireme tune --hosts a:2,b:2",
    "trireme tune --hosts a:2,b:2,c:2",
    "trireme launch --hosts a:2,b:2 -- /shared/my_training --lr 0.1",
    *[
        f"trireme train mlp:2048,2048 --data fashion-mnist --hosts a:1,b:1 {how}"
        for how in (
            "--compress int8",
            "--compress topk:0.01 --compress-layers '5.*'",
            "--compress auto",
            "--compress auto:fp16,int8",
            "--sync diloco:50",
        )
    ],
    "trireme train lenet --data fashion-mnist --hosts a:1,b:2 --virtual 4",
    "mpirun --host a:2,b:2 -n 4 trireme train lenet --data fashion-mnist --workers 4",
    "mpirun --hostfile hosts.txt -n 4 ./my_training",
    "mpirun -x MASTER_ADDR=a -x MASTER_PORT=29500 --host a:2,b:2 -n 4 trireme train lenet --workers 4 --engine gloo",
]
COORDINATOR = "trireme coordinator --ranks 4 --port 7070"
RANKS = [
    ("a", "TRIREME_RANK=0 trireme train lenet --workers 4 & TRIREME_RANK=1 trireme train lenet --workers 4 &"),
    ("b", "TRIREME_RANK=2 trireme train lenet --workers 4 & TRIREME_RANK=3 trireme train lenet --workers 4 &"),
]
TOGETHER = {  # (host, line): all at a time, after the exports
    "every rank by hand": (
        ["export TRIREME_TOKEN=... TRIREME_COORDINATOR=a:7070 TRIREME_SIZE=4"],
        [("a", COORDINATOR), *RANKS],
    ),
    "a coordinator with a journal": (
        ["export TRIREME_TOKEN=... TRIREME_COORDINATOR=a:7070 TRIREME_SIZE=4"],
        [("a", f"{COORDINATOR} --journal /var/lib/trireme/job.journal"), *RANKS],
    ),
    "mpirun at a coordinator": (
        [f"export TRIREME_TOKEN={TOKEN}"],
        [
            ("a", COORDINATOR),
            (
                "a",
                "mpirun -x TRIREME_COORDINATOR=a:7070 -x TRIREME_TOKEN --host a:2,b:2 -n 4 "
                "trireme train lenet --workers 4",
            ),
        ],
    ),
    "torchrun": (
        [],
        [
            (
                host,
                "torchrun --no_python --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d "
                "--rdzv_endpoint a:29500 ./my_training",
            )
            for host in "ab"
        ],
    ),
    "torchrun's variables": (
        ["export WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500"],
        [("a", "RANK=0 ./my_training"), ("b", "RANK=1 ./my_training")],
    ),
    "ps-lite's variables": (
        ["export DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=0 DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=9000"],
        [
            ("a", "DMLC_ROLE=scheduler trireme train lenet --data fashion-mnist"),
            *[(host, "DMLC_ROLE=worker trireme train lenet --data fashion-mnist") for host in "ab"],
        ],
    ),
}
BY_HAND = [
    "trireme train lenet --data fashion-mnist --hosts a:2,b:2 --remote none --port 7070",
    "TRIREME_TOKEN=... trireme join 10.0.0.1:7070 --host b --timeout 600",
]
COMES_LATER = [
    "trireme train lenet --data fashion-mnist --workers 2:8 --hosts a:2,b:2 --port 7070",
    "TRIREME_TOKEN=... trireme join a:7070 --slots 2",
]
MAKES_A_TOKEN = "export TRIREME_TOKEN=$(openssl rand -hex 32)"
SRUN = "srun -N 2 -n 8 trireme train lenet --data fashion-mnist --workers 8"
SLURM_PAGE = "docs/running-under-slurm.md"


def needs(line):
    """What this machine lacks for a line, or None."""
    tool = next((word for word in ("mpirun", "torchrun") if line.startswith(word)), None)
    return f"no {tool}" if tool and shutil.which(tool) is None else None


class Docs(training.HostsTest):
    HOSTS = 3

    def setUp(self):
        super().setUp()
        self.env = docs.prepare(self.folder)
        shims = self.folder / "bin"
        shims.mkdir()
        (shims / "ssh").write_text(SSH % (training.ON_HOST, self.hosts.prefix))
        (shims / "ssh").chmod(0o755)
        self.env["PATH"] = f"{shims}:{self.env['PATH']}"
        self.env.update(
            {f"OMPI_MCA_{name}": value for name, value in MPI.items()}, OMPI_MCA_orte_tmpdir_base=str(self.folder)
        )

    def begin(self, host, line, *exports, steps=docs.STEPS):
        """Starts a line in a shell on a host."""
        text = docs.shortened(line).replace(f"--max-steps {docs.STEPS}", f"--max-steps {steps}")
        if text.endswith("&"):
            text = text.replace(" & ", " & first=$!; ", 1) + " second=$!; wait $first && wait $second"
        text = (
            "\n".join([*exports, text])
            .replace("...", TOKEN)
            .replace("10.0.0.1", self.hosts.address("a"))
            .replace("/shared/", f"{self.folder}/")
            .replace("/var/lib/trireme/", f"{self.folder}/")
        )
        process = self.hosts.run(
            host,
            ["bash", "-c", text],
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(self.end_of, process)
        return process

    def end_of(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()

    def finish(self, *processes):
        for process in processes:
            text, _ = process.communicate(timeout=LIMIT)
            if (
                "trireme doctor" in process.args[-1] and process.returncode == 1
            ):  # on a busy machine it may find a wire slow
                problems = [line for line in text.splitlines() if line.startswith("PROBLEM")]
                self.assertTrue(problems and all("Gbit/s" in line or "round trip" in line for line in problems), text)
                continue
            self.assertEqual(process.returncode, 0, f"{process.args[-1]}\n{text}")

    def test_every_line_about_hosts_is_run_here(self):
        run_here = {
            *ONE_BY_ONE,
            *BY_HAND,
            *COMES_LATER,
            MAKES_A_TOKEN,
            SRUN,
            *[line for _, lines in TOGETHER.values() for _, line in lines],
            *[line for exports, _ in TOGETHER.values() for line in exports],
        }
        written = {line.text for line in docs.all_lines() if line.how() == docs.HOSTS and line.source != SLURM_PAGE}
        self.assertEqual(written - run_here, set(), "say here how it is run")
        self.assertEqual(
            run_here - written - {SRUN, f"export TRIREME_TOKEN={TOKEN}"}, set(), "no page has this any more"
        )

    def test_one_by_one(self):
        for line in ONE_BY_ONE:
            with self.subTest(line=line):
                if reason := needs(line):
                    print(f"left out: {line}: {reason}")
                    continue
                self.finish(self.begin("a", line))

    def test_together(self):
        for name, (exports, lines) in TOGETHER.items():
            with self.subTest(name):
                if any(needs(line) for _, line in lines):
                    print(f"left out: {name}")
                    continue
                self.finish(*[self.begin(host, line, *exports) for host, line in lines])

    def test_what_is_printed_for_other_hosts(self):
        first = self.begin("a", BY_HAND[0])
        printed = ""
        while "trireme join" not in printed:
            printed = first.stdout.readline()
            self.assertTrue(printed, "it ended without a word about host b")
        command = printed.split(":", 1)[1].strip()
        words = (
            re.sub(r"TRIREME_TOKEN=\S+", "TRIREME_TOKEN=...", command)
            .replace(self.hosts.address("a"), "10.0.0.1")
            .replace(support.TRIREME, "trireme")
        )
        self.assertEqual(words.replace(os.path.realpath(support.TRIREME), "trireme"), BY_HAND[1])
        self.finish(self.begin("b", command), first)

    def test_a_host_that_comes_to_a_job_that_runs(self):
        first = self.begin("a", COMES_LATER[0], f"export TRIREME_TOKEN={TOKEN}", steps=600)
        for line in first.stdout:
            if "parameters;" in line:
                break
        self.finish(self.begin("c", COMES_LATER[1]), first)

    def test_a_token_that_was_made(self):
        self.finish(self.begin("a", 'test "${#TRIREME_TOKEN}" -eq 64', MAKES_A_TOKEN))

    @unittest.skipIf(slurm.unavailable(), str(slurm.unavailable()))
    def test_lines_about_slurm(self):
        with slurm.Slurm(self.hosts, cpus=8) as cluster:
            env = {**self.env, "SLURM_CONF": str(cluster.folder / "slurm.conf")}
            result = cluster.command(*shlex.split(docs.shortened(SRUN)), env=env, limit=LIMIT)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            page = [line for line in docs.all_lines() if line.source == SLURM_PAGE]
            script = [line.text for line in page if line.text != SRUN]
            self.assertEqual([line[:2] for line in script], ["#!", "#S", "ex", "sr"])
            (self.folder / "job.sh").write_text("\n".join(docs.shortened(line) for line in script) + "\n")
            result = cluster.command(
                "sbatch",
                "--wait",
                "--chdir",
                self.folder,
                "--output",
                self.folder / "job.out",
                self.folder / "job.sh",
                env=env,
                limit=2 * LIMIT,
            )  # Slurm may take a minute to see that a script has ended
            self.assertEqual(
                result.returncode, 0, result.stdout + result.stderr + (self.folder / "job.out").read_text()
            )
            self.assertTrue((self.folder / "lenet.safetensors").exists())


if __name__ == "__main__":
    training.main()
