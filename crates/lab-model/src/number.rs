//! Formats numbers and lists as text for people.

/// Formats a count with commas: `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Joins the first `max` items, and appends the number of the others: `a, b, and 3 more`.
pub fn join_first(items: &[String], max: usize, separator: &str) -> String {
    let mut parts = items[..items.len().min(max)].to_vec();
    if items.len() > max {
        parts.push(format!("and {} more", items.len() - max));
    }
    parts.join(separator)
}

#[cfg(test)]
mod tests {
    //! Commas stand between groups of three digits.

    #[test]
    fn counts_have_commas() {
        let counts = [0, 12, 999, 1_000, 12_345, 1_234_567].map(super::count);
        assert_eq!(counts, ["0", "12", "999", "1,000", "12,345", "1,234,567"]);
    }
}
