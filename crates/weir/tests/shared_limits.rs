//! Goal: gateways that share a zone let as much through together as one, by the same arithmetic; and
//! while Redis is dead no more than that. Method: a real `redis-server`, its script against the pure
//! rule over the same arrivals (`script`), and three gateways under skewed load while it is killed and
//! started again (`outage`); quotas of a month (`quotas`).

#![allow(clippy::unwrap_used)]

#[path = "support/programs.rs"]
mod programs;
#[path = "support/raw.rs"]
mod raw;
#[path = "serving/scene.rs"]
#[allow(dead_code)] // A part of it is used here.
mod scene;
#[path = "redis/server.rs"]
#[allow(dead_code)] // A part of it is used here.
mod server;
#[path = "support/stalls.rs"]
mod stalls;

#[path = "shared_limits/outage.rs"]
mod outage;
#[path = "shared_limits/quotas.rs"]
mod quotas;
#[path = "shared_limits/script.rs"]
mod script;
#[path = "shared_limits/setups.rs"]
mod setups;
