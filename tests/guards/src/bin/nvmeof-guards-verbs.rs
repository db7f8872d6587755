//! `nvmeof-guards-verbs`: runs the cases over RDMA devices, which the stand-in of
//! `tests/verbs-standin` provides.
//!
//! A separate program, as `nvmeof-guards-sockets`.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, SocketAddr};

use clap::{Parser, ValueEnum};
use nvmeof_guards::{Medium, Stage};
use nvmeof_initiator::Operation;
use nvmeof_rdma::Provider;
use nvmeof_rdma_verbs::VerbsConfig;

/// Run one case under callgrind
#[derive(Debug, Parser)]
struct Arguments {
    setup: Setup,
    kind: Kind,
    /// Operations of each round
    depth: usize,
    rounds: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Setup {
    /// Queue pairs have their own receives
    Own,
    /// They share receives
    Shared,
    /// They have their own, and the target reads the data of writes
    Pulled,
    /// As own, and the initiator trusts the target
    Trusted,
    /// As pulled, and the initiator trusts the target
    TrustedPulled,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Read,
    Write,
}

/// Shared receives, more than commands in flight.
const SHARED: u32 = 256;

#[allow(
    clippy::expect_used,
    reason = "a guard that cannot continue has failed"
)]
fn provider() -> Box<dyn Provider> {
    let provider = nvmeof_rdma_verbs::new(VerbsConfig::default());
    Box::new(provider.expect("the stand-in has a device"))
}

fn main() -> Result<(), String> {
    let arguments = Arguments::parse();
    let operation = match arguments.kind {
        Kind::Read => Operation::Read,
        Kind::Write => Operation::Write,
    };
    nvmeof_verbs_standin::install();
    let address = SocketAddr::from((Ipv4Addr::new(10, 75, 0, 1), 4420));
    nvmeof_verbs_standin::configure(&format!(
        "guards0 profile=roce addr=10.75.0.2 calls=peer; guards1 profile=roce addr={} from=guards0",
        address.ip(),
    ))?;
    let medium = match arguments.setup {
        Setup::Own => Medium::Other(provider, address.into()),
        Setup::Shared => Medium::Shared(provider, address.into(), SHARED),
        Setup::Pulled => Medium::Pulled(provider, address.into()),
        Setup::Trusted => Medium::Trusted(provider, address.into(), 4096),
        Setup::TrustedPulled => Medium::Trusted(provider, address.into(), 0),
    };
    let mut stage = Stage::on(&medium, &Stage::null());
    for _ in 0..arguments.rounds {
        stage.round(operation, arguments.depth, |step| step(), |step| step());
    }
    Ok(())
}
