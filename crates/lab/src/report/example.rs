//! Examples of results for tests. Their calls are recorded one by one with generated times, so
//! their histograms, time series and rows agree as in a real run.
//!
//! The examples are deterministic: the same seed gives the same bytes.

use std::sync::LazyLock;
use std::time::Duration;

use lab_model::metrics::Metric;
use lab_model::plan::threshold::parse::parse_expression;
use lab_model::plan::threshold::unit;
use lab_model::record::{self, Class, Interval, Iterations, Slot, Times, Totals};
use lab_model::results::run::*;
use lab_model::results::*;

/// A result, and the other data from which its reports are built.
#[derive(Clone)]
pub(crate) struct Example {
    pub(crate) result: RunResult,
    pub(crate) totals: Totals,
    pub(crate) methods: Vec<Box<str>>,
}

/// Name, share of calls, and typical latency in milliseconds of each method.
const METHODS: [(&str, f64, f64); 6] = [
    ("eth_blockNumber", 0.32, 0.42),
    ("eth_call", 0.306, 2.1),
    ("eth_getBalance", 0.18, 0.9),
    ("eth_getBlockByNumber", 0.12, 3.4),
    ("eth_getTransactionReceipt", 0.06, 1.6),
    ("eth_getLogs", 0.014, 18.0),
];
/// Index of eth_getLogs in [`METHODS`].
const LOGS_INDEX: usize = 5;
/// Latency of a call that times out.
const TIMEOUT_MS: f64 = 5000.0;
const MASKED_URL: &str = "https://node.example.net/v1/ab…";

/// Parameters of an example.
pub(crate) struct Parameters {
    pub(crate) seconds: usize,
    /// Iterations per second at the steady stage.
    pub(crate) rate: f64,
    /// Second from which eth_getLogs hangs. `None` if it never hangs.
    pub(crate) hangs_from: Option<usize>,
    pub(crate) tls: bool,
}

/// Returns a run of four minutes in which eth_getLogs hangs from second 142 on, and other methods
/// stay fast.
pub(crate) fn failing() -> Example {
    static EXAMPLE: LazyLock<Example> = LazyLock::new(|| {
        build(&Parameters { seconds: 240, rate: 260.0, hangs_from: Some(142), tls: true })
    });
    EXAMPLE.clone()
}

/// Returns a run of 10 seconds that keeps its thresholds.
pub(crate) fn passing() -> Example {
    static EXAMPLE: LazyLock<Example> = LazyLock::new(|| {
        build(&Parameters { seconds: 10, rate: 400.0, hangs_from: None, tls: false })
    });
    EXAMPLE.clone()
}

/// Returns the failing run stretched to three hours. Each second, sample and stage is 45 times as
/// long.
pub(crate) fn long() -> Example {
    const STRETCH: usize = 45;
    let mut example = failing();
    let result = &mut example.result;
    result.duration *= STRETCH as f64;
    for stage in &mut result.stages {
        stage.from *= STRETCH as f64;
        stage.to *= STRETCH as f64;
    }
    for threshold in &mut result.thresholds {
        threshold.broken_at = threshold.broken_at.map(|at| at * STRETCH as f64);
    }
    if let Some(at) = result.bottleneck.as_mut().and_then(|finding| finding.at.as_mut()) {
        *at *= STRETCH as f64;
    }
    let series = result.series.iter().flat_map(|second| std::iter::repeat_n(second, STRETCH));
    result.series = series.cloned().collect();
    for (index, second) in result.series.iter_mut().enumerate() {
        second.at = index as f64 + 1.0;
    }
    let host = result.host.chunks(2).flat_map(|pair| std::iter::repeat_n(pair, STRETCH)).flatten();
    result.host = host.cloned().collect();
    for (index, sample) in result.host.iter_mut().enumerate() {
        sample.at = (index / 2) as f64 + 0.5;
    }
    example
}

