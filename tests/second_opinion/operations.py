"""What the operations of a program compute, in numpy and float64: written from their definitions, for evaluate.py.

Each function takes the operation's arguments by name and gives its result, or a list of them. Floats are
float64 whatever the declared type; `cast` rounds, because rounding is what it means. Integers keep their
width.
"""

import math

import numpy as np

# By the word that `cast` takes.
ROUNDING = {
    "fp16": np.float16,
    "fp32": np.float32,
    "int32": np.int32,
    "int16": np.int16,
    "uint16": np.uint16,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.bool_,
}

OPERATIONS: dict = {}


def operation(function):
    """Registers a function under its own name, without the underscore that keeps it off a Python word."""
    OPERATIONS[function.__name__.rstrip("_")] = function
    return function


def wide(array):
    """Floats as float64, the rest as it is."""
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def unary(name: str, function) -> None:
    OPERATIONS[name] = lambda x: wide(function(np.asarray(x)))


def binary(name: str, function) -> None:
    OPERATIONS[name] = lambda x, y: wide(function(np.asarray(x), np.asarray(y)))


def quotient(x, y):
    """Integers divide towards zero and stay integers."""
    if x.dtype.kind == "f" or y.dtype.kind == "f":
        return x / y
    return np.trunc(x / y).astype(x.dtype)


for _name, _function in {
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "exp": np.exp,
    "floor": np.floor,
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sign": np.sign,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sin": np.sin,
    "softplus": lambda x: np.logaddexp(x, 0),
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
    "logical_not": np.logical_not,
    "shape": lambda x: np.array(x.shape, np.int32),
}.items():
    unary(_name, _function)

for _name, _function in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "real_div": quotient,
    "floor_div": np.floor_divide,
    "mod": np.mod,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}.items():
    binary(_name, _function)


@operation
def rsqrt(x, epsilon=1e-12):
    return 1 / np.sqrt(x + epsilon)


@operation
def inverse(x, epsilon=1e-4):
    return 1 / (x + epsilon)


@operation
def log(x, epsilon=1e-45):
    return np.log(x + epsilon)


@operation
def clip(x, alpha, beta):
    return np.clip(x, alpha, beta)


@operation
def elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(x))


@operation
def leaky_relu(x, alpha=0.01):
    return np.where(x >= 0, x, alpha * x)


@operation
def thresholded_relu(x, alpha=1.0):
    return np.where(x >= alpha, x, 0.0)


@operation
def sigmoid_hard(x, alpha=0.2, beta=0.5):
    return np.clip(alpha * x + beta, 0, 1)


@operation
def gelu(x, mode="EXACT"):
    if mode == "EXACT":
        return 0.5 * x * (1 + OPERATIONS["erf"](x / math.sqrt(2)))
    if mode == "TANH_APPROXIMATION":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-1.702 * x))


@operation
def cast(x, dtype):
    x, target = np.asarray(x), ROUNDING[dtype]
    if np.dtype(target).kind in "iu" and x.dtype.kind == "f":
        limits = np.iinfo(target)
        return np.clip(np.trunc(x), limits.min, limits.max).astype(target)
    with np.errstate(over="ignore"):
        return wide(x.astype(target))


@operation
def select(cond, a, b):
    return np.where(cond, a, b)


def reduction(name: str, function) -> None:
    def reduce(x, axes=None, keep_dims=False):
        axis = None if axes is None else tuple(int(one) for one in np.atleast_1d(axes))
        return wide(np.asarray(function(x, axis=axis, keepdims=bool(keep_dims))).astype(x.dtype))

    OPERATIONS[name] = reduce


