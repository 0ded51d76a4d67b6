"""Packages about the model around the program: kinds of model, interfaces, metadata, package layout."""

import json
import pathlib
import tempfile

import coremltools as ct
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, get_new_symbol, types
from coremltools.models.neural_network import NeuralNetworkBuilder
from coremltools.proto import FeatureTypes_pb2, Model_pb2

from conversion import converted, expect, from_model, registry, weights_of
from package import MODEL_DIR, BlobFile, Item, Package

PACKAGES: dict = {}
package = registry(PACKAGES)

WIDTH = 12


def dense(seed: int, target=ct.target.iOS16, rows: int = 2, name: str = "y", source: str = "x"):
    """A program with one linear layer and a square, fp32, [rows, 12] -> [rows, 12]; and its weights."""
    weight = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    bias = np.linspace(-1, 1, WIDTH).astype(np.float32)

    inputs = {source: mb.placeholder((rows, WIDTH), types.fp32)}
    program = Program()
    with Function(inputs, opset_version=target) as function:
        flat = mb.linear(x=function.inputs[source], weight=weight, bias=bias, name=f"{name}_linear")
        function.set_outputs([mb.pow(x=flat, y=np.float32(2), name=name)])
    program.add_function("main", function)
    return program, lambda x: (x.astype(np.float64) @ weight.astype(np.float64).T + bias.astype(np.float64)) ** 2


def dense_package(seed: int = 20, target=ct.target.iOS16) -> Package:
    """`dense` as a package with its numbers."""
    program, formula = dense(seed, target)
    made = converted(program, target)
    x = np.random.default_rng(seed + 1).standard_normal((2, WIDTH)).astype(np.float32)
    return expect(made, {"x": x}, {"y": formula(x)})


def mlmodel(program, target) -> ct.models.MLModel:
    """The converted model itself, for coremltools functions that take models."""
    program.skip_all_passes = True
    return ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=target,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )


@package
def multifunction() -> Package:
    """two functions (CoreML8) of different lengths that share their weight blobs; the default function is the second"""
    with tempfile.TemporaryDirectory() as folder:
        descriptor = ct.utils.MultiFunctionDescriptor()
        for name, rows in [("prefill", 4), ("decode", 1)]:
            path = f"{folder}/{name}.mlpackage"
            program, formula = dense(21, ct.target.iOS18, rows)
            mlmodel(program, ct.target.iOS18).save(path)
            descriptor.add_function(path, "main", name)
        descriptor.default_function_name = "decode"
        ct.utils.save_multifunction(descriptor, f"{folder}/both.mlpackage")
        data = pathlib.Path(folder, "both.mlpackage", "Data", MODEL_DIR)
        model = Model_pb2.Model.FromString((data / "model.mlmodel").read_bytes())
        made = Package(model, weights_of(data / "weights"))
    made.model.description.metadata.userDefined.clear()
    for name, rows in [("prefill", 4), ("decode", 1)]:
        x = np.random.default_rng(22).standard_normal((rows, WIDTH)).astype(np.float32)
        made.numbers[f".{name}"] = {"in_x": x, "out_0_y": formula(x).astype(np.float32)}
    return made


@package
def image_input() -> Package:
    """an RGB image of flexible size, scaled and biased by the converter, and a grayscale fp16 image of enumerated sizes; an image output"""
    weight = np.random.default_rng(23).standard_normal((3, 3, 1, 1)).astype(np.float32)

    height, width, side, other_side = (get_new_symbol() for _ in range(4))

    @mb.program(
        input_specs=[
            mb.TensorSpec((1, 3, height, width), types.fp32),
            mb.TensorSpec((1, 1, side, other_side), types.fp16),
        ],
        opset_version=ct.target.iOS17,
    )
    def program(image, gray):
        mixed = mb.conv(x=image, weight=weight, name="mixed")
        level = mb.reduce_mean(x=gray, axes=[2, 3], keep_dims=True, name="level")
        bright = mb.cast(x=mb.pow(x=level, y=np.float16(2), name="level_squared"), dtype="fp32", name="bright")
        return mb.add(x=mixed, y=bright, name="y")

    made = converted(
        program,
        ct.target.iOS17,
        passes=True,
        inputs=[
            ct.ImageType(
                name="image",
                shape=(1, 3, ct.RangeDim(8, 64, default=16), ct.RangeDim(8, 64, default=24)),
                color_layout=ct.colorlayout.RGB,
                scale=1 / 127.5,
                bias=[-1, -1, -1],
            ),
            ct.ImageType(
                name="gray",
                shape=ct.EnumeratedShapes([(1, 1, 8, 8), (1, 1, 16, 16)], default=(1, 1, 8, 8)),
                color_layout=ct.colorlayout.GRAYSCALE_FLOAT16,
            ),
        ],
    )
    # The converter wants a fixed size for an image output, the format does not.
    output = made.model.description.output[0]
    output.type.Clear()
    image = output.type.imageType
    image.width, image.height = 24, 16
    image.colorSpace = FeatureTypes_pb2.ImageFeatureType.BGR
    image.imageSizeRange.widthRange.lowerBound = image.imageSizeRange.heightRange.lowerBound = 8
    image.imageSizeRange.widthRange.upperBound = image.imageSizeRange.heightRange.upperBound = 64
    return made


