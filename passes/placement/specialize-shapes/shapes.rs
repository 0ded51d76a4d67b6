//! Shapes by input, as the option `shapes` has them: `x:1x128+mask:1x128`.

use std::collections::BTreeMap;

/// Shapes by the names of inputs.
pub(super) struct Shapes(BTreeMap<String, Vec<u64>>);

impl Shapes {
    /// Reads them. Between inputs are `+`, spaces, semicolons or commas.
    ///
    /// # Errors
    ///
    /// What is wrong, in words.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut shapes = BTreeMap::new();
        let parts = text
            .split(['+', ' ', ',', ';'])
            .filter(|part| !part.is_empty());
        for part in parts {
            let expected = || format!("`{part}` is not of the form NAME:1x128");
            let (name, sizes) = part.rsplit_once(':').ok_or_else(expected)?;
            let sizes = sizes
                .split('x')
                .map(|size| size.parse().ok().filter(|size| *size > 0))
                .collect::<Option<Vec<u64>>>()
                .ok_or_else(expected)?;
            if shapes.insert(name.to_owned(), sizes).is_some() {
                return Err(format!("`{name}` has two shapes"));
            }
        }
        Ok(Self(shapes))
    }

    /// The shape of an input.
    pub(super) fn of(&self, name: &str) -> Option<&[u64]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_by_name() {
        let shapes = Shapes::parse("x:1x128, mask:1x1x4;n:7+k:2").unwrap();
        assert_eq!(shapes.of("x"), Some(&[1, 128][..]));
        assert_eq!(shapes.of("mask"), Some(&[1, 1, 4][..]));
        assert_eq!(shapes.of("n"), Some(&[7][..]));
        assert_eq!(shapes.of("k"), Some(&[2][..]));
        assert_eq!(shapes.of("y"), None);
    }

    #[test]
    fn what_is_no_shape_is_an_error() {
        for text in ["x", "x:", "x:1x", "x:0x2", "x:axb", "x:-1", "x:1 x:2"] {
            assert!(Shapes::parse(text).is_err(), "{text}");
        }
    }
}