/// Returns a run in which every text from the input attempts an injection.
pub(crate) fn hostile() -> Example {
    let evil = "<script>alert('1')</script>\"'&|`\n,=1+1";
    let mut example = passing();
    example.methods[1] = evil.into();
    let result = &mut example.result;
    for row in result.stages.iter_mut().flat_map(|stage| stage.methods.iter_mut()) {
        swap_name(&mut row.method, evil);
    }
    result.methods.iter_mut().for_each(|row| swap_name(&mut row.method, evil));
    for second in &mut result.series {
        second.methods.iter_mut().for_each(|method| swap_name(&mut method.method, evil));
    }
    result.stages[0].stage = evil.into();
    result.plan.name = evil.into();
    result.plan.text = format!("</pre>{evil}");
    result.target.url = format!("http://a/?{evil}");
    result.target.client = Some(evil.into());
    result.fingerprint.cpu = evil.into();
    result.verdict.reasons = vec![evil.into()];
    result.warnings = vec![evil.into()];
    result.thresholds[0].text = evil.into();
    result.thresholds[0].note = Some(evil.into());
    result.subscriptions = vec![subscription::SubscriptionRow {
        name: evil.into(),
        url: evil.into(),
        kind: evil.into(),
        ended: vec![(evil.into(), 1)],
        ..subscription::SubscriptionRow::default()
    }];
    let host = |at: f64| HostSample {
        at,
        host: evil.into(),
        values: vec![(format!("process.{evil}.cpu"), at)],
    };
    result.host = (1..10).map(|at| host(f64::from(at))).collect();
    result.bottleneck = Some(Finding {
        cause: Cause::Unknown,
        confidence: Confidence::Low,
        sentence: evil.into(),
        evidence: vec![evil.into()],
        at: None,
    });
    example
}

/// Replaces `name` by `new_name` if it is the name of the second method.
fn swap_name(name: &mut String, new_name: &str) {
    if name == METHODS[1].0 {
        *name = new_name.into();
    }
}

/// A source of uniform random numbers from 0 to 1 (<https://prng.di.unimi.it/splitmix64.c>).
struct Random(u64);

impl Random {
    /// Returns the next number.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a latency around `middle`. A few latencies are much longer.
    fn latency(&mut self, middle: f64) -> f64 {
        let deviation: f64 = (0..6).map(|_| self.next()).sum::<f64>() - 3.0;
        middle * (deviation * 0.55).exp() * if self.next() > 0.995 { 4.0 } else { 1.0 }
    }
}

/// Stages of the examples: name, share of the time, and levels at start and end as shares of the
/// rate.
const STAGES: [(&str, f64, f64, f64); 3] =
    [("ramp", 0.25, 0.2, 1.0), ("steady", 0.45, 1.0, 1.0), ("peak", 0.30, 1.8, 1.8)];

/// Records the calls of an example, second by second.
struct ExampleRecorder<'a> {
    parameters: &'a Parameters,
    random: Random,
    totals: Totals,
    /// Totals without the warm-up.
    measured: Totals,
    series: Vec<Second>,
}

/// Longest warm-up in seconds.
const WARMUP: usize = 5;

/// Records the calls of an example and builds its result.
fn build(parameters: &Parameters) -> Example {
    let mut recorder = ExampleRecorder {
        parameters,
        random: Random(7),
        totals: Totals::new(STAGES.len()),
        measured: Totals::new(STAGES.len()),
        series: Vec::new(),
    };
    for second in 0..parameters.seconds {
        recorder.record_second(second);
    }
    let methods: Vec<Box<str>> = METHODS.iter().map(|(name, ..)| (*name).into()).collect();
    let result = result(&recorder, &methods);
    Example { result, totals: recorder.measured, methods }
}

