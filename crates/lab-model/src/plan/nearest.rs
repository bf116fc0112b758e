//! A guess at what was meant by a misspelt word.

/// The candidate that is fewest slips away from the word, if it is few enough to be meant: at
/// most one slip per three letters. A slip is one letter too many, too few, wrong, or swapped
/// with its neighbour (optimal string alignment distance).
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    // Longer words than any of ours are not worth the square of their length.
    const WORD_BYTES_MAX: usize = 64;
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let scored = candidates.iter().map(|candidate| (slips(word, candidate), *candidate));
    let (slips, candidate) = scored.min_by_key(|(slips, _)| *slips)?;
    let slips_max = (word.len().max(candidate.len()) / 3).max(1);
    // A word of which no letter is left was not meant.
    (slips <= slips_max && slips < word.len()).then_some(candidate)
}

/// A name that was looked up and not found: what to say, and what there is.
pub(crate) fn not_found(what: &str, name: &str, known: &[&str]) -> (String, String) {
    let message = match nearest(name, known) {
        Some(near) => format!("there is no such {what}; did you mean {near}?"),
        None => format!("there is no such {what}"),
    };
    let allowed = if known.is_empty() { format!("no {what} is defined") } else { known.join(", ") };
    (message, allowed)
}

fn slips(left: &str, right: &str) -> usize {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let mut least = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                least = least.min(before_last[j - 1] + 1);
            }
            row.push(least);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted_and_far_words_left_alone() {
        let keys = ["rate", "weight", "workers_max", "mix"];
        let cases = [
            ("raet", Some("rate")),
            ("wieght", Some("weight")),
            ("worker_max", Some("workers_max")),
            ("max_workers", None),
            ("colour", None),
            ("", None),
        ];
        for (word, expected) in cases {
            assert_eq!(nearest(word, &keys), expected, "{word}");
        }
    }
}
