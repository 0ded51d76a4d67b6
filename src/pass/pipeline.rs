//! Pipelines as text.
//!
//! ```text
//! pipeline := step (',' step)*            an empty text is the empty pipeline
//! step     := name [ '{' option (',' option)* '}' ]
//!           | '(' pipeline ')' '*'        a group, repeated until it changes nothing
//! option   := name '=' value
//! ```
//!
//! A name is a pass's id or a named pipeline; named pipelines take no options.

use std::fmt;

use super::matcher::Pass;
use super::options::{OptionError, OptionMap, parse_value};

/// How often a group is repeated before the manager gives up and says so.
pub(super) const MAX_ROUNDS: usize = 10;

/// The named pipelines with their texts.
pub const NAMED: [(&str, &str); 5] = [
    ("none", ""),
    (
        "cleanup",
        "(dead-code,fold-consts,fuse-casts,remove-noops,forward-slices,dedup-consts)*",
    ),
    (
        "default",
        "cleanup,pow-to-mul,fold-rsqrt-epsilon,stable-softplus,stable-log-softmax,stable-logsumexp,\
         finite-masks,wide-topk-index,cleanup",
    ),
    (
        "llm",
        "default,safe-rmsnorm,sink-attention-scale,slice-queries,cleanup,scale-residual{alpha=1},\
         merge-states,pad-states,cleanup",
    ),
    (
        "ane-direct",
        "cleanup,pow-to-mul{rsqrt=false},fold-rsqrt-epsilon{only_rsqrt=true},stable-softplus,\
         stable-log-softmax,stable-logsumexp,finite-masks,wide-topk-index,cleanup,\
         explicit-attention{only_masked=false},gelu-tanh{form=primitive},rope-as-matmul,\
         eliminate-concat{outputs=true},split-conv-bias,split-wide-conv,cleanup,\
         name-immediates,dedup-consts,order-interface,uniform-interface",
    ),
];

/// Part of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// One pass with its options.
    Pass {
        /// The pass's id.
        id: String,
        /// Its options.
        options: OptionMap,
    },
    /// Steps that are repeated until they change nothing.
    Group(Vec<Step>),
}

/// A pipeline: steps in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pipeline {
    /// The steps.
    pub steps: Vec<Step>,
}

/// A text that is not a pipeline.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PipelineError {
    /// The text does not follow the grammar.
    #[error("pipeline `{text}`: {what} at column {column}")]
    Syntax {
        /// The whole text.
        text: String,
        /// What is wrong.
        what: String,
        /// Where, counted in characters from 1.
        column: usize,
    },
    /// No pass or pipeline has this name.
    #[error("there is no pass or pipeline `{name}`{}", did_you_mean(nearest.as_deref()))]
    Unknown {
        /// The name.
        name: String,
        /// The most similar known name, if one is similar.
        nearest: Option<String>,
    },
    /// A named pipeline was given options.
    #[error("`{0}` is a pipeline and takes no options; use `--set PASS.OPTION=VALUE`")]
    Options(String),
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || "; `milwright list` shows them all".to_owned(),
        |name| format!("; did you mean `{name}`?"),
    )
}

impl Pipeline {
    /// Parses a pipeline's text; names are looked up among `passes` and the named pipelines.
    pub fn parse(text: &str, passes: &[&'static dyn Pass]) -> Result<Self, PipelineError> {
        let mut parser = Parser {
            text,
            chars: text.chars().collect(),
            at: 0,
            passes,
            depth: 0,
        };
        let steps = parser.steps()?;
        parser.skip_spaces();
        if parser.at < parser.chars.len() {
            return Err(parser.error("unexpected text"));
        }
        Ok(Self { steps })
    }

    /// The ids of the passes in order, groups once.
    pub fn ids(&self) -> Vec<&str> {
        fn collect<'a>(steps: &'a [Step], ids: &mut Vec<&'a str>) {
            for step in steps {
                match step {
                    Step::Pass { id, .. } => ids.push(id),
                    Step::Group(steps) => collect(steps, ids),
                }
            }
        }
        let mut ids = Vec::new();
        collect(&self.steps, &mut ids);
        ids
    }

