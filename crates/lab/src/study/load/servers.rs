//! The servers of a load study: starts them with their files, waits until they accept connections,
//! restarts them, and stops them.
//!
//! Servers of one variant have their own folder and their own ports. The A/A control uses the
//! servers of the variant that it repeats, unless servers restart before each run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lab_model::results::load_study::Restart;
use settings::url::NodeUrl;

use super::file::{LoadStudy, Server};
use super::placeholders::{self, Words};
use super::store::Store;
use crate::run::Stop;
use crate::study::StudyFault;
use crate::study::runner::exit_reason;
use crate::study::runner::process::{Groups, Process};

/// How often a server is asked for a connection while it starts.
const TICK: Duration = Duration::from_millis(50);
/// Timeout of an attempt to connect to a server.
const CONNECT: Duration = Duration::from_secs(1);
/// Longest wait for the target of a variant after all its servers are ready.
const TARGET_READY: Duration = Duration::from_secs(30);
/// First port for servers. Lower ones are usual ports of other programs.
const PORT_FIRST: u16 = 20_000;
/// Smallest number of ports below the range of outgoing connections to choose from.
const PORTS_MIN: u16 = 1_000;
/// Attempts to find a free port.
const PORT_ATTEMPTS: u16 = 500;

/// The running servers of a study.
pub(super) struct Servers<'a> {
    study: &'a LoadStudy,
    store: &'a Store,
    weir: &'a Path,
    stop: &'a Stop,
    groups: &'a Groups,
    /// Placeholders of the shared servers.
    shared_words: Words,
    /// Placeholders of each variant.
    words: Vec<Words>,
    shared: Vec<Process>,
    /// Running servers by the index of the variant that owns them.
    running: BTreeMap<usize, Vec<Process>>,
}

