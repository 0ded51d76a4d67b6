//! Value ranges that follow from the graph alone, whatever the inputs are.
//!
//! ```text
//! softmax, sigmoid, sigmoid_hard, bools          [0, 1]
//! tanh, erf, sin, cos, softsign                  [−1, 1]
//! relu, relu6, clip, abs, sqrt, square, exp, …   by their definition and their operand's range
//! constants                                      their smallest and largest element
//! layout, slices, gather, cast, max_pool, …      keep their operand's range
//! concat, stack, select, pad                     the union of the operands' ranges
//! add, sub, mul, real_div, maximum, minimum      interval arithmetic
//! reduce_max, reduce_min, reduce_mean            keep their operand's range
//! ```
//!
//! A range holds for every element that is a number; nothing is said of NaN. It holds at the program's
//! own types: rounding to nearest does not leave a range whose ends are rounded too. (`reduce_mean` may
//! leave it by the rounding of its sum.)
//!
//! A walk is iterative and looks at each value once, so that its cost is linear in the operations
//! behind a value, however deep they are.

use std::collections::BTreeMap;

use half::f16;

use crate::ir::{Binding, DType, Node, Operation, Value, ValueId};
use crate::pass::Block;

/// The numbers from `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The smallest, or −∞.
    pub low: f64,
    /// The largest, or +∞.
    pub high: f64,
}

impl Range {
    /// Any number.
    pub const ANY: Self = Self {
        low: f64::NEG_INFINITY,
        high: f64::INFINITY,
    };

    const UNIT: Self = Self::new(0.0, 1.0);
    const SIGNED_UNIT: Self = Self::new(-1.0, 1.0);
    const NOT_NEGATIVE: Self = Self::new(0.0, f64::INFINITY);

    const fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    /// The largest magnitude.
    pub fn magnitude(self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    /// Whether both ends are finite.
    pub fn is_bounded(self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }

    /// Whether all of the range is in [low, high].
    pub fn is_within(self, low: f64, high: f64) -> bool {
        low <= self.low && self.high <= high
    }

    fn union(self, other: Self) -> Self {
        Self::new(self.low.min(other.low), self.high.max(other.high))
    }

    /// What a function that does not decrease makes of it.
    fn map(self, function: impl Fn(f64) -> f64) -> Self {
        Self::of_ends([function(self.low), function(self.high)])
    }

    /// The smallest range with these numbers in it; any number if one is NaN.
    fn of_ends<const N: usize>(ends: [f64; N]) -> Self {
        if ends.iter().any(|end| end.is_nan()) {
            return Self::ANY;
        }
        Self::new(
            ends.iter().copied().fold(f64::INFINITY, f64::min),
            ends.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        )
    }

    /// The range once its numbers are rounded to a type; what a cast makes of them.
    fn rounded(self, dtype: DType) -> Self {
        match dtype {
            DType::Float16 => self.map(|end| f16::from_f64(end).to_f64()),
            DType::Float32 => self.map(|end| f64::from(end as f32)),
            DType::Float64 => self,
            DType::Bool => Self::UNIT,
            // Numbers that an integer type does not hold may become anything.
            dtype => match limits(dtype) {
                Some((low, high)) if self.is_within(low, high) => self.map(f64::trunc),
                Some((low, high)) => Self::new(low, high),
                None => Self::ANY,
            },
        }
    }
}

/// The smallest and the largest number of an integer type.
fn limits(dtype: DType) -> Option<(f64, f64)> {
    let bits = dtype.bits().filter(|_| dtype.is_int())?;
    let is_unsigned = dtype.word().starts_with('u');
    let power = |exponent: u32| 2f64.powi(exponent as i32);
    Some(if is_unsigned {
        (0.0, power(bits) - 1.0)
    } else {
        (-power(bits - 1), power(bits - 1) - 1.0)
    })
}

/// Constants with more elements are not read.
const MAX_ELEMENTS: u64 = 1 << 20;

/// The ranges of the values of one block, each found once.
///
/// What is known belongs to the graph as it was: make another after a change.
pub struct Ranges<'a> {
    block: Block<'a>,
    known: BTreeMap<ValueId, Range>,
    /// How many more operations may be looked at.
    left: usize,
}

