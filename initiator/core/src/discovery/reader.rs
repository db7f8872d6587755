//! Reads the discovery log page, which may change meanwhile (NVMe Base
//! 2.0, section 5.16.1.23).

use nvmeof_wire::Status;
use nvmeof_wire::admin::LogId;
use nvmeof_wire::log::DiscoveryEntry;
use nvmeof_wire::log::discovery::{DISCOVERY_ENTRY_LEN, DISCOVERY_HEADER_LEN, DiscoveryPage};

use crate::admin;
use crate::command::Command;
use crate::error::SetupError;

/// Reads the page in pieces: header and entries, then the header again. Restarts if
/// the generation counter has changed.
#[derive(Debug)]
pub struct DiscoveryReader {
    max_entries: u64,
    page: Vec<u8>,
    /// Bytes of the whole page, once the header is read.
    total: Option<usize>,
    tries: usize,
    generation: u64,
    done: bool,
}

/// Bytes read at once: one header and entries of 1024 bytes each.
pub const CHUNK: u32 = 4096;
/// Maximum number of entries: more than any fabric has, and 16 MiB.
pub const MAX_ENTRIES: u64 = 16 << 10;
/// Attempts before giving up.
const MAX_TRIES: usize = 10;

impl Default for DiscoveryReader {
    fn default() -> Self {
        Self::new()
    }
}

impl DiscoveryReader {
    /// A reader that has read nothing, for a page of up to [`MAX_ENTRIES`].
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(MAX_ENTRIES)
    }

    /// The same for a page of up to `max_entries`.
    #[must_use]
    pub fn with_limit(max_entries: u64) -> Self {
        Self {
            max_entries,
            page: Vec::new(),
            total: None,
            tries: 0,
            generation: 0,
            done: false,
        }
    }

    /// The next command to send; `None` when all is read.
    #[must_use]
    pub fn poll_command(&self) -> Option<Command> {
        if self.done {
            return None;
        }
        let (offset, len) = match self.total {
            // All is read: check whether it has changed meanwhile.
            Some(total) if self.page.len() >= total => (0, DISCOVERY_HEADER_LEN),
            Some(total) => (
                self.page.len(),
                (total - self.page.len()).min(CHUNK as usize),
            ),
            None => (0, DISCOVERY_HEADER_LEN),
        };
        let len = u32::try_from(len).unwrap_or(CHUNK);
        let offset = u64::try_from(offset).unwrap_or(u64::MAX);
        Some(admin::log_page(LogId::DISCOVERY, 0, offset, len))
    }

    /// Takes the data of the last command.
    ///
    /// # Errors
    /// [`SetupError::InvalidResponse`] when it is no discovery log page, or has too many entries;
    /// [`SetupError::Unstable`] when it changed too often.
    pub fn handle_data(&mut self, data: &[u8]) -> Result<(), SetupError> {
        match self.total {
            Some(total) if self.page.len() >= total => {
                let (generation, _entries) = header(data)?;
                if generation == self.generation {
                    self.done = true;
                    return Ok(());
                }
                self.start_over()
            }
            Some(_) => {
                self.page.extend_from_slice(data);
                Ok(())
            }
            None => {
                let (generation, entries) = header(data)?;
                let most = self.max_entries;
                if entries > most {
                    let text =
                        format!("the discovery log page has {entries} entries, more than {most}");
                    return Err(SetupError::InvalidResponse(text));
                }
                let entries = usize::try_from(entries).unwrap_or_default();
                self.generation = generation;
                self.total = Some(DISCOVERY_HEADER_LEN + entries * DISCOVERY_ENTRY_LEN);
                self.page.extend_from_slice(data);
                // Without entries, nothing can be inconsistent.
                self.done = entries == 0;
                Ok(())
            }
        }
    }

    /// Takes the status of a failed command. Returns whether to continue: an offset beyond
    /// the end of a page that has become shorter "shall" be refused with Invalid Field
    /// (Base 2.1, 5.1.12, figure 199). Reading then restarts.
    ///
    /// # Errors
    /// [`SetupError::Unstable`] when the page changed too often.
    pub fn handle_failure(&mut self, status: Status) -> Result<bool, SetupError> {
        let beyond = !self.page.is_empty() && status.kind() == Status::INVALID_FIELD;
        if beyond {
            self.start_over()?;
        }
        Ok(beyond)
    }

    fn start_over(&mut self) -> Result<(), SetupError> {
        self.tries += 1;
        if self.tries >= MAX_TRIES {
            return Err(SetupError::Unstable {
                page: "discovery log page",
                attempts: MAX_TRIES,
            });
        }
        self.page.clear();
        self.total = None;
        Ok(())
    }

    /// Generation counter of what was read.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The entries that were read.
    #[must_use]
    pub fn entries(&self) -> &[DiscoveryEntry] {
        DiscoveryPage::parse(&self.page).map_or(&[], |page| page.entries)
    }
}