    /// Checks that every pass takes the options it is given.
    pub fn check_options(&self, passes: &[&'static dyn Pass]) -> Result<(), OptionError> {
        fn check(steps: &[Step], passes: &[&'static dyn Pass]) -> Result<(), OptionError> {
            steps.iter().try_for_each(|step| match step {
                Step::Group(inner) => check(inner, passes),
                Step::Pass { id, options } => passes
                    .iter()
                    .find(|pass| pass.meta().id == id)
                    .map_or(Ok(()), |pass| pass.matcher(options).map(|_| ())),
            })
        }
        check(&self.steps, passes)
    }

    /// Appends the steps of another pipeline.
    pub fn append(&mut self, other: Self) {
        self.steps.extend(other.steps);
    }

    /// Removes a pass everywhere. Gives whether it was there.
    pub fn skip(&mut self, id: &str) -> bool {
        fn remove(steps: &mut Vec<Step>, id: &str) -> bool {
            let before = steps.len();
            steps.retain(|step| !matches!(step, Step::Pass { id: own, .. } if own == id));
            let mut found = steps.len() != before;
            for step in steps.iter_mut() {
                if let Step::Group(inner) = step {
                    found |= remove(inner, id);
                }
            }
            steps.retain(|step| !matches!(step, Step::Group(inner) if inner.is_empty()));
            found
        }
        remove(&mut self.steps, id)
    }

    /// Sets an option of a pass everywhere. Gives whether the pass was there.
    pub fn set(&mut self, id: &str, option: &str, value: &serde_json::Value) -> bool {
        fn set(steps: &mut [Step], id: &str, option: &str, value: &serde_json::Value) -> bool {
            let mut found = false;
            for step in steps {
                match step {
                    Step::Pass { id: own, options } if own == id => {
                        options.insert(option.to_owned(), value.clone());
                        found = true;
                    }
                    Step::Pass { .. } => {}
                    Step::Group(inner) => found |= set(inner, id, option, value),
                }
            }
            found
        }
        set(&mut self.steps, id, option, value)
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn write(steps: &[Step], f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for (index, step) in steps.iter().enumerate() {
                if index > 0 {
                    f.write_str(",")?;
                }
                match step {
                    Step::Pass { id, options } => {
                        f.write_str(id)?;
                        if !options.is_empty() {
                            let list: Vec<String> = options
                                .iter()
                                .map(|(name, value)| match value.as_str() {
                                    Some(text) => format!("{name}={text}"),
                                    None => format!("{name}={value}"),
                                })
                                .collect();
                            write!(f, "{{{}}}", list.join(","))?;
                        }
                    }
                    Step::Group(inner) => {
                        f.write_str("(")?;
                        write(inner, f)?;
                        f.write_str(")*")?;
                    }
                }
            }
            Ok(())
        }
        write(&self.steps, f)
    }
}

/// The known name that is most like this one, if any is close: at most a third of its letters
/// differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    known
        .into_iter()
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance * 3 <= candidate.len().max(name.len()))
        .map(|(_, candidate)| candidate.to_owned())
}

/// Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Groups may be nested this deep; nobody means more.
const MAX_DEPTH: usize = 8;

struct Parser<'a> {
    text: &'a str,
    chars: Vec<char>,
    at: usize,
    passes: &'a [&'static dyn Pass],
    depth: usize,
}

impl Parser<'_> {
    fn error(&self, what: &str) -> PipelineError {
        PipelineError::Syntax {
            text: self.text.to_owned(),
            what: what.to_owned(),
            column: self.at + 1,
        }
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip_spaces();
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, more: &str) -> String {
        self.skip_spaces();
        let start = self.at;
        while self
            .peek()
            .is_some_and(|c| c.is_ascii_alphanumeric() || more.contains(c))
        {
            self.at += 1;
        }
        self.chars[start..self.at].iter().collect()
    }

    fn steps(&mut self) -> Result<Vec<Step>, PipelineError> {
        let mut steps = Vec::new();
        self.skip_spaces();
        if self.peek().is_none() {
            return Ok(steps);
        }
        loop {
            steps.extend(self.step()?);
            if !self.eat(',') {
                return Ok(steps);
            }
        }
    }

    fn step(&mut self) -> Result<Vec<Step>, PipelineError> {
        if self.eat('(') {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                self.at -= 1;
                return Err(self.error("groups nested too deep"));
            }
            let steps = self.steps()?;
            self.depth -= 1;
            if !self.eat(')') {
                return Err(self.error("expected `)`"));
            }
            if !self.eat('*') {
                return Err(self.error("expected `*` after a group"));
            }
            return Ok(vec![Step::Group(steps)]);
        }
        let name = self.word("-_");
        if name.is_empty() {
            return Err(self.error("expected the name of a pass or pipeline"));
        }
        let options = self.options()?;
        if self.passes.iter().any(|pass| pass.meta().id == name) {
            return Ok(vec![Step::Pass { id: name, options }]);
        }
        let Some((_, text)) = NAMED.iter().find(|(own, _)| *own == name) else {
            let known = NAMED
                .iter()
                .map(|(own, _)| *own)
                .chain(self.passes.iter().map(|pass| pass.meta().id));
            return Err(PipelineError::Unknown {
                nearest: nearest(&name, known),
                name,
            });
        };
        if !options.is_empty() {
            return Err(PipelineError::Options(name));
        }
        Ok(Pipeline::parse(text, self.passes)?.steps)
    }

    fn options(&mut self) -> Result<OptionMap, PipelineError> {
        let mut options = OptionMap::new();
        if !self.eat('{') {
            return Ok(options);
        }
        loop {
            let name = self.word("_");
            if name.is_empty() {
                return Err(self.error("expected the name of an option"));
            }
            if !self.eat('=') {
                return Err(self.error("expected `=`"));
            }
            let value = self.word("-_+.:");
            if value.is_empty() {
                return Err(self.error("expected a value"));
            }
            options.insert(name, parse_value(&value));
            if self.eat('}') {
                return Ok(options);
            }
            if !self.eat(',') {
                return Err(self.error("expected `,` or `}`"));
            }
        }
    }
}
