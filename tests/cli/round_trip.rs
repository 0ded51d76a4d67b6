//! A package that no pass changes comes out as it went in.
//!
//! Equality of models is judged by coremltools' parser, of other files by their bytes.

use std::fs;
use std::path::{Path, PathBuf};

use milwright::package::SaveOptions;
use milwright::source::{Missing, ModelFile};

use crate::command::{
    Folder, args, collection, data_packages, defines_a_value_twice, done, in_parallel,
};
use crate::second_opinion::{assert_accepted, assert_equal};
use crate::support::folders::content;

/// Runs `optimize --pipeline none` through the binary.
fn none(input: &Path, out: &Path) {
    done(args![
        "optimize",
        "--pipeline",
        "none",
        "--allow-missing-weights",
        "--quiet",
        input,
        "-o",
        out,
    ]);
}

/// All that must hold of a package that went through the pipeline `none` in the binary, but for
/// what coremltools says.
fn goes_through(input: &Path, out: &Path) {
    none(input, out);
    let (before, after) = (content(input), content(out));
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        after.keys().collect::<Vec<_>>(),
        "{}",
        input.display()
    );
    let model = ModelFile::open(input).unwrap();
    let model = model.package().unwrap().model_path().to_owned();
    for (path, bytes) in &before {
        assert!(
            *path == model || after[path] == *bytes,
            "{}: {}",
            input.display(),
            path.display()
        );
    }
    let again = out.with_extension("again.mlpackage");
    for (from, what) in [(input, "a second run"), (out, "a run over the output")] {
        none(from, &again);
        assert!(content(&again) == after, "{what}: {}", input.display());
        fs::remove_dir_all(&again).unwrap();
    }
}

fn round_trip(packages: &[PathBuf]) {
    let folder = Folder::new();
    let pairs = in_parallel(packages, |index, input| {
        let out = folder.join(&format!("{index}.mlpackage"));
        goes_through(input, &out);
        (input.clone(), out)
    });
    assert_equal(&pairs);
    assert_accepted(&pairs);
}

#[test]
fn every_package_of_the_project_comes_out_as_it_went_in() {
    round_trip(&data_packages());
}

#[test]
fn every_model_of_the_collection_comes_out_as_it_went_in() {
    let Some(packages) = collection(&["models", "real", "bugs", "probes"]) else {
        return;
    };
    round_trip(&packages);
}

/// The many small ones, in this process.
#[test]
fn every_operation_of_the_collection_comes_out_as_it_went_in() {
    let Some(mut packages) = collection(&["ops", "passes"]) else {
        return;
    };
    let all = packages.len();
    packages.retain(|path| !defines_a_value_twice(path));
    assert_eq!(all - packages.len(), 3);
    let folder = Folder::new();
    let pairs = in_parallel(&packages, |index, input| {
        let out = folder.join(&format!("{index}.mlpackage"));
        let save = |from: &Path, to: &Path| {
            let file = ModelFile::open(from).unwrap();
            let options = SaveOptions { force: false };
            file.save(to, Missing::Allow, &options, &mut |_, _| {})
                .unwrap();
        };
        save(input, &out);
        let again = folder.join(&format!("{index}.again.mlpackage"));
        save(&out, &again);
        assert!(content(&again) == content(&out), "{}", input.display());
        fs::remove_dir_all(&again).unwrap();
        (input.clone(), out)
    });
    // What coremltools finds equal it accepts alike.
    assert_equal(&pairs);
}

#[test]
fn a_program_that_defines_a_value_twice_is_refused() {
    let Some(packages) = collection(&["passes"]) else {
        return;
    };
    let twice: Vec<PathBuf> = packages
        .into_iter()
        .filter(|path| defines_a_value_twice(path))
        .collect();
    assert_eq!(twice.len(), 3);
    for input in twice {
        let folder = Folder::new();
        let out = folder.join("out.mlpackage");
        let line =
            crate::command::refused(args!["optimize", input, "-o", out,], &["is defined twice"]);
        assert_eq!(line.matches("is defined twice").count(), 1, "{line}");
        assert!(folder.names().is_empty());
    }
}

#[test]
fn a_package_goes_into_a_zip_and_out_again() {
    let folder = Folder::new();
    fs::create_dir(folder.join("again")).unwrap();
    for (index, input) in data_packages().iter().enumerate() {
        let direct = folder.join(&format!("{index}.mlpackage"));
        let zip = folder.join(&format!("{index}.zip"));
        // A zip holds one folder, named after the zip.
        let zip_again = folder.join("again").join(zip.file_name().unwrap());
        let back = folder.join(&format!("{index}.back.mlpackage"));
        none(input, &direct);
        none(input, &zip);
        none(&zip, &zip_again);
        none(&zip, &back);
        assert!(
            fs::read(&zip).unwrap() == fs::read(&zip_again).unwrap(),
            "{}",
            input.display()
        );
        assert!(content(&back) == content(&direct), "{}", input.display());
    }
}
