//! `nvmeof ana-log`: the Asymmetric Namespace Access log page (Base 2.1, 5.1.12.1.13), of
//! which nothing is trusted.

use std::collections::HashSet;

use nvmeof_initiator::Controller;
use nvmeof_wire::admin::NSID_ALL;
use nvmeof_wire::identify::{Cmic, IdentifyController};
use nvmeof_wire::log::ana::{ANA_GROUP_LEN, ANA_HEADER_LEN, AnaGroup, AnaHeader, AnaState};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields};

/// Attempts to read a page that does not change meanwhile.
const ATTEMPTS: usize = 5;
/// Most bytes of one Get Log Page command.
const PIECE: usize = 4096;
/// Most namespaces of a page: more than any subsystem has.
const MOST_NAMESPACES: u64 = 1 << 16;
/// Bytes of a namespace identifier.
const NSID_LEN: usize = size_of::<U32>();

/// A valid page.
#[derive(Debug, PartialEq, Eq)]
struct AnaLog {
    chgcnt: u64,
    groups: Vec<Group>,
}

/// A group of a valid page.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    agid: u32,
    chgcnt: u64,
    state: AnaState,
    nsids: Vec<u32>,
}

/// What Identify Controller says about the page.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Number of groups (NANAGRPID).
    groups: u32,
    /// Largest group identifier (ANAGRPMAX); 0 if it is not reported.
    largest_group: u32,
    /// Largest namespace identifier (NN).
    largest_nsid: u32,
    /// Most namespaces that the page can have.
    namespaces: u64,
}

/// The result of parsing the first bytes of a page.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Whole(AnaLog),
    /// The page has at least this many bytes.
    Needs(usize),
}

/// `nvmeof ana-log`
pub(crate) async fn run(args: &args::AnaLog) -> Result<(), Failure> {
    let host = args.subsystem.target.host()?;
    let options = args.subsystem.options()?;
    let addr = options.addr;
    let controller = host.connect(options).await?;
    let log = match Limits::of(controller.identify(), args.groups) {
        Some(limits) => read(&controller, args.groups, limits).await,
        None => Err(not_supported()),
    };
    controller.disconnect().await;
    let log = log?;
    match args.subsystem.target.output_format {
        Format::Normal => output::print(log.to_text(&addr.to_string()).as_bytes()),
        Format::Json => output::json(&log.to_fields(&addr.to_string())),
    }
}

fn not_supported() -> Failure {
    Failure::new("the controller does not report ANA states (CMIC bit 3 is 0)").with_remedy(
        "all of its namespaces are accessible through this path; nvmeof id-ctrl shows CMIC",
    )
}

/// Reads the page until its change count is the same before and after.
async fn read(
    controller: &Controller,
    groups_only: bool,
    limits: Limits,
) -> Result<AnaLog, Failure> {
    for _ in 0..ATTEMPTS {
        let (count, parsed) = read_once(controller, groups_only, limits).await?;
        let header = controller
            .ana_log_page(groups_only, 0, ANA_HEADER_LEN)
            .await?;
        // A page that changed while it was read may be inconsistent.
        if change_count(&header) == count {
            return parsed.map_err(|what| invalid(&what));
        }
    }
    Err(Failure::new(format!(
        "the ANA log page changed during each of {ATTEMPTS} attempts to read it"
    ))
    .with_remedy("the states of the target are changing: retry"))
}

fn invalid(what: &str) -> Failure {
    Failure::new(format!("the target sent an invalid ANA log page: {what}")).with_remedy(
        "report it to the vendor of the target; nvmeof get-log --log-id 0xc \
                      --log-len 4096 shows it",
    )
}

/// Reads the page once. Returns its change count, and the page or the reason why it is
/// invalid.
async fn read_once(
    controller: &Controller,
    groups_only: bool,
    limits: Limits,
) -> Result<(Option<u64>, Result<AnaLog, String>), Failure> {
    let mut page = Vec::new();
    let mut needs = ANA_HEADER_LEN;
    loop {
        while page.len() < needs {
            // The first command reads as much as it can.
            let rest = limits.page_len().saturating_sub(page.len()).min(PIECE);
            let piece = rest.max((needs - page.len()).min(PIECE));
            let offset = u64::try_from(page.len()).unwrap_or(u64::MAX);
            page.extend(controller.ana_log_page(groups_only, offset, piece).await?);
        }
        let count = change_count(&page);
        match parse(&page, limits) {
            Ok(Parsed::Whole(log)) => return Ok((count, Ok(log))),
            Ok(Parsed::Needs(more)) => needs = more,
            Err(what) => return Ok((count, Err(what))),
        }
    }
}

