//! `passes/mod.rs` as text: a `mod` line and a place in the list for each pass, both sorted.

use std::collections::BTreeMap;

use crate::pass::Family;

/// What stands before the list of passes, on a line of its own.
const LIST: &str = "pub static ALL: &[&dyn Pass] = &[";

/// A pass as the registry names it.
pub(super) struct Entry<'a> {
    pub(super) family: Family,
    pub(super) id: &'a str,
    /// The id as a module.
    pub(super) module: &'a str,
    /// The id as a type.
    pub(super) type_name: &'a str,
}

/// The registry with one more pass.
///
/// # Errors
/// What does not look as expected, in words.
pub(super) fn with(source: &str, entry: &Entry<'_>) -> Result<String, String> {
    let lines: Vec<&str> = source.lines().collect();
    let mut places = BTreeMap::new();
    let mut module_at = None;
    let mut behind_last = None;
    for (at, pair) in lines.windows(2).enumerate() {
        let Some((family, id, module)) = declaration(pair[0], pair[1]) else {
            continue;
        };
        if id == entry.id || module == entry.module {
            return Err(format!("it has a pass `{id}` already"));
        }
        if module > entry.module {
            module_at = module_at.or(Some(at));
        }
        behind_last = Some(at + 2);
        places.insert(module, (family, id));
    }
    let module_at = module_at
        .or(behind_last)
        .ok_or("it has no lines `#[path = \"FAMILY/NAME/mod.rs\"]` and `mod NAME;`")?;
    let list = lines
        .iter()
        .position(|line| *line == LIST)
        .ok_or_else(|| format!("it has no line `{LIST}`"))?;
    let mut listed_at = None;
    for (at, line) in lines.iter().enumerate().skip(list + 1) {
        let line = line.trim();
        let module = line
            .strip_prefix('&')
            .and_then(|path| path.split_once("::"))
            .map(|(module, _)| module);
        match module.and_then(|module| places.get(module)) {
            Some(place) if *place > (entry.family, entry.id) => listed_at = Some(at),
            Some(_) => continue,
            None if line == "];" => listed_at = Some(at),
            None => return Err(format!("its list of passes has the line `{line}`")),
        }
        break;
    }
    let listed_at = listed_at.ok_or("its list of passes has no end")?;

    let declared = [
        format!("#[path = \"{}/{}/mod.rs\"]", entry.family.name(), entry.id),
        format!("mod {};", entry.module),
    ];
    let listed = format!("    &{}::{},", entry.module, entry.type_name);
    let mut text = String::with_capacity(source.len() + 200);
    let mut push = |line: &str| text.extend([line, "\n"]);
    for (at, line) in lines.iter().enumerate() {
        if at == module_at {
            for line in &declared {
                push(line);
            }
        }
        if at == listed_at {
            push(&listed);
        }
        push(line);
    }
    Ok(text)
}

/// Family, id and module of the pass that two lines declare.
fn declaration<'a>(path: &'a str, module: &'a str) -> Option<(Family, &'a str, &'a str)> {
    let path = path
        .strip_prefix("#[path = \"")?
        .strip_suffix("/mod.rs\"]")?;
    let (family, id) = path.split_once('/')?;
    let family = Family::ALL.into_iter().find(|own| own.name() == family)?;
    let module = module.strip_prefix("mod ")?.strip_suffix(';')?;
    Some((family, id, module))
}
