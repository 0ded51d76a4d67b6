#!/usr/bin/env python3
"""Makes packages for the benchmarks, large ones in seconds.

    python generate.py llm OUT.mlpackage [--layers 16] [--dim 2048] [--vocab 128256] [--tokens 64]
    python generate.py ops N OUT.mlpackage

`llm` is a language model of CoreML8 in fp16: RMSNorm spelled with pow, linear q/k/v/o, rotary embedding
spelled out, grouped heads repeated by tile, sdpa, SwiGLU, and an LM head of its own. The default is 16
layers and 3.0 GB of weights. The weights are noise, written piece by piece; no two weight blobs are
equal. `--dim 256 --layers 2 --vocab 512` is a small one.

`ops` is a chain of exactly N ops in fp16: RMSNorm, a gain from the weight file, a pair of casts and a
reshape to the same shape, again and again, each parameter an own const op as coremltools spells it.

Needs the protobuf schema of coremltools==9.0 and numpy.
"""

import argparse
import logging
import pathlib
import shutil
import struct
import sys

import numpy as np

logging.disable(logging.WARNING)
sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "data"))

from coremltools.proto import FeatureTypes_pb2, MIL_pb2, Model_pb2  # noqa: E402

import package  # noqa: E402

F16, F32, I32 = MIL_pb2.FLOAT16, MIL_pb2.FLOAT32, MIL_pb2.INT32
NOISE_ELEMENTS = 1 << 23
HEAD_SIZE = 64
HEADS_PER_KEY = 4


