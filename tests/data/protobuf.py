"""Packages made below the level at which coremltools writes: what the format allows and no converter spells."""

import struct

import numpy as np
from coremltools.proto import FeatureTypes_pb2, MIL_pb2, Model_pb2

from conversion import expect, registry
from models import WIDTH, dense_package
from package import BlobFile, Package

PACKAGES: dict = {}
package = registry(PACKAGES)

DTYPE_OF = {
    np.dtype(np.float16): MIL_pb2.FLOAT16,
    np.dtype(np.float32): MIL_pb2.FLOAT32,
    np.dtype(np.int32): MIL_pb2.INT32,
    np.dtype(np.bool_): MIL_pb2.BOOL,
}


def tensor_type(dtype: int, *dimensions) -> MIL_pb2.ValueType:
    """A tensor type; a dimension is a size, "?" (unknown), "..." (any number) or None (a message with no field set)."""
    kind = MIL_pb2.ValueType()
    tensor = kind.tensorType
    tensor.dataType = dtype
    tensor.rank = -1 if "..." in dimensions else len(dimensions)
    for dimension in dimensions:
        message = tensor.dimensions.add()
        if dimension == "?":
            message.unknown.SetInParent()
        elif dimension == "...":
            message.unknown.variadic = True
        elif dimension is not None:
            message.constant.size = dimension
    return kind


def immediate(value) -> MIL_pb2.Value:
    """A literal: a string, or anything that numpy takes, with its dtype."""
    message = MIL_pb2.Value()
    if isinstance(value, str):
        message.type.CopyFrom(tensor_type(MIL_pb2.STRING))
        message.immediateValue.tensor.strings.values.append(value)
        return message
    value = np.asarray(value)
    message.type.CopyFrom(tensor_type(DTYPE_OF[value.dtype], *value.shape))
    tensor = message.immediateValue.tensor
    if value.dtype == np.float16:
        tensor.bytes.values = value.tobytes()
    else:
        field = {"f": tensor.floats, "i": tensor.ints, "b": tensor.bools}[value.dtype.kind]
        field.values.extend(value.ravel().tolist())
        field.SetInParent()
    return message


def stored(kind: MIL_pb2.ValueType, offset: int) -> MIL_pb2.Value:
    """A value in the usual weight file; `offset` is that of its metadata record."""
    message = MIL_pb2.Value(type=kind)
    message.blobFileValue.fileName = "@model_path/weights/weight.bin"
    message.blobFileValue.offset = offset
    return message


def typed(kind: MIL_pb2.ValueType, field: str, values: bytes) -> MIL_pb2.Value:
    """A literal whose tensor field is given as wire bytes, so that no bit passes through a Python float."""
    numbers = {"floats": 1, "ints": 2, "bools": 3, "longInts": 5, "doubles": 6, "bytes": 7}
    packed = b"\x0a" + bytes([len(values)]) + values if values else b""
    message = MIL_pb2.Value()
    message.type.CopyFrom(kind)
    message.immediateValue.tensor.MergeFromString(bytes([numbers[field] << 3 | 2, len(packed)]) + packed)
    return message


def operation(block, kind: str, outputs: dict, **inputs):
    """Appends an op; an input is the name of a value, a literal, or a list of both."""
    message = block.operations.add(type=kind)
    for name, bindings in inputs.items():
        argument = message.inputs[name]
        for binding in bindings if isinstance(bindings, list) else [bindings]:
            if isinstance(binding, str):
                argument.arguments.add(name=binding)
            else:
                argument.arguments.add().value.CopyFrom(binding)
    for name, output in outputs.items():
        message.outputs.add(name=name).type.CopyFrom(output)
    return message


def const(block, name: str, value: MIL_pb2.Value):
    """Appends a const op."""
    message = operation(block, "const", {name: value.type})
    message.attributes["name"].CopyFrom(immediate(name))
    message.attributes["val"].CopyFrom(value)
    return message


