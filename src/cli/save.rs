//! What `optimize` and `build` write: packages, text and weight files.

use std::path::Path;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::{Output, count};
use super::with_path;
use crate::package::SaveOptions;
use crate::source::{Missing, ModelFile};
use crate::text::{self, PrintOptions};

/// Weights of this size and more get a progress bar, if someone is looking.
const PROGRESS_BYTES: u64 = 256 << 20;

/// Whether this output is MIL text.
pub(super) fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "mil")
}

/// Refuses an output that is there already, before any work is done.
pub(super) fn check_free(out: &Path, force: bool) -> anyhow::Result<()> {
    if out.symlink_metadata().is_ok() && !force {
        bail!("{} exists; give --force to replace it", out.display());
    }
    Ok(())
}

/// Writes a package.
pub(super) fn package(
    file: &ModelFile,
    out: &Path,
    missing: Missing,
    force: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let options = SaveOptions { force };
    // indicatif draws only if standard error is a terminal.
    let bar = ProgressBar::hidden();
    let result = file.save(out, missing, &options, &mut |bytes, total| {
        if bar.length().is_none() && total >= PROGRESS_BYTES && !output.is_quiet() {
            bar.set_length(total);
            bar.set_style(bar_style());
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.inc(bytes);
    });
    bar.finish_and_clear();
    result.map_err(|error| with_path(error, format!("cannot write {}", out.display())))
}

fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template("writing {bar:40} {bytes}/{total_bytes}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Writes the program as MIL text, whole or not at all. What passes made becomes literals.
pub(super) fn text(file: &mut ModelFile, out: &Path, force: bool) -> anyhow::Result<()> {
    file.inline_new()?;
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parts = file.model.programs();
    let [part] = parts.as_slice() else {
        bail!("a pipeline of several programs has no form as one text");
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".milwright-");
    // As for any new file, what the user's mask leaves; a temporary file is the owner's alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut temporary = builder.tempfile_in(parent)?;
    text::write_program(&mut temporary, part.program, &PrintOptions::default())?;
    temporary.as_file().sync_all()?;
    if force {
        temporary.persist(out)?;
    } else {
        temporary.persist_noclobber(out)?;
    }
    Ok(())
}

/// Writes each weight into a file of its own, to which the program refers from then on.
pub(super) fn split_weights(
    file: &mut ModelFile,
    folder: &Path,
    force: bool,
    output: &Output,
) -> anyhow::Result<()> {
    if file.model.programs().len() > 1 {
        bail!("a pipeline of several programs has no form as one text");
    }
    let place = || format!("cannot write the weights to {}", folder.display());
    let written = file.split_weights(folder, force).with_context(place)?;
    output.note(&format!(
        "wrote {} to {}",
        count(written, "weight file"),
        folder.display()
    ));
    Ok(())
}
