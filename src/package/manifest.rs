//! `Manifest.json`: the items of a package and which of them is the root model.
//!
//! The file names each item by an identifier and gives its path relative to the folder `Data`. It
//! is kept as text and written back byte for byte; only a package that gains its first weights gets
//! one more item.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

/// The manifest's name in the package's folder.
pub(super) const MANIFEST: &str = "Manifest.json";

/// Folder that item paths are relative to.
const DATA: &str = "Data";

/// Newest version of the format, the only one that Core ML tools write. Their reader refuses
/// anything above it and takes older ones.
const NEWEST: [u64; 3] = [1, 0, 0];

/// Author that coremltools gives the items it writes, and by which it finds the weights again.
const AUTHOR: &str = "com.apple.CoreML";

/// Name of the item that holds the weight files.
const WEIGHTS: &str = "weights";

/// File name of the root model of a new package.
const MODEL: &str = "model.mlmodel";

/// What is wrong with a manifest. Names and paths are quoted as the manifest spells them.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// The file is not JSON.
    #[error("is not JSON: {0}")]
    NotJson(serde_json::Error),
    /// A key is absent, or its value is of another kind than the format says.
    #[error("{place} must be {expected}, and it is {found}")]
    Key {
        /// The key, after the item it belongs to.
        place: String,
        /// The kind of value that the format asks for.
        expected: &'static str,
        /// What stands there.
        found: &'static str,
    },
    /// `fileFormatVersion` is not three numbers.
    #[error("fileFormatVersion {0:?} is not three numbers such as \"1.0.0\"")]
    BadVersion(String),
    /// The package is of a later format.
    #[error("fileFormatVersion {0:?} is newer than 1.0.0, the newest that is known here")]
    NewVersion(String),
    /// `rootModelIdentifier` names no item.
    #[error("rootModelIdentifier {0:?} is not among the items")]
    NoRootItem(String),
    /// The root item is a folder.
    #[error("the root item's path {0:?} is a folder, and the root model must be a file")]
    RootNotAFile(String),
    /// An item's path is absolute.
    #[error("item path {0:?} is absolute, and paths must be relative to Data/")]
    Absolute(String),
    /// An item's path steps up with `..`.
    #[error("item path {0:?} contains \"..\" and may point outside the package")]
    StepsUp(String),
    /// An item's path names nothing.
    #[error("item path {0:?} names nothing below Data/")]
    EmptyPath(String),
    /// An item's path goes over a symbolic link.
    #[error(
        "item path {item:?} goes through the symbolic link {link:?}: copy the package with `cp -rL` and open the copy"
    )]
    Symlink {
        /// The path as spelled.
        item: String,
        /// The link, relative to the package.
        link: PathBuf,
    },
    /// An item's file is not there.
    #[error("item path {0:?} does not exist in Data/, copy the whole package again")]
    Missing(String),
}

/// One entry of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Path relative to the package's folder: the spelled one behind `Data/`.
    pub(super) path: PathBuf,
    /// True if nothing is there and the item is a folder of weights, which Git and some zip tools
    /// drop when it is empty.
    pub(super) gone: bool,
}

/// A checked manifest.
#[derive(Debug)]
pub(super) struct Manifest {
    text: Vec<u8>,
    value: Map<String, Value>,
    /// Root model, relative to the package's folder.
    pub(super) root: PathBuf,
    /// All items in the order of their identifiers.
    pub(super) items: Vec<Item>,
}

impl Manifest {
    /// The manifest of a new package that holds a root model and nothing else, laid out as
    /// coremltools does.
    pub(super) fn new() -> Self {
        let path = format!("{AUTHOR}/{MODEL}");
        let identifier = identifier_of(&path, 0);
        let mut entries = Map::new();
        entries.insert(
            identifier.clone(),
            item(MODEL, "CoreML Model Specification", &path),
        );
        let mut value = Map::new();
        value.insert("fileFormatVersion".to_owned(), "1.0.0".into());
        value.insert("itemInfoEntries".to_owned(), entries.into());
        value.insert("rootModelIdentifier".to_owned(), identifier.into());
        let root = Path::new(DATA).join(path);
        Self {
            text: text_of(&value).unwrap_or_default(),
            value,
            items: vec![Item {
                path: root.clone(),
                gone: false,
            }],
            root,
        }
    }

