//! What goes wrong, from what was measured: one issue for each kind of thing in each function, at the
//! first value where it shows.

use std::collections::HashSet;

use super::anatomy::{Anatomy, Class, Member};
use super::report::{FunctionReport, Issue, LowRun, StreamReport};
use crate::eval::ranges::{FunctionRanges, HALF_MAX, HALF_NORMAL, PRODUCT_MAX, Range};

/// What was measured of one function in each way of computing.
pub(super) struct Measured<'m> {
    pub(super) stage: &'m str,
    pub(super) function: &'m str,
    pub(super) anatomy: &'m Anatomy,
    pub(super) full: &'m FunctionRanges,
    pub(super) half: Option<&'m FunctionRanges>,
    pub(super) engine: Option<&'m FunctionRanges>,
}

/// Operations that divide, or that go to infinity at 0, and so have a guard.
const GUARDED: [&str; 8] = [
    "batch_norm",
    "instance_norm",
    "inverse",
    "l2_norm",
    "layer_norm",
    "log",
    "real_div",
    "rsqrt",
];

/// How something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It is finite in fp32 and beyond fp16.
    Overflow,
    /// It is beyond what a product is reported to hold on the Neural Engine.
    Product,
    /// A constant is NaN or infinite.
    NotFinite,
    /// It is NaN in fp32 although its arguments are not.
    Full,
    /// It is not finite in fp16 although fp32 and its arguments are.
    Half,
    /// The same only with what is reported of the Neural Engine.
    Engine,
}

/// What is gathered of one issue.
struct Gathered<'m> {
    kind: Kind,
    class: Class,
    first: &'m Member,
    values: usize,
    peak: f64,
    worst: &'m Member,
    elements: u64,
}

/// The issues of a function, in its order.
pub(super) fn of(measured: &Measured<'_>, stream: Option<&StreamReport>) -> Vec<Issue> {
    let mut all: Vec<Gathered<'_>> = Vec::new();
    // Behind an overflow wrong values are computed of wrong ones.
    let mut has_overflow = false;
    let members = measured.anatomy.members.iter();
    let constants: HashSet<&str> = members
        .filter(|member| member.class == Class::Weight)
        .map(|member| member.name.as_str())
        .collect();
    let nan = Nan::new(measured);
    let half = Broken::new(measured, measured.half);
    let engine = Broken::new(measured, measured.engine);
    for member in &measured.anatomy.members {
        let Some(range) = measured.full.get(&member.name) else {
            continue;
        };
        let found = nan.at(member, range);
        let Some((kind, class)) = found.or_else(|| kind(member, range, &half, &engine)) else {
            continue;
        };
        has_overflow |= matches!(kind, Kind::Overflow | Kind::NotFinite | Kind::Full);
        let is_beyond = matches!(kind, Kind::Overflow | Kind::Product);
        if is_beyond
            && class != Class::ResidualAccumulation
            && is_passed_on(member, range, measured)
        {
            continue;
        }
        if matches!(kind, Kind::Half | Kind::Engine) {
            let is_cause = match class {
                Class::GuardEpsilon => reads_small(member, measured, &constants),
                // A mask that becomes minus infinity matters where it makes NaN of something.
                Class::Mask => half.breaks_more_than_masks || engine.breaks_more_than_masks,
                _ => !has_overflow,
            };
            if !is_cause {
                continue;
            }
        }
        let elements = match kind {
            Kind::Overflow => range.overflows,
            Kind::Product => range.above_limit,
            Kind::NotFinite => range.not_finite(),
            Kind::Full => range.nan,
            Kind::Half => half.count(member),
            Kind::Engine => engine.count(member),
        };
        let known = all
            .iter_mut()
            .find(|known| known.kind == kind && known.class == class);
        match known {
            Some(known) => {
                known.values += 1;
                known.elements += elements;
                if range.peak > known.peak {
                    (known.peak, known.worst) = (range.peak, member);
                }
            }
            None => all.push(Gathered {
                kind,
                class,
                first: member,
                values: 1,
                peak: range.peak,
                worst: member,
                elements,
            }),
        }
    }
    let issues = all.into_iter().map(|gathered| Issue {
        class: gathered.class,
        stage: measured.stage.to_owned(),
        function: measured.function.to_owned(),
        value: gathered.first.name.clone(),
        op_type: gathered.first.op_type.clone(),
        layer: gathered.first.layer,
        values: gathered.values,
        peak: gathered.peak,
        message: message(&gathered, stream),
        cures: cures(&gathered, stream),
    });
    issues.collect()
}

