//! Reads and writes the shared record in a thread.

use std::io;
use std::sync::mpsc::Sender;

use nvmeof_backend::SharedRecord;
use nvmeof_target_ha::{Number, Written};

use super::latest::Latest;
use crate::ha::Event;

/// An access to the record.
enum Job {
    Read(Number),
    Write(Number, Option<u64>, Vec<u8>),
}

/// The shared record. An access that waits for the cluster does not accumulate others.
pub(super) struct RecordDriver {
    worker: Latest<Job>,
}

impl RecordDriver {
    pub(super) fn start(mut record: SharedRecord, events: Sender<Event>) -> io::Result<Self> {
        let worker = Latest::start("ha-record", move |job| {
            let event = match job {
                Job::Read(number) => {
                    let read = record.read();
                    Event::Read(number, read.map_err(|error| error.to_string()))
                }
                Job::Write(number, expected, bytes) => {
                    let written = match record.write(expected, &bytes) {
                        Ok(Some(version)) => Written::Done(version),
                        Ok(None) => Written::Conflict,
                        Err(error) => Written::Unknown(error.to_string()),
                    };
                    Event::Written(number, written)
                }
            };
            // The driver has ended: the target has stopped.
            let _ = events.send(event);
        })?;
        Ok(Self { worker })
    }

    pub(super) fn read(&self, number: Number) {
        self.worker.submit(Job::Read(number));
    }

    pub(super) fn write(&self, number: Number, expected: Option<u64>, bytes: Vec<u8>) {
        self.worker.submit(Job::Write(number, expected, bytes));
    }
}
