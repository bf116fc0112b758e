//! Goal: gateways that share a zone (a rate limit with one counter per key) together admit as many
//! calls as one gateway would. They never admit more while Redis is down.
//!
//! Method: a real `redis-server`. The tests are in these modules:
//! - `script`: the Lua script in Redis decides like the Rust functions.
//! - `outage`: three gateways with unequal load keep the rate while Redis is killed and restarted.
//! - `gateways`: the gateways count each other.
//! - `setups`: zones are shared over a reload, with a hanging Redis, and in a Redis cluster.
//! - `quotas`: the gateways enforce and share monthly quotas.

mod gateways;
mod outage;
mod quotas;
mod script;
mod setups;