/// What goes wrong without anything that overflows or is not finite: the first value that is far off.
pub(super) fn unexplained(mode: &str, run: &LowRun, functions: &[FunctionReport]) -> Option<Issue> {
    let wrong = run.first_departed.as_ref()?;
    let (function, value) = functions.iter().find_map(|function| {
        let mut values = function.values.iter();
        let value = values.find(|value| value.name == wrong.value)?;
        Some((function, value))
    })?;
    let small = match value.range.subnormal {
        0 => String::new(),
        count => format!(
            "; {count} of its {} elements are below 2^-14, where fp16 loses bits",
            value.range.elements
        ),
    };
    Some(Issue {
        class: wrong.class,
        stage: function.stage.clone(),
        function: function.function.clone(),
        value: wrong.value.clone(),
        op_type: wrong.op_type.clone(),
        layer: wrong.layer,
        values: 1,
        peak: value.range.peak,
        message: format!(
            "`{}` ({}) is the first value that {mode} gets wrong by more than a tenth: {} for {}{small}",
            wrong.value, wrong.op_type, wrong.low, wrong.reference
        ),
        cures: cures_of(wrong.class, &wrong.op_type),
    })
}

/// Whether a value is only as large as what it is computed of, which is beyond fp16 itself.
fn is_passed_on(member: &Member, range: &Range, measured: &Measured<'_>) -> bool {
    let operands = member.operands.iter();
    let mut ranges = operands.filter_map(|operand| measured.full.get(operand));
    ranges.any(|operand| operand.overflows > 0 && range.peak <= operand.peak)
}

/// Whether an operation divides by, or takes the root or logarithm of, something that fp16 flushes.
fn reads_small(member: &Member, measured: &Measured<'_>, constants: &HashSet<&str>) -> bool {
    let operands = member.operands.iter();
    let mut ranges = operands
        .filter(|operand| !constants.contains(operand.as_str()))
        .filter_map(|operand| measured.full.get(operand));
    ranges.any(|range| range.zeros > 0 || range.subnormal > 0)
}

/// What goes wrong with a value, if it is where something begins to.
fn kind(
    member: &Member,
    range: &Range,
    half: &Broken<'_>,
    engine: &Broken<'_>,
) -> Option<(Kind, Class)> {
    // What is meant to be minus infinity is so in every way of computing.
    let is_mask = member.class == Class::Mask;
    if member.class == Class::Weight {
        // A number alone is a bound or a fill, and what fp16 makes of it is as good.
        let is_beyond = range.overflows > 0 && range.elements > 1;
        return is_beyond.then_some((Kind::Overflow, Class::Weight));
    }
    if range.overflows > 0 && !is_mask {
        return Some((Kind::Overflow, member.class));
    }
    let class = match member.op_type.as_str() {
        op_type if GUARDED.contains(&op_type) => Class::GuardEpsilon,
        _ => member.class,
    };
    if half.begins_at(member) {
        return Some((Kind::Half, class));
    }
    if range.above_limit > 0 && !is_mask {
        return Some((Kind::Product, member.class));
    }
    engine.begins_at(member).then_some((Kind::Engine, class))
}

/// Where NaN comes from in fp32 itself.
struct Nan<'m> {
    full: &'m FunctionRanges,
    /// Constants with infinities.
    infinite: HashSet<&'m str>,
    is_anywhere: bool,
}

