//! Keys of in-band authentication on the command line.

use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use nvmeof_initiator::dhchap::{HostKeys, Key, KeyError, Secret};
use nvmeof_wire::auth::HashId;
use zeroize::Zeroizing;

use super::numbers::number;
use crate::failure::Failure;
use crate::format::Format;

/// The key of this host.
#[derive(Args)]
pub(crate) struct HostKey {
    /// Key of this host for in-band authentication (DH-HMAC-CHAP): its text, or
    /// @FILE, @- for standard input. The text is visible in the process list
    #[arg(
        short = 'S',
        long,
        value_name = "KEY",
        env = "NVMEOF_DHCHAP_SECRET",
        hide_env_values = true
    )]
    dhchap_secret: Option<String>,
}

/// Keys of a connection.
#[derive(Args)]
pub(crate) struct Keys {
    #[command(flatten)]
    host: HostKey,
    /// Key of the controller, which then has to prove it: its text or @FILE
    #[arg(
        short = 'C',
        long,
        value_name = "KEY",
        env = "NVMEOF_DHCHAP_CTRL_SECRET",
        hide_env_values = true,
        requires = "dhchap_secret"
    )]
    dhchap_ctrl_secret: Option<String>,
}

/// Keys of a connection to a discovery service. Few of them have a key, so the variable with the
/// controller's key, which serves the connections to subsystems, does not apply.
#[derive(Args)]
pub(crate) struct DiscoveryKeys {
    #[command(flatten)]
    host: HostKey,
    /// Key of the discovery service, which then has to prove it: its text or @FILE
    #[arg(short = 'C', long, value_name = "KEY", requires = "dhchap_secret")]
    dhchap_ctrl_secret: Option<String>,
}

/// `gen-dhchap-key`
#[derive(Args)]
pub(crate) struct GenKey {
    /// Hash function that transforms the key before use: 0 none, 1 SHA-256,
    /// 2 SHA-384, 3 SHA-512
    #[arg(short = 'm', long, value_name = "HASH", default_value_t = 0,
          value_parser = number::<u8>(0..=3))]
    pub(crate) hmac: u8,
    /// Bytes of the key: 32, 48 or 64 [default: as long as a hash of --hmac, or 32]
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = number::<usize>(32..=64))]
    pub(crate) key_length: Option<usize>,
    /// The bytes of the key as hexadecimal digits: its text, or @FILE, @- for standard
    /// input [default: random]
    #[arg(short = 's', long, value_name = "HEX", conflicts_with = "key_length")]
    pub(crate) secret: Option<String>,
    /// Output format
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "normal")]
    pub(crate) output_format: Format,
}

/// `check-dhchap-key`
#[derive(Args)]
pub(crate) struct CheckKey {
    /// The key: its text, or @FILE, @- for standard input
    #[arg(
        short = 'k',
        long,
        value_name = "KEY",
        env = "NVMEOF_DHCHAP_SECRET",
        hide_env_values = true
    )]
    pub(crate) key: String,
    /// Output format
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "normal")]
    pub(crate) output_format: Format,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

impl std::fmt::Debug for DiscoveryKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiscoveryKeys")
    }
}

impl std::fmt::Debug for GenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GenKey")
    }
}

impl std::fmt::Debug for CheckKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CheckKey")
    }
}

impl Keys {
    /// The keys, if there are any.
    pub(crate) fn read(&self) -> Result<Option<Arc<HostKeys>>, Failure> {
        self.host.with(self.dhchap_ctrl_secret.as_deref())
    }
}

impl DiscoveryKeys {
    /// The keys, if there are any.
    pub(crate) fn read(&self) -> Result<Option<Arc<HostKeys>>, Failure> {
        self.host.with(self.dhchap_ctrl_secret.as_deref())
    }
}

impl HostKey {
    /// The keys, if there are any, with that of the controller.
    fn with(&self, controller: Option<&str>) -> Result<Option<Arc<HostKeys>>, Failure> {
        let Some(host) = &self.dhchap_secret else {
            return Ok(None);
        };
        let host = key("--dhchap-secret", host)?;
        let controller = controller.map(|text| key("--dhchap-ctrl-secret", text));
        let controller = controller.transpose()?.map(Arc::new);
        Ok(Some(Arc::new(HostKeys::new(Arc::new(host), controller))))
    }
}

impl GenKey {
    /// The new key.
    pub(crate) fn key(&self) -> Result<Key, Failure> {
        let transformation = Some(HashId(self.hmac)).filter(|id| id.hash_len().is_some());
        let Some(hex) = &self.secret else {
            let usual = transformation.and_then(HashId::hash_len).unwrap_or(32);
            let len = self.key_length.unwrap_or(usual);
            let key = Key::generate(len, transformation);
            return key.map_err(|error| Failure::usage(format!("--key-length: {error}")));
        };
        let text = text("--secret", hex)?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
        for pair in text.trim().as_bytes().chunks(2) {
            let is_hex = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
            let byte = str::from_utf8(pair).ok().filter(|_| is_hex);
            let byte = byte.and_then(|pair| u8::from_str_radix(pair, 16).ok());
            bytes.push(
                byte.ok_or_else(|| {
                    Failure::usage("--secret: must be pairs of hexadecimal digits")
                })?,
            );
        }
        let key = match bytes.is_empty() {
            true => Err(KeyError::Length(0)),
            false => Secret::take(&mut bytes)
                .map_err(KeyError::from)
                .and_then(|secret| Key::of(secret, transformation)),
        };
        key.map_err(|error| Failure::usage(format!("--secret: {error}")))
    }
}

impl CheckKey {
    /// The key, if it is valid.
    pub(crate) fn read(&self) -> Result<Key, Failure> {
        key("--key", &self.key)
    }
}

/// Longest file of a key in bytes: a key has at most 107 characters.
const MAX_FILE: u64 = 4096;

/// The key that the value of `option` is or names. No message contains the key.
fn key(option: &str, value: &str) -> Result<Key, Failure> {
    let text = text(option, value)?;
    Key::parse(&text).map_err(|error| {
        let file = value.strip_prefix('@').map(|path| format!("{path}: "));
        Failure::usage(format!("{option}: {}{error}", file.unwrap_or_default()))
    })
}

/// The text that the value of `option` is, or the contents of the file that it names.
fn text(option: &str, value: &str) -> Result<Zeroizing<String>, Failure> {
    let Some(path) = value.strip_prefix('@') else {
        return Ok(Zeroizing::new(value.to_owned()));
    };
    read(path).map_err(|error| {
        let why = nvmeof_rdma::explain(&error);
        Failure::usage(format!("{option}: cannot read {path}: {why}"))
    })
}

fn read(path: &str) -> io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::with_capacity(
        usize::try_from(MAX_FILE).unwrap_or(0),
    ));
    match path {
        "-" => io::stdin()
            .lock()
            .take(MAX_FILE)
            .read_to_string(&mut text)?,
        path => fs::File::open(PathBuf::from(path))?
            .take(MAX_FILE)
            .read_to_string(&mut text)?,
    };
    Ok(text)
}
