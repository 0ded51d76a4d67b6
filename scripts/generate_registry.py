#!/usr/bin/env python3
"""Turns a dump of coremltools' op registry into the Rust table `src/ops/registry/table.rs`.

    scripts/generate_registry.py ops.json > src/ops/registry/table.rs

The dump holds, for each op type, its variants (oldest first) with their parameters, const-ness,
type domains and the Python expressions of their defaults. Needs rustfmt; stops at any expression
it does not understand, so that a new coremltools version cannot slip in half-read.
"""

import ast
import json
import subprocess
import sys

OPSETS = {
    "ios13": "CoreML3",
    "ios14": "CoreML4",
    "ios15": "CoreML5",
    "ios16": "CoreML6",
    "ios17": "CoreML7",
    "ios18": "CoreML8",
    "ios26": "CoreML9",
}

# Dump's word, Rust variant, in the order in which sets are written.
DTYPES = [
    ("bool", "Bool"),
    ("string", "String"),
    ("fp16", "Float16"),
    ("fp32", "Float32"),
    ("int8", "Int8"),
    ("int16", "Int16"),
    ("int32", "Int32"),
    ("int4", "Int4"),
    ("uint8", "UInt8"),
    ("uint16", "UInt16"),
    ("uint32", "UInt32"),
    ("uint4", "UInt4"),
    ("uint2", "UInt2"),
    ("uint1", "UInt1"),
    ("uint6", "UInt6"),
    ("uint3", "UInt3"),
]
ORDER = {word: index for index, (word, _) in enumerate(DTYPES)}
RUST = dict(DTYPES)

KINDS = {
    "Tensor": "Tensor",
    "Tuple": "Tuple",
    "List": "List",
    "State": "State",
    "Internal": "Attribute",
    "ListOrTensorOrDict": "Any",
}

# Defaults that depend on the other arguments.
SYMBOLIC_DEFAULTS = {
    "[1] * num_spatial_dims": "OnesPerSpatialDim",
    "[0] * 2 * num_spatial_dims": "ZerosPerSpatialSide",
    "[0] * num_spatial_dims * 2": "ZerosPerSpatialSide",
    "range(self.x.rank)": "AllAxes",
    "np.array([0.0] * Dout, dtype=nptype_from_builtin(self.weight.dtype))": "ZeroPerOutputChannel",
    "list(range(self.boxes.shape[0]))": "IndexPerBox",
}
IN_DTYPE_OF_X = "nptype_from_builtin(self.x.dtype)("

# Ops that do not have exactly one result: op type -> one entry for each variant, or one for all.
RESULTS = {
    "classify": ["Exactly(2)"],
    "cond": ["Any"],
    "constexpr_lut_to_sparse": ["Exactly(2)"],
    "constexpr_sparse_blockwise_shift_scale": ["Exactly(2)"],
    "gru": ["Exactly(2)"],
    "lstm": ["Exactly(3)"],
    "non_maximum_suppression": ["Exactly(4)", "Exactly(3)"],
    "rnn": ["Exactly(2)"],
    "split": ["Any"],
    "topk": ["Exactly(2)", "Between(1, 2)", "Between(1, 2)"],
    "while_loop": ["Any"],
    "write_state": ["Exactly(0)"],
}

# On disk a state update is an op of its own, which coremltools makes only while it saves.
ON_DISK_ONLY = {
    "write_state": [
        {
            "since": "ios18",
            "inputs": [
                {"name": "input", "kind": "State", "const": False, "optional": False},
                {
                    "name": "data",
                    "kind": "Tensor",
                    "const": False,
                    "optional": False,
                    "dtypes": [],
                },
            ],
        }
    ]
}


def rust_string(text):
    assert all(c.isprintable() and c.isascii() and c not in '"\\' for c in text), text
    return f'"{text}"'


def dtype_set(words):
    """Name of the constant for a set of element types, and its members in canonical order."""
    members = tuple(sorted(set(words), key=ORDER.__getitem__))
    return "_".join(word.upper() for word in members) or "ANY", members