impl<'m> Nan<'m> {
    fn new(measured: &Measured<'m>) -> Self {
        let mut nan = Self {
            full: measured.full,
            infinite: HashSet::new(),
            is_anywhere: false,
        };
        for member in &measured.anatomy.members {
            let Some(range) = measured.full.get(&member.name) else {
                continue;
            };
            nan.is_anywhere |= range.nan > 0;
            let is_constant = matches!(member.class, Class::Weight | Class::Mask);
            if is_constant && range.inf > 0 {
                nan.infinite.insert(&member.name);
            }
        }
        nan
    }

    /// Whether NaN begins here, or what makes it: infinities of constants mean something unless they do.
    fn at(&self, member: &Member, range: &Range) -> Option<(Kind, Class)> {
        if member.class == Class::Weight {
            let makes_nan = range.inf > 0 && range.elements > 1 && self.is_anywhere;
            return (range.nan > 0 || makes_nan).then_some((Kind::NotFinite, Class::Weight));
        }
        let is_nan = |name: &String| self.full.get(name).is_some_and(|range| range.nan > 0);
        if range.nan == 0 || member.operands.iter().any(is_nan) {
            return None;
        }
        // Zero times minus infinity, or a row that is masked as a whole.
        let mut operands = member.operands.iter();
        let class = if operands.any(|operand| self.infinite.contains(operand.as_str())) {
            Class::Mask
        } else {
            member.class
        };
        Some((Kind::Full, class))
    }
}

/// Which values are not finite in a way of computing while they are in fp32.
struct Broken<'m> {
    low: Option<&'m FunctionRanges>,
    full: &'m FunctionRanges,
    names: HashSet<&'m str>,
    breaks_more_than_masks: bool,
}

impl<'m> Broken<'m> {
    fn new(measured: &Measured<'m>, low: Option<&'m FunctionRanges>) -> Self {
        let mut broken = Self {
            low,
            full: measured.full,
            names: HashSet::new(),
            breaks_more_than_masks: false,
        };
        for member in &measured.anatomy.members {
            if broken.count(member) > 0 {
                broken.names.insert(&member.name);
                broken.breaks_more_than_masks |= member.class != Class::Mask;
            }
        }
        broken
    }

    /// Elements of a value that are not finite here only.
    fn count(&self, member: &Member) -> u64 {
        let low = self.low.and_then(|low| low.get(&member.name));
        let (Some(low), Some(full)) = (low, self.full.get(&member.name)) else {
            return 0;
        };
        low.not_finite().saturating_sub(full.not_finite())
    }

    /// Whether a value has such elements and nothing that it is computed of has.
    fn begins_at(&self, member: &Member) -> bool {
        let is_broken = |name: &str| self.names.contains(name);
        is_broken(&member.name) && !member.operands.iter().any(|operand| is_broken(operand))
    }
}