def model_for(version: int, opset: str, inputs: dict, outputs: dict):
    """A model with an empty `main`; its description has fixed-size arrays for all features."""
    model = Model_pb2.Model(specificationVersion=version)
    model.mlProgram.version = 1
    function = model.mlProgram.functions["main"]
    function.opset = opset
    array = FeatureTypes_pb2.ArrayFeatureType
    array_dtype = {MIL_pb2.FLOAT16: array.FLOAT16, MIL_pb2.FLOAT32: array.FLOAT32, MIL_pb2.INT32: array.INT32}
    for features, kinds in [(model.description.input, inputs), (model.description.output, outputs)]:
        for name, kind in kinds.items():
            multi = features.add(name=name).type.multiArrayType
            multi.dataType = array_dtype[kind.tensorType.dataType]
            multi.shape.extend(dimension.constant.size for dimension in kind.tensorType.dimensions)
    for name, kind in inputs.items():
        function.inputs.add(name=name).type.CopyFrom(kind)
    block = function.block_specializations[opset]
    block.outputs.extend(outputs)
    return model, function, block


@package
def literal_bindings() -> Package:
    """literals bound where converters put const ops, omitted optional inputs, ops without names"""
    shape = tensor_type(MIL_pb2.FLOAT16, 2, WIDTH)
    row = tensor_type(MIL_pb2.FLOAT16, 2, 1)
    model, _, block = model_for(8, "CoreML7", {"x": shape}, {"y": tensor_type(MIL_pb2.FLOAT16, 2, 2 * WIDTH)})
    generator = np.random.default_rng(40)
    weight = generator.standard_normal((WIDTH, WIDTH)).astype(np.float16)
    blobs = BlobFile()
    offset = blobs.add(BlobFile.FLOAT16, weight.tobytes())
    const(block, "weight", stored(tensor_type(MIL_pb2.FLOAT16, WIDTH, WIDTH), offset))
    operation(block, "linear", {"flat": shape}, x="x", weight="weight")
    operation(block, "pow", {"square": shape}, x="flat", y=immediate(np.float16(2)))
    operation(
        block, "reduce_mean", {"mean": row}, x="square", axes=immediate(np.int32([-1])), keep_dims=immediate(np.True_)
    )
    operation(block, "add", {"shifted": row}, x=immediate(np.float16(1e-3)), y="mean")
    operation(block, "rsqrt", {"inverse": row}, x="shifted")
    operation(block, "mul", {"normed": shape}, x="inverse", y="flat")
    wide = tensor_type(MIL_pb2.FLOAT32, 2, WIDTH)
    operation(block, "cast", {"wide": wide}, x="normed", dtype=immediate("fp32"))
    operation(block, "cast", {"narrow": shape}, x="wide", dtype=immediate("fp16"))
    operation(
        block,
        "concat",
        {"y": tensor_type(MIL_pb2.FLOAT16, 2, 2 * WIDTH)},
        values=["narrow", immediate(np.ones((2, WIDTH), np.float16))],
        axis=immediate(np.int32(-1)),
    )
    x = generator.standard_normal((2, WIDTH)).astype(np.float16)
    flat = x.astype(np.float64) @ weight.astype(np.float64).T
    normed = flat / np.sqrt((flat**2).mean(-1, keepdims=True) + float(np.float16(1e-3)))
    made = Package(model, {"weight.bin": blobs.bytes()})
    return expect(made, {"x": x}, {"y": np.concatenate([normed, np.ones((2, WIDTH))], -1)})


@package
def unknown_op() -> Package:
    """an op that no registry knows (with a nested block, two results and a literal in the weight file), a known op with an unknown parameter and attribute"""
    made = dense_package(41)
    block = made.model.mlProgram.functions["main"].block_specializations["CoreML6"]
    linear = next(op for op in block.operations if op.type == "linear")
    linear.inputs["accumulator_dtype"].arguments.add().value.CopyFrom(immediate("fp32"))
    linear.attributes["priority"].CopyFrom(immediate(np.int32(3)))
    last = block.operations[-1]
    kept = MIL_pb2.Operation.FromString(last.SerializeToString())
    del block.operations[-1]
    shape = linear.outputs[0].type
    novel = operation(
        block,
        "sparse_attention_v9",
        {"novel": shape, "novel_rest": tensor_type(MIL_pb2.INT32, "?")},
        x=linear.outputs[0].name,
        window=immediate(np.int32([4, 4])),
        mixed=[linear.outputs[0].name, immediate(np.float32(0.5))],
        table=stored(tensor_type(MIL_pb2.FLOAT32, WIDTH, WIDTH), 64),  # the linear layer's blob, once more
    )
    inner = novel.blocks.add()
    inner.inputs.add(name="novel_x").type.CopyFrom(shape)
    operation(inner, "pow", {"novel_y": shape}, x="novel_x", y=kept.inputs["y"].arguments[0].name)
    inner.outputs.append("novel_y")
    kept.inputs["x"].arguments[0].name = "novel"
    block.operations.add().CopyFrom(kept)
    made.numbers.clear()
    return made


