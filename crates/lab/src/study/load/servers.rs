//! Starts the servers of a load study with their files, waits until they accept connections,
//! restarts them, and stops them.
//!
//! Servers of one variant have their own folder and their own ports. Shared servers serve all
//! variants. The A/A control repeats the first variant, to show how large chance differences are.
//! If servers restart before each run, the control has servers of its own. Otherwise it uses the
//! servers of the first variant.
//!
//! Texts of the study file may contain placeholders, such as `{dir}` or `{port.NAME}`. A case is a
//! plan with values for such placeholders. If the study has cases, `plan` is the index of a case.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab_model::results::load_study::{CpuLimit, Restart};
use settings::url::NodeUrl;
use socket2::{Domain, Socket, Type};

use super::cpu_limit::CpuLimiter;
use super::file::cases::Case;
use super::file::{LoadStudy, ServerTable, StudyVariant};
use super::store::Store;
use crate::run::Stop;
use crate::study::placeholders::{self, PlaceholderValues};
use crate::study::process::{
    Process, ProcessGroups, Readiness, accepts_connections, await_connection, describe_failed_start,
};
use crate::study::{StudyFault, remove_folder};

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
    /// Sockets that reserve the ports of all servers. A port is reserved until its socket is
    /// dropped.
    port_reservations: Vec<Socket>,
    /// Values of the placeholders of the shared servers.
    shared_values: PlaceholderValues,
    /// Values of the placeholders of each variant's servers, by the index of the variant. The
    /// values of the cases are not included.
    variant_values: Vec<PlaceholderValues>,
    /// The running shared servers.
    shared_servers: Vec<Process>,
    /// Running servers by the index of the variant that owns them.
    variant_servers: BTreeMap<usize, Vec<Process>>,
    /// CPU limits of `variant_servers`, by the same index. Rust drops fields in order, and a limit
    /// must be dropped after its processes. This field therefore comes after `variant_servers`.
    limiters: BTreeMap<usize, CpuLimiter>,
    /// Case of the previous run. `None` before the first run, and in a study without cases.
    previous_case: Option<&'a Case>,
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
            variant_values: Vec::new(),
            shared_servers: Vec::new(),
            variant_servers: BTreeMap::new(),
            limiters: BTreeMap::new(),
            previous_case: None,
        };
        servers.set_values()?;
        let (folder, values) = (store.shared_folder(), &servers.shared_values);
        servers.shared_servers =
            servers.start_all(None, &study.file.server, &folder, values, None)?;
        Ok(servers)
    }

    /// Sets the values of the placeholders of all servers. Reserves their ports.
    fn set_values(&mut self) -> Result<(), StudyFault> {
        let study = self.study;
        let weir = ("weir".to_owned(), self.weir_binary.to_string_lossy().into_owned());
        let texts = study.file.server.iter().flat_map(ServerTable::texts);
        self.shared_values = self.add_ports(PlaceholderValues::from([weir]), texts)?;
        set_variant_and_folder(&mut self.shared_values, "", &self.store.shared_folder());
        for (index, variant) in study.variants.iter().enumerate() {
            let owner = self.owner(index);
            if owner != index {
                // A control that shares the servers of its original also shares their values. These
                // are in the list already, because the original comes first.
                self.variant_values.push(self.variant_values[owner].clone());
                continue;
            }
            let server_texts = variant.servers.iter().flat_map(ServerTable::texts);
            let case_values = study.cases.iter().flat_map(|case| case.values.values());
            let texts = server_texts
                .chain(variant.target.as_deref())
                .chain(case_values.map(String::as_str));
            let mut values = self.add_ports(self.shared_values.clone(), texts)?;
            let folder = self.store.server_folder(&variant.name);
            set_variant_and_folder(&mut values, &variant.name, &folder);
            self.variant_values.push(values);
        }
        Ok(())
    }

    /// Reserves a port for each placeholder `{port.NAME}` in the texts, unless it has a value
    /// already. Returns `values` with the new ports.
    fn add_ports<'t>(
        &mut self,
        mut values: PlaceholderValues,
        texts: impl Iterator<Item = &'t str>,
    ) -> Result<PlaceholderValues, StudyFault> {
        for port in texts.flat_map(placeholders::names).filter_map(placeholders::port_name) {
            if let Entry::Vacant(value) = values.entry(placeholders::port_placeholder(port)) {
                let (socket, number) = reserve_port()
                    .map_err(|error| StudyFault::Operation(format!("no free port: {error}")))?;
                self.port_reservations.push(socket);
                value.insert(number.to_string());
            }
        }
        Ok(values)
    }

    /// Returns the index of the variant whose servers this variant uses. This is the variant's own
    /// index, unless the variant is an A/A control that shares the servers of its original.
    fn owner(&self, variant: usize) -> usize {
        match self.study.variants[variant].control_of {
            Some(original) if *self.study.file.restart != Restart::Run => original,
            _ => variant,
        }
    }

    /// Returns the case with the index `plan`, or `None` if the study has plans instead of cases.
    fn case(&self, plan: usize) -> Option<&'a Case> {
        self.study.cases.get(plan)
    }

    /// Returns the values of the placeholders of a variant under a plan or case.
    fn values(&self, plan: usize, variant: usize) -> PlaceholderValues {
        let mut values = self.variant_values[variant].clone();
        if let Some(case) = self.case(plan) {
            case.add_values(&mut values);
        }
        values
    }

    /// Returns the URL of a variant's target, or `None` if the plan's target is used.
    pub(super) fn target(&self, plan: usize, variant: usize) -> Option<String> {
        let target = self.study.variants[variant].target.as_deref()?;
        Some(placeholders::replace(target, &self.values(plan, variant)))
    }

    /// Returns the access log of a variant's servers, or `None` if no server has one.
    pub(super) fn access_log(&self, plan: usize, variant: usize) -> Option<PathBuf> {
        let servers = &self.study.variants[variant].servers;
        let path = servers.iter().find_map(|server| server.access_log.as_deref())?;
        Some(placeholders::replace(path, &self.values(plan, variant)).into())
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
        check_running(None, &self.study.file.server, &mut self.shared_servers)?;
        let restarts_each_run = *self.study.file.restart == Restart::Run;
        let case = self.case(plan);
        let needs_other_servers = match (self.previous_case, case) {
            (Some(previous), Some(next)) => !next.can_use_servers_of(previous),
            // This is the first run, or the study has no cases.
            (None, _) | (_, None) => false,
        };
        if restarts_each_run || needs_other_servers {
            self.stop_variants();
        }
        self.previous_case = case;
        if restarts_each_run {
            return self.ensure_running(plan, variant);
        }
        // The servers of all variants run all the time, so that the conditions on the machine are
        // the same for all variants.
        for index in 0..self.study.variants.len() {
            if self.owner(index) == index {
                self.ensure_running(plan, index)?;
            }
        }
        Ok(())
    }

    /// Starts the servers of a variant, and waits for the variant's target. If the servers run
    /// already, only checks that none of them has ended. The variant must own its servers.
    fn ensure_running(&mut self, plan: usize, variant: usize) -> Result<(), StudyFault> {
        let study = self.study;
        let StudyVariant { name, servers, .. } = &study.variants[variant];
        if let Some(running) = self.variant_servers.get_mut(&variant) {
            return check_running(Some(name), servers, running);
        }
        let folder = self.store.server_folder(name);
        let values = self.values(plan, variant);
        let cpus = self.case(plan).and_then(|case| case.cpus);
        let limiter = cpus.map(|cpus| CpuLimiter::new(cpus, variant));
        let started = self.start_all(Some(name), servers, &folder, &values, limiter.as_ref());
        self.limiters.extend(limiter.map(|limiter| (variant, limiter)));
        self.variant_servers.insert(variant, started?);
        self.await_target(plan, variant)
    }

    /// Stops the servers of all variants. The next run starts them again.
    pub(super) fn stop_variants(&mut self) {
        self.variant_servers.clear();
        self.limiters.clear();
    }

    /// Waits until the target of a variant accepts connections. Does nothing if the variant has no
    /// target of its own, or no servers.
    fn await_target(&self, plan: usize, variant: usize) -> Result<(), StudyFault> {
        let StudyVariant { name, servers, .. } = &self.study.variants[variant];
        if servers.is_empty() {
            return Ok(());
        }
        let Some(target) = self.target(plan, variant) else { return Ok(()) };
        let url = NodeUrl::parse_remote(&target)
            .map_err(|error| StudyFault::Operation(format!("variant {name:?}: {error}")))?;
        let description = format!("the target of variant {name:?}");
        let address = format!("{}:{}", url.host(), url.port());
        self.await_connection(&description, &address, TARGET_READY_TIMEOUT, None)
    }

    /// Starts servers one after another. If a server has an address for `ready`, waits until it
    /// accepts connections there. `variant` is the variant's name for messages, or `None` for
    /// shared servers. `folder` is emptied first.
    fn start_all(
        &self,
        variant: Option<&str>,
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
            let fault = |what: String| StudyFault::Operation(format!("{description}: {what}"));
            for (name, text) in server.files.iter() {
                write_private(&folder.join(name), &placeholders::replace(text, values))?;
            }
            let ready = server.ready.as_deref().map(|text| placeholders::replace(text, values));
            if let Some(address) = &ready
                && accepts_connections(address)
            {
                let what = format!("another program accepts connections at {address} already");
                return Err(fault(what));
            }
            let process = self.start_process(server, values, limiter).map_err(fault)?;
            running.push(process);
            if let Some(address) = ready {
                let process = running.last_mut();
                self.await_connection(&description, &address, *server.ready_timeout, process)?;
            }
        }
        Ok(running)
    }

    /// Starts the process of a server, under the CPU limit if there is one.
    fn start_process(
        &self,
        server: &ServerTable,
        values: &PlaceholderValues,
        limiter: Option<&CpuLimiter>,
    ) -> Result<Process, String> {
        let command = placeholders::replace_all(&server.command, values);
        let replace = |(name, value): (&String, &String)| {
            (name.clone(), placeholders::replace(value, values))
        };
        let mut env: BTreeMap<String, String> = server.env.iter().map(replace).collect();
        env.extend([self.store.process_mark()]);
        let start = |command: &[String]| Process::start(command, &env, self.groups);
        let started = match limiter {
            Some(limiter) => limiter.start(&command, start),
            None => start(&command),
        };
        started.map_err(|error| describe_failed_start(&command, &error))
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
        process: Option<&mut Process>,
    ) -> Result<(), StudyFault> {
        let what = match await_connection(address, timeout, self.stop, process) {
            Readiness::Ready | Readiness::Stopped => return Ok(()),
            Readiness::Ended(reason) => format!("not ready: {reason}"),
            Readiness::TimedOut => format!("no connection at {address} within {timeout:?}"),
        };
        Err(StudyFault::Operation(format!("{description}: {what}")))
    }
}

/// Fails if a server has ended. `variant` is `None` for shared servers.
fn check_running(
    variant: Option<&str>,
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

/// Describes a server for messages. `variant` is `None` for a shared server.
fn describe_server(variant: Option<&str>, server: &ServerTable) -> String {
    match variant {
        None => format!("server {:?}", server.name),
        Some(variant) => format!("server {:?} of variant {variant:?}", server.name),
    }
}

/// Sets the values of the placeholders `{variant}` and `{dir}`. `variant` is empty for the shared
/// servers.
fn set_variant_and_folder(values: &mut PlaceholderValues, variant: &str, folder: &Path) {
    values.insert("variant".to_owned(), variant.to_owned());
    values.insert("dir".to_owned(), folder.to_string_lossy().into_owned());
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

/// Reserves a port of 127.0.0.1 for a server until the returned socket is dropped.
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
    use std::net::{TcpListener, TcpStream};

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
