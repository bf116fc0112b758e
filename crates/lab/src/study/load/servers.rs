//! Starts the servers of a load study with their files, waits until they accept connections,
//! restarts them, and stops them.
//!
//! Servers of one variant have their own folder and their own ports. Shared servers serve all
//! variants. The A/A control repeats the first variant, to show how large chance differences are.
//! The control uses the servers of the first variant. Only if servers restart before each run does
//! it have servers of its own.
//!
//! Texts of the study file may contain placeholders, such as `{dir}` or `{port.NAME}`. A case is a
//! plan with values for such placeholders. If the study has cases, `plan` is the index of a case.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab_model::results::load_study::{CpuLimit, Restart};
use settings::url::NodeUrl;
use socket2::{Domain, Socket, Type};

use super::cpu_limit::CpuLimiter;
use super::file::{LoadStudy, ServerTable};
use super::placeholders::{self, PlaceholderValues};
use super::store::Store;
use crate::run::Stop;
use crate::study::runner::process::{Process, ProcessGroups};
use crate::study::{StudyFault, remove_folder};

/// Interval between two attempts to connect to a server that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of an attempt to connect to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for the target of a variant after all its servers are ready.
const TARGET_READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The running servers of a study.
pub(super) struct Servers<'a> {
    study: &'a LoadStudy,
    store: &'a Store,
    /// The program that replaces the placeholder `{weir}`.
    weir_binary: &'a Path,
    stop: &'a Stop,
    groups: &'a ProcessGroups,
    /// Sockets that reserve the ports of all servers until they are dropped.
    port_reservations: Vec<Socket>,
    /// Values of the placeholders of the shared servers.
    shared_values: PlaceholderValues,
    /// Values of the placeholders of each variant's servers, by the index of the variant.
    values: Vec<PlaceholderValues>,
    /// The running shared servers.
    shared: Vec<Process>,
    /// Running servers by the index of the variant that owns them.
    running: BTreeMap<usize, Vec<Process>>,
    /// CPU limits of the running servers, by the same index. Rust drops fields in order, and a
    /// limit must be dropped after its processes. This field therefore comes after `running`.
    limiters: BTreeMap<usize, CpuLimiter>,
    /// Index of the plan or case of the previous run. `None` before the first run.
    previous_plan: Option<usize>,
}

