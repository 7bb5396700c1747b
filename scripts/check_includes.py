#!/usr/bin/env python3
"""The folder rules: includes go one way only, and the core never sees torch.

A folder may include itself and the folders on earlier lines of LEVELS. Exit code 1 names every line that breaks a rule.
"""
import pathlib, re, sys

# name, may include torch. Later lines may include earlier ones; folders on one line do not know each other.
LEVELS = [
    [("base", False)],
    [("metrics", False)],
    [("space", False)],
    [("compress", False)],
    [("torch", True)],
    [("state", False), ("comm", False)],
    [("checkpoint", False)],
    [("cluster", False)],
    [("ps", False), ("stages", False)],
    [("exchange", False)],
    [("layers", True)],
    [("data", True), ("parallel", True)],
    [("models", True)],
    [("train", True)],
]
TORCH_ADAPTER = "trireme/comm/c10d/"  # the one part of a torch-free folder that may include torch

root = pathlib.Path(__file__).resolve().parent.parent
level = {name: i for i, row in enumerate(LEVELS) for name, _ in row}
torch_ok = {name: ok for row in LEVELS for name, ok in row}
include = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
is_torch = re.compile(r"^(torch|ATen|c10|caffe2)/")
faults = []

for path in sorted(root.glob("trireme/**/*")):
    if path.suffix not in (".h", ".cpp"):
        continue
    parts = path.relative_to(root / "trireme").parts
    folder = parts[0] if len(parts) > 1 else None
    where = path.relative_to(root)
    if folder is not None and folder not in level:
        faults.append(f"{where}: folder '{folder}' is not in LEVELS of scripts/check_includes.py")
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = include.match(line)
        if not match or folder is None:
            continue
        target = match[1]
        if is_torch.match(target) and not torch_ok[folder] and not str(where).startswith(TORCH_ADAPTER):
            faults.append(f"{where}:{number}: '{folder}' is torch-free but includes <{target}>")
        if target.startswith("trireme/torch/") and not torch_ok[folder] and not str(where).startswith(TORCH_ADAPTER):
            faults.append(f"{where}:{number}: '{folder}' is torch-free but includes <{target}>")
        if target.startswith("trireme/"):
            other = target.split("/")[1]
            if other.endswith(".h"):
                faults.append(
                    f"{where}:{number}: library code includes the public header <{target}>; include what it needs"
                )
            elif other not in level:
                faults.append(f"{where}:{number}: <{target}> is in no known folder")
            elif other != folder and level[other] >= level[folder]:
                faults.append(f"{where}:{number}: '{folder}' may not include '{other}' (<{target}>)")

print("\n".join(faults) if faults else "includes: the folder rules hold")
sys.exit(1 if faults else 0)
