//! Goal: the bounds of a log filter are parsed as nodes do, and replaced without other changes.
//! Method: tables of parameters.
use super::*;
use crate::block::BlockTag;

fn parse_filter(params: &str) -> Result<LogFilter<'_>, BlockRefError> {
    LogFilter::from_params(&Params::Array(params.as_bytes()))
}

#[test]
fn bounds_are_read() {
    let bounds = |params| parse_filter(params).map(|filter| (filter.from, filter.to));
    let latest = Some(BlockRef::Tag(BlockTag::Latest));
    for (params, expected) in [
        ("[{}]", Ok((None, None))),
        (r#"[{"fromBlock":"0x1","toBlock":"latest"}]"#, Ok((Some(BlockRef::Number(1)), latest))),
        (r#"[{"fromBlock":null}]"#, Ok((None, None))),
        (r#"[{"fr\u006fmBlock":"0x2"}]"#, Ok((Some(BlockRef::Number(2)), None))),
        (r#"[{"fromBlock":1}]"#, Err(BlockRefError::Format)),
        (r#"[{"fromBlock":{"blockNumber":"0x1"}}]"#, Err(BlockRefError::Format)),
        (r#"[{"blockHash":"0x1"}]"#, Err(BlockRefError::Format)),
        (r#"["0x1"]"#, Err(BlockRefError::Format)),
        (r#"[{"fromBlock":"0x1","TOBLOCK":"0x2"}]"#, Err(BlockRefError::Format)),
        (r#"[{"Address":"0x1"}]"#, Err(BlockRefError::Format)),
        ("[{},{}]", Err(BlockRefError::Format)),
        ("[]", Err(BlockRefError::Missing)),
    ] {
        assert_eq!(bounds(params), expected, "{params}");
    }
    let hash = format!(r#"[{{"blockHash":"0x{}"}}]"#, "Ab".repeat(32));
    assert_eq!(parse_filter(&hash).unwrap().block_hash, Some([0xab; 32]));
    assert_eq!(LogFilter::from_params(&Params::Object(b"{}")), Err(BlockRefError::ByName));
}

#[test]
fn other_members_keep_their_bytes() {
    let write = |params: &str| {
        let mut out = Vec::new();
        parse_filter(params).unwrap().write_params(&mut out, 256, 511);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(write("[{}]"), r#"[{"fromBlock":"0x100","toBlock":"0x1ff"}]"#);
    assert_eq!(
        write(
            r#"[{"topics":[ null ],"toBlock":"latest","\u0061ddress":"0xAB","fromBlock":"0x1"}]"#
        ),
        r#"[{"fromBlock":"0x100","toBlock":"0x1ff","topics":[ null ],"\u0061ddress":"0xAB"}]"#
    );
}
