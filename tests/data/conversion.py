"""From a program built with coremltools' builder to a `Package`, without coremltools' graph passes.

The default pipelines would tidy away the very patterns that the packages are for.
"""

import functools
import pathlib
import shutil
import tempfile

import coremltools as ct
import numpy as np
from coremltools.converters.mil.mil import Builder as mb

from package import Package

# The converter stamps the day of conversion here.
DATE_KEY = "com.github.apple.coremltools.conversion_date"


def registry(packages: dict):
    """A decorator that enters a function into `packages` and gives it a fresh builder and seed."""

    def register(function):
        @functools.wraps(function)
        def run() -> Package:
            mb.name_count.clear()
            return function()

        packages[function.__name__] = run
        return run

    return register


def converted(program, target, passes: bool = False, **options) -> Package:
    """Converts `program`; `passes` runs only those passes that make it fit for the file format."""
    program.skip_all_passes = not passes
    model = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=target,
        compute_precision=ct.precision.FLOAT32,
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
        **options,
    )
    return from_model(model)


def from_model(model: ct.models.MLModel) -> Package:
    """The specification and weight files of a model that coremltools holds."""
    spec = model.get_spec()
    spec.description.metadata.userDefined.pop(DATE_KEY, None)
    package = Package(spec, weights_of(pathlib.Path(model.weights_dir)))
    temporary = pathlib.Path(model.package_path)
    if temporary.is_relative_to(tempfile.gettempdir()):
        shutil.rmtree(temporary, ignore_errors=True)
    return package


def weights_of(folder: pathlib.Path) -> dict[str, bytes]:
    """Name and content of each file in a weights folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def expect(package: Package, inputs: dict, outputs: dict, call: str = "") -> Package:
    """Stores inputs and expected outputs: `in_<name>`, `out_<position>_<name>`, later calls `s<k>_…`.

    Outputs are computed in float64 from the stored inputs and weights and kept as float32.
    """
    arrays = package.numbers.setdefault("", {})
    for name, value in inputs.items():
        arrays[f"{call}in_{name}"] = np.asarray(value)
    for position, (name, value) in enumerate(outputs.items()):
        value = np.asarray(value)
        if value.dtype == np.float64:
            value = value.astype(np.float32)
        arrays[f"{call}out_{position}_{name}"] = value
    return package
