//! Holds the written pages to the code: the pages of the passes, the table of passes in the
//! README, and the page of all rules.
//!
//! The table is generated: `MILWRIGHT_UPDATE=1 cargo test --test pages` writes it anew.

#[path = "passes/case.rs"]
#[expect(dead_code, reason = "the harness of cases uses the rest")]
mod case;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use case::Case;
use milwright::ir::Program;
use milwright::model::{Model, Origin};
use milwright::pass::{
    Evidence, Family, Manager, NAMED, Pass, Pipeline, Rule, Settings, Severity, Silent, Step,
    Target, Whole, scan, verify,
};
use milwright::passes::ALL;
use milwright::text::{self, PrintOptions};

/// The headings of a pass's page, in order, below the title.
const HEADINGS: [&str; 8] = [
    "What it does",
    "Why",
    "Before and after",
    "Does not apply when",
    "Exactness",
    "Options",
    "Evidence",
    "References",
];

/// The same of the page of a check, which rewrites nothing.
const HEADINGS_OF_A_CHECK: [&str; 7] = [
    "What it finds",
    "Why",
    "Example",
    "Does not apply when",
    "Options",
    "Evidence",
    "References",
];

/// The passes that rewrite.
fn rewriting() -> impl Iterator<Item = &'static dyn Pass> {
    ALL.iter().copied().filter(|pass| !pass.meta().is_check())
}

/// A summary has to fit beside the id in a list.
const SUMMARY_WIDTH: usize = 100;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn folder(pass: &dyn Pass) -> PathBuf {
    let meta = pass.meta();
    root().join("passes").join(meta.family.name()).join(meta.id)
}

/// The headings of a page as written, code blocks left out.
fn headings(page: &str) -> Vec<String> {
    let mut in_code = false;
    page.lines()
        .filter(|line| {
            if line.starts_with("```") {
                in_code = !in_code;
            }
            !in_code && line.starts_with('#')
        })
        .map(str::to_owned)
        .collect()
}

/// The text below a `##` heading, up to the next one.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = format!("\n## {heading}\n");
    let Some(at) = page.find(&start) else {
        return "";
    };
    let text = &page[at + start.len()..];
    &text[..text.find("\n## ").unwrap_or(text.len())]
}

/// The contents of the code blocks of a language.
fn code_blocks(text: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}");
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match &mut open {
            Some(_) if line == "```" => blocks.extend(open.take()),
            Some(block) => {
                block.push_str(line);
                block.push('\n');
            }
            None if line == opening => open = Some(String::new()),
            None => {}
        }
    }
    blocks
}

#[test]
fn every_page_has_the_same_headings_in_the_same_order() {
    for pass in ALL {
        let meta = pass.meta();
        let mut expected = vec![format!("# {}", meta.id)];
        let wanted: &[&str] = if meta.is_check() {
            &HEADINGS_OF_A_CHECK
        } else {
            &HEADINGS
        };
        expected.extend(wanted.iter().map(|heading| format!("## {heading}")));
        assert_eq!(headings(meta.page), expected, "page of {}", meta.id);
        for heading in wanted {
            let text = section(meta.page, heading);
            assert!(
                !text.trim().is_empty(),
                "{}: nothing under {heading}",
                meta.id
            );
        }
    }
}

#[test]
fn every_page_shows_a_program_before_and_after() {
    for pass in rewriting() {
        let meta = pass.meta();
        let blocks = code_blocks(section(meta.page, "Before and after"), "mil");
        let [before, after] = blocks.as_slice() else {
            panic!("{}: {} mil blocks instead of two", meta.id, blocks.len());
        };
        let first = before.lines().find(|line| !line.starts_with("//"));
        let starts = first.is_some_and(|line| line.starts_with("program("));
        assert!(starts, "{}: before", meta.id);
        assert!(after.starts_with("program("), "{}: after", meta.id);
        assert_ne!(before, after, "{}: nothing happens in the example", meta.id);
    }
}

