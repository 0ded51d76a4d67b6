//! What `milwright optimize` says at its end: what each pass did, sizes before and after, what was
//! left out and why, and what to do next.

use std::collections::BTreeSet;
use std::path::Path;

use super::args::OptimizeArgs;
use super::output::{Output, count, plural};
use crate::ir::{Content, TensorType};
use crate::model::Model;
use crate::pass::{Outcome, PassRun};

/// How large a model is.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// Operations of all programs, nested blocks included.
    pub(super) ops: usize,
    /// Bytes of the weights that it refers to, each once, without their headers.
    weights: u64,
}

impl Size {
    pub(super) fn of(model: &Model) -> Self {
        let parts = model.programs();
        let ops = parts.iter().map(|part| part.program.count_ops()).sum();
        let (mut stored, mut made) = (BTreeSet::new(), BTreeSet::new());
        let mut weights = 0;
        model.for_each_blob(|value| {
            let bytes = value.tensor_type().and_then(TensorType::packed_bytes);
            let is_first = match &value.content {
                Content::Blob(blob) => stored.insert((blob.file.clone(), blob.offset)),
                Content::New(new) => made.insert(new.bytes.as_ptr() as usize),
                Content::Immediate(_) | Content::Absent => false,
            };
            if is_first {
                weights += bytes.unwrap_or(0);
            }
        });
        Self { ops, weights }
    }
}

/// What happened, in a few lines.
pub(super) fn tell(
    args: &OptimizeArgs,
    outcome: &Outcome,
    [before, after]: [Size; 2],
    out: Option<&Path>,
    output: &Output,
) {
    if args.timings {
        for PassRun { id, time, .. } in &outcome.passes {
            output.diagnostic(&format!("{:9.3} ms  {id}", time.as_secs_f64() * 1e3));
        }
    }
    let did = |run: &&PassRun| run.rewrites > 0 || run.missed > 0;
    for run in outcome.passes.iter().filter(did) {
        let missed = match run.missed {
            0 => String::new(),
            number => format!(", {}", count(number, "near match")),
        };
        output.note(&format!(
            "  {:20} {:>4} {}{missed}",
            run.id,
            run.rewrites,
            plural(run.rewrites, "rewrite")
        ));
    }
    for note in &outcome.notes {
        output.note(note);
    }
    let stopped = if outcome.stopped {
        " (stopped by --max-rewrites)"
    } else {
        ""
    };
    let where_to = match out {
        Some(out) => format!("; wrote {}", out.display()),
        None if args.dry_run => "; wrote nothing (dry run)".to_owned(),
        None => "; wrote nothing (not equivalent)".to_owned(),
    };
    output.note(&format!(
        "{}{stopped}, {} before, {} after, weights {}{where_to}",
        count(outcome.rewrites(), "rewrite"),
        count(before.ops, "op"),
        after.ops,
        weights(before.weights, after.weights),
    ));
    for step in next_steps(args, outcome, out) {
        output.note(&step);
    }
}

fn weights(before: u64, after: u64) -> String {
    if before == after {
        format!("{} as before", bytes(before))
    } else {
        format!("{} before, {} after", bytes(before), bytes(after))
    }
}

/// A size with three digits or so, in units of 1024.
fn bytes(size: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if size < 1024 {
        return count(size as usize, "byte");
    }
    let mut size = size as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1000.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(size < 100.0);
    format!("{size:.digits$} {}", UNITS[unit])
}

/// What the user may want to do now.
fn next_steps(args: &OptimizeArgs, outcome: &Outcome, out: Option<&Path>) -> Vec<String> {
    let mut steps = Vec::new();
    let missed: usize = outcome.passes.iter().map(|run| run.missed).sum();
    if missed > 0 && args.remarks.is_none() {
        steps.push(format!(
            "{}; --remarks missed says what stopped {}",
            count(missed, "near match"),
            if missed == 1 { "it" } else { "them" }
        ));
    }
    if let (Some(out), None) = (out, args.verify)
        && out.extension().is_none_or(|extension| extension != "mil")
        && outcome.rewrites() > 0
    {
        steps.push(format!(
            "next: `milwright verify {} {}` compares what the two compute, on this machine",
            args.model.display(),
            out.display()
        ));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_short_and_in_units_of_1024() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(1), "1 byte");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(300 << 20), "300 MiB");
        assert_eq!(bytes(1023 << 20), "1.0 GiB");
        assert_eq!(bytes(5 << 40), "5.0 TiB");
    }
}
