//! The options of `weir load URL`, and the plan that they mean. What they may be is checked by
//! `lab_model::plan::line`, which knows all bounds and defaults.

use anyhow::Result;
use clap::Args;
use lab::target::{self, Why};
use lab_model::plan::fault::Faults;
use lab_model::plan::line::Line;
use lab_model::plan::{self, Plan};
use wire::method::FamilyName;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for a URL")]
pub(crate) struct LineOptions {
    /// Workers, each on a connection of its own [default: 50]
    #[arg(short = 'c', long, value_name = "N")]
    concurrency: Option<u64>,

    /// How long [default: 10s]
    #[arg(short = 'd', long, value_name = "DURATION")]
    duration: Option<String>,

    /// Stop after so many requests
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,

    /// Requests per second, sent when they are due whatever comes back; without it every worker
    /// sends when its answer has come
    #[arg(short = 'r', long, value_name = "PER SECOND")]
    rate: Option<String>,

    /// Time at the start that is measured and not judged
    #[arg(long, value_name = "DURATION")]
    warmup: Option<String>,

    /// Methods of the target: ethereum, harmony or bitcoin [default: found out]
    #[arg(long, value_name = "FAMILY")]
    family: Option<FamilyName>,

    /// Call one method
    #[arg(long, value_name = "NAME")]
    method: Option<String>,

    /// Parameters of --method as JSON, in which values may be drawn, as in a plan
    #[arg(long, value_name = "JSON")]
    params: Option<String>,

    /// Send one request body
    #[arg(long, value_name = "JSON")]
    body: Option<String>,

    /// Send a mix: somnia, ethspam, chainbench-eth, json-bench, ethereum, harmony, bitcoin, or a file
    #[arg(long, value_name = "NAME|FILE")]
    mix: Option<String>,

    /// Send recorded requests: JSON lines or vegeta's JSON targets; - is standard input
    #[arg(long, value_name = "FILE")]
    requests: Option<String>,

    /// Keep connections, close each after one request, or after N of them [default: reuse]
    #[arg(long, value_name = "reuse|close|N")]
    connections: Option<String>,

    /// Resume TLS sessions on new connections [default: on]
    #[arg(long, value_name = "on|off")]
    tls_resume: Option<String>,

    /// Offer one version of TLS only
    #[arg(long, value_name = "1.2|1.3")]
    tls_version: Option<String>,

    /// Offer these cipher suites only, by IANA or OpenSSL name, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    ciphers: Vec<String>,

    /// Do not check the target's certificate; also for a plan
    #[arg(long)]
    insecure: bool,

    /// HTTP version
    #[arg(long, value_name = "1.1|2")]
    http: Option<String>,

    /// How long an answer may take [default: 15s]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,

    /// A further request header; may stand several times
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    header: Vec<String>,

    /// Seed of everything random: the same seed on the same chain sends the same calls; also for a
    /// plan
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1 << 53))]
    seed: Option<u64>,

    /// Threads that make the load [default: 1]
    #[arg(long, value_name = "N")]
    threads: Option<u64>,

    /// An objective, such as 'latency p(99)<300', 'failed rate<0.01' or
    /// 'latency{method:eth_call} p(95)<50'; may stand several times
    #[arg(long, value_name = "OBJECTIVE")]
    threshold: Vec<String>,

    /// Watch a process; may stand several times. The listener of a local target is watched by itself
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,

    /// Watch the target's host by its prometheus-node-exporter
    #[arg(long, value_name = "URL")]
    node_exporter: Option<String>,
}

impl LineOptions {
    /// The plan that the options mean. The target is asked for its family unless that is given.
    pub(crate) fn plan(&self, url: &str) -> Result<Result<Plan, Faults>> {
        // First with a family that may be wrong: faults of options are told without asking anybody.
        let mut line = self.line(url, self.family.unwrap_or(FamilyName::Ethereum));
        let mut plan = match line.plan() {
            Ok(plan) => plan,
            Err(faults) => return Ok(Err(faults)),
        };
        if self.family.is_some() {
            return Ok(Ok(plan));
        }
        match target::family(&plan.target, &plan.connections.tls) {
            Ok(family) => {
                if family != line.family {
                    line.family = family;
                    return Ok(line.plan());
                }
            }
            // What is sent was given, so it does not depend on the family.
            Err(fault) if self.says_what() && is_about_family(&fault.why) => {
                plan.target.family = None;
            }
            Err(fault) => return Err(fault.into()),
        }
        Ok(Ok(plan))
    }

