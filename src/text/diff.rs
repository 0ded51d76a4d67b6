//! Line diffs of two texts, for `--print diff` and for snapshots.

use similar::{ChangeTag, TextDiff};

/// Lines of context around a change.
pub const CONTEXT: usize = 3;

/// The unified diff of two texts: file headers with the two names, then hunks with `context` lines
/// around each change. Empty if the texts are equal.
pub fn unified_diff(before: &str, after: &str, names: (&str, &str), context: usize) -> String {
    if before == after {
        return String::new();
    }
    TextDiff::from_lines(before, after)
        .unified_diff()
        .context_radius(context)
        .header(names.0, names.1)
        .to_string()
}

/// The changed lines and `context` lines around each, without headers and line numbers, so that a
/// snapshot stays the same when something else moves. A gap between two hunks is a line `…`.
pub fn changed_lines(before: &str, after: &str, context: usize) -> String {
    let diff = TextDiff::from_lines(before, after);
    let mut text = String::new();
    if before == after {
        return text;
    }
    for (index, group) in diff.grouped_ops(context).iter().enumerate() {
        if index > 0 {
            text.push_str("…\n");
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            text.push(match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            });
            text.push_str(change.value());
            if change.missing_newline() {
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "a\nb\nc\nd\ne\nf\ng\nh\n";
    const AFTER: &str = "a\nB\nc\nd\ne\nf\ng\nh\ni\n";

    #[test]
    fn equal_texts_have_an_empty_diff() {
        assert_eq!(unified_diff(BEFORE, BEFORE, ("x", "y"), 3), "");
        assert_eq!(changed_lines(BEFORE, BEFORE, 3), "");
    }

    #[test]
    fn a_unified_diff_is_that_of_the_diff_tool() {
        // Output of `diff -U1 --label before --label after` on the two texts.
        let expected = "--- before\n+++ after\n\
                        @@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n\
                        @@ -8 +8,2 @@\n h\n+i\n";
        let ours = unified_diff(BEFORE, AFTER, ("before", "after"), 1);
        assert_eq!(ours, expected);
    }

    #[test]
    fn changed_lines_have_no_numbers() {
        assert_eq!(
            changed_lines(BEFORE, AFTER, 1),
            " a\n-b\n+B\n c\n…\n h\n+i\n"
        );
        assert_eq!(changed_lines("a", "b", 1), "-a\n+b\n");
    }
}
