//! bad-scale: scales of quantized weights that are zero, subnormal, infinite or NaN.

use std::borrow::Cow;
use std::num::FpCategory;

use half::f16;

use crate::ir::{DType, NodeId, Operation, Value};
use crate::ops::{Opset, constant};
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct BadScale;

static META: Meta = Meta {
    id: "bad-scale",
    family: Family::Quantization,
    summary: "a scale of quantized weights that is zero, subnormal, infinite or NaN",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const BAD_SCALE: Rule = Rule {
    id: "bad-scale",
    summary: META.summary,
    why: "A weight is (number - zero point) * scale: with a scale of NaN or infinity it is no number, \
          with 0 the whole channel is gone, and a subnormal scale is 0 where hardware flushes. A \
          quantizer that divides by the largest weight makes such scales of a channel of zeros. A scale \
          of 0 of weights that are 0 anyway loses nothing.",
    help: "Quantize again, with the scale of a channel of zeros set to 1.",
    evidence: META.evidence,
    sources: &["https://github.com/john-rocky/CoreML-LLM"],
    severity: Severity::Error.everywhere(),
    catalog: &[],
};

/// No more scales of one tensor are looked at: of a block-wise quantized table there are millions.
const MOST: usize = 1 << 16;

/// No more weights of one tensor are compared with their zero point.
const MOST_WEIGHTS: usize = 1 << 22;

impl Pass for BadScale {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[BAD_SCALE]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(op) = block.op(node) else {
        return Attempt::NoMatch;
    };
    if !matches!(
        op.op_type(),
        "constexpr_affine_dequantize"
            | "constexpr_blockwise_shift_scale"
            | "dequantize"
            | "quantize"
    ) {
        return Attempt::NoMatch;
    }
    // The older operations hold it as an attribute.
    let scale = block
        .constant_of(op, "scale")
        .or_else(|| op.attributes().get("scale"));
    let Some((dtype, bytes)) = scale.and_then(|scale| data(block, scale)) else {
        return Attempt::NoMatch;
    };
    let Some(size) = dtype.bits().map(|bits| bits as usize / 8) else {
        return Attempt::NoMatch;
    };
    let bad: Vec<(usize, &str)> = bytes
        .chunks_exact(size.max(1))
        .take(MOST)
        .enumerate()
        .filter_map(|(index, element)| Some((index, fault(element, dtype)?)))
        .collect();
    let Some(first) = bad.first() else {
        return Attempt::NoMatch;
    };
    let mut weights = Weights::of(block, op);
    let mut loses = bad.iter().filter(|(index, fault)| {
        *fault != "0" || !weights.as_mut().is_some_and(|w| w.zeros(*index))
    });
    let Some((index, fault)) = loses.next() else {
        let more = match bad.len() {
            1 => String::new(),
            count => format!(", as are {} more", count - 1),
        };
        let message = format!("scale {} is 0{more}, of weights that are all 0", first.0);
        let found = BAD_SCALE.found(message).parameter("scale");
        return found.severity(Severity::Info).into();
    };
    let more = match loses.count() {
        0 => String::new(),
        count => format!(", and {count} more are bad"),
    };
    BAD_SCALE
        .found(format!("scale {index} is {fault}{more}"))
        .parameter("scale")
        .into()
}

/// Numbers of a bit width that stand for weights, and where the blocks are that have a scale each.
struct Weights<'v> {
    bits: usize,
    numbers: Cow<'v, [u8]>,
    /// One for each scale, one for all, or none where it is 0.
    zero_points: Cow<'v, [u8]>,
    shape: Vec<usize>,
    /// How many scales there are along each dimension.
    scales: Vec<usize>,
    /// How many may still be looked at.
    left: usize,
}