impl<'a> Servers<'a> {
    /// Chooses ports, and starts the servers that all variants share.
    pub(super) fn start(
        study: &'a LoadStudy,
        store: &'a Store,
        weir: &'a Path,
        (stop, groups): (&'a Stop, &'a Groups),
    ) -> Result<Servers<'a>, StudyFault> {
        let mut servers = Servers {
            study,
            store,
            weir,
            stop,
            groups,
            shared_words: Words::new(),
            words: Vec::new(),
            shared: Vec::new(),
            running: BTreeMap::new(),
        };
        servers.choose_ports()?;
        let folder = servers.store.shared_folder();
        let words = with_folder(&servers.shared_words, &folder);
        servers.shared = servers.start_all("", &study.servers, &folder, &words)?;
        Ok(servers)
    }

    fn choose_ports(&mut self) -> Result<(), StudyFault> {
        let weir = ("weir".to_owned(), self.weir.to_string_lossy().into_owned());
        let mut taken = BTreeSet::new();
        let mut choose = |texts: &mut dyn Iterator<Item = &str>, known: &Words| {
            let mut words = known.clone();
            for name in texts.flat_map(placeholders::names) {
                if let Some(port) = placeholders::port(name)
                    && !words.contains_key(&placeholders::of_port(port))
                {
                    words.insert(placeholders::of_port(port), free_port(&mut taken)?.to_string());
                }
            }
            Ok::<_, StudyFault>(words)
        };
        let mut texts = self.study.servers.iter().flat_map(Server::texts);
        self.shared_words = choose(&mut texts, &Words::from([weir]))?;
        self.shared_words.insert("variant".to_owned(), String::new());
        for (index, variant) in self.study.variants.iter().enumerate() {
            if self.owner(index) != index {
                let words = self.words[self.owner(index)].clone();
                self.words.push(words);
                continue;
            }
            let texts = variant.servers.iter().flat_map(Server::texts);
            let mut words =
                choose(&mut texts.chain(variant.target.as_deref()), &self.shared_words)?;
            words.insert("variant".to_owned(), variant.name.clone());
            self.words.push(words);
        }
        Ok(())
    }

    /// Returns the index of the variant whose servers a variant uses.
    fn owner(&self, variant: usize) -> usize {
        match self.study.variants[variant].control_of {
            Some(original) if *self.study.file.restart != Restart::Run => original,
            _ => variant,
        }
    }

    /// Returns the URL of a variant's target; none if the plan's target is used.
    pub(super) fn target(&self, variant: usize) -> Option<String> {
        let target = self.study.variants[variant].target.as_deref()?;
        Some(placeholders::replace(target, &self.words[variant]))
    }

    /// Prepares a round: stops the servers of all variants if they restart before each round.
    pub(super) fn before_round(&mut self) {
        if *self.study.file.restart == Restart::Round {
            self.running.clear();
        }
    }

    /// Prepares a run: starts the servers of the variant if they do not run. If servers restart
    /// before each run, those of the other variants are stopped.
    ///
    /// # Errors
    /// If a server cannot be started, or a shared server has ended.
    pub(super) fn before_run(&mut self, variant: usize) -> Result<(), StudyFault> {
        check_running("", &self.study.servers, &mut self.shared)?;
        let owner = self.owner(variant);
        let restart = *self.study.file.restart;
        if restart == Restart::Run {
            self.running.clear();
        }
        let owners: Vec<usize> = match restart {
            Restart::Run => vec![owner],
            // All servers run during all runs, so that none has the machine for itself.
            Restart::Never | Restart::Round => {
                let all = 0..self.study.variants.len();
                all.filter(|index| self.owner(*index) == *index).collect()
            }
        };
        for owner in owners {
            let study = self.study;
            let variant = &study.variants[owner];
            if let Some(running) = self.running.get_mut(&owner) {
                check_running(&variant.name, &variant.servers, running)?;
                continue;
            }
            let folder = self.store.server_folder(&variant.name);
            let words = with_folder(&self.words[owner], &folder);
            let running = self.start_all(&variant.name, &variant.servers, &folder, &words)?;
            self.running.insert(owner, running);
            self.await_target(owner)?;
        }
        Ok(())
    }

    /// Stops the servers of all variants after a run that could not be made. The next run starts
    /// them again.
    pub(super) fn stop_variants(&mut self) {
        self.running.clear();
    }

    /// Waits until the target of a variant with servers accepts connections.
    fn await_target(&self, variant: usize) -> Result<(), StudyFault> {
        let facts = &self.study.variants[variant];
        let Some(target) = self.target(variant).filter(|_| !facts.servers.is_empty()) else {
            return Ok(());
        };
        let url = NodeUrl::parse_http(&target)
            .map_err(|error| StudyFault::Asked(format!("variant {:?}: {error}", facts.name)))?;
        let whose = format!("the target of variant {:?}", facts.name);
        self.await_connection(&whose, &authority(&url), TARGET_READY, None)
    }

    fn start_all(
        &self,
        variant: &str,
        servers: &[Server],
        folder: &Path,
        words: &Words,
    ) -> Result<Vec<Process>, StudyFault> {
        let mut running = Vec::new();
        if servers.is_empty() {
            return Ok(running);
        }
        empty_folder(folder)?;
        for server in servers {
            let whose = whose(variant, server);
            for (name, text) in &server.files {
                write_private(&folder.join(name), &placeholders::replace(text, words))?;
            }
            let ready = server.ready.as_deref().map(|text| placeholders::replace(text, words));
            if let Some(address) = ready.as_deref().filter(|address| accepts(address)) {
                return Err(StudyFault::Asked(format!(
                    "{whose}: another program accepts connections at {address} already"
                )));
            }
            let command: Vec<String> =
                server.command.iter().map(|word| placeholders::replace(word, words)).collect();
            let replace = |(name, value): (&String, &String)| {
                (name.clone(), placeholders::replace(value, words))
            };
            let env: BTreeMap<String, String> = server.env.iter().map(replace).collect();
            let process = Process::start(&command, &env, self.groups).map_err(|error| {
                let program = command.first().map_or("", String::as_str);
                StudyFault::Asked(format!("{whose}: cannot start {program:?}: {error}"))
            })?;
            self.store.add_process(process.id());
            running.push(process);
            if let Some(address) = ready {
                let process = running.last_mut();
                self.await_connection(&whose, &address, server.ready_timeout, process)?;
            }
        }
        Ok(running)
    }

    /// Waits until an address accepts connections, or until the process has ended.
    fn await_connection(
        &self,
        whose: &str,
        address: &str,
        timeout: Duration,
        mut process: Option<&mut Process>,
    ) -> Result<(), StudyFault> {
        let fault = |what: String| StudyFault::Asked(format!("{whose}: {what}"));
        let start = Instant::now();
        loop {
            if let Some(process) = process.as_mut()
                && let Some(status) = process.exit_status()
            {
                let why = exit_reason(status, process);
                return Err(fault(format!("not ready: {why}")));
            }
            if self.stop.is_requested() || accepts(address) {
                return Ok(());
            }
            if start.elapsed() >= timeout {
                return Err(fault(format!("no connection at {address} within {timeout:?}")));
            }
            std::thread::park_timeout(TICK);
        }
    }
}