/// The range of one value. Of the operations behind it 256 are looked at, the nearest first.
pub fn of(block: &Block<'_>, value: ValueId) -> Range {
    near(block, value, 256)
}

/// The range of one value, by so many of the operations behind it, the nearest first.
pub fn near(block: &Block<'_>, value: ValueId, operations: usize) -> Range {
    let mut ranges = Ranges::new(*block);
    ranges.left = operations;
    ranges.of(value)
}

impl<'a> Ranges<'a> {
    /// For the values of this block.
    pub fn new(block: Block<'a>) -> Self {
        Self {
            block,
            known: BTreeMap::new(),
            left: usize::MAX,
        }
    }

    /// The range of a value.
    pub fn of(&mut self, value: ValueId) -> Range {
        // An operation is visited twice: to ask for its operands, and when they are known.
        let mut stack = vec![(value, false)];
        while let Some((value, is_ready)) = stack.pop() {
            if self.known.contains_key(&value) {
                continue;
            }
            let block = self.block;
            let Some(op) = block.op(value.node) else {
                let range = self.of_other(value);
                self.known.insert(value, range);
                continue;
            };
            if is_ready || op.op_type() == "const" {
                let range = self.of_result(op, value);
                self.known.insert(value, range);
                continue;
            }
            let Some(left) = self.left.checked_sub(1) else {
                self.known.insert(value, self.of_type(value));
                continue;
            };
            self.left = left;
            stack.push((value, true));
            for parameter in operands(op) {
                let bindings = op.argument(parameter).map(|argument| &argument.bindings);
                for binding in bindings.into_iter().flatten() {
                    if let Binding::Value(operand) = binding {
                        stack.push((*operand, false));
                    }
                }
            }
        }
        self.known.get(&value).copied().unwrap_or(Range::ANY)
    }

    /// What only the type says.
    fn of_type(&self, value: ValueId) -> Range {
        match self.block.dtype(value) {
            Some(DType::Bool) => Range::UNIT,
            Some(dtype) => limits(dtype).map_or(Range::ANY, |(low, high)| Range::new(low, high)),
            None => Range::ANY,
        }
    }

    fn of_other(&self, value: ValueId) -> Range {
        match (self.block.graph.node(value.node), self.block.outer) {
            (Some(Node::Capture { source, .. }), Some(outer)) => of(outer, *source),
            _ => self.of_type(value),
        }
    }

    fn of_binding(&self, binding: &Binding) -> Range {
        match binding {
            Binding::Value(value) => self.known.get(value).copied().unwrap_or(Range::ANY),
            Binding::Immediate(value) => self.of_constant(value).unwrap_or(Range::ANY),
            Binding::Absent => Range::ANY,
        }
    }

    fn of_constant(&self, value: &Value) -> Option<Range> {
        let ty = value.tensor_type()?;
        let elements = ty.elements()?;
        if elements == 0 || elements > MAX_ELEMENTS {
            return None;
        }
        let mut range = None;
        for number in self.block.elements(value)?.to_f64().ok()? {
            // Nothing is said of NaN.
            if !number.is_nan() {
                let one = Range::new(number, number);
                range = Some(range.map_or(one, |range: Range| range.union(one)));
            }
        }
        range
    }

    fn of_result(&self, op: &Operation, value: ValueId) -> Range {
        let dtype = self.block.dtype(value);
        if let Some(constant) = op.const_value() {
            return self
                .of_constant(constant)
                .unwrap_or_else(|| self.of_type(value));
        }
        let by_type = self.of_type(value);
        let range = self.by_definition(op).unwrap_or(by_type);
        let range = match dtype {
            Some(dtype) if dtype.is_float() || op.op_type() == "cast" => range.rounded(dtype),
            // Integers may wrap.
            _ if !range.is_within(by_type.low, by_type.high) => by_type,
            _ => range,
        };
        if range.low <= range.high {
            range
        } else {
            by_type
        }
    }