    /// The same options for a search of the highest rate, which decides rate and time itself; as many
    /// workers as given if none are asked for. The fault is an option that a search does not take.
    pub(crate) fn for_search(&self, rate: f64, workers: u64) -> Result<LineOptions, &'static str> {
        let own = [
            ("-d", self.duration.is_some()),
            ("-n", self.count.is_some()),
            ("-r", self.rate.is_some()),
            ("--warmup", self.warmup.is_some()),
        ];
        if let Some((option, _)) = own.into_iter().find(|(_, given)| *given) {
            return Err(option);
        }
        let concurrency = self.concurrency.or(Some(workers));
        Ok(LineOptions { rate: Some(rate.to_string()), concurrency, ..self.clone() })
    }

    /// Whether the options say what is sent.
    fn says_what(&self) -> bool {
        self.method.is_some() || self.body.is_some() || self.requests.is_some()
    }

    fn line(&self, url: &str, family: FamilyName) -> Line {
        Line {
            connections: self.concurrency,
            duration: self.duration.clone(),
            requests: self.count,
            rate: self.rate.clone(),
            warmup: self.warmup.clone(),
            method: self.method.clone(),
            params: self.params.clone(),
            body: self.body.clone(),
            mix: self.mix.clone(),
            requests_file: self.requests.clone(),
            reuse: self.connections.clone(),
            tls_resume: self.tls_resume.clone(),
            tls_version: self.tls_version.clone(),
            ciphers: self.ciphers.clone(),
            insecure: self.insecure,
            http: self.http.clone(),
            timeout: self.timeout.clone(),
            headers: self.header.clone(),
            seed: self.seed,
            threads: self.threads,
            thresholds: self.threshold.clone(),
            pids: self.pid.clone(),
            node_exporter: self.node_exporter.clone(),
            ..Line::new(url, family)
        }
    }

    /// Reads a plan and puts what was given for every run in the place of what it says.
    pub(crate) fn read(
        &self,
        text: &str,
        name: &str,
        variables: &[(String, f64)],
        target: Option<&str>,
    ) -> Result<Plan, String> {
        let mut plan = plan::read(text, name, variables).map_err(|faults| faults.to_string())?;
        if let Some(url) = target {
            plan.target.point_at(url).map_err(|fault| format!("--target: {fault}"))?;
        }
        plan.seed = self.seed.unwrap_or(plan.seed);
        plan.connections.tls.insecure |= self.insecure;
        Ok(plan)
    }

    /// The first of these options that was given; a plan takes none of them.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            ("-c", self.concurrency.is_some()),
            ("-d", self.duration.is_some()),
            ("-n", self.count.is_some()),
            ("-r", self.rate.is_some()),
            ("--warmup", self.warmup.is_some()),
            ("--family", self.family.is_some()),
            ("--method", self.method.is_some()),
            ("--params", self.params.is_some()),
            ("--body", self.body.is_some()),
            ("--mix", self.mix.is_some()),
            ("--requests", self.requests.is_some()),
            ("--connections", self.connections.is_some()),
            ("--tls-resume", self.tls_resume.is_some()),
            ("--tls-version", self.tls_version.is_some()),
            ("--ciphers", !self.ciphers.is_empty()),
            ("--http", self.http.is_some()),
            ("--timeout", self.timeout.is_some()),
            ("-H", !self.header.is_empty()),
            ("--threads", self.threads.is_some()),
            ("--threshold", !self.threshold.is_empty()),
            ("--pid", !self.pid.is_empty()),
            ("--node-exporter", self.node_exporter.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }
}

fn is_about_family(why: &Why) -> bool {
    matches!(why, Why::NoFamily { .. } | Why::NotJsonRpc { .. } | Why::Limited { .. })
}
