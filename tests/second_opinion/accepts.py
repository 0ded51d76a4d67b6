#!/usr/bin/env python3
"""Does coremltools accept a package?

    python accepts.py AFTER [--before BEFORE]
    python accepts.py --pairs LIST [--jobs N]     LIST: AFTER or AFTER<tab>BEFORE a line, or - for standard input

Five checks, each "ok" or the reason why not:

    spec       coremltools opens the package, and there is a program in the model or in a stage of its pipeline
    unknown    every field that was written is in coremltools' schema
    blobs      every reference into a weight file meets a record of the declared type's size, inside the file
    types      coremltools' program loader takes the program; it compares declared types with those it infers
    interface  (with BEFORE) names, types and order of inputs, outputs, states and functions are those of BEFORE

Prints one JSON object a package: {"package", "before", "spec", "unknown", ...}; a check that could not be
made, because the package does not open, is left out. The packages themselves are never opened, only a copy
that has the original's files behind symbolic links. Exit status: 0 all ok, 1 some not, 2 could not run.
"""

import argparse
import gc
import json
import math
import os
import pathlib
import shutil
import struct
import sys
import tempfile

import reading  # first: it silences coremltools' import
import coremltools as ct
from coremltools.converters.mil.frontend.milproto import load as milproto
from coremltools.proto import MIL_pb2
from google.protobuf.unknown_fields import UnknownFieldSet

SENTINEL = 0xDEADBEEF
RECORD_BYTES = 64
MAX_REASON = 300
BITS = {
    MIL_pb2.BOOL: 8,
    MIL_pb2.FLOAT16: 16,
    MIL_pb2.FLOAT32: 32,
    MIL_pb2.FLOAT64: 64,
    MIL_pb2.BFLOAT16: 16,
    MIL_pb2.INT8: 8,
    MIL_pb2.INT16: 16,
    MIL_pb2.INT32: 32,
    MIL_pb2.INT64: 64,
    MIL_pb2.INT4: 4,
    MIL_pb2.UINT8: 8,
    MIL_pb2.UINT16: 16,
    MIL_pb2.UINT32: 32,
    MIL_pb2.UINT64: 64,
    MIL_pb2.UINT4: 4,
    MIL_pb2.UINT2: 2,
    MIL_pb2.UINT1: 1,
    MIL_pb2.UINT6: 6,
    MIL_pb2.UINT3: 3,
    MIL_pb2.FLOAT8E4M3FN: 8,
    MIL_pb2.FLOAT8E5M2: 8,
}


class Refused(Exception):
    """A check that does not hold, with the reason."""


def program_models(model) -> list:
    """The model itself if it is a program, the programs among the stages if it is a pipeline."""
    kind = model.WhichOneof("Type")
    if kind == "mlProgram":
        return [model]
    if kind == "pipeline":
        stages = model.pipeline.models
    elif kind in ("pipelineClassifier", "pipelineRegressor"):
        stages = getattr(model, kind).pipeline.models
    else:
        return []
    return [found for stage in stages for found in program_models(stage)]


def check_unknown(message, place: str) -> None:
    """Refuses a field that the schema lacks, anywhere below `message`."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise Refused(f"{place} holds field {unknown[0].field_number}, which the schema does not know")
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        here = f"{place}.{field.name}"
        if hasattr(value, "ListFields"):
            check_unknown(value, here)
        elif hasattr(value, "keys"):
            if field.message_type.fields_by_name["value"].type == field.TYPE_MESSAGE:
                for key in value:
                    check_unknown(value[key], f"{here}[{key!r}]")
        else:
            for index, item in enumerate(value):
                check_unknown(item, f"{here}[{index}]")


def file_values(value):
    """A value, or the values inside it, that stand in a weight file."""
    kind = value.WhichOneof("value")
    if kind == "blobFileValue":
        yield value
    elif kind == "immediateValue":
        inner = value.immediateValue.WhichOneof("value")
        if inner in ("tuple", "list"):
            for item in getattr(value.immediateValue, inner).values:
                yield from file_values(item)


def blob_values(block):
    """Every value of a block, nested blocks included, that stands in a weight file."""
    for operation in block.operations:
        for value in operation.attributes.values():
            yield from file_values(value)
        for argument in operation.inputs.values():
            for binding in argument.arguments:
                if binding.WhichOneof("binding") == "value":
                    yield from file_values(binding.value)
        for inner in operation.blocks:
            yield from blob_values(inner)


def check_blobs(models: list, model_folder: pathlib.Path) -> None:
    """Refuses a reference that does not meet a whole record of the right size."""
    opened = {}
    try:
        for model in models:
            for function in model.mlProgram.functions.values():
                for block in function.block_specializations.values():
                    for value in blob_values(block):
                        check_blob(value, model_folder, opened)
    finally:
        for stream in opened.values():
            stream.close()


def check_blob(value, model_folder: pathlib.Path, opened: dict) -> None:
    """Refuses one reference; `opened` keeps the weight files open from one call to the next."""
    name, offset = value.blobFileValue.fileName, value.blobFileValue.offset
    if name not in opened:
        path = pathlib.Path(name.replace("@model_path", str(model_folder), 1))
        if not path.is_file():
            raise Refused(f"{name} does not exist")
        opened[name] = open(path, "rb")
    stream = opened[name]
    stream.seek(offset)
    record = stream.read(RECORD_BYTES)
    place = f"{name}, offset {offset}"
    if len(record) < RECORD_BYTES:
        raise Refused(f"{place}: beyond the end")
    sentinel, _, size, start = struct.unpack_from("<IIQQ", record)
    if sentinel != SENTINEL:
        raise Refused(f"{place}: not the start of a record")
    tensor = value.type.tensorType
    count = math.prod(dimension.constant.size for dimension in tensor.dimensions)
    declared = -(-count * BITS[tensor.dataType] // 8)
    if size != declared:
        raise Refused(f"{place}: the record holds {size} bytes, the type needs {declared}")
    if start + size > os.fstat(stream.fileno()).st_size:
        raise Refused(f"{place}: the data runs past the end of the file")


def check_types(models: list, weights: pathlib.Path) -> None:
    """Refuses what coremltools' loader refuses; it raises its own errors."""
    for model in models:
        program = milproto.load(
            model, specification_version=model.specificationVersion, file_weights_dir=str(weights)
        )
        if not program.functions:
            raise Refused("the program has no function")


