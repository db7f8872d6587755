//! `nvmeof-target top`: a live view of a running target.

mod events;
mod lines;
mod rates;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nix::sys::signal::{SigSet, Signal};
use nvmeof_rdma::explain;
use nvmeof_wire::text;

use nvmeof_target_api::Caller;
use nvmeof_target_api::Snapshot;

use crate::remedy::with_remedy;
use rates::Rates;
use view::View;

/// Shows IOPS, throughput and latency of namespaces and hosts, and the load of
/// reactors.
#[derive(Debug, Args)]
pub struct Top {
    /// Control socket of the target.
    #[arg(long, value_name = "PATH", env = "NVMEOF_CONTROL", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Refresh interval in seconds, 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Print the rates of one interval and exit.
    #[arg(long)]
    once: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Normal, requires = "once")]
    output_format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Normal,
    Json,
}

/// The control socket of the systemd service.
const DEFAULT_SOCKET: &str = "/run/nvmeof/control.sock";
/// Time limit of a response.
const TIMEOUT: Duration = Duration::from_secs(5);

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("must be 0.1 to 3600".to_owned())
    }
}

impl Top {
    /// Runs the command.
    ///
    /// # Errors
    /// The message for the user.
    pub fn run(&self) -> Result<(), String> {
        let caller = Caller::new(&self.socket, TIMEOUT);
        let mut poll = || poll(&caller);
        let interval = Duration::from_secs_f64(self.interval);
        if self.once {
            let text = once(&mut poll, interval, self.output_format, columns())?;
            match self.output_format {
                Format::Normal => println!("{}", text::Lines(text.trim_end())),
                Format::Json => println!("{}", text::Json(text.trim_end())),
            }
            return Ok(());
        }
        if !std::io::stdout().is_terminal() {
            return Err("standard output is not a terminal; use --once".to_owned());
        }
        restore_on_signals().map_err(|error| format!("signals: {}", explain(&error)))?;
        screen::run(&mut poll, interval)
    }
}

/// Columns of the terminal; `None`: standard output is not a terminal, and lines may have any
/// length.
fn columns() -> Option<usize> {
    let is_terminal = std::io::stdout().is_terminal();
    let (columns, _) = is_terminal.then(|| crossterm::terminal::size().ok())??;
    Some(columns.into())
}

/// Restores the terminal when a signal ends the process. Call it before other threads
/// start.
fn restore_on_signals() -> std::io::Result<()> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        if let Ok(signal) = set.wait() {
            ratatui::restore();
            // As a shell reports it.
            std::process::exit(128 + signal as i32);
        }
    })?;
    Ok(())
}

/// Gets the present state of the target.
fn poll(caller: &Caller) -> Result<Snapshot, String> {
    let snapshot = caller.ask(axum::http::Method::GET, "/snapshot", None);
    let snapshot = snapshot.map_err(|error| with_remedy(&error))?;
    serde_json::from_value(snapshot).map_err(|error| {
        format!("unexpected response of the target, perhaps of another version: {error}")
    })
}

/// The rates of one interval as text.
fn once(
    poll: &mut dyn FnMut() -> Result<Snapshot, String>,
    interval: Duration,
    format: Format,
    columns: Option<usize>,
) -> Result<String, String> {
    let before = poll()?;
    std::thread::sleep(interval);
    let rates = Rates::between(&before, &poll()?);
    match format {
        Format::Json => serde_json::to_string_pretty(&rates).map_err(|error| error.to_string()),
        Format::Normal => {
            let view = View::default();
            let lines = lines::all(&rates, &view, columns);
            let texts = lines.iter().map(|line| line.text.trim_end());
            Ok(texts.collect::<Vec<_>>().join("\n"))
        }
    }
}
