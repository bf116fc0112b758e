//! Evaluates formulas of a file: `30000 * load_percent / 100`.
//!
//! A formula has numbers, variables (as `name` or `${name}`), `+ - * /`, parentheses, and the
//! functions `floor`, `ceil`, `round`, `min` and `max`. Value types check the bounds of the result.

use crate::table::not_found;

#[cfg(test)]
mod tests;

/// A variable with its value.
pub type Variable = (String, f64);

/// The functions that a formula may call.
pub(crate) const FUNCTIONS: [&str; 5] = ["floor", "ceil", "round", "min", "max"];

/// Maximum nesting, which keeps a text of parentheses from overflowing the stack.
const DEPTH_MAX: usize = 32;

/// Evaluates a formula.
///
/// # Errors
/// The formula is malformed, or its value is not a finite number.
pub fn value(text: &str, variables: &[Variable]) -> Result<f64, String> {
    let mut reader = Reader { text, at: 0, depth: 0, variables };
    let value = reader.sum()?;
    reader.blank();
    if reader.at < text.len() {
        return Err(reader.unexpected());
    }
    if !value.is_finite() {
        return Err("not a finite number".to_owned());
    }
    Ok(value)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    variables: &'a [Variable],
}

impl Reader<'_> {
    fn sum(&mut self) -> Result<f64, String> {
        let mut sum = self.product()?;
        loop {
            match self.next_of("+-") {
                Some('+') => sum += self.product()?,
                Some(_) => sum -= self.product()?,
                None => return Ok(sum),
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut product = self.factor()?;
        loop {
            match self.next_of("*/") {
                Some('*') => product *= self.factor()?,
                Some(_) => {
                    let divisor = self.factor()?;
                    if divisor == 0.0 {
                        return Err("divides by 0".to_owned());
                    }
                    product /= divisor;
                }
                None => return Ok(product),
            }
        }
    }

    fn factor(&mut self) -> Result<f64, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX}"));
        }
        let factor = self.factor_within();
        self.depth -= 1;
        factor
    }

    fn factor_within(&mut self) -> Result<f64, String> {
        self.blank();
        let rest = &self.text[self.at..];
        match rest.chars().next() {
            Some('-') => {
                self.at += 1;
                Ok(-self.factor()?)
            }
            Some('(') => self.enclosed("(", ")"),
            Some('$') if rest.starts_with("${") => self.enclosed("${", "}"),
            Some(digit) if digit.is_ascii_digit() || digit == '.' => self.number(),
            Some(letter) if letter.is_ascii_alphabetic() || letter == '_' => self.name(),
            Some(_) => Err(self.unexpected()),
            None => Err("ends where a number or a variable is due".to_owned()),
        }
    }

    fn enclosed(&mut self, open: &str, close: &str) -> Result<f64, String> {
        self.at += open.len();
        let sum = self.sum()?;
        self.close(close)?;
        Ok(sum)
    }

    fn close(&mut self, close: &str) -> Result<(), String> {
        self.blank();
        if !self.text[self.at..].starts_with(close) {
            return Err(format!("{close} is missing"));
        }
        self.at += close.len();
        Ok(())
    }

    fn number(&mut self) -> Result<f64, String> {
        let part = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'_');
        let number = self.word(|byte| part(&byte)).replace('_', "");
        number.parse().map_err(|_| format!("{number} is not a number"))
    }

    fn name(&mut self) -> Result<f64, String> {
        let name = self.word(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        self.blank();
        if self.text[self.at..].starts_with('(') {
            return self.function(&name);
        }
        let known = self.variables.iter().find(|(known, _)| *known == name);
        known.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<_> = self.variables.iter().map(|(name, _)| name.as_str()).collect();
            let (message, _) = not_found("variable", &name, &names);
            format!("{name}: {message}")
        })
    }

    fn function(&mut self, name: &str) -> Result<f64, String> {
        self.at += 1;
        let first = self.sum()?;
        let value = match name {
            "floor" => first.floor(),
            "ceil" => first.ceil(),
            "round" => first.round(),
            "min" | "max" => {
                self.close(",")?;
                let second = self.sum()?;
                if name == "min" { first.min(second) } else { first.max(second) }
            }
            _ => return Err(format!("{name} is not one of {}", FUNCTIONS.join(", "))),
        };
        self.close(")")?;
        Ok(value)
    }

    /// Reads the longest word of such bytes.
    fn word(&mut self, part: impl Fn(u8) -> bool) -> String {
        let rest = &self.text[self.at..];
        let end = rest.bytes().position(|byte| !part(byte)).unwrap_or(rest.len());
        self.at += end;
        rest[..end].to_owned()
    }

    fn next_of(&mut self, operators: &str) -> Option<char> {
        self.blank();
        let next = self.text[self.at..].chars().next().filter(|c| operators.contains(*c))?;
        self.at += 1;
        Some(next)
    }

    fn blank(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn unexpected(&self) -> String {
        let letter = self.text[self.at..].chars().next().unwrap_or(' ');
        format!("{letter:?} does not fit here")
    }
}
