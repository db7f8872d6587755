//! Reads the Asymmetric Namespace Access log page, which may change meanwhile (Base 2.1,
//! 5.1.12.1.13). Nothing in it is trusted.

use std::collections::HashSet;

use nvmeof_wire::Status;
use nvmeof_wire::admin::NSID_ALL;
use nvmeof_wire::identify::{Cmic, IdentifyController};
use nvmeof_wire::log::ana::{ANA_GROUP_LEN, ANA_HEADER_LEN, AnaGroup, AnaHeader, AnaState};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::admin;
use crate::command::Command;
use crate::error::SetupError;

/// A valid page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaLog {
    /// Change count (CHGCNT).
    pub changes: u64,
    /// The groups, in the order of the page.
    pub groups: Vec<AnaLogGroup>,
}

/// A group of a valid page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaLogGroup {
    /// ANA group identifier, at least 1.
    pub id: u32,
    /// Change count of the page when the group changed last.
    pub changes: u64,
    /// State; it may be a reserved one.
    pub state: AnaState,
    /// The namespaces in it, in the order of the page; none if only groups were requested.
    pub nsids: Vec<u32>,
}

/// What Identify Controller says about the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnaLimits {
    /// Number of groups (NANAGRPID).
    groups: u32,
    /// Largest group identifier (ANAGRPMAX); 0 if it is not reported.
    largest_group: u32,
    /// Largest namespace identifier (NN).
    largest_nsid: u32,
    /// Most namespaces that the page can have; 0 if only groups are requested.
    namespaces: u64,
}

/// Reads the page in pieces, then its header again. Restarts if the change count differs.
#[derive(Debug)]
pub struct AnaReader {
    limits: AnaLimits,
    page: Vec<u8>,
    /// Bytes that the page has at least.
    needs: usize,
    attempts: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Bytes are missing.
    Reading,
    /// The page, or the reason why it is invalid. The header is to be read again: a page that
    /// changed meanwhile may be inconsistent.
    Checking(Result<AnaLog, String>),
    Done(AnaLog),
}

/// The result of parsing the first bytes of a page.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Whole(AnaLog),
    /// The page has at least this many bytes.
    Needs(usize),
}

/// Attempts to read a page that does not change meanwhile.
const ATTEMPTS: usize = 5;
/// Most bytes of one Get Log Page command.
const PIECE: usize = 4096;
/// Most namespaces of a page: more than any subsystem has.
const MOST_NAMESPACES: u64 = 1 << 16;
/// Bytes of a namespace identifier.
const NSID_LEN: usize = size_of::<U32>();

impl AnaReader {
    /// A reader that has read nothing.
    #[must_use]
    pub fn new(limits: AnaLimits) -> Self {
        Self {
            limits,
            page: Vec::new(),
            needs: ANA_HEADER_LEN,
            attempts: 0,
            state: State::Reading,
        }
    }

    /// The next command to send; `None` when all is read.
    #[must_use]
    pub fn poll_command(&self) -> Option<Command> {
        let (offset, len) = match &self.state {
            State::Done(_) => return None,
            State::Checking(_) => (0, ANA_HEADER_LEN),
            State::Reading => {
                let read = self.page.len();
                // The first command reads as much as it can.
                let rest = self.limits.page_len().saturating_sub(read);
                (read, rest.max(self.needs.saturating_sub(read)).min(PIECE))
            }
        };
        let offset = u64::try_from(offset).unwrap_or(u64::MAX);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Some(admin::ana_log(self.limits.groups_only(), offset, len))
    }

    /// Takes the data of the last command, as many bytes as it requested.
    ///
    /// # Errors
    /// [`SetupError::InvalidResponse`] when the page is invalid, [`SetupError::Unstable`] when it
    /// changed during each attempt.
    pub fn handle_data(&mut self, data: &[u8]) -> Result<(), SetupError> {
        match std::mem::replace(&mut self.state, State::Reading) {
            State::Reading => {
                self.page.extend_from_slice(data);
                if self.page.len() < self.needs {
                    return Ok(());
                }
                match parse(&self.page, self.limits) {
                    Ok(Parsed::Needs(needs)) => self.needs = needs,
                    Ok(Parsed::Whole(log)) => self.state = State::Checking(Ok(log)),
                    Err(what) => self.state = State::Checking(Err(what)),
                }
                Ok(())
            }
            State::Checking(_) if change_count(data) != change_count(&self.page) => {
                self.start_over()
            }
            State::Checking(Ok(log)) | State::Done(log) => {
                self.state = State::Done(log);
                Ok(())
            }
            State::Checking(Err(what)) => {
                let text = format!("the ANA log page has {what}");
                Err(SetupError::InvalidResponse(text))
            }
        }
    }

