//! Log formats: JSON objects, or a text with variables as in nginx's `log_format`.

/// nginx's predefined format, with `$key` in place of `$remote_user`.
pub(crate) const COMBINED: &str = "$remote_addr - $key [$time_local] \"$request\" $status \
                                   $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// Maximum size of a format in bytes.
pub(crate) const FORMAT_BYTES_MAX: usize = 4096;

/// The format of log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object per line, as the gateway writes it.
    Json,
    /// A sequence of literals and variables.
    Text(Vec<Segment>),
}

/// A segment of a text format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Literal text.
    Literal(String),
    /// The value of the variable of this name.
    Variable(String),
}

impl Format {
    /// Parses `json`, `combined`, or a text with variables, `$name` or `${name}`. Every name is
    /// accepted, because nginx has more variables than the gateway.
    ///
    /// # Errors
    /// Describes what is wrong with the format.
    pub(crate) fn parse(text: &str) -> Result<Format, &'static str> {
        match text {
            "json" => return Ok(Format::Json),
            "combined" => return Format::parse(COMBINED),
            _ if text.is_empty() || text.len() > FORMAT_BYTES_MAX => {
                return Err("the format is empty or too long");
            }
            _ => {}
        }
        let mut segments = Vec::new();
        let mut remaining = text;
        while let Some((literal, from_name)) = remaining.split_once('$') {
            if !literal.is_empty() {
                segments.push(Segment::Literal(literal.to_owned()));
            }
            let (name, after_name) =
                split_name(from_name).ok_or("a $ is not followed by a name")?;
            segments.push(Segment::Variable(name.to_owned()));
            remaining = after_name;
        }
        if !remaining.is_empty() {
            segments.push(Segment::Literal(remaining.to_owned()));
        }
        Ok(Format::Text(segments))
    }
}

/// Splits a text after the variable name at its start. The name may be in braces. Returns `None` if
/// the text does not begin with a name, or if the braces are empty or not closed.
fn split_name(text: &str) -> Option<(&str, &str)> {
    if let Some(inside) = text.strip_prefix('{') {
        return inside.split_once('}').filter(|(name, _)| !name.is_empty());
    }
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let length = text.bytes().take_while(is_name).count();
    (length > 0).then(|| text.split_at(length))
}
