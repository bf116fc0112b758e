//! Goal: each cause is found when it is the cause, and no cause is found when it only looks like
//! one. Method: made-up runs of ten seconds with rising load, whose threshold breaks at 6 s. Each
//! test changes the metrics that matter to it.

use std::time::Duration;

use lab_model::record::{Class, Iterations};
use lab_model::results::run::{
    Generator, HostFacts, HostSample, MethodSecond, ProcessFacts, Row, StageRow, UpstreamFacts,
    WireFacts,
};
use lab_model::results::{Cause, Confidence, Finding, Quantiles};

use super::*;

pub(super) fn empty_row() -> Row {
    Row {
        method: "all".to_owned(),
        calls: 0,
        share: 1.0,
        rate: 0.0,
        goodput: 0.0,
        failed_share: 0.0,
        limited_share: 0.0,
        null_share: Some(0.0),
        wrong_type_share: Some(0.0),
        classes: Vec::new(),
        latency: Quantiles::default(),
        latency_least: None,
        service: Quantiles::default(),
        codes: Vec::new(),
    }
}

pub(super) fn empty_stage() -> StageRow {
    StageRow {
        scenario: "s".to_owned(),
        stage: "ramp".to_owned(),
        model: "open".to_owned(),
        from: 0.0,
        to: 10.0,
        level_from: 0.0,
        level_to: 1_000.0,
        iterations: Iterations::default(),
        rate_started: 0.0,
        overall: empty_row(),
        methods: Vec::new(),
    }
}