def log_sum_exp(x, axis, keepdims):
    top = x.max(axis=axis, keepdims=True)
    total = np.log(np.exp(x - top).sum(axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis=axis)


for _name, _function in {
    "reduce_mean": np.mean,
    "reduce_sum": np.sum,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_log_sum_exp": log_sum_exp,
    "reduce_l2_norm": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
    "reduce_sum_square": lambda x, axis, keepdims: np.sum(x * x, axis=axis, keepdims=keepdims),
}.items():
    reduction(_name, _function)


@operation
def softmax(x, axis=-1):
    raised = np.exp(x - x.max(axis=int(axis), keepdims=True))
    return raised / raised.sum(axis=int(axis), keepdims=True)


@operation
def layer_norm(x, axes=(-1,), gamma=None, beta=None, epsilon=1e-5):
    axes = tuple(int(axis) for axis in np.atleast_1d(axes))
    result = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    shape = [1] * x.ndim
    for axis in axes:
        shape[axis] = x.shape[axis]
    if gamma is not None:
        result = result * np.reshape(gamma, shape)
    return result if beta is None else result + np.reshape(beta, shape)


@operation
def batch_norm(x, mean, variance, gamma=None, beta=None, epsilon=1e-5):
    shape = [1, -1] + [1] * (x.ndim - 2)
    result = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + epsilon)
    if gamma is not None:
        result = result * gamma.reshape(shape)
    return result if beta is None else result + beta.reshape(shape)


@operation
def matmul(x, y, transpose_x=False, transpose_y=False):
    return (np.swapaxes(x, -1, -2) if transpose_x else x) @ (np.swapaxes(y, -1, -2) if transpose_y else y)


@operation
def linear(x, weight, bias=0.0):
    return x @ weight.T + bias


@operation
def scaled_dot_product_attention(query, key, value, attn_mask=None):
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    return softmax(scores) @ value


@operation
def reshape(x, shape):
    return x.reshape([x.shape[index] if size == 0 else int(size) for index, size in enumerate(shape)])


@operation
def transpose(x, perm):
    return np.transpose(x, [int(axis) for axis in perm])


@operation
def expand_dims(x, axes):
    return np.expand_dims(x, tuple(int(axis) for axis in np.atleast_1d(axes)))


@operation
def squeeze(x, axes=None):
    return np.squeeze(x, None if axes is None else tuple(int(axis) for axis in np.atleast_1d(axes)))


@operation
def concat(values, axis, interleave=False):
    # Scalars are joined like vectors of one element.
    values = [np.atleast_1d(value) for value in values]
    if not interleave:
        return np.concatenate(values, int(axis))
    stacked = np.stack(values, int(axis) % values[0].ndim + 1)
    shape = list(values[0].shape)
    shape[int(axis)] *= len(values)
    return stacked.reshape(shape)


@operation
def stack(values, axis):
    return np.stack(values, int(axis))


@operation
def split(x, axis, num_splits=None, split_sizes=None):
    if split_sizes is None:
        return np.split(x, int(num_splits), int(axis))
    return np.split(x, np.cumsum(split_sizes)[:-1], int(axis))


@operation
def tile(x, reps):
    return np.tile(x, [int(one) for one in reps])


def region(x, begin, end, stride=None, begin_mask=None, end_mask=None, squeeze_mask=None):
    """What slice_by_index and slice_update mean by their numbers."""

    def masked(mask, axis):
        return mask is not None and bool(mask[axis])

    where = []
    for axis in range(x.ndim):
        first, last = int(begin[axis]), int(end[axis])
        step = 1 if stride is None else int(stride[axis])
        if masked(squeeze_mask, axis):
            where.append(first)
            continue
        start = None if masked(begin_mask, axis) else first
        # An end that counts from the back and is reached from the front, -1 with step -1, has no other form.
        where.append(slice(start, None if masked(end_mask, axis) else last, step))
    return tuple(where)


@operation
def slice_by_index(x, **numbers):
    return x[region(x, **numbers)]


@operation
def slice_by_size(x, begin, size):
    return x[tuple(slice(int(b), None if s == -1 else int(b) + int(s)) for b, s in zip(begin, size))]


@operation
def slice_update(x, update, **numbers):
    result = x.copy()
    result[region(x, **numbers)] = update
    return result


@operation
def gather(x, indices, axis=0, batch_dims=0, validate_indices=False):
    del validate_indices
    if batch_dims:
        rows = [gather(one, each, int(axis) - 1 if axis > 0 else axis, batch_dims - 1) for one, each in zip(x, indices)]
        return np.stack(rows)
    return np.take(x, indices, int(axis))


