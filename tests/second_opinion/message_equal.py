#!/usr/bin/env python3
"""Are two packages the same, with coremltools parsing both models?

    python message_equal.py BEFORE AFTER
    python message_equal.py --pairs LIST [--jobs N]     LIST: BEFORE<tab>AFTER a line, or - for standard input

The models must be equal message by message; every other file, weights and manifest included, byte for
byte. Prints one JSON object a pair: {"before", "after", "difference"}, where the difference is null or
names the first one found. Exit status: 0 all equal, 1 some differ, 2 could not run.
"""

import argparse
import filecmp
import json
import pathlib
import struct
import sys

import reading

MAX_SHOWN = 80


def first_difference(a, b, place: str) -> str | None:
    """Where two messages of one type differ first, as a path of field names; None if they do not."""
    fields_a = {field.name: (field, value) for field, value in a.ListFields()}
    fields_b = {field.name: (field, value) for field, value in b.ListFields()}
    for name in sorted(fields_a.keys() | fields_b.keys()):
        here = f"{place}.{name}"
        if name not in fields_b:
            return f"{here}: only before"
        if name not in fields_a:
            return f"{here}: only after"
        field, x = fields_a[name]
        found = field_difference(field, x, fields_b[name][1], here)
        if found:
            return found
    return None


def field_difference(field, x, y, place: str) -> str | None:
    """The same for the values of one field: single, repeated or map."""
    if hasattr(x, "keys"):
        for key in sorted(x.keys() | y.keys()):
            if key not in y or key not in x:
                return f"{place}[{key!r}]: only {'before' if key in x else 'after'}"
            found = value_difference(field.message_type.fields_by_name["value"], x[key], y[key], f"{place}[{key!r}]")
            if found:
                return found
        return None
    if hasattr(x, "append") or hasattr(x, "add"):
        if len(x) != len(y):
            return f"{place}: {len(x)} before, {len(y)} after"
        for index, (one, other) in enumerate(zip(x, y)):
            found = value_difference(field, one, other, f"{place}[{index}]")
            if found:
                return found
        return None
    return value_difference(field, x, y, place)


def value_difference(field, x, y, place: str) -> str | None:
    """The same for two single values; floats by their bits."""
    if field.type == field.TYPE_MESSAGE:
        return first_difference(x, y, place)
    if isinstance(x, float):
        same = struct.pack("<d", x) == struct.pack("<d", y)
    else:
        same = x == y
    return None if same else f"{place}: {str(x)[:MAX_SHOWN]!r} before, {str(y)[:MAX_SHOWN]!r} after"


def model_difference(before: pathlib.Path, after: pathlib.Path) -> str | None:
    """The first difference between the root models of two packages."""
    a, b = reading.parsed(before), reading.parsed(after)
    if a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True):
        return None
    # What the walk cannot see: fields that the schema does not know, payloads of signalling NaNs.
    return first_difference(a, b, "Model") or "Model: unknown fields or bits of a number"


def difference(before: pathlib.Path, after: pathlib.Path) -> str | None:
    """The first difference between two packages."""
    files_before, files_after = reading.files_of(before), reading.files_of(after)
    root_before = reading.root_path(before).relative_to(before).as_posix()
    root_after = reading.root_path(after).relative_to(after).as_posix()
    if root_before != root_after:
        return f"root model: {root_before} before, {root_after} after"
    for path in sorted(files_before.keys() | files_after.keys()):
        if path not in files_after:
            return f"{path}: only before"
        if path not in files_before:
            return f"{path}: only after"
        if path != root_before and not filecmp.cmp(files_before[path], files_after[path], shallow=False):
            return f"{path}: other bytes"
    return model_difference(before, after)


def compare(pair: list[pathlib.Path]) -> dict:
    """One pair as a line of output; what cannot be read counts as a difference."""
    before, after = pair
    try:
        found = difference(before, after)
    except Exception as error:  # noqa: BLE001 - any failure of one pair must not end the batch
        found = f"{type(error).__name__}: {error}"
    return {"before": str(before), "after": str(after), "difference": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", nargs="?", type=pathlib.Path)
    parser.add_argument("after", nargs="?", type=pathlib.Path)
    parser.add_argument("--pairs", metavar="LIST")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if (options.pairs is None) == (options.after is None):
        parser.error("give BEFORE and AFTER, or --pairs LIST")
    todo = reading.jobs(options.pairs) if options.pairs else [[options.before, options.after]]
    if any(len(job) != 2 for job in todo):
        parser.error("each line of the list must be BEFORE<tab>AFTER")
    all_equal = True
    for line in reading.run(compare, todo, options.jobs):
        all_equal &= line["difference"] is None
        print(json.dumps(line, ensure_ascii=False), flush=True)
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