def interface(model) -> dict[str, list]:
    """Names and types of all features, by function and direction, in order."""
    description = model.description
    owners = {"": description} | {function.name: function for function in description.functions}
    found = {"functions": [*owners, description.defaultFunctionName]}
    for name, owner in owners.items():
        for direction in ("input", "output", "state"):
            features = getattr(owner, direction)
            key = f"{direction}s of {name}" if name else f"{direction}s"
            found[key] = [(one.name, one.type.SerializeToString(deterministic=True)) for one in features]
    return found


def check_interface(before: pathlib.Path, after) -> None:
    """Refuses the first list of features that differs."""
    was, now = interface(reading.parsed(before)), interface(after)
    for key in was.keys() | now.keys():
        if was.get(key) != now.get(key):
            names = [[one[0] for one in side.get(key, [])] for side in (was, now)]
            raise Refused(f"{key}: {names[0]} before, {names[1]} after")


def linked_copy(package: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """A copy with real folders and a real manifest, and links in place of all other files."""

    def place(source: str, copy: str) -> None:
        if os.path.basename(source) == "Manifest.json":
            shutil.copyfile(source, copy)
        else:
            os.symlink(os.path.abspath(source), copy)

    copy = target / "copy.mlpackage"
    shutil.copytree(package, copy, copy_function=place)
    return copy


def verdicts(job: list[pathlib.Path]) -> dict:
    """All checks of one package, as a line of output."""
    package = job[0]
    before = job[1] if len(job) > 1 else None
    line = {"package": str(package), "before": str(before) if before else None}

    def check(name: str, function, *arguments):
        result = None
        try:
            result = function(*arguments)
            line[name] = "ok"
        except Refused as reason:
            line[name] = str(reason)[:MAX_REASON]
        except Exception as error:  # noqa: BLE001 - whatever coremltools raises is its verdict
            line[name] = f"{type(error).__name__}: {str(error)[:MAX_REASON]}"
        return result

    with tempfile.TemporaryDirectory() as folder:

        def opened():
            copy = linked_copy(package, pathlib.Path(folder))
            model = ct.utils.load_spec(str(copy))
            models = program_models(model)
            if not models:
                raise Refused(f"no program inside, but {model.WhichOneof('Type')}")
            return copy, model, models

        found = check("spec", opened)
        if found:
            copy, model, models = found
            model_folder = reading.root_path(copy).parent
            check("unknown", check_unknown, model, "Model")
            check("blobs", check_blobs, models, model_folder)
            check("types", check_types, models, model_folder / "weights")
            if before:
                check("interface", check_interface, before, model)
    gc.collect()
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", nargs="?", type=pathlib.Path)
    parser.add_argument("--before", type=pathlib.Path)
    parser.add_argument("--pairs", metavar="LIST")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if (options.pairs is None) == (options.package is None):
        parser.error("give AFTER, or --pairs LIST")
    if options.pairs:
        todo = reading.jobs(options.pairs)
    else:
        todo = [[options.package, options.before] if options.before else [options.package]]
    all_ok = True
    for line in reading.run(verdicts, todo, options.jobs):
        checks = {name: verdict for name, verdict in line.items() if name not in ("package", "before")}
        all_ok &= all(verdict == "ok" for verdict in checks.values())
        print(json.dumps(line, ensure_ascii=False), flush=True)
    return 0 if all_ok else 1


if __name__ == "__main__":
    sys.exit(main())
