"""How the second-opinion scripts read packages and job lists, without coremltools touching the originals.

coremltools rewrites Manifest.json of a package that it opens, so the scripts parse model files themselves
and let it open copies only.
"""

import contextlib
import json
import logging
import os
import pathlib
import sys
import warnings

# Silence before the import: coremltools reports each of its macOS-only parts that is not there.
logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")
os.environ["TQDM_DISABLE"] = "1"

try:
    from coremltools.proto import Model_pb2
except ImportError as error:
    print(f"could not run: {error}", file=sys.stderr)
    sys.exit(2)


def root_path(package: pathlib.Path) -> pathlib.Path:
    """The model file that the manifest names as the root."""
    manifest = json.loads((package / "Manifest.json").read_bytes())
    return package / "Data" / manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]


def parsed(package: pathlib.Path) -> Model_pb2.Model:
    """The model of a package (or of a bare model file), parsed with coremltools' schema."""
    return Model_pb2.Model.FromString((root_path(package) if package.is_dir() else package).read_bytes())


def files_of(package: pathlib.Path) -> dict[str, pathlib.Path]:
    """Every file of a package by its path inside."""
    found = {}
    for folder, _, names in os.walk(package):
        for name in names:
            path = pathlib.Path(folder, name)
            found[path.relative_to(package).as_posix()] = path
    return found


def jobs(list_file: str) -> list[list[pathlib.Path]]:
    """One job a line, paths separated by tabs; "-" reads standard input; empty lines do not count."""
    with contextlib.ExitStack() as stack:
        lines = sys.stdin if list_file == "-" else stack.enter_context(open(list_file, encoding="utf-8"))
        return [[pathlib.Path(part) for part in line.rstrip("\n").split("\t")] for line in lines if line.strip()]


def run(work, todo: list, processes: int):
    """`work(job)` for each job, in order; with several processes when asked."""
    if processes <= 1 or len(todo) < 2:
        yield from map(work, todo)
        return
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap(work, todo, chunksize=4)
