"""The commands of README.md, CONTRIBUTING.md, docs/*.md and `--help`, and how each is run by a test.

A command is a line of a ```sh block, a line after "$ " of any other, or one of the examples that a `--help` ends with.
The first rule that fits says how:
    HERE    as it is written, on this machine
    SHORT   the same with a flag that bounds it (see shortened()), on this machine
    HOSTS   on two hosts of this machine: tests/hosts/test_docs.py
    NEVER   not by a test, with the reason
A line that no rule fits fails the test of its name: add a rule, or better, write a line that runs.
"""
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import subprocess

import support

HERE, SHORT, HOSTS, NEVER = "here", "short", "hosts", "never"
STEPS = 6  # of a training that is bounded

RULES = [
    (
        r"^make (train|test|asan|tsan|bench|install)\b",
        NEVER,
        "continuous integration runs `make test` itself; test_make_train.py follows the steps of `make train`",
    ),
    (
        r"^(podman|kubectl) |kustomize ",
        NEVER,
        "needs a container engine or a Kubernetes cluster; tests/hosts/test_manifests.py checks the files",
    ),
    (r"\b(srun|sbatch)\b|^#", HOSTS, "a script of sbatch, and with a Slurm of the test's own"),
    (r"--hosts |--hostfile |--host |--rdzv_endpoint|trireme join|trireme coordinator", HOSTS, ""),
    (r"^export |^(TRIREME_)?RANK=|DMLC_ROLE=|TRIREME_TOKEN=|MASTER_ADDR", HOSTS, ""),
    (r"^trireme ctl ", HERE, "beside a training that runs"),
    (r"^trireme bench ", SHORT, ""),
    (r"^trireme chaos ", SHORT, ""),
    (r"\btrireme (train|compare) ", SHORT, ""),
    (r"^trireme (evaluate|predict|generate|checkpoint) ", HERE, "on MODELS"),
    (r"^spm_train ", HERE, ""),
    (r"^trireme (models|doctor|launch|--version|tls|schedule)\b", HERE, ""),
    (r"^openssl rand ", HERE, ""),
]

MODELS = [  # that the lines about trained models use
    "trireme train linear --data flowers.csv --workers 1 --epochs 5 --save flowers.safetensors",
    "trireme train lenet --data synthetic:64 --workers 1 --max-steps 1 --save lenet.safetensors",
    "trireme train gpt:tiny --data text:book.txt --workers 1 --max-steps 2 --save gpt.safetensors "
    "--checkpoint runs/gpt",
    *(
        f"trireme train linear --data synthetic:64 --workers 1 --max-steps 500 --epochs 500 --checkpoint runs/{name} "
        "--checkpoint-every 250steps"
        for name in "ab"
    ),
]


@dataclasses.dataclass(frozen=True)
class Line:
    source: str  # "docs/comparing.md"
    text: str  # without its comment
    comment: str

    def rule(self):
        """(how, note), or None."""
        return next(((how, note) for pattern, how, note in RULES if re.search(pattern, self.text)), None)

    def how(self):
        found = self.rule()
        return found[0] if found else None


def split_comment(line):
    text, _, comment = line.partition("  #") if not line.startswith("#") else (line, "", "")
    return text.strip(), comment.strip()


def blocks_of_page(path):
    """What stands between ``` and ```: (language, lines)."""
    language = None  # outside
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if not line.strip().startswith("```"):
            if language is not None:
                lines.append(line)
        elif language is None:
            language, lines = line.strip()[3:], []
        else:
            yield language, lines
            language = None


def lines_of_page(path):
    name = str(path.relative_to(support.ROOT))
    for language, lines in blocks_of_page(path):
        if language != "sh":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            if line.strip():
                yield Line(name, *split_comment(line))


def pages():
    return [support.ROOT / "README.md", support.ROOT / "CONTRIBUTING.md", *sorted((support.ROOT / "docs").glob("*.md"))]


@functools.cache
def help_of(*names):
    return support.run(*names, "--help").stdout


def commands(*names):
    """Names of the sub-commands, or of those of one of them."""
    listed = help_of(*names).partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  ([a-z-]+) {2,}\S", listed, re.M)


