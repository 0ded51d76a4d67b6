//! What must hold of every case, whatever the pass.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use milwright::eval::ports::PortMap;
use milwright::eval::scales::ScaleMap;
use milwright::eval::states::StateMap;
use milwright::ir::Program;
use milwright::model::{Model, Origin};
use milwright::pass::options::OptionMap;
use milwright::pass::{
    Hit, Manager, Outcome, Pass, RemarkKind, Settings, Silent, Step, Target, Whole, scan, verify,
};
use milwright::text::{PrintOptions, diff, parse, program_text};

use crate::case::Case;
use crate::{evaluate, package};

/// The entry of the metadata that each new description has.
const WRITTEN_BY: &str = "com.milwright.version";

/// Checks a case; gives what the snapshot keeps: the findings, the remarks, and how the text changed.
///
/// # Errors
/// What does not hold.
pub(crate) fn check(case: &Case, passes: &[&'static dyn Pass]) -> Result<String, String> {
    known_issues(case, &case.program, "before")?;
    let before = print(case, &case.program);
    reads_back(case, &before)?;
    package::survives(case, &case.program, &before)?;
    let (pass, options) = pass(case, passes)?;
    let hits = hits(case, pass, options)?;
    if pass.meta().is_check() {
        return found(case, &hits);
    }

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
    let map = StateMap::of(&metadata).map_err(|error| error.to_string())?;
    let ports = PortMap::of(&metadata).map_err(|error| error.to_string())?;
    let scales = ScaleMap::of(&metadata).map_err(|error| error.to_string())?;
    evaluate::equivalent(
        case,
        &case.program,
        &program,
        pass.meta().exactness,
        (&map, &ports, &scales),
    )?;
    Ok(findings(&hits) + &report(&outcome, &before, &after) + &added(&metadata))
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
            write!(text, "\nmetadata {key}: {value}\n").unwrap();
        }
    }
    text
}

/// The pass of a case, and its options.
fn pass<'c>(
    case: &'c Case,
    passes: &[&'static dyn Pass],
) -> Result<(&'static dyn Pass, &'c OptionMap), String> {
    let found = case.pipeline.steps.iter().find_map(|step| match step {
        Step::Pass { id, options } => {
            let pass = passes.iter().find(|pass| pass.meta().id == id)?;
            Some((*pass, options))
        }
        Step::Group(_) => None,
    });
    found.ok_or_else(|| "its pipeline has no pass".to_owned())
}

/// What the linter finds in a case: nothing but what the pass's rules are about.
fn hits(case: &Case, pass: &dyn Pass, options: &OptionMap) -> Result<Vec<Hit>, String> {
    if pass.rules().is_empty() {
        return Ok(Vec::new());
    }
    let model = Model::for_reading(case.program.clone(), &Origin::default());
    let metadata = model.user_defined();
    let mut hits = Vec::new();
    for mut part in model.programs() {
        case.describe(&mut part.interface);
        let whole = Whole {
            program: part.program,
            interface: &part.interface,
            metadata: &metadata,
            blobs: &case.blobs,
            stage: "",
            calibration: &case.calibration,
        };
        hits.extend(scan(pass, options, &whole).map_err(|error| error.to_string())?);
    }
    let is_known = |hit: &&Hit| pass.rules().iter().any(|rule| rule.id == hit.found.rule.id);
    match hits.iter().find(|hit| !is_known(hit)) {
        Some(hit) => Err(format!(
            "it finds `{}`, which is none of its rules",
            hit.found.rule.id
        )),
        None => Ok(hits),
    }
}

/// What a check found, which is something exactly if the case is not named `no_…`.
fn found(case: &Case, hits: &[Hit]) -> Result<String, String> {
    match (case.is_negative(), hits.is_empty()) {
        (true, false) => Err(format!(
            "a case named `no_…` has findings\n{}",
            findings(hits)
        )),
        (false, true) => Err("nothing was found".to_owned()),
        _ => Ok(findings(hits)),
    }
}

/// One line for each finding: how bad it is for each target, the rule, the place, the message.
pub(crate) fn findings(hits: &[Hit]) -> String {
    let mut text = String::new();
    for hit in hits {
        let severities = Target::ALL.map(|target| (target, hit.found.severity_for(target)));
        let mut severity: Vec<String> = severities
            .iter()
            .filter_map(|(target, severity)| {
                Some(format!("{} for {}", (*severity)?.name(), target.name()))
            })
            .collect();
        if let [(_, Some(one)), (_, Some(other))] = severities
            && one == other
        {
            severity = vec![one.name().to_owned()];
        }
        let parameter = match &hit.found.parameter {
            Some(parameter) => format!(", parameter {parameter}"),
            None => String::new(),
        };
        let fix = if hit.fix { "" } else { " [no fix]" };
        writeln!(
            text,
            "{}: {} at {}{parameter}: {}{fix}",
            hit.found.rule.id,
            severity.join(", "),
            hit.place,
            hit.found.message
        )
        .unwrap();
    }
    text
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
        calibration: Arc::clone(&case.calibration),
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
