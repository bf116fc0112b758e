//! Numbers as text for people.

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

#[cfg(test)]
mod tests {
    //! Commas stand between groups of three digits.

    #[test]
    fn counts_have_commas() {
        let counts = [0, 12, 999, 1_000, 12_345, 1_234_567].map(super::count);
        assert_eq!(counts, ["0", "12", "999", "1,000", "12,345", "1,234,567"]);
    }
}