def default_value(expression):
    """The Rust spelling of a default."""
    if expression in SYMBOLIC_DEFAULTS:
        return SYMBOLIC_DEFAULTS[expression]
    if expression.startswith(IN_DTYPE_OF_X) and expression.endswith(")"):
        return f"FloatLikeX({ast.literal_eval(expression[len(IN_DTYPE_OF_X) : -1])!r})"
    value = ast.literal_eval(expression)
    if value is None:
        return "Absent"
    if isinstance(value, bool):
        return f"Bool({str(value).lower()})"
    if isinstance(value, int):
        return f"Int({value})"
    if isinstance(value, float):
        return f"Float({value!r})"
    if isinstance(value, str):
        return f"Str({rust_string(value)})"
    raise ValueError(f"default {expression!r}")


def parameter(entry, sets):
    known = {"name", "kind", "const", "optional", "type_domain", "dtypes", "default"}
    assert set(entry) <= known, entry
    kind = KINDS[entry["kind"]]
    name = rust_string(entry["name"])
    if kind == "Tensor":
        set_name, members = dtype_set(entry.get("dtypes", []))
        sets[set_name] = members
        text = f"tensor({name}, {set_name})"
    else:
        assert not entry.get("dtypes"), entry
        text = f"other({name}, Kind::{kind})"
    if entry.get("type_domain"):
        text += f".domain({rust_string(entry['type_domain'])})"
    if entry["const"]:
        text += ".constant()"
    if entry["optional"]:
        text += ".optional()"
    if entry.get("default") is not None:
        assert entry["optional"], entry
        text += f".default({default_value(entry['default'])})"
    return text


def variant(op, index, entry, sets):
    results = RESULTS.get(op, ["Exactly(1)"])
    results = results[index] if len(results) > 1 else results[0]
    in_attributes = op == "const" or (op.startswith("constexpr_") and entry["since"] == "ios16")
    parameters = ", ".join(parameter(each, sets) for each in entry["inputs"])
    return (
        f"variant(Opset::{OPSETS[entry['since']]}, Results::{results}, &[{parameters}])"
        + (".in_attributes()" if in_attributes else "")
    )


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        dump = json.load(file)
    ops = dict(dump["core"])
    assert not set(ops) & set(ON_DISK_ONLY)
    ops.update(ON_DISK_ONLY)
    sets = {}
    entries = []
    for op in sorted(ops):
        variants = ", ".join(
            variant(op, index, entry, sets) for index, entry in enumerate(ops[op])
        )
        entries.append(f"OpEntry {{ name: {rust_string(op)}, variants: &[{variants}] }},")
    lines = [
        "//! The op types of Core ML, their variants and parameters, as one constant table.",
        "//!",
        "//! Generated by `scripts/generate_registry.py` from the op registry of coremltools",
        f"//! {dump['coremltools']}; do not edit. `write_state`, which exists on disk only, is added by the script.",
        "",
        "use super::DefaultValue::{Absent, AllAxes, Bool, Float, FloatLikeX, IndexPerBox, Int, "
        "OnesPerSpatialDim, Str, ZeroPerOutputChannel, ZerosPerSpatialSide};",
        "use super::{Kind, OpEntry, Results, other, tensor, variant};",
        "use crate::ir::types::DType;",
        "use crate::ir::Opset;",
        "",
    ]
    for name in sorted(sets):
        members = ", ".join(f"DType::{RUST[word]}" for word in sets[name])
        lines.append(f"const {name}: &[DType] = &[{members}];")
    lines += ["", "/// All op types, sorted by name.", "pub(super) static OPS: &[OpEntry] = &["]
    lines += entries + ["];", ""]
    formatted = subprocess.run(
        ["rustfmt", "--edition", "2024", "--emit", "stdout"],
        input="\n".join(lines),
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    sys.stdout.write(formatted.stdout)


if __name__ == "__main__":
    main()