@operation
def scatter(data, indices, updates, axis=0, mode="add", validate_indices=False):
    del validate_indices
    result = np.moveaxis(data.copy(), int(axis), 0)
    updates = np.moveaxis(updates, int(axis), 0)
    if mode == "add":
        np.add.at(result, indices, updates)
    elif mode == "update":
        result[indices] = updates
    else:
        raise NotImplementedError(f"scatter, mode {mode}")
    return np.moveaxis(result, 0, int(axis))


@operation
def pad(x, pad, mode="constant", constant_val=0.0):
    pairs = np.asarray(pad).reshape(-1, 2)
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + [tuple(int(one) for one in pair) for pair in pairs]
    if mode == "constant":
        return np.pad(x, pairs, constant_values=constant_val)
    return np.pad(x, pairs, mode={"reflect": "reflect", "replicate": "edge"}[mode])


@operation
def one_hot(indices, one_hot_vector_size, axis=-1, on_value=1, off_value=0):
    hit = indices[..., None] == np.arange(int(one_hot_vector_size))
    result = wide(np.where(hit, on_value, off_value))
    return np.moveaxis(result, -1, int(axis))


def padding(size, window, stride, pad_type, numbers, axis):
    """Zeros before and after one spatial axis."""
    if pad_type == "custom":
        return int(numbers[2 * axis]), int(numbers[2 * axis + 1])
    if pad_type == "valid":
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    low = total // 2
    return (low, total - low) if pad_type == "same" else (total - low, low)