    /// The range of an operation's exact result.
    fn by_definition(&self, op: &Operation) -> Option<Range> {
        let of = |parameter: &str| Some(self.of_binding(op.binding(parameter)?));
        Some(match op.op_type() {
            "softmax" | "sigmoid" | "sigmoid_hard" => Range::UNIT,
            "tanh" | "erf" | "sin" | "cos" | "softsign" => Range::SIGNED_UNIT,
            "relu" => of("x")?.map(|end| end.max(0.0)),
            "relu6" => of("x")?.map(|end| end.clamp(0.0, 6.0)),
            "clip" => {
                let x = of("x")?;
                let (low, high) = (of("alpha")?.low, of("beta")?.high);
                // Also if the bounds are the wrong way round, the result is one of the three.
                let clipped = x.map(|end| end.max(low).min(high));
                if low <= high {
                    clipped
                } else {
                    clipped.union(Range::of_ends([low, high]))
                }
            }
            "abs" => absolute(of("x")?),
            "square" => squared(of("x")?),
            "exp" => of("x")?.map(f64::exp).above(0.0),
            "exp2" => of("x")?.map(f64::exp2).above(0.0),
            "sqrt" => of("x")?.map(|end| end.max(0.0).sqrt()),
            "rsqrt" | "softplus" | "reduce_l1_norm" | "reduce_l2_norm" | "reduce_sum_square" => {
                Range::NOT_NEGATIVE
            }
            // Their least values, rounded down.
            "silu" => of("x")?
                .map(|end| end.max(0.0))
                .union(Range::new(-0.2785, 0.0)),
            "gelu" => of("x")?
                .map(|end| end.max(0.0))
                .union(Range::new(-0.1701, 0.0)),
            // Elements off the band are 0.
            "band_part" => of("x")?.union(Range::new(0.0, 0.0)),
            op_type if MOVING.contains(&op_type) => of("x")?,
            "fill" => of("value")?,
            "concat" | "stack" => {
                let bindings = op.argument("values")?.bindings.iter();
                let ranges = bindings.map(|binding| self.of_binding(binding));
                ranges.reduce(Range::union)?
            }
            "select" => of("a")?.union(of("b")?),
            "pad" => {
                let x = of("x")?;
                match self.block.constant_of(op, "mode")?.as_str()? {
                    "constant" if op.argument("constant_val").is_some() => {
                        x.union(of("constant_val")?)
                    }
                    "constant" => x.union(Range::new(0.0, 0.0)),
                    _ => x,
                }
            }
            "add" => {
                let (x, y) = (of("x")?, of("y")?);
                Range::of_ends([x.low + y.low, x.high + y.high])
            }
            "sub" => {
                let (x, y) = (of("x")?, of("y")?);
                Range::of_ends([x.low - y.high, x.high - y.low])
            }
            "mul" => match (op.value("x"), op.value("y")) {
                (Some(x), Some(y)) if x == y => squared(of("x")?),
                _ => products(of("x")?, of("y")?),
            },
            "real_div" => {
                let (x, y) = (of("x")?, of("y")?);
                if y.low <= 0.0 && y.high >= 0.0 {
                    return None;
                }
                let quotients = [
                    x.low / y.low,
                    x.low / y.high,
                    x.high / y.low,
                    x.high / y.high,
                ];
                Range::of_ends(quotients)
            }
            "maximum" => {
                let (x, y) = (of("x")?, of("y")?);
                Range::new(x.low.max(y.low), x.high.max(y.high))
            }
            "minimum" => {
                let (x, y) = (of("x")?, of("y")?);
                Range::new(x.low.min(y.low), x.high.min(y.high))
            }
            "pow" => {
                let exponent = self.block.uniform_of(op, "y")?.value;
                if exponent == 2.0 {
                    squared(of("x")?)
                } else if exponent % 2.0 == 0.0 {
                    Range::NOT_NEGATIVE
                } else {
                    return None;
                }
            }
            _ => return None,
        })
    }
}

impl Range {
    /// The part above a number that is a bound anyway.
    fn above(self, low: f64) -> Self {
        Self::new(self.low.max(low), self.high)
    }
}

fn absolute(x: Range) -> Range {
    let smallest = if x.low <= 0.0 && x.high >= 0.0 {
        0.0
    } else {
        x.low.abs().min(x.high.abs())
    };
    Range::new(smallest, x.magnitude())
}