#[test]
fn the_program_on_every_page_becomes_what_the_page_says() {
    for pass in rewriting() {
        let meta = pass.meta();
        let blocks = code_blocks(section(meta.page, "Before and after"), "mil");
        // Comments give options and what was measured, as in a case.
        let case = Case::read(&blocks[0], meta.id, meta.id).unwrap();
        let source: String = blocks[0]
            .lines()
            .skip_while(|line| line.starts_with("//"))
            .flat_map(|line| [line, "\n"])
            .collect();
        let mut program = case.program.clone();
        let options = PrintOptions {
            dialect: Some(case.dialect),
            ..PrintOptions::default()
        };
        let print = |program: &Program| text::program_text(program, &options).unwrap();
        assert_eq!(
            print(&program).trim_end(),
            source.trim_end(),
            "{}: not in canonical form",
            meta.id
        );
        let issues = verify::issues(&program);
        assert!(issues.is_empty(), "{}: {issues:?}", meta.id);
        let settings = Settings {
            interface_changes: true,
            verify_each: true,
            calibration: Arc::clone(&case.calibration),
            ..Settings::default()
        };
        Manager::new(ALL, settings)
            .run(
                &case.pipeline,
                &mut program,
                "",
                &issues,
                &case.blobs,
                &mut Silent,
            )
            .unwrap();
        assert_eq!(
            print(&program).trim_end(),
            blocks[1].trim_end(),
            "{}: the page shows another result",
            meta.id
        );
    }
}

#[test]
fn the_program_on_the_page_of_every_check_has_the_findings_that_the_page_shows() {
    for pass in ALL.iter().filter(|pass| pass.meta().is_check()) {
        let id = pass.meta().id;
        let example = section(pass.meta().page, "Example");
        let [source] = code_blocks(example, "mil").try_into().unwrap();
        // Comments say what is wrong with the program, as in a case.
        let case = Case::read(&source, id, id).unwrap();
        let mut issues = verify::issues(&case.program);
        issues.retain(|issue| !case.issues.iter().any(|known| issue.contains(known)));
        assert!(issues.is_empty(), "{id}: {issues:?}");
        let model = Model::for_reading(case.program.clone(), &Origin::default());
        let mut parts = model.programs();
        case.describe(&mut parts[0].interface);
        let whole = Whole {
            program: parts[0].program,
            interface: &parts[0].interface,
            metadata: &model.user_defined(),
            blobs: &case.blobs,
            stage: "",
            calibration: &case.calibration,
        };
        let Some(Step::Pass { options, .. }) = case.pipeline.steps.first() else {
            panic!("{id}: no pass");
        };
        let hits = scan(*pass, options, &whole).unwrap();
        let found: Vec<String> = hits
            .iter()
            .map(|hit| {
                format!(
                    "{} at {}: {}",
                    hit.found.rule.id, hit.place, hit.found.message
                )
            })
            .collect();
        assert!(!found.is_empty(), "{id}: nothing is found in the example");
        let shown = code_blocks(example, "text").concat();
        assert_eq!(shown.trim_end(), found.join("\n"), "{id}: other findings");
    }
}

#[test]
fn every_rule_has_an_id_of_its_own_and_says_what_it_must() {
    let mut ids = BTreeSet::new();
    for pass in ALL {
        let meta = pass.meta();
        assert!(!meta.is_check() || !pass.rules().is_empty(), "{}", meta.id);
        for rule in pass.rules() {
            let id = rule.id;
            assert!(ids.insert(id), "two rules are called `{id}`");
            let other = ALL.iter().any(|pass| pass.meta().id == id);
            assert!(
                id == meta.id || !other,
                "the rule `{id}` of {} is called as another pass",
                meta.id
            );
            let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(id.chars().all(is_word), "`{id}` is no id");
            for (what, text) in [
                ("summary", rule.summary),
                ("why", rule.why),
                ("help", rule.help),
            ] {
                assert!(!text.trim().is_empty(), "{id}: no {what}");
                assert!(!text.contains('\n'), "{id}: {what} has several lines");
            }
            let width = rule.summary.chars().count();
            assert!(width < SUMMARY_WIDTH, "{id}: {width} characters");
            assert!(!rule.summary.ends_with('.'), "{id}: final period");
            assert!(!rule.severity.is_empty(), "{id} is silent for every target");
            for source in rule.sources {
                assert!(source.starts_with("https://"), "{id}: {source} is no link");
                assert!(!source.contains("shared/"), "{id}");
            }
            let severity = rule.severity_for(Target::CoreMl);
            assert!(
                rule.evidence != Evidence::Disputed || severity != Some(Severity::Error),
                "{id}: what is disputed is no error for Core ML"
            );
        }
    }
}

#[test]
fn every_page_states_the_exactness_and_the_evidence_of_its_pass() {
    for pass in ALL {
        let meta = pass.meta();
        let exactness = format!("`{}`", meta.exactness.word());
        assert!(
            meta.is_check()
                || section(meta.page, "Exactness")
                    .trim()
                    .starts_with(&exactness),
            "{}: the exactness is {exactness}",
            meta.id
        );
        let level = format!("Level: **{}**", meta.evidence.name());
        assert!(
            section(meta.page, "Evidence").trim().starts_with(&level),
            "{}: the evidence is {level}",
            meta.id
        );
    }
}

