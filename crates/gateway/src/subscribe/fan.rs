//! The fans of one thread. A fan delivers the events of one stream to the subscribers of the
//! thread. `subscribe.rs` describes sources, streams and fans.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::AbortHandle;

use super::blocks::Log;
use super::chain_events::EventContent;
use super::feeds::Feeds;
use super::notifications::Notifications;
use super::relay::RelayRequest;
use super::selection::LogSelection;
use super::source::Source;
use super::stream::{Event, Follow, Stream};
use super::{chain_events, relay};
use crate::access::is_still_permitted;
use crate::policy::access::Grant;
use crate::state::context::{CurrentContext, ThreadContext};
use crate::upstream::chain::ChainState;

/// The subscriptions and filters of one thread.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    context: Rc<CurrentContext>,
    pub(super) feeds: Arc<Feeds>,
    /// The fans of this thread.
    fans: RefCell<Vec<Rc<FanOut>>>,
}

impl Subscriptions {
    pub(crate) fn new(context: &Rc<CurrentContext>, feeds: &Arc<Feeds>) -> Rc<Subscriptions> {
        let (context, feeds) = (Rc::clone(context), Arc::clone(feeds));
        Rc::new(Subscriptions { context, feeds, fans: RefCell::default() })
    }
}

/// The origin of a stream's events.
#[derive(Debug)]
pub(super) enum Origin {
    /// The headers of new blocks.
    Heads,
    /// The logs of new and dropped blocks.
    Logs,
    /// The notifications of an upstream, which the source relays.
    Upstream(RelayRequest),
}

/// Delivers the events of one stream to the subscribers of one thread, as long as the thread has
/// subscribers of the stream.
#[derive(Debug)]
pub(crate) struct FanOut {
    chain: Arc<ChainState>,
    /// The stream that the fan follows.
    pub(super) stream: Arc<Stream>,
    /// True if the stream is relayed from an upstream. Subscribers of such a stream may miss
    /// events.
    is_relayed: bool,
    /// The subscriptions of this thread.
    subscriptions: Rc<Subscriptions>,
    /// The thread's subscriptions to the stream, by number.
    members: RefCell<BTreeMap<u64, Member>>,
    /// Number of the next subscription.
    next_number: Cell<u64>,
    /// The delivering task.
    task: RefCell<Option<AbortHandle>>,
}

/// A subscription to the stream.
#[derive(Debug)]
struct Member {
    /// The notifications of the subscriber.
    notifications: Rc<Notifications>,
    /// Id of the subscription.
    id: Rc<str>,
    /// Namespace of the subscription call, such as `eth`.
    namespace: Box<str>,
    /// Selects the logs that the subscriber receives. Subscribers with equal selections share one
    /// selection. `None` if the subscriber receives all events.
    logs: Option<Rc<LogSelection>>,
}

/// Returns the thread's fan of a stream. Creates the fan if the thread does not follow the stream
/// yet. Also starts the stream's source if no source is running.
pub(super) fn find_or_create(
    subscriptions: &Rc<Subscriptions>,
    chain: &Arc<ChainState>,
    stream: Arc<Stream>,
    origin: Origin,
) -> Rc<FanOut> {
    let is_known = |fan: &&Rc<FanOut>| Arc::ptr_eq(&fan.stream, &stream);
    if let Some(fan) = subscriptions.fans.borrow().iter().find(is_known) {
        return Rc::clone(fan);
    }
    let is_relayed = matches!(origin, Origin::Upstream(_));
    let Follow { events, needs_source } = stream.follow();
    if needs_source {
        let source = Source {
            context: Rc::clone(&subscriptions.context),
            chain: Arc::clone(chain),
            feed: subscriptions.feeds.get_or_create(chain),
            stream: Arc::clone(&stream),
        };
        start_source(source, origin);
    }
    let fan = Rc::new(FanOut {
        chain: Arc::clone(chain),
        stream,
        is_relayed,
        subscriptions: Rc::clone(subscriptions),
        members: RefCell::default(),
        next_number: Cell::new(0),
        task: RefCell::default(),
    });
    let task = tokio::task::spawn_local(Rc::clone(&fan).run(events));
    fan.task.replace(Some(task.abort_handle()));
    subscriptions.fans.borrow_mut().push(Rc::clone(&fan));
    fan
}

/// Starts the source of a stream.
fn start_source(source: Source, origin: Origin) {
    match origin {
        Origin::Heads => chain_events::start(source, EventContent::Headers),
        Origin::Logs => chain_events::start(source, EventContent::Logs),
        Origin::Upstream(request) => {
            tokio::task::spawn_local(relay::run(source, request));
        }
    }
}