    /// Reads and checks the manifest of the package in `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self, ManifestError> {
        let text = fs::read(folder.join(MANIFEST)).map_err(ManifestError::Read)?;
        let value = serde_json::from_slice(without_mark(&text)).map_err(ManifestError::NotJson)?;
        let Value::Object(value) = value else {
            return Err(wrong_kind("the file", "an object", Some(&value)));
        };
        check_version(string(&value, "fileFormatVersion", "")?)?;
        let root_identifier = string(&value, "rootModelIdentifier", "")?.to_owned();
        let entries = match value.get("itemInfoEntries") {
            Some(Value::Object(entries)) => entries,
            other => return Err(wrong_kind("itemInfoEntries", "an object", other)),
        };

        let mut root = None;
        let mut items = Vec::with_capacity(entries.len());
        for (identifier, entry) in entries {
            let place = format!("item {identifier:?}");
            let Value::Object(entry) = entry else {
                return Err(wrong_kind(&place, "an object", Some(entry)));
            };
            let place = format!("{place}: ");
            string(entry, "author", &place)?;
            string(entry, "description", &place)?;
            let name = string(entry, "name", &place)?;
            let spelled = string(entry, "path", &place)?;
            let path = Path::new(DATA).join(inside(spelled)?);
            let found = look(folder, &path, spelled)?;
            let gone = found.is_none();
            let is_root = *identifier == root_identifier;
            match found {
                None if is_root || !is_weights(name, &path) => {
                    return Err(ManifestError::Missing(spelled.to_owned()));
                }
                Some(metadata) if is_root && !metadata.is_file() => {
                    return Err(ManifestError::RootNotAFile(spelled.to_owned()));
                }
                _ => {}
            }
            if is_root {
                root = Some(path.clone());
            }
            items.push(Item { path, gone });
        }
        let root = root.ok_or(ManifestError::NoRootItem(root_identifier))?;
        Ok(Self {
            text,
            value,
            root,
            items,
        })
    }

    /// The manifest's bytes as they were read.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.text
    }

    /// The manifest's bytes with one item more for each of `folders` (relative to the package's
    /// folder) that no item covers yet. Written as coremltools does: sorted keys, four spaces. The
    /// identifier of a new item follows from its path, so that equal input gives equal bytes.
    pub(super) fn with_weights(&self, folders: &BTreeSet<PathBuf>) -> Vec<u8> {
        let mut value = self.value.clone();
        let mut added = false;
        for folder in folders {
            let covered = self.items.iter().any(|item| folder.starts_with(&item.path));
            let Ok(below_data) = folder.strip_prefix(DATA) else {
                continue;
            };
            if covered || below_data.as_os_str().is_empty() {
                continue;
            }
            let Some(Value::Object(entries)) = value.get_mut("itemInfoEntries") else {
                continue;
            };
            let path = spell(below_data);
            let mut identifier = identifier_of(&path, 0);
            for attempt in 1..=u32::MAX {
                if !entries.contains_key(&identifier) {
                    break;
                }
                identifier = identifier_of(&path, attempt);
            }
            entries.insert(identifier, item(WEIGHTS, "CoreML Model Weights", &path));
            added = true;
        }
        if !added {
            return self.text.clone();
        }
        let Some(mut text) = text_of(&value) else {
            // Values that were parsed from JSON always serialize; the old text is still a manifest.
            return self.text.clone();
        };
        if self.text.ends_with(b"\n") {
            text.push(b'\n');
        }
        text
    }
}

