//! How lines of a log are written: JSON objects, or a text with variables as nginx's `log_format`.

/// nginx's predefined format, with the name of the key where nginx has the user.
pub(crate) const COMBINED: &str = "$remote_addr - $key [$time_local] \"$request\" $status \
                                   $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// Longest format, in bytes.
pub(crate) const BYTES_MAX: usize = 4096;

/// How lines are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object for each line, as the gateway writes it.
    Json,
    /// These parts one after the other.
    Text(Vec<Part>),
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// This text.
    Literal(String),
    /// What the variable of this name stands for.
    Variable(String),
}

impl Format {
    /// Reads `json`, `combined`, or a text with variables, `$name` or `${name}`. Any name is a
    /// variable: nginx has more than the gateway.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(crate) fn parse(text: &str) -> Result<Format, &'static str> {
        match text {
            "json" => return Ok(Format::Json),
            "combined" => return Format::parse(COMBINED),
            _ if text.is_empty() || text.len() > BYTES_MAX => {
                return Err("the format is empty or too long");
            }
            _ => {}
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('$') {
            if !before.is_empty() {
                parts.push(Part::Literal(before.to_owned()));
            }
            let (name, after) = name_at(behind).ok_or("a $ has no name behind it")?;
            parts.push(Part::Variable(name.to_owned()));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.to_owned()));
        }
        Ok(Format::Text(parts))
    }
}

/// The name at the start of a text, and what follows it.
fn name_at(text: &str) -> Option<(&str, &str)> {
    if let Some(inside) = text.strip_prefix('{') {
        return inside.split_once('}').filter(|(name, _)| !name.is_empty());
    }
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let length = text.bytes().take_while(is_name).count();
    (length > 0).then(|| text.split_at(length))
}