fn squared(x: Range) -> Range {
    absolute(x).map(|end| end * end)
}

fn products(x: Range, y: Range) -> Range {
    // 0 · ∞ stands for 0 times numbers without bound, which is 0.
    let product = |x: f64, y: f64| if x == 0.0 || y == 0.0 { 0.0 } else { x * y };
    Range::of_ends([
        product(x.low, y.low),
        product(x.low, y.high),
        product(x.high, y.low),
        product(x.high, y.high),
    ])
}

/// Operations whose results are elements of their operand, or lie between some.
const MOVING: [&str; 27] = [
    "identity",
    "cast",
    "reshape",
    "reshape_like",
    "transpose",
    "expand_dims",
    "squeeze",
    "slice_by_index",
    "slice_by_size",
    "tile",
    "gather",
    "gather_along_axis",
    "gather_nd",
    "split",
    "reverse",
    "flatten2d",
    "depth_to_space",
    "space_to_depth",
    "pixel_shuffle",
    "pixel_unshuffle",
    "sliding_windows",
    "max_pool",
    "reduce_max",
    "reduce_min",
    "reduce_mean",
    "upsample_nearest_neighbor",
    "resize_nearest_neighbor",
];

/// The parameters on whose ranges the range of a result depends.
fn operands(op: &Operation) -> &'static [&'static str] {
    match op.op_type() {
        "clip" => &["x", "alpha", "beta"],
        "fill" => &["value"],
        "concat" | "stack" => &["values"],
        "select" => &["a", "b"],
        "pad" => &["x", "constant_val"],
        "add" | "sub" | "mul" | "real_div" | "maximum" | "minimum" => &["x", "y"],
        "relu" | "relu6" | "abs" | "square" | "exp" | "exp2" | "sqrt" | "silu" | "gelu"
        | "band_part" | "pow" => &["x"],
        op_type if MOVING.contains(&op_type) => &["x"],
        _ => &[],
    }
}