fn change_count(page: &[u8]) -> Option<u64> {
    let (header, _) = AnaHeader::read_from_prefix(page).ok()?;
    Some(header.chgcnt.get())
}

impl Limits {
    /// The limits of the controller; `None` if it does not report ANA states.
    fn of(id: &IdentifyController, groups_only: bool) -> Option<Self> {
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

    /// Most bytes of the page. NGRPS has 16 bits.
    fn page_len(&self) -> usize {
        let groups = usize::try_from(self.groups.min(u16::MAX.into())).unwrap_or(0);
        let namespaces = usize::try_from(self.namespaces).unwrap_or(0);
        ANA_HEADER_LEN + groups * ANA_GROUP_LEN + namespaces * NSID_LEN
    }
}

/// Parses the first bytes of a page. The error says what is invalid.
fn parse(page: &[u8], limits: Limits) -> Result<Parsed, String> {
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
    for _ in 0..ngrps {
        let Ok((group, after)) = AnaGroup::read_from_prefix(rest) else {
            return Ok(Parsed::Needs(page.len() - rest.len() + ANA_GROUP_LEN));
        };
        let (agid, nnsids) = (group.agid.get(), group.nnsids.get());
        known.add_group(agid, nnsids)?;
        // `add_group` has checked that the number is small.
        let len = usize::try_from(nnsids)
            .unwrap_or(0)
            .saturating_mul(NSID_LEN);
        let Some((nsids, after)) = after.split_at_checked(len) else {
            return Ok(Parsed::Needs(page.len() - after.len() + len));
        };
        let nsids = nsids.chunks_exact(NSID_LEN);
        let nsids = nsids.filter_map(|nsid| Some(U32::read_from_bytes(nsid).ok()?.get()));
        let nsids: Vec<u32> = nsids.collect();
        for nsid in &nsids {
            known.add_namespace(agid, *nsid)?;
        }
        groups.push(Group {
            agid,
            chgcnt: group.chgcnt.get(),
            // Bits 7:4 are reserved.
            state: AnaState(group.state.0 & 0xf),
            nsids,
        });
        rest = after;
    }
    Ok(Parsed::Whole(AnaLog {
        chgcnt: header.chgcnt.get(),
        groups,
    }))
}

/// Groups and namespaces of a page so far.
struct Known {
    limits: Limits,
    groups: HashSet<u32>,
    nsids: HashSet<u32>,
    /// Sum of the numbers of namespaces.
    namespaces: u64,
}

impl Known {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            groups: HashSet::new(),
            nsids: HashSet::new(),
            namespaces: 0,
        }
    }

    fn add_group(&mut self, agid: u32, nnsids: u32) -> Result<(), String> {
        let largest = self.limits.largest_group;
        if agid == 0 {
            return Err("group 0, which is no group identifier".to_owned());
        }
        if largest != 0 && agid > largest {
            return Err(format!(
                "group {agid} is out of range (1-{largest}, anagrpmax)"
            ));
        }
        if !self.groups.insert(agid) {
            return Err(format!("group {agid} is listed twice"));
        }
        let most = self.limits.namespaces;
        self.namespaces += u64::from(nnsids);
        match self.namespaces {
            sum if sum <= most => Ok(()),
            _ if most == 0 => Err(format!(
                "group {agid} has {nnsids} namespaces (nnsids), 0 were requested"
            )),
            sum => Err(format!(
                "{sum} namespaces up to group {agid} (nnsids), at most {most} (mnan, nn)"
            )),
        }
    }

    fn add_namespace(&mut self, agid: u32, nsid: u32) -> Result<(), String> {
        let largest = self.limits.largest_nsid.min(NSID_ALL - 1);
        if !(1..=largest).contains(&nsid) {
            return Err(format!(
                "namespace {nsid} of group {agid} is out of range (1-{largest}, nn)"
            ));
        }
        if !self.nsids.insert(nsid) {
            return Err(format!(
                "namespace {nsid} is listed twice, last in group {agid}"
            ));
        }
        Ok(())
    }
}