def windows(x, kernel, strides, dilations, pad_type, numbers, fill):
    """For each position in the window, its offset and the elements that it meets in every window."""
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations)]
    pairs = [padding(x.shape[2 + a], spans[a], strides[a], pad_type, numbers, a) for a in range(len(kernel))]
    x = np.pad(x, [(0, 0), (0, 0), *pairs], constant_values=fill)
    sizes = [(x.shape[2 + a] - spans[a]) // strides[a] + 1 for a in range(len(kernel))]
    for offset in np.ndindex(*kernel):
        cut = [
            slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, n, s in zip(offset, dilations, sizes, strides)
        ]
        yield offset, x[(slice(None), slice(None), *cut)]


@operation
def conv(x, weight, bias=None, strides=None, pad_type="valid", pad=None, dilations=None, groups=1):
    kernel, groups = weight.shape[2:], int(groups)
    ones = np.ones(len(kernel), int)
    strides, dilations = ones if strides is None else strides, ones if dilations is None else dilations
    blocks = weight.reshape(groups, -1, *weight.shape[1:])
    result = 0.0
    for offset, met in windows(x, kernel, strides, dilations, pad_type, pad, 0.0):
        met = met.reshape(met.shape[0], groups, -1, *met.shape[2:])
        result = result + np.einsum("ngc...,goc->ngo...", met, blocks[(..., *offset)])
    result = result.reshape(result.shape[0], -1, *result.shape[3:])
    return result if bias is None else result + bias.reshape([1, -1] + [1] * len(kernel))


@operation
def conv_transpose(x, weight, bias=None, strides=None, pad_type="valid", pad=None, dilations=None, groups=1, output_shape=None):
    if pad_type not in ("valid", "custom"):
        raise NotImplementedError(f"conv_transpose, padding {pad_type}")
    kernel, groups, count = weight.shape[2:], int(groups), x.ndim - 2
    strides = [1] * count if strides is None else [int(one) for one in strides]
    dilations = [1] * count if dilations is None else [int(one) for one in dilations]
    sizes = [(x.shape[2 + a] - 1) * strides[a] + (kernel[a] - 1) * dilations[a] + 1 for a in range(count)]
    blocks = weight.reshape(groups, -1, *weight.shape[1:])
    parts = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    result = np.zeros((x.shape[0], groups, weight.shape[1], *sizes))
    for offset in np.ndindex(*kernel):
        cut = tuple(
            slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, n, s in zip(offset, dilations, x.shape[2:], strides)
        )
        result[(..., *cut)] += np.einsum("ngc...,gco->ngo...", parts, blocks[(..., *offset)])
    result = result.reshape(x.shape[0], -1, *sizes)
    if pad_type == "custom":
        result = result[(..., *(slice(int(pad[2 * a]), sizes[a] - int(pad[2 * a + 1])) for a in range(count)))]
    if output_shape is not None and result.shape[2:] != tuple(int(one) for one in output_shape)[-count:]:
        raise NotImplementedError("conv_transpose, an output shape of its own")
    return result if bias is None else result + bias.reshape([1, -1] + [1] * count)


@operation
def max_pool(x, kernel_sizes, strides=None, pad_type="valid", pad=None, ceil_mode=False):
    kernel = [int(size) for size in kernel_sizes]
    ones = np.ones(len(kernel), int)
    strides = ones if strides is None else strides
    if ceil_mode:
        if pad_type != "valid" and np.any(pad):
            raise NotImplementedError(f"max_pool, ceil_mode with padding {pad_type}")
        more = [-(size - window) % int(step) for size, window, step in zip(x.shape[2:], kernel, strides)]
        x = np.pad(x, [(0, 0), (0, 0), *((0, one) for one in more)], constant_values=-np.inf)
        pad_type = "valid"
    result = -np.inf
    for _, met in windows(x, kernel, strides, ones, pad_type, pad, -np.inf):
        result = np.maximum(result, met)
    return result


@operation
def space_to_batch(x, block_shape, paddings):
    batch, channels = x.shape[:2]
    high, low = (int(one) for one in block_shape)
    x = np.pad(x, [(0, 0), (0, 0), *(tuple(int(one) for one in pair) for pair in paddings)])
    x = x.reshape(batch, channels, x.shape[2] // high, high, x.shape[3] // low, low)
    return x.transpose(3, 5, 0, 1, 2, 4).reshape(high * low * batch, channels, x.shape[2], x.shape[4])


@operation
def batch_to_space(x, block_shape, crops):
    (high, low), (_, channels, rows, columns) = (int(one) for one in block_shape), x.shape
    x = x.reshape(high, low, -1, channels, rows, columns).transpose(2, 3, 4, 0, 5, 1)
    x = x.reshape(x.shape[0], channels, rows * high, columns * low)
    (top, bottom), (left, right) = ((int(one) for one in pair) for pair in crops)
    return x[:, :, top : x.shape[2] - bottom, left : x.shape[3] - right]


def along(parameter, x, axis):
    """A parameter of one number, or of one for each element of an axis, in a shape that fits x."""
    if np.ndim(parameter) == 0:
        return parameter
    shape = [1] * x.ndim
    shape[int(axis)] = -1
    return np.reshape(parameter, shape)


@operation
def quantize(input, scale, output_dtype, zero_point=0, axis=0):
    target = ROUNDING[output_dtype]
    limits = np.iinfo(target)
    levels = np.rint(input / along(scale, input, axis)) + along(np.asarray(zero_point, np.int32), input, axis)
    return np.clip(levels, limits.min, limits.max).astype(target)


@operation
def dequantize(input, scale, zero_point=0, axis=0):
    return (input.astype(np.int32) - along(np.asarray(zero_point, np.int32), input, axis)) * along(scale, input, axis)


@operation
def make_list(init_length, elem_shape=None, dtype=None, dynamic_length=True):
    del elem_shape, dtype, dynamic_length
    return [None] * int(init_length)


@operation
def list_write(ls, index, value):
    length = max(len(ls), int(index) + 1)
    grown = ls + [None] * (length - len(ls))
    grown[int(index)] = value
    return grown


@operation
def list_scatter(ls, indices, value):
    for index, row in zip(indices, value):
        ls = list_write(ls, index, row)
    return ls


@operation
def list_read(ls, index):
    return ls[int(index)]


@operation
def list_gather(ls, indices):
    return np.stack([ls[int(index)] for index in indices])


@operation
def list_length(ls):
    return np.int32(len(ls))


# Operations whose one result is a list, not several results.
MAKE_LISTS = {"make_list", "list_write", "list_scatter"}
