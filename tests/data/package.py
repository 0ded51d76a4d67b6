"""One test package: its model, weight files, sidecar files and expected numbers, and how it becomes bytes.

Everything is written in a fixed order with fixed uuids, so that the same `Package` always gives the
same files.
"""

import io
import json
import struct
import uuid
import zipfile
from dataclasses import dataclass, field

import numpy as np
from coremltools.proto import Model_pb2

MODEL_DIR = "com.apple.CoreML"
WEIGHTS_DIR = f"{MODEL_DIR}/weights"
DEFAULT_ROOT = f"{MODEL_DIR}/model.mlmodel"
SENTINEL = 0xDEADBEEF
ALIGNMENT = 64


@dataclass
class Item:
    """One entry of Manifest.json with its content: bytes for a file, None for a folder made elsewhere."""

    path: str
    name: str
    description: str
    content: bytes | None
    author: str = "com.apple.CoreML"


@dataclass
class Package:
    """What goes into one `.mlpackage` and the `.npz` files beside it.

    `weights_item` says whether the manifest names a weights folder; None means if there are weights.
    `weights` maps file names below the weights folder to bytes; `numbers` maps a suffix ("" for
    `<name>.npz`, ".calls" for `<name>.calls.npz`) to arrays; `loose` holds files that the manifest
    does not mention, by their path in the package.
    """

    model: Model_pb2.Model
    weights: dict[str, bytes] = field(default_factory=dict)
    numbers: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    root: str = DEFAULT_ROOT
    items: list[Item] = field(default_factory=list)
    loose: dict[str, bytes] = field(default_factory=dict)
    weights_item: bool | None = None

    def files(self, name: str) -> dict[str, bytes]:
        """Every file of the package and beside it: path below `packages/` -> bytes."""
        root = Item(
            self.root,
            self.root.rsplit("/", 1)[1],
            "CoreML Model Specification",
            self.model.SerializeToString(deterministic=True),
        )
        items = [root]
        if bool(self.weights) if self.weights_item is None else self.weights_item:
            items.append(Item(WEIGHTS_DIR, "weights", "CoreML Model Weights", None))
        items += self.items
        top = f"{name}.mlpackage"
        files = {f"{top}/Manifest.json": manifest(name, items, root)}
        for item in items:
            if item.content is not None:
                files[f"{top}/Data/{item.path}"] = item.content
        for file, data in self.weights.items():
            files[f"{top}/Data/{WEIGHTS_DIR}/{file}"] = data
        for path, data in self.loose.items():
            files[f"{top}/{path}"] = data
        for suffix, arrays in self.numbers.items():
            files[f"{name}{suffix}.npz"] = npz(arrays)
        return files


def manifest(name: str, items: list[Item], root: Item) -> bytes:
    """Manifest.json as Core ML's tools lay it out: four spaces, sorted keys."""

    def identifier(item: Item) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"milwright/{name}/{item.path}"))

    entries = {
        identifier(item): {
            "author": item.author,
            "description": item.description,
            "name": item.name,
            "path": item.path,
        }
        for item in items
    }
    document = {
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": entries,
        "rootModelIdentifier": identifier(root),
    }
    return (json.dumps(document, indent=4, sort_keys=True) + "\n").encode()


def npz(arrays: dict[str, np.ndarray]) -> bytes:
    """An `.npz` without dates: numpy would stamp each member with the time of writing."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for key in sorted(arrays):
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(arrays[key]), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{key}.npy", (1980, 1, 1, 0, 0, 0)), member.getvalue())
    return out.getvalue()


class BlobFile:
    """A weight file (MIL blob storage, version 2), built by hand.

    Needed where coremltools has no writer for the type, or where the layout itself is under test.
    """

    FLOAT16, FLOAT32, UINT8, INT8, BFLOAT16 = 1, 2, 3, 4, 5

    def __init__(self) -> None:
        self.data = bytearray(ALIGNMENT)
        self.count = 0

    def add(self, dtype: int, data: bytes, padding_bits: int = 0) -> int:
        """Appends one blob; the result is the offset of its metadata record."""
        self.data += bytes(-len(self.data) % ALIGNMENT)
        offset = len(self.data)
        self.data += struct.pack("<IIQQQ", SENTINEL, dtype, len(data), offset + ALIGNMENT, padding_bits)
        self.data += bytes(ALIGNMENT - 32) + data
        self.count += 1
        return offset

    def bytes(self) -> bytes:
        """The whole file."""
        self.data[:8] = struct.pack("<II", self.count, 2)
        return bytes(self.data)