    /// Takes the status of a failed command. Returns whether to continue: an offset beyond the
    /// end of a page that has become shorter "shall" be refused with Invalid Field (Base 2.1,
    /// 5.1.12, figure 199). Reading then restarts.
    ///
    /// # Errors
    /// [`SetupError::Unstable`] when the page changed during each attempt.
    pub fn handle_failure(&mut self, status: Status) -> Result<bool, SetupError> {
        let is_piece = matches!(self.state, State::Reading) && !self.page.is_empty();
        let is_beyond = is_piece && status.kind() == Status::INVALID_FIELD;
        if is_beyond {
            self.start_over()?;
        }
        Ok(is_beyond)
    }

    fn start_over(&mut self) -> Result<(), SetupError> {
        self.attempts += 1;
        if self.attempts >= ATTEMPTS {
            return Err(SetupError::Unstable {
                page: "ANA log page",
                attempts: ATTEMPTS,
            });
        }
        self.page.clear();
        self.needs = ANA_HEADER_LEN;
        self.state = State::Reading;
        Ok(())
    }

    /// The page; `None` before all is read.
    #[must_use]
    pub fn into_log(self) -> Option<AnaLog> {
        match self.state {
            State::Done(log) => Some(log),
            State::Reading | State::Checking(_) => None,
        }
    }
}

impl AnaLimits {
    /// The limits of a page, with `groups_only` of one without namespaces (RGO); `None` if the
    /// controller does not report ANA states.
    #[must_use]
    pub fn of(id: &IdentifyController, groups_only: bool) -> Option<Self> {
        if !id.cmic().contains(Cmic::ANARS) {
            return None;
        }
        // Base 2.1, MNAN: 0 for as many as NN.
        let most = match id.mnan.get() {
            0 => id.nn.get(),
            mnan => mnan,
        };
        Some(Self {
            groups: id.nanagrpid.get(),
            largest_group: id.anagrpmax.get(),
            largest_nsid: id.nn.get(),
            namespaces: match groups_only {
                true => 0,
                false => u64::from(most).min(MOST_NAMESPACES),
            },
        })
    }

    fn groups_only(&self) -> bool {
        self.namespaces == 0
    }

    /// Most bytes of the page. NGRPS has 16 bits.
    fn page_len(&self) -> usize {
        let groups = usize::try_from(self.groups.min(u16::MAX.into())).unwrap_or(0);
        let namespaces = usize::try_from(self.namespaces).unwrap_or(0);
        ANA_HEADER_LEN + groups * ANA_GROUP_LEN + namespaces * NSID_LEN
    }
}

fn change_count(page: &[u8]) -> Option<u64> {
    let (header, _) = AnaHeader::read_from_prefix(page).ok()?;
    Some(header.chgcnt.get())
}

/// Parses the first bytes of a page. The error says what is invalid.
fn parse(page: &[u8], limits: AnaLimits) -> Result<Parsed, String> {
    let Ok((header, mut rest)) = AnaHeader::read_from_prefix(page) else {
        return Ok(Parsed::Needs(ANA_HEADER_LEN));
    };
    let ngrps = u32::from(header.ngrps.get());
    if ngrps > limits.groups {
        let most = limits.groups;
        return Err(format!(
            "{ngrps} groups (ngrps), at most {most} (nanagrpid)"
        ));
    }
    let mut known = Known::new(limits);
    let mut groups = Vec::new();
    for at in 0..ngrps {
        // All further groups are read before the page is parsed again: each time costs as much as
        // the whole page.
        let groups_left = usize::try_from(ngrps - at).unwrap_or(usize::MAX);
        let groups_left = groups_left.saturating_mul(ANA_GROUP_LEN);
        let needs = (page.len() - rest.len()).saturating_add(groups_left);
        let Ok((group, after)) = AnaGroup::read_from_prefix(rest) else {
            return Ok(Parsed::Needs(needs));
        };
        let (id, nnsids) = (group.agid.get(), group.nnsids.get());
        known.add_group(id, nnsids)?;
        // `add_group` has checked that the number is small.
        let len = usize::try_from(nnsids)
            .unwrap_or(0)
            .saturating_mul(NSID_LEN);
        let Some((nsids, after)) = after.split_at_checked(len) else {
            return Ok(Parsed::Needs(needs.saturating_add(len)));
        };
        let nsids = nsids.chunks_exact(NSID_LEN);
        let nsids = nsids.filter_map(|nsid| Some(U32::read_from_bytes(nsid).ok()?.get()));
        let nsids: Vec<u32> = nsids.collect();
        for nsid in &nsids {
            known.add_namespace(id, *nsid)?;
        }
        groups.push(AnaLogGroup {
            id,
            changes: group.chgcnt.get(),
            // Bits 7:4 are reserved.
            state: AnaState(group.state.0 & 0xf),
            nsids,
        });
        rest = after;
    }
    Ok(Parsed::Whole(AnaLog {
        changes: header.chgcnt.get(),
        groups,
    }))
}