@package
def classifier() -> Package:
    """a classifier with five string labels (one with a quote, one not ASCII): classify op, dictionary output, predicted feature names"""
    weight = np.random.default_rng(24).standard_normal((5, WIDTH)).astype(np.float32)

    @mb.program(input_specs=[mb.TensorSpec((1, WIDTH), types.fp32)], opset_version=ct.target.iOS15)
    def program(x):
        square = mb.pow(x=x, y=np.float32(2), name="square")
        return mb.softmax(x=mb.linear(x=square, weight=weight, name="logits"), axis=-1, name="probabilities")

    labels = ["cat", "dog", 'the "other" one', "größer", ""]
    return converted(
        program,
        ct.target.iOS15,
        passes=True,
        classifier_config=ct.ClassifierConfig(labels, predicted_feature_name="kind"),
    )


@package
def multiarray_optional() -> Package:
    """optional inputs with a default value of fp32, of int32, and without default"""

    @mb.program(
        input_specs=[mb.TensorSpec((2, 3), dtype) for dtype in (types.fp32, types.fp32, types.int32, types.fp16)],
        opset_version=ct.target.iOS17,
    )
    def program(x, shift, count, gain):
        moved = mb.add(x=mb.pow(x=x, y=np.float32(2), name="square"), y=shift, name="moved")
        scaled = mb.mul(x=moved, y=mb.cast(x=count, dtype="fp32", name="count_wide"), name="scaled")
        return mb.mul(x=scaled, y=mb.cast(x=gain, dtype="fp32", name="gain_wide"), name="y")

    made = converted(
        program,
        ct.target.iOS17,
        passes=True,
        inputs=[
            ct.TensorType(name="x", shape=(2, 3)),
            ct.TensorType(name="shift", shape=(2, 3), default_value=np.full((2, 3), 0.5, np.float32)),
            ct.TensorType(name="count", shape=(2, 3), dtype=np.int32),
            ct.TensorType(name="gain", shape=(2, 3), dtype=np.float16),
        ],
    )
    inputs = made.model.description.input
    inputs[2].type.isOptional = inputs[3].type.isOptional = True
    inputs[2].type.multiArrayType.intDefaultValue = 0  # present, although it is the field's default
    return made


@package
def pipeline() -> Package:
    """a pipeline of two programs, each with its own weight file"""
    models = []
    for seed, source, name in [(25, "x", "middle"), (26, "middle", "y")]:
        program, _ = dense(seed, ct.target.iOS16, 2, name, source)
        models.append(mlmodel(program, ct.target.iOS16))
    made = from_model(ct.utils.make_pipeline(*models))
    for inner in made.model.pipeline.models:
        inner.description.metadata.userDefined.clear()
    return made


