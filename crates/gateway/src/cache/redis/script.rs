//! Lua scripts that run in Redis. To run a script, a gateway sends the script's digest. It sends
//! the full text only if Redis does not have the script.

use std::sync::OnceLock;
use std::time::Duration;

use alloy_primitives::hex;
use fred::prelude::*;

use crate::cache::redis::client::RedisClient;

/// A Lua script.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    /// The digest that identifies the script in Redis.
    sha1: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Script {
        Script { text, sha1: OnceLock::new() }
    }

    /// Runs the script with these keys and arguments, and returns its reply.
    pub(super) async fn run(
        &self,
        redis: &RedisClient,
        names: Vec<String>,
        arguments: Vec<i64>,
    ) -> Result<Value, Error> {
        let client = redis.client()?;
        let evaluation = async {
            let reply = client.evalsha(self.sha1(), names.clone(), arguments.clone()).await;
            match reply {
                // Redis does not have the script. The library has no error kind for this, so the
                // error's text is compared.
                Err(error) if error.details().starts_with("NOSCRIPT") => {
                    client.eval(self.text, names, arguments).await
                }
                reply => reply,
            }
        };
        redis.run_while_connected(evaluation).await
    }

    /// Runs the script with one key. Returns the integers of its reply, or `None` if Redis does not
    /// reply with integers within `timeout`.
    pub(super) async fn run_within(
        &self,
        timeout: Duration,
        redis: &RedisClient,
        name: String,
        arguments: Vec<i64>,
    ) -> Option<Vec<i64>> {
        let reply = self.run(redis, vec![name], arguments);
        parse_integers(&tokio::time::timeout(timeout, reply).await.ok()?.ok()?)
    }

    fn sha1(&self) -> &str {
        self.sha1.get_or_init(|| {
            let algorithm = &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY;
            hex::encode(aws_lc_rs::digest::digest(algorithm, self.text.as_bytes()))
        })
    }
}

/// Returns the integers of a script's reply; `None` if the reply is not an array of integers.
pub(super) fn parse_integers(reply: &Value) -> Option<Vec<i64>> {
    let Value::Array(elements) = reply else { return None };
    elements.iter().map(Value::as_i64).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: a script's digest is the one that Redis computes.

    use super::*;

    #[test]
    fn the_digest_is_the_one_of_redis() {
        // `printf 'return 1' | sha1sum`
        let script = Script::new("return 1");
        assert_eq!(script.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
