#!/usr/bin/env python3
"""Lines are at most 120 columns wide, in code, scripts and docs. What may be longer, in docs: rows of tables, and what
is typed in a terminal or printed there; anywhere, what cannot be broken.

    scripts/check_lines.py              checks what git knows of this repository
    scripts/check_lines.py --self-test  checks the check, on planted lines
"""
import pathlib
import subprocess
import sys
import unicodedata

COLUMNS = 120
SUFFIXES = {".cpp", ".h", ".c", ".in", ".proto", ".py", ".md", ".cmake", ".toml", ".yaml", ".txt", ".json", ""}
SKIPPED = {"LICENSE"}


TERMINAL = {"", "sh", "text", "console"}  # what stands behind the ``` of such a block


def width_of(line):
    return sum(not unicodedata.combining(character) for character in line)


def too_long(text, suffix):
    """Numbers and widths of the lines that are."""
    found, fence = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if suffix == ".md" and line.startswith("```"):
            fence = line[3:].split(" ")[0] if fence is None else None
        table = suffix == ".md" and line.lstrip().startswith("|")
        unbreakable = len(line.split()) == 1  # a URL
        if width_of(line) > COLUMNS and not (table or unbreakable or fence in TERMINAL):
            found.append((number, width_of(line)))
    return found


def check(root):
    files = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    faults = 0
    for name in filter(None, files.split("\0")):
        path = root / name
        if path.suffix not in SUFFIXES or path.name in SKIPPED or not path.is_file():
            continue
        for number, width in too_long(path.read_text(encoding="utf-8"), path.suffix):
            print(f"{name}:{number}: {width} columns, of which there may be {COLUMNS}: break the line")
            faults += 1
    return faults


def self_test():
    long = "word " * 30
    planted = [
        ("x" * 60 + " " + "y" * 59, ".cpp", []),  # 120 columns
        ("x" * 60 + " " + "y" * 60, ".cpp", [(1, 121)]),
        ("ü" * 60 + " " + "ü" * 59, ".md", []),  # columns, not bytes
        ("short\n" + long, ".py", [(2, 150)]),
        ("| " + long + "|", ".md", []),
        ("| " + long + "|", ".h", [(1, 153)]),
        ("https://" + "x" * 150, ".md", []),
        (long, "", [(1, 150)]),
        (f"```\n{long}\n```\n{long}", ".md", [(4, 150)]),
        (f"```cpp\n{long}\n```\n```sh\n{long}\n```", ".md", [(2, 150)]),
        (f"```\n{long}\n```", ".py", [(2, 150)]),
    ]
    wrong = [case for case in planted if too_long(case[0], case[1]) != case[2]]
    for text, suffix, wanted in wrong:
        print(f"a planted line of a file '*{suffix}' gives {too_long(text, suffix)} instead of {wanted}: {text!r}")
    return len(wrong)


if __name__ == "__main__":
    faults = self_test() or (0 if "--self-test" in sys.argv else check(pathlib.Path(__file__).resolve().parents[1]))
    sys.exit(1 if faults else 0)