@package
def pipeline_nms() -> Package:
    """an object detector: a pipeline with an image input whose second stage is a non-maximum-suppression model, with names and metadata"""
    boxes, kinds = 6, 3
    generator = np.random.default_rng(27)
    coordinates = generator.uniform(0, 1, (boxes, 4)).astype(np.float32)
    weight = generator.standard_normal((boxes * kinds, 12)).astype(np.float32)

    @mb.program(input_specs=[mb.TensorSpec((1, 3, 2, 2), types.fp32)], opset_version=ct.target.iOS15)
    def program(image):
        flat = mb.reshape(x=mb.pow(x=image, y=np.float32(2), name="square"), shape=[1, 12], name="flat")
        scores = mb.sigmoid(x=mb.linear(x=flat, weight=weight, name="scores"), name="certain")
        confidence = mb.reshape(x=scores, shape=[boxes, kinds], name="raw_confidence")
        places = mb.mul(x=mb.const(val=coordinates, name="places"), y=np.float32(1), name="raw_coordinates")
        return confidence, places

    detector = converted(
        program,
        ct.target.iOS15,
        passes=True,
        inputs=[ct.ImageType(name="image", shape=(1, 3, 2, 2), color_layout=ct.colorlayout.RGB)],
    )
    model = Model_pb2.Model(specificationVersion=detector.model.specificationVersion)
    stage = Model_pb2.Model(specificationVersion=detector.model.specificationVersion)
    for name, width in [("raw_confidence", kinds), ("raw_coordinates", 4)]:
        outer = stage.description.input.add(name=name)
        outer.type.multiArrayType.shape.extend([boxes, width])
        outer.type.multiArrayType.dataType = FeatureTypes_pb2.ArrayFeatureType.FLOAT32
    for name, width in [("confidence", kinds), ("coordinates", 4)]:
        outer = stage.description.output.add(name=name, shortDescription=f"boxes × {width}")
        outer.type.multiArrayType.dataType = FeatureTypes_pb2.ArrayFeatureType.FLOAT32
        for upper in (-1, width):
            outer.type.multiArrayType.shapeRange.sizeRanges.add(lowerBound=max(upper, 0), upperBound=upper)
    suppression = stage.nonMaximumSuppression
    suppression.confidenceInputFeatureName = "raw_confidence"
    suppression.coordinatesInputFeatureName = "raw_coordinates"
    suppression.confidenceOutputFeatureName = "confidence"
    suppression.coordinatesOutputFeatureName = "coordinates"
    suppression.iouThresholdInputFeatureName = "iouThreshold"
    suppression.confidenceThresholdInputFeatureName = "confidenceThreshold"
    suppression.iouThreshold, suppression.confidenceThreshold = 0.45, 0.25
    suppression.pickTop.perClass = True
    suppression.stringClassLabels.vector.extend(["person", "bicycle", "car"])
    model.pipeline.models.extend([detector.model, stage])
    model.pipeline.names.extend(["detector", "suppression"])
    model.description.input.extend(detector.model.description.input)
    for name in ("iouThreshold", "confidenceThreshold"):
        optional = model.description.input.add(name=name, shortDescription="(optional) override")
        optional.type.doubleType.SetInParent()
        optional.type.isOptional = True
    model.description.output.extend(stage.description.output)
    model.description.metadata.author = "The milwright authors"
    model.description.metadata.userDefined["classes"] = "person,bicycle,car"
    return Package(model, detector.weights)


@package
def updatable() -> Package:
    """a program with isUpdatable set and training inputs, which Core ML has no use for and a writer must keep"""
    made = dense_package(28)
    made.model.isUpdatable = True
    training = made.model.description.trainingInput
    training.add().CopyFrom(made.model.description.input[0])
    target = training.add(name="target", shortDescription="what y should be")
    target.type.dictionaryType.stringKeyType.SetInParent()
    series = training.add(name="series")
    series.type.sequenceType.int64Type.SetInParent()
    series.type.sequenceType.sizeRange.upperBound = -1
    return made


@package
def metadata() -> Package:
    """all metadata fields, descriptions of features, user-defined keys (also empty, with newlines, not ASCII)"""
    made = dense_package(29)
    description = made.model.description
    description.metadata.shortDescription = "A layer and a square.\nSecond line."
    description.metadata.versionString = "1.2.3-rc4"
    description.metadata.author = "Zoë Müller <zoe@example.org>"
    description.metadata.license = "MIT OR Apache-2.0"
    description.metadata.userDefined["com.example.labels"] = json.dumps({"a": [1, 2], "ü": "\t"}, ensure_ascii=False)
    description.metadata.userDefined["empty"] = ""
    description.metadata.userDefined[""] = "the key is empty"
    description.metadata.userDefined["模型"] = "键"
    description.input[0].shortDescription = "rows of twelve numbers"
    description.output[0].shortDescription = "squares"
    return made


