//! Goal: a sender has at most one transaction in flight, each transaction is taken once, and the
//! number of messages is bounded. Method: a queue without a server.

use super::*;

/// Returns transactions of two senders. One sends the transactions 0 and 2, the other 1 and 3.
fn transactions() -> Arc<Transactions> {
    Arc::new(Transactions {
        requests: vec![
            lab_model::plan::RecordedRequest {
                method: 0,
                calls: 1,
                body: Box::default(),
                id: Box::default()
            };
            4
        ],
        hashes: vec![[0; 32]; 4],
        next: vec![Some(2), Some(3), None, None],
        first_of_senders: vec![0, 1],
        ..Transactions::default()
    })
}

fn queue() -> (TransactionQueue, Arc<TransactionLog>) {
    let transactions = transactions();
    let log = TransactionLog::new(&transactions);
    (TransactionQueue::new(&transactions, &log), log)
}

#[test]
fn a_sender_waits_for_its_response_and_others_do_not() {
    let (mut queue, log) = queue();
    // The arguments of `take` are times.
    assert_eq!((queue.take(10), queue.take(11), queue.take(12)), (Some(0), Some(1), None));
    assert_eq!(queue.ready_since(), None);
    queue.release_sender(1, 20);
    assert_eq!(queue.ready_since(), Some(20));
    assert_eq!((queue.take(21), queue.take(22)), (Some(3), None));
    assert_eq!(queue.unsent(), 1);
    queue.release_sender(3, 30);
    assert_eq!(queue.ready_since(), None, "the sender has no further transaction");
    queue.release_sender(0, 31);
    assert_eq!((queue.take(32), queue.unsent()), (Some(2), 0));
    assert_eq!(log.state(2), (TransactionState::Sent, 32));
    assert_eq!(log.count().sent, 4);
}

#[test]
fn a_transaction_that_was_not_sent_comes_before_the_next_one_of_its_sender() {
    let (mut queue, log) = queue();
    assert_eq!(queue.take(1), Some(0));
    queue.put_back(0, 2);
    assert_eq!((queue.unsent(), log.count().sent), (4, 0));
    assert_eq!((queue.take(3), queue.take(3), queue.take(3)), (Some(0), Some(1), None));
    log.cancel(0);
    assert_eq!(log.count(), StateCounts { sent: 1, ..StateCounts::default() });
}

fn refuse(log: &TransactionLog, message: &str) {
    let outcome = CallOutcome { code: Some(-32000), ..CallOutcome::of(Class::RpcError) };
    let error = serde_json::json!({ "code": -32000, "message": message });
    let body = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "error": error }).to_string();
    log.record_response(0, outcome, body.as_bytes());
}

#[test]
fn messages_are_counted_without_their_numbers() {
    let (_, log) = queue();
    refuse(&log, "nonce too low: next nonce 5, tx nonce 3");
    refuse(&log, "nonce too low: next nonce 16, tx nonce 4");
    refuse(&log, "unknown account 0xAbc1");
    let expected = [("nonce too low: next nonce N, tx nonce N", 2), ("unknown account N", 1)];
    assert_eq!(log.messages(), expected.map(|(text, count)| (text.to_owned(), count)));
    assert_eq!(log.count(), StateCounts { refused: 1, sent: 1, accepted: 0 });
}

#[test]
fn messages_are_bounded() {
    let (_, log) = queue();
    for number in 0..100_u8 {
        let letter = char::from(b'a' + number % 26);
        refuse(&log, &format!("{}\n{letter}", "x".repeat(usize::from(number) + 1)));
    }
    let messages = log.messages();
    assert_eq!(messages.len(), MESSAGES_MAX + 1);
    assert_eq!(messages[0], (OTHER_MESSAGES.to_owned(), 100 - MESSAGES_MAX as u64));
    refuse(&log, &"y".repeat(10_000));
    assert!(log.messages().iter().all(|(text, _)| text.len() <= MESSAGE_CHARS_MAX));
    assert!(log.messages().iter().all(|(text, _)| !text.contains('\n')));
}