impl<'v> Weights<'v> {
    /// Those of an operation that makes weights; `None` if they are not there.
    fn of(block: &Block<'v>, op: &'v Operation) -> Option<Self> {
        let of = |name: &str| {
            let value = block.constant_of(op, name);
            value.or_else(|| op.attributes().get(name))
        };
        let sizes = |value: &Value| -> Option<Vec<usize>> {
            let dims = &value.tensor_type()?.dims;
            dims.iter().map(|dim| dim.size()?.try_into().ok()).collect()
        };
        let (numbers, zero_point) = match op.op_type() {
            "constexpr_affine_dequantize" => ("quantized_data", "zero_point"),
            "constexpr_blockwise_shift_scale" => ("data", "offset"),
            _ => return None,
        };
        let numbers = of(numbers)?;
        let shape = sizes(numbers)?;
        let mut scales = sizes(of("scale")?)?;
        if op.op_type() == "constexpr_affine_dequantize" {
            let axis = constant::integers(of("axis")?)?.first().copied()?;
            let axis = if axis < 0 {
                axis + shape.len() as i64
            } else {
                axis
            };
            let count = scales.iter().product();
            scales = vec![1; shape.len()];
            *scales.get_mut(usize::try_from(axis).ok()?)? = count;
        }
        let fits = |(size, scales): (&usize, &usize)| *scales > 0 && size % scales == 0;
        if shape.len() != scales.len() || !shape.iter().zip(&scales).all(fits) {
            return None;
        }
        let (dtype, numbers) = data(block, numbers)?;
        let bits = dtype.bits()? as usize;
        if !dtype.is_int() || bits > 8 {
            return None;
        }
        let zero_points = match of(zero_point) {
            Some(value) => {
                let (own, bytes) = data(block, value)?;
                (own == dtype).then_some(bytes)?
            }
            None => Cow::Borrowed(&[][..]),
        };
        Some(Self {
            bits,
            numbers,
            zero_points,
            shape,
            scales,
            left: MOST_WEIGHTS,
        })
    }

    /// Whether all numbers with this scale are their zero point.
    fn zeros(&mut self, scale: usize) -> bool {
        let sizes: Vec<usize> = self
            .shape
            .iter()
            .zip(&self.scales)
            .map(|(n, s)| n / s)
            .collect();
        let count: usize = sizes.iter().product();
        if count > self.left {
            return false;
        }
        self.left -= count;
        let zero = match self.zero_points.len() * 8 / self.bits {
            0 => Some(0),
            1 => number(&self.zero_points, 0, self.bits),
            _ => number(&self.zero_points, scale, self.bits),
        };
        // Where the block begins, by the scale's place along each dimension.
        let mut begins = vec![0; sizes.len()];
        let mut rest = scale;
        for axis in (0..sizes.len()).rev() {
            begins[axis] = rest % self.scales[axis] * sizes[axis];
            rest /= self.scales[axis];
        }
        (0..count).all(|inside| {
            let (mut rest, mut place, mut stride) = (inside, 0, 1);
            for axis in (0..sizes.len()).rev() {
                place += (begins[axis] + rest % sizes[axis]) * stride;
                rest /= sizes[axis];
                stride *= self.shape[axis];
            }
            zero.is_some() && number(&self.numbers, place, self.bits) == zero
        })
    }
}

/// A number of at most 8 bits; of smaller ones several are in a byte, the first in its lowest bits.
fn number(bytes: &[u8], place: usize, bits: usize) -> Option<u8> {
    let bit = place * bits;
    let mask = u8::MAX >> (8 - bits);
    Some(bytes.get(bit / 8)? >> (bit % 8) & mask)
}

/// The element type and the bytes of a constant, if they are there.
fn data<'v>(block: &Block<'v>, value: &'v Value) -> Option<(DType, Cow<'v, [u8]>)> {
    Some((value.tensor_type()?.dtype, block.bytes(value)?))
}

/// What is wrong with a scale.
fn fault(element: &[u8], dtype: DType) -> Option<&'static str> {
    let category = match dtype {
        DType::Float16 => f16::from_le_bytes(element.try_into().ok()?).classify(),
        DType::Float32 => f32::from_le_bytes(element.try_into().ok()?).classify(),
        _ => return None,
    };
    match category {
        FpCategory::Nan => Some("NaN"),
        FpCategory::Infinite => Some("infinite"),
        FpCategory::Zero => Some("0"),
        FpCategory::Subnormal => Some("subnormal"),
        FpCategory::Normal => None,
    }
}
