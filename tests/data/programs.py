"""Packages whose programs coremltools itself writes, with the noise that its default passes would remove."""

import coremltools as ct
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import get_new_symbol, types

from conversion import converted, expect, registry
from package import Package

PACKAGES: dict = {}
package = registry(PACKAGES)


def half(generator: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Seeded normal values, rounded to fp16."""
    return (generator.standard_normal(shape) * scale).astype(np.float16)


def rms_norm(x: np.ndarray, gain: np.ndarray, epsilon: float) -> np.ndarray:
    """x / sqrt(mean(x², last axis) + epsilon) · gain."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * gain


@package
def attention_block() -> Package:
    """fp16 transformer block (CoreML8): RMSNorm through pow, linear q/k/v, sdpa, SwiGLU; cast pairs, no-op reshapes and transposes, equal consts, dead ops, a concat that is sliced apart"""
    tokens, width, heads, hidden = 8, 32, 2, 64
    size = width // heads
    generator = np.random.default_rng(1)
    weight = {
        name: half(generator, rows, columns, scale=columns**-0.5)
        for name, rows, columns in [
            ("q", width, width),
            ("k", width, width),
            ("v", width, width),
            ("o", width, width),
            ("gate", hidden, width),
            ("up", hidden, width),
            ("down", width, hidden),
        ]
    }
    gains = [(1 + half(generator, width, scale=0.1)).astype(np.float16) for _ in range(2)]
    epsilon = np.float16(1e-5)

    def norm(x, gain, name):
        square = mb.pow(x=x, y=np.float16(2), name=f"{name}_square")
        mean = mb.reduce_mean(x=square, axes=[-1], keep_dims=True, name=f"{name}_mean")
        shifted = mb.add(x=mean, y=epsilon, name=f"{name}_shifted")
        inverse = mb.rsqrt(x=shifted, epsilon=np.float32(0), name=f"{name}_inverse")
        return mb.mul(x=mb.mul(x=x, y=inverse), y=gain, name=name)

    @mb.program(
        input_specs=[
            mb.TensorSpec((1, tokens, width), types.fp16),
            mb.TensorSpec((1, 1, tokens, tokens), types.fp16),
        ],
        opset_version=ct.target.iOS18,
    )
    def program(x, mask):
        wide = mb.cast(x=x, dtype="fp32", name="x_wide")
        narrow = mb.cast(x=wide, dtype="fp16", name="x_narrow")
        mb.relu(x=mb.exp(x=narrow, name="unused_exp"), name="unused_relu")
        normed = norm(narrow, gains[0], "norm_1")
        bias = np.zeros(width, np.float16)
        split = {}
        for name in "qkv":
            flat = mb.linear(x=normed, weight=weight[name], bias=bias, name=f"{name}_linear")
            apart = mb.reshape(x=flat, shape=[1, tokens, heads, size], name=f"{name}_heads")
            split[name] = mb.transpose(x=apart, perm=[0, 2, 1, 3], name=name)
        turned = mb.transpose(x=split["k"], perm=[0, 1, 3, 2], name="k_turned")
        key = mb.transpose(x=turned, perm=[0, 1, 3, 2], name="k_back")
        value = mb.reshape(x=split["v"], shape=[1, heads, tokens, size], name="v_same")
        value = mb.cast(x=value, dtype="fp32", name="v_wide")
        value = mb.reshape(x=value, shape=[1, heads, tokens, size], name="v_wide_same")
        value = mb.cast(x=value, dtype="fp16", name="v_narrow")
        attended = mb.scaled_dot_product_attention(
            query=split["q"], key=key, value=value, attn_mask=mask, name="attention"
        )
        together = mb.reshape(
            x=mb.transpose(x=attended, perm=[0, 2, 1, 3]), shape=[1, tokens, width], name="attention_flat"
        )
        residual = mb.add(
            x=narrow, y=mb.linear(x=together, weight=weight["o"], bias=bias, name="o_linear"), name="residual"
        )
        normed = norm(residual, gains[1], "norm_2")
        gate = mb.linear(x=normed, weight=weight["gate"], name="gate_linear")
        up = mb.linear(x=normed, weight=weight["up"], name="up_linear")
        both = mb.concat(values=[gate, up], axis=-1, name="gate_up")
        first = mb.slice_by_index(
            x=both, begin=[0, 0, 0], end=[1, tokens, hidden], end_mask=[True, True, False], name="gate_again"
        )
        second = mb.slice_by_index(
            x=both,
            begin=[0, 0, hidden],
            end=[1, tokens, 2 * hidden],
            end_mask=[True, True, True],
            name="up_again",
        )
        inner = mb.mul(x=mb.silu(x=first, name="silu"), y=second, name="inner")
        down = mb.linear(x=inner, weight=weight["down"], name="down_linear")
        result = mb.add(x=residual, y=down, name="sum")
        result = mb.cast(x=result, dtype="fp32", name="sum_wide")
        return mb.cast(x=result, dtype="fp16", name="y")

    made = converted(program, ct.target.iOS18)
    x = half(generator, 1, tokens, width)
    mask = np.triu(np.full((tokens, tokens), -1e4, np.float16), 1)[None, None]
    w = {name: value.astype(np.float64) for name, value in weight.items()}
    n = rms_norm(x.astype(np.float64), gains[0].astype(np.float64), float(epsilon))
    q, k, v = ((n @ w[name].T).reshape(tokens, heads, size).transpose(1, 0, 2) for name in "qkv")
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(size) + mask[0].astype(np.float64)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    attended = (scores / scores.sum(-1, keepdims=True)) @ v
    residual = x + attended.transpose(1, 0, 2).reshape(1, tokens, width) @ w["o"].T
    n = rms_norm(residual, gains[1].astype(np.float64), float(epsilon))
    gate = n @ w["gate"].T
    result = residual + (gate / (1 + np.exp(-gate)) * (n @ w["up"].T)) @ w["down"].T
    return expect(made, {"x": x, "mask": mask}, {"y": result})


@package
def rmsnorm_ios16() -> Package:
    """two fp16 RMSNorms (CoreML6, where rsqrt's epsilon has x's type): epsilon 1e-3 is a normal fp16 number, 1e-5 is not"""
    generator = np.random.default_rng(2)
    gain = (1 + half(generator, 32, scale=0.1)).astype(np.float16)

    @mb.program(input_specs=[mb.TensorSpec((1, 8, 32), types.fp16)], opset_version=ct.target.iOS16)
    def program(x):
        outputs = []
        for name, epsilon in [("normal", 1e-3), ("subnormal", 1e-5)]:
            square = mb.pow(x=x, y=np.float16(2), name=f"{name}_square")
            mean = mb.reduce_mean(x=square, axes=[-1], keep_dims=True, name=f"{name}_mean")
            shifted = mb.add(x=mean, y=np.float16(epsilon), name=f"{name}_shifted")
            inverse = mb.rsqrt(x=shifted, epsilon=np.float16(0), name=f"{name}_inverse")
            outputs.append(mb.mul(x=mb.mul(x=x, y=inverse), y=gain, name=name))
        return tuple(outputs)

    made = converted(program, ct.target.iOS16)
    x = half(generator, 1, 8, 32)
    wide = x.astype(np.float64), gain.astype(np.float64)
    return expect(
        made,
        {"x": x},
        {
            "normal": rms_norm(*wide, float(np.float16(1e-3))),
            "subnormal": rms_norm(*wide, float(np.float16(1e-5))),
        },
    )


@package
def rmsnorm_fp32() -> Package:
    """fp32 RMSNorm (CoreML5), spelled pow, reduce_mean, add, sqrt, real_div, and once more as pow(…, −0.5)"""
    generator = np.random.default_rng(3)
    gain = generator.standard_normal(32).astype(np.float32)

    @mb.program(input_specs=[mb.TensorSpec((2, 32), types.fp32)], opset_version=ct.target.iOS15)
    def program(x):
        square = mb.pow(x=x, y=np.float32(2), name="square")
        mean = mb.reduce_mean(x=square, axes=[-1], keep_dims=True, name="mean")
        root = mb.sqrt(x=mb.add(x=mean, y=np.float32(1e-6), name="shifted"), name="root")
        divided = mb.mul(x=mb.real_div(x=x, y=root, name="divided"), y=gain, name="by_root")
        inverse = mb.pow(x=mb.add(x=mean, y=np.float32(1e-6), name="shifted_again"), y=np.float32(-0.5))
        reciprocal = mb.real_div(x=np.float32(1), y=root, name="reciprocal")
        return divided, mb.mul(x=x, y=inverse, name="by_pow"), mb.mul(x=x, y=reciprocal, name="by_reciprocal")

    made = converted(program, ct.target.iOS15)
    x = generator.standard_normal((2, 32)).astype(np.float32)
    plain = rms_norm(x.astype(np.float64), np.ones(32), float(np.float32(1e-6)))
    outputs = {"by_root": plain * gain.astype(np.float64), "by_pow": plain, "by_reciprocal": plain}
    return expect(made, {"x": x}, outputs)


@package
def pow_zoo() -> Package:
    """pow with every exponent that a rewrite knows, and those it must leave: 2.5, tensor exponents, a const that broadcasts; int32, fp16, sqrt(pow(x, 2)), exponents behind cast and reshape"""
    exponents = {"m1": -1, "m05": -0.5, "p05": 0.5, "p1": 1, "p2": 2, "p3": 3, "p4": 4, "p25": 2.5}

    @mb.program(
        input_specs=[
            mb.TensorSpec((2, 3), types.fp32),
            mb.TensorSpec((2, 3), types.fp32),
            mb.TensorSpec((2, 3), types.fp32),
            mb.TensorSpec((2, 3), types.int32),
            mb.TensorSpec((2, 3), types.fp16),
        ],
        opset_version=ct.target.iOS17,
    )
    def program(x, signed, exponent, whole, small):
        outputs = [mb.pow(x=x, y=np.float32(value), name=f"pow_{name}") for name, value in exponents.items()]
        outputs += [mb.pow(x=small, y=np.float16(value), name=f"small_{name}") for name, value in exponents.items()]
        outputs.append(mb.pow(x=x, y=exponent, name="by_tensor"))
        outputs.append(mb.pow(x=x, y=np.array([1, 2, 3], np.float32), name="by_row"))
        outputs.append(mb.pow(x=x, y=np.array([2, 2, 2], np.float32), name="by_uniform_row"))
        outputs.append(mb.pow(x=x, y=np.array([[[2.0]]], np.float32), name="to_rank_3"))
        outputs.append(mb.pow(x=np.float32(2), y=exponent, name="const_base"))
        outputs.append(mb.pow(x=whole, y=np.int32(2), name="whole_p2"))
        outputs.append(mb.pow(x=whole, y=np.int32(3), name="whole_p3"))
        outputs.append(mb.sqrt(x=mb.pow(x=signed, y=np.float32(2), name="squared"), name="absolute"))
        hidden = mb.cast(x=np.float16(2), dtype="fp32", name="exponent_cast")
        outputs.append(mb.pow(x=signed, y=hidden, name="behind_cast"))
        hidden = mb.reshape(x=np.float32([3]), shape=[1, 1], name="exponent_reshape")
        outputs.append(mb.pow(x=signed, y=hidden, name="behind_reshape"))
        return tuple(outputs)

    made = converted(program, ct.target.iOS17)
    x = np.array([[0.25, 0.5, 1], [1.5, 3, 10]], np.float32)
    signed = np.array([[-2, -0.5, 0], [0.5, 2, 7]], np.float32)
    exponent = np.array([[-1, 0, 0.5], [1, 2, 2.5]], np.float32)
    whole = np.array([[-3, -2, 0], [1, 2, 30]], np.int32)
    small = x.astype(np.float16)
    wide, e, s = x.astype(np.float64), exponent.astype(np.float64), signed.astype(np.float64)
    outputs = {f"pow_{name}": wide**value for name, value in exponents.items()}
    outputs |= {f"small_{name}": small.astype(np.float64) ** value for name, value in exponents.items()}
    outputs |= {
        "by_tensor": wide**e,
        "by_row": wide ** np.array([1.0, 2, 3]),
        "by_uniform_row": wide**2,
        "to_rank_3": (wide**2)[None],
        "const_base": 2.0**e,
        "whole_p2": whole**2,
        "whole_p3": whole**3,
        "absolute": np.abs(s),
        "behind_cast": s**2,
        "behind_reshape": s**3,
    }
    inputs = {"x": x, "signed": signed, "exponent": exponent, "whole": whole, "small": small}
    return expect(made, inputs, outputs)


@package
def stateful() -> Package:
    """two states (CoreML8): one read, updated and read again, one written by slice_update at a row given at run time"""

    @mb.program(
        input_specs=[
            mb.TensorSpec((1, 8), types.fp16),
            mb.TensorSpec((1,), types.int32),
            mb.StateTensorSpec((1, 8), types.fp16),
            mb.StateTensorSpec((4, 8), types.fp16),
        ],
        opset_version=ct.target.iOS18,
    )
    def program(x, row, total, rows):
        before = mb.read_state(input=total, name="total_before")
        after = mb.coreml_update_state(state=total, value=mb.add(x=before, y=x, name="grown"), name="total_after")
        twice = mb.mul(x=mb.read_state(input=total, name="total_again"), y=np.float16(2), name="twice")
        begin = mb.concat(values=[row, np.array([0], np.int32)], axis=0, name="begin")
        end = mb.concat(
            values=[mb.add(x=row, y=np.array([1], np.int32), name="next_row"), np.array([8], np.int32)],
            axis=0,
            name="end",
        )
        changed = mb.slice_update(
            x=mb.read_state(input=rows, name="rows_before"), update=x, begin=begin, end=end, name="rows_changed"
        )
        table = mb.coreml_update_state(state=rows, value=changed, name="rows_after")
        mean = mb.reduce_mean(x=mb.pow(x=table, y=np.float16(2)), axes=[0], keep_dims=True, name="mean")
        return mb.add(x=after, y=mean, name="y"), mb.sub(x=twice, y=before, name="z")

    made = converted(program, ct.target.iOS18)
    generator = np.random.default_rng(4)
    total, rows = np.zeros((1, 8)), np.zeros((4, 8))
    for call in range(3):
        x, row = half(generator, 1, 8), [2, 0, 2][call]
        before, total = total, (total + x).astype(np.float16).astype(np.float64)
        rows[row] = x[0]
        outputs = {"y": total + np.mean(rows**2, axis=0, keepdims=True), "z": 2 * total - before}
        prefix = f"s{call}_" if call else ""
        expect(made, {"x": x, "row": np.array([row], np.int32)}, outputs, prefix)
    return made


@package
def cached_attention() -> Package:
    """two layers of attention over cached keys and values (CoreML8), one token a call: four states, heads of 12 numbers"""
    heads, length, size, layers = 2, 8, 12, 2
    width = heads * size
    cache = (1, heads, length, size)

    @mb.program(
        input_specs=[
            mb.TensorSpec((1, 1, width), types.fp16),
            mb.TensorSpec((1,), types.int32),
            mb.TensorSpec((1, 1, 1, length), types.fp16),
            *[mb.StateTensorSpec(cache, types.fp16) for _ in range(2 * layers)],
        ],
        opset_version=ct.target.iOS18,
    )
    def program(x, position, mask, keys_0, values_0, keys_1, values_1):
        zeros, zero = np.array([0, 0], np.int32), np.array([0], np.int32)
        after = mb.add(x=position, y=np.array([1], np.int32), name="after")
        begin = mb.concat(values=[zeros, position, zero], axis=0, name="begin")
        end = mb.concat(values=[np.array([1, heads], np.int32), after, np.array([size], np.int32)], axis=0, name="end")
        for layer, (keys, values) in enumerate([(keys_0, values_0), (keys_1, values_1)]):
            query = mb.reshape(x=x, shape=[1, heads, 1, size], name=f"query_{layer}")
            updates = [mb.tanh(x=query), mb.mul(x=query, y=np.float16(0.5 + layer))]
            cached = []
            for state, update in zip((keys, values), updates):
                before = mb.read_state(input=state)
                changed = mb.slice_update(x=before, update=update, begin=begin, end=end)
                cached.append(mb.coreml_update_state(state=state, value=changed))
            scores = mb.matmul(x=query, y=cached[0], transpose_y=True, name=f"scores_{layer}")
            scaled = mb.mul(x=scores, y=np.float16(0.25), name=f"scaled_{layer}")
            weights = mb.softmax(x=mb.add(x=scaled, y=mask), axis=-1, name=f"weights_{layer}")
            attended = mb.matmul(x=weights, y=cached[1], name=f"attended_{layer}")
            x = mb.add(
                x=x, y=mb.reshape(x=attended, shape=[1, 1, width]), name="y" if layer + 1 == layers else f"x_{layer}"
            )
        return x

    made = converted(program, ct.target.iOS18)
    generator = np.random.default_rng(9)
    keys, values = np.zeros((layers, *cache)), np.zeros((layers, *cache))
    for call in range(3):
        token = half(generator, 1, 1, width)
        mask = np.where(np.arange(length) <= call, 0, -1e4).reshape(1, 1, 1, length).astype(np.float16)
        x = token.astype(np.float64)
        for layer in range(layers):
            query = x.reshape(1, heads, 1, size)
            keys[layer, :, :, call] = np.tanh(query)[:, :, 0]
            values[layer, :, :, call] = (query * (0.5 + layer))[:, :, 0]
            scores = query @ np.swapaxes(keys[layer], -1, -2) * 0.25 + mask
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            x = x + (weights @ values[layer]).reshape(1, 1, width)
        prefix = f"s{call}_" if call else ""
        expect(made, {"x": token, "position": np.array([call], np.int32), "mask": mask}, {"y": x}, prefix)
    return made


@package
def growing_stream() -> Package:
    """fp16 language model of five layers (CoreML8, Gemma's norms on both sides of each branch) whose residual stream passes 65 504 in the fourth layer, although no branch does; its norms square what is above 256"""
    tokens, width, heads, layers, vocabulary, outlier = 6, 32, 2, 5, 40, 5
    size = width // heads
    generator = np.random.default_rng(8)
    table = half(generator, vocabulary, width)
    names = ["q", "k", "v", "o", "up", "down"]
    weight = [{name: half(generator, width, width, scale=width**-0.5) for name in names} for _ in range(layers)]
    head = half(generator, vocabulary, width, scale=width**-0.5)
    # One channel of what each layer adds is large, and always of the same sign.
    bias = np.zeros(width, np.float16)
    bias[outlier] = 8
    gain = (1 + half(generator, width, scale=0.1)).astype(np.float16)
    large = gain.copy()
    large[outlier] = 4000
    scale, root, epsilon = np.float16(size**-0.5), np.float16(width**0.5), np.float16(1e-5)
    mask = np.triu(np.full((tokens, tokens), -1e4, np.float16), 1)[None, None]

    def norm(x, gain, name):
        square = mb.pow(x=x, y=np.float16(2), name=f"{name}_square")
        mean = mb.reduce_mean(x=square, axes=[-1], keep_dims=True, name=f"{name}_mean")
        shifted = mb.add(x=mean, y=epsilon, name=f"{name}_shifted")
        inverse = mb.rsqrt(x=shifted, epsilon=np.float32(1e-12), name=f"{name}_inverse")
        return mb.mul(x=mb.mul(x=x, y=inverse, name=f"{name}_root"), y=gain, name=name)

    def layer(stream, w, name):
        normed = norm(stream, gain, f"{name}_before_attention")
        split = {}
        for part in "qkv":
            flat = mb.linear(x=normed, weight=w[part], name=f"{name}_{part}_linear")
            apart = mb.reshape(x=flat, shape=[1, tokens, heads, size], name=f"{name}_{part}_heads")
            split[part] = mb.transpose(x=apart, perm=[0, 2, 1, 3], name=f"{name}_{part}")
        scores = mb.matmul(x=split["q"], y=split["k"], transpose_y=True, name=f"{name}_products")
        scores = mb.add(x=mb.mul(x=scores, y=scale, name=f"{name}_scaled"), y=mask, name=f"{name}_scores")
        attended = mb.matmul(x=mb.softmax(x=scores, axis=-1, name=f"{name}_weights"), y=split["v"], name=f"{name}_heads")
        together = mb.reshape(
            x=mb.transpose(x=attended, perm=[0, 2, 1, 3]), shape=[1, tokens, width], name=f"{name}_together"
        )
        out = mb.linear(x=together, weight=w["o"], name=f"{name}_o")
        stream = mb.add(x=stream, y=norm(out, gain, f"{name}_attention"), name=f"{name}_middle")
        normed = norm(stream, gain, f"{name}_before_feed_forward")
        inner = mb.gelu(x=mb.linear(x=normed, weight=w["up"], name=f"{name}_up"), mode="TANH_APPROXIMATION")
        out = mb.linear(x=inner, weight=w["down"], bias=bias, name=f"{name}_down")
        return mb.add(x=stream, y=norm(out, large, f"{name}_feed_forward"), name=name)

    @mb.program(input_specs=[mb.TensorSpec((1, tokens), types.int32)], opset_version=ct.target.iOS18)
    def program(ids):
        rows = mb.gather(x=table, indices=ids, axis=0, batch_dims=0, validate_indices=False, name="rows")
        stream = mb.mul(x=rows, y=root, name="embedding")
        for index, w in enumerate(weight):
            stream = layer(stream, w, f"layer_{index}")
        return mb.linear(x=norm(stream, gain, "last"), weight=head, name="logits")

    made = converted(program, ct.target.iOS18)
    ids = generator.integers(0, vocabulary, (1, tokens)).astype(np.int32)

    def wide(value):
        return value.astype(np.float64)

    stream = wide(table)[ids] * float(root)
    for w in weight:
        n = rms_norm(stream, wide(gain), float(epsilon))
        q, k, v = ((n @ wide(w[part]).T).reshape(tokens, heads, size).transpose(1, 0, 2) for part in "qkv")
        scores = np.exp(q @ k.transpose(0, 2, 1) * float(scale) + wide(mask[0]))
        attended = (scores / scores.sum(-1, keepdims=True)) @ v
        out = attended.transpose(1, 0, 2).reshape(1, tokens, width) @ wide(w["o"]).T
        stream = stream + rms_norm(out, wide(gain), float(epsilon))
        up = rms_norm(stream, wide(gain), float(epsilon)) @ wide(w["up"]).T
        inner = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        out = inner @ wide(w["down"]).T + wide(bias)
        stream = stream + rms_norm(out, wide(large), float(epsilon))
    logits = rms_norm(stream, wide(gain), float(epsilon)) @ wide(head).T
    return expect(made, {"ids": ids}, {"logits": logits})


@package
def control_flow() -> Package:
    """cond and while_loop with captured outer values, one nested in the other; a pow inside a branch whose exponent is a const outside"""

    @mb.program(
        input_specs=[mb.TensorSpec((2, 12), types.fp32), mb.TensorSpec((1,), types.int32)],
        opset_version=ct.target.iOS17,
    )
    def program(x, steps):
        two = mb.const(val=np.float32(2), name="two")
        scale = mb.const(val=np.arange(1, 13, dtype=np.float32), name="scale")
        limit = mb.squeeze(x=steps, axes=[0], name="limit")
        scaled = mb.mul(x=x, y=scale, name="scaled")
        many = mb.greater(x=limit, y=np.int32(2), name="many")
        chosen = mb.cond(
            pred=many,
            _true_fn=lambda: mb.pow(x=scaled, y=two, name="squared"),
            _false_fn=lambda: mb.add(x=scaled, y=two, name="raised"),
            name="chosen",
        )

        def body(index, value):
            odd = mb.equal(
                x=mb.mod(x=index, y=np.int32(2), name="parity"), y=np.int32(1), name="odd"
            )
            grown = mb.cond(
                pred=odd,
                _true_fn=lambda: mb.add(x=value, y=scaled, name="add_scaled"),
                _false_fn=lambda: mb.mul(x=value, y=mb.pow(x=two, y=np.float32(-1), name="half"), name="halved"),
                name="grown",
            )
            return mb.add(x=index, y=np.int32(1), name="next_index"), grown

        count, value = mb.while_loop(
            _cond=lambda index, value: mb.less(x=index, y=limit, name="more"),
            _body=body,
            loop_vars=(mb.const(val=np.int32(0), name="zero"), chosen),
            name="loop",
        )
        return mb.identity(x=value, name="y"), mb.expand_dims(x=count, axes=[0], name="count")

    made = converted(program, ct.target.iOS17)
    generator = np.random.default_rng(5)
    for call, steps in enumerate([4, 1]):
        x = generator.standard_normal((2, 12)).astype(np.float32)
        scaled = x.astype(np.float64) * np.arange(1, 13)
        value = scaled**2 if steps > 2 else scaled + 2
        for index in range(steps):
            value = value + scaled if index % 2 else value / 2
        expect(
            made,
            {"x": x, "steps": np.array([steps], np.int32)},
            {"y": value, "count": np.array([steps], np.int32)},
            f"s{call}_" if call else "",
        )
    return made


@package
def lists() -> Package:
    """list ops (CoreML5): make_list, list_write, list_scatter, list_read, list_gather, list_length, and a list through while_loop"""

    @mb.program(input_specs=[mb.TensorSpec((3, 2), types.fp32)], opset_version=ct.target.iOS15)
    def program(x):
        first = mb.slice_by_index(x=x, begin=[0, 0], end=[1, 2], squeeze_mask=[True, False], name="first")
        made = mb.make_list(init_length=3, elem_shape=(2,), dynamic_length=False, dtype="fp32", name="made")
        filled = mb.list_scatter(ls=made, indices=np.array([0, 1, 2], np.int32), value=x, name="filled")

        def body(index, items):
            item = mb.list_read(ls=items, index=index, name="item")
            square = mb.pow(x=item, y=np.float32(2), name="square")
            return (
                mb.add(x=index, y=np.int32(1), name="next_index"),
                mb.list_write(ls=items, index=index, value=square, name="written"),
            )

        _, squares = mb.while_loop(
            _cond=lambda index, items: mb.less(x=index, y=np.int32(2), name="more"),
            _body=body,
            loop_vars=(mb.const(val=np.int32(0), name="zero"), filled),
            name="loop",
        )
        last = mb.list_write(ls=squares, index=np.int32(2), value=first, name="last")
        gathered = mb.list_gather(ls=last, indices=np.array([2, 0, 1], np.int32), name="y")
        length = mb.expand_dims(x=mb.list_length(ls=last, name="count"), axes=[0], name="length")
        return gathered, length

    made = converted(program, ct.target.iOS15)
    x = np.random.default_rng(6).standard_normal((3, 2)).astype(np.float32)
    wide = x.astype(np.float64)
    outputs = {"y": np.stack([wide[0], wide[0] ** 2, wide[1] ** 2]), "length": np.array([3], np.int32)}
    return expect(made, {"x": x}, outputs)


@package
def quantized_ios16() -> Package:
    """compressed weights of the first form (CoreML6, parameters in attributes): affine int8, palette of 16, sparse, constexpr_cast"""
    generator = np.random.default_rng(7)
    quantized = generator.integers(-128, 128, (16, 8)).astype(np.int8)
    scale = generator.uniform(0.01, 0.02, 16).astype(np.float32)
    zero_point = generator.integers(-4, 5, 16).astype(np.int8)
    palette = generator.standard_normal(16).astype(np.float32)
    indices = generator.integers(0, 16, 128).astype(np.uint8)
    packed = (indices[0::2] | indices[1::2] << 4).astype(np.uint8)
    mask = generator.integers(0, 2, 128).astype(np.uint8)
    values = generator.standard_normal(int(mask.sum())).astype(np.float32)
    source = half(generator, 16, 8)

    @mb.program(input_specs=[mb.TensorSpec((2, 8), types.fp32)], opset_version=ct.target.iOS16)
    def program(x):
        weights = [
            mb.constexpr_affine_dequantize(
                quantized_data=quantized, zero_point=zero_point, scale=scale, axis=np.int32(0), name="affine"
            ),
            mb.constexpr_lut_to_dense(
                indices=packed, lut=palette, shape=np.array([16, 8], np.uint32), name="palette"
            ),
            mb.constexpr_sparse_to_dense(
                nonzero_data=values,
                mask=np.packbits(mask, bitorder="little"),
                shape=np.array([16, 8], np.uint32),
                name="sparse",
            ),
            mb.constexpr_cast(source_val=source, output_dtype="fp32", name="wide"),
        ]
        outputs = [mb.linear(x=x, weight=weight, name=f"y_{weight.name}") for weight in weights]
        return tuple(outputs)

    made = converted(program, ct.target.iOS16)
    x = generator.standard_normal((2, 8)).astype(np.float32)
    sparse = np.zeros(128)
    sparse[mask == 1] = values
    dense = {
        "affine": scale.astype(np.float64)[:, None] * (quantized.astype(np.float64) - zero_point[:, None]),
        "palette": palette.astype(np.float64)[indices].reshape(16, 8),
        "sparse": sparse.reshape(16, 8),
        "wide": source.astype(np.float64),
    }
    return expect(made, {"x": x}, {f"y_{name}": x.astype(np.float64) @ w.T for name, w in dense.items()})


def sub_byte(values: np.ndarray, dtype) -> np.ndarray:
    """`values` (int8 or uint8) marked as coremltools marks arrays of sub-byte types."""
    return values.astype(types.nptype_from_builtin(dtype))


@package
def quantized_ios18() -> Package:
    """compressed weights of the second form (CoreML8, parameters as literals): blockwise int4 with offset, palettes of uint1 to uint6, sparse with uint1 mask, chains of two constexpr ops"""
    generator = np.random.default_rng(8)
    shape = (16, 8)
    data = generator.integers(-8, 8, shape).astype(np.int8)
    scale = generator.uniform(0.05, 0.1, (16, 2)).astype(np.float16)
    offset = generator.integers(-2, 3, (16, 2)).astype(np.int8)
    palettes = {}
    for bits, dtype in [(1, types.uint1), (2, types.uint2), (3, types.uint3), (4, types.uint4), (6, types.uint6)]:
        indices = generator.integers(0, 2**bits, shape).astype(np.uint8)
        palettes[f"palette{bits}"] = (indices, half(generator, 1, 1, 2**bits, 1), dtype)
    mask = generator.integers(0, 2, shape).astype(np.uint8)
    mask[0, 0] = 1
    count = int(mask.sum())
    values = half(generator, count)
    stored = generator.integers(-128, 128, count).astype(np.int8)
    sparse_scale = generator.uniform(0.01, 0.02, (16, 1)).astype(np.float16)
    picked = generator.integers(0, 4, count).astype(np.uint8)
    picked_palette = half(generator, 1, 1, 4, 1)

    @mb.program(input_specs=[mb.TensorSpec((2, 8), types.fp16)], opset_version=ct.target.iOS18)
    def program(x):
        weights = [
            mb.constexpr_blockwise_shift_scale(
                data=sub_byte(data, types.int4), scale=scale, offset=sub_byte(offset, types.int4), name="blockwise"
            )
        ]
        for name, (indices, lut, dtype) in palettes.items():
            weights.append(mb.constexpr_lut_to_dense(indices=sub_byte(indices, dtype), lut=lut, name=name))
        bit = sub_byte(mask, types.uint1)
        weights.append(mb.constexpr_sparse_to_dense(nonzero_data=values, mask=bit, name="sparse"))
        bits, scaled = mb.constexpr_sparse_blockwise_shift_scale(
            data_mask=bit, nonzero_data=stored, scale=sparse_scale, name="sparse_scaled"
        )
        weights.append(mb.constexpr_sparse_to_dense(nonzero_data=scaled, mask=bits, name="sparse_blockwise"))
        bits, looked_up = mb.constexpr_lut_to_sparse(
            indices_mask=bit,
            indices_nonzero_data=sub_byte(picked, types.uint2),
            lut=picked_palette,
            name="sparse_looked_up",
        )
        weights.append(mb.constexpr_sparse_to_dense(nonzero_data=looked_up, mask=bits, name="sparse_palette"))
        return tuple(mb.linear(x=x, weight=weight, name=f"y_{weight.op.name}") for weight in weights)

    made = converted(program, ct.target.iOS18)
    x = half(generator, 2, 8)

    def scattered(nonzero: np.ndarray) -> np.ndarray:
        full = np.zeros(shape)
        full[mask == 1] = nonzero
        return full

    dense = {
        "blockwise": np.repeat(scale.astype(np.float64), 4, 1) * (data - np.repeat(offset, 4, 1).astype(np.float64))
    }
    for name, (indices, lut, _) in palettes.items():
        dense[name] = lut.astype(np.float64).ravel()[indices]
    dense["sparse"] = scattered(values)
    dense["sparse_blockwise"] = scattered(stored) * sparse_scale.astype(np.float64)
    dense["sparse_palette"] = scattered(picked_palette.ravel()[picked])
    # The weights have type fp16: what scale and offset give is rounded to it.
    dense = {name: value.astype(np.float16).astype(np.float64) for name, value in dense.items()}
    return expect(made, {"x": x}, {f"y_{name}": x.astype(np.float64) @ w.T for name, w in dense.items()})


@package
def flexible() -> Package:
    """flexible shapes (CoreML8): a range without upper bound, and enumerated shapes"""
    rows, columns = get_new_symbol(), get_new_symbol()

    @mb.program(
        input_specs=[mb.TensorSpec((rows, 4), types.fp32), mb.TensorSpec((2, columns), types.fp32)],
        opset_version=ct.target.iOS18,
    )
    def program(a, b):
        size = mb.shape(x=a, name="size")
        height = mb.slice_by_index(x=size, begin=[0], end=[1], squeeze_mask=[True], name="height")
        shape = mb.concat(values=[height, np.int32(2), np.int32(2)], axis=0, name="new_shape")
        apart = mb.reshape(x=a, shape=shape, name="apart")
        squares = mb.pow(x=apart, y=np.float32(2), name="squares")
        return mb.reduce_sum(x=squares, axes=[2], keep_dims=False, name="y"), mb.relu(x=b, name="z")

    made = converted(
        program,
        ct.target.iOS18,
        passes=True,
        inputs=[
            ct.TensorType(name="a", shape=(ct.RangeDim(1, 64, default=3), 4)),
            ct.TensorType(name="b", shape=ct.EnumeratedShapes([(2, 3), (2, 5), (2, 9)], default=(2, 5))),
        ],
    )
    # The converter refuses to make an unbounded range, which the format has.
    sizes = made.model.description.input[0].type.multiArrayType.shapeRange.sizeRanges
    sizes[0].upperBound = -1
    generator = np.random.default_rng(9)
    for call, (height, width) in enumerate([(3, 5), (1, 9)]):
        a = generator.standard_normal((height, 4)).astype(np.float32)
        b = generator.standard_normal((2, width)).astype(np.float32)
        outputs = {"y": (a.astype(np.float64) ** 2).reshape(height, 2, 2).sum(2), "z": np.maximum(b, 0)}
        expect(made, {"a": a, "b": b}, outputs, f"s{call}_" if call else "")
    return made