fn message(gathered: &Gathered<'_>, stream: Option<&StreamReport>) -> String {
    let Gathered {
        first,
        values,
        peak,
        elements,
        ..
    } = gathered;
    let others = match values {
        1 => String::new(),
        2 => ", and one more value like it".to_owned(),
        more => format!(", and {} more values like it", more - 1),
    };
    let name = &first.name;
    let at_worst = if gathered.worst.name == *name {
        String::new()
    } else {
        format!(" (at `{}`)", gathered.worst.name)
    };
    match (gathered.kind, gathered.class, stream) {
        (Kind::Overflow, Class::ResidualAccumulation, Some(stream)) => {
            let branches = if stream.is_accumulation {
                format!(
                    "; nothing that is added to it is above {}",
                    number(stream.branch_peak)
                )
            } else {
                format!(
                    "; what is added to it reaches {} by itself",
                    number(stream.branch_peak)
                )
            };
            format!(
                "the residual stream passes {} at `{name}` and reaches {}{at_worst}{branches}",
                number(HALF_MAX),
                number(*peak)
            )
        }
        (Kind::Overflow, Class::NormSquare, _) => format!(
            "the square of a norm passes {} at `{name}` and reaches {}{at_worst}{others}: it is \
             infinite in fp16, and the row becomes 0",
            number(HALF_MAX),
            number(*peak)
        ),
        (Kind::Overflow, ..) => format!(
            "`{name}` ({}) passes {} and reaches {}{at_worst}{others}",
            first.op_type,
            number(HALF_MAX),
            number(*peak)
        ),
        (Kind::Product, ..) => format!(
            "`{name}` ({}) passes {}, from where on products are reported to be infinite on the \
             Neural Engine, and reaches {}{at_worst}{others}",
            first.op_type,
            number(PRODUCT_MAX),
            number(*peak)
        ),
        (Kind::NotFinite, ..) => format!(
            "{elements} elements of `{name}` are NaN or infinite as they are stored{others}"
        ),
        (Kind::Full, ..) => format!(
            "{elements} elements of `{name}` ({}) are NaN already in fp32, of arguments that are \
             not{others}",
            first.op_type
        ),
        (Kind::Half | Kind::Engine, class, _) => {
            let whose = if gathered.kind == Kind::Half {
                "in fp16"
            } else {
                "with what is reported of the Neural Engine, and not in plain fp16"
            };
            let why = if class == Class::GuardEpsilon {
                format!("; its guard is lost below {HALF_NORMAL:.3e}")
            } else {
                String::new()
            };
            format!(
                "{elements} elements of `{name}` ({}) are NaN or infinite {whose}, of finite \
                 arguments{others}{why}",
                first.op_type
            )
        }
    }
}

/// The passes that cure an issue, the best first.
fn cures(gathered: &Gathered<'_>, stream: Option<&StreamReport>) -> Vec<String> {
    let alpha = stream.and_then(|stream| stream.alpha);
    match (gathered.class, alpha) {
        (Class::ResidualAccumulation, Some(alpha)) => vec![
            format!("scale-residual{{alpha={}}}", alpha.power_of_two),
            "clamp-residual{value=55000}".to_owned(),
        ],
        (Class::Weight, _) if gathered.kind == Kind::NotFinite => {
            vec!["sanitize-weights".to_owned()]
        }
        (class, _) => cures_of(class, &gathered.first.op_type),
    }
}

/// The passes that cure what goes wrong with a value, by what it is there for and what makes it.
fn cures_of(class: Class, op_type: &str) -> Vec<String> {
    let by_type = match op_type {
        "softplus" | "softplus_parametric" => Some("stable-softplus"),
        "reduce_log_sum_exp" => Some("stable-logsumexp"),
        "rsqrt" if class == Class::GuardEpsilon => Some("fold-rsqrt-epsilon"),
        _ => None,
    };
    let by_class: &[&str] = match class {
        Class::ResidualAccumulation => &["scale-residual{alpha=pow2}", "clamp-residual"],
        Class::NormSquare => &["safe-rmsnorm", "keep-fp32"],
        Class::AttentionLogits => &["sink-attention-scale", "keep-fp32"],
        Class::Mask => &["finite-masks"],
        Class::GuardEpsilon | Class::Branch | Class::Weight => &["keep-fp32"],
    };
    let all = by_type.into_iter().chain(by_class.iter().copied());
    all.map(str::to_owned).collect()
}

/// A magnitude with spaces between thousands: 65 504, 0.0021.
pub(super) fn number(value: f64) -> String {
    if value >= 1e9 || (value != 0.0 && value < 1e-3) {
        return format!("{value:.3e}");
    }
    if value < 1000.0 {
        let text = format!("{value:.4}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_read_at_a_glance() {
        let words = [65_504.0, 258_769.4, 410.3, 0.002, 2e-7, 0.0].map(number);
        assert_eq!(
            words,
            ["65 504", "258 769", "410.3", "0.002", "2.000e-7", "0"]
        );
    }
}