def lines_of_help(*names):
    """Of a sub-command, and of those that it has."""
    examples = re.split(r"Examples?:\n", help_of(*names))
    for line in examples[1].splitlines() if len(examples) > 1 else []:
        if line.startswith("  trireme "):
            yield Line(" ".join(["trireme", *names, "--help"]), *split_comment(line))
    for name in commands(*names):
        yield from lines_of_help(*names, name)


def all_lines():
    return [line for page in pages() for line in lines_of_page(page)] + [
        line for command in commands() for line in lines_of_help(command)
    ]


def shortened(text):
    """Bounded: some steps of a training, one round of a benchmark."""
    text = re.sub(r"\b(trireme (?:train|compare) \S+)", rf"\1 --max-steps {STEPS}", text)
    text = re.sub(r"(train resnet\S+ .*)--data fashion-mnist", r"\1--data synthetic:64", text)  # tests on 10,000 images
    text = text.replace("mlp:2048,2048", "mlp:64,64")
    text = re.sub(r"^(trireme bench allreduce\b)", r"\1 --rounds 1 --sizes 4096 --ranks 2", text)
    text = re.sub(r"^(trireme bench (?:train|ps)\b)", r"\1 --rounds 1", text)
    text = re.sub(
        r"^(trireme bench compress)\b(?!.*--hosts)", r"\1 --rounds 1 --codecs fp16,topk:0.01 --gradients lenet", text
    )
    text = re.sub(r"^(trireme bench checkpoint\b)", r"\1 --rounds 1 --turns 1 --width 64", text)
    small = "--rounds 1 --layers 1 --model-width 32 --heads 2 --context 16 --samples 4 --steps 2"
    text = re.sub(r"^(trireme bench (?:model|pipeline)\b)", rf"\1 {small}", text)
    text = re.sub(
        r"^(trireme bench elastic) --tries \d+", r"\1 --rounds 1 --case lenet-32 --tries 2 --peer-tries 1", text
    )
    text = re.sub(r"^(trireme bench balance)", r"\1 --rounds 1 --case lenet-32 --seconds 1", text)
    if text.startswith("trireme chaos "):
        text = re.sub(r"--kills \d+", "--kills 1", text).replace("fashion-mnist", "synthetic:2000")
    text = re.sub(r"^(trireme tune\b)", r"\1 --rounds 1", text)
    return re.sub(
        r"^(torchrun )", r"\1--tee 1 --redirects 1 ", text
    )  # what docs/running-under-torchrun.md says of Debian's


def prepare(folder):
    """What a reader has: the repository's recipes, a table, programs of his own, a list of hosts, and `trireme` in the
    path."""
    build = pathlib.Path(support.TRIREME).resolve().parent
    shutil.copytree(support.ROOT / "recipes", folder / "recipes")
    (folder / "deploy" / "kubernetes").mkdir(parents=True)
    rows = "".join(f"{i % 7},{i % 5},{3 * (i % 7) - 2 * (i % 5) + 0.5}\n" for i in range(200))
    (folder / "my.csv").write_text("size,age,price\n" + rows)
    kinds = ["setosa", "versicolor", "virginica"]
    flowers = [f"{i % 3 + i % 7 / 10},{i % 5},{kinds[i % 3]}\n" for i in range(150)]
    (folder / "flowers.csv").write_text("width,height,kind\n" + "".join(flowers))
    shutil.copy("/usr/share/games/fortunes/literature", folder / "book.txt")  # of the package fortunes-min
    tokenizer = ["spm_train", "--input=book.txt", "--model_prefix=book", "--vocab_size=500"]
    subprocess.run(tokenizer, cwd=folder, check=True, capture_output=True)
    (folder / "new.csv").write_text("height,width\n1,0.3\n2,1.9\n")
    (folder / "my_training").symlink_to(build / "examples" / "01_linear")
    (folder / "my_worker").symlink_to(build / "examples" / "04_async_server")
    (folder / "hosts.txt").write_text("a slots=2\nb slots=2\n")
    return {
        **support.environment(),
        "PATH": f"{build}:{os.environ['PATH']}",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
    }


def run_line(text, folder, env, limit=120):
    return subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