/// Groups and namespaces of a page so far.
struct Known {
    limits: AnaLimits,
    groups: HashSet<u32>,
    nsids: HashSet<u32>,
    /// Sum of the numbers of namespaces.
    namespaces: u64,
}

impl Known {
    fn new(limits: AnaLimits) -> Self {
        Self {
            limits,
            groups: HashSet::new(),
            nsids: HashSet::new(),
            namespaces: 0,
        }
    }

    fn add_group(&mut self, id: u32, nnsids: u32) -> Result<(), String> {
        let largest = self.limits.largest_group;
        if id == 0 {
            return Err("group 0, which is no group identifier".to_owned());
        }
        if largest != 0 && id > largest {
            return Err(format!(
                "group {id}, which is out of range (1-{largest}, anagrpmax)"
            ));
        }
        if !self.groups.insert(id) {
            return Err(format!("group {id} twice"));
        }
        let most = self.limits.namespaces;
        self.namespaces += u64::from(nnsids);
        match self.namespaces {
            sum if sum <= most => Ok(()),
            _ if most == 0 => Err(format!(
                "{nnsids} namespaces (nnsids) in group {id}, 0 were requested"
            )),
            sum => Err(format!(
                "{sum} namespaces up to group {id} (nnsids), at most {most} (mnan, nn)"
            )),
        }
    }

