"""What the tests of the command share: running it, reading its files, watching its processes."""
import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRIREME = os.environ.get("TRIREME", str(ROOT / "build" / "trireme"))
PROGRAMS = pathlib.Path(TRIREME).parent / "tests"  # program_NAME, of tests/programs
LIMIT = 60  # seconds that no run here may take


def environment():
    """Ours without what an outer launcher may have set."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {k: v for k, v in os.environ.items() if k not in launcher and not k.startswith("TRIREME_")}


def run(*args, cwd=None, limit=LIMIT):
    """Runs the command to its end: returncode, stdout, stderr."""
    return subprocess.run(
        [TRIREME, *map(str, args)],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
    )


def start(*args, cwd=None):
    return subprocess.Popen(
        [TRIREME, *map(str, args)],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(pid):
    """The pids of its children, in the order of their ranks."""
    try:
        return [int(text) for text in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def wait_until(condition, seconds, step=0.01):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(step)
    return bool(condition())


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder_holder = tempfile.TemporaryDirectory(prefix="trireme-test-")
        self.folder = pathlib.Path(self.folder_holder.name)
        self.addCleanup(self.folder_holder.cleanup)

    def train(self, *args, **settings):
        """A run that must succeed; returns its report."""
        report = self.folder / f"report-{time.monotonic_ns()}.json"
        result = run("train", *args, "--report", report, "--progress", "none", cwd=self.folder, **settings)
        self.assertEqual(result.returncode, 0, f"{args}\n{result.stdout}{result.stderr}")
        return json.loads(report.read_text())

    def parameters(self, *args):
        """A run that must succeed; returns (its parameters by name, its report)."""
        path = self.folder / f"model-{time.monotonic_ns()}.safetensors"
        report = self.train(*args, "--save", path)
        return read_safetensors(path), report

    def refused(self, *args, says=(), code=None, **settings):
        """A run that must fail with one clear message that has all of `says`; returns stderr."""
        result = run(*args, cwd=self.folder, **settings)
        text = result.stderr
        self.assertNotEqual(result.returncode, 0, f"{args} succeeded:\n{result.stdout}")
        self.assertLess(result.returncode, 128, f"{args} was killed:\n{text}")
        if code is not None:
            self.assertEqual(result.returncode, code, text)
        for part in says:
            self.assertIn(part, text)
        self.assertTrue(text.startswith("trireme: "), text)
        self.assertNotIn("terminate called", text)
        self.assertNotIn("Exception raised from", text)  # a stack trace of torch's
        return text


def manifest_text(fields):
    """Of a checkpoint, by docs/checkpoint-format.md: from version 2 on it ends with the SHA-256 of all before that."""
    fields = {name: value for name, value in fields.items() if name != "sha256"}
    if fields["version"] < 2:
        return json.dumps(fields)
    text = json.dumps(fields, indent=1)[: -len("\n}")]
    return f'{text},\n "sha256": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n'


def read_safetensors(path):
    import numpy

    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    header.pop("__metadata__", None)
    types = {"F32": numpy.float32, "F64": numpy.float64, "I64": numpy.int64}
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        result[name] = numpy.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return result


def write_bad_csv(path):
    """400 rows of two features and a class; one row of them makes NaN of a loss."""
    lines = ["a,b,kind"]
    for i in range(400):
        cell = "1e38" if i == 205 else f"{(i * 37 % 100) / 50 - 1:.3f}"
        lines.append(f"{cell},{(i * 53 % 100) / 50 - 1:.3f},{i % 2}")
    path.write_text("\n".join(lines) + "\n")


def write_idx(path, array):
    """`array`: bytes of any shape."""
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes())


class SplitMix64:
    """data/random.h, once more."""

    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self.state = seed & self.MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & self.MASK
        return z ^ (z >> 31)

    def below(self, bound):
        return (self.next() * bound) >> 64


def epoch_order(count, seed, epoch):
    """data/sampler.cpp, once more."""
    mixed = SplitMix64(SplitMix64(seed).next() ^ epoch).next()
    random, order = SplitMix64(mixed), list(range(count))
    for i in range(count, 1, -1):
        j = random.below(i)
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


def main():
    if not pathlib.Path(TRIREME).exists():
        sys.exit(f"{TRIREME} is not built")
    unittest.main(verbosity=2)