impl AnaLog {
    fn to_text(&self, device: &str) -> String {
        let mut text = format!("ANA log of {device}\n");
        let mut head = Fields::default();
        head.add("chgcnt", self.chgcnt)
            .add("ngrps", self.groups.len());
        text.push_str(&head.to_text());
        for group in &self.groups {
            text.push_str(&format!("===== ANA group {} =====\n", group.agid));
            let mut fields = group.head();
            if !group.nsids.is_empty() {
                fields.with("nsids", "", ranges(&group.nsids));
            }
            text.push_str(&fields.to_text());
        }
        text
    }

    /// The keys of nvme-cli, one of which ends with a space.
    fn to_fields(&self, device: &str) -> Fields {
        let groups = self.groups.iter().map(|group| {
            let mut fields = group.head();
            let nsids = group.nsids.iter().map(|nsid| {
                let mut fields = Fields::default();
                fields.add("nsid", *nsid);
                fields
            });
            fields.objects("NSIDS", nsids.collect());
            fields
        });
        let mut fields = Fields::default();
        fields
            .add(
                "Asymmetric Namespace Access Log for NVMe device",
                device.to_owned(),
            )
            .add("chgcnt", self.chgcnt)
            .add("ngrps", self.groups.len())
            .objects("ANA DESC LIST ", groups.collect());
        fields
    }
}

impl Group {
    fn head(&self) -> Fields {
        let state = match self.state.name() {
            "reserved" => format!("reserved {:#x}", self.state.0),
            name => name.to_owned(),
        };
        let mut fields = Fields::default();
        fields
            .add("grpid", self.agid)
            .add("nnsids", self.nsids.len())
            .add("chgcnt", self.chgcnt)
            .add("state", state);
        fields
    }
}