#[test]
fn every_page_names_each_option_with_its_default_and_no_other() {
    for pass in ALL {
        let meta = pass.meta();
        let text = section(meta.page, "Options");
        let named: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("- `")?.split('`').next())
            .collect();
        let options = pass.options();
        let known: BTreeSet<&str> = options.keys().map(String::as_str).collect();
        assert_eq!(named, known, "options of {}", meta.id);
        for (name, default) in &options {
            let default = default
                .as_str()
                .map_or_else(|| default.to_string(), str::to_owned);
            let start = format!("- `{name}` (default `{default}`)");
            assert!(
                text.lines().any(|line| line.starts_with(&start)),
                "{}: expected `{start}`",
                meta.id
            );
        }
        if options.is_empty() {
            assert_eq!(text.trim(), "None.", "options of {}", meta.id);
        }
    }
}

#[test]
fn pages_refer_to_public_places_only() {
    for pass in ALL {
        let meta = pass.meta();
        assert!(!meta.page.contains("shared/"), "{}", meta.id);
        assert!(
            section(meta.page, "References").contains("<https://"),
            "{}: no reference has a link",
            meta.id
        );
    }
}

#[test]
fn the_folders_of_passes_and_the_list_of_passes_agree() {
    let mut on_disk = BTreeSet::new();
    for family in directories(&root().join("passes")) {
        for pass in directories(&family) {
            assert!(
                pass.join("mod.rs").is_file(),
                "{} has no mod.rs",
                pass.display()
            );
            on_disk.insert(pass);
        }
    }
    let listed: BTreeSet<PathBuf> = ALL.iter().map(|pass| folder(*pass)).collect();
    assert_eq!(on_disk, listed);
    assert_eq!(listed.len(), ALL.len(), "two passes share an id");
    for pass in ALL {
        let page = fs::read_to_string(folder(*pass).join("README.md")).unwrap();
        let meta = pass.meta();
        assert_eq!(page, meta.page, "{} shows another page", meta.id);
    }
}

#[test]
fn the_list_of_passes_is_sorted_by_family_and_id() {
    let keys: Vec<(Family, &str)> = ALL
        .iter()
        .map(|pass| (pass.meta().family, pass.meta().id))
        .collect();
    assert!(keys.is_sorted(), "{keys:?}");
}

#[test]
fn every_summary_is_one_short_line() {
    for pass in ALL {
        let meta = pass.meta();
        let width = meta.summary.chars().count();
        assert!(width < SUMMARY_WIDTH, "{}: {width} characters", meta.id);
        assert!(!meta.summary.contains('\n'), "{}: two lines", meta.id);
        assert!(!meta.summary.ends_with('.'), "{}: final period", meta.id);
    }
}

/// Not asked by a plain `cargo test`, so that a tree in which someone works on a pass passes its
/// tests; `.ci/run` asks.
#[test]
#[ignore = "there may be drafts where someone works on them; `.ci/run` allows none"]
fn no_pass_is_a_draft() {
    for pass in ALL {
        let id = pass.meta().id;
        assert!(
            !pass.is_draft(),
            "{id} is a draft: when it has twelve cases, take `is_draft` out of its mod.rs"
        );
    }
}

#[test]
fn no_named_pipeline_has_a_draft() {
    for (name, _) in NAMED {
        for id in Pipeline::parse(name, ALL).unwrap().ids() {
            let is_draft = |pass: &&dyn Pass| pass.meta().id == id && pass.is_draft();
            assert!(
                !ALL.iter().copied().any(|pass| is_draft(&pass)),
                "{name}: {id}"
            );
        }
    }
}

#[test]
fn every_named_pipeline_runs_passes_after_those_they_must_follow() {
    for pass in ALL {
        for id in pass.meta().after {
            assert!(
                ALL.iter().any(|other| other.meta().id == *id),
                "{} must follow `{id}`, which does not exist",
                pass.meta().id
            );
        }
    }
    for (name, _) in NAMED {
        let pipeline = Pipeline::parse(name, ALL).unwrap();
        let ids = pipeline.ids();
        let place = |id: &str| ids.iter().position(|own| *own == id);
        for pass in ALL {
            let meta = pass.meta();
            for before in meta.after {
                if let (Some(first), Some(second)) = (place(before), place(meta.id)) {
                    assert!(first < second, "{name}: {} before {before}", meta.id);
                }
            }
        }
    }
}

