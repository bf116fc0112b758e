//! `weir demo`: a gateway in front of three simulated nodes, which serve one simulated chain (the
//! *world*). One node has faults, clients send generated calls, and a judge verifies every result.
//! The demo needs no other program, and is no benchmark.
//!
//! [`Demo::run_async`] runs the demo. Modules: `script` (schedule of faults), `nodes` (simulated
//! nodes), `calls` (generated calls), `traffic` (sending and measuring), `judge` (verification), `watch` (the gateway's status), `live`, `report` and `paint` (output), `picture`
//! (SVG for the documentation).

mod calls;
mod judge;
mod live;
mod nodes;
mod paint;
pub(crate) mod picture;
mod report;
mod script;
mod traffic;
mod watch;

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use gateway::config::{AdminOverride, Config, Overrides};
use gateway::runtime::Gateway;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::judge::{Judge, Verdicts};
use self::live::{Live, Sample, Snapshot};
use self::nodes::{DIRECT_NODE, NAMES, Nodes};
use self::paint::Paint;
use self::report::{Report, RunSummary};
use self::script::{FAULTY_NODE, NodeEvent, Step};
use self::traffic::{Targets, Traffic, quantile_ms};
use self::watch::{Cause, Watch};
use crate::stop::StopSignals;

/// Interval at which the script, the gateway's status and the live view are updated.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);
/// Time per point of the sparkline.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time for which the demo waits for calls in flight after Ctrl-C.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum duration of a run: one second per event of the script.
const DURATION_MIN: Duration = Duration::from_secs(5);
/// Maximum duration of a run: about the time for which the simulated chain keeps its blocks.
const DURATION_MAX: Duration = Duration::from_secs(3600);

/// Demonstrate the gateway in front of three simulated nodes
///
/// Starts three simulated nodes and a gateway with default settings, and sends two kinds of calls:
/// reads of the head, as a wallet makes them, and reads of history, as an explorer makes them.
/// Meanwhile one node lags, stalls, dies and returns, and the chain is reorganised twice. Every
/// response is compared with the simulated chain. Nothing leaves this machine.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir demo
  weir demo --duration 1m --json demo.json
  weir demo --keep --listen 127.0.0.1:8645

Exit codes: 0 no client received an error or a wrong response; 1 a client did, or the demo could not
run; 2 faulty arguments.")]
pub(crate) struct Demo {
    /// Duration of the run, 5s to 1h
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    duration: Duration,

    /// Also write the result to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Keep running afterwards, so that you can call the gateway and look at its status page
    #[arg(long)]
    keep: bool,

    /// Seed of the chain and of the calls
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Address for clients of the gateway [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = settings::value::parse_duration(text)?;
    match (DURATION_MIN..=DURATION_MAX).contains(&duration) {
        true => Ok(duration),
        false => Err("the duration must be from 5s to 1h".to_owned()),
    }
}

impl Demo {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.run_async())
    }

    async fn run_async(self) -> Result<ExitCode> {
        let mut stop = StopSignals::new()?;
        let json_file = self.json.as_ref().map(|path| {
            // The demo creates the file before the run, so that an invalid path fails at once.
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        });
        let json_file = json_file.transpose()?;
        let nodes = Nodes::start(script::world_options(self.seed, self.duration))?;
        let gateway = self.start_gateway(&nodes)?;
        let admin = gateway.admin.context("the gateway has no admin address")?;
        let watch = Watch::start(admin)?;
        let (judge, judge_sender) = Judge::start(nodes.world.clone())?;
        let targets = Targets { gateway: gateway.listen, direct: nodes.addresses()[DIRECT_NODE] };
        announce(&gateway, admin);
        let world = nodes.world.clone();
        let traffic = Traffic::start(world, targets, self.duration, &judge_sender)?;
        // The judge ends when the last client drops its sender.
        drop(judge_sender);
        let steps = script::steps(self.duration).to_vec();
        let verdicts = &judge.verdicts;
        let mut run = Run { nodes: &nodes, traffic: &traffic, verdicts, watch, steps };
        let interrupted = run.play(self.duration, &mut stop).await?;

        let watch = run.watch;
        let seconds = traffic.start.elapsed().as_secs_f64();
        let clients_ended = traffic.is_over();
        // The judge ends after all clients. If a client still waits for a response, the verdicts so
        // far count.
        let verdicts = if clients_ended { judge.finish() } else { judge.verdicts };
        let summary = RunSummary { seconds, seed: self.seed, interrupted, sent: traffic.sent() };
        let report = Report::new(&summary, &traffic.measurements(), &verdicts, watch);
        print(&report.table(Paint::for_terminal(std::io::stdout().is_terminal())));
        if let Some(mut file) = json_file {
            let text = serde_json::to_string_pretty(&report)?;
            writeln!(file, "{text}").context("cannot write the result as JSON")?;
        }
        if self.keep {
            nodes.apply(NodeEvent::Recover).await?;
            print(&keep_hints(&gateway, admin, &nodes));
            stop.next().await;
        } else {
            print(&next_steps());
        }
        // A graceful stop waits for the calls in flight, so it is skipped if a client still waits.
        if clients_ended {
            gateway.stop();
        }
        Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Starts a gateway as `weir serve` does, with these nodes, default settings and free ports.
    fn start_gateway(&self, nodes: &Nodes) -> Result<Gateway> {
        let free_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let upstreams: String = NAMES
            .iter()
            .zip(nodes.addresses())
            .map(|(name, node)| {
                format!("[[upstream]]\nname = \"{name}\"\nurl = \"http://{node}\"\n")
            })
            .collect();
        let (folder, no_environment) = (Path::new(""), |_: &str| -> Option<String> { None });
        let config = Config::from_text("demo", &upstreams, folder, &no_environment)?;
        let config = config.with_overrides(&Overrides {
            listen: Some(self.listen.unwrap_or(free_port)),
            admin: AdminOverride::Listen(free_port),
            threads: None,
            no_cache: false,
        });
        Ok(Gateway::start(config)?)
    }
}

