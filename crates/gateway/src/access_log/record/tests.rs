//! Goal: a record becomes exactly one line, which contains the known fields and no API key. Method:
//! one record, with one field from a hostile client at a time.

use super::*;

fn record() -> Record {
    Record {
        time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_298_645_123),
        client: "10.0.0.1".parse().unwrap(),
        key: Some("alice".into()),
        tier: None,
        path: "/".into(),
        http_method: "POST",
        protocol: "HTTP/1.1",
        status: 200,
        bytes_in: 70,
        bytes_out: 40,
        duration: Duration::from_micros(1500),
        calls: 1,
        call: Some(CallRecord {
            method: "eth_call".into(),
            chain: "eth".into(),
            error: None,
            cache: Some(CacheStatus::Miss),
            upstream: Some("a".into()),
            bytes: 10,
            duration: Duration::from_micros(1400),
            upstream_time: Some(Duration::from_micros(1400)),
        }),
        access_values: Some(access_values("rpc.example", "curl/8")),
    }
}

fn access_values(host: &str, header: &str) -> Arc<AccessValues> {
    let mut access_values = AccessValues::default();
    access_values.host = host.into();
    access_values.headers = Box::new([Some(header.as_bytes().into())]);
    Arc::new(access_values)
}

fn line(format: &str, record: &Record) -> String {
    let used_headers: [Box<str>; 1] = [USER_AGENT.into()];
    let format = Format::parse(format).unwrap().with_headers(|_| 0);
    let mut out = String::new();
    write_line(&mut out, &format, &used_headers, record);
    out
}

#[test]
fn lines_contain_the_known_fields() {
    expect_test::expect![[r#"
        {"time":"2026-11-21T22:04:05.123000Z","client":"10.0.0.1","key":"alice","host":"rpc.example","verb":"POST","path":"/","chain":"eth","method":"eth_call","cache":"miss","upstream":"a","user_agent":"curl/8","status":200,"calls":1,"bytes_in":70,"bytes_out":40,"request_time":0.001500,"upstream_time":0.001400}
    "#]]
    .assert_eq(&line("json", &record()));
    expect_test::expect![[r#"
        10.0.0.1 - alice [21/Nov/2026:22:04:05 +0000] "POST / HTTP/1.1" 200 40 "curl/8" "curl/8"
    "#]]
    .assert_eq(&line("combined", &record()));
    expect_test::expect![[r#"
        1795298645.123 2026-11-21T22:04:05.123000Z - eth eth_call 1 - miss a 0.002 0.001 70 rpc.example /
    "#]]
    .assert_eq(&line(
        "$msec $time_iso8601 $tier $chain $rpc_method $rpc_calls $rpc_error $cache $upstream \
         $request_time $upstream_response_time $request_length $host $uri",
        &record(),
    ));
}

#[test]
fn clients_cannot_forge_lines() {
    let wicked = "a\"b\\c\nd\r\t\u{1b}[2J\u{9b}\u{2028}é\u{0}";
    let mut record = record();
    let call = record.call.as_mut().unwrap();
    call.method = wicked.into();
    record.path = wicked.into();
    record.access_values = Some(access_values(wicked, wicked));
    for format in ["json", "combined", "$rpc_method $uri $host"] {
        let line = line(format, &record);
        let body = line.strip_suffix('\n').unwrap();
        assert!(!body.chars().any(char::is_control), "{body:?}");
        assert!(!body.contains('\u{2028}'), "{body:?}");
    }
    let parsed: serde_json::Value = serde_json::from_str(&line("json", &record)).unwrap();
    assert_eq!(parsed["method"], wicked);
    assert!(line("combined", &record).is_ascii());
}

#[test]
fn long_texts_are_truncated() {
    let mut record = record();
    record.call.as_mut().unwrap().method = "é".repeat(100_000).into();
    for format in ["json", "$rpc_method"] {
        assert!(line(format, &record).len() < 4 * TEXT_BYTES_MAX + 1000);
    }
}

#[test]
fn path_segments_that_may_be_keys_are_masked() {
    assert_eq!(&*mask_path("/eth"), "/eth");
    assert_eq!(&*mask_path("/v1/0123456789abcdef0123/eth"), "/v1/***/eth");
}
