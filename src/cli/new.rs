//! `milwright new`: starts a pass in a source tree of milwright.
//!
//! What is written is a whole small pass with a page, two cases and their snapshots. It compiles, its
//! cases pass, and its author changes it step by step. It appears whole or not at all.

mod registry;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::args::{NewArgs, NewCommand};
use super::list;
use super::output::Output;
use crate::pass::{Family, NAMED};
use registry::Entry;

/// The longest id: it stands beside the summary in lists.
const LONGEST_ID: usize = 40;

/// The files of a pass by their paths in its folder.
const PASS: [(&str, &str); 4] = [
    ("mod.rs", include_str!("new/pass/mod.rs.in")),
    ("README.md", include_str!("new/pass/README.md.in")),
    (
        "cases/relu_of_relu.mil",
        include_str!("new/pass/relu_of_relu.mil"),
    ),
    (
        "cases/no_two_outputs.mil",
        include_str!("new/pass/no_two_outputs.mil"),
    ),
];

/// What the two cases become, by the paths in the folder of snapshots.
const SNAPSHOTS: [(&str, &str); 2] = [
    (
        "relu_of_relu.snap",
        include_str!("new/pass/relu_of_relu.snap.in"),
    ),
    (
        "no_two_outputs.snap",
        include_str!("new/pass/no_two_outputs.snap.in"),
    ),
];

/// Words of Rust that no module can be called.
const RUST_WORDS: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl",
    "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
    "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

pub(super) fn run(args: &NewArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let NewCommand::Pass { name } = &args.command;
    let draft = Draft::named(name)?;
    let root = tree(&std::env::current_dir().context("there is no current folder")?)?;
    let place = || format!("cannot make the pass `{}`", draft.id);
    draft.check_free(&root)?;
    let registry = draft.registry(&root)?;
    draft.write(&root, &registry).with_context(place)?;

    let folder = draft.folder(&root);
    let mut out = output.results();
    for (file, _) in PASS {
        writeln!(out, "{}", folder.join(file).display())?;
    }
    for (file, _) in SNAPSHOTS {
        writeln!(out, "{}", draft.snapshots(&root).join(file).display())?;
    }
    writeln!(out, "{}", registry_path(&root).display())?;
    out.flush()?;
    output.note(&format!(
        "next: change the cases and the matcher; `cargo insta test --review --test passes -- {}::` \
         shows what they do",
        draft.id
    ));
    Ok(ExitCode::SUCCESS)
}

/// The source tree around a folder.
fn tree(from: &Path) -> anyhow::Result<PathBuf> {
    let found = from
        .ancestors()
        .find(|folder| registry_path(folder).is_file());
    match found {
        Some(root) => Ok(root.to_owned()),
        None => bail!(
            "{} is in no source tree of milwright: neither it nor a folder around it has \
             passes/mod.rs",
            from.display()
        ),
    }
}

fn registry_path(root: &Path) -> PathBuf {
    root.join("passes/mod.rs")
}

/// A pass that is not there yet.
struct Draft {
    family: Family,
    id: String,
}

