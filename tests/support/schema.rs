//! JSON held to a schema, by the Python.

use std::path::{Path, PathBuf};

use super::python::output_of;

/// Holds JSON files to a schema, if the Python has a validator.
pub(crate) fn validate(schema: &Path, files: &[PathBuf]) {
    let code = "
import json, sys
try:
    import jsonschema
except ImportError:
    print('no validator')
    sys.exit()
schema = json.load(open(sys.argv[1]))
kind = jsonschema.validators.validator_for(schema)
kind.check_schema(schema)
for path in sys.argv[2:]:
    for error in kind(schema).iter_errors(json.load(open(path))):
        print(path, error.json_path, error.message)
";
    let mut paths = vec![schema];
    paths.extend(files.iter().map(PathBuf::as_path));
    let Some(found) = output_of(code, &paths) else {
        return;
    };
    if found.trim() == "no validator" {
        println!("skipped: the Python has no jsonschema");
        return;
    }
    assert_eq!(found, "");
}
