#!/usr/bin/env python3
"""Collects ops with the types that coremltools gave them, as cases for the tests of inference.

    MILWRIGHT_CORPUS=DIR scripts/collect_inference_cases.py > tests/data/inference.txt

Walks every package under the corpus that coremltools wrote (needs coremltools for its protobuf
classes) and keeps, for each op type, a few ops that differ in parameters, element types or unknown
sizes, those with the longest text below a limit. The notation is explained at the top of `src/ops/infer/tests.rs`.
"""

import os
import pathlib
import re
import struct

from coremltools.proto import MIL_pb2, Model_pb2

LONGEST = 360
MOST_PER_OP = 8
# The corpus parts whose types coremltools itself computed and whose names say which test it was.
PARTS = ["ops", "models", "bugs"]
# Core ML 5 has no fp16 inputs; coremltools made this model's input fp32 and left the op as it was.
ILL_TYPED = "TestNormalizationBatchNorm.test_builder_to_backend_smoke_-iOS15-x_param_dtype"

WORDS = {
    number: {"FLOAT16": "fp16", "FLOAT32": "fp32", "FLOAT64": "fp64"}.get(name, name.lower())
    for name, number in MIL_pb2.DataType.items()
}
BYTE_FORMATS = {"int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "fp16": "e"}


def spell_type(ty):
    kind = ty.WhichOneof("type")
    if kind == "stateType":
        return f"state({spell_type(ty.stateType.wrappedType)})"
    if kind != "tensorType":
        raise ValueError(kind)
    tensor = ty.tensorType
    dims = []
    for dim in tensor.dimensions:
        if dim.WhichOneof("dimension") == "constant":
            dims.append(str(dim.constant.size))
        elif dim.unknown.variadic:
            raise ValueError("variadic")
        else:
            dims.append("?")
    return f"{WORDS[tensor.dataType]}[{','.join(dims)}]"


def spell_value(value):
    """`=` and the elements, or `=@` for data that is elsewhere or long."""
    if value is None:
        return ""
    if value.WhichOneof("value") != "immediateValue":
        return "=@"
    immediate = value.immediateValue
    if immediate.WhichOneof("value") != "tensor":
        raise ValueError("not a tensor")
    field = immediate.tensor.WhichOneof("value")
    word = WORDS[value.type.tensorType.dataType]
    values = getattr(immediate.tensor, field).values
    if field == "bytes":
        if word not in BYTE_FORMATS:
            return "=@"
        code = BYTE_FORMATS[word]
        values = [v for (v,) in struct.iter_unpack("<" + code, bytes(values))]
    # Only single numbers, such as scale factors, decide about types.
    if len(values) > 16 or (word.startswith("fp") and len(values) > 1):
        return "=@"
    if word.startswith("fp"):
        values = [f"{v:.9g}" for v in values]
    if field == "bools":
        values = [str(v).lower() for v in values]
    if field == "strings" and any(re.search(r"[\s,]", v) for v in values):
        raise ValueError("string")
    return "=" + ",".join(str(v) for v in values)


def spell_op(op, opset, types, constants):
    parts = [op.type, opset]
    for parameter in sorted(op.inputs):
        for binding in op.inputs[parameter].arguments:
            if binding.WhichOneof("binding") == "name":
                ty, value = types[binding.name], constants.get(binding.name)
            else:
                ty, value = binding.value.type, binding.value
            parts.append(f"{parameter}:{spell_type(ty)}{spell_value(value)}")
    for name in sorted(op.attributes):
        if name != "name":
            value = op.attributes[name]
            parts.append(f"%{name}:{spell_type(value.type)}{spell_value(value)}")
    parts.append("->")
    parts += [spell_type(result.type) for result in op.outputs]
    return " ".join(parts)


def walk(block, opset, types, constants, origin, cases):
    types = {**types, **{i.name: i.type for i in block.inputs}}
    constants = dict(constants)
    for op in block.operations:
        for result in op.outputs:
            types[result.name] = result.type
        if op.type == "const":
            constants[op.outputs[0].name] = op.attributes["val"]
        for nested in op.blocks:
            walk(nested, opset, types, constants, origin, cases)
        if op.type.startswith("_") or op.blocks:
            continue
        try:
            line = spell_op(op, opset, types, constants)
        except ValueError:
            continue
        if len(line) > LONGEST:
            continue
        kinds = re.sub(r"\[[^]]*\](=\S*)?", "", line.replace(f" {opset} ", " ", 1))
        known = "?" not in line
        best = cases.get((kinds, known))
        if best is None or (len(best[0]), best[0]) < (len(line), line):
            cases[kinds, known] = (line, origin)


def main():
    corpus = pathlib.Path(os.environ["MILWRIGHT_CORPUS"])
    cases = {}
    for part in PARTS:
        for path in sorted((corpus / part).rglob("*.mlmodel")):
            if ILL_TYPED in str(path):
                continue
            model = Model_pb2.Model()
            model.ParseFromString(path.read_bytes())
            origin = str(path.relative_to(corpus)).split("/Data/")[0]
            origin = origin.removesuffix("/model.mlpackage").removesuffix(".mlpackage")
            for function in model.mlProgram.functions.values():
                types = {i.name: i.type for i in function.inputs}
                for opset, block in function.block_specializations.items():
                    walk(block, opset, types, {}, origin, cases)
    kept = {}
    for line, origin in sorted(cases.values(), key=lambda case: (-len(case[0]), case)):
        of_type = kept.setdefault(line.split()[0], [])
        if len(of_type) < MOST_PER_OP:
            of_type.append((line, origin))
    for op in sorted(kept):
        for line, origin in sorted(kept[op]):
            print(f"# {origin}\n{line}")


if __name__ == "__main__":
    main()
