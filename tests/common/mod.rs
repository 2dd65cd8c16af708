//! What the black-box tests share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod cli;
pub mod contract;
pub mod fail_point;
pub mod fleet;
pub mod foreign;
pub mod mongod;
pub mod op_msg;
pub mod open_transaction;
pub mod own_mongod;
pub mod proxy;
pub mod rare_indexes;
pub mod server;
pub mod shim;
pub mod signal;
pub mod steps;
pub mod stores;
pub mod worker;