/// Numbers as ranges, in lines that fit a terminal: `1-3, 7`.
fn ranges(nsids: &[u32]) -> String {
    /// Columns after `nsids  : `.
    const WIDTH: usize = 70;
    let mut sorted = nsids.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let words = runs.filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    let mut text = String::new();
    let mut column = 0;
    for word in words {
        if column + word.len() + 2 > WIDTH && column > 0 {
            text.push_str(",\n         ");
            column = 0;
        } else if column > 0 {
            text.push_str(", ");
            column += 2;
        }
        column += word.len();
        text.push_str(&word);
    }
    text
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    const LIMITS: Limits = Limits {
        groups: 4,
        largest_group: 128,
        largest_nsid: 1024,
        namespaces: 16,
    };

    /// A page of groups: identifier, claimed number of namespaces, and namespaces.
    fn page(ngrps: u16, groups: &[(u32, u32, &[u32])]) -> Vec<u8> {
        let mut page = AnaHeader::new(7, ngrps).as_bytes().to_vec();
        for (agid, nnsids, nsids) in groups {
            let group = AnaGroup::new(*agid, *nnsids, 5, AnaState::OPTIMIZED);
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

    #[test]
    fn page_is_parsed_at_any_length() {
        let page = page(2, &[(1, 2, &[1, 7]), (3, 1, &[2])]);
        let log = whole(&page);
        assert_eq!(log.groups[0].nsids, [1, 7]);
        assert_eq!((log.groups[1].agid, log.chgcnt), (3, 7));
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
    fn invalid_pages_are_refused() {
        let many: Vec<u32> = (1..=17).collect();
        for (page, said) in [
            (page(5, &[]), "5 groups (ngrps), at most 4 (nanagrpid)"),
            (page(u16::MAX, &[]), "65535 groups"),
            (page(1, &[(0, 0, &[])]), "group 0"),
            (
                page(1, &[(129, 0, &[])]),
                "group 129 is out of range (1-128",
            ),
            (
                page(2, &[(2, 0, &[]), (2, 0, &[])]),
                "group 2 is listed twice",
            ),
            (page(1, &[(1, 17, &many)]), "17 namespaces up to group 1"),
            (page(1, &[(1, u32::MAX, &[])]), "4294967295 namespaces"),
            (
                page(2, &[(1, 1, &[1]), (2, u32::MAX, &[])]),
                "4294967296 namespaces up to group 2",
            ),
            (page(1, &[(1, 1, &[0])]), "namespace 0 of group 1"),
            (page(1, &[(1, 1, &[1025])]), "namespace 1025 of group 1"),
            (page(1, &[(1, 1, &[u32::MAX])]), "namespace 4294967295"),
            (page(1, &[(1, 2, &[3, 3])]), "namespace 3 is listed twice"),
            (
                page(2, &[(1, 1, &[3]), (2, 1, &[3])]),
                "namespace 3 is listed twice, last in group 2",
            ),
        ] {
            let error = parse(&page, LIMITS).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let groups_only = Limits {
            namespaces: 0,
            ..LIMITS
        };
        let error = parse(&page(1, &[(1, 1, &[1])]), groups_only).unwrap_err();
        assert!(error.contains("0 were requested"), "{error}");
        // A controller that claims everything.
        let unlimited = Limits {
            groups: u32::MAX,
            largest_group: 0,
            largest_nsid: u32::MAX,
            namespaces: MOST_NAMESPACES,
        };
        let error = parse(&page(1, &[(1, 1, &[u32::MAX])]), unlimited).unwrap_err();
        assert!(error.contains("out of range"), "{error}");
        let error = parse(&page(1, &[(1, 65537, &[])]), unlimited).unwrap_err();
        assert!(error.contains("at most 65536"), "{error}");
        assert!(unlimited.page_len() < 4 << 20);
    }

    #[test]
    fn random_pages_do_not_panic() {
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut page = [0u8; 128];
            for byte in &mut page {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Mostly small numbers.
                let [.., high, low] = seed.to_be_bytes();
                *byte = if high < 200 { low & 1 } else { low };
            }
            let _ = parse(&page, LIMITS);
        }
    }

    #[test]
    fn limits_are_those_of_identify_controller() {
        let mut id = IdentifyController::zeroed();
        (id.nanagrpid, id.nn) = (2.into(), 8.into());
        assert!(Limits::of(&id, false).is_none(), "CMIC");
        id.cmic = 0x0a;
        let limits = Limits::of(&id, false).unwrap();
        assert_eq!((limits.namespaces, limits.page_len()), (8, 16 + 64 + 32));
        let groups_only = Limits::of(&id, true).unwrap();
        assert_eq!(groups_only.page_len(), 16 + 64);
        id.mnan = 4.into();
        assert_eq!(Limits::of(&id, false).unwrap().namespaces, 4);
        (id.mnan, id.nn) = (0.into(), u32::MAX.into());
        assert_eq!(Limits::of(&id, false).unwrap().namespaces, MOST_NAMESPACES);
    }

    /// Keys as in nvme-cli 2.13.
    #[test]
    fn json_has_keys_of_nvme_cli() {
        let mut page = page(2, &[(1, 1, &[2]), (3, 0, &[])]);
        // State and reserved bits of the second group.
        page[16 + 36 + 16] = 0xf7;
        let json = serde_json::to_string(&whole(&page).to_fields("addr")).unwrap();
        assert_eq!(
            json,
            "{\"Asymmetric Namespace Access Log for NVMe device\":\"addr\",\"chgcnt\":7,\
             \"ngrps\":2,\"ANA DESC LIST \":[\
             {\"grpid\":1,\"nnsids\":1,\"chgcnt\":5,\"state\":\"optimized\",\
             \"NSIDS\":[{\"nsid\":2}]},\
             {\"grpid\":3,\"nnsids\":0,\"chgcnt\":5,\"state\":\"reserved 0x7\",\"NSIDS\":[]}]}"
        );
    }

    #[test]
    fn text_fits_eighty_columns() {
        let odd: Vec<u32> = (0..300).map(|n| u32::MAX - 2 * n).collect();
        let log = AnaLog {
            chgcnt: u64::MAX,
            groups: vec![
                Group {
                    agid: 1,
                    chgcnt: 2,
                    state: AnaState::INACCESSIBLE,
                    nsids: vec![3, 1, 2, 9],
                },
                Group {
                    agid: 2,
                    chgcnt: 2,
                    state: AnaState::CHANGE,
                    nsids: odd,
                },
            ],
        };
        let text = log.to_text("[2001:db8::1]:4420");
        assert!(text.starts_with(
            "ANA log of [2001:db8::1]:4420\n\
             chgcnt : 18446744073709551615\n\
             ngrps  : 2\n\
             ===== ANA group 1 =====\n\
             grpid  : 1\n\
             nnsids : 4\n\
             chgcnt : 2\n\
             state  : inaccessible\n\
             nsids  : 1-3, 9\n"
        ));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.contains("\n         42949"), "{text}");
    }
}