/// Returns the index of the stage that runs in a second, and the rate of iterations in that second.
fn stage_at(parameters: &Parameters, second: usize) -> (usize, f64) {
    let progress = (second as f64 + 0.5) / parameters.seconds as f64;
    let mut stage_start = 0.0;
    for (index, (_, stage_share, low, high)) in STAGES.iter().enumerate() {
        if progress < stage_start + stage_share || index == STAGES.len() - 1 {
            let share = ((progress - stage_start) / stage_share).clamp(0.0, 1.0);
            return (index, parameters.rate * (low + (high - low) * share));
        }
        stage_start += stage_share;
    }
    unreachable!("the last stage takes the rest")
}

impl ExampleRecorder<'_> {
    /// Records the calls of a second.
    fn record_second(&mut self, second: usize) {
        let (stage, level) = stage_at(self.parameters, second);
        let mut interval = Interval::new(0, STAGES.len(), METHODS.len());
        let scheduled = level.round() as u64;
        let hangs = self.parameters.hangs_from.is_some_and(|hang_start| second >= hang_start);
        let dropped = if hangs && stage == 2 { scheduled / 40 } else { 0 };
        for _ in 0..scheduled - dropped {
            self.record_call(&mut interval, stage, hangs);
        }
        let iterations = Iterations {
            scheduled,
            started: scheduled - dropped,
            started_after_end: 0,
            ended_after_end: 0,
            ended: scheduled - dropped,
            dropped,
            interrupted: 0,
        };
        interval.iterations[stage] = iterations;
        interval.traffic.requests = scheduled - dropped;
        interval.traffic.bytes_sent = scheduled * 188;
        interval.traffic.bytes_received = scheduled * 2310;
        if self.parameters.tls {
            interval.traffic.connections = scheduled / 20;
            interval.traffic.handshakes_full = scheduled / 100;
            interval.traffic.handshakes_resumed = scheduled / 20 - scheduled / 100;
            for _ in 0..scheduled / 20 {
                let connect = self.random.latency(0.6);
                interval.connect_time.record((connect * 1e6) as u64).unwrap();
                let full = self.random.latency(2.9);
                interval.handshake_full_time.record((full * 1e6) as u64).unwrap();
                let resumed = self.random.latency(1.1);
                interval.handshake_resumed_time.record((resumed * 1e6) as u64).unwrap();
            }
        } else {
            interval.traffic.connections = if second == 0 { 50 } else { 0 };
        }
        interval.statuses.insert(200, scheduled - dropped);
        (interval.in_flight, interval.workers_busy) = (if hangs { 40 } else { 3 }, scheduled / 60);
        interval.cpu = Duration::from_micros(scheduled * 21);
        interval.run_delay = Duration::from_micros(scheduled / 3);
        self.totals.merge(&interval);
        if second >= WARMUP.min(self.parameters.seconds / 10) {
            self.measured.merge(&interval);
        }
        self.series.push(point_of(second, stage, scheduled, &interval));
    }

    /// Records a call of a random method.
    fn record_call(&mut self, interval: &mut Interval, stage: usize, hangs: bool) {
        let mut pick = self.random.next();
        let mut method = 0;
        while method < LOGS_INDEX && pick > METHODS[method].1 {
            pick -= METHODS[method].1;
            method += 1;
        }
        let outcome_draw = self.random.next();
        let mut latency = self.random.latency(METHODS[method].2 * if hangs { 1.3 } else { 1.0 });
        let mut class = Class::Ok;
        if hangs && method == LOGS_INDEX && outcome_draw > 0.06 {
            (class, latency) = (Class::Timeout, TIMEOUT_MS);
        } else if method == 1 && outcome_draw > 0.9985 {
            class = Class::RpcError;
            interval.record_code(1, if outcome_draw > 0.9995 { -32000 } else { 3 });
        } else if stage == 2 && method == 1 && outcome_draw < 0.04 {
            (class, latency) = (Class::Limited, latency * 0.2);
            interval.retry_after.record(1_000_000_000).unwrap();
        }
        let slot = Slot { stage: stage as u16, method: method as u16, class };
        let nanos = (latency * 1e6) as u64;
        interval.record(slot, nanos, nanos - nanos / 50);
        let delay = self.random.latency(0.012);
        interval.scheduling_delay.record((delay * 1e6) as u64).unwrap();
        interval.iteration_time.record(nanos).unwrap();
    }
}

