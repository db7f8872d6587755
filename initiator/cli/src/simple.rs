//! Commands on a namespace without a data transfer.

use nvmeof_initiator::{Host, Namespace, ZeroOptions};

use crate::args;
use crate::failure::Failure;

/// `nvmeof flush`
pub(crate) async fn flush(args: &args::Flush) -> Result<(), Failure> {
    let namespace = open(&args.io).await?;
    let result = namespace.flush().await;
    close(namespace, result.map_err(Failure::from)).await
}

/// `nvmeof write-zeroes`
pub(crate) async fn write_zeroes(args: &args::WriteZeroes) -> Result<(), Failure> {
    let count = args.count.required()?;
    let namespace = open(&args.io).await?;
    let options = ZeroOptions {
        fua: args.force_unit_access,
        deallocate: args.deac,
    };
    let result = namespace
        .write_zeroes(args.start_block, count, options)
        .await;
    close(namespace, result.map_err(Failure::from)).await
}

/// `nvmeof dsm`
pub(crate) async fn deallocate(args: &args::Dsm) -> Result<(), Failure> {
    let ranges = args.ranges.pairs()?;
    let namespace = open(&args.io).await?;
    let result = namespace.deallocate(&ranges).await;
    close(namespace, result.map_err(Failure::from)).await
}

/// Connects to the namespace of `io`.
pub(crate) async fn open(io: &args::Io) -> Result<Namespace, Failure> {
    open_at(io.subsystem.target.host()?, io).await
}

/// Connects `host` to the namespace of `io`.
pub(crate) async fn open_at(host: Host, io: &args::Io) -> Result<Namespace, Failure> {
    let controller = host.connect(io.options()?).await?;
    if let Err(failure) = io.queues.check(controller.info()) {
        controller.disconnect().await;
        return Err(failure);
    }
    Ok(controller.namespace(io.namespace_id).await?)
}

/// Disconnects, whatever the result was.
pub(crate) async fn close(
    namespace: Namespace,
    result: Result<(), Failure>,
) -> Result<(), Failure> {
    namespace.controller().clone().disconnect().await;
    result
}