/// Generation counter and number of entries.
fn header(data: &[u8]) -> Result<(u64, u64), SetupError> {
    let page = DiscoveryPage::parse(data).ok_or_else(|| {
        let text = "the discovery log page has an unknown format".to_owned();
        SetupError::InvalidResponse(text)
    })?;
    Ok((page.header.genctr.get(), page.header.numrec.get()))
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::admin::GetLogPage;
    use nvmeof_wire::log::DiscoveryHeader;
    use nvmeof_wire::{Ascii, Sqe};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::command::Payload;
    use crate::slots::Cid;

    fn page(generation: u64, ports: &[&str]) -> Vec<u8> {
        let mut page = DiscoveryHeader::new(generation, ports.len() as u64)
            .as_bytes()
            .to_vec();
        for port in ports {
            let mut entry = DiscoveryEntry::zeroed();
            entry.trsvcid = Ascii::new(port);
            page.extend_from_slice(entry.as_bytes());
        }
        page
    }

    /// Answers a command from `page`, as a controller does.
    fn completion(command: &Command, page: &[u8]) -> Vec<u8> {
        let capsule = command.capsule(Cid(0), Payload::None);
        let get = GetLogPage::parse(&Sqe::from_capsule(&capsule).unwrap());
        assert_eq!(get.lid, LogId::DISCOVERY);
        let [offset, len] = [get.offset, get.len].map(|n| usize::try_from(n).unwrap());
        let mut data = page.get(offset..).unwrap_or_default().to_vec();
        data.resize(len, 0);
        data
    }

    fn ports(reader: &DiscoveryReader) -> Vec<String> {
        let entries = reader.entries().iter();
        entries.map(|entry| entry.trsvcid.to_string()).collect()
    }

    #[test]
    fn page_is_read_in_pieces() {
        let names: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let page = page(3, &names);
        let mut reader = DiscoveryReader::new();
        let mut commands = 0;
        while let Some(command) = reader.poll_command() {
            assert!(command.len() <= CHUNK);
            reader.handle_data(&completion(&command, &page)).unwrap();
            commands += 1;
        }
        assert_eq!(ports(&reader), names);
        assert_eq!((reader.generation(), commands), (3, 1 + 3 + 1));
    }

    #[test]
    fn changed_page_is_read_again() {
        let (old, new) = (page(1, &["1", "2"]), page(2, &["3"]));
        let mut reader = DiscoveryReader::new();
        let mut completions = 0;
        while let Some(command) = reader.poll_command() {
            let page = if completions < 2 { &old } else { &new };
            reader.handle_data(&completion(&command, page)).unwrap();
            completions += 1;
        }
        assert_eq!(ports(&reader), ["3"]);
        assert_eq!(reader.generation(), 2);
    }

    /// Reading `page` from an offset beyond its end fails.
    #[test]
    fn shortened_page_is_read_again() {
        let names: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (long, short) = (page(1, &names), page(2, &["3"]));
        let mut reader = DiscoveryReader::new();
        for _ in 0..2 {
            let command = reader.poll_command().unwrap();
            reader.handle_data(&completion(&command, &long)).unwrap();
        }
        let refused = Status::INVALID_FIELD.with_dnr().with_more();
        assert!(reader.handle_failure(refused).unwrap());
        while let Some(command) = reader.poll_command() {
            reader.handle_data(&completion(&command, &short)).unwrap();
        }
        assert_eq!(ports(&reader), ["3"]);
        // Nothing else is a reason to read again, and at its start none is.
        let mut reader = DiscoveryReader::new();
        assert!(!reader.handle_failure(refused).unwrap());
        let command = reader.poll_command().unwrap();
        reader.handle_data(&completion(&command, &long)).unwrap();
        assert!(!reader.handle_failure(Status::INTERNAL_ERROR).unwrap());
    }

    #[test]
    fn endless_change_and_endless_pages_are_given_up() {
        let mut reader = DiscoveryReader::new();
        let mut generation = 0;
        let error = loop {
            let command = reader.poll_command().unwrap();
            generation += 1;
            let page = page(generation, &["1"]);
            if let Err(error) = reader.handle_data(&completion(&command, &page)) {
                break error;
            }
        };
        assert!(matches!(error, SetupError::Unstable { attempts: 10, .. }));
        assert!(error.to_string().contains("10 attempts"), "{error}");

        let endless = DiscoveryHeader::new(1, u64::MAX);
        let error = DiscoveryReader::new().handle_data(endless.as_bytes());
        assert!(matches!(error, Err(SetupError::InvalidResponse(_))));
        let mut small = DiscoveryReader::with_limit(1);
        assert!(small.handle_data(&page(1, &["1", "2"])[..1024]).is_err());
        let mut small = DiscoveryReader::with_limit(1);
        assert!(small.handle_data(&page(1, &["1"])[..1024]).is_ok());
        let error = DiscoveryReader::new().handle_data(&[0; 100]);
        assert!(matches!(error, Err(SetupError::InvalidResponse(_))));
    }

    #[test]
    fn empty_page_is_valid() {
        let mut reader = DiscoveryReader::new();
        reader.handle_data(&page(0, &[])).unwrap();
        assert!(reader.poll_command().is_none());
        assert!(reader.entries().is_empty());
    }
}
