//! Goal: gateways that share a zone let as much through together as one, by the same arithmetic;
//! and while Redis is dead no more than that. Method: a real `redis-server`, its script against the
//! pure rule over the same arrivals (`script`), and three gateways under skewed load while it is
//! killed and started again (`outage`); the number of gateways (`gateways`); quotas of a month
//! (`quotas`).

mod gateways;
mod outage;
mod quotas;
mod script;
mod setups;