impl<'a> Servers<'a> {
    /// Reserves ports, and starts the servers that all variants share.
    pub(super) fn start(
        study: &'a LoadStudy,
        store: &'a Store,
        weir_binary: &'a Path,
        stop: &'a Stop,
        groups: &'a ProcessGroups,
    ) -> Result<Servers<'a>, StudyFault> {
        let mut servers = Servers {
            study,
            store,
            weir_binary,
            stop,
            groups,
            port_reservations: Vec::new(),
            shared_values: PlaceholderValues::new(),
            values: Vec::new(),
            shared: Vec::new(),
            running: BTreeMap::new(),
            limiters: BTreeMap::new(),
            previous_plan: None,
        };
        servers.reserve_ports()?;
        let folder = servers.store.shared_folder();
        let values = with_folder(&servers.shared_values, &folder);
        servers.shared = servers.start_all("", &study.file.server, &folder, &values, None)?;
        Ok(servers)
    }

    /// Reserves a port for each placeholder `{port.NAME}`, and sets the values of placeholders.
    fn reserve_ports(&mut self) -> Result<(), StudyFault> {
        let weir = ("weir".to_owned(), self.weir_binary.to_string_lossy().into_owned());
        let mut port_reservations = Vec::new();
        // Returns the existing values, with a new port for each `{port.NAME}` that has no value.
        let mut add_ports = |texts: &mut dyn Iterator<Item = &str>,
                             existing: &PlaceholderValues| {
            let mut values = existing.clone();
            for name in texts.flat_map(placeholders::names) {
                if let Some(port) = placeholders::port_name(name)
                    && !values.contains_key(&placeholders::port_placeholder(port))
                {
                    let (socket, number) = reserve_port()
                        .map_err(|error| StudyFault::Operation(format!("no free port: {error}")))?;
                    port_reservations.push(socket);
                    values.insert(placeholders::port_placeholder(port), number.to_string());
                }
            }
            Ok::<_, StudyFault>(values)
        };
        let mut texts = self.study.file.server.iter().flat_map(ServerTable::texts);
        self.shared_values = add_ports(&mut texts, &PlaceholderValues::from([weir]))?;
        self.shared_values.insert("variant".to_owned(), String::new());
        for (index, variant) in self.study.variants.iter().enumerate() {
            // A control that shares the servers of its original also shares their values. The
            // original comes before its control.
            if self.owner(index) != index {
                let values = self.values[self.owner(index)].clone();
                self.values.push(values);
                continue;
            }
            let texts = variant.servers.iter().flat_map(ServerTable::texts);
            let case_values = self.study.cases.iter().flat_map(|case| case.values.values());
            let mut texts =
                texts.chain(variant.target.as_deref()).chain(case_values.map(String::as_str));
            let mut values = add_ports(&mut texts, &self.shared_values)?;
            values.insert("variant".to_owned(), variant.name.clone());
            self.values.push(values);
        }
        self.port_reservations = port_reservations;
        Ok(())
    }

    /// Returns the index of the variant whose servers this variant uses. This is its own index, or
    /// for an A/A control the index of the variant that it repeats.
    fn owner(&self, variant: usize) -> usize {
        match self.study.variants[variant].control_of {
            Some(original) if *self.study.file.restart != Restart::Run => original,
            _ => variant,
        }
    }

    /// Returns the values of the placeholders of a variant under a plan or case, and the folder of
    /// its servers.
    fn values_and_folder(&self, plan: usize, variant: usize) -> (PlaceholderValues, PathBuf) {
        let owner = self.owner(variant);
        let folder = self.store.server_folder(&self.study.variants[owner].name);
        let mut values = with_folder(&self.values[owner], &folder);
        self.study.cases.get(plan).iter().for_each(|case| case.add_values(&mut values));
        (values, folder)
    }

    /// Returns the URL of a variant's target, or `None` if the plan's target is used.
    pub(super) fn target(&self, plan: usize, variant: usize) -> Option<String> {
        let target = self.study.variants[variant].target.as_deref()?;
        Some(placeholders::replace(target, &self.values_and_folder(plan, variant).0))
    }

    /// Returns the access log of a variant's servers, or `None` if no server has one.
    pub(super) fn access_log(&self, plan: usize, variant: usize) -> Option<PathBuf> {
        let servers = &self.study.variants[variant].servers;
        let path = servers.iter().find_map(|server| server.access_log.as_deref())?;
        Some(placeholders::replace(path, &self.values_and_folder(plan, variant).0).into())
    }

    /// Returns the CPU limit of a variant's running servers, or `None` if they have no limit.
    pub(super) fn cpu_limit(&self, variant: usize) -> Option<CpuLimit> {
        self.limiters.get(&self.owner(variant)).map(CpuLimiter::facts)
    }

    /// Prepares a round: stops the servers of all variants if they restart before each round.
    pub(super) fn before_round(&mut self) {
        if *self.study.file.restart == Restart::Round {
            self.stop_variants();
        }
    }

    /// Prepares a run. Stops the servers of all variants if they restart before each run, or if the
    /// previous case needed other servers. Then starts the missing servers: those of this variant
    /// if servers restart before each run, otherwise those of all variants.
    ///
    /// # Errors
    /// Fails if a server cannot be started, or if a running server has ended.
    pub(super) fn before_run(&mut self, plan: usize, variant: usize) -> Result<(), StudyFault> {
        check_running("", &self.study.file.server, &mut self.shared)?;
        let owner = self.owner(variant);
        let restart = *self.study.file.restart;
        if restart == Restart::Run || self.needs_other_servers(plan) {
            self.stop_variants();
        }
        self.previous_plan = Some(plan);
        let owners: Vec<usize> = match restart {
            Restart::Run => vec![owner],
            // The servers of all variants run all the time, so that the conditions on the machine
            // are the same for all variants.
            Restart::Never | Restart::Round => {
                let indexes = 0..self.study.variants.len();
                indexes.filter(|index| self.owner(*index) == *index).collect()
            }
        };
        for owner in owners {
            let study = self.study;
            let variant = &study.variants[owner];
            if let Some(running) = self.running.get_mut(&owner) {
                check_running(&variant.name, &variant.servers, running)?;
                continue;
            }
            let (values, folder) = self.values_and_folder(plan, owner);
            let cpus = study.cases.get(plan).and_then(|case| case.cpus);
            let limiter = cpus.map(|cpus| CpuLimiter::new(cpus, owner));
            let started =
                self.start_all(&variant.name, &variant.servers, &folder, &values, limiter.as_ref());
            self.limiters.extend(limiter.map(|limiter| (owner, limiter)));
            self.running.insert(owner, started?);
            self.await_target(plan, owner)?;
        }
        Ok(())
    }

    /// Returns true if the servers of the previous run's case cannot serve the case of a run.
    fn needs_other_servers(&self, plan: usize) -> bool {
        let case = |plan: usize| self.study.cases.get(plan);
        let previous = self.previous_plan.and_then(case);
        previous.zip(case(plan)).is_some_and(|(previous, next)| !next.has_servers_of(previous))
    }

    /// Stops the servers of all variants. The next run starts them again.
    pub(super) fn stop_variants(&mut self) {
        self.running.clear();
        self.limiters.clear();
    }

    /// Waits until the target of a variant accepts connections. Does nothing if the variant has no
    /// target of its own, or no servers.
    fn await_target(&self, plan: usize, variant: usize) -> Result<(), StudyFault> {
        let variant_settings = &self.study.variants[variant];
        let target = self.target(plan, variant);
        let Some(target) = target.filter(|_| !variant_settings.servers.is_empty()) else {
            return Ok(());
        };
        let url = NodeUrl::parse_remote(&target).map_err(|error| {
            StudyFault::Operation(format!("variant {:?}: {error}", variant_settings.name))
        })?;
        let description = format!("the target of variant {:?}", variant_settings.name);
        let address = format!("{}:{}", url.host(), url.port());
        self.await_connection(&description, &address, TARGET_READY_TIMEOUT, None)
    }

    /// Starts servers one after another. If a server has an address for `ready`, waits until it
    /// accepts connections there. `variant` is the variant's name for messages; it is empty for
    /// shared servers. `folder` is emptied first.
    fn start_all(
        &self,
        variant: &str,
        servers: &[ServerTable],
        folder: &Path,
        values: &PlaceholderValues,
        limiter: Option<&CpuLimiter>,
    ) -> Result<Vec<Process>, StudyFault> {
        let mut running = Vec::new();
        if servers.is_empty() {
            return Ok(running);
        }
        empty_folder(folder)?;
        for server in servers {
            let description = describe_server(variant, server);
            for (name, text) in server.files.iter() {
                write_private(&folder.join(name), &placeholders::replace(text, values))?;
            }
            let ready = server.ready.as_deref().map(|text| placeholders::replace(text, values));
            if let Some(address) = ready.as_deref().filter(|address| accepts_connections(address)) {
                return Err(StudyFault::Operation(format!(
                    "{description}: another program accepts connections at {address} already"
                )));
            }
            let command: Vec<String> =
                server.command.iter().map(|word| placeholders::replace(word, values)).collect();
            let replace = |(name, value): (&String, &String)| {
                (name.clone(), placeholders::replace(value, values))
            };
            let env: BTreeMap<String, String> = server.env.iter().map(replace).collect();
            let start = |command: &[String]| Process::start(command, &env, self.groups);
            let started = match limiter {
                Some(limiter) => limiter.start(&command, start),
                None => start(&command),
            };
            let process = started.map_err(|error| {
                let program = command.first().map_or("", String::as_str);
                StudyFault::Operation(format!("{description}: cannot start {program:?}: {error}"))
            })?;
            self.store.add_process(process.id());
            running.push(process);
            if let Some(address) = ready {
                let process = running.last_mut();
                self.await_connection(&description, &address, *server.ready_timeout, process)?;
            }
        }
        Ok(running)
    }

    /// Waits until an address accepts connections. Also returns `Ok` if the user stops the study,
    /// because the next run ends at once in that case.
    ///
    /// # Errors
    /// Fails if the process ends first, or if no connection succeeds in time.
    fn await_connection(
        &self,
        description: &str,
        address: &str,
        timeout: Duration,
        mut process: Option<&mut Process>,
    ) -> Result<(), StudyFault> {
        let fault = |what: String| StudyFault::Operation(format!("{description}: {what}"));
        let start = Instant::now();
        loop {
            if let Some(reason) = process.as_mut().and_then(|process| process.exit_reason()) {
                return Err(fault(format!("not ready: {reason}")));
            }
            if self.stop.is_requested() || accepts_connections(address) {
                return Ok(());
            }
            if start.elapsed() >= timeout {
                return Err(fault(format!("no connection at {address} within {timeout:?}")));
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }
}

/// Fails if a server has ended.
fn check_running(
    variant: &str,
    servers: &[ServerTable],
    running: &mut [Process],
) -> Result<(), StudyFault> {
    for (server, process) in servers.iter().zip(running) {
        if let Some(reason) = process.exit_reason() {
            let description = describe_server(variant, server);
            return Err(StudyFault::Operation(format!("{description}: {reason}")));
        }
    }
    Ok(())
}

/// Describes a server for messages. `variant` is empty for a shared server.
fn describe_server(variant: &str, server: &ServerTable) -> String {
    match variant {
        "" => format!("server {:?}", server.name),
        _ => format!("server {:?} of variant {variant:?}", server.name),
    }
}

/// Adds the value of the placeholder `{dir}`.
fn with_folder(values: &PlaceholderValues, folder: &Path) -> PlaceholderValues {
    let mut values = values.clone();
    values.insert("dir".to_owned(), folder.to_string_lossy().into_owned());
    values
}

/// Returns true if a program accepts connections at an address.
fn accepts_connections(address: &str) -> bool {
    let addresses = address.to_socket_addrs().into_iter().flatten();
    addresses
        .into_iter()
        .any(|address| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok())
}

/// Creates a folder, or removes its contents if it exists.
fn empty_folder(folder: &Path) -> Result<(), StudyFault> {
    remove_folder(folder).and_then(|()| fs::create_dir_all(folder)).map_err(|error| {
        StudyFault::Operation(format!("cannot create the folder {}: {error}", folder.display()))
    })
}

/// Writes a file that only this user can read, because configurations may contain secrets.
fn write_private(path: &Path, text: &str) -> Result<(), StudyFault> {
    let opened =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    opened
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| StudyFault::Operation(format!("cannot write {}: {error}", path.display())))
}

/// Reserves a port of 127.0.0.1 for a server until the socket is dropped.
///
/// The socket is bound but does not listen. A server that sets `SO_REUSEADDR`, as nearly all
/// servers do, can still listen on the port. While the socket is open, Linux does not choose the
/// port when a program asks for any free port, nor for an outgoing connection. Another study cannot
/// reserve the port.
fn reserve_port() -> std::io::Result<(Socket, u16)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // The option is set after the bind. If it were set before, the bind could return a port that
    // another socket reserves.
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.set_reuse_address(true)?;
    let address = socket.local_addr()?.as_socket();
    let port = address.ok_or(std::io::ErrorKind::AddrNotAvailable)?.port();
    Ok((socket, port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_can_listen_at_a_reserved_port_and_no_other_study_gets_it() {
        let (_reserved, port) = reserve_port().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(other.bind(&address.into()).is_err());
        // The standard library sets `SO_REUSEADDR`. A server may start again and again.
        for _ in 0..2 {
            let listener = TcpListener::bind(address).unwrap();
            TcpStream::connect(address).unwrap();
            listener.accept().unwrap();
        }
        assert!(!accepts_connections(&address.to_string()));
    }
}