/// State of a running demo.
struct Run<'a> {
    nodes: &'a Nodes,
    traffic: &'a Traffic,
    verdicts: &'a Verdicts,
    watch: Watch,
    /// Remaining steps of the script.
    steps: Vec<Step>,
}

impl Run<'_> {
    /// Plays the script and shows progress until the last call ends. Returns true if Ctrl-C ended
    /// the run.
    async fn play(&mut self, duration: Duration, stop: &mut StopSignals) -> Result<bool> {
        let mut live = Live::start(duration)?;
        let mut ticks = interval(UPDATE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // `None` until Ctrl-C.
        let mut drain_deadline: Option<Instant> = None;
        let mut last_sample = self.traffic.start;
        let mut reorgs_reported = 0;
        while !self.traffic.is_over()
            && drain_deadline.is_none_or(|deadline| Instant::now() < deadline)
        {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.next(), if drain_deadline.is_none() => {
                    self.traffic.stop();
                    drain_deadline = Some(Instant::now() + DRAIN_TIMEOUT);
                    self.steps.clear();
                }
            }
            self.apply_due_steps().await?;
            self.report_reorgs(&mut reorgs_reported);
            self.watch.poll(self.traffic.start.elapsed())?;
            if last_sample.elapsed() >= SAMPLE_INTERVAL {
                live.add_sample(self.take_sample(last_sample.elapsed()));
                last_sample = Instant::now();
            }
            self.show(&mut live);
        }
        self.watch.poll(self.traffic.start.elapsed())?;
        live.finish();
        Ok(drain_deadline.is_some())
    }

    /// Applies every step whose time has come.
    async fn apply_due_steps(&mut self) -> Result<()> {
        while let Some(step) = self.steps.first().copied() {
            let since_start = self.traffic.start.elapsed();
            if since_start < step.at {
                return Ok(());
            }
            self.steps.remove(0);
            self.nodes.apply(step.event).await?;
            self.watch.add_event(
                since_start,
                Cause::Simulation,
                step.event.describe(NAMES[FAULTY_NODE]),
            );
        }
        Ok(())
    }

    /// Adds new reorgs of the chain to the timeline. `reported` counts the reorgs that the timeline
    /// already has.
    fn report_reorgs(&mut self, reported: &mut usize) {
        let world = &self.nodes.world;
        let head = world.height_at(Instant::now());
        while let Some(reorg) = world.schedule().reorgs().get(*reported) {
            if head <= reorg.at_height {
                return;
            }
            *reported += 1;
            let text = format!("the chain replaces its last {} blocks", reorg.depth);
            self.watch.add_event(self.traffic.start.elapsed(), Cause::Simulation, text);
        }
    }

    /// Takes the measurements of the interval since the last sample.
    fn take_sample(&self, interval: Duration) -> Sample {
        let mut measurements = self.traffic.measurements();
        let recent = &mut measurements.recent;
        let calls_per_second = recent.len() as f64 / interval.as_secs_f64();
        let p99_ms = quantile_ms(recent, 0.99);
        recent.reset();
        Sample { calls_per_second, p99_ms }
    }

    /// Prints or redraws the current state.
    fn show(&self, live: &mut Live) {
        let (calls, errors) = {
            let measurements = self.traffic.measurements();
            (measurements.requests(), measurements.errors)
        };
        let status = &self.watch.status;
        live.show(&Snapshot {
            since_start: self.traffic.start.elapsed(),
            calls,
            errors,
            wrong_responses: self.verdicts.wrong(),
            hit_ratio: status.cache.hit_ratio,
            nodes: &status.chains[0].upstreams,
            events: &self.watch.events,
        });
    }
}

fn announce(gateway: &Gateway, admin: SocketAddr) {
    print(&format!(
        "weir listens on http://{} in front of three simulated nodes\n\
         status page and metrics on http://{admin}\n",
        gateway.listen
    ));
}

/// Returns the hints for `--keep`: addresses and commands to try.
fn keep_hints(gateway: &Gateway, admin: SocketAddr, nodes: &Nodes) -> String {
    let url = format!("http://{}", gateway.listen);
    let nodes: Vec<_> = NAMES
        .iter()
        .zip(nodes.addresses())
        .map(|(name, address)| format!("    {name}  http://{address}\n"))
        .collect();
    format!(
        "\n  running until Ctrl-C\n    gateway {url}\n    status  http://{admin}\n{}\n  \
         try\n{}",
        nodes.concat(),
        curl_command(&url)
    )
}

/// Returns a command that reads the newest block.
fn curl_command(url: &str) -> String {
    format!(
        "    curl -si {url} -H 'content-type: application/json' \\\n      \
         -d '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"eth_getBlockByNumber\",\
         \"params\":[\"latest\",false]}}'\n"
    )
}

/// Returns commands to try after the demo.
fn next_steps() -> String {
    // The commands repeat the path that started this program, so that a user can copy them.
    let weir = std::env::args().next().unwrap_or_else(|| "weir".to_owned());
    format!(
        "\n  try next\n    \
         {weir} demo --keep    # keeps running: call it, watch its status page\n    \
         {weir} serve --upstream http://127.0.0.1:8545    # with your own node; then call it:\n{}",
        curl_command("http://127.0.0.1:8645")
    )
}

fn print(text: &str) {
    // The demo continues if standard output is closed.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
