//! The format of an access log line: JSON, or a text with variables as in nginx's `log_format`.

use std::fmt;

use crate::policy::closed_set::closed_set;

#[cfg(test)]
mod tests;

/// nginx's predefined format, with the name of the API key instead of the user name.
pub const COMBINED: &str = "$remote_addr - $key [$time_local] \"$request\" $status \
                            $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// Headers whose values are never stored.
pub const SECRET_HEADERS: [&str; 4] =
    ["authorization", "proxy-authorization", "cookie", "x-api-key"];

/// Maximum bytes of a format.
pub(crate) const FORMAT_BYTES_MAX: usize = 4096;

/// Format of a line.
#[derive(Clone, PartialEq, Eq)]
pub enum Format {
    /// One JSON object.
    Json,
    /// These parts in order.
    Text(Vec<Part>),
}

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Literal text.
    Literal(Box<str>),
    /// The value of a variable.
    Variable(Variable),
    /// The value of a request header: its lower-case name, and its index among the headers that are
    /// stored with each request.
    Header(Box<str>, usize),
}

closed_set! {
    /// A variable. The text after `=` is its name in a format. `$http_NAME` is a [`Part::Header`]
    /// instead.
    pub enum Variable {
        /// Address of the client.
        RemoteAddr = "remote_addr",
        /// Name of the key, or issuer and subject of the token.
        Key = "key",
        /// Tier of the key or token.
        Tier = "tier",
        /// `21/Nov/2026:22:04:05 +0000`.
        TimeLocal = "time_local",
        /// RFC 3339, with microseconds.
        TimeIso = "time_iso8601",
        /// Seconds since 1970, with three decimals.
        Msec = "msec",
        /// `POST` or another.
        RequestMethod = "request_method",
        /// The path without the query. A segment that could be a key is masked.
        Uri = "uri",
        /// `HTTP/1.1` or another.
        Protocol = "server_protocol",
        /// Method, path and protocol.
        Request = "request",
        /// HTTP status.
        Status = "status",
        /// Number of sent bytes of the response body. For one call, the number of bytes of its
        /// result or error.
        BodyBytesSent = "body_bytes_sent",
        /// Bytes of the request's body.
        RequestLength = "request_length",
        /// Seconds from the complete request to the written response, with three decimals.
        RequestTime = "request_time",
        /// Seconds spent on upstreams.
        UpstreamTime = "upstream_response_time",
        /// The requested host.
        Host = "host",
        /// Name of the chain.
        Chain = "chain",
        /// JSON-RPC method; `batch` for calls of different methods.
        Method = "rpc_method",
        /// Number of calls in the request.
        Calls = "rpc_calls",
        /// Code of the first JSON-RPC error.
        Error = "rpc_error",
        /// Cache status.
        Cache = "cache",
        /// Name of the upstream that responded.
        Upstream = "upstream",
    }
}

/// An error in a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatFault {
    /// The format is empty or too long.
    #[error("the format is empty or too long")]
    Length,
    /// A dollar has no name after it.
    #[error("a $ has no name after it")]
    Name,
    /// A variable is unknown.
    #[error("there is no such variable")]
    Unknown,
    /// A header carries secrets.
    #[error("this header contains secrets, which are not logged")]
    Secret,
    /// The format contains a line break or another control character.
    #[error("the format contains a control character")]
    Control,
}

impl Format {
    /// Parses `json`, `combined`, or a text with variables, `$name` or `${name}`.
    ///
    /// # Errors
    ///
    /// A [`FormatFault`].
    pub fn parse(text: &str) -> Result<Format, FormatFault> {
        match text {
            "json" => return Ok(Format::Json),
            "combined" => return Format::parse(COMBINED),
            _ if text.is_empty() || text.len() > FORMAT_BYTES_MAX => {
                return Err(FormatFault::Length);
            }
            _ if text.chars().any(char::is_control) => return Err(FormatFault::Control),
            _ => {}
        }
        let mut parts = Vec::new();
        let mut remaining = text;
        while let Some(dollar) = remaining.find('$') {
            if dollar > 0 {
                parts.push(Part::Literal(remaining[..dollar].into()));
            }
            let (name, after_name) = split_name(&remaining[dollar + 1..])?;
            parts.push(parse_variable(name)?);
            remaining = after_name;
        }
        if !remaining.is_empty() {
            parts.push(Part::Literal(remaining.into()));
        }
        Ok(Format::Text(parts))
    }

    /// Sets the index of each header in the format. `find_index` returns the index of a header
    /// among the headers that are stored with each request.
    #[must_use]
    pub fn with_headers(mut self, mut find_index: impl FnMut(&str) -> usize) -> Format {
        if let Format::Text(parts) = &mut self {
            for part in parts {
                if let Part::Header(name, index) = part {
                    *index = find_index(name);
                }
            }
        }
        self
    }
}

/// The request header that JSON lines contain.
pub const USER_AGENT: &str = "user-agent";

/// Splits a text after a `$` into the name of the variable and the remaining text.
fn split_name(text: &str) -> Result<(&str, &str), FormatFault> {
    if let Some(inside) = text.strip_prefix('{') {
        let (name, remaining) = inside.split_once('}').ok_or(FormatFault::Name)?;
        return if name.is_empty() { Err(FormatFault::Name) } else { Ok((name, remaining)) };
    }
    let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    match text.bytes().take_while(|byte| is_name_byte(byte)).count() {
        0 => Err(FormatFault::Name),
        length => Ok(text.split_at(length)),
    }
}

/// Returns the part for a variable. The index of a header is `usize::MAX` until
/// [`Format::with_headers`] sets it.
fn parse_variable(name: &str) -> Result<Part, FormatFault> {
    if let Some(header) = name.strip_prefix("http_") {
        let header = header.to_ascii_lowercase().replace('_', "-");
        if SECRET_HEADERS.contains(&header.as_str()) {
            return Err(FormatFault::Secret);
        }
        let parsed: Result<http::HeaderName, _> = header.parse();
        return parsed
            .map(|_| Part::Header(header.into(), usize::MAX))
            .map_err(|_| FormatFault::Unknown);
    }
    let variable = Variable::ALL.into_iter().find(|variable| variable.as_str() == name);
    variable.map(Part::Variable).ok_or(FormatFault::Unknown)
}

/// Prints the format as a configuration file writes it.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Format::Text(parts) = self else { return f.write_str("json") };
        parts.iter().try_for_each(|part| match part {
            Part::Literal(text) => f.write_str(text),
            Part::Variable(variable) => write!(f, "${{{}}}", variable.as_str()),
            Part::Header(name, _) => write!(f, "${{http_{}}}", name.replace('-', "_")),
        })
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}