    fn add_namespace(&mut self, id: u32, nsid: u32) -> Result<(), String> {
        let largest = self.limits.largest_nsid.min(NSID_ALL - 1);
        if !(1..=largest).contains(&nsid) {
            return Err(format!(
                "namespace {nsid} in group {id}, which is out of range (1-{largest}, nn)"
            ));
        }
        if !self.nsids.insert(nsid) {
            return Err(format!("namespace {nsid} twice, last in group {id}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::admin::{GetLogPage, LogId};
    use nvmeof_wire::log::ana::RETURN_GROUPS_ONLY;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    const LIMITS: AnaLimits = AnaLimits {
        groups: 4,
        largest_group: 128,
        largest_nsid: 1024,
        namespaces: 16,
    };

    /// A page of groups: identifier, claimed number of namespaces, and namespaces.
    fn page(changes: u64, ngrps: u16, groups: &[(u32, u32, &[u32])]) -> Vec<u8> {
        let mut page = AnaHeader::new(changes, ngrps).as_bytes().to_vec();
        for (id, nnsids, nsids) in groups {
            let group = AnaGroup::new(*id, *nnsids, 5, AnaState::OPTIMIZED);
            page.extend_from_slice(group.as_bytes());
            page.extend(nsids.iter().flat_map(|nsid| nsid.to_le_bytes()));
        }
        page
    }

    fn whole(page: &[u8]) -> AnaLog {
        match parse(page, LIMITS) {
            Ok(Parsed::Whole(log)) => log,
            other => panic!("{other:?}"),
        }
    }

    /// The data of a command, as a controller sends it.
    fn data(command: &Command, page: &[u8]) -> Vec<u8> {
        let get = GetLogPage::parse(&command.sqe());
        assert_eq!((get.lid, get.nsid), (LogId::ANA, NSID_ALL));
        // The first piece enables the next event, the others retain it.
        assert_eq!(get.retain_event, get.offset > 0);
        let [offset, len] = [get.offset, get.len].map(|n| usize::try_from(n).unwrap());
        let mut data = page.get(offset..).unwrap_or_default().to_vec();
        data.resize(len, 0);
        data
    }

    /// Reads `pages`, one after the other command by command, the last one for all further
    /// commands. Returns the number of commands, too.
    fn read(limits: AnaLimits, pages: &[Vec<u8>]) -> (Result<AnaLog, SetupError>, usize) {
        let mut reader = AnaReader::new(limits);
        let mut commands = 0;
        while let Some(command) = reader.poll_command() {
            assert!(command.len() <= 4096 && !command.is_empty());
            let page = pages.get(commands).or(pages.last()).unwrap();
            commands += 1;
            assert!(commands < 10_000, "the reader does not end");
            if let Err(error) = reader.handle_data(&data(&command, page)) {
                return (Err(error), commands);
            }
        }
        (Ok(reader.into_log().unwrap()), commands)
    }

    #[test]
    fn page_is_parsed_at_any_length() {
        let mut page = page(7, 2, &[(1, 2, &[1, 7]), (3, 1, &[2])]);
        // State and reserved bits of the second group.
        page[16 + 40 + 16] = 0xf7;
        let log = whole(&page);
        assert_eq!(log.groups[1].state, AnaState(0x7));
        assert_eq!(log.groups[0].nsids, [1, 7]);
        assert_eq!((log.groups[1].id, log.changes), (3, 7));
        // Bytes after the last group are ignored.
        assert_eq!(whole(&[page.clone(), vec![0xff; 100]].concat()), log);
        for len in 0..page.len() {
            match parse(&page[..len], LIMITS) {
                Ok(Parsed::Needs(needs)) => {
                    assert!(len < needs && needs <= page.len(), "{len}: {needs}");
                }
                other => panic!("{len}: {other:?}"),
            }
        }
    }

    #[test]
    fn page_is_read_in_pieces_and_its_header_again() {
        let limits = AnaLimits {
            groups: 1000,
            largest_group: 0,
            ..LIMITS
        };
        let groups: Vec<_> = (1..=1000).map(|id| (id, 0, [].as_slice())).collect();
        let page = page(3, 1000, &groups);
        let (log, commands) = read(limits, &[page]);
        let log = log.unwrap();
        assert_eq!((log.groups.len(), log.groups[999].id), (1000, 1000));
        // 16 + 1000 * 32 bytes.
        assert_eq!(commands, 8 + 1);
    }

    #[test]
    fn groups_are_requested_without_namespaces() {
        let limits = AnaLimits {
            namespaces: 0,
            ..LIMITS
        };
        for (limits, lsp) in [(limits, RETURN_GROUPS_ONLY), (LIMITS, 0)] {
            let command = AnaReader::new(limits).poll_command().unwrap();
            assert_eq!(GetLogPage::parse(&command.sqe()).lsp, lsp);
        }
    }

    #[test]
    fn page_that_changes_is_read_again() {
        let invalid = page(1, 1, &[(0, 0, &[])]);
        let (old, new) = (page(2, 1, &[(1, 0, &[])]), page(3, 1, &[(2, 0, &[])]));
        let (log, commands) = read(LIMITS, &[invalid.clone(), old.clone(), old, new]);
        let log = log.unwrap();
        assert_eq!((log.changes, log.groups[0].id, commands), (3, 2, 6));
        let endless: Vec<_> = (0..100).map(|count| page(count, 0, &[])).collect();
        let (error, commands) = read(LIMITS, &endless);
        assert!(matches!(error, Err(SetupError::Unstable { .. })));
        assert_eq!(commands, 2 * ATTEMPTS);
        // One that does not change is invalid.
        let (error, _) = read(LIMITS, &[invalid]);
        assert!(matches!(error, Err(SetupError::InvalidResponse(_))));
    }

    #[test]
    fn page_that_becomes_shorter_is_read_again() {
        let limits = AnaLimits {
            groups: 1000,
            largest_group: 0,
            ..LIMITS
        };
        let mut reader = AnaReader::new(limits);
        // At its start, nothing is beyond the end.
        assert!(!reader.handle_failure(Status::INVALID_FIELD).unwrap());
        let groups: Vec<_> = (1..=1000).map(|id| (id, 0, [].as_slice())).collect();
        let long = page(1, 1000, &groups);
        for attempt in 1..=ATTEMPTS {
            let command = reader.poll_command().unwrap();
            reader.handle_data(&data(&command, &long)).unwrap();
            assert!(!reader.handle_failure(Status::INTERNAL_ERROR).unwrap());
            match reader.handle_failure(Status::INVALID_FIELD.with_dnr()) {
                Ok(continues) => assert!(continues && attempt < ATTEMPTS, "{attempt}"),
                Err(error) => {
                    assert!(matches!(error, SetupError::Unstable { .. }));
                    assert_eq!(attempt, ATTEMPTS);
                }
            }
        }
    }

    #[test]
    fn invalid_pages_are_refused() {
        let many: Vec<u32> = (1..=17).collect();
        for (page, said) in [
            (page(7, 5, &[]), "5 groups (ngrps), at most 4 (nanagrpid)"),
            (page(7, u16::MAX, &[]), "65535 groups"),
            (page(7, 1, &[(0, 0, &[])]), "group 0"),
            (
                page(7, 1, &[(129, 0, &[])]),
                "group 129, which is out of range (1-128",
            ),
            (page(7, 2, &[(2, 0, &[]), (2, 0, &[])]), "group 2 twice"),
            (page(7, 1, &[(1, 17, &many)]), "17 namespaces up to group 1"),
            (page(7, 1, &[(1, u32::MAX, &[])]), "4294967295 namespaces"),
            (
                page(7, 2, &[(1, 1, &[1]), (2, u32::MAX, &[])]),
                "4294967296 namespaces up to group 2",
            ),
            (page(7, 1, &[(1, 1, &[0])]), "namespace 0 in group 1"),
            (page(7, 1, &[(1, 1, &[1025])]), "namespace 1025 in group 1"),
            (page(7, 1, &[(1, 1, &[u32::MAX])]), "namespace 4294967295"),
            (page(7, 1, &[(1, 2, &[3, 3])]), "namespace 3 twice"),
            (
                page(7, 2, &[(1, 1, &[3]), (2, 1, &[3])]),
                "namespace 3 twice, last in group 2",
            ),
        ] {
            let error = parse(&page, LIMITS).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let groups_only = AnaLimits {
            namespaces: 0,
            ..LIMITS
        };
        let error = parse(&page(7, 1, &[(1, 1, &[1])]), groups_only).unwrap_err();
        assert!(error.contains("0 were requested"), "{error}");
        // A controller that claims everything.
        let unlimited = AnaLimits {
            groups: u32::MAX,
            largest_group: 0,
            largest_nsid: u32::MAX,
            namespaces: MOST_NAMESPACES,
        };
        let error = parse(&page(7, 1, &[(1, 1, &[u32::MAX])]), unlimited).unwrap_err();
        assert!(error.contains("out of range"), "{error}");
        let error = parse(&page(7, 1, &[(1, 65537, &[])]), unlimited).unwrap_err();
        assert!(error.contains("at most 65536"), "{error}");
        assert!(unlimited.page_len() < 4 << 20);
    }

    #[test]
    fn limits_are_those_of_identify_controller() {
        let mut id = IdentifyController::zeroed();
        (id.nanagrpid, id.nn) = (2.into(), 8.into());
        assert!(AnaLimits::of(&id, false).is_none(), "CMIC");
        id.cmic = 0x0a;
        let limits = AnaLimits::of(&id, false).unwrap();
        assert_eq!((limits.namespaces, limits.page_len()), (8, 16 + 64 + 32));
        let groups_only = AnaLimits::of(&id, true).unwrap();
        assert_eq!(groups_only.page_len(), 16 + 64);
        id.mnan = 4.into();
        assert_eq!(AnaLimits::of(&id, false).unwrap().namespaces, 4);
        (id.mnan, id.nn) = (0.into(), u32::MAX.into());
        let all = AnaLimits::of(&id, false).unwrap();
        assert_eq!(all.namespaces, MOST_NAMESPACES);
    }

    proptest! {
        /// Mostly small numbers, so that groups are parsed as well.
        #[test]
        fn any_page_ends_the_reader(
            page in proptest::collection::vec(prop_oneof![4 => 0u8..3, 1 => any::<u8>()], 0..300),
            groups_only in any::<bool>(),
        ) {
            let namespaces = if groups_only { 0 } else { LIMITS.namespaces };
            let (result, commands) = read(AnaLimits { namespaces, ..LIMITS }, &[page]);
            prop_assert!(commands <= 8);
            let groups = result.map_or(0, |log| log.groups.len());
            prop_assert!(groups <= 4);
        }
    }
}
