//! Writes a block, flushes, reads it back and compares. Destroys the first 4
//! KiB of the namespace:
//! `write_and_verify 127.0.0.1:4420 nqn.2026-11.org.example:disk 1`

use std::error::Error;

use nvmeof_initiator::{ConnectOptions, Host, HostConfig, Nqn, WriteOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addr, subnqn, nsid] = args.as_slice() else {
        return Err("usage: write_and_verify ADDR:PORT NQN NSID".into());
    };
    let host = Host::new(HostConfig::of_this_machine()?)?;
    let options = ConnectOptions::new(addr.parse()?, Nqn::new(subnqn)?);
    let controller = host.connect(options).await?;
    let namespace = controller.namespace(nsid.parse()?).await?;

    // Each call takes a buffer and returns it with its result.
    let mut buf = controller.alloc(4096)?;
    buf.fill(0xa5);
    let mut buf = namespace.write(0, buf, WriteOptions::default()).await?;
    namespace.flush().await?;

    buf.fill(0);
    let buf = namespace.read(0, buf).await?;
    if buf.iter().any(|byte| *byte != 0xa5) {
        return Err("what was read is not what was written".into());
    }
    controller.disconnect().await;
    println!("4096 bytes written, flushed, read back: the same");
    Ok(())
}