/// An entry for something that Core ML tools know.
fn item(name: &str, description: &str, path: &str) -> Value {
    let mut entry = Map::new();
    for (key, text) in [
        ("author", AUTHOR),
        ("description", description),
        ("name", name),
        ("path", path),
    ] {
        entry.insert(key.to_owned(), Value::String(text.to_owned()));
    }
    Value::Object(entry)
}

/// JSON as coremltools writes it: sorted keys, four spaces.
fn text_of(value: &Map<String, Value>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, format);
    value.serialize(&mut serializer).ok()?;
    Some(text)
}

/// A byte order mark is not JSON, yet some editors write one.
fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

fn string<'a>(
    object: &'a Map<String, Value>,
    key: &str,
    place: &str,
) -> Result<&'a str, ManifestError> {
    match object.get(key) {
        Some(Value::String(text)) => Ok(text),
        other => Err(wrong_kind(&format!("{place}{key}"), "a string", other)),
    }
}

fn wrong_kind(place: &str, expected: &'static str, found: Option<&Value>) -> ManifestError {
    let found = match found {
        None => "missing",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "a boolean",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "a string",
        Some(Value::Array(_)) => "an array",
        Some(Value::Object(_)) => "an object",
    };
    ManifestError::Key {
        place: place.to_owned(),
        expected,
        found,
    }
}

fn check_version(version: &str) -> Result<(), ManifestError> {
    let bad = || ManifestError::BadVersion(version.to_owned());
    let mut numbers = [0u64; 3];
    let mut parts = version.split('.');
    for number in &mut numbers {
        let part = parts.next().ok_or_else(bad)?;
        if !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        *number = part.parse().map_err(|_| bad())?;
    }
    if parts.next().is_some() {
        return Err(bad());
    }
    if numbers > NEWEST {
        return Err(ManifestError::NewVersion(version.to_owned()));
    }
    Ok(())
}

/// The spelled path as one that stays below `Data`.
fn inside(spelled: &str) -> Result<PathBuf, ManifestError> {
    let mut path = PathBuf::new();
    for component in Path::new(spelled).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => return Err(ManifestError::StepsUp(spelled.to_owned())),
            Component::RootDir | Component::Prefix(_) => {
                return Err(ManifestError::Absolute(spelled.to_owned()));
            }
        }
    }
    if path.as_os_str().is_empty() {
        return Err(ManifestError::EmptyPath(spelled.to_owned()));
    }
    Ok(path)
}

/// What lies at `path` in the package, or `None`; a link anywhere on the way is refused.
fn look(folder: &Path, path: &Path, spelled: &str) -> Result<Option<fs::Metadata>, ManifestError> {
    let mut way = PathBuf::new();
    let mut found = None;
    for component in path.components() {
        way.push(component);
        match fs::symlink_metadata(folder.join(&way)) {
            Ok(metadata) if metadata.is_symlink() => {
                return Err(ManifestError::Symlink {
                    item: spelled.to_owned(),
                    link: way,
                });
            }
            Ok(metadata) => found = Some(metadata),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(ManifestError::Read(error)),
        }
    }
    Ok(found)
}

/// True for an item that is a folder of weights by its name or by the last part of its path.
fn is_weights(name: &str, path: &Path) -> bool {
    name == WEIGHTS || path.file_name().is_some_and(|last| last == WEIGHTS)
}

fn spell(path: &Path) -> String {
    let parts: Vec<_> = path
        .components()
        .map(|part| part.as_os_str().to_string_lossy())
        .collect();
    parts.join("/")
}

/// An identifier in the form of a UUID (version 8, "custom") made from the item's path by two
/// rounds of the 64-bit FNV-1a hash.
fn identifier_of(path: &str, attempt: u32) -> String {
    let hash = |seed: u64| {
        let bytes = path.bytes().chain(attempt.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    };
    let bits = (u128::from(hash(0)) << 64) | u128::from(hash(1));
    let bits = bits & !(0xf << 76) | (0x8 << 76);
    let bits = bits & !(0x3 << 62) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}