/// Returns the point of a second in the time series.
fn point_of(second: usize, stage: usize, scheduled: u64, interval: &Interval) -> Second {
    let iterations = interval.iterations[stage];
    let methods = METHODS.iter().enumerate().filter_map(|(index, (name, ..))| {
        let mut times = record::empty_times();
        let mut classes = Vec::new();
        for (slot, cell) in interval.cells().filter(|(slot, _)| slot.method == index as u16) {
            times.add(&cell.latency).unwrap();
            classes.push((slot.class, cell.latency.len()));
        }
        classes.sort();
        let times = quantiles(&times);
        (!classes.is_empty()).then(|| MethodSecond {
            method: (*name).into(),
            stage,
            classes,
            p50_ms: times.p50_ms,
            p95_ms: times.p95_ms,
            p99_ms: times.p99_ms,
            max_ms: times.max_ms,
            max_least_ms: None,
        })
    });
    Second {
        at: second as f64 + 1.0,
        scheduled,
        started: iterations.started,
        dropped: iterations.dropped,
        requests: iterations.started,
        scheduling_delay_p99_ms: quantiles(&interval.scheduling_delay).p99_ms,
        generator_busy: scheduled as f64 / 2100.0,
        generator_gap_ms: 0.0,
        in_flight: interval.in_flight,
        workers_busy: interval.workers_busy,
        waiting: 0,
        methods: methods.collect(),
    }
}

/// Returns the quantiles of a histogram of nanoseconds.
pub(crate) fn quantiles(times: &Times) -> Quantiles {
    let quantile_ms = |q: f64| times.value_at_quantile(q) as f64 / 1e6;
    if times.is_empty() {
        return Quantiles::default();
    }
    let spread = 1.96 * (times.len() as f64 * 0.99 * 0.01).sqrt() / times.len() as f64;
    Quantiles {
        count: times.len(),
        mean_ms: times.mean() / 1e6,
        min_ms: times.min() as f64 / 1e6,
        p50_ms: quantile_ms(0.5),
        p90_ms: quantile_ms(0.9),
        p95_ms: quantile_ms(0.95),
        p99_ms: quantile_ms(0.99),
        p999_ms: quantile_ms(0.999),
        max_ms: times.max() as f64 / 1e6,
        p99_interval_ms: (quantile_ms(0.99 - spread), quantile_ms((0.99 + spread).min(1.0))),
    }
}

/// Returns the row of the calls that `selects` selects.
fn row(name: &str, totals: &Totals, seconds: f64, selects: impl Fn(Slot) -> bool + Copy) -> Row {
    let calls = totals.count(selects);
    let calls_of_class = |class: Class| totals.count(|slot| selects(slot) && slot.class == class);
    let classes =
        Class::ALL.iter().filter(|class| calls_of_class(**class) > 0).map(|&class| ClassRow {
            class,
            calls: calls_of_class(class),
            latency: quantiles(&totals.latency(|slot| selects(slot) && slot.class == class)),
        });
    let share = |part: u64| if calls == 0 { 0.0 } else { part as f64 / calls as f64 };
    let failed_calls = totals.count(|slot| selects(slot) && slot.class.is_failure());
    let latency = quantiles(&totals.latency(selects));
    Row {
        method: name.into(),
        calls,
        share: calls as f64 / totals.count(|_| true).max(1) as f64,
        rate: calls as f64 / seconds,
        goodput: calls_of_class(Class::Ok) as f64 / seconds,
        failed_share: share(failed_calls),
        limited_share: share(calls_of_class(Class::Limited)),
        null_share: Some(0.0),
        wrong_type_share: Some(0.0),
        classes: classes.collect(),
        latency,
        latency_least: None,
        service: latency,
        codes: if name == "eth_call" {
            vec![(-32000, calls_of_class(Class::RpcError))]
        } else {
            vec![]
        },
    }
}

