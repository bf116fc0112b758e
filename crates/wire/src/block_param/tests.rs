//! Goal: the block of a call is read and replaced in its place. Method: a table of parameters.
use super::*;
use crate::family::Family;
use crate::method::{Method, methods_of};

fn method(name: &str) -> &'static Method {
    Family::ALL.iter().find_map(|family| methods_of(*family).method(name)).unwrap()
}

/// Returns the block of a call, and the parameters with block 4096 in its place.
fn replace_block(
    name: &str,
    params: Params<'_>,
) -> Result<Option<(BlockRef, String)>, BlockRefError> {
    let method = method(name);
    Ok(method.block_ref(&params)?.map(|(block, span)| {
        let mut out = Vec::new();
        write_params_at(&mut out, &params, span, method.block.unwrap().format, 4096);
        (block, String::from_utf8(out).unwrap())
    }))
}

#[test]
fn the_block_is_found_and_replaced_in_place() {
    let latest = BlockRef::Tag(BlockTag::Latest);
    for (name, params, expected) in [
        (
            "eth_getBalance",
            r#"["0xAb" , "latest" ]"#,
            Ok(Some((latest, r#"["0xAb" , "0x1000" ]"#))),
        ),
        ("eth_getBalance", r#"["0xAb"]"#, Ok(None)),
        ("eth_getBalance", "[]", Err(BlockRefError::Missing)),
        ("eth_getBalance", r#"["0xAb",null]"#, Err(BlockRefError::Format)),
        ("eth_call", r#"[{"to":"]"}]"#, Ok(Some((latest, r#"[{"to":"]"},"0x1000"]"#)))),
        ("eth_call", r#"[{"to":"x"} ]"#, Ok(Some((latest, r#"[{"to":"x"} ,"0x1000"]"#)))),
        (
            "eth_call",
            r#"[{},"0x5",{"0x1":{}}]"#,
            Ok(Some((BlockRef::Number(5), r#"[{},"0x1000",{"0x1":{}}]"#))),
        ),
        ("hmyv2_getBlockByNumber", "[-1,{}]", Ok(Some((latest, "[4096,{}]")))),
        ("hmyv2_getBlocks", "[5, 9 ,{}]", Ok(Some((BlockRef::Number(9), "[5, 4096 ,{}]")))),
        ("eth_chainId", "[1,2]", Ok(None)),
        ("getblockhash", "[7]", Ok(Some((BlockRef::Number(7), "[4096]")))),
    ] {
        let expected = expected
            .map(|block_and_text| block_and_text.map(|(block, text)| (block, text.to_owned())));
        assert_eq!(
            replace_block(name, Params::Array(params.as_bytes())),
            expected,
            "{name} {params}"
        );
    }
    assert_eq!(replace_block("eth_call", Params::Absent), Err(BlockRefError::Missing));
    assert_eq!(replace_block("eth_call", Params::Object(b"{}")), Err(BlockRefError::ByName));
}
