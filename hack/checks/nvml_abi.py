#!/usr/bin/env python3
"""Holds the mock NVML against the real nvml.h.

    cargo run --example layout -p mock-nvml | hack/checks/nvml_abi.py path/to/libmock_nvml.so

Three comparisons, each with what NVIDIA publishes on PyPI (requirements.txt):

    symbols      the library exports exactly the functions of NVML 13.5, and at least those of NVML 12.9
    layout       a C compiler agrees with every size and offset on standard input, under both headers
    prototypes   hack/generate-nvml-stubs would write the sources that are there

Exits non-zero with the first difference.
"""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROTOTYPE = re.compile(r"\bDECLDIR\s+(?:char\s*\*\s*)?(nvml\w+)\s*\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

# `type` is a keyword of Rust, so the bindings call the member `type_`.
RUST_NAMES = {"type_": "type"}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    library = pathlib.Path(sys.argv[1])
    new, old = header("nvidia-nvml-dev"), header("nvidia-nvml-dev-cu12")
    symbols(library, new, old)
    lines = [line.split() for line in sys.stdin if line.strip()]
    if not lines:
        sys.exit("no layout on standard input")
    layout(new, lines)
    # Some structs came with NVML 13; all others must not have changed.
    known = COMMENT.sub("", old.read_text())
    layout(old, [line for line in lines if re.search(rf"\b{line[0]}\b", known)])
    subprocess.run([ROOT / "hack/generate-nvml-stubs", "--check", new], check=True, stdout=subprocess.DEVNULL)
    print("prototypes: as in the header")


def header(package):
    """The nvml.h of an installed package."""
    files = importlib.metadata.files(package) or []
    found = [file.locate() for file in files if file.name == "nvml.h"]
    if not found:
        sys.exit(f"{package} has no nvml.h; pip install -r hack/checks/requirements.txt")
    return pathlib.Path(found[0])


def functions(path):
    return set(PROTOTYPE.findall(COMMENT.sub("", path.read_text())))


def symbols(library, new, old):
    table = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[-1] for line in table.splitlines()}
    expected = functions(new)
    missing, extra = expected - exported, exported - expected
    if missing or extra:
        sys.exit(f"symbols differ from {new}:\n  missing {sorted(missing)}\n  extra {sorted(extra)}")
    lost = functions(old) - exported
    if lost:
        sys.exit(f"symbols of {old} are missing: {sorted(lost)}")
    print(f"symbols: {len(exported)}, exactly those of NVML 13.5")


def layout(path, lines):
    """Lets a C compiler check every line."""
    checks = []
    for line in lines:
        if len(line) == 2:
            struct, size = line
            checks.append((f"sizeof({struct}) == {size}", line))
        else:
            struct, field, offset, size = line
            field = RUST_NAMES.get(field, field)
            checks.append((f"offsetof({struct}, {field}) == {offset}", line))
            checks.append((f"sizeof((({struct} *)0)->{field}) == {size}", line))
    source = "#include <stddef.h>\n#include <nvml.h>\n"
    source += "".join(f'_Static_assert({check}, "{" ".join(line)}");\n' for check, line in checks)
    with tempfile.TemporaryDirectory() as temp:
        program = pathlib.Path(temp, "layout.c")
        program.write_text(source)
        command = ["cc", "-std=c11", "-fsyntax-only", f"-I{path.parent}", str(program)]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"layout differs from {path}:\n{result.stderr}")
    version = re.search(r"#define NVML_API_VERSION_STR\s+\"(\d+)\"", path.read_text())[1]
    structs = len({line[0] for line in lines})
    print(f"layout: {structs} structs, {len(checks)} sizes and offsets as in {version} of nvml.h")


if __name__ == "__main__":
    main()
