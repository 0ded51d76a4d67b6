//! Patterns of names: `*` stands for any text, `?` for one character.

/// Whether a pattern fits the whole of a text. Takes time in proportion to the product of their lengths
/// at most.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // After the last star: where the pattern goes on, and from where in the text.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    p = after;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_is_any_text_and_a_question_mark_one_character() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "anything"),
            ("layers_*_norm", "layers_12_norm"),
            ("a*b*c", "a_b_b_c"),
            ("?", "é"),
            ("op", "op"),
            ("*.mul_?", "block.mul_3"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("?", ""),
            ("op", "op_1"),
            ("a*b", "a_c"),
            ("layers_?", "layers_12"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