@package
def no_weights_dir() -> Package:
    """no blobs, and the manifest's weights folder is gone, as Git leaves it"""

    @mb.program(input_specs=[mb.TensorSpec((2, 3), types.fp32)], opset_version=ct.target.iOS15)
    def program(x):
        return mb.pow(x=x, y=np.float32(2), name="y")

    made = converted(program, ct.target.iOS15)
    made.weights_item = True
    x = np.array([[-2, -1, 0], [1, 2, 3]], np.float32)
    return expect(made, {"x": x}, {"y": x**2})


@package
def xcode_layout() -> Package:
    """as Xcode lays a package out: root file named after the model, two sidecars beside it, an item of another author, a file outside Data"""
    made = dense_package(30)
    made.root = f"{MODEL_DIR}/Dense.mlmodel"
    features = {
        "Inputs": {"x": {"MLFeatureShortDescription": "rows"}},
        "Outputs": {"y": {"MLFeatureShortDescription": "squares"}},
    }
    about = {"MLModelAuthorKey": "The milwright authors", "MLModelVersionStringKey": "1"}
    made.items = [
        Item(
            f"{MODEL_DIR}/FeatureDescriptions.json",
            "FeatureDescriptions.json",
            "CoreML Model Feature Descriptions",
            json.dumps(features, indent=2).encode(),
        ),
        Item(
            f"{MODEL_DIR}/Metadata.json",
            "Metadata.json",
            "CoreML Model Metadata",
            json.dumps(about, indent=2).encode(),
        ),
        Item(
            "org.example.tokenizer/vocabulary.txt",
            "vocabulary",
            "Words of the tokenizer",
            "eins\nzwei\n".encode(),
            author="org.example.tokenizer",
        ),
    ]
    made.loose = {"debug_handles.json": b"{}\n"}
    return made


@package
def several_weight_files() -> Package:
    """two weight files; equal data in both, one blob used by two consts, a gap before one blob, and a blob that nothing uses"""
    generator = np.random.default_rng(31)
    weights = [generator.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(2)]

    @mb.program(input_specs=[mb.TensorSpec((2, WIDTH), types.fp32)], opset_version=ct.target.iOS16)
    def program(x):
        for index, weight in enumerate([weights[0], weights[1], weights[0], weights[0]]):
            x = mb.linear(x=x, weight=weight, name=f"layer_{index}")
        return mb.pow(x=x, y=np.float32(2), name="y")

    made = converted(program, ct.target.iOS16)
    first, second = BlobFile(), BlobFile()
    places = {}
    first.add(BlobFile.BFLOAT16, bytes(34))
    places["layer_0_weight_0"] = places["layer_3_weight_0"] = (
        "weight.bin",
        first.add(BlobFile.FLOAT32, weights[0].tobytes()),
    )
    first.data += bytes(200)
    places["layer_1_weight_0"] = ("weight.bin", first.add(BlobFile.FLOAT32, weights[1].tobytes()))
    places["layer_2_weight_0"] = ("extra.bin", second.add(BlobFile.FLOAT32, weights[0].tobytes()))
    zeros = second.add(BlobFile.FLOAT32, bytes(4 * WIDTH))
    block = made.model.mlProgram.functions["main"].block_specializations["CoreML6"]
    for operation in block.operations:
        value = operation.attributes["val"] if operation.type == "const" else None
        if value is not None and value.WhichOneof("value") == "blobFileValue":
            file, offset = places.get(operation.outputs[0].name, ("extra.bin", zeros))
            value.blobFileValue.fileName = f"@model_path/weights/{file}"
            value.blobFileValue.offset = offset
    made.weights = {"weight.bin": first.bytes(), "extra.bin": second.bytes()}
    x = generator.standard_normal((2, WIDTH)).astype(np.float32)
    y = x.astype(np.float64)
    for weight in [weights[0], weights[1], weights[0], weights[0]]:
        y = y @ weight.astype(np.float64).T
    return expect(made, {"x": x}, {"y": y**2})


@package
def neural_network() -> Package:
    """a neural network instead of a program, for the error that it must give"""
    builder = NeuralNetworkBuilder(
        [("x", ct.models.datatypes.Array(3))], [("y", ct.models.datatypes.Array(3))], disable_rank5_shape_mapping=True
    )
    builder.add_unary("square", "x", "y", mode="power", alpha=2.0)
    return Package(builder.spec)