/// The greatest magnitude that a calibration has seen of a value; `None` if none was taken, or if it saw
/// NaN or infinity.
pub fn measured(block: &Block<'_>, value: ValueId) -> Option<f64> {
    let range = block.range(value)?;
    (range.not_finite() == 0).then_some(range.peak)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::analysis::sample::Sample;

    /// The range of `y` = operation, of one fp32 input `x`.
    fn of_one(operation: &str) -> (f64, f64) {
        of_text(&format!("tensor<fp32, [2, 3]> y = {operation};"))
    }

    fn of_text(operations: &str) -> (f64, f64) {
        let sample = Sample::new("tensor<fp32, [2, 3]> x", operations, "y");
        let range = of(&sample.block(), sample.value("y"));
        (range.low, range.high)
    }

    const INFINITE: f64 = f64::INFINITY;

    #[test]
    fn functions_with_bounds_of_their_own() {
        for (operation, expected) in [
            ("softmax(axis = int32(-1), x = x)", (0.0, 1.0)),
            ("sigmoid(x = x)", (0.0, 1.0)),
            ("tanh(x = x)", (-1.0, 1.0)),
            ("relu(x = x)", (0.0, INFINITE)),
            ("relu6(x = x)", (0.0, 6.0)),
            ("clip(alpha = fp32(-2), beta = fp32(3), x = x)", (-2.0, 3.0)),
            ("abs(x = x)", (0.0, INFINITE)),
            ("square(x = x)", (0.0, INFINITE)),
            ("mul(x = x, y = x)", (0.0, INFINITE)),
            ("exp(x = x)", (0.0, INFINITE)),
            ("sqrt(x = x)", (0.0, INFINITE)),
            ("identity(x = x)", (-INFINITE, INFINITE)),
            ("add(x = x, y = fp32(1))", (-INFINITE, INFINITE)),
            (
                "matmul(x = x, y = x, transpose_x = bool(false), transpose_y = bool(true))",
                (-INFINITE, INFINITE),
            ),
        ] {
            let operation = if operation.starts_with("matmul") {
                of_text(&format!("tensor<fp32, [2, 2]> y = {operation};"))
            } else {
                of_one(operation)
            };
            assert_eq!(operation, expected);
        }
    }

    #[test]
    fn interval_arithmetic() {
        let bounded = "tensor<fp32, [2, 3]> a = clip(alpha = fp32(-2), beta = fp32(3), x = x);";
        for (operation, expected) in [
            ("add(x = a, y = fp32(1))", (-1.0, 4.0)),
            ("sub(x = fp32(1), y = a)", (-2.0, 3.0)),
            ("mul(x = a, y = fp32(-2))", (-6.0, 4.0)),
            ("mul(x = a, y = a)", (0.0, 9.0)),
            ("real_div(x = a, y = fp32(2))", (-1.0, 1.5)),
            ("maximum(x = a, y = fp32(1))", (1.0, 3.0)),
            ("minimum(x = a, y = x)", (-INFINITE, 3.0)),
            ("relu(x = a)", (0.0, 3.0)),
            ("abs(x = a)", (0.0, 3.0)),
            ("pow(x = a, y = fp32(2))", (0.0, 9.0)),
            ("real_div(x = fp32(1), y = a)", (-INFINITE, INFINITE)),
        ] {
            let text = format!("{bounded} tensor<fp32, [2, 3]> y = {operation};");
            assert_eq!(of_text(&text), expected, "{operation}");
        }
    }

    #[test]
    fn zero_times_a_number_without_bound_is_zero() {
        let text = "tensor<fp32, [2, 3]> a = relu(x = x);
            tensor<fp32, [2, 3]> b = sigmoid(x = x);
            tensor<fp32, [2, 3]> y = mul(x = a, y = b);";
        assert_eq!(of_text(text), (0.0, INFINITE));
    }

    #[test]
    fn constants_layout_casts_and_unions() {
        let text = "
            tensor<fp32, [3]> c = const()[val = tensor<fp32, [3]>([-7, 0.5, 2])];
            tensor<fp32, [1, 3]> r = reshape(shape = tensor<int32, [2]>([1, 3]), x = c);
            tensor<fp32, [2, 3]> s = sigmoid(x = x);
            tensor<fp32, [3, 3]> y = concat(axis = int32(0), interleave = bool(false), values = (r, s));";
        assert_eq!(of_text(text), (-7.0, 2.0));
        let text = "
            tensor<fp32, [2, 3]> a = clip(alpha = fp32(-100000), beta = fp32(2.7), x = x);
            tensor<fp16, [2, 3]> y = cast(dtype = string(\"fp16\"), x = a);";
        assert_eq!(of_text(text), (-INFINITE, f16::from_f64(2.7).to_f64()));
        let text = "
            tensor<fp32, [2, 3]> a = clip(alpha = fp32(-1.5), beta = fp32(2.7), x = x);
            tensor<int32, [2, 3]> y = cast(dtype = string(\"int32\"), x = a);";
        assert_eq!(of_text(text), (-1.0, 2.0));
    }

    #[test]
    fn a_chain_of_many_operations_is_followed_once() {
        // Every value is read twice: without a memory this would take 2^200 steps.
        let mut text = "tensor<fp32, [2, 3]> v0 = sigmoid(x = x);".to_owned();
        for index in 0..200 {
            let next = index + 1;
            writeln!(
                text,
                "tensor<fp32, [2, 3]> v{next} = maximum(x = v{index}, y = v{index});"
            )
            .unwrap();
        }
        text += "tensor<fp32, [2, 3]> y = identity(x = v200);";
        assert_eq!(of_text(&text), (0.0, 1.0));
    }

    #[test]
    fn a_chain_that_is_too_long_is_any_number() {
        let mut text = "tensor<fp32, [2, 3]> v0 = sigmoid(x = x);".to_owned();
        for index in 0..300 {
            let next = index + 1;
            writeln!(
                text,
                "tensor<fp32, [2, 3]> v{next} = identity(x = v{index});"
            )
            .unwrap();
        }
        text += "tensor<fp32, [2, 3]> y = identity(x = v300);";
        assert_eq!(of_text(&text), (-INFINITE, INFINITE));
        let sample = Sample::new("tensor<fp32, [2, 3]> x", &text, "y");
        let range = Ranges::new(sample.block()).of(sample.value("y"));
        assert!(range.is_within(0.0, 1.0) && range.is_bounded());
    }
}
