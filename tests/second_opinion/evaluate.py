#!/usr/bin/env python3
"""Do two packages compute the same? Evaluates both in numpy on recorded inputs.

    python evaluate.py --pairs LIST     LIST: BEFORE<tab>AFTER<tab>INPUTS.npz[<tab>FUNCTION] a line

In the file, `in_NAME` is an input and `out_INDEX_NAME` an expected output; later calls on the same states
have the prefix `s1_`, `s2_` and so on, and an input that they lack is that of the first call. States start
at zero, or with --start-states at `state_NAME`.

All is computed in float64, and casts between floats do nothing: rewrites that are equal in real arithmetic
agree but for float64's roundings. With --typed each result is rounded to the float type that the program
declares for it, once: rewrites that are exact agree in every bit.

Prints one JSON object a line: {"before", "after", "inputs", "calls", "worst", "median", "expected"} or,
where an operation has no definition here, {"before", "after", "unsupported"}. The numbers are absolute
differences over the largest absolute value of the output: the largest and the median between the two
packages, and the largest between BEFORE and what the file expects. Infinities and NaN must stand in the
same places, else the difference is infinite, which is null in JSON. Exit status: 0 done, 2 could not run.
"""

import argparse
import json
import math
import pathlib
import struct
import sys

import reading  # first: it silences coremltools' import
import numpy as np
from coremltools.proto import MIL_pb2
from operations import MAKE_LISTS, OPERATIONS, wide

NUMPY = {
    MIL_pb2.BOOL: np.bool_,
    MIL_pb2.FLOAT16: np.float16,
    MIL_pb2.FLOAT32: np.float32,
    MIL_pb2.FLOAT64: np.float64,
    MIL_pb2.INT8: np.int8,
    MIL_pb2.INT16: np.int16,
    MIL_pb2.INT32: np.int32,
    MIL_pb2.INT64: np.int64,
    MIL_pb2.UINT8: np.uint8,
    MIL_pb2.UINT16: np.uint16,
    MIL_pb2.UINT32: np.uint32,
    MIL_pb2.UINT64: np.uint64,
}

FLOATS = ("fp16", "fp32")


class Unsupported(Exception):
    """Something that has no definition here."""


def constant(value, folder: pathlib.Path):
    """A value of the program: an array, a text, or a list of values."""
    if value.WhichOneof("value") == "blobFileValue":
        return from_file(value, folder)
    immediate = value.immediateValue
    kind = immediate.WhichOneof("value")
    if kind == "list":
        return [constant(item, folder) for item in immediate.list.values]
    if kind != "tensor":
        raise Unsupported(f"a {kind} value")
    tensor = value.type.tensorType
    shape = [dimension.constant.size for dimension in tensor.dimensions]
    field = immediate.tensor.WhichOneof("value")
    if field is None:
        return np.zeros(shape, NUMPY.get(tensor.dataType, np.float64))
    values = getattr(immediate.tensor, field).values
    if field == "strings":
        return values[0] if not shape else list(values)
    if tensor.dataType not in NUMPY:
        raise Unsupported(f"element type {MIL_pb2.DataType.Name(tensor.dataType)}")
    dtype = NUMPY[tensor.dataType]
    array = np.frombuffer(values, dtype) if field == "bytes" else np.array(list(values), dtype)
    return wide(array.reshape(shape))


def from_file(value, folder: pathlib.Path):
    """A tensor in a weight file."""
    tensor = value.type.tensorType
    if tensor.dataType not in NUMPY:
        raise Unsupported(f"element type {MIL_pb2.DataType.Name(tensor.dataType)}")
    shape = [dimension.constant.size for dimension in tensor.dimensions]
    path = folder / value.blobFileValue.fileName.replace("@model_path/", "", 1)
    with open(path, "rb") as stream:
        stream.seek(value.blobFileValue.offset)
        _, _, size, start = struct.unpack("<IIQQ", stream.read(24))
        stream.seek(start)
        return wide(np.frombuffer(stream.read(size), NUMPY[tensor.dataType]).reshape(shape))


