//! explicit-attention: a fused attention becomes the products, the mask and the softmax it stands for.

use serde::{Deserialize, Serialize};

use crate::ir::{Binding, DType, Dim, NodeId, Operation, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Edit, EditError, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule,
    Severity, Target,
};

use mask::Mask;

mod mask;

/// The pass.
pub(super) struct ExplicitAttention;

static META: Meta = Meta {
    id: "explicit-attention",
    family: Family::Attention,
    summary: "scaled_dot_product_attention becomes matmul, mask, softmax, matmul",
    exactness: Exactness::Real,
    since: Opset::CoreML8,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Disputed,
    catalog: &["orion-6"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// What stands for "does not attend" where the mask is bool.
    mask_value: f64,
    /// Leaves attention without a mask as it is.
    only_masked: bool,
    /// What is multiplied by 1/√E.
    scale_on: Operand,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Operand {
    Q,
    K,
    Scores,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mask_value: -1e4,
            only_masked: true,
            scale_on: Operand::Q,
        }
    }
}

/// The magnitude of the largest finite fp16 number.
const LARGEST_HALF: f64 = 65504.0;

const MASKED_SDPA: Rule = Rule {
    id: "masked-sdpa",
    summary: "scaled_dot_product_attention with a mask",
    why: "On the private interface it is said to ignore causal masks (Orion, row 6). Through Core ML \
          masks are said to work (CoreML-LLM), but executorch measures infinities and NaN of the \
          operation in fp16 on macOS 26.1 and iOS 26, where macOS 15 is fine.",
    help: "explicit-attention writes it with matmul, the mask, softmax and matmul.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/mechramc/Orion",
        "https://github.com/pytorch/executorch/issues/15833",
    ],
    severity: &[
        (Target::CoreMl, Severity::Warning),
        (Target::AneDirect, Severity::Error),
    ],
    catalog: META.catalog,
};

impl Pass for ExplicitAttention {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[MASKED_SDPA]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        if !(-LARGEST_HALF..0.0).contains(&options.mask_value) {
            return Err(OptionError {
                pass: META.id,
                why: format!(
                    "option `mask_value`: {} is not between -{LARGEST_HALF} and 0",
                    options.mask_value
                ),
            });
        }
        Ok(Box::new(Attention(options)))
    }
}

struct Attention(Options);

impl Matcher for Attention {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op_of_type(node, "scaled_dot_product_attention") else {
            return Attempt::NoMatch;
        };
        let has_mask = op
            .argument("attn_mask")
            .is_some_and(|mask| !mask.bindings.is_empty());
        let attempt = self.written_out(block, op, node, has_mask);
        if !has_mask {
            return attempt;
        }
        let shape = ["query", "key"].map(|name| {
            let ty = op.value(name).and_then(|value| block.tensor(value));
            let length = ty.and_then(|ty| ty.dims.iter().nth_back(1)?.size());
            length.map_or_else(
                || "an unknown number of".to_owned(),
                |length| length.to_string(),
            )
        });
        let [queries, keys] = shape;
        let found = MASKED_SDPA.found(format!(
            "masked attention of {queries} queries to {keys} keys"
        ));
        attempt.with(found.parameter("attn_mask"))
    }
}

impl Attention {
    fn written_out(
        &self,
        block: &Block<'_>,
        op: &Operation,
        node: NodeId,
        has_mask: bool,
    ) -> Attempt {
        if self.0.only_masked && !has_mask {
            let why = "it has no mask, and the option `only_masked` is true";
            return Attempt::missed(node, why);
        }
        let parts = match Parts::of(block, op) {
            Ok(parts) => parts,
            Err(why) => return Attempt::missed(node, why),
        };
        let mask = if has_mask {
            match mask::read(block, op, &parts.scores, parts.dtype) {
                Ok(mask) => mask,
                Err(why) => return Attempt::missed(node, why),
            }
        } else {
            Mask::None
        };
        let what = format!("attention {} becomes matmul{}", mask.text(), mask.steps());
        let options = self.0;
        let result = ValueId::first(node);
        let Some(ty) = block.graph.ty(result).cloned() else {
            return Attempt::missed(node, "the type of the result is not known");
        };
        Attempt::matched(what, move |edit| {
            let attended = write(edit, &parts, mask, options)?;
            // Sizes that only key, value or mask declare do not make the result's type narrower.
            edit.retype(attended, ty);
            edit.replace(result, attended)
        })
    }
}

/// The operands, whose shapes are those that the operation asks for.
struct Parts {
    query: ValueId,
    key: ValueId,
    value: ValueId,
    dtype: DType,
    /// E: the size of a query.
    inner: u64,
    /// The shape of the scores: \[…, L, S\].
    scores: Vec<Dim>,
}

