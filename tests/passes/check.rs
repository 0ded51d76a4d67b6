//! What must hold of every case, whatever the pass.

use std::collections::BTreeMap;

use milwright::eval::ports::PortMap;
use milwright::eval::states::StateMap;
use milwright::ir::Program;
use milwright::model::{Model, Origin};
use milwright::pass::{
    Exactness, Manager, Outcome, Pass, RemarkKind, Settings, Silent, Step, verify,
};
use milwright::text::{PrintOptions, diff, parse, program_text};

use crate::case::Case;
use crate::{evaluate, package};

/// The entry of the metadata that each new description has.
const WRITTEN_BY: &str = "com.milwright.version";

/// Checks a case; gives what the snapshot keeps: the remarks, and how the text changed.
///
/// # Errors
/// What does not hold.
pub(crate) fn check(case: &Case, passes: &[&'static dyn Pass]) -> Result<String, String> {
    known_issues(case, &case.program, "before")?;
    let before = print(case, &case.program);
    reads_back(case, &before)?;
    package::survives(case, &case.program, &before)?;

    let mut model = Model::for_reading(case.program.clone(), &Origin::default());
    let described = model.interface_problems();
    let outcome = run(case, passes, &mut model)?;
    let program = program(&model)?;
    let after = print(case, &program);
    if let Some(problem) = model.interface_problems().first()
        && !described.contains(problem)
    {
        return Err(format!("the description does not follow: {problem}"));
    }
    known_issues(case, &program, "after")?;
    reads_back(case, &after)?;
    package::survives(case, &program, &after)?;
    meant(case, &outcome, before != after)?;

    let metadata = model.user_defined();
    let again = run(case, passes, &mut model)?;
    let printed = print(case, &self::program(&model)?);
    if again.rewrites() > 0 || printed != after || model.user_defined() != metadata {
        let change = diff::changed_lines(&after, &printed, 1);
        return Err(format!("a second run changes it again:\n{change}"));
    }
    let exactness = exactness(case, passes)?;
    let map = StateMap::of(&metadata).map_err(|error| error.to_string())?;
    let ports = PortMap::of(&metadata).map_err(|error| error.to_string())?;
    evaluate::equivalent(case, &case.program, &program, exactness, (&map, &ports))?;
    Ok(report(&outcome, &before, &after) + &added(&metadata))
}

/// The only program of a case's model.
fn program(model: &Model) -> Result<Program, String> {
    let mut parts = model.programs().into_iter();
    let part = parts.next().ok_or("there is no program")?;
    Ok(part.program.clone())
}

/// What a pass put into the metadata.
fn added(metadata: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for (key, value) in metadata {
        if key != WRITTEN_BY {
            text.push_str(&format!("\nmetadata {key}: {value}\n"));
        }
    }
    text
}

/// How exact the pass says that it is.
fn exactness(case: &Case, passes: &[&'static dyn Pass]) -> Result<Exactness, String> {
    let pass = case.pipeline.steps.iter().find_map(|step| match step {
        Step::Pass { id, .. } => passes.iter().find(|pass| pass.meta().id == id),
        Step::Group(_) => None,
    });
    pass.map(|pass| pass.meta().exactness)
        .ok_or_else(|| "its pipeline has no pass".to_owned())
}

pub(crate) fn print(case: &Case, program: &Program) -> String {
    let options = PrintOptions {
        dialect: Some(case.dialect),
        inline_new: true,
        ..PrintOptions::default()
    };
    program_text(program, &options).unwrap_or_else(|error| error.to_string())
}

/// The verifier finds what the case names, and nothing else.
pub(crate) fn known_issues(case: &Case, program: &Program, when: &str) -> Result<(), String> {
    let issues = verify::issues(program);
    for issue in &issues {
        if !case.issues.iter().any(|known| issue.contains(known)) {
            return Err(format!(
                "{when} the pass the program does not verify: {issue}"
            ));
        }
    }
    for known in &case.issues {
        if !issues.iter().any(|issue| issue.contains(known)) {
            return Err(format!("{when} the pass there is no issue with `{known}`"));
        }
    }
    Ok(())
}

/// The text reads back to a program with the same text.
pub(crate) fn reads_back(case: &Case, text: &str) -> Result<(), String> {
    let parsed = parse(text, "printed")
        .map_err(|errors| format!("its text does not read back: {}\n{text}", errors[0]))?;
    let again = print(case, &parsed.program);
    if again != text {
        let change = diff::changed_lines(text, &again, 1);
        return Err(format!("its text reads back as another program:\n{change}"));
    }
    Ok(())
}

fn run(case: &Case, passes: &[&'static dyn Pass], model: &mut Model) -> Result<Outcome, String> {
    let settings = Settings {
        interface_changes: true,
        verify_each: true,
        ..Settings::default()
    };
    let part = model.parts_mut().pop().ok_or("there is no program")?;
    let known = verify::issues(part.program);
    let outcome = Manager::new(passes, settings)
        .run_part(&case.pipeline, part, &known, &case.blobs, &mut Silent)
        .map_err(|error| error.to_string())?;
    match outcome.notes.first() {
        Some(note) => Err(note.clone()),
        None => Ok(outcome),
    }
}

/// The pass changed what it should, says so, and gives reasons where it should not.
pub(crate) fn meant(case: &Case, outcome: &Outcome, changed: bool) -> Result<(), String> {
    let rewrites = outcome.rewrites();
    if changed != (rewrites > 0) {
        let does = if changed { "changed" } else { "did not change" };
        return Err(format!(
            "it counts {rewrites} rewrites, but the text {does}"
        ));
    }
    match (case.is_negative(), changed) {
        (true, true) => return Err("a case named `no_…` changed".to_owned()),
        (false, false) => {
            let remarks = report(outcome, "", "");
            return Err(format!("nothing changed\n{remarks}"));
        }
        _ => {}
    }
    let missed = outcome.remarks.iter().any(|r| r.kind == RemarkKind::Missed);
    match (case.silent, missed) {
        (true, true) => Err(format!("it is not silent\n{}", report(outcome, "", ""))),
        (false, false) if case.is_negative() => Err(
            "a case named `no_…` has no near match that says why, and is not `// silent`".into(),
        ),
        _ => Ok(()),
    }
}

fn report(outcome: &Outcome, before: &str, after: &str) -> String {
    let mut text = String::new();
    for remark in &outcome.remarks {
        text.push_str(&remark.to_string());
        text.push('\n');
    }
    if before != after {
        text.push('\n');
        text.push_str(&diff::changed_lines(before, after, 1));
    }
    text
}