@package
def odd_types() -> Package:
    """unknown, variadic and unset dimensions, attributes and doc strings everywhere, two specializations, NaN payloads, −0.0, integer limits, empty tensors, odd strings, list, tuple and dictionary values"""
    vector = tensor_type(MIL_pb2.FLOAT32, 3)
    model, function, block = model_for(9, "CoreML8", {"x": vector}, {"y": vector})
    program = model.mlProgram
    program.docString = "A program\nof \"odd\" types."
    program.attributes["buildInfo"].CopyFrom(dictionary({"tool": "none", "": "the key is empty"}))
    program.attributes["nothing"].SetInParent()
    function.attributes["Hint"].CopyFrom(immediate("ünusual"))
    block.attributes["region"].CopyFrom(immediate(np.int32([1, 2])))

    # Inputs of every kind of type, none of them used by an op.
    array = FeatureTypes_pb2.ArrayFeatureType.FLOAT32
    kinds = {
        "unknown_dims": tensor_type(MIL_pb2.FLOAT32, "?", 3, "?"),
        "any_rank": tensor_type(MIL_pb2.FLOAT32, "..."),
        "two_then_any": tensor_type(MIL_pb2.FLOAT32, 2, "..."),
        "scalar": tensor_type(MIL_pb2.FLOAT32),
        "unset_dim": tensor_type(MIL_pb2.FLOAT32, None, 2),
    }
    kinds["unknown_dims"].tensorType.attributes["layout"].CopyFrom(immediate("interleaved"))
    for name, kind in kinds.items():
        function.inputs.add(name=name).type.CopyFrom(kind)
        model.description.input.add(name=name).type.multiArrayType.dataType = array
    table = MIL_pb2.ValueType()
    table.dictionaryType.keyType.CopyFrom(tensor_type(MIL_pb2.STRING))
    table.dictionaryType.valueType.CopyFrom(tensor_type(MIL_pb2.FLOAT64))
    function.inputs.add(name="table").type.CopyFrom(table)
    model.description.input.add(name="table").type.dictionaryType.stringKeyType.SetInParent()

    floats = struct.pack("<6I", 0x7FA00001, 0xFFC12345, 0x80000000, 0x7F800000, 0xFF800000, 1)
    doubles = struct.pack("<3Q", 0x7FF4000000000001, 0x8000000000000000, 1)
    limits = [varint(2**63 - 1), varint(2**64 - 2**63), varint(2**64 - 1)]
    ints = [varint(2**31 - 1), varint(2**64 - 2**31), varint(2**64 - 1)]
    values = {
        "fp32_bits": typed(tensor_type(MIL_pb2.FLOAT32, 6), "floats", floats),
        "fp64_bits": typed(tensor_type(MIL_pb2.FLOAT64, 3), "doubles", doubles),
        "fp16_bits": typed(tensor_type(MIL_pb2.FLOAT16, 4), "bytes", bytes.fromhex("017d01fe00800100")),
        "bf16_bits": typed(tensor_type(MIL_pb2.BFLOAT16, 2), "bytes", bytes.fromhex("803fa17f")),
        "fp8_bits": typed(tensor_type(MIL_pb2.FLOAT8E4M3FN, 3), "bytes", bytes.fromhex("7f80ff")),
        "fp8_wide_bits": typed(tensor_type(MIL_pb2.FLOAT8E5M2, 3), "bytes", bytes.fromhex("7c8001")),
        "int64_limits": typed(tensor_type(MIL_pb2.INT64, 3), "longInts", b"".join(limits)),
        "uint64_limits": typed(tensor_type(MIL_pb2.UINT64, 3), "longInts", b"".join(limits)),
        "int32_limits": typed(tensor_type(MIL_pb2.INT32, 3), "ints", b"".join(ints)),
        "uint32_limits": typed(tensor_type(MIL_pb2.UINT32, 2), "bytes", bytes.fromhex("ffffffff00000080")),
        "uint16_limits": typed(tensor_type(MIL_pb2.UINT16, 2), "ints", varint(65535) + varint(0)),
        "int8_as_ints": typed(tensor_type(MIL_pb2.INT8, 2), "ints", varint(2**64 - 128) + varint(127)),
        "int8_as_bytes": typed(tensor_type(MIL_pb2.INT8, 2), "bytes", b"\x80\x7f"),
        "int4_packed": typed(tensor_type(MIL_pb2.INT4, 3), "bytes", b"\x78\x0f"),
        "uint3_packed": typed(tensor_type(MIL_pb2.UINT3, 5), "bytes", b"\xd1\x58"),
        "bools": typed(tensor_type(MIL_pb2.BOOL, 2, 2), "bools", b"\x01\x00\x00\x01"),
        "empty_floats": typed(tensor_type(MIL_pb2.FLOAT32, 0), "floats", b""),
        "empty_ints": typed(tensor_type(MIL_pb2.INT32, 2, 0), "ints", b""),
        "empty_bytes": typed(tensor_type(MIL_pb2.FLOAT16, 0), "bytes", b""),
        "no_field": MIL_pb2.Value(type=tensor_type(MIL_pb2.FLOAT32, 0)),
        "strings": MIL_pb2.Value(type=tensor_type(MIL_pb2.STRING, 6)),
        "pair": MIL_pb2.Value(),
        "words": MIL_pb2.Value(),
        "numbers_by_word": dictionary({"one": "1", "two": "2", "quote\"": "\\"}),
        "documented": immediate(np.float32(0.1)),
    }
    values["no_field"].immediateValue.tensor.SetInParent()
    values["strings"].immediateValue.tensor.strings.values.extend(
        ['"quoted"', "line\nbreak\ttab", "back\\slash", "naïve 模型 🙂", "", "nul\0byte"]
    )
    pair = values["pair"]
    pair.type.tupleType.types.extend([tensor_type(MIL_pb2.INT32), tensor_type(MIL_pb2.STRING)])
    pair.immediateValue.tuple.values.extend([immediate(np.int32(7)), immediate("seven")])
    words = values["words"]
    words.type.listType.type.CopyFrom(tensor_type(MIL_pb2.STRING))
    words.type.listType.length.constant.size = 2
    words.immediateValue.list.values.extend([immediate("a"), immediate("b")])
    values["documented"].docString = "one tenth, \"about\""
    for name, value in values.items():
        const(block, name, value)

    # Ops that are used: unknown dimensions must be carried along, and each op has attributes beyond a name.
    relu = operation(block, "relu", {"positive": vector}, x="x")
    relu.attributes["name"].CopyFrom(immediate("relu @ layer/1"))
    relu.attributes["debug"].CopyFrom(values["pair"])
    operation(block, "relu", {"spread": kinds["unknown_dims"]}, x="unknown_dims")
    listed = MIL_pb2.ValueType()
    listed.listType.type.CopyFrom(vector)
    listed.listType.length.unknown.SetInParent()
    operation(
        block,
        "make_list",
        {"items": listed},
        init_length=immediate(np.int32(1)),
        dynamic_length=immediate(np.True_),
        elem_shape=[immediate(np.int32(3))],
        dtype=immediate("fp32"),
    )
    operation(block, "add", {"y": vector}, x="positive", y="documented")

    older = function.block_specializations["CoreML5"]
    older.outputs.append("y")
    operation(older, "add", {"y": vector}, x="x", y=immediate(np.float32(0.1)))
    older.attributes["region"].CopyFrom(immediate(""))
    x = np.array([-1, 0, 2], np.float32)
    made = Package(model)
    return expect(made, {"x": x}, {"y": np.maximum(x, 0).astype(np.float64) + float(np.float32(0.1))})


def dictionary(pairs: dict[str, str]) -> MIL_pb2.Value:
    """A dictionary of strings."""
    message = MIL_pb2.Value()
    message.type.dictionaryType.keyType.CopyFrom(tensor_type(MIL_pb2.STRING))
    message.type.dictionaryType.valueType.CopyFrom(tensor_type(MIL_pb2.STRING))
    message.immediateValue.dictionary.SetInParent()
    for key, value in pairs.items():
        pair = message.immediateValue.dictionary.values.add()
        pair.key.CopyFrom(immediate(key))
        pair.value.CopyFrom(immediate(value))
    return message


def varint(value: int) -> bytes:
    """An unsigned varint; a negative number is written as its two's complement in 64 bits."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
