//! Evaluates formulas of a file: `30000 * load_percent / 100`.
//!
//! A formula has numbers, variables, `+ - * /`, parentheses, and the functions `floor`, `ceil`,
//! `round`, `min` and `max`. `${…}` encloses any expression, as parentheses do, so that a formula
//! may be written as `${name} * 2`. The value types of keys (`value.rs`) check the bounds of the
//! result.

use crate::names::not_found_message;

#[cfg(test)]
mod tests;

/// A variable with its value.
pub type Variable = (String, f64);

/// The functions that a formula may call.
pub(crate) const FUNCTIONS: [&str; 5] = ["floor", "ceil", "round", "min", "max"];

/// Maximum nesting of parentheses, functions and signs. It prevents a stack overflow.
const DEPTH_MAX: usize = 32;

/// Evaluates a formula.
///
/// # Errors
/// Fails if the formula is malformed, or its value is not a finite number.
pub fn evaluate(text: &str, variables: &[Variable]) -> Result<f64, String> {
    let mut parser = Parser { text, offset: 0, depth: 0, variables };
    let value = parser.parse_sum()?;
    parser.skip_whitespace();
    if parser.offset < text.len() {
        return Err(parser.unexpected_character());
    }
    if value.is_finite() { Ok(value) } else { Err("not a finite number".to_owned()) }
}

/// A recursive-descent parser that evaluates the formula while it reads.
struct Parser<'a> {
    text: &'a str,
    /// Byte offset of the next character.
    offset: usize,
    /// Number of factors that are being parsed: the current one and those that enclose it.
    depth: usize,
    variables: &'a [Variable],
}

impl Parser<'_> {
    fn parse_sum(&mut self) -> Result<f64, String> {
        let mut sum = self.parse_product()?;
        loop {
            match self.next_operator("+-") {
                Some('+') => sum += self.parse_product()?,
                Some(_) => sum -= self.parse_product()?,
                None => return Ok(sum),
            }
        }
    }

    fn parse_product(&mut self) -> Result<f64, String> {
        let mut product = self.parse_factor()?;
        loop {
            match self.next_operator("*/") {
                Some('*') => product *= self.parse_factor()?,
                Some(_) => {
                    let divisor = self.parse_factor()?;
                    if divisor == 0.0 {
                        return Err("divides by 0".to_owned());
                    }
                    product /= divisor;
                }
                None => return Ok(product),
            }
        }
    }

    /// Evaluates a factor: a number, a variable, a call or an enclosed sum, perhaps after a minus
    /// sign. Fails if it is nested too deeply.
    fn parse_factor(&mut self) -> Result<f64, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX}"));
        }
        let factor = self.parse_factor_unchecked();
        self.depth -= 1;
        factor
    }

    /// Evaluates a factor without a check of its depth.
    fn parse_factor_unchecked(&mut self) -> Result<f64, String> {
        self.skip_whitespace();
        let remaining = &self.text[self.offset..];
        match remaining.chars().next() {
            Some('-') => {
                self.offset += 1;
                Ok(-self.parse_factor()?)
            }
            Some('(') => self.parse_enclosed("(", ")"),
            Some('$') if remaining.starts_with("${") => self.parse_enclosed("${", "}"),
            Some(digit) if digit.is_ascii_digit() || digit == '.' => self.parse_number(),
            Some(letter) if letter.is_ascii_alphabetic() || letter == '_' => self.parse_name(),
            Some(_) => Err(self.unexpected_character()),
            None => Err("ends where a number or a variable must follow".to_owned()),
        }
    }

    /// Evaluates a sum between two tokens, such as parentheses.
    fn parse_enclosed(&mut self, open: &str, close: &str) -> Result<f64, String> {
        self.offset += open.len();
        let sum = self.parse_sum()?;
        self.expect(close)?;
        Ok(sum)
    }

    /// Skips a token that must come next.
    fn expect(&mut self, token: &str) -> Result<(), String> {
        self.skip_whitespace();
        if !self.text[self.offset..].starts_with(token) {
            return Err(format!("{token} is missing"));
        }
        self.offset += token.len();
        Ok(())
    }

    fn parse_number(&mut self) -> Result<f64, String> {
        let is_number_byte = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'_');
        let number = self.take_while(is_number_byte).replace('_', "");
        number.parse().map_err(|_| format!("{number} is not a number"))
    }

    fn parse_name(&mut self) -> Result<f64, String> {
        let name = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        self.skip_whitespace();
        if self.text[self.offset..].starts_with('(') {
            return self.call_function(&name);
        }
        let variable = self.variables.iter().find(|(variable, _)| *variable == name);
        variable.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<_> = self.variables.iter().map(|(name, _)| name.as_str()).collect();
            let (message, _) = not_found_message("variable", &name, &names);
            format!("{name}: {message}")
        })
    }

    /// Evaluates a call of a function. The offset is at its opening parenthesis.
    fn call_function(&mut self, name: &str) -> Result<f64, String> {
        self.offset += 1;
        let argument = self.parse_sum()?;
        let value = match name {
            "floor" => argument.floor(),
            "ceil" => argument.ceil(),
            "round" => argument.round(),
            "min" | "max" => {
                self.expect(",")?;
                let second_argument = self.parse_sum()?;
                if name == "min" {
                    argument.min(second_argument)
                } else {
                    argument.max(second_argument)
                }
            }
            _ => return Err(format!("{name} is not one of {}", FUNCTIONS.join(", "))),
        };
        self.expect(")")?;
        Ok(value)
    }

    /// Takes the bytes up to the first byte that does not match.
    fn take_while(&mut self, matches: impl Fn(u8) -> bool) -> String {
        let remaining = &self.text[self.offset..];
        let end = remaining.bytes().position(|byte| !matches(byte)).unwrap_or(remaining.len());
        self.offset += end;
        remaining[..end].to_owned()
    }

    /// Takes the next character if it is one of the operators.
    fn next_operator(&mut self, operators: &str) -> Option<char> {
        self.skip_whitespace();
        let operator = self.text[self.offset..].chars().next()?;
        if !operators.contains(operator) {
            return None;
        }
        self.offset += 1;
        Some(operator)
    }

    fn skip_whitespace(&mut self) {
        let remaining = &self.text[self.offset..];
        self.offset += remaining.len() - remaining.trim_start().len();
    }

    /// Returns the error about the next character.
    fn unexpected_character(&self) -> String {
        let character = self.text[self.offset..].chars().next().unwrap_or(' ');
        format!("{character:?} does not fit here")
    }
}
