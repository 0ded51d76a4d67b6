"""Writes coremltools' description of the model format to the file named on the command line.

The file holds one encoded google.protobuf.FileDescriptorSet: Model.proto and all that it imports.
"""

import sys

from coremltools.proto import Model_pb2
from google.protobuf import descriptor_pb2


def add(descriptor, files):
    """Adds a file behind the files that it imports, each once."""
    if any(file.name == descriptor.name for file in files.file):
        return
    for imported in descriptor.dependencies:
        add(imported, files)
    descriptor.CopyToProto(files.file.add())


def main():
    files = descriptor_pb2.FileDescriptorSet()
    add(Model_pb2.DESCRIPTOR, files)
    with open(sys.argv[1], "wb") as out:
        out.write(files.SerializeToString())


main()