/// Returns the row of all methods and a row per method, of one stage or of the whole run.
fn rows(totals: &Totals, seconds: f64, stage: Option<usize>) -> (Row, Vec<Row>) {
    let in_stage = move |slot: Slot| stage.is_none_or(|stage| usize::from(slot.stage) == stage);
    let methods = METHODS.iter().enumerate().map(|(index, (name, ..))| {
        row(name, totals, seconds, move |slot| in_stage(slot) && usize::from(slot.method) == index)
    });
    (row("all", totals, seconds, in_stage), methods.collect())
}

fn result(recorder: &ExampleRecorder<'_>, methods: &[Box<str>]) -> RunResult {
    let parameters = recorder.parameters;
    let seconds = parameters.seconds as f64;
    let warmup = WARMUP.min(parameters.seconds / 10) as f64;
    let (overall, methods_rows) = rows(&recorder.measured, seconds - warmup, None);
    let logs = &methods_rows[LOGS_INDEX];
    let broken_at = parameters.hangs_from.map(|hang_start| hang_start as f64);
    let observed = logs.latency.p95_ms;
    let mut iterations = Iterations::default();
    recorder.totals.iterations.iter().for_each(|stage| iterations.add(*stage));
    RunResult {
        schema: SCHEMA.into(),
        weir: "0.1.0".into(),
        started: "2026-09-14T09:30:00Z".into(),
        started_unix: 1_789_378_200.0,
        duration: seconds,
        partial: false,
        plan: plan_facts(methods, warmup),
        target: TargetFacts {
            url: MASKED_URL.into(),
            family: "ethereum".into(),
            client: Some("Geth/v1.16.4-stable/linux-amd64/go1.25".into()),
            chain_id: Some("0x1".into()),
            head_start: Some(23_361_004),
            head_end: Some(23_361_024),
        },
        fingerprint: fingerprint(),
        verdict: verdict(broken_at, observed, logs),
        thresholds: thresholds(&overall, &methods_rows, broken_at),
        findings: Vec::new(),
        few_calls: Vec::new(),
        warnings: vec![
            "eth_getLogs has a share of 1.4 %: it can fail completely without breaking the threshold \
             on all calls; add a threshold for it"
                .into(),
        ],
        overall,
        methods: methods_rows,
        stages: stages(recorder),
        series: recorder.series.clone(),
        generator: Generator {
            iterations,
            delivered_share: iterations.started as f64 / iterations.scheduled as f64,
            scheduling_delay: quantiles(&recorder.totals.scheduling_delay),
            busy_max: recorder.series.iter().map(|s| s.generator_busy).fold(0.0, f64::max),
            cpu: recorder.totals.cpu.as_secs_f64(),
            cpu_us_per_request: 21.0,
            run_delay: recorder.totals.run_delay.as_secs_f64(),
            gaps: Quantiles::default(),
            gap_time: 0.0,
            share_max: 0.1,
            delay_max_ms: 1.0,
            iteration_time: quantiles(&recorder.totals.iteration_time),
        },
        wire: wire(recorder),
        host: host(parameters),
        watched: watched(),
        compared: None,
        subscriptions: Vec::new(),
        transactions: None,
        bottleneck: broken_at.map(finding),
    }
}

fn plan_facts(methods: &[Box<str>], warmup: f64) -> PlanFacts {
    let text: String = methods.iter().map(|m| format!("[[call]]\nmethod = \"{m}\"\n")).collect();
    PlanFacts {
        name: "somnia".into(),
        text: format!("# Weighted mix in three stages\nseed = 42\nwarmup = \"5s\"\n\n{text}"),
        hash: "9f2c4d1e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d".into(),
        seed: 42,
        warmup,
        threads: 1,
        http: "1.1".into(),
        connections: "reuse".into(),
        insecure: false,
    }
}