class Weights:
    """The weight file, written as it grows; never more than one piece of it in memory."""

    def __init__(self, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True)
        self.stream = open(path, "wb")
        self.stream.write(bytes(package.ALIGNMENT))
        self.position = package.ALIGNMENT
        self.count = 0
        self.noise = None

    def record(self, size: int) -> int:
        """Starts a blob of `size` bytes of fp16 data; the result is the offset of its record."""
        gap = -self.position % package.ALIGNMENT
        offset = self.position + gap
        record = struct.pack("<IIQQ", package.SENTINEL, package.BlobFile.FLOAT16, size, offset + package.ALIGNMENT)
        self.stream.write(bytes(gap) + record.ljust(package.ALIGNMENT, b"\0"))
        self.position = offset + package.ALIGNMENT + size
        self.count += 1
        return offset

    def add(self, values: np.ndarray) -> int:
        """A blob with these values."""
        data = values.astype("<f2").tobytes()
        offset = self.record(len(data))
        self.stream.write(data)
        return offset

    def add_noise(self, elements: int) -> int:
        """A blob of small numbers; its number in the file stands at the start, which makes it unique."""
        if self.noise is None:
            generator = np.random.default_rng(0)
            self.noise = (generator.standard_normal(NOISE_ELEMENTS, np.float32) * 0.02).astype("<f2")
        offset = self.record(2 * elements)
        mark = np.array([self.count // 1024, self.count % 1024], "<f2")[:elements]
        self.stream.write(mark.tobytes())
        left = elements - len(mark)
        start = self.count * 4099 % NOISE_ELEMENTS
        while left > 0:
            piece = self.noise[start : start + left]
            self.stream.write(piece.data)
            left -= len(piece)
            start = 0
        return offset

    def close(self) -> None:
        """Writes the header."""
        self.stream.seek(0)
        self.stream.write(struct.pack("<II", self.count, 2))
        self.stream.close()


class Graph:
    """The one function of a CoreML8 program under construction."""

    def __init__(self, out: pathlib.Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        self.out = out
        self.weights = Weights(out / "Data" / package.WEIGHTS_DIR / "weight.bin")
        self.model = Model_pb2.Model(specificationVersion=9)
        self.model.mlProgram.version = 1
        self.function = self.model.mlProgram.functions["main"]
        self.function.opset = "CoreML8"
        self.block = self.function.block_specializations["CoreML8"]
        self.types = {}

    def type_of(self, dtype: int, shape: tuple) -> MIL_pb2.ValueType:
        """A tensor type, made once for each dtype and shape."""
        key = (dtype, shape)
        if key not in self.types:
            kind = self.types[key] = MIL_pb2.ValueType()
            kind.tensorType.dataType = dtype
            kind.tensorType.rank = len(shape)
            for size in shape:
                kind.tensorType.dimensions.add().constant.size = size
        return self.types[key]

    def feature(self, features, name: str, dtype: int, shape: tuple) -> None:
        """Names an array in the model's description."""
        array = features.add(name=name).type.multiArrayType
        array.dataType = {
            F16: FeatureTypes_pb2.ArrayFeatureType.FLOAT16,
            I32: FeatureTypes_pb2.ArrayFeatureType.INT32,
        }[dtype]
        array.shape.extend(shape)

    def input(self, name: str, dtype: int, shape: tuple) -> str:
        """A function input."""
        self.function.inputs.add(name=name).type.CopyFrom(self.type_of(dtype, shape))
        self.feature(self.model.description.input, name, dtype, shape)
        return name

    def output(self, name: str, dtype: int, shape: tuple) -> None:
        """Makes a value an output."""
        self.block.outputs.append(name)
        self.feature(self.model.description.output, name, dtype, shape)

    def blob(self, name: str, offset: int, *shape: int) -> str:
        """A const of fp16 data in the weight file."""
        value = self.const_value(name, F16, shape)
        value.blobFileValue.fileName = "@model_path/weights/weight.bin"
        value.blobFileValue.offset = offset
        return name

    def noise(self, name: str, *shape: int) -> str:
        """A const of noise."""
        return self.blob(name, self.weights.add_noise(int(np.prod(shape))), *shape)

    def zeros(self, name: str, size: int) -> str:
        """A const of zeros."""
        return self.blob(name, self.weights.add(np.zeros(size)), size)

    def const_value(self, name: str, dtype: int, shape: tuple) -> MIL_pb2.Value:
        """Adds a const op; the value that it holds is still to be filled."""
        op = self.block.operations.add(type="const")
        kind = self.type_of(dtype, shape)
        op.outputs.add(name=name).type.CopyFrom(kind)
        self.set_name(op, name)
        value = op.attributes["val"]
        value.type.CopyFrom(kind)
        return value

    def set_name(self, op, name: str) -> None:
        """The attribute that every op has."""
        value = op.attributes["name"]
        value.type.CopyFrom(self.type_of(MIL_pb2.STRING, ()))
        value.immediateValue.tensor.strings.values.append(name)

    def const(self, name: str, value) -> str:
        """A const inside the program: int or list of ints, bool or list of bools, string, numpy float."""
        items = value if isinstance(value, list) else [value]
        shape = (len(items),) if isinstance(value, list) else ()
        first = items[0]
        if isinstance(first, bool):
            self.const_value(name, MIL_pb2.BOOL, shape).immediateValue.tensor.bools.values.extend(items)
        elif isinstance(first, int):
            self.const_value(name, I32, shape).immediateValue.tensor.ints.values.extend(items)
        elif isinstance(first, str):
            self.const_value(name, MIL_pb2.STRING, shape).immediateValue.tensor.strings.values.extend(items)
        elif isinstance(first, np.float16):
            self.const_value(name, F16, shape).immediateValue.tensor.bytes.values = first.tobytes()
        else:
            self.const_value(name, F32, shape).immediateValue.tensor.floats.values.append(float(first))
        return name

    def op(self, kind: str, name: str, dtype: int, shape: tuple, names: dict, /, **consts) -> str:
        """An op: `names` bind values (or lists of them), `consts` become const ops in front of it."""
        bound = dict(names)
        for parameter, value in consts.items():
            bound[parameter] = self.const(f"{name}_{parameter}_0", value)
        op = self.block.operations.add(type=kind)
        for parameter, value in bound.items():
            arguments = op.inputs[parameter].arguments
            for one in value if isinstance(value, list) else [value]:
                arguments.add(name=one)
        op.outputs.add(name=name).type.CopyFrom(self.type_of(dtype, shape))
        self.set_name(op, name)
        return name

    def norm(self, x: str, name: str, shape: tuple) -> str:
        """RMSNorm with a gain."""
        row = (*shape[:-1], 1)
        square = self.op("pow", f"{name}_square", F16, shape, {"x": x}, y=np.float16(2))
        mean = self.op("reduce_mean", f"{name}_mean", F16, row, {"x": square}, axes=[-1], keep_dims=True)
        shifted = self.op("add", f"{name}_shifted", F16, row, {"x": mean}, y=np.float16(1e-5))
        inverse = self.op("rsqrt", f"{name}_inverse", F16, row, {"x": shifted}, epsilon=np.float16(1e-12))
        normed = self.op("mul", f"{name}_normed", F16, shape, {"x": x, "y": inverse})
        gain = self.noise(f"{name}_gain", shape[-1])
        return self.op("mul", name, F16, shape, {"x": normed, "y": gain})

    def save(self) -> None:
        """Writes the model, the manifest and the weight file's header."""
        self.weights.close()
        data = self.model.SerializeToString(deterministic=True)
        root = package.Item(package.DEFAULT_ROOT, "model.mlmodel", "CoreML Model Specification", data)
        folder = package.Item(package.WEIGHTS_DIR, "weights", "CoreML Model Weights", None)
        (self.out / "Data" / package.DEFAULT_ROOT).write_bytes(data)
        (self.out / "Manifest.json").write_bytes(package.manifest(self.out.stem, [root, folder], root))
        print(
            f"{self.out}: {len(self.block.operations)} ops, {len(data)} bytes of program, "
            f"{self.weights.position} bytes of weights in {self.weights.count} blobs"
        )


def rotated(graph: Graph, x: str, name: str, shape: tuple, tables: dict) -> str:
    """Rotary embedding: x · cos + concat(−x[half:], x[:half]) · sin."""
    half = (*shape[:3], shape[3] // 2)
    middle, end = half[3], shape[3]
    first = graph.op(
        "slice_by_index", f"{name}_first", F16, half, {"x": x},
        begin=[0, 0, 0, 0], end=[*shape[:3], middle], end_mask=[True, True, True, False],
    )  # fmt: skip
    second = graph.op(
        "slice_by_index", f"{name}_second", F16, half, {"x": x},
        begin=[0, 0, 0, middle], end=[*shape[:3], end], end_mask=[True, True, True, True],
    )  # fmt: skip
    negative = graph.op("mul", f"{name}_negative", F16, half, {"x": second}, y=np.float16(-1))
    turned = graph.op("concat", f"{name}_turned", F16, shape, {"values": [negative, first]}, axis=-1, interleave=False)
    straight = graph.op("mul", f"{name}_straight", F16, shape, {"x": x, "y": tables["cos"]})
    across = graph.op("mul", f"{name}_across", F16, shape, {"x": turned, "y": tables["sin"]})
    return graph.op("add", name, F16, shape, {"x": straight, "y": across})


def language_model(out: pathlib.Path, layers: int, dim: int, vocab: int, tokens: int) -> None:
    """See the module's text."""
    heads = dim // HEAD_SIZE
    keys = heads // HEADS_PER_KEY
    hidden = 4 * dim
    graph = Graph(out)
    ids = graph.input("ids", I32, (1, tokens))
    mask = graph.input("mask", F16, (1, 1, tokens, tokens))
    row, wide = (1, tokens, dim), (1, tokens, hidden)
    angles = np.outer(np.arange(tokens), 10000.0 ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE))
    tables = {}
    for name, table in [("cos", np.cos(angles)), ("sin", np.sin(angles))]:
        values = np.concatenate([table, table], -1)
        tables[name] = graph.blob(name, graph.weights.add(values), 1, 1, tokens, HEAD_SIZE)
    biases = {size: graph.zeros(f"zeros_{size}", size) for size in {dim, keys * HEAD_SIZE, hidden, vocab}}

    def linear(x: str, name: str, inputs: int, outputs: int) -> str:
        weight = graph.noise(f"{name}_weight_0", outputs, inputs)
        return graph.op(
            "linear", name, F16, (1, tokens, outputs), {"x": x, "weight": weight, "bias": biases[outputs]}
        )

    def apart(x: str, name: str, count: int) -> str:
        shape = graph.op(
            "reshape", f"{name}_apart", F16, (1, tokens, count, HEAD_SIZE), {"x": x}, shape=[1, tokens, count, HEAD_SIZE]
        )
        return graph.op(
            "transpose", f"{name}_heads", F16, (1, count, tokens, HEAD_SIZE), {"x": shape}, perm=[0, 2, 1, 3]
        )

    def repeated(x: str, name: str) -> str:
        one, many = (1, keys, 1, tokens, HEAD_SIZE), (1, keys, HEADS_PER_KEY, tokens, HEAD_SIZE)
        x = graph.op("reshape", f"{name}_one", F16, one, {"x": x}, shape=list(one))
        x = graph.op("tile", f"{name}_many", F16, many, {"x": x}, reps=[1, 1, HEADS_PER_KEY, 1, 1])
        flat = (1, heads, tokens, HEAD_SIZE)
        return graph.op("reshape", f"{name}_repeated", F16, flat, {"x": x}, shape=list(flat))

    embedding = graph.noise("embedding", vocab, dim)
    x = graph.op(
        "gather", "embedded", F16, row, {"x": embedding, "indices": ids},
        axis=0, batch_dims=0, validate_indices=False,
    )  # fmt: skip
    for layer in range(layers):
        at = f"layer_{layer}"
        normed = graph.norm(x, f"{at}_norm_1", row)
        q = apart(linear(normed, f"{at}_q", dim, dim), f"{at}_q", heads)
        k = apart(linear(normed, f"{at}_k", dim, keys * HEAD_SIZE), f"{at}_k", keys)
        v = apart(linear(normed, f"{at}_v", dim, keys * HEAD_SIZE), f"{at}_v", keys)
        q = rotated(graph, q, f"{at}_q_rotated", (1, heads, tokens, HEAD_SIZE), tables)
        k = rotated(graph, k, f"{at}_k_rotated", (1, keys, tokens, HEAD_SIZE), tables)
        names = {"query": q, "key": repeated(k, f"{at}_k"), "value": repeated(v, f"{at}_v"), "attn_mask": mask}
        attended = graph.op(
            "scaled_dot_product_attention", f"{at}_attention", F16, (1, heads, tokens, HEAD_SIZE), names
        )
        turned = (1, tokens, heads, HEAD_SIZE)
        attended = graph.op("transpose", f"{at}_back", F16, turned, {"x": attended}, perm=[0, 2, 1, 3])
        attended = graph.op("reshape", f"{at}_flat", F16, row, {"x": attended}, shape=list(row))
        x = graph.op("add", f"{at}_sum_1", F16, row, {"x": x, "y": linear(attended, f"{at}_o", dim, dim)})
        normed = graph.norm(x, f"{at}_norm_2", row)
        gate = graph.op("silu", f"{at}_silu", F16, wide, {"x": linear(normed, f"{at}_gate", dim, hidden)})
        inner = graph.op("mul", f"{at}_inner", F16, wide, {"x": gate, "y": linear(normed, f"{at}_up", dim, hidden)})
        x = graph.op("add", f"{at}_sum_2", F16, row, {"x": x, "y": linear(inner, f"{at}_down", hidden, dim)})
    logits = linear(graph.norm(x, "last_norm", row), "logits", dim, vocab)
    graph.output(logits, F16, (1, tokens, vocab))
    graph.save()


def chain(out: pathlib.Path, count: int) -> None:
    """See the module's text."""
    shape = (1, 8, 16)
    graph = Graph(out)
    x = graph.input("x", F16, shape)
    last = "x"
    unit = 0
    while True:
        before = len(graph.block.operations)
        at = f"unit_{unit}"
        normed = graph.norm(last, f"{at}_norm", shape)
        wide = graph.op("cast", f"{at}_wide", F32, shape, {"x": normed}, dtype="fp32")
        narrow = graph.op("cast", f"{at}_narrow", F16, shape, {"x": wide}, dtype="fp16")
        last = graph.op("reshape", f"{at}_same", F16, shape, {"x": narrow}, shape=list(shape))
        unit += 1
        if len(graph.block.operations) + (len(graph.block.operations) - before) > count:
            break
    for index in range(count - len(graph.block.operations)):
        last = graph.op("relu", f"rest_{index}", F16, shape, {"x": last})
    graph.output(last, F16, shape)
    graph.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    llm = commands.add_parser("llm")
    llm.add_argument("out", type=pathlib.Path)
    llm.add_argument("--layers", type=int, default=16)
    llm.add_argument("--dim", type=int, default=2048, help=f"a multiple of {HEAD_SIZE * HEADS_PER_KEY}")
    llm.add_argument("--vocab", type=int, default=128256)
    llm.add_argument("--tokens", type=int, default=64)
    ops = commands.add_parser("ops")
    ops.add_argument("count", type=int, metavar="N", help="at least 18")
    ops.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "ops":
        if options.count < 18:
            ops.error("N must be at least 18")
        chain(options.out, options.count)
        return
    if options.dim % (HEAD_SIZE * HEADS_PER_KEY):
        llm.error(f"--dim must be a multiple of {HEAD_SIZE * HEADS_PER_KEY}")
    language_model(options.out, options.layers, options.dim, options.vocab, options.tokens)


if __name__ == "__main__":
    main()