impl Draft {
    /// Reads `FAMILY/NAME`.
    fn named(text: &str) -> anyhow::Result<Self> {
        let Some((family, id)) = text.split_once('/') else {
            bail!("`{text}` is not of the form FAMILY/NAME, such as cleanup/{text}");
        };
        let family = list::family(family)?;
        let is_word = |word: &str| {
            !word.is_empty()
                && word
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        if !id.starts_with(|first: char| first.is_ascii_lowercase()) || !id.split('-').all(is_word)
        {
            bail!(
                "`{id}` is no id of a pass: words of small letters and digits with `-` between \
                 them, such as `fuse-casts`"
            );
        }
        if id.len() > LONGEST_ID {
            bail!("`{id}` is longer than {LONGEST_ID} letters");
        }
        if NAMED.iter().any(|(name, _)| *name == id) {
            bail!("`{id}` is a pipeline; a pass needs a name of its own");
        }
        let draft = Self {
            family,
            id: id.to_owned(),
        };
        if RUST_WORDS.contains(&id) || draft.is_taken_by_the_template() {
            bail!("`{id}` means something else in the code of a pass; use another word or two");
        }
        Ok(draft)
    }

    /// Whether the type's name already stands for something in the code that is written.
    fn is_taken_by_the_template(&self) -> bool {
        let name = self.type_name();
        let code = PASS[0].1.lines().map(str::trim_start);
        code.filter(|line| !line.starts_with("//"))
            .flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()))
            .any(|word| word == name)
    }

    fn module(&self) -> String {
        self.id.replace('-', "_")
    }

    /// The id as a type: `fuse-casts` is `FuseCasts`.
    fn type_name(&self) -> String {
        self.id
            .split('-')
            .flat_map(|word| {
                let mut letters = word.chars();
                let first = letters.next().map(|first| first.to_ascii_uppercase());
                first.into_iter().chain(letters)
            })
            .collect()
    }

    fn folder(&self, root: &Path) -> PathBuf {
        root.join("passes").join(self.family.name()).join(&self.id)
    }

    fn snapshots(&self, root: &Path) -> PathBuf {
        root.join("snapshots").join(&self.id)
    }

    /// Refuses a pass of which anything is there already.
    fn check_free(&self, root: &Path) -> anyhow::Result<()> {
        let others = Family::ALL.map(|family| root.join("passes").join(family.name()));
        let folders = others.iter().map(|family| family.join(&self.id));
        for path in folders.chain([self.snapshots(root)]) {
            if path.symlink_metadata().is_ok() {
                bail!("there is a pass `{}`: {} exists", self.id, path.display());
            }
        }
        Ok(())
    }

    /// The registry with this pass in it.
    fn registry(&self, root: &Path) -> anyhow::Result<String> {
        let path = registry_path(root);
        let source =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let entry = Entry {
            family: self.family,
            id: &self.id,
            module: &self.module(),
            type_name: &self.type_name(),
        };
        registry::with(&source, &entry)
            .map_err(|why| anyhow::anyhow!("cannot add a pass to {}: {why}", path.display()))
    }

    /// Writes everything beside its place first, and then moves it there; if a move fails, those
    /// before it are undone.
    fn write(&self, root: &Path, registry: &str) -> io::Result<()> {
        let staging = tempfile::Builder::new()
            .prefix(".milwright-")
            .tempdir_in(root.join("passes"))?;
        let staged = |name: &str| staging.path().join(name);
        self.fill(&staged("pass"), &PASS)?;
        self.fill(&staged("snapshots"), &SNAPSHOTS)?;
        fs::write(staged("mod.rs"), registry)?;

        let (folder, snapshots) = (self.folder(root), self.snapshots(root));
        let mut parents = Vec::new();
        let result = [&folder, &snapshots]
            .into_iter()
            .filter_map(|path| path.parent())
            .filter(|parent| !parent.is_dir())
            .try_for_each(|parent| {
                fs::create_dir(parent)?;
                parents.push(parent.to_owned());
                Ok(())
            })
            .and_then(|()| fs::rename(staged("pass"), &folder))
            .and_then(|()| fs::rename(staged("snapshots"), &snapshots))
            .and_then(|()| fs::rename(staged("mod.rs"), registry_path(root)));
        if result.is_err() {
            // What is moved back goes with the temporary folder; what was never moved is not there.
            let _ = fs::rename(&folder, staged("undone pass"));
            let _ = fs::rename(&snapshots, staged("undone snapshots"));
            for parent in parents {
                let _ = fs::remove_dir(parent);
            }
        }
        result
    }

    /// Writes files with their placeholders filled in.
    fn fill(&self, folder: &Path, files: &[(&str, &str)]) -> io::Result<()> {
        for (name, template) in files {
            let path = folder.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let text = template
                .replace("@id@", &self.id)
                .replace("@Name@", &self.type_name())
                .replace("@family@", self.family.name())
                .replace("@Family@", &format!("{:?}", self.family));
            fs::write(path, text)?;
        }
        Ok(())
    }
}
