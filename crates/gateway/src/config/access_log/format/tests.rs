//! Goal: valid formats are parsed, and formats that are unsafe to write are rejected.

use super::*;

#[test]
fn variables_and_literals_alternate() {
    let format = Format::parse("$remote_addr [${time_local}]x$status-$http_x_client_id").unwrap();
    let Format::Text(parts) = &format else { panic!("{format:?}") };
    assert_eq!(
        *parts,
        [
            Part::Var(Var::RemoteAddr),
            Part::Literal(" [".into()),
            Part::Var(Var::TimeLocal),
            Part::Literal("]x".into()),
            Part::Var(Var::Status),
            Part::Literal("-".into()),
            Part::Var(Var::Header("x-client-id".into(), usize::MAX)),
        ]
    );
    assert_eq!(format.headers().collect::<Vec<_>>(), ["x-client-id"]);
    let placed = format.with_header_indices(|name| (name == "x-client-id").then_some(3));
    let Format::Text(parts) = &placed else { panic!() };
    assert_eq!(parts[6], Part::Var(Var::Header("x-client-id".into(), 3)));
}

#[test]
fn every_variable_of_the_table_is_read_and_printed() {
    for (name, var, doc) in VARIABLES {
        let format = Format::parse(&format!("${name}")).unwrap();
        assert_eq!(format, Format::Text(vec![Part::Var(var)]), "{name}");
        assert_eq!(Format::parse(&format.to_string()), Ok(format));
        assert!(!doc.is_empty());
    }
    assert!(matches!(Format::parse("combined"), Ok(Format::Text(_))));
    assert_eq!(Format::parse("json"), Ok(Format::Json));
}

#[test]
fn malformed_formats_are_rejected() {
    for (text, expected) in [
        ("", FormatFault::Length),
        ("a $ b", FormatFault::Name),
        ("$", FormatFault::Name),
        ("${", FormatFault::Name),
        ("${}", FormatFault::Name),
        ("$nothing", FormatFault::Unknown),
        ("$http_", FormatFault::Unknown),
        ("$http_authorization", FormatFault::Secret),
        ("$http_x_api_key", FormatFault::Secret),
        ("${http_COOKIE}", FormatFault::Secret),
        ("a\nb", FormatFault::Control),
    ] {
        assert_eq!(Format::parse(text), Err(expected), "{text:?}");
    }
    assert_eq!(Format::parse(&"x".repeat(5000)), Err(FormatFault::Length));
}