/// A metric of the host: its name, and its value by time.
type Metric = (&'static str, Box<dyn Fn(f64) -> f64>);

/// A made-up run. It is healthy, except that its latency breaks the threshold at 6 s.
struct Scene {
    metrics: Vec<Metric>,
    /// Metrics that are sampled only every second.
    rare: Vec<&'static str>,
    /// Host of the metrics.
    host: &'static str,
    watched: HostFacts,
    series: Vec<Second>,
    stages: Vec<StageRow>,
    overall: Row,
    wire: WireFacts,
    warmup: f64,
    /// Time of the first sample, in seconds since the start of the run.
    from: f64,
}

fn process(name: &str, role: ProcessRole, pid: u32) -> ProcessFacts {
    ProcessFacts {
        name: name.to_owned(),
        role,
        pids: vec![pid],
        cpu: 1.0,
        cpu_ms_per_request: None,
        memory_bytes_max: 1e6,
        restarted: false,
    }
}

/// Returns a value that is high from 5 s on.
fn from_five(low: f64, high: f64) -> impl Fn(f64) -> f64 {
    move |at| if at >= 5.0 { high } else { low }
}

fn second(at: f64) -> Second {
    let slow = at >= 6.0;
    Second {
        at,
        scheduled: 100,
        started: 100,
        requests: 100,
        generator_busy: 0.2,
        scheduling_delay_p99_ms: 0.1,
        in_flight: if slow { 40 } else { 2 },
        methods: vec![MethodSecond {
            method: "eth_call".to_owned(),
            stage: 0,
            classes: vec![(Class::Ok, 100)],
            p50_ms: if slow { 300.0 } else { 3.0 },
            p95_ms: if slow { 400.0 } else { 5.0 },
            p99_ms: if slow { 500.0 } else { 8.0 },
            max_ms: 600.0,
            max_least_ms: None,
        }],
        ..Second::default()
    }
}

impl Scene {
    /// Returns a run against a local target that is fully observed and not saturated.
    fn local() -> Scene {
        let watched = HostFacts {
            target_local: true,
            cores: 4.0,
            target_cores: Some(4.0),
            processes: vec![
                process("generator", ProcessRole::Generator, 1),
                process("geth", ProcessRole::Target, 2),
            ],
            ..HostFacts::default()
        };
        let mut scene = Scene {
            metrics: Vec::new(),
            rare: Vec::new(),
            host: "generator",
            watched,
            series: (1..=10).map(|at| second(f64::from(at))).collect(),
            stages: vec![empty_stage()],
            overall: empty_row(),
            wire: WireFacts::default(),
            warmup: 0.0,
            from: -1.0,
        };
        for (name, value) in [
            ("cpu_busy", 0.3),
            ("psi_cpu_some", 0.02),
            ("psi_io_some", 0.0),
            ("psi_memory_some", 0.0),
            ("memory_available_share", 0.7),
            ("process.generator.cpu", 0.3),
            ("process.generator.run_delay", 0.01),
            ("process.generator.thread_max_delay", 0.01),
            ("process.geth.cpu", 0.4),
            ("process.geth.run_delay", 0.01),
            ("process.geth.thread_max", 0.1),
            ("process.geth.thread_max_delay", 0.01),
            ("process.geth.threads_blocked", 0.0),
            ("process.geth.read_bytes", 0.0),
            ("target.accept_queue", 0.0),
            ("target.unread_in", 0.0),
        ] {
            scene.set(name, move |_| value);
        }
        scene.set("target.connections_in", |_| 50.0);
        scene.set("target.waiting_in", |at| if at >= 5.0 { 38.0 } else { 2.0 });
        scene.set("target.waiting_out", |_| 0.0);
        scene
    }

    /// Returns a run against a remote target that is observed through a node-exporter.
    fn remote() -> Scene {
        let mut scene = Scene::local();
        scene.metrics.retain(|(name, _)| !name.contains('.') || name.starts_with("disk"));
        scene.host = "target";
        scene.watched = HostFacts { exporter: true, cores: 2.0, ..HostFacts::default() };
        scene.set("cores", |_| 8.0);
        scene
    }

    /// Sets a metric to a function of time.
    fn set(&mut self, name: &'static str, value_at: impl Fn(f64) -> f64 + 'static) -> &mut Scene {
        self.metrics.retain(|(other, _)| *other != name);
        self.metrics.push((name, Box::new(value_at)));
        self
    }

    /// Samples these metrics only every second, as for processes with many threads.
    fn rarely(&mut self, names: &[&'static str]) -> &mut Scene {
        self.rare.extend(names);
        self
    }

    /// Sets the calls of each second from 5 s on, by class.
    fn calls(&mut self, classes: &[(Class, u64)]) -> &mut Scene {
        for second in self.series.iter_mut().filter(|second| second.at >= 5.0) {
            second.methods[0].classes = classes.to_vec();
        }
        self
    }

    /// Returns the bottleneck of the run.
    fn find(&self) -> Finding {
        self.find_at(Some(6.0)).unwrap()
    }

    /// Returns the bottleneck if the threshold broke at this time.
    fn find_at(&self, broken_at: Option<f64>) -> Option<Finding> {
        let times = (0..44).map(|quarter| f64::from(quarter) * 0.25 - 1.0);
        let samples = times.filter(|at| *at >= self.from).map(|at| {
            let is_sampled = |name: &&str| at.fract() == 0.0 || !self.rare.contains(name);
            let metrics = self.metrics.iter().filter(|(name, _)| is_sampled(name));
            let values = metrics.map(|(name, value_at)| ((*name).to_owned(), value_at(at)));
            HostSample { at, host: self.host.to_owned(), values: values.collect() }
        });
        let host: Vec<HostSample> = samples.collect();
        let mut result = RunResult {
            host,
            watched: self.watched.clone(),
            series: self.series.clone(),
            stages: self.stages.clone(),
            overall: self.overall.clone(),
            generator: Generator::default(),
            wire: self.wire.clone(),
            ..crate::report::example::passing().result
        };
        result.plan.warmup = self.warmup;
        let validity = Validity {
            generator_share_max: 0.1,
            delivered_share_min: 0.99,
            scheduling_delay_p99_max: Duration::from_millis(1),
            scheduling_delay_share_max: 0.05,
            waited_share_max: 0.1,
        };
        let bottleneck = find(&result, validity, broken_at);
        bottleneck.map(|bottleneck| crate::wording::bottleneck::finding(&bottleneck))
    }
}

/// Asserts that a finding has this cause and confidence.
fn check(finding: &Finding, cause: Cause, confidence: Confidence) {
    assert_eq!((finding.cause, finding.confidence), (cause, confidence), "{finding:#?}");
    assert!(!finding.sentence.is_empty());
}

/// Asserts that an item of evidence contains all parts.
fn assert_evidence(finding: &Finding, parts: &[&str]) {
    let contains_evidence =
        finding.evidence.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(contains_evidence, "{parts:?} in {finding:#?}");
}

#[test]
fn without_a_broken_threshold_there_is_no_bottleneck() {
    assert_eq!(Scene::local().find_at(None), None);
}

#[test]
fn software_is_the_cause_if_no_observed_resource_is_saturated() {
    let finding = Scene::local().find();
    check(&finding, Cause::Software, Confidence::High);
    assert_evidence(&finding, &["38.0 calls were inside the target"]);
}

#[test]
fn threads_that_share_one_core_of_cpu_suggest_a_lock() {
    let mut scene = Scene::local();
    scene.set("process.geth.cpu", from_five(0.3, 1.0)).set("process.geth.thread_max", |_| 0.3);
    let finding = scene.find();
    check(&finding, Cause::Software, Confidence::High);
    assert_evidence(&finding, &["as if behind one lock"]);
}

#[test]
fn calls_outside_the_target_do_not_blame_its_software() {
    let mut scene = Scene::local();
    // Forty calls are in flight, but only three of them are inside the target.
    scene.set("target.waiting_in", |_| 3.0);
    check(&scene.find(), Cause::Unknown, Confidence::Low);
}

#[test]
fn a_used_up_quota_is_the_cause() {
    let mut scene = Scene::local();
    scene
        .set("cgroup.geth.cpu_limit", |_| 0.5)
        .set("process.geth.cpu", from_five(0.1, 0.49))
        .set("cgroup.geth.throttled_periods", from_five(0.0, 0.9))
        .set("process.geth.run_delay", from_five(0.0, 1.5));
    scene.watched.target_cores = Some(0.5);
    let finding = scene.find();
    check(&finding, Cause::CpuQuota, Confidence::High);
    assert_eq!(finding.at, Some(5.0));
    assert_evidence(&finding, &["throttled", "90 % from 5.0 s on", "0.0 % before"]);
    assert_evidence(&finding, &["rank correlation"]);
}

#[test]
fn a_quota_explains_an_earlier_lack_of_cpu() {
    let mut scene = Scene::local();
    scene.watched.target_cores = Some(0.5);
    scene
        .set("cpu_busy", |_| 1.0)
        .set("cgroup.geth.cpu_limit", |_| 0.5)
        .set("process.geth.cpu", |at| if at >= 2.0 { 0.49 } else { 0.1 })
        .set("cgroup.geth.throttled_periods", from_five(0.0, 0.9))
        .set("process.geth.run_delay", |at| if at >= 2.0 { 1.5 } else { 0.0 });
    check(&scene.find(), Cause::CpuQuota, Confidence::High);
}

#[test]
fn a_thread_that_saturates_as_the_load_rises_is_the_cause() {
    let mut scene = Scene::local();
    let wanted = |at: f64| (0.2 * at).clamp(0.0, 1.0);
    scene.set("process.geth.cpu", wanted).set("process.geth.thread_max", wanted);
    let finding = scene.find();
    check(&finding, Cause::Thread, Confidence::High);
    assert!(finding.at.is_some_and(|at| (4.0..=5.0).contains(&at)), "{finding:#?}");
}

#[test]
fn a_quota_that_is_not_reached_is_no_cause() {
    let mut scene = Scene::local();
    scene.set("cgroup.geth.cpu_limit", |_| 2.0).set("cgroup.geth.throttled_periods", |_| 0.0);
    check(&scene.find(), Cause::Software, Confidence::High);
}

#[test]
fn a_saturated_host_cpu_is_the_cause() {
    let mut scene = Scene::local();
    scene
        .set("cpu_busy", from_five(0.3, 0.99))
        .set("process.geth.cpu", from_five(0.4, 3.4))
        .set("process.geth.thread_max", from_five(0.1, 0.5))
        .set("process.geth.run_delay", from_five(0.0, 3.0));
    let finding = scene.find();
    check(&finding, Cause::Cpu, Confidence::High);
    assert_evidence(&finding, &["the cores were 99 % busy"]);
    assert_evidence(&finding, &["the target used 3.4, the generator 0.3"]);
}

#[test]
fn a_cpu_that_was_busy_before_the_load_is_no_cause() {
    let mut scene = Scene::local();
    // Other processes use the CPU at low priority, and the target gets all the CPU time that it
    // needs.
    scene.set("cpu_busy", |_| 0.99).set("psi_cpu_some", |_| 0.9);
    let finding = scene.find();
    check(&finding, Cause::Software, Confidence::High);
    assert_evidence(&finding, &["99 % busy before the load started"]);
    let mut scene = Scene::remote();
    scene.set("cpu_busy", |_| 0.99).set("psi_cpu_some", |_| 0.9);
    check(&scene.find(), Cause::Unknown, Confidence::Low);
}

#[test]
fn the_cores_to_which_the_target_is_pinned_are_the_cause() {
    let mut scene = Scene::local();
    scene.watched.target_cores = Some(2.0);
    scene
        .set("process.geth.cpu", from_five(0.2, 1.98))
        .set("process.geth.thread_max", from_five(0.1, 0.3))
        .set("process.geth.run_delay", from_five(0.0, 6.0));
    let finding = scene.find();
    check(&finding, Cause::Cpu, Confidence::High);
    assert!(finding.sentence.contains("2 cores"), "{finding:#?}");
}

#[test]
fn a_nearly_idle_target_on_a_busy_host_does_not_lack_cpu() {
    let mut scene = Scene::local();
    scene
        .set("cpu_busy", from_five(0.8, 0.99))
        .set("process.geth.cpu", |_| 0.06)
        .set("process.geth.run_delay", from_five(0.01, 0.1));
    check(&scene.find(), Cause::Software, Confidence::High);
}

#[test]
fn a_saturated_thread_is_named() {
    let mut scene = Scene::local();
    scene
        .set("process.geth.cpu", from_five(0.1, 1.02))
        .set("process.geth.thread_max", from_five(0.08, 0.97))
        .set("process.geth.thread.main-7.cpu", from_five(0.08, 0.97));
    let finding = scene.find();
    check(&finding, Cause::Thread, Confidence::High);
    assert_evidence(&finding, &["main-7"]);
}

#[test]
fn the_other_threads_never_use_less_than_no_core() {
    let mut scene = Scene::local();
    // The two metrics are sampled one after the other, so the thread may seem to use more than its
    // process.
    scene
        .set("process.geth.cpu", from_five(0.1, 0.96))
        .set("process.geth.thread_max", from_five(0.08, 0.97));
    let finding = scene.find();
    check(&finding, Cause::Thread, Confidence::High);
    assert_evidence(&finding, &["the others used or waited for 0.00 cores"]);
}

#[test]
fn one_busy_thread_on_one_core_is_a_lack_of_cpu() {
    let mut scene = Scene::local();
    scene.watched.target_cores = Some(1.0);
    scene
        .set("process.geth.cpu", from_five(0.1, 0.99))
        .set("process.geth.thread_max", from_five(0.08, 0.97));
    check(&scene.find(), Cause::Cpu, Confidence::High);
}

#[test]
fn a_saturated_disk_is_the_cause() {
    let mut scene = Scene::local();
    scene
        .set("disk.sda.util", from_five(0.05, 0.99))
        .set("disk.sda.queue", from_five(0.1, 12.0))
        .set("psi_io_some", from_five(0.0, 0.8))
        .set("process.geth.threads_blocked", from_five(0.0, 9.0));
    check(&scene.find(), Cause::Disk, Confidence::High);
}

#[test]
fn iowait_without_queued_requests_does_not_blame_the_disk() {
    let mut scene = Scene::local();
    scene.set("cpu_iowait", |_| 0.6).set("disk.sda.util", |_| 0.95).set("disk.sda.queue", |_| 0.9);
    let finding = scene.find();
    check(&finding, Cause::Software, Confidence::High);
    assert_evidence(&finding, &["iowait is high"]);
}

/// In the CPU panels of a published report about a Somnia node, the cores are 43 to 95 % busy, and
/// there is no iowait. The report calls this an iowait of 40 to 95 %, and blames the disk.
#[test]
fn busy_cores_without_iowait_do_not_blame_the_disk() {
    for busy in [0.68, 0.95, 0.43, 0.66] {
        let mut scene = Scene::local();
        scene
            .set("cpu_busy", from_five(0.2, busy))
            .set("cpu_iowait", |_| 0.0)
            .set("disk.sda.util", from_five(0.02, 0.1))
            .set("disk.sda.queue", |_| 0.1);
        let finding = scene.find();
        assert_ne!(finding.cause, Cause::Disk, "{busy}: {finding:#?}");
        let text = finding.evidence.join(" ");
        assert!(!text.contains("iowait"), "{busy}: {text}");
    }
}

#[test]
fn a_busy_disk_that_the_target_does_not_use_is_not_its_limit() {
    let mut scene = Scene::local();
    scene
        .set("disk.sda.util", from_five(0.05, 0.99))
        .set("disk.sda.queue", from_five(0.1, 12.0))
        .set("psi_io_some", from_five(0.0, 0.8));
    let finding = scene.find();
    assert_ne!(finding.cause, Cause::Disk, "{finding:#?}");
}

#[test]
fn a_reached_disk_limit_of_the_cgroup_is_the_cause() {
    let mut scene = Scene::local();
    scene
        .set("cgroup.geth.io_util", from_five(0.0, 0.98))
        .set("psi_io_some", from_five(0.0, 0.9))
        .set("disk.sda.util", |_| 0.02)
        .set("disk.sda.queue", |_| 0.0);
    let finding = scene.find();
    check(&finding, Cause::Disk, Confidence::High);
    assert!(finding.sentence.contains("io.max"), "{finding:#?}");
}

#[test]
fn used_up_memory_of_the_host_or_the_cgroup_is_the_cause() {
    let mut scene = Scene::local();
    scene
        .set("memory_available_share", from_five(0.5, 0.02))
        .set("psi_memory_some", from_five(0.0, 0.4))
        .set("major_faults", from_five(0.0, 900.0));
    check(&scene.find(), Cause::Memory, Confidence::High);
    let mut scene = Scene::local();
    scene
        .set("cgroup.geth.memory_bytes", |_| 99e6)
        .set("cgroup.geth.memory_limit_bytes", |_| 100e6)
        .set("psi_memory_some", from_five(0.0, 0.4));
    check(&scene.find(), Cause::Memory, Confidence::High);
}

#[test]
fn the_resource_that_saturates_first_is_the_cause_and_a_tie_is_a_doubt() {
    let mut scene = Scene::remote();
    scene
        .set("cpu_busy", |at| if at >= 3.0 { 0.98 } else { 0.2 })
        .set("psi_cpu_some", |at| if at >= 3.0 { 0.9 } else { 0.0 })
        .set("disk.sda.util", from_five(0.05, 0.99))
        .set("disk.sda.queue", from_five(0.1, 12.0))
        .set("psi_io_some", from_five(0.0, 0.8));
    let finding = scene.find();
    check(&finding, Cause::Cpu, Confidence::High);
    assert_eq!(finding.at, Some(3.0));
    scene
        .set("psi_io_some", |at| if at >= 3.0 { 0.8 } else { 0.0 })
        .set("disk.sda.util", |at| if at >= 3.0 { 0.97 } else { 0.0 });
    check(&scene.find(), Cause::Disk, Confidence::Medium);
}

#[test]
fn a_resource_that_saturates_after_the_breach_is_no_cause() {
    let mut scene = Scene::local();
    scene
        .set("cgroup.geth.cpu_limit", |_| 0.5)
        .set("process.geth.cpu", |at| if at >= 7.5 { 0.49 } else { 0.1 })
        .set("cgroup.geth.throttled_periods", |at| if at >= 7.25 { 0.9 } else { 0.0 });
    let finding = scene.find();
    assert_ne!(finding.cause, Cause::CpuQuota, "{finding:#?}");
}

#[test]
fn a_constant_load_without_a_baseline_lowers_the_confidence() {
    let mut scene = Scene::local();
    scene.from = 0.1;
    scene.stages[0].level_from = 1_000.0;
    scene
        .set("cgroup.geth.cpu_limit", |_| 0.5)
        .set("process.geth.cpu", |_| 0.49)
        .set("cgroup.geth.throttled_periods", |_| 0.9);
    check(&scene.find(), Cause::CpuQuota, Confidence::Low);
}

#[test]
fn a_node_exporter_shows_the_cpu_of_a_remote_host() {
    let mut scene = Scene::remote();
    check(&scene.find(), Cause::Unknown, Confidence::Low);
    scene.set("cpu_busy", from_five(0.2, 0.98)).set("psi_cpu_some", from_five(0.0, 0.9));
    check(&scene.find(), Cause::Cpu, Confidence::High);
    // The host is busy, but no task waits, so the CPU is not saturated.
    scene.set("psi_cpu_some", |_| 0.01);
    check(&scene.find(), Cause::Unknown, Confidence::Low);
}

#[test]
fn a_saturated_network_device_is_the_cause() {
    let mut scene = Scene::remote();
    scene
        .set("net.eth0.util", from_five(0.1, 0.97))
        .set("net.eth0.drops", from_five(0.0, 300.0))
        .set("tcp_retransmits", from_five(0.0, 500.0))
        .set("tcp_segments_sent", |_| 10_000.0);
    check(&scene.find(), Cause::Network, Confidence::High);
}

#[test]
fn the_bottleneck_of_a_remote_target_without_exporter_is_unknown() {
    let mut scene = Scene::remote();
    scene.host = "generator";
    scene.watched.exporter = false;
    // The generator's host is busy, which does not show the state of the target's host.
    scene.set("cpu_busy", from_five(0.2, 0.99)).set("psi_cpu_some", from_five(0.0, 0.9));
    let finding = scene.find();
    check(&finding, Cause::Unknown, Confidence::Low);
    assert!(finding.sentence.contains("node-exporter"), "{finding:#?}");
}

#[test]
fn http_429_responses_show_a_rate_limit() {
    let mut scene = Scene::local();
    scene.calls(&[(Class::Ok, 60), (Class::Limited, 40)]);
    // Rate limits are checked before the CPU.
    let finding = scene.find();
    check(&finding, Cause::RateLimit, Confidence::High);
    assert_eq!(finding.at, Some(5.0));
    assert_evidence(&finding, &["40 %", "429"]);
    scene.calls(&[(Class::Ok, 50), (Class::Limited, 10), (Class::Timeout, 40)]);
    assert_ne!(scene.find().cause, Cause::RateLimit, "more calls fail than are limited");
}

/// A threshold such as `limited rate<0.01` breaks long before 5 % of the calls are rejected.
#[test]
fn few_http_429_responses_show_a_rate_limit_too() {
    let mut scene = Scene::local();
    scene.calls(&[(Class::Ok, 955), (Class::Limited, 45)]);
    check(&scene.find(), Cause::RateLimit, Confidence::High);
    // A saturated resource may be why the server rejects calls.
    scene.set("process.geth.thread_max", from_five(0.3, 0.99));
    assert_ne!(scene.find().cause, Cause::RateLimit);
    let mut scene = Scene::local();
    scene.calls(&[(Class::Ok, 995), (Class::Limited, 5)]);
    check(&scene.find(), Cause::Software, Confidence::High);
}

/// The target responds within a clock tick, so its sockets do not show which side must act next.
#[test]
fn packets_that_wait_on_the_way_show_a_limit_of_the_link() {
    let link = |round_trip_ms| {
        let mut scene = Scene::local();
        scene.set("target.waiting_in", |_| 1.0).set("target.unclear_in", |_| 49.0);
        scene.set("target.unacknowledged_in", from_five(0.0, 38.0));
        scene.set("target.round_trip_ms", from_five(0.1, round_trip_ms));
        scene.find()
    };
    let finding = link(450.0);
    check(&finding, Cause::Network, Confidence::High);
    assert_evidence(&finding, &["from 0.1 to 450.0 ms"]);
    assert_evidence(&finding, &["38 responses", "40 calls in flight"]);
    check(&link(41.0), Cause::Unknown, Confidence::Low);
    // The queue is on the way to the target, or in its own software.
    let mut scene = Scene::local();
    scene.set("target.unacknowledged_in", |_| 0.0);
    scene.set("target.round_trip_ms", from_five(0.1, 150.0));
    check(&scene.find(), Cause::Unknown, Confidence::Low);
    // A slow target acknowledges requests late, which alone makes the round trip 40 ms long.
    let mut scene = Scene::local();
    scene.set("target.round_trip_ms", from_five(0.1, 41.0));
    check(&scene.find(), Cause::Software, Confidence::High);
}

#[test]
fn a_rate_limit_begins_after_the_warm_up() {
    let mut scene = Scene::local();
    scene.calls(&[(Class::Ok, 60), (Class::Limited, 40)]);
    scene.series[1].methods[0].classes = vec![(Class::Ok, 60), (Class::Limited, 40)];
    assert_eq!(scene.find().at, Some(2.0));
    scene.warmup = 3.0;
    assert_eq!(scene.find().at, Some(5.0));
}

#[test]
fn json_rpc_errors_show_a_rate_limit() {
    let mut scene = Scene::local();
    scene.calls(&[(Class::Ok, 60), (Class::RpcError, 40)]);
    scene.overall.codes = vec![(-32_005, 200), (-32_000, 3)];
    check(&scene.find(), Cause::RateLimit, Confidence::Medium);
    scene.overall.codes = vec![(-32_005, 2), (-32_000, 200)];
    check(&scene.find(), Cause::Unknown, Confidence::Low);
}

#[test]
fn unclear_sockets_count_as_calls_up_to_the_calls_in_flight() {
    let mut scene = Scene::local();
    scene.set("target.waiting_in", |_| 1.0).set("target.unclear_in", |_| 49.0);
    check(&scene.find(), Cause::Software, Confidence::High);
    // Up to 30 calls may wait for an upstream of the target.
    scene.set("target.unclear_out", |_| 30.0);
    check(&scene.find(), Cause::Unknown, Confidence::Low);
}

#[test]
fn failures_do_not_blame_the_software() {
    let mut scene = Scene::local();
    scene.calls(&[(Class::Ok, 60), (Class::Http5xx, 40)]);
    check(&scene.find(), Cause::Unknown, Confidence::Low);
}

#[test]
fn connects_and_handshakes_that_take_most_of_the_time_are_the_cause() {
    let mut scene = Scene::local();
    let times = |count, mean_ms| Quantiles { count, mean_ms, ..Quantiles::default() };
    scene.overall.latency = times(1_000, 40.0);
    scene.wire.connect = times(1_000, 1.0);
    scene.wire.handshake_full = times(1_000, 30.0);
    let finding = scene.find();
    check(&finding, Cause::Connection, Confidence::High);
    assert_evidence(&finding, &["1000 full TLS handshakes of 30.00 ms"]);
    scene.wire.handshake_full = times(10, 30.0);
    assert_ne!(scene.find().cause, Cause::Connection);
}

#[test]
fn refused_connections_are_the_cause() {
    let mut scene = Scene::local();
    scene.calls(&[(Class::Ok, 60), (Class::Connect, 35), (Class::Timeout, 5)]);
    check(&scene.find(), Cause::Connection, Confidence::High);
    scene.calls(&[(Class::Ok, 60), (Class::Reset, 40)]);
    check(&scene.find(), Cause::Connection, Confidence::Medium);
    scene.watched.processes[1].restarted = true;
    assert_ne!(scene.find().cause, Cause::Connection, "it was killed");
}

#[test]
fn connections_that_wait_to_be_accepted_are_the_cause() {
    let mut scene = Scene::local();
    scene.set("target.accept_queue", from_five(0.0, 30.0));
    let finding = scene.find();
    check(&finding, Cause::Connection, Confidence::Medium);
    assert_evidence(&finding, &["30 of 50 connections waited to be accepted"]);
    // A single thread at its limit also accepts no connections. The thread is then the cause.
    scene
        .set("process.geth.cpu", from_five(0.1, 1.0))
        .set("process.geth.thread_max", from_five(0.1, 0.99));
    assert_eq!(scene.find().cause, Cause::Thread);
}

#[test]
fn a_few_connections_in_a_long_queue_are_no_limit() {
    let mut scene = Scene::local();
    scene
        .set("target.connections_in", |_| 20.0)
        .set("target.accept_queue", from_five(0.0, 4.0))
        .set("target.accept_queue_max", |_| 4_096.0);
    assert_ne!(scene.find().cause, Cause::Connection);
    // A full or nearly full queue is a limit.
    scene.set("target.accept_queue_max", |_| 4.0);
    check(&scene.find(), Cause::Connection, Confidence::High);
    scene.set("target.accept_queue_max", |_| 4_096.0).set("listen_overflows", from_five(0.0, 9.0));
    check(&scene.find(), Cause::Connection, Confidence::High);
}

/// Another process uses half of the core to which the target is pinned.
#[test]
fn a_neighbour_on_the_target_s_core_causes_a_lack_of_cpu() {
    let mut scene = Scene::local();
    scene.watched.target_cores = Some(1.0);
    scene
        .set("process.geth.cpu", from_five(0.1, 0.5))
        .set("process.geth.run_delay", from_five(0.0, 0.5))
        .set("process.geth.thread_max", from_five(0.1, 0.5))
        .set("process.geth.thread_max_delay", from_five(0.0, 0.5))
        .set("target.connections_in", |_| 20.0)
        .set("target.accept_queue", from_five(0.0, 4.0))
        .set("target.accept_queue_max", |_| 4_096.0);
    let finding = scene.find();
    check(&finding, Cause::Cpu, Confidence::High);
    assert_evidence(&finding, &["waited for a core", "50 % from 5.0 s on"]);
    // Many threads of the target share that core.
    scene
        .set("process.geth.run_delay", from_five(0.0, 6.0))
        .set("process.geth.thread_max", from_five(0.01, 0.1))
        .set("process.geth.thread_max_delay", from_five(0.0, 0.4));
    check(&scene.find(), Cause::Cpu, Confidence::High);
    // The target is not pinned, but its only thread stays on a core that it shares.
    scene.watched.target_cores = Some(4.0);
    scene
        .set("process.geth.run_delay", from_five(0.0, 0.5))
        .set("process.geth.thread_max", from_five(0.1, 0.5))
        .set("process.geth.thread_max_delay", from_five(0.0, 0.5));
    check(&scene.find(), Cause::Cpu, Confidence::High);
}

/// Many threads share one core. Their waits are sampled less often than their CPU use.
#[test]
fn rarely_sampled_waits_show_a_lack_of_cpu() {
    let mut scene = Scene::local();
    scene.watched.target_cores = Some(1.0);
    scene
        .set("cpu_busy", from_five(0.1, 0.5))
        .set("process.geth.cpu", from_five(0.1, 1.0))
        .set("process.geth.run_delay", from_five(0.0, 40.0))
        .set("process.geth.thread_max", from_five(0.01, 0.02))
        .set("process.geth.thread_max_delay", from_five(0.0, 0.9))
        .rarely(&[
            "process.geth.run_delay",
            "process.geth.thread_max",
            "process.geth.thread_max_delay",
        ]);
    check(&scene.find(), Cause::Cpu, Confidence::High);
}

/// A short wait for a core does not prove a lack of CPU, but it rules out the software as the
/// cause.
#[test]
fn waiting_for_a_core_excludes_software() {
    let mut scene = Scene::local();
    scene
        .set("process.geth.cpu", from_five(0.1, 0.3))
        .set("process.geth.run_delay", from_five(0.0, 0.3))
        .set("process.geth.thread_max", from_five(0.1, 0.3))
        .set("process.geth.thread_max_delay", from_five(0.0, 0.3));
    check(&scene.find(), Cause::Unknown, Confidence::Low);
}

#[test]
fn a_slow_upstream_is_the_cause() {
    let mut scene = Scene::local();
    scene.set("target.waiting_out", from_five(1.0, 36.0));
    let upstream = UpstreamFacts {
        address: "127.0.0.1:9001".to_owned(),
        process: Some("slow".to_owned()),
        waiting: 20.0,
    };
    scene.watched.upstreams.push(upstream);
    let finding = scene.find();
    check(&finding, Cause::Upstream, Confidence::High);
    assert!(finding.sentence.contains("127.0.0.1:9001, slow"), "{finding:#?}");
    // All connections of a pool of four are in use. Either the upstream is slow or the pool is too
    // small, so the cause is unknown.
    scene.set("target.waiting_out", from_five(1.0, 15.0));
    check(&scene.find(), Cause::Unknown, Confidence::Low);
    // The target is a proxy, and one of its threads is the limit.
    scene
        .set("target.waiting_out", from_five(1.0, 36.0))
        .set("process.geth.cpu", from_five(0.1, 1.0))
        .set("process.geth.thread_max", from_five(0.1, 0.99));
    assert_eq!(scene.find().cause, Cause::Thread);
}

#[test]
fn a_generator_that_waits_for_a_core_is_the_cause() {
    let mut scene = Scene::local();
    scene
        .set("process.generator.thread_max_delay", from_five(0.0, 0.9))
        // The generator shares all cores with a target that uses them fully.
        .set("process.geth.cpu", from_five(0.4, 3.7))
        .set("cpu_busy", from_five(0.3, 1.0))
        .set("process.geth.run_delay", from_five(0.0, 3.0));
    let finding = scene.find();
    check(&finding, Cause::Generator, Confidence::High);
    assert_evidence(&finding, &["3.7 of the 4 cores"]);
}

#[test]
fn a_generator_that_is_busy_or_late_or_out_of_ports_is_the_cause() {
    let mut scene = Scene::local();
    scene.series.iter_mut().for_each(|second| second.generator_busy = 0.97);
    check(&scene.find(), Cause::Generator, Confidence::High);
    let mut scene = Scene::local();
    scene.series[5].scheduling_delay_p99_ms = 1_500.0;
    scene.series[6].scheduling_delay_p99_ms = 1_500.0;
    check(&scene.find(), Cause::Generator, Confidence::High);
    // Calls are rate-limited meanwhile, which late sends cannot cause.
    scene.calls(&[(Class::Ok, 60), (Class::Limited, 40)]);
    assert_eq!(scene.find().cause, Cause::RateLimit);
    let mut scene = Scene::local();
    scene.wire.traffic.ports_exhausted = 7;
    check(&scene.find(), Cause::Generator, Confidence::High);
}

#[test]
fn a_short_scheduling_delay_is_a_doubt_but_no_cause() {
    let mut scene = Scene::local();
    // Late sends of 20 ms do not explain a rise of 492 ms, but they exceed the limit of the plan.
    scene.series.iter_mut().for_each(|second| second.scheduling_delay_p99_ms = 20.0);
    let finding = scene.find();
    check(&finding, Cause::Software, Confidence::Medium);
    assert_evidence(&finding, &["doubt", "late by 20.0 ms"]);
}

#[test]
fn the_bottleneck_of_a_target_in_the_same_process_is_unknown() {
    let mut scene = Scene::local();
    scene.watched.processes[1].pids = vec![1];
    scene
        .set("process.geth.cpu", from_five(0.1, 1.0))
        .set("process.geth.thread_max", from_five(0.1, 0.99));
    check(&scene.find(), Cause::Unknown, Confidence::Low);
}

#[test]
fn a_partly_observed_target_does_not_blame_its_software() {
    let mut scene = Scene::local();
    scene.watched.missing.push("/proc/pressure cannot be read".to_owned());
    let finding = scene.find();
    check(&finding, Cause::Unknown, Confidence::Low);
    assert_evidence(&finding, &["/proc/pressure"]);
}
