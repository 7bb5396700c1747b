#!/usr/bin/env python3
"""The programs of a page of the docs.

A page has a frame, a ```c++ block with "int main() {" and a comment in it, and programs, ```cpp blocks, each of which
stands in the place of that comment. A program is named after the heading above it. What follows "cpp" are flags of
`trireme launch` without which it is not run. A ```text block after a program is what it prints alone and on rank 0 of
two; with `-n 2` behind "text", what is seen of both.

    page_programs.py PAGE OUTPUT.cpp    one source of all programs: OUTPUT NAME runs one of them
"""
import dataclasses
import pathlib
import re
import sys


@dataclasses.dataclass
class Program:
    name: str
    flags: str
    body: str
    prints: dict = dataclasses.field(default_factory=dict)  # "" or "-n 2": text


def read(page):
    """The frame and the programs."""
    frame, programs, heading, fence, lines = "", [], "", None, []
    for line in pathlib.Path(page).read_text().splitlines():
        if fence is None:
            if match := re.match(r"#+ (.*)", line):
                heading = re.sub(r"[^a-z0-9]+", "_", match[1].lower()).strip("_")
            if match := re.match(r"```(\S+) ?(.*)", line):
                fence, lines = match.groups(), []
            continue
        if line != "```":
            lines.append(line)
            continue
        language, rest = fence
        fence, text = None, "".join(f"{line}\n" for line in lines)
        if language == "c++":
            frame = text
        elif language == "cpp":
            count = sum(program.name.split(".")[0] == heading for program in programs)
            programs.append(Program(heading if count == 0 else f"{heading}.{count + 1}", rest, text))
        elif language == "text" and programs:
            programs[-1].prints[rest] = text
    return frame, programs


def source(page):
    frame, programs = read(page)
    head, found, _ = frame.partition("int main() {")
    if not found:
        sys.exit(f"{page}: there is no frame, a ```c++ block with int main() {{")
    parts = [f"// Made from {pathlib.Path(page).name} by scripts/page_programs.py.\n", head, "#include <string>\n"]
    for i, program in enumerate(programs):
        indented = "".join(f"  {line}\n" if line else "\n" for line in program.body.splitlines())
        parts.append(f"namespace program_{i} {{\nstatic void run() {{\n{indented}}}\n}}\n\n")
    parts.append("int main(int, char** arguments) {\n")
    parts.append('  const std::string name = arguments[1] != nullptr ? arguments[1] : "";\n')
    for i, program in enumerate(programs):
        parts.append(f'  if (name == "{program.name}") return program_{i}::run(), 0;\n')
    parts.append("  std::fprintf(stderr, \"no program '%s'\\n\", name.c_str());\n  return 2;\n}\n")
    return "".join(parts)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).write_text(source(sys.argv[1]))
