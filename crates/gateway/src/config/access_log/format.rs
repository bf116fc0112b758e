//! Format of an access log line: JSON, or a text with variables as in nginx's `log_format`.

use std::fmt;

#[cfg(test)]
mod tests;

/// nginx's predefined format, with the name of the key where nginx has the user.
pub const COMBINED: &str = "$remote_addr - $key [$time_local] \"$request\" $status \
                            $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// Headers whose values are never stored.
pub const SECRET_HEADERS: [&str; 4] =
    ["authorization", "proxy-authorization", "cookie", "x-api-key"];

/// Longest format, in bytes.
pub(crate) const BYTES_MAX: usize = 4096;

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
    Var(Var),
}

/// A variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Var {
    /// Address of the client.
    RemoteAddr,
    /// Name of the key, or issuer and subject of the token.
    Key,
    /// Tier of the key or token.
    Tier,
    /// `21/Nov/2026:22:04:05 +0000`.
    TimeLocal,
    /// RFC 3339, with microseconds.
    TimeIso,
    /// Seconds since 1970, with milliseconds.
    Msec,
    /// `POST` or another.
    RequestMethod,
    /// The path without the query. A segment that could be a key is masked.
    Uri,
    /// `HTTP/1.1` or another.
    Protocol,
    /// Method, path and protocol.
    Request,
    /// HTTP status.
    Status,
    /// Number of sent bytes of the response body. For one call, the number of bytes of its result
    /// or error.
    BodyBytesSent,
    /// Bytes of the request's body.
    RequestLength,
    /// Seconds from the complete request to the written response, with milliseconds.
    RequestTime,
    /// Seconds spent on upstreams.
    UpstreamTime,
    /// The requested host.
    Host,
    /// A request header, by its lower-case name and its index among the stored ones.
    Header(Box<str>, usize),
    /// Name of the chain.
    Chain,
    /// JSON-RPC method; `batch` for calls of different methods.
    Method,
    /// Number of calls in the request.
    Calls,
    /// Code of the first JSON-RPC error.
    Error,
    /// Cache status.
    Cache,
    /// Name of the upstream that responded.
    Upstream,
}

/// The variables by name, apart from `$http_NAME`.
pub const VARIABLES: [(&str, Var, &str); 22] = [
    ("remote_addr", Var::RemoteAddr, "address of the client"),
    ("key", Var::Key, "name of the key, or `ISSUER:SUBJECT` of the token"),
    ("tier", Var::Tier, "tier of the key or token"),
    ("time_local", Var::TimeLocal, "`21/Nov/2026:22:04:05 +0000`; always UTC"),
    ("time_iso8601", Var::TimeIso, "`2026-11-21T22:04:05.123456Z`"),
    ("msec", Var::Msec, "seconds since 1970 with milliseconds"),
    ("request_method", Var::RequestMethod, "`POST` or another"),
    ("uri", Var::Uri, "the path without query; segments that could be a key are `***`"),
    ("server_protocol", Var::Protocol, "`HTTP/1.1`, `HTTP/2.0`"),
    ("request", Var::Request, "`$request_method $uri $server_protocol`"),
    ("status", Var::Status, "HTTP status"),
    ("body_bytes_sent", Var::BodyBytesSent, "bytes of the response body as sent"),
    ("request_length", Var::RequestLength, "bytes of the request's body"),
    ("request_time", Var::RequestTime, "seconds from the complete request to the written response"),
    (
        "upstream_response_time",
        Var::UpstreamTime,
        "seconds that the longest call waited for upstreams",
    ),
    ("host", Var::Host, "requested host"),
    ("chain", Var::Chain, "name of the chain"),
    ("rpc_method", Var::Method, "JSON-RPC method; `batch` for several different ones"),
    ("rpc_calls", Var::Calls, "number of calls in the request"),
    ("rpc_error", Var::Error, "code of the first JSON-RPC error"),
    ("cache", Var::Cache, "`hit`, `miss`, `coalesced` or `bypass`; of a batch, of its first call"),
    ("upstream", Var::Upstream, "name of the upstream that responded; of a batch, its first call"),
];

/// An error in a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatFault {
    /// Empty or too long.
    Length,
    /// A dollar without a name.
    Name,
    /// An unknown variable.
    Unknown,
    /// A header that carries secrets.
    Secret,
    /// A line break or another control character.
    Control,
}

impl FormatFault {
    /// Returns the message.
    pub fn as_str(self) -> &'static str {
        match self {
            FormatFault::Length => "the format is empty or too long",
            FormatFault::Name => "a $ has no name after it",
            FormatFault::Unknown => "there is no such variable",
            FormatFault::Secret => "this header contains secrets, which are not logged",
            FormatFault::Control => "the format contains a control character",
        }
    }
}

impl fmt::Display for FormatFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
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
            _ if text.is_empty() || text.len() > BYTES_MAX => return Err(FormatFault::Length),
            _ if text.chars().any(char::is_control) => return Err(FormatFault::Control),
            _ => {}
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            if dollar > 0 {
                parts.push(Part::Literal(rest[..dollar].into()));
            }
            let (name, remaining) = split_name(&rest[dollar + 1..])?;
            parts.push(Part::Var(find_variable(name)?));
            rest = remaining;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.into()));
        }
        Ok(Format::Text(parts))
    }

    /// Returns the names of the headers in it.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        let parts = match self {
            Format::Json => &[][..],
            Format::Text(parts) => parts,
        };
        // The header that JSON lines contain.
        let json_header = matches!(self, Format::Json).then_some(USER_AGENT);
        let variable_headers = parts.iter().filter_map(|part| match part {
            Part::Var(Var::Header(name, _)) => Some(&**name),
            _ => None,
        });
        json_header.into_iter().chain(variable_headers)
    }

    /// Sets each header's index among the stored ones.
    #[must_use]
    pub fn with_header_indices(mut self, index_of: impl Fn(&str) -> Option<usize>) -> Format {
        if let Format::Text(parts) = &mut self {
            for part in parts {
                if let Part::Var(Var::Header(name, index)) = part {
                    *index = index_of(name).unwrap_or(usize::MAX);
                }
            }
        }
        self
    }
}

/// The header that JSON lines contain.
pub const USER_AGENT: &str = "user-agent";

/// Splits the variable name off the start of a text.
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

fn find_variable(name: &str) -> Result<Var, FormatFault> {
    if let Some(header) = name.strip_prefix("http_") {
        let header = header.to_ascii_lowercase().replace('_', "-");
        if SECRET_HEADERS.contains(&header.as_str()) {
            return Err(FormatFault::Secret);
        }
        let parsed: Result<http::HeaderName, _> = header.parse();
        return parsed
            .map(|_| Var::Header(header.into(), usize::MAX))
            .map_err(|_| FormatFault::Unknown);
    }
    let variable = VARIABLES.iter().find(|(known, ..)| *known == name);
    variable.map(|(_, var, _)| var.clone()).ok_or(FormatFault::Unknown)
}

impl Var {
    fn name(&self) -> String {
        match self {
            Var::Header(name, _) => format!("http_{}", name.replace('-', "_")),
            known => {
                let variable = VARIABLES.iter().find(|(_, var, _)| var == known);
                variable.map_or_else(String::new, |(name, ..)| (*name).to_owned())
            }
        }
    }
}

/// Prints the format as in a configuration.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Format::Text(parts) = self else { return f.write_str("json") };
        parts.iter().try_for_each(|part| match part {
            Part::Literal(text) => f.write_str(text),
            Part::Var(var) => write!(f, "${{{}}}", var.name()),
        })
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}