impl Parts {
    fn of(block: &Block<'_>, op: &Operation) -> Result<Self, String> {
        let operand = |name: &str| {
            let value = op
                .value(name)
                .ok_or_else(|| format!("`{name}` is a literal"))?;
            let ty = block
                .tensor(value)
                .filter(|ty| ty.dims.len() >= 3)
                .ok_or_else(|| format!("the shape of `{name}` is not known"))?;
            Ok::<_, String>((value, ty))
        };
        let ((query, q), (key, k), (value, v)) =
            (operand("query")?, operand("key")?, operand("value")?);
        let ([lead @ .., length, inner], [key_lead @ .., source, _], [value_lead @ .., _, _]) =
            (q.dims.as_slice(), k.dims.as_slice(), v.dims.as_slice())
        else {
            return Err("an operand has a rank below 2".to_owned());
        };
        if k.dtype != q.dtype || v.dtype != q.dtype {
            return Err("query, key and value are of different types".to_owned());
        }
        for (name, other) in [("key", key_lead), ("value", value_lead)] {
            if !fits(other, lead) || other.len() != lead.len() {
                return Err(format!(
                    "the leading dimensions of `{name}` are not those of the query, whose shape \
                     the result has"
                ));
            }
        }
        let inner = inner
            .size()
            .filter(|size| *size > 0)
            .ok_or("the size of a query, of which the scale is made, is not fixed")?;
        let mut scores = lead.to_vec();
        scores.extend([*length, *source]);
        Ok(Self {
            query,
            key,
            value,
            dtype: q.dtype,
            inner,
            scores,
        })
    }
}

/// Whether a shape broadcasts to another without enlarging it; unknown sizes are taken to be equal.
fn fits(own: &[Dim], whole: &[Dim]) -> bool {
    own.len() <= whole.len()
        && own
            .iter()
            .rev()
            .zip(whole.iter().rev())
            .all(|(own, whole)| match (own.size(), whole.size()) {
                (Some(own), Some(whole)) => own == whole || own == 1,
                _ => true,
            })
}

fn write(
    edit: &mut Edit<'_>,
    parts: &Parts,
    mask: Mask,
    options: Options,
) -> Result<ValueId, EditError> {
    let (mut query, mut key) = (parts.query, parts.key);
    match options.scale_on {
        Operand::Q => query = scaled(edit, query, parts)?,
        Operand::K => key = scaled(edit, key, parts)?,
        Operand::Scores => {}
    }
    let (no, yes) = (
        edit.constant(Value::bool(false)),
        edit.constant(Value::bool(true)),
    );
    let mut scores = product(edit, (query, key), &no, &yes)?;
    if options.scale_on == Operand::Scores {
        scores = scaled(edit, scores, parts)?;
    }
    scores = match mask {
        Mask::None => scores,
        Mask::Add { mask, .. } => edit.op("add", &[("x", Binding::Value(scores)), ("y", mask)])?,
        Mask::Constant { keep, shape, .. } => {
            let mask = mask::additive(parts.dtype, shape, &keep, options.mask_value)
                .ok_or(EditError::Constant(parts.dtype))?;
            let mask = edit.constant(mask);
            edit.op("add", &[("x", Binding::Value(scores)), ("y", mask)])?
        }
        Mask::Select(mask) => {
            let masked = edit.scalar(parts.dtype, options.mask_value)?;
            edit.op(
                "select",
                &[("cond", mask), ("a", Binding::Value(scores)), ("b", masked)],
            )?
        }
    };
    let axis = edit.constant(Value::int32(-1));
    let weights = edit.op("softmax", &[("x", Binding::Value(scores)), ("axis", axis)])?;
    product(edit, (weights, parts.value), &no, &no)
}

/// x / √E; x itself where E is 1.
fn scaled(edit: &mut Edit<'_>, x: ValueId, parts: &Parts) -> Result<ValueId, EditError> {
    if parts.inner == 1 {
        return Ok(x);
    }
    let factor = edit.scalar(parts.dtype, 1.0 / (parts.inner as f64).sqrt())?;
    edit.op("mul", &[("x", Binding::Value(x)), ("y", factor)])
}

/// x · y or x · yᵀ, with both flags named: readers of MIL text outside Core ML want them so.
fn product(
    edit: &mut Edit<'_>,
    (x, y): (ValueId, ValueId),
    transpose_x: &Binding,
    transpose_y: &Binding,
) -> Result<ValueId, EditError> {
    edit.op(
        "matmul",
        &[
            ("x", Binding::Value(x)),
            ("y", Binding::Value(y)),
            ("transpose_x", transpose_x.clone()),
            ("transpose_y", transpose_y.clone()),
        ],
    )
}