class Evaluator:
    """One function of a package, with its states."""

    def __init__(self, package: pathlib.Path, function: str, typed: bool):
        model = reading.parsed(package)
        if model.WhichOneof("Type") != "mlProgram":
            raise Unsupported(f"a {model.WhichOneof('Type')} model")
        self.typed = typed
        self.folder = reading.root_path(package).parent
        functions = model.mlProgram.functions
        name = function or model.description.defaultFunctionName or "main"
        if name not in functions:
            raise Unsupported(f"no function {name}")
        self.function = functions[name]
        self.block = self.function.block_specializations[self.function.opset]
        self.states = {}
        for feature in self.function.inputs:
            if feature.type.WhichOneof("type") == "stateType":
                dimensions = feature.type.stateType.wrappedType.tensorType.dimensions
                self.states[feature.name] = np.zeros([one.constant.size for one in dimensions])

    def call(self, inputs: dict) -> dict:
        """The outputs by name."""
        names = dict(self.states)
        for feature in self.function.inputs:
            if feature.name in self.states:
                continue
            if feature.name not in inputs:
                raise Unsupported(f"no value for input {feature.name}")
            kind = NUMPY[feature.type.tensorType.dataType]
            names[feature.name] = wide(inputs[feature.name].astype(kind))
        self.run(self.block, names)
        return {name: names[name] for name in self.block.outputs}

    def run(self, block, names: dict) -> None:
        """Runs the operations of a block and adds their results to `names`."""
        for operation in block.operations:
            results = self.results(operation, names)
            for output, result in zip(operation.outputs, results, strict=True):
                names[output.name] = self.rounded(output, result)

    def rounded(self, output, result):
        """A result, rounded to its declared type if that is asked for."""
        declared = NUMPY.get(output.type.tensorType.dataType)
        is_float = isinstance(result, (np.ndarray, np.generic)) and result.dtype.kind == "f"
        return wide(result.astype(declared)) if self.typed and is_float and declared else result

    def arguments(self, operation, names: dict) -> dict:
        """The arguments by parameter; variadic parameters are lists."""
        found = {}
        for parameter, argument in operation.inputs.items():
            values = [
                names[one.name] if one.WhichOneof("binding") == "name" else constant(one.value, self.folder)
                for one in argument.arguments
            ]
            found[parameter] = values if parameter in ("values", "loop_vars") else values[0]
        return found

    def results(self, operation, names: dict) -> list:
        """What one operation gives."""
        kind = operation.type
        if kind == "const":
            return [constant(operation.attributes["val"], self.folder)]
        given = self.arguments(operation, names)
        if kind == "read_state":
            return [self.states[self.state_of(operation)]]
        if kind == "write_state":
            self.states[self.state_of(operation)] = np.asarray(given["data"])
            return []
        if kind == "cond":
            return self.nested(operation.blocks[0 if given["pred"] else 1], names, [])
        if kind == "while_loop":
            values = given["loop_vars"]
            while self.nested(operation.blocks[0], names, values)[0]:
                values = self.nested(operation.blocks[1], names, values)
            return values
        if kind == "cast" and given["dtype"] in FLOATS and np.asarray(given["x"]).dtype.kind == "f":
            return [given["x"]]
        if kind not in OPERATIONS:
            raise Unsupported(kind)
        try:
            result = OPERATIONS[kind](**given)
        except NotImplementedError as error:
            raise Unsupported(str(error)) from error
        many = isinstance(result, list) and kind not in MAKE_LISTS
        return result if many else [result]

    def state_of(self, operation) -> str:
        return operation.inputs["input"].arguments[0].name

    def nested(self, block, names: dict, inputs: list) -> list:
        """What a nested block returns; it sees the names around it."""
        inner = dict(names)
        inner.update(zip((feature.name for feature in block.inputs), inputs, strict=True))
        self.run(block, inner)
        return [inner[name] for name in block.outputs]


def difference(a, b) -> tuple[float, float]:
    """Largest and median absolute difference, over the largest absolute value."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        return math.inf, math.inf
    finite = np.isfinite(a)
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | (finite & np.isfinite(b))
    if not same.all():
        return math.inf, math.inf
    if not finite.any():
        return 0.0, 0.0
    apart = np.abs(a[finite] - b[finite]) / max(np.abs(a[finite]).max(), 1e-30)
    return float(apart.max()), float(np.median(apart))


def unexpected(actual, expected) -> float:
    """The largest difference from what a file expects; it may hold the last rows only."""
    actual = np.asarray(actual, np.float64)
    if actual.ndim >= 2 and expected.ndim == actual.ndim:
        actual = actual[..., actual.shape[-2] - expected.shape[-2] :, :]
    return difference(expected, actual.reshape(expected.shape))[0]


def compare(job: list[pathlib.Path], options: argparse.Namespace) -> dict:
    """Evaluates both packages of a job, call by call."""
    before, after, inputs = job[:3]
    function = str(job[3]) if len(job) > 3 else ""
    recorded = dict(np.load(inputs))
    first = {key[3:]: value for key, value in recorded.items() if key.startswith("in_")}
    sides = [Evaluator(path, function, options.typed) for path in (before, after)]
    for side in sides:
        for name in side.states:
            if options.start_states and f"state_{name}" in recorded:
                side.states[name] = wide(recorded[f"state_{name}"])
    worst, median, expected, calls = 0.0, 0.0, 0.0, 0
    while calls == 0 or any(key.startswith(f"s{calls}_") for key in recorded):
        prefix = f"s{calls}_" if calls else ""
        given = {**first}
        given.update({key[len(prefix) + 3 :]: v for key, v in recorded.items() if key.startswith(f"{prefix}in_")})
        was, now = (side.call(given) for side in sides)
        if was.keys() != now.keys() or list(was) != list(now):
            raise SystemExit(f"{after}: outputs {list(now)}, {list(was)} before")
        for index, name in enumerate(was):
            if isinstance(was[name], (str, list, dict)):
                continue
            apart = difference(was[name], now[name])
            worst, median = max(worst, apart[0]), max(median, apart[1])
            key = f"{prefix}out_{index}_{name}"
            if key in recorded:
                expected = max(expected, unexpected(was[name], recorded[key]))
        for name in sides[0].states:
            worst = max(worst, difference(sides[0].states[name], sides[1].states[name])[0])
        calls += 1
    return {"calls": calls, "worst": worst, "median": median, "expected": expected}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", metavar="LIST", required=True)
    parser.add_argument("--start-states", action="store_true")
    parser.add_argument("--typed", action="store_true")
    options = parser.parse_args()
    np.seterr(all="ignore")
    for job in reading.jobs(options.pairs):
        line = {"before": str(job[0]), "after": str(job[1]), "inputs": str(job[2])}
        try:
            found = compare(job, options)
            line |= {key: value if math.isfinite(value) else None for key, value in found.items()}
        except Unsupported as reason:
            line["unsupported"] = str(reason)
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