fn fingerprint() -> Fingerprint {
    Fingerprint {
        host: "bench-1".into(),
        cpu: "AMD EPYC 9454P 48-Core Processor".into(),
        cores: 8,
        kernel: "6.12.41".into(),
        governor: Some("performance".into()),
        memory_bytes: 67_108_864_000,
        cpu_limit: None,
        congestion: Some("cubic".into()),
        target_local: false,
    }
}

fn verdict(broken: Option<f64>, observed: f64, logs: &Row) -> Verdict {
    let Some(broken_at) = broken else {
        return Verdict { outcome: Outcome::Pass, reasons: vec![] };
    };
    let reasons = vec![
        format!(
            "latency{{method:eth_getLogs}} p(95)<800 was broken from second {broken_at} on: {observed:.0} ms"
        ),
        format!(
            "eth_getLogs failed in {:.1} % of its calls, while all calls together failed in less \
             than 1 %",
            logs.failed_share * 100.0
        ),
    ];
    Verdict { outcome: Outcome::Fail, reasons }
}

/// Returns the outcome of a threshold that was not judged yet.
pub(crate) fn outcome(text: &str) -> ThresholdOutcome {
    let (name, rest) = text.split_once(['{', ' ']).unwrap();
    let metric = Metric::of_name(name).unwrap();
    let expression = rest.split(' ').next_back().unwrap();
    let method = rest.split_once("method:").and_then(|(_, rest)| rest.split_once('}'));
    let aggregation = parse_expression(expression, metric).unwrap().aggregation;
    ThresholdOutcome {
        text: text.into(),
        metric: Some(metric),
        method: method.map(|(name, _)| name.into()),
        unit: Some(unit(metric, aggregation)),
        ..ThresholdOutcome::default()
    }
}

fn thresholds(overall: &Row, methods: &[Row], broken: Option<f64>) -> Vec<ThresholdOutcome> {
    let kept_threshold = |text: &str, observed: f64| ThresholdOutcome {
        kept: true,
        observed: Some(observed),
        ..outcome(text)
    };
    let mut outcomes = vec![
        kept_threshold("failed rate<0.01", overall.failed_share),
        kept_threshold("latency{method:eth_call} p(99)<300", methods[1].latency.p99_ms),
        ThresholdOutcome {
            kept: broken.is_none(),
            observed: Some(methods[LOGS_INDEX].latency.p95_ms),
            broken_at: broken,
            note: broken.map(|_| "sustained for 10 s".into()),
            ..outcome("latency{method:eth_getLogs} p(95)<800")
        },
        kept_threshold("delivered rate>0.99", 0.9952),
        ThresholdOutcome {
            note: Some("no data, which counts as broken".into()),
            ..outcome("latency{method:eth_getProof} p(95)<800")
        },
    ];
    if broken.is_none() {
        outcomes.pop();
    }
    outcomes
}

fn stages(recorder: &ExampleRecorder<'_>) -> Vec<StageRow> {
    let parameters = recorder.parameters;
    let mut stage_start = 0.0;
    let stages = STAGES.iter().enumerate().map(|(index, (name, stage_share, low, high))| {
        let length = stage_share * parameters.seconds as f64;
        let (overall, methods) = rows(&recorder.measured, length, Some(index));
        let iterations = recorder.totals.iterations[index];
        let row = StageRow {
            scenario: "main".into(),
            stage: (*name).into(),
            model: "open".into(),
            from: stage_start,
            to: stage_start + length,
            level_from: parameters.rate * low,
            level_to: parameters.rate * high,
            iterations,
            rate_started: iterations.started as f64 / length,
            overall,
            methods,
        };
        stage_start += length;
        row
    });
    stages.collect()
}

