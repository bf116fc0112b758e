//! One thread's subscribers to one stream.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::AbortHandle;

use super::blocks::Logs;
use super::source::Origin;
use super::stream::{Refused, Stream, Turn};
use super::subscriber::Subscriber;
use super::{LogsWanted, Subscriptions, source};
use crate::access::permit::still_permitted;
use crate::policy::access::Grant;
use crate::state::context::ThreadContext;
use crate::upstream::chain::ChainState;

/// The streams that one thread follows, each with its subscribers.
#[derive(Debug, Default)]
pub(crate) struct Fans(RefCell<Vec<Rc<Fan>>>);

/// Tells each turn of a stream to the subscribers of one thread, as long as there are any.
#[derive(Debug)]
pub(crate) struct Fan {
    chain: Arc<ChainState>,
    stream: Arc<Stream>,
    /// It tells what an upstream tells, of which some may be missed.
    relayed: bool,
    subscriptions: Rc<Subscriptions>,
    members: RefCell<BTreeMap<u64, Member>>,
    next: Cell<u64>,
    /// What tells.
    task: RefCell<Option<AbortHandle>>,
}

/// What one member wants of a stream.
#[derive(Debug)]
pub(crate) enum Wanted {
    All,
    Logs(LogsWanted),
}

#[derive(Debug)]
struct Member {
    subscriber: Rc<Subscriber>,
    id: Rc<str>,
    namespace: Box<str>,
    /// The same for all who want the same.
    logs: Option<Rc<LogsWanted>>,
}

/// Returns the thread's subscribers to a stream; begins to follow it if the thread does not yet.
pub(super) fn of(
    subscriptions: &Rc<Subscriptions>,
    chain: &Arc<ChainState>,
    stream: Arc<Stream>,
    origin: Origin,
) -> Rc<Fan> {
    let known =
        subscriptions.fans.0.borrow().iter().find(|fan| Arc::ptr_eq(&fan.stream, &stream)).cloned();
    if let Some(fan) = known {
        return fan;
    }
    let (turns, starts) = stream.follow();
    let relayed = matches!(origin, Origin::Upstream(_));
    if starts {
        source::start(subscriptions, chain, &stream, origin);
    }
    let fan = Rc::new(Fan {
        chain: Arc::clone(chain),
        stream,
        relayed,
        subscriptions: Rc::clone(subscriptions),
        members: RefCell::default(),
        next: Cell::new(0),
        task: RefCell::default(),
    });
    let task = tokio::task::spawn_local(Rc::clone(&fan).run(turns));
    fan.task.replace(Some(task.abort_handle()));
    subscriptions.fans.0.borrow_mut().push(Rc::clone(&fan));
    fan
}

impl Fan {
    async fn run(self: Rc<Fan>, mut turns: broadcast::Receiver<Turn>) {
        loop {
            match turns.recv().await {
                Ok(Turn::All(said)) => self.tell_all(&said),
                Ok(Turn::Logs(logs)) => self.tell_logs(&logs),
                // An upstream that tells much at once is heard again from here on.
                Err(RecvError::Lagged(_)) if self.relayed => {}
                Ok(Turn::Broken) | Err(RecvError::Lagged(_)) => self.part(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Whether somebody with this grant may still have begun what this member is told.
    pub(super) fn may_tell(&self, number: u64, cx: &ThreadContext, grant: Option<&Grant>) -> bool {
        let Some(chain) = cx.snapshot.chain_index(&self.chain) else {
            // The source ends it in other words.
            return true;
        };
        let members = self.members.borrow();
        members.get(&number).is_none_or(|member| {
            let method = format!("{}_subscribe", member.namespace);
            {
                let snapshot = &cx.snapshot;
                let family = snapshot.chains[chain].family;
                still_permitted(&snapshot.config, family, chain, &method, grant)
            }
        })
    }

    /// Waits until it is known whether there is anything to be told.
    pub(super) async fn opened(&self) -> Result<(), Refused> {
        self.stream.opened().await
    }

    /// Takes a member in; its number.
    pub(super) fn join(
        &self,
        subscriber: Rc<Subscriber>,
        id: Rc<str>,
        namespace: &str,
        wanted: Wanted,
    ) -> u64 {
        let mut members = self.members.borrow_mut();
        let logs = match wanted {
            Wanted::All => None,
            Wanted::Logs(wanted) => {
                let mut known = members.values().filter_map(|member| member.logs.as_ref());
                let known = known.find(|known| ***known == wanted).cloned();
                Some(known.unwrap_or_else(|| Rc::new(wanted)))
            }
        };
        let number = self.next.replace(self.next.get() + 1);
        members.insert(number, Member { subscriber, id, namespace: namespace.into(), logs });
        self.subscriptions.thread.context().counters.subscriptions_open.add(1);
        number
    }

    /// Lets a member go; after the last one nothing is followed any more.
    pub(super) fn leave(&self, number: u64) {
        if self.members.borrow_mut().remove(&number).is_some() {
            self.subscriptions.thread.context().counters.subscriptions_open.subtract_one();
            self.end_if_empty();
        }
    }

    /// Follows no more if nobody is there.
    pub(super) fn end_if_empty(&self) {
        if !self.members.borrow().is_empty() {
            return;
        }
        let mut fans = self.subscriptions.fans.0.borrow_mut();
        fans.retain(|fan| !std::ptr::eq(&**fan, self));
        self.stream.leave();
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    fn tell_all(&self, said: &Bytes) {
        let members = self.members.borrow();
        for member in members.values() {
            member.tell(said);
        }
        self.subscriptions
            .thread
            .context()
            .counters
            .subscription_notifications
            .add(members.len() as u64);
    }

    fn tell_logs(&self, logs: &Logs) {
        // What equal filters select is looked for once.
        let mut selected: HashMap<*const LogsWanted, Vec<usize>> = HashMap::new();
        let mut count = 0;
        for member in self.members.borrow().values() {
            let Some(wanted) = &member.logs else { continue };
            let places = selected.entry(Rc::as_ptr(wanted)).or_insert_with(|| {
                let places = logs.iter().enumerate();
                places.filter(|(_, (log, _))| wanted.has(log)).map(|(place, _)| place).collect()
            });
            places.iter().for_each(|place| member.tell(&logs[*place].1));
            count += places.len() as u64;
        }
        self.subscriptions.thread.context().counters.subscription_notifications.add(count);
    }

    /// Nobody can be told any more what comes next: they have to begin anew.
    fn part(&self) {
        let members = self.members.borrow();
        members.values().for_each(|member| member.subscriber.part());
    }
}

impl Member {
    fn tell(&self, said: &Bytes) {
        let start = [
            r#"{"jsonrpc":"2.0","method":""#,
            &*self.namespace,
            r#"_subscription","params":{"subscription":""#,
            &*self.id,
            r#"","result":"#,
        ];
        self.subscriber.tell(start.concat().into_bytes(), said.clone());
    }
}