impl FanOut {
    async fn run(self: Rc<FanOut>, mut events: broadcast::Receiver<Event>) {
        loop {
            match events.recv().await {
                Ok(Event::All(result)) => self.send_to_all(&result),
                Ok(Event::Logs(logs)) => self.send_logs(&logs),
                // Subscribers of a relayed stream may miss events.
                Err(RecvError::Lagged(_)) if self.is_relayed => {}
                // The subscribers have missed events, so they must subscribe again.
                Ok(Event::Broken) | Err(RecvError::Lagged(_)) => {
                    self.members
                        .borrow()
                        .values()
                        .for_each(|member| member.notifications.close_after_missed_events());
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Returns true if a caller with this grant may still have the subscription with this number,
    /// or if that subscription has ended. A grant holds the rights of an API key or token; `None`
    /// stands for a caller without a key or token.
    pub(super) fn is_permitted(
        &self,
        number: u64,
        cx: &ThreadContext,
        grant: Option<&Grant>,
    ) -> bool {
        let Some(chain) = cx.snapshot.chain_index(&self.chain) else {
            // A reload has removed the chain. The source closes the connections of its subscribers,
            // so the result of this check does not matter.
            return true;
        };
        let members = self.members.borrow();
        members.get(&number).is_none_or(|member| {
            let method = format!("{}_subscribe", member.namespace);
            let snapshot = &cx.snapshot;
            let family = snapshot.chains[chain].family;
            is_still_permitted(&snapshot.config, family, chain, &method, grant)
        })
    }

    /// Adds a subscription and returns its number. Without a selection, the subscriber receives all
    /// events.
    pub(super) fn add(
        &self,
        notifications: Rc<Notifications>,
        id: Rc<str>,
        namespace: &str,
        selection: Option<LogSelection>,
    ) -> u64 {
        let mut members = self.members.borrow_mut();
        let logs = selection.map(|selection| {
            let mut selections = members.values().filter_map(|member| member.logs.as_ref());
            let equal = selections.find(|other_selection| ***other_selection == selection).cloned();
            equal.unwrap_or_else(|| Rc::new(selection))
        });
        let number = self.next_number.replace(self.next_number.get() + 1);
        members.insert(number, Member { notifications, id, namespace: namespace.into(), logs });
        self.subscriptions.context.get().counters.subscriptions_open.add(1);
        number
    }

    /// Removes a subscription. If no subscription remains, stops following the stream.
    pub(super) fn remove(&self, number: u64) {
        if self.members.borrow_mut().remove(&number).is_some() {
            self.subscriptions.context.get().counters.subscriptions_open.subtract_one();
            self.end_if_empty();
        }
    }

    /// Stops following the stream if there are no subscriptions.
    pub(super) fn end_if_empty(&self) {
        if !self.members.borrow().is_empty() {
            return;
        }
        let mut fans = self.subscriptions.fans.borrow_mut();
        fans.retain(|fan| !std::ptr::eq(&**fan, self));
        self.stream.unfollow();
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    fn send_to_all(&self, result: &Bytes) {
        let members = self.members.borrow();
        members.values().for_each(|member| member.notify(result));
        self.count_notifications(members.len());
    }

    fn count_notifications(&self, count: usize) {
        self.subscriptions.context.get().counters.subscription_notifications.add(count as u64);
    }

    /// Sends the logs of a block. Each subscriber receives the logs that it selects.
    fn send_logs(&self, logs: &[Log]) {
        // The indices of the selected logs, by the address of the selection. Subscribers with equal
        // selections share one selection.
        let mut selected: HashMap<*const LogSelection, Vec<usize>> = HashMap::new();
        let mut count = 0;
        for member in self.members.borrow().values() {
            let Some(selection) = &member.logs else { continue };
            let indices = selected.entry(Rc::as_ptr(selection)).or_insert_with(|| {
                let is_selected = |index: &usize| selection.selects(&logs[*index].fields);
                (0..logs.len()).filter(is_selected).collect()
            });
            indices.iter().for_each(|index| member.notify(&logs[*index].raw));
            count += indices.len();
        }
        self.count_notifications(count);
    }
}

impl Member {
    /// Sends `result` to the subscriber as a notification of this subscription.
    fn notify(&self, result: &Bytes) {
        let start = [
            r#"{"jsonrpc":"2.0","method":""#,
            &*self.namespace,
            r#"_subscription","params":{"subscription":""#,
            &*self.id,
            r#"","result":"#,
        ];
        self.notifications.push(start.concat().into_bytes(), result.clone());
    }
}
