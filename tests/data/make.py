#!/usr/bin/env python3
"""Makes the test packages in `packages/`, the same bytes each time.

    python make.py                 write all packages
    python make.py NAME...         write only these
    python make.py --check         compare with what is there; exit status 1 if anything differs
    python make.py --list          names and one-line descriptions, as in README.md

Needs coremltools 9.0 and numpy. The packages stand in `programs.py` (converted by coremltools),
`models.py` (model kinds, interfaces and metadata) and `protobuf.py` (made below the level at which
coremltools writes).
"""

import argparse
import logging
import os
import pathlib
import shutil
import sys
import warnings

HERE = pathlib.Path(__file__).resolve().parent
if os.environ.get("PYTHONHASHSEED") != "0":
    # coremltools walks sets of strings; a fixed hash seed fixes the order of what it writes.
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, *sys.argv])
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
warnings.filterwarnings("ignore")
os.environ["TQDM_DISABLE"] = "1"
logging.disable(logging.WARNING)

import models  # noqa: E402
import programs  # noqa: E402
import protobuf  # noqa: E402

PACKAGES = {**programs.PACKAGES, **models.PACKAGES, **protobuf.PACKAGES}
TARGET = HERE / "packages"


def on_disk(name: str) -> dict[str, bytes]:
    """The committed files of one package, by their path below `packages/`."""
    found = [path for path in (TARGET / f"{name}.mlpackage").rglob("*") if path.is_file()]
    found += [path for path in TARGET.glob(f"{name}.*npz")]
    return {str(path.relative_to(TARGET)): path.read_bytes() for path in found}


def table_row(name: str) -> str:
    """A package's line in the table of README.md."""
    return f"| `{name}` | {PACKAGES[name].__doc__.strip()} |"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("names", nargs="*", metavar="NAME")
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--list", action="store_true")
    options = arguments.parse_args()
    unknown = [name for name in options.names if name not in PACKAGES]
    if unknown:
        arguments.error(f"no such package: {', '.join(unknown)}")
    names = options.names or list(PACKAGES)
    if options.list:
        print("\n".join(map(table_row, names)))
        return 0
    different = []
    for name in names:
        made = PACKAGES[name]().files(name)
        there = on_disk(name)
        if options.check:
            different += [path for path in sorted(made.keys() | there.keys()) if made.get(path) != there.get(path)]
            continue
        for path in there:
            (TARGET / path).unlink()
        shutil.rmtree(TARGET / f"{name}.mlpackage", ignore_errors=True)
        for path, data in made.items():
            (TARGET / path).parent.mkdir(parents=True, exist_ok=True)
            (TARGET / path).write_bytes(data)
        print(f"{name}: {sum(map(len, made.values()))} bytes")
    if options.check and not options.names:
        known = {f"{name}.mlpackage" for name in PACKAGES}
        different += [entry.name for entry in sorted(TARGET.glob("*.mlpackage")) if entry.name not in known]
        table = (HERE / "README.md").read_text(encoding="utf-8").splitlines()
        different += [f"README.md, line of {name}" for name in names if table_row(name) not in table]
    for path in different:
        print(f"differs: {path}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