#[test]
fn the_default_pipeline_has_exactly_the_passes_that_say_so() {
    let pipeline = Pipeline::parse("default", ALL).unwrap();
    let in_pipeline: BTreeSet<&str> = pipeline.ids().into_iter().collect();
    let marked: BTreeSet<&str> = ALL
        .iter()
        .map(|pass| pass.meta())
        .filter(|meta| meta.default)
        .map(|meta| meta.id)
        .collect();
    assert_eq!(in_pipeline, marked);
}

/// What stands before and after the table in the README.
const TABLE: [&str; 2] = ["<!-- passes:begin -->", "<!-- passes:end -->"];

/// The table of all passes that rewrite for the README; drafts are not in it.
fn table() -> String {
    let mut text = String::from(
        "| pass | family | exactness | default | evidence | what it does |\n\
         |---|---|---|---|---|---|\n",
    );
    for pass in rewriting().filter(|pass| !pass.is_draft()) {
        let meta = pass.meta();
        let row = [
            format!("[{0}](passes/{1}/{0})", meta.id, meta.family.name()),
            meta.family.name().to_owned(),
            meta.exactness.word(),
            if meta.default { "yes" } else { "no" }.to_owned(),
            meta.evidence.name().to_owned(),
            meta.summary.replace('|', "\\|"),
        ];
        text.extend(["| ", &row.join(" | "), " |\n"]);
    }
    text
}

#[test]
fn the_readme_has_the_table_of_all_passes() {
    let path = root().join("README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let [begin, end] = TABLE;
    let (head, rest) = readme.split_once(begin).expect("the table's begin mark");
    let (found, tail) = rest.split_once(end).expect("the table's end mark");
    let expected = format!("\n{}", table());
    if found == expected {
        return;
    }
    if std::env::var_os("MILWRIGHT_UPDATE").is_some_and(|value| value == "1") {
        fs::write(&path, format!("{head}{begin}{expected}{end}{tail}")).unwrap();
        return;
    }
    panic!(
        "the table of passes in README.md is stale; run \
         `MILWRIGHT_UPDATE=1 cargo test --test pages` and review it"
    );
}

/// The page of all rules, `docs/rules.md`.
fn rules_page() -> String {
    let mut text = String::from(
        "# The rules of the linter\n\n\
         Made by `MILWRIGHT_UPDATE=1 cargo test --test pages` of what the rules say of themselves. How bad a\n\
         finding is stands for each target; a rule is silent for a target that it does not name. A single\n\
         finding may be better or worse. `milwright explain ID` shows the page of the rule's pass.\n",
    );
    for family in Family::ALL {
        let of_family = ALL.iter().filter(|pass| pass.meta().family == family);
        let rules: Vec<(&dyn Pass, &Rule)> = of_family
            .flat_map(|pass| pass.rules().iter().map(|rule| (*pass as &dyn Pass, rule)))
            .collect();
        if rules.is_empty() {
            continue;
        }
        write!(text, "\n## {}\n", family.name()).unwrap();
        for (pass, rule) in rules {
            let meta = pass.meta();
            let link = format!("[{0}](../passes/{1}/{0})", meta.id, family.name());
            let severity: Vec<String> = rule
                .severity
                .iter()
                .map(|(target, severity)| format!("{} for {}", severity.name(), target.name()))
                .collect();
            let catalog = match rule.catalog {
                [] => String::new(),
                rows => format!(" · {}", rows.join(", ")),
            };
            let kind = if meta.is_check() {
                format!("check {link}")
            } else {
                format!("fix {link}")
            };
            write!(
                text,
                "\n### {}\n\n{}.\n\n{} · {} · {kind}{catalog}\n\n*Why:* {}\n\n*Help:* {}\n",
                rule.id,
                capital(rule.summary),
                severity.join(", "),
                rule.evidence.name(),
                rule.why,
                rule.help
            )
            .unwrap();
            if !rule.sources.is_empty() {
                let links: Vec<String> = rule.sources.iter().map(|s| format!("<{s}>")).collect();
                write!(text, "\n*Sources:* {}\n", links.join(", ")).unwrap();
            }
        }
    }
    text
}

/// The text with a capital at its start, unless it begins with a name in code.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[test]
fn the_page_of_all_rules_is_current() {
    let path = root().join("docs/rules.md");
    let expected = rules_page();
    if fs::read_to_string(&path).is_ok_and(|found| found == expected) {
        return;
    }
    if std::env::var_os("MILWRIGHT_UPDATE").is_some_and(|value| value == "1") {
        fs::write(&path, expected).unwrap();
        return;
    }
    panic!(
        "docs/rules.md is stale; run `MILWRIGHT_UPDATE=1 cargo test --test pages` and review it"
    );
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    paths.sort();
    paths
}