fn wire(recorder: &ExampleRecorder<'_>) -> WireFacts {
    let totals = &recorder.measured;
    let handshakes = totals.traffic.handshakes_full + totals.traffic.handshakes_resumed;
    WireFacts {
        traffic: totals.traffic,
        connect: quantiles(&totals.connect_time),
        handshake_full: quantiles(&totals.handshake_full_time),
        handshake_resumed: quantiles(&totals.handshake_resumed_time),
        resumption: (handshakes > 0)
            .then(|| totals.traffic.handshakes_resumed as f64 / handshakes as f64),
        upgrade: quantiles(&totals.upgrade_time),
        statuses: vec![(200, totals.traffic.requests - 300), (429, 300)],
        close_codes: Vec::new(),
        retry_after: quantiles(&totals.retry_after),
    }
}

fn host(parameters: &Parameters) -> Vec<HostSample> {
    let mut random = Random(11);
    let mut samples = Vec::new();
    for second in 0..parameters.seconds {
        let is_overloaded =
            parameters.hangs_from.is_some_and(|hang_start| second + 8 >= hang_start);
        let level = stage_at(parameters, second).1 / parameters.rate;
        let mut around = |middle: f64| middle * (0.92 + 0.16 * random.next());
        let values = vec![
            (String::from("cpu_iowait"), around(if is_overloaded { 0.31 } else { 0.02 })),
            (String::from("cpu_system"), around(0.05 * level)),
            (String::from("cpu_user"), around(0.24 * level)),
            (String::from("disk.nvme0n1.queue"), around(if is_overloaded { 31.0 } else { 0.8 })),
            (
                String::from("disk.nvme0n1.read_bytes"),
                around(if is_overloaded { 9.1e8 } else { 3.2e7 }),
            ),
            (String::from("memory_available_bytes"), around(2.1e10)),
            (String::from("net.eth0.rx_bytes"), around(4.1e6 * level)),
            (String::from("net.eth0.tx_bytes"), around(6.0e5 * level)),
            (String::from("process.geth.cpu"), around(1.9 * level)),
            (String::from("psi_cpu_some"), around(0.03)),
            (String::from("psi_io_some"), around(if is_overloaded { 0.74 } else { 0.04 })),
        ];
        samples.push(HostSample { at: second as f64 + 0.5, host: "target".into(), values });
        let values = vec![(String::from("cpu_user"), around(0.09 * level))];
        samples.push(HostSample { at: second as f64 + 0.5, host: "generator".into(), values });
    }
    samples
}

fn watched() -> HostFacts {
    let process = |name: &str, role, cpu: f64, cpu_ms: f64, memory_bytes: f64| ProcessFacts {
        name: name.into(),
        role,
        pids: vec![4242],
        cpu,
        cpu_ms_per_request: Some(cpu_ms),
        memory_bytes_max: memory_bytes,
        restarted: false,
    };
    HostFacts {
        target_local: true,
        exporter: false,
        cores: 8.0,
        target_cores: Some(4.0),
        processes: vec![
            process("weir", ProcessRole::Generator, 1.5, 0.021, 6.1e7),
            process("geth", ProcessRole::Target, 331.0, 4.7, 9.3e9),
        ],
        missing: vec!["this kernel does not report psi_irq".into()],
        cost: 0.004,
        ..HostFacts::default()
    }
}

fn finding(broken: f64) -> Finding {
    Finding {
        cause: Cause::Disk,
        confidence: Confidence::High,
        sentence: "The target's disk was saturated before eth_getLogs broke its threshold.".into(),
        evidence: vec![
            format!(
                "psi_io_some rose from 0.04 to 0.74 at {:.0} s, 8 s before the breach",
                broken - 8.0
            ),
            "disk.nvme0n1.queue rose from 0.8 to 31 in the same second".into(),
            "CPU stayed below 55 %, the generator below 25 %".into(),
        ],
        at: Some(broken - 8.0),
    }
}