/// Fails if a server has ended.
fn check_running(
    variant: &str,
    servers: &[Server],
    running: &mut [Process],
) -> Result<(), StudyFault> {
    for (server, process) in servers.iter().zip(running) {
        if let Some(status) = process.exit_status() {
            let why = exit_reason(status, process);
            return Err(StudyFault::Asked(format!("{}: {why}", whose(variant, server))));
        }
    }
    Ok(())
}

fn whose(variant: &str, server: &Server) -> String {
    match variant {
        "" => format!("server {:?}", server.name),
        _ => format!("server {:?} of variant {variant:?}", server.name),
    }
}

fn with_folder(words: &Words, folder: &Path) -> Words {
    let mut words = words.clone();
    words.insert("dir".to_owned(), folder.to_string_lossy().into_owned());
    words
}

/// Returns host and port of a URL.
fn authority(url: &NodeUrl) -> String {
    format!("{}:{}", url.host(), url.port())
}

fn accepts(address: &str) -> bool {
    let addresses = address.to_socket_addrs().into_iter().flatten();
    addresses.into_iter().any(|address| TcpStream::connect_timeout(&address, CONNECT).is_ok())
}

fn empty_folder(folder: &Path) -> Result<(), StudyFault> {
    let removed = match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    removed.and_then(|()| fs::create_dir_all(folder)).map_err(|error| {
        StudyFault::Asked(format!("cannot create the folder {}: {error}", folder.display()))
    })
}

/// Writes a file that only this user can read, because configurations hold secrets.
fn write_private(path: &Path, text: &str) -> Result<(), StudyFault> {
    let opened =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    opened
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| StudyFault::Asked(format!("cannot write {}: {error}", path.display())))
}

/// Returns a port on which nobody listens. Ports below the range of outgoing connections are
/// preferred, because the load itself opens many of those.
fn free_port(taken: &mut BTreeSet<u16>) -> Result<u16, StudyFault> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first_outgoing: u16 =
        range.split_whitespace().next().and_then(|port| port.parse().ok()).unwrap_or(0);
    let bind = |port: u16| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    if first_outgoing >= PORT_FIRST + PORTS_MIN {
        let count = first_outgoing - PORT_FIRST;
        for attempt in 0..PORT_ATTEMPTS {
            let port = PORT_FIRST + (start_offset().wrapping_add(attempt * 7)) % count;
            if !taken.contains(&port) && bind(port).is_ok() {
                taken.insert(port);
                return Ok(port);
            }
        }
    }
    for _ in 0..PORT_ATTEMPTS {
        let listener = bind(0).and_then(|listener| listener.local_addr());
        let port = listener.map_err(|error| StudyFault::Asked(format!("no free port: {error}")))?;
        if taken.insert(port.port()) {
            return Ok(port.port());
        }
    }
    Err(StudyFault::Asked("no free port".to_owned()))
}

/// Returns a number that differs between processes and times, so that two studies that start at the
/// same time rarely choose the same ports.
fn start_offset() -> u16 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mixed = (std::process::id() ^ now.subsec_nanos()).wrapping_mul(0x9e37_79b1);
    (mixed >> 16) as u16
}
