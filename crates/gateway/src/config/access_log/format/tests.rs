//! Goal: valid formats are parsed. Formats that are malformed or would log secrets are rejected.

use super::*;

#[test]
fn variables_and_literals_alternate() {
    let format = Format::parse("$remote_addr [${time_local}]x$status-$http_x_client_id").unwrap();
    let Format::Text(parts) = &format else { panic!("{format:?}") };
    assert_eq!(
        *parts,
        [
            Part::Variable(Variable::RemoteAddr),
            Part::Literal(" [".into()),
            Part::Variable(Variable::TimeLocal),
            Part::Literal("]x".into()),
            Part::Variable(Variable::Status),
            Part::Literal("-".into()),
            Part::Header("x-client-id".into(), usize::MAX),
        ]
    );
    let format = format.with_headers(|name| if name == "x-client-id" { 3 } else { 4 });
    let Format::Text(parts) = &format else { panic!() };
    assert_eq!(parts[6], Part::Header("x-client-id".into(), 3));
}

#[test]
fn every_variable_is_read_and_printed() {
    for variable in Variable::ALL {
        let name = variable.as_str();
        let format = Format::parse(&format!("${name}")).unwrap();
        assert_eq!(format, Format::Text(vec![Part::Variable(variable)]), "{name}");
        assert_eq!(Format::parse(&format.to_string()), Ok(format));
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
