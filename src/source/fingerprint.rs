//! A number that tells one model from another: what is measured of a model holds for no other.

use twox_hash::xxhash3_128::Hasher;

use super::{ModelFile, blob_references};
use crate::text::{Dialect, PrintOptions, program_text};

impl ModelFile {
    /// 32 hexadecimal digits that are the same for the same programs with the same weights, wherever
    /// they lie: XXH3 of the programs' texts and of the data that they refer to. It guards against
    /// mistakes, not against malice.
    ///
    /// Reads all weights. Data that is missing counts as empty.
    pub fn fingerprint(&self) -> String {
        let mut hash = Hasher::new();
        let options = PrintOptions {
            dialect: Some(Dialect::Program13),
            inline_new: true,
            ..PrintOptions::default()
        };
        for part in self.model.programs() {
            hash.write(part.stage.as_bytes());
            match program_text(part.program, &options) {
                Ok(text) => hash.write(text.as_bytes()),
                Err(error) => hash.write(error.to_string().as_bytes()),
            }
        }
        for blob in blob_references(&self.model) {
            let data = self.weights().blob(&blob.file, blob.offset);
            hash.write(data.map_or(&[][..], |blob| blob.data));
        }
        format!("{:032x}", hash.finish_128())
    }
}
