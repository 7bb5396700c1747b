"""`make train` needs little: few packages, few targets. `make test` goes on in the same folder and compiles nothing of
that again."""
import json
import os
import pathlib
import re
import subprocess

import support

ROOT = support.ROOT
NOT_FOR_TRAINING = re.compile(r"slurm|munge|python|gtest|openmpi|iproute")
WITHOUT = [
    "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON",
    "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON",
]  # as before `make test` has installed them
WITH = [flag.replace("=ON", "=OFF") for flag in WITHOUT]


def packages():
    """The lists of scripts/packages.txt, by section."""
    sections, current = {}, None
    for line in (ROOT / "scripts/packages.txt").read_text().splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            current.append(line.split()[0])
    return sections


class MakeTrain(support.CommandTest):
    def recipe_of(self, target):
        """What `make` would do, with a folder that is not there yet."""
        return subprocess.run(
            ["make", "-n", target, "BUILD=none"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout

    def asked_of_apt(self, *options):
        """What scripts/setup would install on a machine that has nothing: the real script, between a dpkg that knows no
        package and an apt-get that tells."""
        for name, body in (("dpkg-query", "exit 1"), ("apt-get", 'echo "$@" >> "$LOG"'), ("sudo", 'exec "$@"')):
            (self.folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (self.folder / name).chmod(0o755)
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        subprocess.run(
            [ROOT / "scripts/setup", *options],
            env={"PATH": f"{self.folder}:{os.environ['PATH']}", "LOG": str(log)},
            check=True,
            capture_output=True,
        )
        install = [line.split() for line in log.read_text().splitlines() if line.startswith("install")]
        return {word for words in install for word in words[1:] if not word.startswith("-")}

    def test_training_brings_neither_slurm_nor_python(self):
        wanted = self.asked_of_apt()
        self.assertEqual([name for name in wanted if NOT_FOR_TRAINING.search(name)], [])
        self.assertLessEqual({"g++", "cmake", "libtorch-dev", "dataset-fashion-mnist"}, wanted)

    def test_every_package_has_its_place(self):
        sections = packages()
        self.assertEqual(self.asked_of_apt("--test"), {name for names in sections.values() for name in names})
        self.assertEqual(
            self.asked_of_apt("--bench"), {name for key in ("train", "mpi", "bench") for name in sections[key]}
        )
        self.assertEqual(self.asked_of_apt("--mpi"), {*sections["train"], *sections["mpi"]})

    def test_make_train_builds_the_command_and_no_tests(self):
        lines = self.recipe_of("train")
        self.assertRegex(lines, r"(?m)^scripts/setup$")
        self.assertRegex(lines, r"(?m)^cmake --build none --target trireme_command trireme_worker$")
        self.assertRegex(self.recipe_of("test"), r"(?m)^scripts/setup --test$")

    def configure(self, *flags):
        build = self.folder / "build"
        subprocess.run(
            ["cmake", "--preset", "release", "-B", build, *flags],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=support.LIMIT,
        )
        return build

    def commands(self, build):
        """By object file."""
        lines = [entry["command"] for entry in json.loads((build / "compile_commands.json").read_text())]
        return {re.search(r" -o (\S+)", line).group(1): line for line in lines}

    def test_without_what_tests_need_it_can_be_built_and_tests_continue_there(self):
        build = self.configure("-DTRIREME_UNITY=ON", *WITHOUT)
        first = self.commands(build)
        steps = subprocess.run(
            ["ninja", "-C", build, "-n", "trireme_command", "trireme_worker"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        self.assertNotIn("tests/", steps)
        self.assertNotIn("examples/", steps)
        self.assertFalse([output for output in first if "tests" in pathlib.PurePath(output).parts])

        second = self.commands(self.configure(*WITH))
        self.assertTrue([output for output in second if "tests" in pathlib.PurePath(output).parts])
        compiled_anew = [output for output, command in first.items() if second.get(output) != command]
        self.assertEqual([output for output in compiled_anew if "/comm/mpi/" not in output], [])


if __name__ == "__main__":
    support.main()
