"""`trireme checkpoint`, on checkpoints that are written here, as docs/checkpoint-format.md has them."""
import hashlib, json, struct, time

import numpy
import support

TYPES = {"float32": "F32", "int64": "I64", "uint8": "U8", "uint64": "U64", "uint32": "U32", "float16": "F16"}


def safetensors(tensors, metadata=None):
    """A file's bytes, by the format's specification."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": TYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def rows(keys, width=3):
    keys = numpy.array(keys, numpy.uint64)
    return {
        "words/keys": keys,
        "words/values": numpy.ones((len(keys), width), numpy.float32) * keys[:, None].astype(numpy.float32),
        "words/state": numpy.zeros((len(keys), width), numpy.float32),
        "words/steps": numpy.zeros(len(keys), numpy.uint32),
        "words/age": numpy.zeros(len(keys), numpy.uint32),
    }


def model(step):
    values = numpy.arange(12, dtype=numpy.float32).reshape(4, 3)
    return {
        "fc.weight": values + step,
        "fc.bias": numpy.zeros(4, numpy.float32),
        "half": numpy.array([1, 0.5, -2], numpy.float16),
        "bn.batches": numpy.array(step, numpy.int64),
    }


class CheckpointFiles(support.CommandTest):
    def write(self, step, folder="runs", change=lambda files: None, **manifest):
        path = self.folder / folder / f"step-{step:09}"
        path.mkdir(parents=True)
        metadata = {"model": "toy", "ties": json.dumps({"tied": "fc.bias"})}
        files = {
            "model.safetensors": safetensors(model(step), metadata),
            "optimizer.safetensors": safetensors(
                {
                    "optimizer/momentum/fc.weight": numpy.ones((4, 3), numpy.float32),
                    "optimizer/momentum/fc.bias": numpy.ones(4, numpy.float32),
                }
            ),
            "rows-00000-00001.safetensors": safetensors(rows([3, 1])),
            "rows-00001-00001.safetensors": safetensors(rows([2])),
        }
        change(files)
        text = {
            "format": "trireme-checkpoint",
            "version": 2,
            "library": "0.1.0",
            "step": step,
            "epoch": step // 100,
            "time": int(time.time()) - 300,
            "scalars": {"step": step},
            "about": {
                "layout": "fc.weight f32[4,3]\nfc.bias f32[4]\nhalf f16[3]\n",
                "optimizer": "momentum",
                "workers": 0,
                "tables": [{"name": "words", "width": 3, "optimizer": "adagrad"}],
            },
            "options": {"--lr": "0.1"},
            "metadata": {"model": "toy"},
            "metrics": {"test_accuracy": 0.875},
            "crew": {"workers": 2, "machines": 1, "servers": 0, "sync": "allreduce"},
            "vectors": ["parameters", "optimizer/momentum", "buffers/bn.batches"],
            "files": [
                {"name": name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
                for name, raw in files.items()
            ],
            **manifest,
        }
        for name, raw in files.items():
            (path / name).write_bytes(raw)
        (path / "manifest.json").write_text(support.manifest_text(text))
        return path

    def checkpoint(self, *args, code=0):
        result = support.run("checkpoint", *args, cwd=self.folder)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout

    def flip(self, path, at=-1):
        raw = bytearray(path.read_bytes())
        raw[at] ^= 4
        path.write_bytes(raw)

    def test_ls(self):
        for step in (100, 200, 300, 400):
            self.write(step)
        (self.folder / "runs/step-000000400/manifest.json").unlink()
        (self.folder / "runs/step-000000300/optimizer.safetensors").unlink()
        lines = self.checkpoint("ls", "runs").splitlines()
        self.assertEqual(len(lines), 5)
        self.assertRegex(lines[1], r"^step-000000400 .*half-written .*no manifest")
        self.assertRegex(lines[2], r"^step-000000300 .*damaged .*optimizer.safetensors is missing")
        self.assertRegex(lines[3], r"^step-000000200 +2 +5 min +\d+\.\d kB +complete +test_accuracy=0.875")

    def test_show(self):
        self.write(100)
        path = self.write(200)
        for what in ("runs", path, f"{path}/"):
            text = self.checkpoint("show", what)
            for part in (
                "step                 200",
                "2 workers, 1 machines, 0 servers, sync allreduce",
                "momentum",
                "words: 3 rows of 3",
                "fc.weight",
                "[4,3]",
                hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest(),
            ):
                self.assertIn(part, text)
            self.assertNotIn("optimizer/momentum/fc.bias", text)
        self.assertIn("optimizer/momentum/fc.bias", self.checkpoint("show", path, "--all"))
        self.assertIn("fc.weight", self.checkpoint("show", path / "model.safetensors"))

    def test_verify_finds_one_bit_in_any_file(self):
        path = self.write(100)
        self.assertIn("good", self.checkpoint("verify", "runs"))
        for file in sorted(path.glob("*.safetensors")):
            self.flip(file)
            text = self.checkpoint("verify", "runs", code=1)
            self.assertIn("BAD", text)
            self.assertIn(file.name, text)
            self.flip(file)
        manifest = path / "manifest.json"
        text = manifest.read_text()
        for place in ('"step": 100', '"epoch": 1', '"test_accuracy": 0.875', '"--lr": "0.1', '"workers": 2'):
            at = text.index(place) + len(place) - 1
            self.flip(manifest, at)
            found = self.checkpoint("verify", "runs", code=1)
            self.assertIn("manifest.json", found)
            self.assertRegex(found, "damaged|SHA-256")
            self.flip(manifest, at)
        self.assertIn("good", self.checkpoint("verify", path, "--threads", 1))

    def test_version_one_is_read(self):
        path = self.write(100, version=1)
        self.assertIn("good", self.checkpoint("verify", path))

    def test_diff(self):
        first, second, other = self.write(100), self.write(100, "b"), self.write(101, "b")
        self.assertIn("the same: 6 tensors", self.checkpoint("diff", first, second))
        text = self.checkpoint("diff", first, other, code=1)
        self.assertIn("step 100 and step 101", text)
        self.assertRegex(text, r"fc.weight +12 of 12 elements differ, by at most 1\n")
        self.assertRegex(text, r"bn.batches +1 of 1 elements differ, by at most 1\n")
        self.assertNotIn("half", text)
        self.assertIn("2 tensors and 0 tables differ", text)

        def changed(files):
            tensors = model(100)
            tensors["half"][1] = 0.25
            tensors["fc.bias"] = numpy.zeros(5, numpy.float32)
            files["model.safetensors"] = safetensors(tensors)
            files["rows-00001-00001.safetensors"] = safetensors(rows([7]))

        text = self.checkpoint("diff", first, self.write(100, "c", changed), code=1)
        self.assertRegex(text, r"half +1 of 3 elements differ, by at most 0.25\n")
        self.assertIn("F32[4] and F32[5]", text)
        self.assertIn("0 rows differ, 1 only in the first, 1 only in the second, 2 are the same", text)

    def test_export(self):
        self.write(100)
        self.checkpoint("export", "runs", "--out", "m.safetensors")
        tensors = model(100)
        raw = (self.folder / "m.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        self.assertEqual(header.pop("__metadata__")["model"], "toy")
        self.assertEqual(set(header), {*tensors, "tied"})
        tensors["tied"] = tensors["fc.bias"]
        for name, entry in header.items():
            begin, end = (8 + length + at for at in entry["data_offsets"])
            self.assertEqual(raw[begin:end], tensors[name].tobytes(), name)
        self.assertIn("the same: 5 tensors", self.checkpoint("diff", "runs", "m.safetensors"))
        self.refused("checkpoint", "export", "runs", "--out", "m.onnx", says=[".safetensors"], code=2)
        self.flip(self.folder / "runs/step-000000100/model.safetensors")
        self.refused("checkpoint", "export", "runs", "--out", "n.safetensors", says=["SHA-256", "model.safetensors"])
        self.assertFalse((self.folder / "n.safetensors").exists())

    def test_bad_input(self):
        self.refused("checkpoint", "ls", "nowhere", says=["no folder nowhere"], code=2)
        (self.folder / "empty").mkdir()
        self.refused("checkpoint", "show", "empty", says=["empty"], code=2)
        (self.folder / "file").write_text("hello, this is no tensor")
        self.refused("checkpoint", "show", "file", says=["no safetensors file"])
        path = self.write(7, version=9, library="12.0")
        self.refused("checkpoint", "show", path, says=["version 9", "12.0", "use a newer one"], code=2)
        self.refused("checkpoint", says=["checkpoint --help"], code=2)
        self.assertIn("Examples:", self.checkpoint("--help"))


if __name__ == "__main__":
    support.main()
