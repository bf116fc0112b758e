//! Goal: gateways that share a zone together admit as many calls as one gateway would, and never
//! more while Redis is down. Method: a real `redis-server`. Its script must decide like the Rust
//! function (`script`). Three gateways under skewed load keep the rate while Redis is killed and
//! restarted (`outage`). Gateways count each other (`gateways`), and share zones in every setup of
//! Redis (`setups`) and monthly quotas (`quotas`).

mod gateways;
mod outage;
mod quotas;
mod script;
mod setups;
